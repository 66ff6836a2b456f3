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
        int deferred; /* the tensor that it lies in, whose gradient its owners compute from operands; -1: a bucket of traffic */
};

struct team_buckets {
        uint32_t n;
        struct team_bucket *bucket; /* in the order of backward: bucket 0 ends at the gradient's end */
};

/* team_bucket.c. Buckets of at least options->bucket_bytes of integers (the first: a quarter), cut where tensors begin. What is deferred of a
 * tensor, whole blocks, is one by itself. The cuts are the same in a team of any number of ranks. */
int mfl_team_buckets_new(const struct mfl_grad_layout *layout, const struct mfl_team_options *options,
        uint32_t n_ranks, struct team_buckets *ret_buckets, struct mfl_error *err);
void mfl_team_buckets_deinit(struct team_buckets *buckets);
uint64_t mfl_team_largest_bucket(const struct team_buckets *buckets); /* elements, at least 1 */
/* edge[rank] of the same bucket in a team of n_ranks. */
uint64_t mfl_team_bucket_edge(const struct team_bucket *bucket, uint32_t n_ranks, uint32_t rank);

/* team.c */
struct mfl_team {
        const struct mfl_grad_ops *ops;
        const struct mfl_grad_device_ops
                *device; /* of a team whose vectors lie there; NULL: in the host's memory */
        struct mfl_net *net;
        struct mfl_mesh *mesh, *bulk; /* bulk: of gradients and params */
        bool behind;                  /* traffic goes behind backward */
        struct mfl_team_options options;
        struct mfl_loss loss;
        struct mfl_grad_layout layout;
        uint32_t n_grains; /* of the largest step */
        uint64_t n_blocks;
        struct team_buckets buckets;
        struct team_traffic *traffic;
        struct team_products *products; /* NULL: no tensor is deferred */
        bool fresh;                     /* no step has been taken in this training: scales are a guess */
        bool torn;                      /* a step was broken off while it changed the training's state */
        uint32_t done;                  /* steps of this training that are whole */
        float loss_scale;               /* of the next step; 1 where the layout is not scaled */
        uint32_t good_steps;
        struct mfl_score
                score; /* of all ranks' rows in this training, as far as they have heard of each other */
        uint32_t zero; /* the stage at work */
        /* Grains go as floats, and who owns an element rounds it: half the bytes. So it is where a rank never adds a grain to
         * another before it sends them. */
        bool late;
        uint64_t size;        /* of an element of a sum */
        uint64_t n_own, *own; /* the rank's elements, and where those of a bucket begin among them */
        /* Vectors from here to `aside` are the device's where the team is resident. */
        char *sum;    /* layout.n elements, of `late` n_own; the rank's own ones become the total */
        float *grads; /* of `late` in stage 1: layout.n, the rank's grain */
        float *momentum, *second, *start; /* n_own */
        float *aside;                     /* with `follows`: a bucket's params that another rank writes */
        int *exponent, *bits;             /* of each tensor */
        float *largest;                   /* of each tensor, in this step */
        float *statistics;                /* n_grains * layout.n_statistics */
        double *squares; /* n_blocks: rank by rank; those of a rank in the gradient's order */
        uint64_t edge[2][MFL_MESH_RANKS_MAX + 1]; /* of squares, of grains' statistics */
        struct team_snapshots *snapshots;         /* NULL: none are taken */
        int64_t note;
        struct mfl_team_times times;
};
enum { EDGES_SQUARES, EDGES_STATISTICS };

/* team_make.c. Blocks of n elements. How many ranks own something that others don't. */
uint64_t mfl_team_blocks(uint64_t n);
uint32_t mfl_team_owners(const struct mfl_team *team);
/* The team's vectors, wherever they lie; `n` floats. In the host's memory any way is the same. */
int mfl_team_clear(const struct mfl_team *team, void *memory, uint64_t bytes, struct mfl_error *err);
int mfl_team_copy(const struct mfl_team *team, enum mfl_grad_copy way, float *to, const float *from,
        uint64_t n, struct mfl_error *err);
/* What the device was told is done; before a mesh reads it. */
int mfl_team_settle(const struct mfl_team *team, struct mfl_error *err);
/* team_bucket.c. The elements of bucket k that are a rank's: from *ret_first on. In stage 0 each rank has all. */
uint64_t mfl_team_own(const struct mfl_team *team, uint32_t k, uint32_t rank, uint64_t *ret_first);
/* Which of those that own different elements this rank is. */
uint32_t mfl_team_owner(const struct mfl_team *team);
/* Whether the rank writes params that no rank of its memory owns. */
bool mfl_team_fills(const struct mfl_team *team);
/* team.c. The optimizer's state before a training's first step. Params are those of the start. */
int mfl_team_start(struct mfl_team *team, struct mfl_error *err);
void mfl_team_score_add(struct mfl_score *to, const struct mfl_score *score);

/* team_scale.c, after the largest elements went to all, so that all ranks see the same. Whether all tensors' scales were right; those
 * that were not become so. */
bool mfl_team_scales_fit(struct mfl_team *team);
/* Whether the step has to be left out: fp16, and a gradient that is not finite. */
bool mfl_team_overflows(const struct mfl_team *team);

/* team_snapshot.c: an owner's shard of a training's state after whole steps, bucket by bucket as in the owner's optimizer state. Of one
 * owner alone: all of it, in the gradient's order. */
struct team_shard {
        uint32_t step, owner, n_owners; /* step: the next one */
        int n_tensors;
        uint64_t n;
        int64_t note;
        struct mfl_score score;
        float loss_scale;
        uint32_t good_steps;
        int *exponent;                     /* n_tensors */
        float *params, *momentum, *second; /* n each; the optimizer's may be NULL */
};

/* A whole state is the one shard of one owner. */
struct mfl_team_state {
        uint32_t n;
        struct team_shard **shard; /* a whole state is the one shard of one owner, in the gradient's order */
};

int mfl_team_shard_new(const struct mfl_team *team, uint32_t owner, uint32_t n_owners, uint64_t n,
        struct team_shard **ret_shard, struct mfl_error *err);
void mfl_team_shard_free(struct team_shard *shard); /* NULL is fine */
uint64_t mfl_team_shard_bytes(const struct team_shard *shard);
/* What is not in vectors, as it is at the team now. */
void mfl_team_shard_stamp(const struct mfl_team *team, int64_t note, struct team_shard *shard);
/* Takes *shard, which is NULL then; not where there is the same one. -ENOMEM. */
int mfl_team_state_add(struct mfl_team_state **state, struct team_shard **shard, struct mfl_error *err);

int mfl_team_snapshots_new(struct mfl_team *team, struct mfl_error *err);
void mfl_team_snapshots_free(struct team_snapshots *snapshots); /* NULL is fine */
/* Those taken so far are of another training. NULL is fine. */
void mfl_team_snapshots_forget(struct team_snapshots *snapshots);
bool mfl_team_snapshot_due(const struct mfl_team *team);
/* By all ranks, between steps. */
int mfl_team_snapshot(struct mfl_team *team, const atomic_bool *cancel, struct mfl_error *err);

/* The grains of so many rows. */
static inline uint32_t mfl_team_grains(const struct mfl_team_options *options, uint32_t rows)
{
        return (rows + options->grain - 1) / options->grain;
}

/* team_bytes.c: elements of the rank's sums, and the stage at which so many ranks work. */
uint64_t mfl_team_sums(const struct mfl_team *team);
uint32_t mfl_team_stage(const struct mfl_team_options *options, uint32_t n_ranks);

/* team_products.c: tensors whose gradient is a product of operands that are much smaller (struct mfl_grad_deferred). Each rank
 * gets the operands of all grains, and computes the totals that it owns, all grains' together: one float each, which lie
 * where the sums of that bucket would. What Krizhevsky 2014 ("One weird trick for parallelizing convolutional neural networks") does for dense layers, as
 * far as it changes no bit: each element of the product is still computed whole, by one rank. */
bool mfl_team_defers(const struct mfl_team_options *options, uint32_t n_grains, uint64_t elements,
        uint64_t operands); /* elements: that could be deferred of a tensor */
int mfl_team_products_new(struct mfl_team *team, struct mfl_error *err); /* after the buckets */
void mfl_team_products_free(struct team_products *products);             /* NULL is fine */
/* What grain k of the step defers; NULL: nothing. */
const struct mfl_grad_deferred *mfl_team_defer(const struct mfl_team *team, uint32_t k);
/* The exchange of the operands of a step of so many grains. */
struct mfl_mesh_op mfl_team_products_op(struct mfl_team *team, uint32_t n_grains);
/* Where the totals of deferred bucket k lie: those that the rank owns, or in stage 0 all. */
float *mfl_team_totals(const struct mfl_team *team, uint32_t k);
/* Computes the totals of the rank's slice of each deferred bucket. */
void mfl_team_products_take(const struct mfl_team *team, uint32_t n_grains);

/* team_traffic.c: the reductions of all buckets of traffic, in their order, each as soon as its tensors are ready. */
struct team_traffic;

struct team_traffic_options {
        struct mfl_mesh *mesh;
        const struct team_buckets *buckets;
        const struct mfl_grad_layout *layout;
        enum mfl_mesh_type type;
        /* The whole gradient; a bucket's reduction is in place. With `own`: the rank's shards alone, bucket k's at own[k], integers
         * that `round` adds to (as grad_ops, of the network); what is filled is floats: `grads`, the whole gradient, or where that is
         * NULL memory that a bucket has only while it is filled and goes. */
        void *sum;
        const uint64_t *own;
        float *grads;
        const struct mfl_grad_ops *ops;
        const struct mfl_net *net;
        struct mfl_grad_rounding rounding;
        bool all;    /* every rank gets all of a bucket; not with `own` */
        bool behind; /* on a thread of its own; else in `ready` and `wait` */
};

struct team_traffic_session {
        uint32_t step, sequence; /* operations have sequences `sequence`, + 1, ... */
        uint32_t deadline_ms;
        const atomic_bool *cancel;
        bool adds; /* with `own`: shards keep what they hold, and grains are added */
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
