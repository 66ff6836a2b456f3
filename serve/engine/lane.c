/* SPDX-License-Identifier: Apache-2.0 */
/* A version in service.
 *
 *   offer -> queue -> pump: pieces -> worker: gather, compute, scatter -> on_done: each request whose rows are all done ends
 *
 * A batch that is one piece of a request is computed in place, without copies.
 */
#include "serve/engine/lane.h"

#include "common/base/log.h"

static uint64_t now_us(void)
{
        return mfl_now_ns() / 1000;
}

static struct mfl_query *query_of(const struct mfl_batch_piece *piece)
{
        return MFL_CONTAINER_OF(piece->item, struct mfl_query, item);
}

/* ---- on the worker ---- */

static void run_batch(struct mfl_work *work)
{
        struct mfl_lane *lane = MFL_CONTAINER_OF(work, struct mfl_lane, work);
        const struct mfl_kserve_model *model = &lane->version->model;
        const size_t in = model->elements * mfl_tensor_bytes(model->type), out = (size_t)model->outputs;
        const struct mfl_batch_piece *p = lane->pieces;
        lane->begun_us = now_us();
        if (lane->n_pieces == 1) {
                const struct mfl_query *q = query_of(p);
                lane->result = mfl_version_run(lane->version, p->rows, (const char *)q->x + p->first * in,
                        q->y + p->first * out, &lane->err);
        } else {
                char *x = lane->x;
                for (uint32_t i = 0; i < lane->n_pieces; x += p[i++].rows * in)
                        memcpy(x, (const char *)query_of(p + i)->x + p[i].first * in, p[i].rows * in);
                lane->result = mfl_version_run(lane->version, lane->n_rows, lane->x, lane->y, &lane->err);
                const float *y = lane->y;
                for (uint32_t i = 0; !lane->result && i < lane->n_pieces; y += p[i++].rows * out)
                        memcpy(query_of(p + i)->y + p[i].first * out, y, p[i].rows * out * sizeof *y);
        }
        lane->us = now_us() - lane->begun_us;
}

static void run_end(struct mfl_work *work)
{
        struct mfl_lane *lane = MFL_CONTAINER_OF(work, struct mfl_lane, end);
        mfl_version_free(lane->version);
        lane->version = NULL;
}

/* ---- on the loop ---- */

static void free_lane(struct mfl_lane *lane)
{
        mfl_version_free(lane->version);
        free(lane->pieces);
        free(lane->x);
        free(lane->y);
        free(lane);
}

static void on_ended(struct mfl_work *work)
{
        free_lane(MFL_CONTAINER_OF(work, struct mfl_lane, end));
}

int mfl_lane_open(struct mfl_version *version, struct mfl_worker *worker,
        const struct mfl_batcher_config *config, struct mfl_lane **ret_lane, struct mfl_error *err)
{
        const struct mfl_kserve_model *model = &version->model;
        struct mfl_lane *lane = mfl_calloc(1, sizeof *lane);
        mfl_assert(config->rows_max <= version->rows_max);
        if (!lane)
                return mfl_fail_memory(err, sizeof *lane, "a version's queue");
        lane->worker = worker;
        lane->refs = 1;
        mfl_batcher_init(&lane->batcher, config);
        lane->pieces = mfl_calloc(config->rows_max, sizeof *lane->pieces);
        lane->x = mfl_alloc_aligned(config->rows_max * model->elements * mfl_tensor_bytes(model->type));
        lane->y = mfl_alloc_aligned((size_t)config->rows_max * model->outputs * sizeof *lane->y);
        if (!lane->pieces || !lane->x || !lane->y) {
                free_lane(lane);
                return mfl_fail_memory(err,
                        config->rows_max * (model->elements + model->outputs) * sizeof(float), "a batch");
        }
        lane->version = version;
        *ret_lane = lane;
        return 0;
}

struct mfl_lane *mfl_lane_ref(struct mfl_lane *lane)
{
        lane->refs++;
        return lane;
}

void mfl_lane_unref(struct mfl_lane *lane)
{
        if (!lane || --lane->refs)
                return;
        mfl_assert(!lane->busy);
        lane->end = (struct mfl_work){.run = run_end, .done = on_ended};
        if (mfl_worker_submit(lane->worker, &lane->end))
                free_lane(lane);
}

static void end_query(struct mfl_query *query, enum mfl_query_end end)
{
        struct mfl_lane *lane = query->lane;
        lane->counts.expired += !query->silent && end == MFL_QUERY_EXPIRED;
        lane->counts.failed += !query->silent && end == MFL_QUERY_FAILED;
        query->ended(query, end);
        mfl_lane_unref(lane);
}

int mfl_lane_offer(struct mfl_lane *lane, struct mfl_query *query, uint64_t now)
{
        const int r = mfl_batcher_offer(&lane->batcher, &query->item, now);
        if (r) {
                lane->counts.refused += !query->silent;
                return r;
        }
        query->lane = mfl_lane_ref(lane);
        query->failed = false;
        lane->counts.requests += !query->silent;
        lane->counts.rows += query->silent ? 0 : query->item.rows;
        return 0;
}

static void on_batch(struct mfl_work *work)
{
        struct mfl_lane *lane = mfl_lane_ref(MFL_CONTAINER_OF(work, struct mfl_lane, work));
        const bool failed = work->cancelled || lane->result;
        lane->busy = false;
        lane->counts.batches++;
        lane->counts.batch_us += work->cancelled ? 0 : lane->us;
        if (!failed)
                mfl_batcher_note(&lane->batcher, lane->n_rows, lane->us);
        else if (!work->cancelled)
                mfl_log(MFL_LOG_ERROR, "%s, version %s: %s", lane->version->model.name,
                        lane->version->model.version, lane->err.text);
        for (uint32_t i = 0; i < lane->n_pieces; i++) {
                struct mfl_query *query = query_of(lane->pieces + i);
                query->failed |= failed;
                if (mfl_batcher_done(lane->pieces + i))
                        end_query(query, query->failed ? MFL_QUERY_FAILED : MFL_QUERY_ANSWERED);
        }
        mfl_lane_unref(lane);
}

int mfl_lane_pump(struct mfl_lane *lane, uint64_t now, struct mfl_error *err)
{
        for (struct mfl_batch_item *item = mfl_batcher_expire(&lane->batcher, now), *next; item;
                item = next) {
                next = item->next;
                end_query(MFL_CONTAINER_OF(item, struct mfl_query, item), MFL_QUERY_EXPIRED);
        }
        if (lane->busy)
                return 0;
        if (lane->result < 0) {
                *err = lane->err;
                return lane->result;
        }
        lane->n_pieces = mfl_batcher_take(&lane->batcher, now, lane->pieces);
        if (!lane->n_pieces)
                return 0;
        lane->n_rows = 0;
        for (uint32_t i = 0; i < lane->n_pieces; i++)
                lane->n_rows += lane->pieces[i].rows;
        lane->work = (struct mfl_work){.run = run_batch, .done = on_batch};
        lane->busy = true;
        const int r = mfl_worker_submit(lane->worker, &lane->work);
        mfl_assert(!r || lane->worker->closing);
        if (r) {
                lane->work.cancelled = true;
                on_batch(&lane->work);
        }
        return 0;
}

void mfl_lane_clear(struct mfl_lane *lane)
{
        for (struct mfl_batch_item *item = mfl_batcher_clear(&lane->batcher), *next; item; item = next) {
                next = item->next;
                end_query(MFL_CONTAINER_OF(item, struct mfl_query, item), MFL_QUERY_FAILED);
        }
}

uint64_t mfl_lane_due_us(const struct mfl_lane *lane)
{
        return lane->busy ? lane->batcher.deadline_min_us : mfl_batcher_due_us(&lane->batcher);
}
