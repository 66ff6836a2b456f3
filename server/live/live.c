/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of asynchronous jobs in real time. */
#include "server/live/live.h"

int mfl_live_recall(struct core_job *job, const struct mfl_core_event *event)
{
        uint32_t n = event->job_ready.n_arrivals;
        free(job->recorded);
        job->recorded = NULL;
        job->n_recorded = 0;
        if (!n)
                return 0;
        job->recorded = mfl_malloc(n * sizeof *job->recorded);
        if (!job->recorded)
                return -ENOMEM;
        memcpy(job->recorded, event->job_ready.arrivals, n * sizeof *job->recorded);
        job->n_recorded = n;
        return 0;
}

/* ---- items ---- */

/* What is recorded of the round at hand; n 0: nothing. */
static const struct mfl_arrival *record_of(const struct core_job *job, uint32_t *ret_n, uint32_t *ret_left)
{
        uint32_t i = 0, n = 0;
        while (i < job->n_recorded && job->recorded[i].version < job->round)
                i++;
        while (i + n < job->n_recorded && job->recorded[i + n].version == job->round)
                n++;
        *ret_n = n;
        *ret_left = job->n_recorded - i;
        return job->recorded + i;
}

static int compare_numbers(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

/* The sites of its daemons, ascending. */
static uint64_t *list_sites(const struct core_job *job, uint32_t *ret_n)
{
        uint64_t *v = mfl_malloc(MFL_MAX(job->n_leased, 1u) * sizeof *v);
        uint32_t n = 0;
        for (uint32_t i = 0; v && i < job->n_leased; i++)
                v[i] = job->leased[i]->client;
        if (v)
                qsort(v, job->n_leased, sizeof *v, compare_numbers);
        for (uint32_t i = 0; v && i < job->n_leased; i++)
                if (!n || v[n - 1] != v[i])
                        v[n++] = v[i];
        *ret_n = n;
        return v;
}

static int compare_arrivals(const void *a, const void *b)
{
        return compare_numbers(
                &((const struct mfl_arrival *)a)->client, &((const struct mfl_arrival *)b)->client);
}

/* n of them, ascending by client. */
static int set_items(struct core_job *job, struct mfl_arrival *v, uint32_t n)
{
        qsort(v, n, sizeof *v, compare_arrivals);
        mfl_core_items_clear(job);
        free(job->arrivals);
        job->items = mfl_calloc(MFL_MAX(n, 1u), sizeof *job->items);
        job->base = mfl_calloc(MFL_MAX(n, 1u), sizeof *job->base);
        job->arrivals = mfl_calloc(MFL_MAX(n, 1u), sizeof *job->arrivals);
        job->n_arrivals = job->staleness = 0;
        if (!job->items || !job->base || !job->arrivals)
                return -ENOMEM;
        job->n_items = job->count[ITEM_OPEN] = n;
        for (uint32_t i = 0; i < n; i++) {
                job->items[i].item = v[i].client;
                job->base[i] = v[i].base;
                job->staleness = MFL_MAX(job->staleness, mfl_core_item_staleness(job, i));
        }
        return 0;
}

int mfl_live_items(struct core_job *job, struct mfl_error *err)
{
        uint32_t n, left, n_sites = 0, dropped = 0, n_rows = mfl_calendar_rows(job->spec);
        const struct mfl_arrival *record = record_of(job, &n, &left);
        struct mfl_cohort_ask ask = {
                .job = job->spec, .population = job->spec->data.clients, .round = job->round};
        MFL_CLEANUP_FREE struct mfl_arrival *v = mfl_malloc(MFL_MAX(n_rows, n) * sizeof *v);
        MFL_CLEANUP_FREE uint64_t *sites = mfl_core_job_is_local(job) ? list_sites(job, &n_sites) : NULL;
        if (!v || (mfl_core_job_is_local(job) && !sites))
                return -ENOMEM;
        int r = left > n ? mfl_calendar_refill(&ask, record, left, job->calendar_next, err)
                         : mfl_calendar_fill(
                                   &ask, job->calendar, sites, n_sites, job->calendar_next, &dropped);
        if (r)
                return r;
        bool recorded = n > 0;
        if (recorded)
                memcpy(v, record, n * sizeof *v);
        for (uint32_t i = 1; !recorded && i < n_rows; i++)
                if (job->calendar_next[i].client)
                        v[n++] = (struct mfl_arrival){.client = job->calendar_next[i].client - 1,
                                .base = job->calendar_next[i].base};
        r = set_items(job, v, n);
        job->n_wanted = recorded ? n : MFL_MIN(n, mfl_job_buffer(job->spec));
        mfl_measure_set(&job->record.measures, MFL_MEASURE_DROPPED, dropped);
        return r;
}

bool mfl_live_is_full(const struct core_job *job)
{
        return mfl_job_is_live(job->spec) && job->phase == PHASE_TRAIN &&
               job->count[ITEM_COUNTED] >= job->n_wanted;
}

static void leave(struct core_job *job, uint64_t client)
{
        for (uint32_t i = 1; i < mfl_calendar_rows(job->spec); i++)
                if (job->calendar_next[i].client == client + 1)
                        job->calendar_next[i] = (union mfl_calendar_row){.word = {0}};
}

void mfl_live_close(struct core_job *job)
{
        uint64_t sum = 0;
        if (!mfl_job_is_live(job->spec))
                return;
        job->staleness = 0;
        for (uint32_t i = 0; i < job->n_arrivals; i++) {
                uint32_t staleness = job->round - 1 - job->arrivals[i].base;
                job->staleness = MFL_MAX(job->staleness, staleness);
                sum += staleness;
        }
        for (uint32_t i = 0; i < job->n_items; i++)
                if (job->items[i].state == ITEM_COUNTED || job->items[i].state == ITEM_REJECTED)
                        leave(job, job->items[i].item);
        if (job->n_arrivals)
                mfl_measure_set(
                        &job->record.measures, MFL_MEASURE_STALENESS_MEAN, (double)sum / job->n_arrivals);
        mfl_measure_set(&job->record.measures, MFL_MEASURE_STALENESS_MAX, job->staleness);
}

/* ---- work that goes on ---- */

bool mfl_live_keep(struct mfl_core *core, struct core_job *job, const struct core_task *task)
{
        if (!mfl_job_is_live(job->spec) || task->kind != MFL_TASK_TRAIN || !mfl_core_task_live(task) ||
                task->n_items != 1 || job->items[task->index[0]].task != task)
                return false;
        if (job->n_standing == job->standing_capacity) {
                uint32_t room = job->standing_capacity ? 2 * job->standing_capacity : 16;
                struct core_standing *v = mfl_realloc(job->standing, room * sizeof *v);
                if (!v) {
                        core->error = -ENOMEM;
                        return false;
                }
                job->standing = v;
                job->standing_capacity = room;
        }
        job->standing[job->n_standing++] = (struct core_standing){.item = job->items[task->index[0]].item,
                .task = task->number,
                .owner_key = task->owner_key,
                .owner_instance = task->owner_instance,
                .base = job->base[task->index[0]]};
        return true;
}

static const struct core_standing *find(const struct core_job *job, uint32_t i)
{
        for (uint32_t k = 0; k < job->n_standing; k++)
                if (job->standing[k].item == job->items[i].item && job->standing[k].base == job->base[i])
                        return &job->standing[k];
        return NULL;
}

static struct core_daemon *daemon_of(const struct mfl_core *core, const struct core_standing *s)
{
        struct core_daemon *daemon = mfl_core_map_get(&core->by_key, s->owner_key);
        return daemon && daemon->conn && daemon->info.instance == s->owner_instance ? daemon : NULL;
}

struct core_daemon *mfl_live_owner(const struct mfl_core *core, const struct core_job *job, uint32_t i)
{
        const struct core_standing *s = job->n_standing ? find(job, i) : NULL;
        struct core_daemon *daemon = s ? daemon_of(core, s) : NULL;
        return daemon && daemon->job == job && mfl_core_daemon_usable(daemon, job) ? daemon : NULL;
}

static void cancel(struct mfl_core *core, const struct core_standing *s, const char *reason)
{
        struct core_daemon *daemon = daemon_of(core, s);
        if (!daemon)
                return;
        struct mfl_msg *msg = mfl_core_send(core, daemon, MFL_MSG_CANCEL);
        msg->cancel.task = s->task;
        mfl_strcpy(msg->cancel.reason, sizeof msg->cancel.reason, reason);
}

/* True: nothing is left to decide about it. */
static bool settles(struct mfl_core *core, const struct core_job *job, const struct core_standing *s)
{
        for (uint32_t i = 0; i < job->n_items; i++) {
                const struct core_item *item = &job->items[i];
                if (item->item != s->item || job->base[i] != s->base)
                        continue;
                if (item->state == ITEM_OPEN || item->state == ITEM_MISSING)
                        return false;
                if (item->task && item->task->owner_key == s->owner_key &&
                        item->task->owner_instance == s->owner_instance)
                        return true;
        }
        cancel(core, s, "its client trains elsewhere, or no more");
        return true;
}

void mfl_live_settle(struct mfl_core *core, struct core_job *job)
{
        uint32_t n = 0;
        for (uint32_t k = 0; job->phase == PHASE_TRAIN && k < job->n_standing; k++) {
                struct core_standing s = job->standing[k];
                if (!settles(core, job, &s))
                        job->standing[n++] = s;
        }
        if (job->phase == PHASE_TRAIN)
                job->n_standing = n;
}

void mfl_live_end(struct mfl_core *core, struct core_job *job, const char *reason)
{
        for (uint32_t k = 0; k < job->n_standing; k++)
                cancel(core, &job->standing[k], reason);
        job->n_standing = 0;
}

void mfl_live_free(struct core_job *job)
{
        free(job->arrivals);
        free(job->recorded);
        free(job->standing);
}
