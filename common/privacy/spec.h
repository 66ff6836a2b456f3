/* SPDX-License-Identifier: Apache-2.0 */
/* The `privacy` key of a job: {kind: central, clip: 1, noise: 1, epsilon_max: 8, delta: 1e-5}. Whose noise protects what:
 * common/method/central_grid.h, common/method/local_noise.h. */
#ifndef MFL_COMMON_PRIVACY_SPEC_H
#define MFL_COMMON_PRIVACY_SPEC_H

#include "common/settings/yaml.h"

enum mfl_privacy_kind {
        MFL_PRIVACY_NONE,    /* the job has no such key */
        MFL_PRIVACY_CENTRAL, /* the server adds noise to a round's sum */
        MFL_PRIVACY_LOCAL,   /* daemons add noise to each client's change: common/method/local_noise.h */
};

/* Two changes of one client are at most so many times `clip` apart. */
#define MFL_PRIVACY_LOCAL_DISTANCE 2.0

struct mfl_privacy_spec {
        enum mfl_privacy_kind kind;
        double clip;   /* C: the longest change of one client, in the L2 norm; adaptive: of the first round */
        bool adaptive; /* C follows the clients (common/method/central_grid.h) */
        double noise; /* z: the noise of a round's sum, or of a client's change, has the standard deviation z C */
        double epsilon_max; /* what all rounds together may cost, */
        double delta;       /* at this delta */
        uint32_t
                clients; /* partition local: the number of sites, by which sums are divided; 0: the population's */
};

extern const struct mfl_yaml_field mfl_privacy_fields[]; /* of struct mfl_privacy_spec */

/* Reads the mapping into a spec. */
int mfl_privacy_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);

/* "central", "local"; "" for none. */
const char *mfl_privacy_kind_name(enum mfl_privacy_kind kind);

#endif
