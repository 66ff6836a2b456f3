/* SPDX-License-Identifier: Apache-2.0 */
/* The key data.normalise of a job file: who says what the samples' values are scaled by. Pure. */
#ifndef MFL_COMMON_NORMALISE_SPEC_H
#define MFL_COMMON_NORMALISE_SPEC_H

#include "common/base/base.h"
#include "common/settings/yaml.h"

#define MFL_NORMALISE_MAX 3000 /* features; as many as statistics have */

enum mfl_normalise {
        MFL_NORMALISE_SITE,      /* each site's own configuration */
        MFL_NORMALISE_FEDERATED, /* the mean and deviation over all sites, which the server has yet to measure */
        MFL_NORMALISE_GIVEN,     /* those below; what the server has measured becomes this */
};
struct mfl_normalise_spec {
        enum mfl_normalise kind;
        uint32_t n;         /* channels of images, or columns */
        double *mean, *std; /* n each; one allocation. std > 0 */
};

/* Reads `federated`, or {mean: [...], std: [...]}. value: the spec. MFL_INVALID, -ENOMEM. */
int mfl_normalise_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
/* {mean: [...], std: [...]}, with all digits; on the heap. NULL: no memory. */
char *mfl_normalise_text(uint32_t n, const double *mean, const double *std);
/* Becomes GIVEN; copies. -ENOMEM. */
int mfl_normalise_give(struct mfl_normalise_spec *spec, uint32_t n, const double *mean, const double *std);
void mfl_normalise_deinit(struct mfl_normalise_spec *spec);

#endif
