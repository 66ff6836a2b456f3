/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets of a team's gradient, and the thread that exchanges them. */
#ifndef MFL_KERNELS_TEAM_TEAM_INTERNAL_H
#define MFL_KERNELS_TEAM_TEAM_INTERNAL_H

#include <pthread.h>

#include "kernels/grad.h"
#include "kernels/team/team.h"

/* Elements [first, first + n) of the gradient: whole blocks, but for the gradient's last one. */
struct team_bucket {
        uint64_t first, n;
        uint64_t edge[MFL_MESH_RANKS_MAX + 1]; /* of the ranks' slices, from `first` on; whole blocks */
        int n_tensors;                         /* that have elements in it */
};

struct team_buckets {
        uint32_t n;
        struct team_bucket *bucket; /* in the order of backward: bucket 0 ends at the gradient's end */
};

/* team_bucket.c. Buckets of at least `bytes` of integers (the first: a quarter), cut where tensors begin. */
int mfl_team_buckets_new(const struct mfl_grad_layout *layout, uint64_t bytes, uint32_t n_ranks,
        struct team_buckets *ret_buckets, struct mfl_error *err);
void mfl_team_buckets_deinit(struct team_buckets *buckets);

/* team_traffic.c: reduce-scatters of all buckets, in their order, each as soon as its tensors are ready. */
struct team_traffic;

int mfl_team_traffic_new(struct mfl_mesh *mesh, const struct team_buckets *buckets,
        const struct mfl_grad_layout *layout, int64_t *sum, struct team_traffic **ret_traffic,
        struct mfl_error *err);
void mfl_team_traffic_free(struct team_traffic *traffic); /* NULL is fine */
/* From here to the end of `wait` the mesh belongs to the traffic. Operations have sequences `sequence`, + 1, ... */
void mfl_team_traffic_begin(struct team_traffic *traffic, uint32_t step, uint32_t sequence,
        uint32_t deadline_ms, const atomic_bool *cancel);
void mfl_team_traffic_ready(void *traffic, int tensor);
/* Whatever is not ready yet is so now; with a reason, the traffic is broken off instead, and its mesh broken. */
int mfl_team_traffic_wait(
        struct team_traffic *traffic, const char *reason, uint64_t *ret_busy_ns, struct mfl_error *err);

/* The reduce-scatter of a bucket, in place. */
struct mfl_mesh_op mfl_team_scatter(
        const struct mfl_mesh *mesh, const struct team_bucket *bucket, int64_t *sum);

#endif
