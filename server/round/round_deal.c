/* SPDX-License-Identifier: Apache-2.0 */
/* Dividing a phase's open items among daemons. */
#include "server/round/round_deal.h"

#include "server/round/round_left.h"
#include "server/live/live.h"
#include "server/round/round_share.h"
#include "server/round/round_speed.h"
#include "server/round/round_team.h"
#include "server/work/core_group.h"
#include "server/work/core_task.h"

bool mfl_round_waits(const struct core_job *job)
{
        bool asked = job->stop_after && job->round > job->stop_after; /* the round being stored is its last */
        bool ends = asked || (job->last_round && job->round > job->last_round);
        return (job->phase == PHASE_TRAIN_WAIT && !ends) || job->phase == PHASE_EVAL_WAIT;
}

bool mfl_round_wants(const struct core_job *job)
{
        if (mfl_round_waits(job))
                return true;
        if ((job->phase != PHASE_TRAIN && job->phase != PHASE_EVAL) || job->secure)
                return false;
        bool local = job->spec->data.partition == MFL_PARTITION_LOCAL;
        return job->count[ITEM_OPEN] || (local && job->count[ITEM_MISSING]);
}

uint32_t mfl_round_size(const struct core_job *job)
{
        uint64_t ranks = mfl_round_team_ranks(job);
        if (!mfl_round_waits(job))
                return (uint32_t)MFL_MIN(job->count[ITEM_OPEN] * ranks, (uint64_t)UINT32_MAX);
        /* Superfluous daemons are given back at once: nobody knows yet how many shards there are, or who joins whom. */
        if (job->phase == PHASE_EVAL_WAIT || ranks > 1)
                return UINT32_MAX;
        if (mfl_job_is_live(job->spec))
                return mfl_job_concurrency(job->spec);
        return mfl_job_cohort_size(job->spec, job->spec->data.clients);
}

static int compare_daemons(const void *a, const void *b)
{
        const struct core_daemon *const *x = a, *const *y = b;
        return strcmp((*x)->info.name, (*y)->info.name);
}

static uint32_t fails_of(const struct core_daemon *daemon, const struct core_job *job)
{
        const struct core_relation *relation = mfl_core_relation_find(daemon, job);
        return relation ? relation->fails : 0;
}

/* A daemon is one participant of a secure sum, with one update. */
static bool has_part(const struct core_job *job, const struct core_daemon *daemon)
{
        for (const struct core_task *task = daemon->tasks; task && job->spec->secure.bits;
                task = task->daemon_next)
                if (task->job == job && task->kind == MFL_TASK_TRAIN)
                        return true;
        return false;
}

/* Lists the daemons that get open items: the usable ones, without those that have just failed if there are
 * others, or with them (`failed`). They are in the order of names, so that the same daemons get the same clients after a restart. */
static uint32_t list_workers(const struct core_job *job, bool failed, struct core_daemon **v)
{
        uint32_t n = 0, n_good = 0;
        for (uint32_t i = 0; i < job->n_leased; i++) {
                struct core_daemon *daemon = job->leased[i];
                if (!mfl_core_daemon_usable(daemon, job) || mfl_round_team_assists(daemon))
                        continue;
                if (has_part(job, daemon))
                        continue;
                v[n++] = daemon;
                if (fails_of(daemon, job))
                        continue;
                v[n - 1] = v[n_good];
                v[n_good++] = daemon;
        }
        n = n_good && !failed ? n_good : n;
        if (n > 1)
                qsort(v, n, sizeof(struct core_daemon *), compare_daemons);
        return n;
}

/* Items that were asked back go to idle daemons, if any is left. */
static uint32_t keep_idle(const struct mfl_core *core, struct core_daemon **v, uint32_t n)
{
        uint32_t n_idle = 0;
        for (uint32_t i = 0; i < n; i++)
                if (!mfl_round_load(core, v[i]))
                        v[n_idle++] = v[i];
        return n_idle ? n_idle : n;
}

/* Those that start from one version follow each other, the oldest version first; so do those of one region. */
static uint32_t list_open(const struct core_job *job, uint32_t *v)
{
        uint32_t n = 0, n_bases = job->calendar ? job->staleness + 1 : mfl_job_bases(job->spec);
        for (uint32_t b = job->base ? n_bases : 0; b-- > 0;)
                for (uint32_t i = 0; i < job->n_items; i++)
                        if (job->items[i].state == ITEM_OPEN &&
                                (job->calendar ? mfl_core_item_staleness(job, i) : job->base[i]) == b)
                                v[n++] = i;
        if (job->base)
                return n;
        for (uint32_t i = 0; i < job->n_items; i++)
                if (job->items[i].state == ITEM_OPEN)
                        v[n++] = i;
        return n;
}

/* The result of an evaluation is one message with a few numbers for each item. */
#define EVALUATED_MAX 16384u
#define TALLIED_MAX 65536u

static uint32_t items_of_task(const struct core_job *job)
{
        if (job->phase != PHASE_EVAL)
                return MFL_ITEMS_MAX;
        return MFL_MAX(1u, MFL_MIN(EVALUATED_MAX, TALLIED_MAX / MFL_MAX(1u, job->n_tally)));
}

static void give(struct mfl_core *core, struct core_job *job, struct core_daemon *daemon, const uint32_t *v,
        uint32_t n)
{
        uint32_t most = items_of_task(job);
        for (uint32_t i = 0, taken; i < n; i += taken) {
                taken = job->base ? 1 : MFL_MIN(n - i, most);
                while (job->base && !mfl_job_is_live(job->spec) && taken < MFL_MIN(n - i, most) &&
                        job->base[v[i + taken]] == job->base[v[i]])
                        taken++;
                mfl_core_task_give(core, job, daemon, v + i, taken);
        }
}

/* Deals contiguous pieces, so large that all daemons should end at the same time. */
static void deal_by_speed(struct mfl_core *core, struct core_job *job, struct core_daemon **v, uint32_t n,
        const uint32_t *open, uint32_t n_open)
{
        bool begins = n_open == job->n_items;
        struct mfl_share *shares = mfl_malloc(n * sizeof *shares);
        if (!shares || mfl_round_costs(core, job, v, n, begins, shares)) {
                core->error = -ENOMEM;
                free(shares);
                return;
        }
        for (uint32_t i = 0; i < n; i++)
                shares[i].load = mfl_round_load(core, v[i]);
        mfl_round_share(shares, n, n_open);
        if (begins)
                mfl_round_age(job, v, n, shares);
        for (uint32_t i = 0, from = 0; i < n; from += shares[i++].n)
                give(core, job, v[i], open + from, shares[i].n);
        free(shares);
}

/* The daemon of an item is its number modulo the number of daemons. */
static void deal_by_modulo(struct mfl_core *core, struct core_job *job, struct core_daemon **v, uint32_t n,
        const uint32_t *open, uint32_t n_open)
{
        uint32_t *end = mfl_calloc(n, sizeof *end), *order = mfl_malloc(n_open * sizeof *order);
        if (!end || !order) {
                core->error = -ENOMEM;
                goto out;
        }
        for (uint32_t i = 0; i < n_open; i++)
                end[job->items[open[i]].item % n]++;
        for (uint32_t k = 1; k < n; k++)
                end[k] += end[k - 1];
        for (uint32_t i = n_open; i-- > 0;) /* backwards, so that end[k] becomes the beginning of k */
                order[--end[job->items[open[i]].item % n]] = open[i];
        for (uint32_t k = 0; k < n; k++) {
                uint32_t to = k + 1 < n ? end[k + 1] : n_open;
                give(core, job, v[k], order + end[k], to - end[k]);
        }
out:
        free(end);
        free(order);
}

bool mfl_round_trains_alone(const struct core_daemon *daemon, const struct core_job *job)
{
        return job->phase == PHASE_EVAL ||
               (mfl_core_daemon_team_least(daemon, job) < 2 &&
                       mfl_round_team_width(daemon, job) >= job->spec->parallel.members_min);
}

/* Without those that can only work in teams. */
static uint32_t drop_weak(const struct core_job *job, struct core_daemon **v, uint32_t n)
{
        uint32_t n_left = 0;
        for (uint32_t i = 0; i < n; i++)
                if (mfl_round_trains_alone(v[i], job))
                        v[n_left++] = v[i];
        return n_left;
}

/* Contiguous pieces of equal length: each daemon is a participant. */
static void deal_evenly(struct mfl_core *core, struct core_job *job, struct core_daemon **v, uint32_t n,
        const uint32_t *open, uint32_t n_open)
{
        for (uint32_t i = 0; i < n; i++) {
                uint32_t from = (uint32_t)((uint64_t)n_open * i / n),
                         to = (uint32_t)((uint64_t)n_open * (i + 1) / n);
                give(core, job, v[i], open + from, to - from);
        }
}

/* False: none of them can work alone, nor in a team of them. */
static bool deal_among(struct mfl_core *core, struct core_job *job, struct core_daemon **v, uint32_t n,
        const uint32_t *open, uint32_t n_open)
{
        if (mfl_round_team_deal(core, job, v, n, open, n_open))
                return true;
        n = drop_weak(job, v, n);
        if (!n)
                return false;
        if (job->phase == PHASE_TRAIN && job->spec->secure.bits)
                deal_evenly(core, job, v, n, open, n_open);
        else if (job->spec->selection.assign == MFL_ASSIGN_MODULO)
                deal_by_modulo(core, job, v, n, open, n_open);
        else
                deal_by_speed(core, job, v, n, open, n_open);
        return true;
}

static void deal_population(
        struct mfl_core *core, struct core_job *job, const uint32_t *open, uint32_t n_open)
{
        bool moving = job->moving, dealt = !n_open;
        struct core_daemon **v = mfl_malloc(job->n_leased * sizeof(struct core_daemon *));
        if (!v) {
                core->error = -ENOMEM;
                return;
        }
        job->moving = false;
        /* Those that have failed try again where the others can't do without them. */
        for (int failed = 0; failed < 2 && !dealt && !core->error; failed++) {
                uint32_t n = list_workers(job, failed, v);
                if (moving)
                        n = keep_idle(core, v, n);
                dealt = deal_among(core, job, v, n, open, n_open);
        }
        free(v);
}

/* The site's other daemons that have nothing to do help. */
static bool deal_site(struct mfl_core *core, struct core_job *job, struct core_daemon *home, uint32_t item)
{
        struct core_daemon *v[MFL_GROUP_MAX] = {home};
        uint32_t n = 1;
        for (struct core_daemon *d = mfl_core_site_first(core, home->client); d && n < MFL_GROUP_MAX;
                d = d->site_next)
                if (d != home && mfl_core_daemon_usable(d, job) &&
                        (d->job ? d->job == job : d->reserved != core->pass))
                        v[n++] = d;
        return mfl_round_team_deal(core, job, v, n, &item, 1);
}

/* The site's daemon that trains without others: home, or one with nothing to do, for which home makes room. NULL: there is none. */
static struct core_daemon *find_able(struct mfl_core *core, struct core_job *job, struct core_daemon *home)
{
        if (mfl_round_trains_alone(home, job))
                return home;
        for (struct core_daemon *d = mfl_core_site_first(core, home->client); d; d = d->site_next) {
                if (!mfl_core_daemon_usable(d, job) || !mfl_round_trains_alone(d, job) ||
                        (d->job ? d->job != job : d->reserved == core->pass))
                        continue;
                if (!home->tasks)
                        mfl_core_unlease(core, home);
                if (!d->job)
                        mfl_core_lease(core, d, job);
                return d;
        }
        return NULL;
}

/* A `local` item is a site's own data, which only its daemons have. One that was missing may be back. */
static void deal_local(struct mfl_core *core, struct core_job *job)
{
        for (uint32_t i = 0; i < job->n_items; i++) {
                enum item_state state = job->items[i].state;
                if (state != ITEM_OPEN && state != ITEM_MISSING)
                        continue;
                struct core_daemon *home = mfl_core_site_worker(core, job, job->items[i].item);
                bool usable = home || mfl_core_site_usable(core, job, job->items[i].item);
                bool waits = mfl_core_site_waits(core, job->items[i].item);
                if (home && !home->job)
                        mfl_core_lease(core, home, job);
                if (home) {
                        if (state == ITEM_MISSING)
                                mfl_core_item_set(job, i, ITEM_OPEN, NULL);
                        if (deal_site(core, job, home, i) || core->error)
                                continue;
                        home = find_able(core, job, home);
                        if (home && !core->error)
                                mfl_core_task_give(core, job, home, &i, 1);
                } else if (!usable && !waits && state == ITEM_OPEN) {
                        mfl_core_item_set(job, i, ITEM_MISSING, NULL);
                        mfl_core_dirty(core, job);
                }
        }
}

/* What a daemon works on already stays its own. */
static void deal_standing(struct mfl_core *core, struct core_job *job)
{
        for (uint32_t i = 0; job->phase == PHASE_TRAIN && i < job->n_items; i++) {
                struct core_daemon *owner =
                        job->items[i].state == ITEM_OPEN ? mfl_live_owner(core, job, i) : NULL;
                if (owner)
                        mfl_core_task_give(core, job, owner, &i, 1);
        }
}

static void deal(struct mfl_core *core, struct core_job *job)
{
        if (job->n_standing)
                deal_standing(core, job);
        if (job->spec->data.partition == MFL_PARTITION_LOCAL) {
                deal_local(core, job);
                return;
        }
        uint32_t *open = mfl_malloc(job->n_items * sizeof *open);
        if (!open) {
                core->error = -ENOMEM;
                return;
        }
        deal_population(core, job, open, list_open(job, open));
        free(open);
}

/* The tasks before `old` are new, the newest first. They are sent only now, because groups depend on all
 * of them. */
static void send_new(struct mfl_core *core, struct core_job *job, const struct core_task *old)
{
        uint32_t n = 0;
        for (struct core_task *task = job->tasks; task != old; task = task->job_next)
                n++;
        if (!n)
                return;
        struct core_task **v = mfl_malloc(n * sizeof(struct core_task *));
        if (!v) {
                core->error = -ENOMEM;
                return;
        }
        uint32_t i = n;
        for (struct core_task *task = job->tasks; task != old; task = task->job_next)
                v[--i] = task;
        mfl_core_groups_form(core, job, v, n);
        for (i = 0; i < n && !core->error; i++)
                mfl_core_task_send(core, v[i]);
        free(v);
}

void mfl_round_deal(struct mfl_core *core, struct core_job *job)
{
        if (core->error)
                return;
        if (job->secure) /* its participants are settled */
                return;
        const struct core_task *old = job->tasks;
        bool moving = job->moving;
        deal(core, job);
        for (struct core_task *task = job->tasks; moving && task != old; task = task->job_next)
                if (mfl_round_cost(core, task->daemon, job) > 0)
                        task->unmeasured = true; /* small pieces look slow, and a better measurement exists */
        if (!core->error)
                send_new(core, job, old);
        if (job->n_standing)
                mfl_live_settle(core, job);
}
