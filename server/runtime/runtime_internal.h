/* SPDX-License-Identifier: Apache-2.0 */
/* What runtime.c (the job, arithmetic), runtime_pool.c (blocks, params) and runtime_slot.c (slots) share. */
#ifndef MFL_SERVER_RUNTIME_RUNTIME_INTERNAL_H
#define MFL_SERVER_RUNTIME_RUNTIME_INTERNAL_H

#include <pthread.h>

#include "common/base/digest.h"
#include "common/model/safetensors.h"
#include "server/runtime/runtime.h"
#include "server/robust/robust.h"
#include "server/runtime/changes.h"
#include "server/runtime/spill.h"
#include "server/runtime/states_list.h"

#define RANGE_ELEMENTS                                                                                       \
        16384 /* apply works so many at a time: 64 KiB of floats, still in cache when hashed                 \
               */

struct mfl_block {
        struct mfl_pool *pool;
        struct mfl_block *next_free;
        uint32_t refs;
        void *memory;
        /* What a freed slot had added ahead, in the runtime's list until the worker has taken it away. */
        struct mfl_added {
                struct mfl_block *next;
                uint64_t elements;
                struct mfl_upload upload;
        } undo;
};

/* Lives until the runtime is closed and the last block is released. Everything is guarded by the mutex. */
struct mfl_pool {
        pthread_mutex_t mutex;
        struct mfl_budget *budget;
        uint64_t block_bytes;
        uint32_t n_blocks, n_base; /* there are, there are when nobody holds more than it should */
        struct mfl_block *free;
        bool closed, mapped;                   /* mapped: the block's memory is */
        struct mfl_params *current, *previous; /* current has a reference, previous has none */
};

/* Takes over the reservation of n_base blocks, on failure too. */
int mfl_pool_new(struct mfl_budget *budget, uint64_t block_bytes, uint64_t params_bytes, uint32_t n_base,
        struct mfl_pool **ret_pool, struct mfl_error *err);
void mfl_pool_close(struct mfl_pool *pool);
/* A block with one reference, under the mutex. NULL when all are held (MFL_BUSY). */
struct mfl_block *mfl_pool_take(struct mfl_pool *pool);
/* Under the mutex. */
void mfl_block_ref(struct mfl_block *block);
/* Takes the mutex itself. */
void mfl_block_release(struct mfl_block *block);

/* Params over a block, taking over its reference; the digest is filled in by the caller. */
struct mfl_params *mfl_params_new(struct mfl_block *block, uint64_t n);
/* Params over mapped memory of n floats, which goes with them. NULL: out of memory. */
struct mfl_params *mfl_params_mapped(void *map, uint64_t n);
/* Their floats change; nobody else may have a reference. */
void mfl_params_forget_crc(struct mfl_params *params);
/* Makes them the current ones, taking over the reference. */
void mfl_pool_publish(struct mfl_pool *pool, struct mfl_params *params);

struct mfl_extent {
        uint64_t begin, end;
};
struct mfl_slot {
        struct mfl_block *block; /* NULL: not open */
        struct mfl_upload upload;
        uint64_t bytes;
        uint32_t n_extents, room; /* arrived: ascending, neither touching nor overlapping */
        struct mfl_extent *extents;
        uint32_t n_writing; /* chunks on their way into it */
        /* Added ahead of the whole: the elements that are in the sums; the bytes from 0 on that the worker
         * was given, which take no more chunks; it is at them; one of them is wrong. */
        uint64_t n_added, handed;
        bool adding, wrong;
};

struct mfl_runtime {
        char job[MFL_JOB_ID_BYTES];
        const struct mfl_job *spec;
        const struct mfl_graph *graph;
        const struct mfl_strategy_ops *strategy;
        char mark_path[MFL_STORE_PATH_BYTES]; /* of a strategy that is a plug-in; "": none */
        const struct mfl_method_ops *method;
        double numbers[MFL_METHOD_STATES_MAX]; /* what the method keeps from round to round */
        int64_t *
                memory; /* what the checkpoint that the job resumed from remembers of clients; NULL: nothing */
        struct mfl_fixed fixed;
        struct mfl_budget *budget;
        uint64_t n, budget_bytes;  /* n: params that move; budget_bytes: sums and state */
        struct mfl_params *frozen; /* NULL: none are */
        struct mfl_sha256 hashed;  /* the digest of all params, as far as the frozen ones */
        struct mfl_pool *pool;
        uint32_t n_slots;
        struct mfl_slot *slots; /* guarded by the pool's mutex */
        int64_t *sums;          /* NULL for single updates */
        struct mfl_block *undo; /* guarded by the pool's mutex */
        float *state[MFL_STRATEGY_STATES_MAX];
        struct mfl_spill *spill;     /* NULL but for single updates */
        struct mfl_states *states;   /* NULL: clients keep nothing */
        struct mfl_changes *changes; /* NULL: they are not kept for people */
        int64_t *
                told; /* the sum of clients' second vectors in units of 1 / told_unit; NULL: there is none (runtime_told.c) */
        double told_unit, *told_mean; /* RANGE_ELEMENTS */
        float *fed; /* compression.up.top_k: a client's change and what it had not sent before (runtime_feed.c); NULL: not here */
        float *rest; /* compression.down: what rounding has taken away from the params; NULL: they are not rounded */
        double *down_largest; /* on a grid: the largest change of each tensor's elements in a round */
        /* Of regions, one each, between their meetings. Asynchronous jobs: the versions before the newest one, number v at v % n_older, guarded by the pool's mutex, and
         * the digests of all of them, number v at v % (n_older + 1). */
        struct mfl_params **older;
        uint32_t n_older;
        uint8_t (*digests)[MFL_DIGEST_BYTES];
        char *dir;             /* where their files are */
        uint64_t weight_added; /* in this round */
        uint32_t round;
        double *d;          /* RANGE_ELEMENTS */
        double *largest;    /* of each tensor's mean delta in a round; NULL: the job has no grid */
        const float **rows; /* cohort, and the guess */
        uint32_t *pick,
                n_pick; /* of the round being applied: rows of the spill that the rule is asked about */
        uint32_t root;  /* the row of fltrust's root; the number of rows: it has none */
        uint64_t root_item[2];       /* the client that it may be */
        struct mfl_regions *regions; /* NULL: all clients start from the same params (runtime_regions.c) */
        struct mfl_bad_servers *servers; /* NULL: none lies */
        struct mfl_buckets *buckets;     /* secure sums of buckets; NULL: there are none (runtime_secure.c) */
        struct mfl_rows_buckets *unit;   /* unit bucket or server; NULL: rows are updates (runtime_unit.c) */
        struct mfl_spill
                *history;   /* foolsgold: what each client has sent in all (runtime_history.c); else NULL */
        uint32_t n_threads; /* of the pass over the rows */
        bool *bad;          /* clients that a simulated attack has; NULL: none */
        struct mfl_choice choice; /* of this round, while it is applied */
        double *scratch;          /* of mfl_robust_reduce */
        struct mfl_rows_report report;
        struct mfl_secret noise; /* of the next round that is applied, if has_noise */
        bool has_noise;
};

/* runtime_rows.c, worker. Memory of the decision about so many rows, for the budget. */
uint64_t mfl_rows_bytes(const struct mfl_job *spec);
/* The attack of a simulation, the pass over the rows, the decision. Not without rows. MFL_INVALID: too few or too many. */
int mfl_rows_decide(struct mfl_runtime *rt, struct mfl_error *err);
/* runtime_facts.c. What pass 1 finds of picked rows of a spill file (pick NULL: the first n_pick), with the guess as the last one; the caller
 * frees it. NULL: no memory. */
double *mfl_rows_facts(struct mfl_runtime *rt, struct mfl_spill *spill, const uint32_t *pick, uint32_t n_pick,
        const float *guess);
bool mfl_rows_is_root(const struct mfl_runtime *rt, uint64_t item);
/* What belongs to rows, beside the spill file itself; `cohort` rows at most. */
int mfl_rows_open(struct mfl_runtime *rt, const char *dir, uint32_t cohort, struct mfl_error *err);
void mfl_rows_close(struct mfl_runtime *rt);

/* runtime_attack.c */
int mfl_rows_attack(struct mfl_runtime *rt, struct mfl_error *err);

/* runtime_unit.c. merge: the picked rows become those of buckets or servers, which are picked then; nothing with other units. tell:
 * the clients of a picked row. */
int mfl_unit_new(uint32_t cohort, struct mfl_rows_buckets **ret_unit);
void mfl_unit_free(struct mfl_rows_buckets *unit);
int mfl_unit_merge(struct mfl_runtime *rt, struct mfl_error *err);
void mfl_unit_tell(const struct mfl_runtime *rt, uint32_t row, struct mfl_rows_members *ret_members);

/* runtime_secure.c: secure sums of buckets (unit: bucket with secure_sum), of which a round of `cohort` clients has so many at most.
 * add: worker, a masked update. tell: the clients of a row of the spill. */
uint32_t mfl_buckets_most(const struct mfl_job *spec, uint32_t cohort);
int mfl_buckets_open(struct mfl_runtime *rt, const char *dir, uint32_t cohort, struct mfl_error *err);
void mfl_buckets_close(struct mfl_buckets *buckets);
void mfl_buckets_clear(struct mfl_buckets *buckets);
int mfl_buckets_add(struct mfl_runtime *rt, uint32_t bucket, const uint64_t *masked, struct mfl_error *err);
void mfl_buckets_tell(const struct mfl_runtime *rt, uint32_t row, struct mfl_rows_members *ret_members);

/* runtime_history.c. make: rt->history has a row for each row of the spill. replay: the row's update is kept, and the row
 * becomes what was kept before; zeros at first. MFL_INVALID: a state can't be kept. */
int mfl_history_make(struct mfl_runtime *rt, struct mfl_error *err);
int mfl_history_replay(struct mfl_runtime *rt, uint32_t row, struct mfl_error *err);

/* runtime_unit.c: servers that lie about the rows of unit server, which are picked. All of no effect unless some do. */
uint64_t mfl_servers_bytes(const struct mfl_job *spec, uint64_t n);
int mfl_servers_open(struct mfl_runtime *rt, struct mfl_error *err);
void mfl_servers_close(struct mfl_bad_servers *servers);
int mfl_servers_load(struct mfl_runtime *rt, const char *path, struct mfl_error *err);
void mfl_servers_store(const struct mfl_runtime *rt, struct mfl_checkpoint *checkpoint);
void mfl_servers_lie(struct mfl_runtime *rt);

/* The aggregate of one range into rt->d. */
void mfl_rows_reduce(struct mfl_runtime *rt, uint64_t begin, size_t count);
void mfl_rows_end(struct mfl_runtime *rt);

/* The strategy's vectors in rt->state; regions have their own. */
static inline int mfl_runtime_n_state(const struct mfl_runtime *rt)
{
        return rt->regions ? 0 : rt->strategy->n_state;
}

/* The pool's mutex guards the slots. */
static inline void mfl_slots_lock(const struct mfl_runtime *rt)
{
        pthread_mutex_lock(&rt->pool->mutex);
}

static inline void mfl_slots_unlock(const struct mfl_runtime *rt)
{
        pthread_mutex_unlock(&rt->pool->mutex);
}

static inline uint64_t mfl_element_bytes(enum mfl_encoding encoding)
{
        return encoding == MFL_ENCODING_F32 ? sizeof(float) : sizeof(int64_t);
}

/* runtime_noise.c, worker: adds the noise to the sums. */
int mfl_runtime_add_noise(struct mfl_runtime *rt, struct mfl_round_totals *totals, struct mfl_error *err);

/* runtime_told.c, all of no effect where there is no such sum. update: both vectors of a client's. mean: valid until the next call;
 * NULL: there is none. */
uint64_t mfl_told_bytes(const struct mfl_job *spec, uint64_t n);
int mfl_told_open(struct mfl_runtime *rt, struct mfl_error *err);
void mfl_told_clear(struct mfl_runtime *rt);
int mfl_told_check(const struct mfl_runtime *rt, const float *update, struct mfl_error *err);
void mfl_told_add(struct mfl_runtime *rt, uint64_t weight, const float *update);
const double *mfl_told_mean(struct mfl_runtime *rt, uint64_t begin, size_t count, uint64_t weight);

/* runtime_states.c. advance: the clients' states follow the round, and d may follow them. */
int mfl_runtime_open_states(
        struct mfl_runtime *rt, const struct mfl_runtime_options *options, struct mfl_error *err);
int mfl_runtime_advance_states(
        struct mfl_runtime *rt, uint64_t begin, size_t count, uint64_t weight, struct mfl_error *err);

/* runtime_feed.c. put: rt->fed becomes what the client sends. note: the params tell what sites keep of the clients that train from them. */
uint64_t mfl_feed_bytes(const struct mfl_job *spec, uint64_t n);
int mfl_feed_open(struct mfl_runtime *rt, struct mfl_error *err);
int mfl_feed_put(struct mfl_runtime *rt, uint64_t client, const float *delta, struct mfl_error *err);
int mfl_sites_note(const struct mfl_runtime *rt, struct mfl_params *params, struct mfl_error *err);

/* runtime_down.c. first: of params that were never rounded. begin: of a round, whose params get steps if they are on a grid. made: of each range, in their
 * order, what the strategy has made of `in`; round: then each range again. */
uint64_t mfl_down_bytes(const struct mfl_job *spec, uint64_t n);
int mfl_down_open(struct mfl_runtime *rt, struct mfl_error *err);
void mfl_down_first(struct mfl_runtime *rt, float *moving);
int mfl_down_begin(struct mfl_runtime *rt, struct mfl_params *params, struct mfl_error *err);
void mfl_down_made(struct mfl_runtime *rt, uint64_t begin, size_t count, const float *in, float *out,
        const struct mfl_params *params);
void mfl_down_round(struct mfl_runtime *rt, uint64_t begin, size_t count, const float *in, float *out,
        const struct mfl_params *params);

/* runtime_regions.c, all of no effect without regions. bytes: of what they keep. load: after `round`, or the states before the first
 * one, path NULL. note: what clients start from, once the newest params are published. apply: a round, into `out` and the digest of
 * params; applied: once those are published. */
uint64_t mfl_regions_bytes(const struct mfl_job *spec, uint64_t n);
int mfl_regions_open(struct mfl_runtime *rt, struct mfl_error *err);
void mfl_regions_close(struct mfl_regions *regions);
int mfl_regions_load(struct mfl_runtime *rt, const char *path, uint32_t round, struct mfl_error *err);
void mfl_regions_store(const struct mfl_runtime *rt, struct mfl_checkpoint *checkpoint);
int mfl_regions_note(struct mfl_runtime *rt, struct mfl_error *err);
int mfl_regions_apply(struct mfl_runtime *rt, const struct mfl_strategy_round *round, float *out,
        struct mfl_params *params, struct mfl_error *err);
void mfl_regions_applied(struct mfl_runtime *rt);
const uint8_t (*mfl_regions_digests(const struct mfl_regions *regions))[MFL_DIGEST_BYTES];

/* runtime_told.c. The mean of a range's sums into rt->d. */
void mfl_runtime_mean(
        struct mfl_runtime *rt, const int64_t *sums, uint64_t begin, size_t count, double divisor);

#define MFL_RUNTIME_REST "rest" /* its name in checkpoints */

/* runtime_load.c. frozen: graph->n_frozen floats; NULL: none. fill: also the state. version, first: of one version, or before the
 * first round, the params alone. */
int mfl_runtime_fill(struct mfl_runtime *rt, const struct mfl_runtime_options *options, float *frozen,
        float *moving, struct mfl_error *err);
int mfl_runtime_load_version(struct mfl_runtime *rt, const char *path, const char *frozen_path, float *frozen,
        float *moving, struct mfl_error *err);
int mfl_runtime_load_first(struct mfl_runtime *rt, const struct mfl_runtime_options *options, float *frozen,
        float *moving, struct mfl_error *err);
/* A vector of the checkpoint, n floats; a number of its metadata. */
int mfl_runtime_load_state(struct mfl_runtime *rt, const struct mfl_st_file *file, const char *vector,
        float *to, const char *path, struct mfl_error *err);
int mfl_runtime_load_number(const struct mfl_st_file *file, const char *name, const char *path,
        double *ret_number, struct mfl_error *err);
int mfl_runtime_load_grid(
        struct mfl_runtime *rt, const char *path, struct mfl_params *params, struct mfl_error *err);
/* Of all params, where v are those that move. */
int mfl_runtime_digest(const struct mfl_runtime *rt, const float *v, uint8_t digest[MFL_DIGEST_BYTES],
        struct mfl_error *err);

/* runtime_versions.c, all of no effect unless the job is asynchronous. keep: worker, before the round's params are published;
 * note: after that. rebase: after the range is reduced; what is no gradient
 * follows the versions that clients have started from. */
int mfl_runtime_open_versions(
        struct mfl_runtime *rt, const struct mfl_runtime_options *options, struct mfl_error *err);
void mfl_runtime_close_versions(struct mfl_runtime *rt);
int mfl_runtime_keep_version(struct mfl_runtime *rt, struct mfl_error *err);
void mfl_runtime_note_version(struct mfl_runtime *rt, const uint8_t *digest);
void mfl_runtime_rebase(
        struct mfl_runtime *rt, const struct mfl_round_totals *totals, uint64_t begin, size_t count);

/* runtime_ahead.c. free: under the mutex, of a slot whose block goes; true when the block's reference was
 * taken over. undo: worker, before anything that reads or adds to the sums; forget: the sums are zero, or go.
 */
bool mfl_ahead_free(struct mfl_runtime *rt, struct mfl_slot *slot);
void mfl_ahead_undo(struct mfl_runtime *rt);
void mfl_ahead_forget(struct mfl_runtime *rt);
/* Worker: adds elements [from, from + n) of a held slot to the sums; MFL_INVALID: nothing was added. */
int mfl_slot_add_range(struct mfl_runtime *rt, const struct mfl_slot *slot, uint64_t from, uint64_t n,
        struct mfl_error *err);
/* Worker: takes away what the slot, as it was held, has in the sums. */
void mfl_ahead_subtract(struct mfl_runtime *rt, const struct mfl_upload *upload, const void *v, uint64_t n);

#endif
