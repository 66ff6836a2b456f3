/* SPDX-License-Identifier: Apache-2.0 */
/* The link's jobs, and the running tasks. */
#include "client/link/link_secure.h"

#include "client/noise/site.h"

static int send_piece(struct mfl_link *link, struct link_job *job, struct mfl_error *err)
{
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        Mfl__Partition piece;
        Mfl__ClientSamples shown, *list;
        uint32_t next = job->population_next;
        mfl_population_piece(job->population, &next, &piece, &shown, &list);
        envelope.body_case = MFL__ENVELOPE__BODY_PARTITION;
        envelope.partition = &piece;
        int r = mfl_stream_send(&link->stream, &envelope, NULL, 0, NULL, NULL, NULL, err);
        if (r != MFL_BUSY)
                job->population_next = next;
        return r;
}

/* The server checks announcements against these figures, so they are sent first. They follow the job's text,
 * because the server may use the same id for another job. */
static void send_populations(struct mfl_link *link)
{
        for (struct link_job *job = link->jobs; job; job = job->next) {
                struct mfl_error err;
                int r = 0;
                while (!r && link->online && link->stream_state && job->known && job->population &&
                        job->population_next < job->population->clients)
                        r = send_piece(link, job, &err);
                if (r < 0) {
                        mfl_link_fatal(link, &err);
                        return;
                }
        }
}

static const struct link_job *job_of(const struct mfl_link *link, const char *id)
{
        const struct link_job *job = link->jobs;
        while (job && strcmp(job->id, id))
                job = job->next;
        return job;
}

/* A file that this release can't read is the trainer's to refuse. -ENOMEM. */
static int find_secure(struct link_job *job)
{
        struct mfl_job *spec;
        int r = mfl_job_parse(job->text, strlen(job->text), job->id, &spec, NULL);
        if (r)
                return MFL_MIN(r, 0);
        job->secure = spec->secure;
        job->bucket = mfl_job_sums_buckets(spec) ? spec->aggregation.robust.bucket : 0;
        job->privacy = spec->privacy;
        mfl_strcpy(job->data, sizeof job->data, spec->data.name);
        mfl_job_free(spec);
        return 0;
}

int mfl_link_job_set(struct mfl_link *link, const Mfl__JobSpec *spec)
{
        const char *id = spec->job, *text = spec->text;
        struct link_job *job = link->jobs;
        while (job && strcmp(job->id, id))
                job = job->next;
        if (job && !strcmp(job->text, text)) {
                job->known = true;
                mfl_strcpy(job->owner, sizeof(job->owner), spec->owner);
                send_populations(link);
                return 0;
        }
        /* What is here under this id belongs to another job: the agent orders it to be forgotten. */
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_JOB_CHANGED};
        mfl_assert(!link->stepping);
        mfl_strcpy(event.job, sizeof(event.job), id);
        mfl_link_post(link, &event);
        mfl_link_job_forget(link, id);
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
        mfl_strcpy(job->owner, sizeof(job->owner), spec->owner);
        job->known = true;
        job->next = link->jobs;
        link->jobs = job;
        return find_secure(job);
}

void mfl_link_job_forget(struct mfl_link *link, const char *id)
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
}

/* status: positive, as mfl_trainer_run's. */
static void post_failure(
        struct mfl_link *link, uint64_t task, int status, uint32_t accused, uint32_t loss, const char *reason)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_COMPUTED,
                .task = task,
                .permanent = status == MFL_INVALID,
                .broken = status == MFL_TEAM_BROKEN,
                .accused = status == MFL_TEAM_BROKEN ? accused : 0,
                .loss = status == MFL_TEAM_BROKEN && accused ? loss : 0};
        mfl_strcpy(event.reason, sizeof(event.reason), reason);
        mfl_link_post(link, &event);
}

static void free_work(struct link_work *work)
{
        struct link_work **at = &work->link->works;
        while (*at != work)
                at = &(*at)->next;
        *at = work->next;
        mfl_link_params_unref(work->params);
        mfl_population_free(atomic_exchange(&work->call.population, NULL));
        free(work->text);
        free(work);
}

static void deliver(struct mfl_link *link, const struct mfl_task *order, struct mfl_train_result *result)
{
        uint64_t task = order->task;
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_COMPUTED,
                .task = task,
                .ok = true,
                .n_updates = result->n_updates,
                .updates = result->updates,
                .grouped = result->grouped,
                .n_eval = result->n_eval,
                .eval = result->eval,
                .n_tally = result->n_tally,
                .tally = result->tally};
        bool kept = result->n_updates > 0;
        struct link_result *entry = kept ? mfl_link_result_add(link, task, result) : NULL;
        if (entry) {
                memcpy(entry->params, order->params_digest, sizeof entry->params);
                mfl_link_secure_hide(link, order->job, result, entry);
        }
        if (kept && !entry) {
                struct mfl_error err;
                mfl_fail_memory(&err, sizeof(struct link_result), "a result");
                link->options.ops->result_free(link->options.compute, result);
                mfl_link_fatal(link, &err);
                return;
        }
        mfl_link_post(link, &event);
        /* The agent has copied the few numbers of an evaluation. */
        if (!kept)
                link->options.ops->result_free(link->options.compute, result);
}

/* Takes the figures of the job's population that the worker has found. */
static void keep_population(struct link_work *work)
{
        struct link_job *job = work->link->jobs;
        Mfl__Partition *population = atomic_exchange(&work->call.population, NULL);
        while (job && strcmp(job->id, work->order.job))
                job = job->next;
        if (!population || !job ||
                job->population) { /* forgotten meanwhile, or known already (it never changes) */
                mfl_population_free(population);
                return;
        }
        job->population = population;
}

static void on_computed(struct mfl_compute_call *call)
{
        struct link_work *work = MFL_CONTAINER_OF(call, struct link_work, call);
        struct mfl_link *link = work->link;
        const struct mfl_task order = work->order;
        uint64_t task = work->task;
        int status = call->status;
        struct mfl_error err = call->err;
        struct mfl_train_result *result = status ? NULL : call->result;
        uint32_t accused = atomic_load(&call->control.accused), loss = atomic_load(&call->control.loss);
        keep_population(work);
        free_work(work);
        if (link->life == LINK_RUNS)
                send_populations(link);
        if (link->life != LINK_RUNS)
                link->options.ops->result_free(link->options.compute, result);
        else if (status < 0)
                mfl_link_fatal(link, &err);
        else if (status)
                post_failure(link, task, status, accused, loss, err.text);
        else
                deliver(link, &order, result);
        mfl_link_pending_done(link);
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
        work->call.frozen_stage = params->frozen ? mfl_link_params_stage(params->frozen) : NULL;
        work->call.params_stage = mfl_link_params_stage(params);
        work->call.correct = mfl_link_want;
        work->call.correct_user = work;
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

void mfl_link_work_start(struct mfl_link *link, const struct mfl_agent_action *action)
{
        const struct mfl_task *task = action->task;
        struct mfl_error err = {{0}};
        struct link_job *job = link->jobs;
        while (job && strcmp(job->id, task->job))
                job = job->next;
        struct link_params *params = mfl_link_params_find(link, action->part);
        mfl_assert(params && params->state == LINK_PARAMS_WHOLE);
        mfl_assert(action->frozen_part == (params->frozen ? params->frozen->number : 0));
        if (!job) {
                post_failure(link, task->task, MFL_NOT_FOUND, 0, 0, "its job file never came");
                return;
        }
        int r = start_work(link, task, params, job->text, &err);
        if (r < 0)
                mfl_link_fatal(link, &err);
        else if (r)
                post_failure(link, task->task, MFL_BUSY, 0, 0, err.text);
}

void mfl_link_work_end(struct mfl_link *link, uint64_t task, bool unmet)
{
        for (struct link_work *work = link->works; work; work = work->next) {
                if (work->task == task && unmet)
                        atomic_store(&work->call.control.regroup, true);
                else if (work->task == task)
                        link->options.ops->cancel(link->options.compute, &work->call);
        }
}

/* Work that is done but not reported yet keeps all of its items. */
void mfl_link_work_recall(struct mfl_link *link, uint64_t task, uint32_t keep)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_RECALLED, .task = task, .n_items = UINT32_MAX};
        for (struct link_work *work = link->works; work; work = work->next)
                if (work->task == task && link->options.ops->recall)
                        event.n_items = link->options.ops->recall(link->options.compute, &work->call, keep);
        mfl_link_post(link, &event);
}

void mfl_link_work_abort_all(struct mfl_link *link)
{
        for (struct link_work *work = link->works; work; work = work->next)
                link->options.ops->cancel(link->options.compute, &work->call);
}

void mfl_link_work_cut(struct mfl_link *link)
{
        for (struct link_job *job = link->jobs; job; job = job->next) {
                job->population_next = 0;
                job->known = false;
        }
}

/* Progress is for people to read; the agent does not decide on it, so it is sent from here. */
void mfl_link_work_progress(struct mfl_link *link)
{
        for (struct link_work *work = link->works; work && link->online && link->stream_state;
                work = work->next) {
                struct mfl_train_control *control = &work->call.control;
                keep_population(work);
                uint64_t samples = atomic_load(&control->samples_done);
                if (samples == work->progress_sent)
                        continue;
                work->progress_sent = samples;
                const struct link_job *job = job_of(link, work->order.job);
                bool hides = job && (job->secure.bits || mfl_privacy_withholds(&job->privacy) ||
                                            (link->options.privacy && link->options.privacy->withholds));
                struct mfl_msg msg = {.kind = MFL_MSG_PROGRESS,
                        .progress = {.task = work->task,
                                .items_done = atomic_load(&control->items_done),
                                .samples_done = hides ? 0 : samples,
                                .loss_sum = hides ? 0 : atomic_load(&control->loss_sum)}};
                struct mfl_error err;
                if (mfl_stream_send_msg(&link->stream, &msg, NULL, &err) < 0) {
                        mfl_link_fatal(link, &err);
                        return;
                }
        }
        send_populations(link);
        mfl_link_wants_pump(link);
}
