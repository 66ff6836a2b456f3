/* SPDX-License-Identifier: Apache-2.0 */
/* How a version comes into service: two pieces of work on the loader, and a decision on the loop after each.
 *
 *   IDLE -- load ---> STAGE -- new bytes --------------------------------> OPEN -- fine --> switch, NOTE -> IDLE
 *                       |-- the same bytes, or those of a rollback -> IDLE    `- failed: logged -> IDLE, or the version before again
 *                       |-- the present version's while another is on trial: that one is out, NOTE -> IDLE
 *                       `- failed: served already: logged -> IDLE
 *                                  nothing served yet: the cache's version -> OPEN
 * What failed for the machine's sake (a full disk, memory) is tried again after a while: no change of the file would tell.
 */
#include "serve/engine/models_load.h"

#include "common/base/log.h"

#define RETRY_MS 5000

enum purpose {
        FOR_SOURCE,   /* the new version of the source */
        FOR_START,    /* the cache's, because the source can't be read */
        FOR_PREVIOUS, /* the version before, which has left memory for a version that failed */
};

struct mfl_load {
        struct mfl_model *model;
        struct mfl_work work;
        struct mfl_version_options options;
        enum purpose purpose;
        bool looks; /* beside a version on trial: whether the source goes back, without a copy */
        struct mfl_staged staged;
        struct mfl_version *version;
        char previous[65], refused[65];
        int result;
        struct mfl_error err;
};

/* ---- on the loader ---- */

static void run_stage(struct mfl_work *work)
{
        struct mfl_load *load = MFL_CONTAINER_OF(work, struct mfl_load, work);
        struct mfl_version_options options = load->options;
        switch (load->purpose) {
        case FOR_SOURCE:
                if (load->options.cache)
                        mfl_version_refused(&load->options, load->refused);
                options.cache = load->looks ? NULL : options.cache;
                load->result = mfl_version_stage(load->model->source, &options, &load->staged, &load->err);
                return;
        case FOR_START:
                load->result = mfl_version_stage_cached(&load->options, NULL, &load->staged, &load->err);
                return;
        case FOR_PREVIOUS:
                load->result =
                        mfl_version_stage_cached(&load->options, load->previous, &load->staged, &load->err);
                return;
        }
}

static void run_open(struct mfl_work *work)
{
        struct mfl_load *load = MFL_CONTAINER_OF(work, struct mfl_load, work);
        load->result = mfl_version_open(&load->staged, &load->options, &load->version, &load->err);
}

static void run_note(struct mfl_work *work)
{
        struct mfl_load *load = MFL_CONTAINER_OF(work, struct mfl_load, work);
        load->result = mfl_version_note(
                &load->options, load->staged.digest, load->previous, load->refused, &load->err);
}

/* ---- on the loop ---- */

static void end_load(struct mfl_load *load)
{
        struct mfl_model *model = load->model;
        mfl_version_free(load->version);
        free(load);
        model->load = NULL;
        if (model->again && !model->all->closing)
                mfl_model_load(model);
}

static void submit(struct mfl_load *load, void (*run)(struct mfl_work *), void (*done)(struct mfl_work *))
{
        load->work = (struct mfl_work){.run = run, .done = done};
        if (mfl_worker_submit(&load->model->all->loader, &load->work))
                end_load(load);
}

static void on_staged(struct mfl_work *work);

static void stage(struct mfl_load *load, enum purpose purpose)
{
        load->purpose = purpose;
        submit(load, run_stage, on_staged);
}

/* The present version stays. What has been said is not said again. */
static void note_failure(struct mfl_load *load)
{
        struct mfl_model *model = load->model;
        if ((load->result == MFL_NOT_FOUND || load->result < 0) && !strcmp(model->error, load->err.text))
                return;
        model->counts.load_failures++;
        mfl_strcpy(model->error, sizeof model->error, load->err.text);
        if (model->current)
                mfl_log(MFL_LOG_ERROR, "%s: %s; version %s stays in service", model->name, load->err.text,
                        model->current->version->model.version);
        else
                mfl_log(MFL_LOG_ERROR, "%s: %s", model->name, load->err.text);
}

static void on_noted(struct mfl_work *work)
{
        struct mfl_load *load = MFL_CONTAINER_OF(work, struct mfl_load, work);
        if (!work->cancelled && load->result)
                mfl_log(MFL_LOG_WARN,
                        "%s: %s; after a restart without the source, an older version would be served",
                        load->model->name, load->err.text);
        end_load(load);
}

static void note(struct mfl_load *load, const char *current, const char *previous)
{
        if (!load->options.cache) {
                end_load(load);
                return;
        }
        mfl_strcpy(load->staged.digest, sizeof load->staged.digest, current);
        mfl_strcpy(load->previous, sizeof load->previous, previous);
        mfl_strcpy(load->refused, sizeof load->refused, load->model->refused);
        submit(load, run_note, on_noted);
}

static void begin_trial(struct mfl_model *model)
{
        mfl_canary_begin(&model->trial, &model->all->config.canary, mfl_now_ns() / 1000);
        model->mirrored.difference_max = 0;
        model->on_trial = true;
}

void mfl_model_switch(struct mfl_model *model, struct mfl_lane *lane, struct mfl_lane *before)
{
        model->current = lane;
        model->previous = before;
        mfl_strcpy(model->previous_digest, sizeof model->previous_digest,
                before ? before->version->model.digest : "");
        model->all->swaps++;
        model->counts.swaps++;
}

static void on_look(uv_timer_t *timer)
{
        mfl_model_load(timer->data);
}

static void try_later(const struct mfl_load *load)
{
        struct mfl_model *model = load->model;
        if (load->result < 0 && load->purpose == FOR_SOURCE)
                uv_timer_start(&model->look, on_look, MFL_MAX(model->all->config.poll_ms, RETRY_MS), 0);
}

static void install(struct mfl_load *load)
{
        struct mfl_model *model = load->model;
        struct mfl_lane *lane;
        const struct mfl_canary_config *canary = &model->all->config.canary;
        const bool mirrors = model->current && load->purpose != FOR_PREVIOUS && canary->mirror > 0;
        const struct mfl_lane_workers mirror = {.v = &model->all->mirror, .n = 1, .n_used = 1};
        load->result = mfl_lane_open(load->version, mirrors ? &mirror : &model->workers,
                &model->all->config.batch, &lane, &load->err);
        if (load->result) {
                note_failure(load);
                try_later(load);
                end_load(load);
                return;
        }
        load->version = NULL;
        if (load->purpose == FOR_PREVIOUS) {
                model->previous = lane;
                end_load(load);
                return;
        }
        model->error[0] = '\0';
        if (model->current)
                begin_trial(model);
        if (model->current && (canary->share > 0 || canary->mirror > 0)) {
                model->candidate = lane;
                mfl_log(MFL_LOG_INFO,
                        "%s: version %s is on trial beside %s: it answers %g%% of the keys, and mirrors %g%%",
                        model->name, lane->version->model.version, model->current->version->model.version,
                        canary->share * 100, canary->mirror * 100);
                end_load(load);
                return;
        }
        mfl_model_switch(model, lane, model->current);
        mfl_log(MFL_LOG_INFO, "%s: version %s is served, from %s%s%s", model->name,
                lane->version->model.version, lane->version->source, model->previous ? "; before: " : "",
                model->previous ? model->previous->version->model.version : "");
        note(load, lane->version->model.digest, model->previous_digest);
}

static void on_opened(struct mfl_work *work)
{
        struct mfl_load *load = MFL_CONTAINER_OF(work, struct mfl_load, work);
        struct mfl_model *model = load->model;
        if (work->cancelled || model->all->closing) {
                end_load(load);
                return;
        }
        if (!load->result) {
                install(load);
                return;
        }
        note_failure(load);
        try_later(load);
        if (load->purpose == FOR_SOURCE && !model->current && load->options.cache) {
                stage(load, FOR_START);
        } else if (load->purpose == FOR_SOURCE && *model->previous_digest && !model->previous &&
                   load->options.cache) {
                mfl_strcpy(load->previous, sizeof load->previous, model->previous_digest);
                stage(load, FOR_PREVIOUS);
        } else {
                end_load(load);
        }
}

/* The source is what is served: a version that it had meanwhile is not wanted, whether it is on trial or was rolled back. Afterwards it may come
 * again. */
static void forget_others(struct mfl_load *load)
{
        struct mfl_model *model = load->model;
        struct mfl_lane *lane = model->candidate;
        if (!lane && !*model->refused) {
                end_load(load);
                return;
        }
        if (lane)
                mfl_log(MFL_LOG_INFO,
                        "%s: version %s, which was on trial, is out: the source is version %s again",
                        model->name, lane->version->model.version, model->current->version->model.version);
        else
                mfl_log(MFL_LOG_INFO,
                        "%s: the source is version %s again: %.*s, which was rolled back, may come back",
                        model->name, model->current->version->model.version, MFL_VERSION_HEX, model->refused);
        model->refused[0] = '\0';
        if (lane) {
                model->candidate = NULL;
                model->on_trial = model->later = false;
                mfl_model_retire(model, lane);
        }
        note(load, model->current->version->model.digest, model->previous_digest);
}

static void on_staged(struct mfl_work *work)
{
        struct mfl_load *load = MFL_CONTAINER_OF(work, struct mfl_load, work);
        struct mfl_model *model = load->model;
        if (work->cancelled || model->all->closing) {
                end_load(load);
                return;
        }
        if (load->result) {
                if (load->result != MFL_NOT_FOUND || (load->purpose != FOR_START && !model->comes))
                        note_failure(load);
                /* libuv takes what it sees first for what was there, and tells nobody; that may be after this look. */
                if (load->result == MFL_NOT_FOUND && load->purpose == FOR_SOURCE && !model->current)
                        uv_timer_start(&model->look, on_look, model->all->config.poll_ms, 0);
                try_later(load);
                if (load->purpose == FOR_SOURCE && !model->current && load->options.cache)
                        stage(load, FOR_START);
                else
                        end_load(load);
                return;
        }
        const char *digest = load->staged.digest;
        if (load->purpose == FOR_SOURCE && !model->current && !strcmp(digest, load->refused)) {
                mfl_log(MFL_LOG_INFO,
                        "%s: %.*s was rolled back before the restart and stays out until the file changes",
                        model->name, MFL_VERSION_HEX, digest);
                mfl_strcpy(model->refused, sizeof model->refused, digest);
                stage(load, FOR_START);
                return;
        }
        if (load->purpose == FOR_SOURCE && model->current &&
                !strcmp(digest, model->current->version->model.digest)) {
                forget_others(load);
                return;
        }
        if (load->purpose == FOR_SOURCE && (model->candidate || !strcmp(digest, model->refused))) {
                model->later =
                        model->candidate && strcmp(digest, model->candidate->version->model.digest) != 0;
                end_load(load);
                return;
        }
        if (load->purpose == FOR_SOURCE) {
                model->refused[0] = '\0';
                if (model->previous && !strcmp(digest, model->previous->version->model.digest)) {
                        mfl_model_switch(model, model->previous, model->current);
                        mfl_log(MFL_LOG_INFO, "%s: version %s is served again", model->name,
                                model->current->version->model.version);
                        note(load, model->current->version->model.digest, model->previous_digest);
                        return;
                }
                struct mfl_lane *before = model->previous;
                model->previous = NULL;
                mfl_model_retire(model, before);
        }
        submit(load, run_open, on_opened);
}

/* A load may retire two versions: the previous one, and what it has loaded, if that fails its trial. */
static bool has_room(const struct mfl_model *model)
{
        size_t n_free = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(model->retired); i++)
                n_free += !model->retired[i];
        return n_free >= 2;
}

static struct mfl_version_options options_of(const struct mfl_model *model)
{
        return (struct mfl_version_options){.name = model->name,
                .source = model->source,
                .cache = *model->cache ? model->cache : NULL,
                .rows_max = model->all->config.batch.rows_max,
                .n_instances = model->all->config.instances,
                .backend = model->all->config.backend,
                .bf16 = model->all->config.bf16};
}

static struct mfl_load *new_load(struct mfl_model *model)
{
        struct mfl_load *load = mfl_calloc(1, sizeof *load);
        if (!load)
                return NULL;
        model->load = load;
        load->model = model;
        load->options = options_of(model);
        return load;
}

void mfl_model_load(struct mfl_model *model)
{
        model->again = true;
        if (model->load || model->withdrawn || !has_room(model))
                return;
        struct mfl_load *load = new_load(model);
        if (!load)
                return; /* the next turn tries again */
        model->again = false;
        load->looks = model->candidate != NULL;
        stage(load, FOR_SOURCE);
}

void mfl_model_note(struct mfl_model *model)
{
        struct mfl_load *load = new_load(model);
        if (load)
                note(load, model->current->version->model.digest, model->previous_digest);
}

/* The files go now: what is written from here on is from the server that knows the model. */
void mfl_model_withdraw(struct mfl_model *model)
{
        const struct mfl_version_options options = options_of(model);
        mfl_assert(model->comes);
        model->withdrawn = true;
        mfl_version_forget(&options);
}

void mfl_model_take_out(struct mfl_model *model)
{
        struct mfl_lane *lanes[] = {model->current, model->previous, model->candidate};
        size_t n_free = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(model->retired); i++)
                n_free += !model->retired[i];
        if (n_free < MFL_ARRAY_SIZE(lanes))
                return; /* the next turn tries again */
        mfl_log(MFL_LOG_ERROR,
                "%s: the server does not know what is served, which came from another one: nothing is served "
                "until it does",
                model->name);
        model->withdrawn = model->on_trial = model->later = false;
        model->current = model->previous = model->candidate = NULL;
        model->refused[0] = model->previous_digest[0] = '\0';
        model->all->swaps++;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(lanes); i++)
                mfl_model_retire(model, lanes[i]);
}

/* ---- following ---- */

static void on_poll(uv_fs_poll_t *poll, int status, const uv_stat_t *before, const uv_stat_t *now)
{
        struct mfl_model *model = poll->data;
        if (!model->all->closing && !status)
                mfl_model_load(model);
}

void mfl_models_reload(struct mfl_models *models)
{
        for (uint32_t i = 0; i < models->n; i++) {
                models->v[i].error[0] = '\0'; /* whoever asks for a look hears again what is wrong */
                mfl_model_load(&models->v[i]);
        }
}

void mfl_models_start(struct mfl_models *models)
{
        for (uint32_t i = 0; i < models->n; i++) {
                struct mfl_model *model = &models->v[i];
                uv_fs_poll_init(models->loop, &model->poll);
                uv_timer_init(models->loop, &model->look);
                model->poll.data = model->look.data = model;
                model->polls = true;
                uv_fs_poll_start(&model->poll, on_poll, model->source, (unsigned)models->config.poll_ms);
                mfl_model_load(model);
        }
}
