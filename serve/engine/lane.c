/* SPDX-License-Identifier: Apache-2.0 */
/* A version in service.
 *
 *   offer -> queue -> pump: pieces for each network that is free -> worker: gather, compute, scatter -> on_done: each request whose rows are all done ends
 *
 * A batch that is one piece of a request is computed in place, without copies.
 */
#include "serve/engine/lane.h"

#include "common/base/fs.h"
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
        struct mfl_lane_batch *batch = MFL_CONTAINER_OF(work, struct mfl_lane_batch, work);
        struct mfl_version *version = batch->lane->version;
        const uint32_t instance = (uint32_t)(batch - batch->lane->batches);
        const size_t in = version->model.elements * mfl_tensor_bytes(version->model.type),
                     out = (size_t)version->model.outputs;
        const struct mfl_batch_piece *p = batch->pieces;
        const uint64_t begun_us = now_us();
        if (batch->n_pieces == 1) {
                const struct mfl_query *q = query_of(p);
                batch->result = mfl_version_run(version, instance, p->rows,
                        (const char *)q->x + p->first * in, q->y + p->first * out, &batch->err);
        } else {
                char *x = batch->x;
                for (uint32_t i = 0; i < batch->n_pieces; x += p[i++].rows * in)
                        memcpy(x, (const char *)query_of(p + i)->x + p[i].first * in, p[i].rows * in);
                batch->result =
                        mfl_version_run(version, instance, batch->n_rows, batch->x, batch->y, &batch->err);
                const float *y = batch->y;
                for (uint32_t i = 0; !batch->result && i < batch->n_pieces; y += p[i++].rows * out)
                        memcpy(query_of(p + i)->y + p[i].first * out, y, p[i].rows * out * sizeof *y);
        }
        batch->us = now_us() - begun_us;
}

static void run_end(struct mfl_work *work)
{
        struct mfl_lane *lane = MFL_CONTAINER_OF(work, struct mfl_lane, end);
        mfl_version_free(lane->version);
        lane->version = NULL;
}

/* ---- on the loop ---- */

/* Without its version, which a worker has freed, or the caller keeps. */
static void free_lane(struct mfl_lane *lane)
{
        for (uint32_t i = 0; lane->batches && i < lane->n_batches; i++) {
                free(lane->batches[i].pieces);
                free(lane->batches[i].x);
                free(lane->batches[i].y);
        }
        free(lane->batches);
        free(lane);
}

static void on_ended(struct mfl_work *work)
{
        struct mfl_lane *lane = MFL_CONTAINER_OF(work, struct mfl_lane, end);
        mfl_version_free(lane->version); /* cancelled */
        free_lane(lane);
}

static bool open_batch(
        struct mfl_lane *lane, struct mfl_lane_batch *batch, const struct mfl_kserve_model *model)
{
        const size_t rows = lane->batcher.config.rows_max;
        batch->lane = lane;
        batch->pieces = mfl_calloc(rows, sizeof *batch->pieces);
        batch->x = mfl_alloc_aligned(rows * model->elements * mfl_tensor_bytes(model->type));
        batch->y = mfl_alloc_aligned(rows * model->outputs * sizeof *batch->y);
        return batch->pieces && batch->x && batch->y;
}

int mfl_lane_open(struct mfl_version *version, const struct mfl_lane_workers *workers,
        const struct mfl_batcher_config *config, struct mfl_lane **ret_lane, struct mfl_error *err)
{
        const struct mfl_kserve_model *model = &version->model;
        struct mfl_lane *lane = mfl_fs_fault("open-lane", model->name) ? NULL : mfl_calloc(1, sizeof *lane);
        mfl_assert(config->rows_max <= version->rows_max && workers->n_used <= version->n_instances);
        if (!lane)
                return mfl_fail_memory(err, sizeof *lane, "a version's queue");
        lane->workers = *workers;
        lane->refs = 1;
        mfl_batcher_init(&lane->batcher, config);
        lane->batches = mfl_calloc(version->n_instances, sizeof *lane->batches);
        lane->n_batches = version->n_instances;
        bool fine = lane->batches;
        for (uint32_t i = 0; fine && i < lane->n_batches; i++)
                fine = open_batch(lane, &lane->batches[i], model);
        if (!fine) {
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

static struct mfl_worker *worker_of(const struct mfl_lane *lane, uint32_t i)
{
        return &lane->workers.v[(lane->workers.first + i) % lane->workers.n];
}

void mfl_lane_unref(struct mfl_lane *lane)
{
        if (!lane || --lane->refs)
                return;
        mfl_assert(!lane->n_busy);
        lane->end = (struct mfl_work){.run = run_end, .done = on_ended};
        if (mfl_worker_submit(worker_of(lane, 0), &lane->end))
                on_ended(&lane->end);
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
        struct mfl_lane_batch *batch = MFL_CONTAINER_OF(work, struct mfl_lane_batch, work);
        struct mfl_lane *lane = mfl_lane_ref(batch->lane);
        const bool failed = work->cancelled || batch->result;
        batch->busy = false;
        lane->n_busy--;
        lane->counts.batches++;
        lane->counts.batch_us += work->cancelled ? 0 : batch->us;
        if (!failed)
                mfl_batcher_note(&lane->batcher, batch->n_rows, batch->us);
        else if (!work->cancelled)
                mfl_log(MFL_LOG_ERROR, "%s, version %s: %s", lane->version->model.name,
                        lane->version->model.version, batch->err.text);
        for (uint32_t i = 0; i < batch->n_pieces; i++) {
                struct mfl_query *query = query_of(batch->pieces + i);
                query->failed |= failed;
                if (mfl_batcher_done(batch->pieces + i))
                        end_query(query, query->failed ? MFL_QUERY_FAILED : MFL_QUERY_ANSWERED);
        }
        mfl_lane_unref(lane);
}

/* Begins a batch, if one is due. */
static void begin(
        struct mfl_lane *lane, struct mfl_lane_batch *batch, struct mfl_worker *worker, uint64_t now)
{
        batch->n_pieces = mfl_batcher_take(&lane->batcher, now, batch->pieces);
        if (!batch->n_pieces)
                return;
        batch->n_rows = 0;
        for (uint32_t i = 0; i < batch->n_pieces; i++)
                batch->n_rows += batch->pieces[i].rows;
        batch->work = (struct mfl_work){.run = run_batch, .done = on_batch};
        batch->busy = true;
        lane->n_busy++;
        const int r = mfl_worker_submit(worker, &batch->work);
        mfl_assert(!r || worker->closing);
        if (r) {
                batch->work.cancelled = true;
                on_batch(&batch->work);
        }
}

int mfl_lane_pump(struct mfl_lane *lane, uint64_t now, struct mfl_error *err)
{
        for (struct mfl_batch_item *item = mfl_batcher_expire(&lane->batcher, now), *next; item;
                item = next) {
                next = item->next;
                end_query(MFL_CONTAINER_OF(item, struct mfl_query, item), MFL_QUERY_EXPIRED);
        }
        for (uint32_t i = 0; i < lane->workers.n_used; i++) {
                struct mfl_lane_batch *batch = &lane->batches[i];
                if (batch->busy)
                        continue;
                if (batch->result < 0) {
                        *err = batch->err;
                        return batch->result;
                }
                begin(lane, batch, worker_of(lane, i), now);
        }
        return 0;
}

uint64_t mfl_lane_drain_us(const struct mfl_lane *lane)
{
        return mfl_batcher_drain_us(&lane->batcher) / lane->workers.n_used;
}

void mfl_lane_clear(struct mfl_lane *lane)
{
        struct mfl_batch_item *begun, *item = mfl_batcher_clear(&lane->batcher, &begun);
        if (begun)
                MFL_CONTAINER_OF(begun, struct mfl_query, item)->failed = true;
        for (struct mfl_batch_item *next; item; item = next) {
                next = item->next;
                end_query(MFL_CONTAINER_OF(item, struct mfl_query, item), MFL_QUERY_FAILED);
        }
}

uint64_t mfl_lane_due_us(const struct mfl_lane *lane)
{
        const bool all_busy = lane->n_busy >= lane->workers.n_used;
        return all_busy ? lane->batcher.deadline_min_us : mfl_batcher_due_us(&lane->batcher);
}
