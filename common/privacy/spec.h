/* SPDX-License-Identifier: Apache-2.0 */
/* The `privacy` key of a job: {kind: central, clip: 1, noise: 1, epsilon_max: 8, delta: 1e-5}. Whose noise protects what:
 * common/method/central_grid.h, common/method/local_noise.h, common/privacy/shares.h. */
#ifndef MFL_COMMON_PRIVACY_SPEC_H
#define MFL_COMMON_PRIVACY_SPEC_H

#include "common/settings/yaml.h"

enum mfl_privacy_kind {
        MFL_PRIVACY_NONE,        /* the job has no such key */
        MFL_PRIVACY_CENTRAL,     /* the server adds noise to a round's sum */
        MFL_PRIVACY_LOCAL,       /* daemons add noise to each client's change: common/method/local_noise.h */
        MFL_PRIVACY_DISTRIBUTED, /* daemons add shares of the noise of a secure sum: common/privacy/shares.h */
};

/* How the noise of a round depends on that of others. */
enum mfl_privacy_mechanism {
        MFL_MECHANISM_GAUSSIAN, /* not at all */
        MFL_MECHANISM_BISR,     /* common/privacy/matrix.h */
        MFL_MECHANISM_BSR,
};

/* Losses, accuracies, and other figures of clients' data, which no noise hides. */
enum mfl_privacy_metrics {
        MFL_METRICS_PLAIN,    /* daemons tell them */
        MFL_METRICS_WITHHELD, /* they stay at the daemons */
};

/* Two changes of one client are at most so many times `clip` apart. Counts where the server knows who takes part: kinds local and
 * distributed. */
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
        enum mfl_privacy_mechanism mechanism;
        enum mfl_privacy_metrics metrics; /* where has_metrics */
        bool has_metrics;
};

extern const struct mfl_yaml_field mfl_privacy_fields[]; /* of struct mfl_privacy_spec */

/* Reads the mapping into a spec. */
int mfl_privacy_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);

/* "central", "local", "distributed"; "" for none. */
const char *mfl_privacy_kind_name(enum mfl_privacy_kind kind);
/* Whether clients are clipped on one grid, and the noise is that of their sum: common/method/central_grid.h. */
static inline bool mfl_privacy_of_sums(const struct mfl_privacy_spec *spec)
{
        return spec->kind == MFL_PRIVACY_CENTRAL || spec->kind == MFL_PRIVACY_DISTRIBUTED;
}
/* Whether figures stay at the daemons: by default, where the server is who must not learn them. */
bool mfl_privacy_withholds(const struct mfl_privacy_spec *spec);
extern const char *const mfl_privacy_metrics_names[];
/* "gaussian", "bisr", "bsr". */
extern const char *const mfl_privacy_mechanism_names[];

#endif
