/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets of a team's gradient, and their way to those who own them. */
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

/* team_bytes.c: the grains of so many rows, and the stage at which so many ranks work. */
uint32_t mfl_team_grains(const struct mfl_team_options *options, uint32_t rows);
uint32_t mfl_team_stage(const struct mfl_team_options *options, uint32_t n_ranks);

/* team_traffic.c: the reductions of all buckets, in their order, each as soon as its tensors are ready. */
struct team_traffic;

struct team_traffic_options {
        struct mfl_mesh *mesh;
        const struct team_buckets *buckets;
        const struct mfl_grad_layout *layout;
        enum mfl_mesh_type type;
        /* The whole gradient; a bucket's reduction is in place. With `own`: the rank's shards alone, bucket k's at own[k], and a
         * bucket has memory only while it is filled and goes. */
        void *sum;
        const uint64_t *own;
        bool all;    /* every rank gets all of a bucket; not with `own` */
        bool behind; /* on a thread of its own; else in `ready` and `wait` */
};

struct team_traffic_session {
        uint32_t step, sequence; /* operations have sequences `sequence`, + 1, ... */
        uint32_t deadline_ms;
        const atomic_bool *cancel;
        bool adds; /* with `own`: shards keep what they hold, and the buckets' sums are added */
};

int mfl_team_traffic_new(
        const struct team_traffic_options *options, struct team_traffic **ret_traffic, struct mfl_error *err);
void mfl_team_traffic_free(struct team_traffic *traffic); /* NULL is fine */
/* Of the buckets that have had memory at the same time. */
uint64_t mfl_team_traffic_bytes(const struct team_traffic *traffic);
/* From here to the end of `wait` the mesh belongs to the traffic. */
void mfl_team_traffic_begin(struct team_traffic *traffic, const struct team_traffic_session *session);
/* The sink's `place`. A bucket that has just got memory holds zeros. */
void *mfl_team_traffic_place(void *traffic, uint64_t at, uint64_t *n);
void mfl_team_traffic_ready(void *traffic, int tensor);
/* Whatever is not ready yet is so now; with a reason, the traffic is broken off instead, and its mesh broken. *ret_busy_ns grows
 * by the time that buckets took. */
int mfl_team_traffic_wait(
        struct team_traffic *traffic, const char *reason, uint64_t *ret_busy_ns, struct mfl_error *err);

#endif
