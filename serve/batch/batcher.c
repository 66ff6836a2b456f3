/* SPDX-License-Identifier: Apache-2.0 */
/* The queue before a network. Only the first request of the queue can have begun. */
#include "serve/batch/batcher.h"

#define PACE_WEIGHT 0.1 /* of a new batch in the moving mean */
#define LOW_STEP 0.1

void mfl_batcher_init(struct mfl_batcher *b, const struct mfl_batcher_config *config)
{
        mfl_assert(config->rows_max > 0 && config->queue_max > 0);
        *b = (struct mfl_batcher){.config = *config, .deadline_min_us = UINT64_MAX};
}

int mfl_batcher_offer(struct mfl_batcher *b, struct mfl_batch_item *item, uint64_t now_us)
{
        mfl_assert(item->rows > 0);
        if (b->n_items && b->n_rows + item->rows > b->config.queue_max)
                return MFL_BUSY;
        item->next = NULL;
        item->taken = item->done = 0;
        item->arrived_us = now_us;
        if (b->last)
                b->last->next = item;
        else
                b->first = item;
        b->last = item;
        b->n_items++;
        b->n_rows += item->rows;
        if (item->deadline_us)
                b->deadline_min_us = MFL_MIN(b->deadline_min_us, item->deadline_us);
        return 0;
}

uint64_t mfl_batcher_drain_us(const struct mfl_batcher *b)
{
        return (uint64_t)((double)b->n_rows * b->row_us);
}

static bool is_due(const struct mfl_batcher *b, uint64_t now_us)
{
        return b->first && (b->n_rows >= b->config.rows_max || b->first->taken ||
                                   now_us - b->first->arrived_us >= b->config.delay_us);
}

uint32_t mfl_batcher_take(struct mfl_batcher *b, uint64_t now_us, struct mfl_batch_piece *ret_pieces)
{
        uint32_t n = 0, room = b->config.rows_max;
        if (!is_due(b, now_us))
                return 0;
        while (room && b->first) {
                struct mfl_batch_item *item = b->first;
                const uint32_t rows = MFL_MIN(room, item->rows - item->taken);
                ret_pieces[n++] = (struct mfl_batch_piece){.item = item, .first = item->taken, .rows = rows};
                item->taken += rows;
                b->n_rows -= rows;
                room -= rows;
                if (item->taken < item->rows)
                        break;
                b->first = item->next;
                b->n_items--;
        }
        if (!b->first) {
                b->last = NULL;
                b->deadline_min_us = UINT64_MAX;
        }
        return n;
}

uint64_t mfl_batcher_due_us(const struct mfl_batcher *b)
{
        if (!b->first)
                return UINT64_MAX;
        if (is_due(b, b->first->arrived_us))
                return 0;
        return MFL_MIN(b->first->arrived_us + b->config.delay_us, b->deadline_min_us);
}

/* Takes out requests that have not begun, in order: all of them, or those whose deadline is over. */
static struct mfl_batch_item *take_out(struct mfl_batcher *b, bool all, uint64_t now_us)
{
        struct mfl_batch_item *out = NULL, **out_end = &out, **at = &b->first;
        b->last = NULL;
        b->deadline_min_us = UINT64_MAX;
        while (*at) {
                struct mfl_batch_item *item = *at;
                if (!item->taken && (all || (item->deadline_us && item->deadline_us <= now_us))) {
                        *at = item->next;
                        item->next = NULL;
                        *out_end = item;
                        out_end = &item->next;
                        b->n_items--;
                        b->n_rows -= item->rows;
                        continue;
                }
                if (!item->taken && item->deadline_us)
                        b->deadline_min_us = MFL_MIN(b->deadline_min_us, item->deadline_us);
                b->last = item;
                at = &item->next;
        }
        return out;
}

struct mfl_batch_item *mfl_batcher_expire(struct mfl_batcher *b, uint64_t now_us)
{
        return now_us < b->deadline_min_us ? NULL : take_out(b, false, now_us);
}

struct mfl_batch_item *mfl_batcher_clear(struct mfl_batcher *b, struct mfl_batch_item **ret_begun)
{
        struct mfl_batch_item *begun = b->first && b->first->taken ? b->first : NULL;
        *ret_begun = NULL;
        if (begun) {
                b->first = begun->next;
                b->n_items--;
                b->n_rows -= begun->rows - begun->taken;
                begun->rows = begun->taken;
        }
        struct mfl_batch_item *out = take_out(b, true, 0);
        if (begun && begun->done < begun->taken) {
                *ret_begun = begun;
        } else if (begun) {
                begun->next = out;
                out = begun;
        }
        return out;
}

bool mfl_batcher_done(const struct mfl_batch_piece *piece)
{
        piece->item->done += piece->rows;
        mfl_assert(piece->item->done <= piece->item->taken);
        return piece->item->done == piece->item->rows;
}

void mfl_batcher_note(struct mfl_batcher *b, uint32_t rows, uint64_t us)
{
        const double each = (double)us / rows;
        b->row_us = b->row_us > 0 ? b->row_us + PACE_WEIGHT * (each - b->row_us) : each;
        /* A quantile by steps (Robbins and Monro, 1951), as factors. */
        if (!(b->row_low_us > 0))
                b->row_low_us = each;
        else
                b->row_low_us *= each > b->row_low_us ? 1 + 0.25 * LOW_STEP : 1 - 0.75 * LOW_STEP;
}
