/* SPDX-License-Identifier: Apache-2.0 */
/* One job's memory and arithmetic in the server: the current params, the staging slots of uploads, the exact
 * sums, the strategy's state. Bounded and known when the job starts; every page is touched then, so nothing
 * is found missing later.
 *
 * What no training changes (graph->n_frozen floats) lies in a block of its own from open to close, as params
 * that are never replaced. n is the number of the others: params objects, slots, sums, state and the spill
 * file are of those alone.
 *
 * MEMORY. 4 bytes for each frozen param. Uniform blocks, one for the current params and one per slot, 4n
 * bytes each when only f32 updates can come (mfl_runtime_f32_only), else 8n; plus the sums (8n; none for
 * single updates, which go to a spill file), 8n for the sum of clients' states (states.h) or of their gradients (runtime_told.c), and 4n per state vector of the strategy. So the median with 2
 * slots takes 3 copies of the model, fedavg with 1 slot 6, of which 5 are in memory: the part of a block that
 * params leave over is given back to the system while they hold it. A `local` job has one client a daemon,
 * but a node's daemons add theirs, so its slots take sums as well. APPLY needs a free block for the new
 * params. After it the old params' block becomes a slot's, as soon as the last reference to it is gone.
 * Blocks that somebody still holds (old params being sent, a slot freed in the middle of a chunk) are
 * replaced when a slot needs one, by at most MFL_RUNTIME_SPARE extra blocks, reserved from the budget then;
 * beyond that mfl_slot_open opens nothing. The shell keeps that rare: it stops sending params that are
 * `retired` at the next chunk (ParamsGone).
 *
 * An asynchronous job also has the last `staleness_max` versions of the params, 4n bytes each, in mapped files
 * that count as disk (runtime_versions.c).
 *
 * THREADS. "worker": on the one worker thread of the job, may take seconds. "loop": short, on the loop
 * thread. Blocks and references are guarded inside. open and close: worker, with nothing else of this job
 * running.
 *
 * Errors: MFL_INVALID (what a peer or a job file did wrong), MFL_BUSY, MFL_RUNTIME_MEMORY (the budget is too
 * small; text has the sizes), negative for the rest.
 */
#ifndef MFL_SERVER_RUNTIME_RUNTIME_H
#define MFL_SERVER_RUNTIME_RUNTIME_H

#include <stdatomic.h>

#include "common/base/fixed.h"
#include "common/method/method.h"
#include "common/privacy/secret.h"
#include "proto/message.h"
#include "server/secure/leader.h"
#include "server/runtime/states.h"
#include "server/store/checkpoint.h"
#include "server/store/store.h"
#include "server/strategy/strategy.h"

struct mfl_budget;

/* Positive: does not fit into the budget. Not a code of store.h, because callers see both. */
#define MFL_RUNTIME_MEMORY 32
#define MFL_RUNTIME_SPARE 2
#define MFL_PARAMS_CHUNK_BYTES ((uint64_t)1 << 20)

/* ---- params, shared by all downloads ---- */
/* Read-only for everybody but refs. ref, unref and crc: any thread. May outlive the runtime. */
struct mfl_params {
        atomic_uint refs;
        uint64_t n;                       /* floats */
        const float *v;                   /* 64-byte aligned, little-endian as on the wire */
        uint8_t digest[MFL_DIGEST_BYTES]; /* SHA-256 of v, after the frozen params where v are what moves
                                             beside some */
        atomic_bool retired;              /* newer params took their place twice: stop sending */
        /* Exponents of the steps to which daemons round the deltas that start here (common/codec/grid.h), one for each
         * tensor that moves; NULL: they do not. On the heap, freed with the params. */
        int32_t *grid;
        uint32_t n_grid;
        /* client_state daemon: what sites keep of the clients that train from here, by client. On the heap, freed with the params. */
        struct mfl_store_states sites;
        /* compression.down on a grid: added to the params before, these floats give v; base: those params' digest. NULL: not known
         * here. */
        float *step;
        uint8_t base[MFL_DIGEST_BYTES];
        struct mfl_block *block;
        atomic_uint_least64_t *crc; /* per chunk: 0 unknown, else 2^32 | CRC-32C */
};
struct mfl_params *mfl_params_ref(struct mfl_params *params);
void mfl_params_unref(struct mfl_params *params); /* NULL is fine */
/* CRC-32C of chunk i, that is of bytes [i * MFL_PARAMS_CHUNK_BYTES, ...) up to the next chunk or the end.
 * Computed at the first call (about 0.1 ms). */
uint32_t mfl_params_crc(struct mfl_params *params, uint64_t i);

/* Params of no job: a model that is read from a file to be sent. The memory is charged to the budget (NULL:
 * none); the caller fills *ret_v before anybody else sees them. MFL_RUNTIME_MEMORY, -ENOMEM. */
int mfl_params_alone(struct mfl_budget *budget, uint64_t n, const uint8_t digest[MFL_DIGEST_BYTES],
        float **ret_v, struct mfl_params **ret_params, struct mfl_error *err);
/* The same for params that a peer sends, which has told how many there are: memory is taken as they come, and too little of it is no reason for this
 * process to end. MFL_RUNTIME_MEMORY. */
int mfl_params_arriving(struct mfl_budget *budget, uint64_t n, const uint8_t digest[MFL_DIGEST_BYTES],
        float **ret_v, struct mfl_params **ret_params, struct mfl_error *err);

/* ---- the job ---- */
struct mfl_runtime;

/* The checkpoint of an older version of the params. */
struct mfl_runtime_version {
        uint32_t version;
        uint8_t digest[MFL_DIGEST_BYTES];
        char path[MFL_STORE_PATH_BYTES];
};

struct mfl_runtime_options {
        const char *job;               /* id, copied */
        const struct mfl_job *spec;    /* outlives the runtime */
        const struct mfl_graph *graph; /* outlives the runtime */
        struct mfl_fixed fixed;        /* mfl_job_fixed */
        uint32_t n_slots;       /* at most so many; fewer, but one at least, when the budget is short. 0: 2 */
        uint32_t cohort;        /* single updates: rows of the spill file (most clients in a round) */
        uint64_t n_memory;      /* rows that the job remembers of clients; 0: it has no such memory */
        uint64_t clients_bytes; /* what the core keeps of the clients: charged to the budget, too */
        uint32_t n_threads;     /* of the pass over single updates; 0: one per CPU, at most 4 */
        const char *state_dir;
        /* Where the params come from. Checkpoint: safetensors with params and strategy state; those that the
         * file has not are in `frozen` (NULL: it has all). Initial: raw little-endian floats, graph->n of
         * them, in the order of layers. All NULL: from the job's seed. */
        const char *checkpoint_path, *frozen_path, *initial_path;
        /* For a job whose clients keep states: their file, the rows of the last committed round, and how many clients there are (0:
         * partition local). */
        const char *states_path;
        const struct mfl_store_states *states;
        uint32_t population;
        const char *
                mark_path; /* where crashes of a plug-in are counted (server/strategy/mark.h); NULL: nowhere */
        const char *changes_path; /* debug.deltas (server/runtime/changes.h); NULL: nowhere */
        uint32_t round;           /* of those params */
        /* Asynchronous jobs that resume: versions before the newest one, as far as they are kept. The one before the first round
         * comes from initial_path, which may be set beside checkpoint_path then, or from the seed. */
        const struct mfl_runtime_version *versions;
        uint32_t n_versions;
        struct mfl_budget *budget; /* NULL: no limit */
};

/* True when the job needs every client's update by itself, so f32 (4n bytes) is all that can come. */
bool mfl_runtime_f32_only(const struct mfl_job *spec);
/* Bytes that a job of n params that move takes with so many slots, without spare blocks and frozen params. */
uint64_t mfl_runtime_bytes(const struct mfl_job *spec, uint64_t n, uint32_t n_slots);

/* worker. Also MFL_INVALID when a file does not fit the graph. */
int mfl_runtime_open(
        const struct mfl_runtime_options *options, struct mfl_runtime **ret_rt, struct mfl_error *err);
/* Gives the memory back to the budget; params that are still referenced follow when they are released. NULL
 * is fine. */
void mfl_runtime_close(struct mfl_runtime *rt);
uint32_t mfl_runtime_slots(const struct mfl_runtime *rt);
uint64_t mfl_runtime_n(const struct mfl_runtime *rt); /* params that move */
/* NULL: nothing is frozen. Borrowed; its digest is of these alone. Any thread, until close. */
struct mfl_params *mfl_runtime_frozen(const struct mfl_runtime *rt);

/* loop. The frozen params, or the params with that digest, current, previous or an asynchronous job's older version, with
 * a new reference; NULL: gone. digest NULL: the current ones. The previous ones stay to be had until the next APPLY only while a
 * download holds them. */
struct mfl_params *mfl_runtime_params(struct mfl_runtime *rt, const uint8_t *digest);

/* worker: ROUND_OPEN. Zeroes the sums, empties the spill file. */
void mfl_runtime_round_open(struct mfl_runtime *rt, uint32_t round);

/* ---- slots (loop) ---- */
/* The core decides what a slot is for, and how far it is; here are its bytes, and which of them have arrived.
 */

/* What a slot takes, in the words of the core's GRANT. */
struct mfl_upload {
        uint64_t grant; /* its number, never 0 */
        uint32_t conn;  /* chunks are taken from there only */
        uint32_t update;
        uint64_t task, weight;
        uint64_t item;               /* for single updates */
        uint64_t steps;              /* of the client's local training, where the method counts them */
        uint32_t staleness;          /* of its update */
        uint32_t bucket;             /* of a secure sum of buckets */
        struct mfl_site_state state; /* client_state daemon: what the client's site keeps */
        enum mfl_encoding encoding;
};

/* GRANT. A slot that is open for that grant stays as it is, but takes the rest from upload->conn; else it is
 * opened, and forgets what it held. False: every block is held; again after a params_unref or write_end. */
bool mfl_slot_open(struct mfl_runtime *rt, uint32_t slot, const struct mfl_upload *upload);
/* SLOT_FREE. Chunks under way land in memory that nobody reads. Fine on a slot that is not open. True when
 * the slot leaves something in the sums: mfl_runtime_settle is due, which gives its block back. */
bool mfl_slot_free(struct mfl_runtime *rt, uint32_t slot);
/* The slot that takes chunks of that update from that connection. */
bool mfl_slot_find(
        const struct mfl_runtime *rt, uint32_t conn, uint64_t task, uint32_t update, uint32_t *ret_slot);

/* A chunk on its way into a slot. */
struct mfl_slot_write {
        struct mfl_block *block; /* NULL: nothing */
        uint32_t slot;
        uint64_t grant;
        uint64_t offset, bytes;
        bool floats; /* of an update of float32 */
        void *dst;
};
/* Where the chunk belongs; MFL_INVALID when outside, empty or unaligned (offset and bytes multiples of 8,
 * except that the last ends at the end); MFL_NOT_FOUND when the slot is not open, or complete, or the chunk
 * begins in what is added ahead (read and drop it). Each begin that succeeded needs one end. Bytes that are
 * there already may come again (same bytes: the sender is the same). */
int mfl_slot_write_begin(struct mfl_runtime *rt, uint32_t slot, uint64_t offset, uint64_t bytes,
        struct mfl_slot_write *ret_write, struct mfl_error *err);
/* arrived = false: the connection broke in the middle. True is returned when the slot just became complete.
 */
bool mfl_slot_write_end(struct mfl_runtime *rt, struct mfl_slot_write *write, bool arrived);
/* The bytes still missing, ascending, at most MFL_RANGES_MAX; returns how many ranges; 0: complete. More
 * ranges than that are found by asking again when these have come. */
uint32_t mfl_slot_missing(
        const struct mfl_runtime *rt, uint32_t slot, struct mfl_range ranges[MFL_RANGES_MAX]);

/* Ahead of the whole: what of an update lies without a gap from its beginning is added while the rest comes,
 * so that a slot is free again soon after its last byte. Counts for nothing until SLOT_ADD; a slot that is
 * freed before takes it along. Loop: true when the worker has a piece to add. */
bool mfl_slot_ahead(struct mfl_runtime *rt, uint32_t slot);

/* ---- arithmetic (worker) ---- */
/* After mfl_slot_ahead. What is wrong is told by mfl_slot_add. Fine on a slot that was freed meanwhile. */
void mfl_slot_add_ahead(struct mfl_runtime *rt, uint32_t slot);
/* Takes from the sums what freed slots have left there. */
void mfl_runtime_settle(struct mfl_runtime *rt);
/* SLOT_ADD, of a slot that is open and complete. MFL_INVALID: nothing was added (not finite, over delta_max).
 */
int mfl_slot_add(struct mfl_runtime *rt, uint32_t slot, struct mfl_error *err);
/* APPLY. No slot may be open. MFL_INVALID: not finite, or weight 0; the job is over then. MFL_BUSY: no free
 * block; try again. */
int mfl_runtime_apply(struct mfl_runtime *rt, const struct mfl_round_totals *totals,
        uint8_t ret_digest[MFL_DIGEST_BYTES], double ret_method[MFL_METHOD_STATES_MAX],
        struct mfl_error *err);
/* Worker. What the strategy keeps from round to round; zeros where it keeps less, or nothing. */
const double *mfl_runtime_method(const struct mfl_runtime *rt);

/* Worker. Privacy: the SHA-256 of all that APPLY adds noise to, the exact sum as it will be applied and, of an adaptive clip, the totals that it
 * follows; and the secret of the noise that the next APPLY adds to them. */
int mfl_runtime_sum_digest(struct mfl_runtime *rt, const struct mfl_round_totals *totals,
        uint8_t ret_digest[MFL_DIGEST_BYTES], struct mfl_error *err);
void mfl_runtime_set_noise(struct mfl_runtime *rt, const struct mfl_secret *secret);
/* Worker. A secure sum: takes the masks off the sums and the opening's figures. MFL_INVALID: the sum is not one of valid updates; the
 * sums are then worth nothing. */
int mfl_runtime_unmask(struct mfl_runtime *rt, struct mfl_leader_opening *opening, struct mfl_error *err);
/* Worker. The same of one bucket, whose clients are in ascending order: its mean becomes a row of the round. MFL_INVALID: it has no row. */
int mfl_runtime_unmask_bucket(struct mfl_runtime *rt, struct mfl_leader_opening *opening, uint32_t bucket,
        const uint64_t *clients, uint32_t n, struct mfl_error *err);
/* The digests of what clients start from, or have started from: an asynchronous job's versions, number v at v % mfl_job_bases, or
 * those of regions; NULL: of the newest params alone. Borrowed: valid on the loop thread until the next APPLY or close. */
const uint8_t (*mfl_runtime_digests(const struct mfl_runtime *rt))[MFL_DIGEST_BYTES];

/* What is remembered of clients, rows of 4, as the checkpoint told that the job resumed from; NULL: nothing. Valid until the
 * runtime is closed. */
const int64_t *mfl_runtime_memory(const struct mfl_runtime *rt);
/* Worker. What is added to the gradients of a client's local training in the current round, as params of its own, which count
 * in the budget while somebody has them. MFL_NOT_FOUND: this is not the job's current digest. */
int mfl_runtime_correction(struct mfl_runtime *rt, const uint8_t digest[MFL_DIGEST_BYTES], uint64_t client,
        struct mfl_params **ret_correction, struct mfl_error *err);
/* Loop. What the site of that client keeps when it trains from those params; NULL: nothing. Valid as long as the params. */
const uint8_t *mfl_params_site_state(const struct mfl_params *params, uint64_t client);
/* Whether there are such corrections. */
bool mfl_runtime_corrects(const struct mfl_runtime *rt);
/* NULL: clients keep nothing. */
struct mfl_states *mfl_runtime_states(struct mfl_runtime *rt);
/* What a robust rule made of the last applied round's rows. The rows that counted least come first: only those with less
 * than half of an equal share are told. */
#define MFL_ROWS_TOLD 16
#define MFL_MEMBERS_TOLD 8
struct mfl_rows_members {
        uint32_t n; /* all of a bucket or server; 0: the row is one client's update */
        bool is_server;
        uint32_t server;
        uint64_t v[MFL_MEMBERS_TOLD];
};
struct mfl_rows_report {
        uint32_t n_rows, n_used;   /* 0 rows: not such a strategy */
        uint32_t few;              /* 0, or so many rows were too few for the rule */
        uint32_t n_bad, n_dropped; /* of a simulated attack: rows; rows that were not finite */
        uint32_t n_least, n_told;
        struct {
                uint64_t item;
                double share, score, distance; /* NAN: not known */
                struct mfl_rows_members members;
        } told[MFL_ROWS_TOLD];
        uint32_t n_bad_servers;
        uint32_t n_regions; /* 0: there are none */
        uint32_t round;     /* of those regions */
        uint32_t region_clients[MFL_REGIONS_MAX];
        uint8_t region_digest[MFL_REGIONS_MAX][4]; /* the first bytes of what its clients start from next */
};
/* Worker. Borrowed. */
const struct mfl_rows_report *mfl_runtime_report(const struct mfl_runtime *rt);

/* Worker. Borrowed: valid until the next apply or close. */
void mfl_runtime_checkpoint(struct mfl_runtime *rt, struct mfl_checkpoint *ret_checkpoint);

#endif
