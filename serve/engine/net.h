/* SPDX-License-Identifier: Apache-2.0 */
/* The network behind a version: the seam to kernels/infer, private to this room. */
#ifndef MFL_SERVE_ENGINE_NET_H
#define MFL_SERVE_ENGINE_NET_H

#include "serve/engine/version.h"

/* Whether this machine has the backend and, with it, the precision: 0 or MFL_INVALID. backend: as mfl_backend_open. */
int mfl_net_check(const char *backend, bool bf16, struct mfl_error *err);
/* Opens the file and fills v->infer and what v->model says of it. Errors: as mfl_infer_open. */
int mfl_net_open(const char *path, struct mfl_version *v, struct mfl_error *err);
void mfl_net_close(struct mfl_version *v);
/* Whether n rows at x, of what v->model takes, have only codes that its embeddings' tables have (mfl_infer_check). */
int mfl_net_check_codes(const struct mfl_version *v, uint32_t n, const void *x, struct mfl_error *err);
/* instance: one of v->n_instances. */
int mfl_net_run(
        struct mfl_version *v, uint32_t instance, uint32_t n, const void *x, float *y, struct mfl_error *err);

#endif
