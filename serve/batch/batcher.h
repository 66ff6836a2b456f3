/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows are computed together, and when: a bounded queue of requests before one network. Pure: no clock, no threads, no
 * memory of its own; time comes in as microseconds of any monotonic clock, and must not go back.
 *
 * A batch is due when the network is free and rows_max rows wait, or the oldest request has waited delay_us. A request with
 * more rows than fit is divided among batches: an answer does not depend on which rows are computed together. First come, first
 * served. A request that has not begun at its deadline is taken out unanswered; one that has begun is finished.
 *
 *     offer -> [ queue ] -> take (pieces of requests, as rows of a batch) -> done for each piece -> all rows done: answered
 */
#ifndef MFL_SERVE_BATCH_BATCHER_H
#define MFL_SERVE_BATCH_BATCHER_H

#include "common/base/base.h"

struct mfl_batcher_config {
        uint32_t rows_max;  /* of a batch */
        uint64_t delay_us;  /* the longest that a free network waits for more rows */
        uint32_t queue_max; /* rows that wait; a request of more is let in if nothing waits */
};

/* One request: embedded in the owner's. */
struct mfl_batch_item {
        struct mfl_batch_item *next;
        uint32_t rows, taken, done;
        uint64_t arrived_us, deadline_us; /* deadline 0: none */
};

struct mfl_batcher {
        struct mfl_batcher_config config;
        uint64_t n_rows; /* waiting */
        uint32_t n_items;
        /* Private. */
        struct mfl_batch_item *first, *last;
        uint64_t deadline_min_us; /* none of the queue is earlier; UINT64_MAX: no deadlines */
        double row_us;            /* how long a row takes, a moving mean; 0: unknown */
        double row_low_us; /* a quarter of the batches took less per row: stalls of the machine don't count */
};

struct mfl_batch_piece {
        struct mfl_batch_item *item;
        uint32_t first, rows; /* rows of the item */
};

void mfl_batcher_init(struct mfl_batcher *batcher, const struct mfl_batcher_config *config);
/* item->rows (at least 1) and deadline_us are the caller's. MFL_BUSY: the queue is full. */
int mfl_batcher_offer(
        struct mfl_batcher *batcher, struct mfl_batch_item *item, uint64_t now_us) MFL_MUST_CHECK;
/* For how long to wait before trying again, after MFL_BUSY: what the queue takes at the pace so far. */
uint64_t mfl_batcher_drain_us(const struct mfl_batcher *batcher);
/* Takes a batch if one is due: the number of pieces, 0 if none is. ret_pieces has room for rows_max. Each piece is at least one row. */
uint32_t mfl_batcher_take(struct mfl_batcher *batcher, uint64_t now_us, struct mfl_batch_piece *ret_pieces);
/* The next moment at which take, or expire, has something to do; UINT64_MAX: not before another offer. */
uint64_t mfl_batcher_due_us(const struct mfl_batcher *batcher);
/* Takes out requests whose deadline is over: a list. */
struct mfl_batch_item *mfl_batcher_expire(struct mfl_batcher *batcher, uint64_t now_us);
/* A piece was computed; true: it was the last of its request. */
bool mfl_batcher_done(const struct mfl_batch_piece *piece);
/* A batch of so many rows took so long. */
void mfl_batcher_note(struct mfl_batcher *batcher, uint32_t rows, uint64_t us);
/* Empties the queue: all requests that no network computes, as a list. One that has begun loses the rows that were not taken; where pieces of it are still
 * computed it is *ret_begun, otherwise NULL, and ends with the last of them (mfl_batcher_done). */
struct mfl_batch_item *mfl_batcher_clear(struct mfl_batcher *batcher, struct mfl_batch_item **ret_begun);

#endif
