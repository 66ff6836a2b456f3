/* SPDX-License-Identifier: Apache-2.0 */
/* A job in the shell: loaded, handed to the core, freed; and which file carries out which order. */
#include "common/base/log.h"
#include "server/jobs/job_internal.h"

struct mfl_server_job *mfl_server_job_find(const struct mfl_jobs *jobs, const char *id)
{
        struct mfl_server_job *job = jobs->first;
        while (job && strcmp(job->id, id))
                job = job->next;
        return job;
}

/* ---- loading ---- */

/* What does not depend on what the job's file says. */
static int take_columns(struct mfl_server_job *job, const struct mfl_store_job *row, struct mfl_error *err)
{
        mfl_strcpy(job->id, sizeof job->id, row->id);
        mfl_strcpy(job->reason, sizeof job->reason, row->reason);
        job->state = row->state;
        mfl_strcpy(job->owner, sizeof job->owner, row->owner);
        job->created_unix_ms = row->created_ms;
        job->finished_unix_ms = row->finished_ms;
        job->archived_unix_ms = row->archived_ms;
        job->committed = row->committed;
        job->n_params = row->n_params;
        job->n_frozen = row->n_frozen;
        job->data = row->data;
        job->stop_after = row->stop_after;
        mfl_strcpy(job->data_from, sizeof job->data_from, row->data_from);
        job->text = mfl_strdup(row->text ? row->text : "");
        return job->text ? 0 : mfl_fail_memory(err, strlen(row->text), "a job's text");
}

static int take_row(struct mfl_server_job *job, const struct mfl_store_job *row, struct mfl_error *err)
{
        int r = take_columns(job, row, err);
        if (r)
                return r;
        r = mfl_job_parse(job->text, strlen(job->text), row->id, &job->spec, err);
        struct mfl_graph *graph;
        if (!r) /* it keeps the arithmetic that it began with, perhaps in an earlier release */
                job->spec->arithmetic = row->arithmetic;
        if (r || !job->data.name[0]) /* not prepared yet */
                return r;
        job->spec->by_layers =
                !row->n_frozen; /* it goes on in the order it began with, perhaps in an earlier release */
        r = mfl_job_graph(job->spec, &job->data.shape, (int)job->data.classes, &graph, err);
        if (r)
                return r < 0 ? r : 0; /* what no longer fits is reported when the job is prepared */
        job->per_token = job_is_per_token(graph);
        mfl_graph_free(graph);
        return 0;
}

/* A job like any, so that nobody else has to know that there may be none. */
static int take_unread(
        struct mfl_server_job *job, const struct mfl_store_job *row, const char *why, struct mfl_error *err)
{
        static const char stand_in[] = "name: unread\nmodel: logistic\ndata: {name: unread}\n"
                                       "rounds: 1\ntraining: {lr: 0.1, batch: 1}\n";
        int r = take_columns(job, row, err);
        if (!r)
                r = mfl_job_parse(stand_in, strlen(stand_in), row->id, &job->spec, err);
        if (r)
                return r;
        mfl_strcpy(job->spec->name, sizeof job->spec->name, row->name);
        mfl_strcpy(job->spec->data.name, sizeof job->spec->data.name, row->data.name);
        job->spec->rounds = MFL_MAX(1u, row->committed);
        job->unread = true;
        if (mfl_server_job_has_ended(job))
                return 0;
        job->state = MFL_JOB_FAILED;
        mfl_snprintf(job->reason, sizeof job->reason, "this release can't read its job file: %s", why);
        return 0;
}

static int take_rounds(struct mfl_server_job *job, struct mfl_error *err)
{
        struct mfl_store *store = job->jobs->store;
        int r = mfl_store_round_get(store, job->id, MFL_STORE_NEWEST, false, &job->last, err);
        if (r == MFL_NOT_FOUND)
                return 0;
        job->has_last = !r;
        if (!r)
                r = mfl_store_round_get(store, job->id, MFL_STORE_EVALUATED, false, &job->evaluated, err);
        if (r == MFL_NOT_FOUND)
                return 0;
        job->has_evaluated = !r;
        if (!r) {
                job->observed.evaluated = true;
                job->observed.accuracy = job->evaluated.record.accuracy;
                job->observed.loss = job->evaluated.record.loss;
                r = mfl_store_round_get(store, job->id, MFL_STORE_BEST, false, &job->best, err);
        }
        job->has_best = !r && job->best.record.evaluated;
        return r == MFL_NOT_FOUND ? 0 : r;
}

/* why: NULL: its file can be read. */
static int new_job(struct mfl_jobs *jobs, const struct mfl_store_job *row, const char *why,
        struct mfl_server_job **ret_job, struct mfl_error *err)
{
        struct mfl_server_job *job = mfl_calloc(1, sizeof *job), **at = &jobs->first;
        mfl_assert(*row->id);
        if (!job)
                return mfl_fail_memory(err, sizeof *job, "a job");
        job->jobs = jobs;
        int r = why ? take_unread(job, row, why, err) : take_row(job, row, err);
        if (!r)
                r = take_rounds(job, err);
        if (r) {
                mfl_job_free(job->spec);
                free(job->text);
                free(job);
                return r;
        }
        while (*at)
                at = &(*at)->next;
        *at = job;
        job->version = 1;
        *ret_job = job;
        return 0;
}

int mfl_server_job_new(struct mfl_jobs *jobs, const struct mfl_store_job *row,
        struct mfl_server_job **ret_job, struct mfl_error *err)
{
        return new_job(jobs, row, NULL, ret_job, err);
}

int mfl_server_job_new_unread(struct mfl_jobs *jobs, const struct mfl_store_job *row, const char *why,
        struct mfl_server_job **ret_job, struct mfl_error *err)
{
        return new_job(jobs, row, why, ret_job, err);
}

int mfl_server_job_start(struct mfl_server_job *job, struct mfl_error *err)
{
        struct mfl_store_resume resume;
        mfl_assert(job->stage == MFL_STAGE_STORED && !mfl_server_job_has_ended(job));
        int r = mfl_store_resume(job->jobs->store, job->id, &resume, err);
        if (r)
                return r;
        job->committed = resume.round;
        struct mfl_core_event event = {.kind = MFL_EV_JOB_ADD,
                .job_add = {.spec = job->spec,
                        .committed = resume.round,
                        .data = &job->data,
                        .data_from = job->data_from,
                        .stop_after = job->stop_after}};
        mfl_strcpy(event.job, sizeof event.job, job->id);
        job->jobs->moved_to[0] = '\0';
        mfl_server_job_move(job, MFL_STAGE_ADDED);
        mfl_loop_feed(job->jobs->loop, &event);
        return 0;
}

const char *mfl_jobs_moved_to(const struct mfl_jobs *jobs)
{
        for (const struct mfl_server_job *job = jobs->first; job; job = job->next)
                if (!mfl_server_job_has_ended(job))
                        return NULL;
        return *jobs->moved_to ? jobs->moved_to : NULL;
}

void mfl_server_job_free(struct mfl_server_job *job)
{
        struct mfl_server_job **at = &job->jobs->first;
        mfl_assert(!job->operations && !job->runtime);
        while (*at != job)
                at = &(*at)->next;
        *at = job->next;
        mfl_graph_free(job->graph);
        mfl_job_free(job->spec);
        mfl_server_job_cost_free(job);
        free(job->text);
        free(job);
}

void mfl_jobs_close(struct mfl_jobs *jobs)
{
        struct mfl_server_job *job;
        while ((job = jobs->first)) {
                mfl_runtime_close(job->runtime);
                job->runtime = NULL;
                mfl_server_job_measure_end(job);
                mfl_server_job_free(job);
        }
}

/* ---- the core's orders ---- */

static void release(struct mfl_server_job *job)
{
        for (uint32_t i = 0; job->runtime && i < mfl_runtime_slots(job->runtime); i++)
                mfl_server_job_slot_free(job, i);
        mfl_server_job_use(job); /* so that the memory goes at the end of this function at the earliest */
        mfl_server_job_move(job, MFL_STAGE_RELEASING);
        mfl_server_job_unuse(job);
}

void mfl_server_job_act(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        mfl_assert(mfl_server_job_in_core(job));
        mfl_server_job_changed(job);
        switch (action->kind) {
        case MFL_ACT_JOB_PREPARE:
                mfl_server_job_prepare(job, action);
                break;
        case MFL_ACT_JOB_DATA:
                mfl_server_job_set_data(job, action);
                break;
        case MFL_ACT_JOB_STATE:
                mfl_server_job_set_state(job, action);
                break;
        case MFL_ACT_JOB_RELEASE:
                job->observed.teams = action->teams;
                release(job);
                break;
        case MFL_ACT_ROUND_OPEN:
                mfl_server_job_round_open(job, action->round);
                break;
        case MFL_ACT_GRANT:
                mfl_server_job_grant(job, action);
                break;
        case MFL_ACT_SLOT_ADD:
                mfl_server_job_slot_add(job, action);
                break;
        case MFL_ACT_SLOT_FREE:
                mfl_server_job_slot_free(job, action->slot.slot);
                break;
        case MFL_ACT_SECURE_NOTE:
                mfl_server_job_secure_note(job, action);
                break;
        case MFL_ACT_UNMASK:
                mfl_server_job_unmask(job, action);
                break;
        case MFL_ACT_APPLY:
                mfl_server_job_apply(job, action);
                break;
        case MFL_ACT_CHECKPOINT:
                mfl_server_job_checkpoint(job, action);
                break;
        case MFL_ACT_COMMIT:
                mfl_server_job_commit(job, action);
                break;
        case MFL_ACT_COST:
                mfl_server_job_cost(job, action);
                break;
        default:
                mfl_assert(!"an action that is not about a job");
        }
}

struct mfl_team_totals mfl_server_job_teams(const struct mfl_server_job *job)
{
        struct mfl_team_totals totals = job->observed.teams;
        if (mfl_server_job_in_core(job))
                mfl_core_job_teams(job->jobs->loop->core, job->id, &totals);
        return totals;
}
