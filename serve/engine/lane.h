/* SPDX-License-Identifier: Apache-2.0 */
/* A version in service: its queue (serve/batch/batcher.h), and one batch at a time for each of its networks, on worker threads. Requests that a lane has
 * taken are answered by its version, whatever is switched meanwhile. Loop thread only; a worker sees the batch it computes.
 */
#ifndef MFL_SERVE_ENGINE_LANE_H
#define MFL_SERVE_ENGINE_LANE_H

#include "common/base/worker.h"
#include "serve/batch/batcher.h"
#include "serve/engine/version.h"

enum mfl_query_end {
        MFL_QUERY_ANSWERED, /* y is filled */
        MFL_QUERY_EXPIRED,  /* its deadline came before its turn */
        MFL_QUERY_FAILED,   /* the network could not compute it */
};

/* Rows to compute: embedded in the owner's object. */
struct mfl_query {
        struct mfl_batch_item item;
        const void *x; /* item.rows rows */
        float *y;      /* item.rows * model.outputs */
        bool silent;   /* a copy of another query: not in the counts */
        bool failed;
        struct mfl_lane *lane;
        void (*ended)(
                struct mfl_query *query, enum mfl_query_end end); /* once; later, never from inside offer */
};

struct mfl_lane_counts {
        uint64_t requests, rows, batches, expired, refused, failed;
        uint64_t batch_us; /* time on the worker */
};

/* Network i computes on v[(first + i) % n]; n_used: networks that compute. The array must stay. */
struct mfl_lane_workers {
        struct mfl_worker *v;
        uint32_t n, first, n_used;
};

/* A network's batch. */
struct mfl_lane_batch {
        struct mfl_lane *lane;
        struct mfl_work work;
        struct mfl_batch_piece *pieces;
        uint32_t n_pieces, n_rows;
        char *x; /* rows_max rows, put together from several requests */
        float *y;
        uint64_t us; /* on the worker */
        int result;
        struct mfl_error err;
        bool busy;
};

struct mfl_lane {
        struct mfl_version *version;
        struct mfl_batcher batcher;
        struct mfl_lane_counts counts;
        uint32_t refs; /* held by models, and queries that are not ended; 0: freed on the worker */
        /* Private. */
        struct mfl_lane_workers workers;
        struct mfl_work end;
        struct mfl_lane_batch *batches; /* version->n_instances */
        uint32_t n_batches, n_busy;
};

/* Takes the version over, whose instances are at least workers->n_used. It has one reference. -ENOMEM: the version is still the caller's. */
int mfl_lane_open(struct mfl_version *version, const struct mfl_lane_workers *workers,
        const struct mfl_batcher_config *config, struct mfl_lane **ret_lane, struct mfl_error *err);
struct mfl_lane *mfl_lane_ref(struct mfl_lane *lane);
void mfl_lane_unref(struct mfl_lane *lane); /* NULL is fine */
/* query->item.rows, deadline_us, x, y and ended are the caller's. MFL_BUSY: the queue is full. */
int mfl_lane_offer(struct mfl_lane *lane, struct mfl_query *query, uint64_t now_us) MFL_MUST_CHECK;
/* Ends queries that are too late and begins the batches that are due. Negative: the process can't go on. */
int mfl_lane_pump(struct mfl_lane *lane, uint64_t now_us, struct mfl_error *err) MFL_MUST_CHECK;
/* How long the rows that wait will take. */
uint64_t mfl_lane_drain_us(const struct mfl_lane *lane);
/* Ends what waits as failed; a request of which a part is computed ends so with that part. */
void mfl_lane_clear(struct mfl_lane *lane);
/* When the next pump is worth it; UINT64_MAX: after an offer or the end of a batch. */
uint64_t mfl_lane_due_us(const struct mfl_lane *lane);

#endif
