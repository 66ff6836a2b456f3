/* SPDX-License-Identifier: Apache-2.0 */
/* The link's jobs and the tasks at work on them. */
#include "client/link_internal.h"

/* What the agent has under this id is of another job, if it has anything; and what was kept of that one goes.
 */
static void job_changed(struct mfl_link *link, const char *id, bool known)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_JOB_CHANGED};
        mfl_strcpy(event.job, sizeof(event.job), id);
        link_post(link, &event);
        if (!known)
                return;
        link_job_forget(link, id);
        link->options.ops->forget(link->options.compute, id);
}

int link_job_set(struct mfl_link *link, const char *id, const char *text)
{
        struct link_job *job = link->jobs;
        while (job && strcmp(job->id, id))
                job = job->next;
        if (job && !strcmp(job->text, text))
                return 0;
        job_changed(link, id, job != NULL);
        char *copy = mfl_strdup(text);
        if (!copy)
                return -ENOMEM;
        job = mfl_calloc(1, sizeof(*job));
        if (!job) {
                free(copy);
                return -ENOMEM;
        }
        mfl_strcpy(job->id, sizeof(job->id), id);
        job->text = copy;
        job->next = link->jobs;
        link->jobs = job;
        return 0;
}

void link_job_forget(struct mfl_link *link, const char *id)
{
        for (struct link_job **at = &link->jobs; *at;) {
                struct link_job *job = *at;
                if (id && strcmp(job->id, id)) {
                        at = &job->next;
                        continue;
                }
                *at = job->next;
                mfl_population_free(job->population);
                free(job->text);
                free(job);
        }
        link_params_forget(link, id);
}

static void post_failure(struct mfl_link *link, uint64_t task, bool permanent, const char *reason)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_COMPUTED, .task = task, .permanent = permanent};
        mfl_strcpy(event.reason, sizeof(event.reason), reason);
        link_post(link, &event);
}

static void free_work(struct link_work *work)
{
        struct link_work **at = &work->link->works;
        while (*at != work)
                at = &(*at)->next;
        *at = work->next;
        link_params_unref(work->params);
        mfl_population_free(atomic_exchange(&work->call.population, NULL));
        free(work->text);
        free(work);
}

static void deliver(struct mfl_link *link, uint64_t task, struct mfl_train_result *result)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_COMPUTED,
                .task = task,
                .ok = true,
                .n_updates = result->n_updates,
                .updates = result->updates,
                .grouped = result->grouped,
                .n_eval = result->n_eval,
                .eval = result->eval};
        bool kept = result->n_updates > 0;
        if (kept && !link_result_add(link, task, result)) {
                struct mfl_error err;
                mfl_fail_memory(&err, sizeof(struct link_result), "a result");
                link->options.ops->result_free(link->options.compute, result);
                link_fatal(link, &err);
                return;
        }
        link_post(link, &event);
        /* The agent keeps a copy of an evaluation's few numbers. */
        if (!kept)
                link->options.ops->result_free(link->options.compute, result);
}

/* What the worker has found out of the job meanwhile. */
static void keep_population(struct link_work *work)
{
        struct link_job *job = work->link->jobs;
        Mfl__Partition *population = atomic_exchange(&work->call.population, NULL);
        while (job && strcmp(job->id, work->order.job))
                job = job->next;
        if (!population || !job ||
                job->population) { /* forgotten meanwhile, or known: it is always the same */
                mfl_population_free(population);
                return;
        }
        job->population = population;
}

/* For people who look, as progress is. A server that has it drops it; one that was restarted may not have it.
 */
static void send_populations(struct mfl_link *link)
{
        for (struct link_job *job = link->jobs; job && link->online && link->stream_open; job = job->next) {
                Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
                struct mfl_error err;
                if (!job->population || job->population_sent)
                        continue;
                envelope.body_case = MFL__ENVELOPE__BODY_PARTITION;
                envelope.partition = job->population;
                int r = mfl_stream_send(&link->stream, &envelope, NULL, 0, NULL, NULL, NULL, &err);
                if (r < 0) {
                        link_fatal(link, &err);
                        return;
                }
                job->population_sent = r != MFL_BUSY;
        }
}

static void on_computed(struct mfl_compute_call *call)
{
        struct link_work *work = MFL_CONTAINER_OF(call, struct link_work, call);
        struct mfl_link *link = work->link;
        uint64_t task = work->task;
        int status = call->status;
        struct mfl_error err = call->err;
        struct mfl_train_result *result = status ? NULL : call->result;
        keep_population(work);
        free_work(work);
        if (!link->exited && !link->closing)
                send_populations(link);
        if (link->exited || link->closing)
                link->options.ops->result_free(link->options.compute, result);
        else if (status < 0)
                link_fatal(link, &err);
        else if (status)
                post_failure(link, task, status == MFL_INVALID, err.text);
        else
                deliver(link, task, result);
        link_pending_done(link);
}

static int start_work(struct mfl_link *link, const struct mfl_task *task, struct link_params *params,
        const char *text, struct mfl_error *err)
{
        struct link_work *work = mfl_calloc(1, sizeof(*work));
        char *copy = mfl_strdup(text); /* the job may be forgotten while the task ends */
        if (!work || !copy) {
                free(work);
                free(copy);
                return mfl_fail_memory(err, sizeof(*work), "a task");
        }
        *work = (struct link_work){
                .link = link, .task = task->task, .order = *task, .params = params, .text = copy};
        work->call.task = &work->order;
        work->call.job_text = copy;
        work->call.frozen = params->frozen ? params->frozen->store.data : NULL;
        work->call.params = params->store.data;
        work->call.done = on_computed;
        work->next = link->works;
        link->works = work;
        params->refs++;
        int r = link->options.ops->start(link->options.compute, &work->call, err);
        if (r)
                free_work(work);
        else
                link->pending++;
        return r;
}

void link_work_start(struct mfl_link *link, const struct mfl_task *task)
{
        struct mfl_error err = {{0}};
        struct link_job *job = link->jobs;
        while (job && strcmp(job->id, task->job))
                job = job->next;
        struct link_params *params = link_params_find(link, task->job, task->params_digest);
        const struct link_params *frozen = params ? params->frozen : NULL;
        if (frozen && frozen->refused)
                post_failure(link, task->task, true, frozen->reason);
        else if (params && params->refused)
                post_failure(link, task->task, true, params->reason);
        else if (!job || !params || !params->ready)
                post_failure(
                        link, task->task, false, job ? "its params are gone" : "its job file never came");
        else {
                params->used = ++link->clock;
                int r = start_work(link, task, params, job->text, &err);
                if (r < 0)
                        link_fatal(link, &err);
                else if (r)
                        post_failure(link, task->task, false, err.text);
        }
}

void link_work_abort(struct mfl_link *link, uint64_t task)
{
        for (struct link_work *work = link->works; work; work = work->next) {
                if (work->task == task)
                        link->options.ops->cancel(link->options.compute, &work->call);
        }
}

void link_work_abort_all(struct mfl_link *link)
{
        for (struct link_work *work = link->works; work; work = work->next)
                link->options.ops->cancel(link->options.compute, &work->call);
}

void link_work_cut(struct mfl_link *link)
{
        for (struct link_job *job = link->jobs; job; job = job->next)
                job->population_sent = false;
}

/* Progress is for people who watch; the core does not decide on it, so it is sent from here. */
void link_work_progress(struct mfl_link *link)
{
        for (struct link_work *work = link->works; work && link->online && link->stream_open;
                work = work->next) {
                struct mfl_train_control *control = &work->call.control;
                keep_population(work);
                uint64_t samples = atomic_load(&control->samples_done);
                if (samples == work->progress_sent)
                        continue;
                work->progress_sent = samples;
                struct mfl_msg msg = {.kind = MFL_MSG_PROGRESS,
                        .progress = {.task = work->task,
                                .items_done = atomic_load(&control->items_done),
                                .samples_done = samples,
                                .loss_sum = atomic_load(&control->loss_sum)}};
                struct mfl_error err;
                if (mfl_stream_send_msg(&link->stream, &msg, NULL, &err) < 0) {
                        link_fatal(link, &err);
                        return;
                }
        }
        send_populations(link);
}
