/* SPDX-License-Identifier: Apache-2.0 */
/* The models that are served, and how one version takes the place of another. */
#include "serve/engine/models.h"

#include <stdio.h>

#include "common/base/log.h"
#include "common/base/plain.h"
#include "serve/engine/models_load.h"
#include "serve/engine/net.h"

#define QUEUE_MAX 4096 /* work of an engine or the loader: a batch per version, and versions to free */

int mfl_models_open(struct mfl_models *models, uv_loop_t *loop, const struct mfl_models_config *config,
        struct mfl_error *err)
{
        *models = (struct mfl_models){.loop = loop, .config = *config};
        mfl_assert(config->threads >= 1 && config->threads <= MFL_ENGINE_THREADS_MAX);
        mfl_assert(config->instances >= 1 && config->instances <= config->threads);
        int r = mfl_net_check(config->backend, config->bf16, err);
        if (r)
                return r;
        r = mfl_worker_start(&models->loader, loop, "loader", QUEUE_MAX, err);
        models->loading = !r;
        for (uint32_t i = 0; !r && i < config->threads; i++) {
                char name[16];
                snprintf(name, sizeof name, "engine %u", i % 1000);
                r = mfl_worker_start(&models->engines[i], loop, name, QUEUE_MAX, err);
                models->n_engines += !r;
        }
        if (!r && config->canary.mirror > 0) {
                r = mfl_worker_start(&models->mirror, loop, "mirror", QUEUE_MAX, err);
                models->mirroring = !r;
        }
        return r;
}

int mfl_models_add(
        struct mfl_models *models, const char *name, const char *source, bool comes, struct mfl_error *err)
{
        if (!*name || !mfl_plain_name(name) || strpbrk(name, "/%?# \"\\") ||
                strlen(name) >= MFL_KSERVE_NAME_BYTES || *name == '.')
                return mfl_fail(err, MFL_INVALID,
                        "models: '%.80s' is no name for a model: 1 to %d printable characters, no blank and "
                        "none of / %% ? # \" \\",
                        name, MFL_KSERVE_NAME_BYTES - 1);
        if (mfl_models_find(models, name))
                return mfl_fail(err, MFL_INVALID, "models: '%s' twice", name);
        if (models->n == MFL_MODELS_MAX)
                return mfl_fail(err, MFL_INVALID, "models: more than %d", MFL_MODELS_MAX);
        struct mfl_model *model = &models->v[models->n];
        *model = (struct mfl_model){.all = models, .comes = comes};
        mfl_strcpy(model->name, sizeof model->name, name);
        if (!*source || !mfl_strcpy(model->source, sizeof model->source, source))
                return mfl_fail(err, MFL_INVALID, "models: %s: expected a file of 1 to %zu characters", name,
                        sizeof model->source - 1);
        if (*models->config.cache_dir)
                snprintf(model->cache, sizeof model->cache, "%s/%s", models->config.cache_dir, name);
        model->workers = (struct mfl_lane_workers){.v = models->engines,
                .n = models->n_engines,
                .first = models->n * models->config.instances % models->n_engines,
                .n_used = models->config.instances};
        models->n++;
        return 0;
}

struct mfl_model *mfl_models_find(struct mfl_models *models, const char *name)
{
        for (uint32_t i = 0; i < models->n; i++)
                if (!strcmp(models->v[i].name, name))
                        return &models->v[i];
        return NULL;
}

struct mfl_lane *mfl_model_lane(const struct mfl_model *model, const char *version)
{
        struct mfl_lane *const lanes[] = {model->current, model->previous, model->candidate};
        if (!*version)
                return model->current;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(lanes); i++)
                if (lanes[i] && !strcmp(lanes[i]->version->model.version, version))
                        return lanes[i];
        return NULL;
}

struct mfl_lane *mfl_model_choose(const struct mfl_model *model, const void *key, size_t bytes)
{
        const bool takes = model->candidate && mfl_canary_takes(model->trial.config.share, key, bytes);
        return takes ? model->candidate : model->current;
}

struct mfl_lane *mfl_model_mirror(
        const struct mfl_model *model, const struct mfl_lane *answered, const void *key, size_t bytes)
{
        const bool takes = model->candidate && answered == model->current &&
                           mfl_canary_mirrors(model->trial.config.mirror, key, bytes);
        return takes ? model->candidate : NULL;
}

void mfl_model_note_answer(struct mfl_model *model, const struct mfl_lane *lane, bool failed)
{
        if (model->on_trial && lane == (model->candidate ? model->candidate : model->current))
                mfl_canary_note(&model->trial, failed);
}

bool mfl_models_ready(const struct mfl_models *models)
{
        for (uint32_t i = 0; i < models->n; i++)
                if (!models->v[i].current)
                        return false;
        return !models->closing;
}

/* ---- versions that leave ---- */

static bool is_idle(const struct mfl_lane *lane)
{
        return !lane->n_busy && !lane->batcher.n_items;
}

static void add_counts(struct mfl_lane_counts *sum, const struct mfl_lane *lane)
{
        sum->requests += lane->counts.requests;
        sum->rows += lane->counts.rows;
        sum->batches += lane->counts.batches;
        sum->expired += lane->counts.expired;
        sum->refused += lane->counts.refused;
        sum->failed += lane->counts.failed;
        sum->batch_us += lane->counts.batch_us;
}

static void let_go(struct mfl_model *model, struct mfl_lane *lane)
{
        add_counts(&model->past, lane);
        mfl_lane_unref(lane);
}

void mfl_model_retire(struct mfl_model *model, struct mfl_lane *lane)
{
        if (!lane)
                return;
        if (is_idle(lane)) {
                let_go(model, lane);
                return;
        }
        for (size_t i = 0; i < MFL_ARRAY_SIZE(model->retired); i++)
                if (!model->retired[i]) {
                        model->retired[i] = lane;
                        return;
                }
        /* A load begins only when there is room: mfl_model_load. */
        mfl_assert(false);
}

void mfl_model_counts(const struct mfl_model *model, struct mfl_lane_counts *ret_counts)
{
        *ret_counts = model->past;
        if (model->current)
                add_counts(ret_counts, model->current);
        if (model->previous)
                add_counts(ret_counts, model->previous);
        if (model->candidate)
                add_counts(ret_counts, model->candidate);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(model->retired); i++)
                if (model->retired[i])
                        add_counts(ret_counts, model->retired[i]);
}

static void drop_candidate(struct mfl_model *model)
{
        struct mfl_lane *lane = model->candidate;
        mfl_strcpy(model->refused, sizeof model->refused, lane->version->model.digest);
        model->candidate = NULL;
        model->on_trial = false;
        mfl_model_retire(model, lane);
        mfl_model_note(model);
}

int mfl_model_rollback(struct mfl_model *model, struct mfl_error *err)
{
        if (model->load)
                return mfl_fail(err, MFL_BUSY, "%s: a version is being loaded; try again", model->name);
        if (!model->previous && !model->candidate)
                return mfl_fail(err, MFL_NOT_FOUND, "%s: there is no version before this one", model->name);
        model->counts.rollbacks++;
        if (model->candidate) {
                mfl_log(MFL_LOG_INFO, "%s: version %s, which was on trial, is out until the file changes",
                        model->name, model->candidate->version->model.version);
                drop_candidate(model);
                return 0;
        }
        struct mfl_lane *from = model->current;
        mfl_strcpy(model->refused, sizeof model->refused, from->version->model.digest);
        mfl_model_switch(model, model->previous, from);
        mfl_log(MFL_LOG_INFO, "%s: rolled back to version %s; %s stays out until the file changes",
                model->name, model->current->version->model.version, from->version->model.version);
        mfl_model_note(model);
        return 0;
}

/* ---- trials ---- */

static void end_badly(struct mfl_model *model)
{
        struct mfl_error err;
        const struct mfl_lane *lane = model->candidate ? model->candidate : model->current;
        mfl_log(MFL_LOG_ERROR, "%s: version %s has failed %llu of %llu requests, or is too slow", model->name,
                lane->version->model.version, (unsigned long long)model->trial.n_failed,
                (unsigned long long)model->trial.n);
        model->counts.failed_trials++;
        model->on_trial = false;
        if (mfl_model_rollback(model, &err))
                mfl_log(MFL_LOG_ERROR, "%s", err.text);
}

static void end_well(struct mfl_model *model)
{
        model->on_trial = false;
        if (!model->candidate)
                return;
        struct mfl_lane *lane = model->candidate;
        model->candidate = NULL;
        lane->workers = model->workers; /* from its next batch on */
        mfl_model_switch(model, lane, model->current);
        mfl_log(MFL_LOG_INFO, "%s: version %s has done well on trial and takes over", model->name,
                lane->version->model.version);
        mfl_model_note(model);
}

/* Paces are compared only side by side: at another time the machine may have had other work. */
static void judge(struct mfl_model *model, uint64_t now_us, uint64_t *due_us)
{
        const struct mfl_lane *lane = model->candidate,
                              *before = model->candidate ? model->current : model->previous;
        if (!model->on_trial || !before || model->load)
                return;
        const enum mfl_canary_verdict verdict = mfl_canary_judge(&model->trial, now_us,
                lane ? lane->batcher.row_low_us : 0, lane ? before->batcher.row_low_us : 0);
        if (verdict == MFL_CANARY_BAD)
                end_badly(model);
        else if (verdict == MFL_CANARY_GOOD)
                end_well(model);
        else
                *due_us = MFL_MIN(*due_us, model->trial.began_us + model->trial.config.for_us);
}

/* ---- pumping ---- */

static int pump_lane(struct mfl_lane *lane, uint64_t now_us, uint64_t *due_us, struct mfl_error *err)
{
        if (!lane)
                return 0;
        const int r = mfl_lane_pump(lane, now_us, err);
        *due_us = MFL_MIN(*due_us, mfl_lane_due_us(lane));
        return r;
}

static int pump_model(struct mfl_model *model, uint64_t now_us, uint64_t *due_us, struct mfl_error *err)
{
        int r = pump_lane(model->current, now_us, due_us, err);
        if (!r)
                r = pump_lane(model->previous, now_us, due_us, err);
        if (!r)
                r = pump_lane(model->candidate, now_us, due_us, err);
        if (!r)
                judge(model, now_us, due_us);
        for (size_t i = 0; !r && i < MFL_ARRAY_SIZE(model->retired); i++) {
                struct mfl_lane *lane = model->retired[i];
                r = pump_lane(lane, now_us, due_us, err);
                if (lane && is_idle(lane)) {
                        model->retired[i] = NULL;
                        let_go(model, lane);
                }
        }
        if (model->withdrawn && !model->load)
                mfl_model_take_out(model);
        if (model->later && !model->candidate) {
                model->later = false;
                model->again = true;
        }
        if (model->again && !model->load)
                mfl_model_load(model);
        return r;
}

int mfl_models_pump(struct mfl_models *models, uint64_t now_us, uint64_t *ret_due_us, struct mfl_error *err)
{
        uint64_t due_us = UINT64_MAX;
        int r = 0;
        for (uint32_t i = 0; !r && i < models->n; i++)
                r = pump_model(&models->v[i], now_us, &due_us, err);
        *ret_due_us = due_us;
        return r;
}

/* ---- the end ---- */

static void close_lane(struct mfl_model *model, struct mfl_lane **lane)
{
        if (!*lane)
                return;
        mfl_lane_clear(*lane);
        let_go(model, *lane);
        *lane = NULL;
}

static void hurry(struct mfl_lane *lane)
{
        if (lane)
                lane->batcher.config.delay_us = 0;
}

void mfl_models_hurry(struct mfl_models *models)
{
        models->config.batch.delay_us = 0;
        for (uint32_t i = 0; i < models->n; i++) {
                hurry(models->v[i].current);
                hurry(models->v[i].previous);
                hurry(models->v[i].candidate);
                for (size_t k = 0; k < MFL_ARRAY_SIZE(models->v[i].retired); k++)
                        hurry(models->v[i].retired[k]);
        }
}

static void on_closed(uv_handle_t *handle)
{
}

void mfl_models_close(struct mfl_models *models)
{
        if (models->closing)
                return;
        models->closing = true;
        for (uint32_t i = 0; i < models->n; i++) {
                struct mfl_model *model = &models->v[i];
                close_lane(model, &model->current);
                close_lane(model, &model->previous);
                close_lane(model, &model->candidate);
                for (size_t k = 0; k < MFL_ARRAY_SIZE(model->retired); k++)
                        close_lane(model, &model->retired[k]);
                if (!model->polls)
                        continue;
                uv_close((uv_handle_t *)&model->poll, on_closed);
                uv_close((uv_handle_t *)&model->look, on_closed);
        }
        if (models->loading)
                mfl_worker_close(&models->loader, NULL);
        if (models->mirroring)
                mfl_worker_close(&models->mirror, NULL);
        for (uint32_t i = 0; i < models->n_engines; i++)
                mfl_worker_close(&models->engines[i], NULL);
}
