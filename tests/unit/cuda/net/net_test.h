/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the CUDA backend's network share: small models and data, and a local training through the
 * backend's table of functions on the emulated device. */
#ifndef MFL_TESTS_UNIT_CUDA_NET_NET_TEST_H
#define MFL_TESTS_UNIT_CUDA_NET_NET_TEST_H

#include "tests/lib/test.h"
#include "kernels/backend.h"

#define NET_SAMPLES 29
#define NET_BATCH 4
#define NET_STEPS 6
#define NET_GROUPS 3

extern const struct mfl_backend_ops mfl_backend_module;

enum net_model {
        NET_DENSE,    /* dense, relu, dense: cheap */
        NET_RESIDUAL, /* convolutions, batch norms, a sum, pool, dropout, dense */
};

/* One model, its data, and groups with different amounts of it. */
struct net_case {
        struct mfl_device *device;
        struct mfl_graph *graph;
        struct mfl_dataset set;
        float *first; /* [NET_GROUPS][n] */
        uint32_t index[NET_GROUPS][NET_STEPS * NET_BATCH], count[NET_GROUPS][NET_STEPS];
};
void net_case_init(struct net_case *c, enum net_model model);
void net_case_deinit(struct net_case *c);
/* Opens the device once; its tuning file is in a directory of its own. */
struct mfl_device *net_device(void);

/* A local training of groups [first, first + options.groups), and its results. */
struct net_run {
        struct mfl_net_options options;
        struct mfl_optimizer opt;
        uint32_t first, chunk; /* chunk: steps of a call; 0: all */
        bool not_resident, shared_start;
        /* Results. */
        float *params; /* [groups][n] */
        struct mfl_score score[NET_GROUPS], eval[NET_GROUPS];
        uint64_t n_samples[NET_GROUPS];
        int64_t *sum; /* [n], weights 1, 2, .. */
};
struct net_run net_run_of(enum mfl_precision precision, int groups, uint32_t first);
/* Asserts success. */
void net_train(const struct mfl_backend_ops *ops, struct mfl_device *device, struct net_case *c,
        struct net_run *run);
void net_run_deinit(struct net_run *run);
/* Group b of one run has the bits of group a of another. */
void net_assert_same(
        const struct net_case *c, const struct net_run *x, int a, const struct net_run *y, int b);

#endif
