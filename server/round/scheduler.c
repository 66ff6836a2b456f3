/* SPDX-License-Identifier: Apache-2.0 */
/* Which job gets which daemons. */
#include "server/round/scheduler.h"

#include "server/round/round_deal.h"
#include "server/round/round_job.h"
#include "server/round/round_left.h"
#include "server/round/round_move.h"
#include "server/round/round_phase.h"
#include "server/round/round_team.h"
#include "server/work/core_data.h"

/* Estimates change with time: while they decide anything, the scheduler looks again after this time. */
#define AGAIN_MS 200

/* One pass: the jobs that want daemons, those that have waited longest first, and the idle daemons. */
struct pass {
        struct core_job **jobs;
        struct core_daemon **idle;
        uint32_t n_jobs, n_idle;
};

/* Jobs that hold daemons come first; jobs that begin to wait with this pass come last. */
static uint64_t waits_since(const struct core_job *job)
{
        return !mfl_round_waits(job) ? 0 : job->wait_turn ? job->wait_turn : CORE_NEVER;
}

static int compare_claims(const void *a, const void *b)
{
        const struct core_job *x = *(struct core_job *const *)a, *y = *(struct core_job *const *)b;
        uint64_t at_x = waits_since(x), at_y = waits_since(y);
        if (at_x != at_y)
                return at_x < at_y ? -1 : 1;
        if (x->served != y->served)
                return x->served < y->served ? -1 : 1;
        return (x->serial > y->serial) - (x->serial < y->serial);
}

static void deinit_pass(struct pass *pass)
{
        free(pass->jobs);
        free(pass->idle);
}

static bool has_live_task(const struct core_daemon *daemon)
{
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (mfl_core_task_live(task))
                        return true;
        return false;
}

/* It has done its part of a phase, others still work on theirs, and nothing is left to take over. */
static bool is_done(const struct core_daemon *daemon)
{
        const struct core_job *job = daemon->job;
        if (!job || (job->phase != PHASE_TRAIN && job->phase != PHASE_EVAL) || job->count[ITEM_OPEN] ||
                job->asks)
                return false;
        return !has_live_task(daemon);
}

/* Computes once what a pass needs again and again. */
static uint32_t look_at_jobs(struct mfl_core *core)
{
        uint32_t n = 0;
        for (struct core_job *job = core->jobs; job; job = job->next) {
                n += mfl_round_wants(job) || mfl_round_moves(job);
                job->asks = mfl_round_moving(core, job);
                job->left_ms = mfl_round_left(core, job);
        }
        return n;
}

static int init_pass(struct mfl_core *core, struct pass *pass)
{
        uint32_t n = look_at_jobs(core);
        if (!n)
                return 0;
        pass->jobs = mfl_malloc(n * sizeof(struct core_job *));
        pass->idle = mfl_malloc(core->n_daemons * sizeof(struct core_daemon *));
        if (!pass->jobs || !pass->idle)
                return -ENOMEM;
        for (struct core_job *job = core->jobs; job; job = job->next)
                if (mfl_round_wants(job))
                        pass->jobs[pass->n_jobs++] = job;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                struct core_daemon *daemon = core->daemons[i];
                if (daemon->conn && mfl_core_daemon_takes_work(daemon) && (!daemon->job || is_done(daemon)))
                        pass->idle[pass->n_idle++] = daemon;
        }
        qsort(pass->jobs, pass->n_jobs, sizeof(struct core_job *), compare_claims);
        for (uint32_t i = 0; i < pass->n_jobs; i++)
                if (waits_since(pass->jobs[i]) == CORE_NEVER)
                        pass->jobs[i]->wait_turn = ++core->turn;
        core->pass++;
        return 0;
}

/* How long the job would keep a daemon that it gets now. */
static uint64_t expected(const struct core_job *job)
{
        uint64_t ms = mfl_round_expected(job);
        return mfl_round_waits(job) ? ms : MFL_MIN(ms, job->left_ms);
}

static bool is_free_for(
        const struct mfl_core *core, const struct core_daemon *daemon, const struct core_job *job)
{
        const struct core_job *holder = daemon->job;
        if (holder == job || !mfl_core_daemon_usable(daemon, job))
                return false;
        if (holder &&
                (!is_done(daemon) || (job->wait_turn > holder->served && expected(job) > holder->left_ms)))
                return false;
        return daemon->reserved != core->pass || expected(job) <= daemon->spare_ms;
}

/* A `local` job needs one daemon of each site: the first that is free stands for it. */
static bool stands_in(
        const struct mfl_core *core, const struct core_daemon *daemon, const struct core_job *job)
{
        if (!mfl_core_job_is_local(job))
                return is_free_for(core, daemon, job);
        if (!is_free_for(core, daemon, job) || mfl_core_site_leased(core, job, daemon->client))
                return false;
        for (const struct core_daemon *d = mfl_core_site_first(core, daemon->client); d != daemon;
                d = d->site_next)
                if (is_free_for(core, d, job))
                        return false;
        return true;
}

static uint32_t count_free(const struct mfl_core *core, const struct pass *pass, const struct core_job *job)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < pass->n_idle; i++)
                n += stands_in(core, pass->idle[i], job);
        return n;
}

/* usable: daemons, or sites of a `local` job, that could work for the job, busy or not. hopeless: there are daemons with the data set,
 * and each has reported that it can't do this job. */
static void count_all(
        const struct mfl_core *core, const struct core_job *job, uint32_t *ret_usable, bool *ret_hopeless)
{
        uint32_t usable = 0, known = 0, barred = 0;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                usable += mfl_core_daemon_usable(daemon, job) &&
                          !(mfl_core_job_is_local(job) && mfl_core_site_counted(core, job, daemon));
                if (!mfl_core_daemon_data(daemon, job))
                        continue; /* it may have reported that before it came back without the data set */
                known++;
                barred += mfl_core_daemon_barred(daemon, job);
        }
        *ret_usable = usable;
        *ret_hopeless = known > 0 && barred >= known;
}

static void lease(struct mfl_core *core, struct core_daemon *daemon, struct core_job *job)
{
        mfl_core_unlease(core, daemon); /* from a job that it has done its part for */
        mfl_core_lease(core, daemon, job);
}

/* Leases up to n of the free ones. */
static void take(struct mfl_core *core, struct pass *pass, struct core_job *job, uint32_t n)
{
        for (uint32_t i = 0; i < pass->n_idle && n; i++) {
                struct core_daemon *daemon = pass->idle[i];
                if (!stands_in(core, daemon, job))
                        continue;
                lease(core, daemon, job);
                n--;
        }
}

/* How long the job has to wait for daemons that were leased before its claim; 0: it does not. */
static uint64_t gap_ms(const struct mfl_core *core, const struct core_job *job)
{
        uint64_t gap = 0;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                if (daemon->job && daemon->job != job && daemon->lease_turn <= job->claim &&
                        mfl_core_daemon_usable(daemon, job) && !is_done(daemon))
                        gap = MFL_MAX(gap, daemon->job->left_ms);
        }
        return gap;
}

/* Keeps n free daemons for the job. */
static void reserve(struct mfl_core *core, struct pass *pass, struct core_job *job, uint32_t n)
{
        if (!job->claim)
                job->claim = core->lease_turn;
        uint64_t gap = gap_ms(core, job);
        for (uint32_t i = 0; i < pass->n_idle && n; i++) {
                struct core_daemon *daemon = pass->idle[i];
                if (!stands_in(core, daemon, job))
                        continue;
                bool older = daemon->reserved == core->pass;
                daemon->spare_ms = older ? MFL_MIN(daemon->spare_ms, gap) : gap;
                daemon->reserved = core->pass;
                n--;
        }
        core->again_ms = core->now_ms + AGAIN_MS;
}

static void tell_wait(struct mfl_core *core, struct core_job *job, uint32_t usable, uint32_t need)
{
        char text[MFL_REASON_BYTES];
        if (!job->wait_ms)
                job->wait_ms = core->now_ms;
        if (!usable)
                mfl_core_data_lack(core, job, text);
        else if (usable < need)
                mfl_core_data_missing(core, job, usable, need, text);
        if (usable < need)
                mfl_round_reason(core, job, MFL_JOB_WAITING, "%s", text);
        else if (job->state != MFL_JOB_RUNNING)
                mfl_round_reason(core, job, MFL_JOB_WAITING, MFL_CORE_TURN);
}

/* Leases what the job needs to begin. False: it has to wait; if the missing daemons are only busy, the
 * free ones are reserved. */
static bool take_need(struct mfl_core *core, struct pass *pass, struct core_job *job)
{
        bool hopeless;
        uint32_t need = job->phase == PHASE_TRAIN_WAIT ? mfl_job_daemons_least(job->spec) : 1;
        /* While thousands connect, daemons are not counted again and again. */
        if (core->by_conn.n < need && (!core->by_conn.n || core->n_daemons > CORE_COUNT_MAX)) {
                tell_wait(core, job, core->by_conn.n, need);
                return false;
        }
        uint32_t usable, idle = count_free(core, pass, job);
        count_all(core, job, &usable, &hopeless);
        if (hopeless) {
                mfl_round_hopeless(core, job);
                return false;
        }
        uint32_t all = mfl_core_job_is_local(job) ? usable : need;
        if (usable >= need && idle >= all) {
                take(core, pass, job, all);
                return true;
        }
        tell_wait(core, job, usable, need);
        if (usable >= need)
                reserve(core, pass, job, all);
        else
                job->claim = 0;
        return false;
}

static uint32_t most(const struct core_job *job)
{
        uint32_t most = mfl_round_size(job), limit = job->spec->selection.daemons_max;
        if (mfl_core_job_is_local(job) || job->moving)
                return 0; /* it has all of its own daemons, or all that were to get clients */
        return limit ? MFL_MIN(most, limit) : most;
}

/* Some daemon of the job works, or could without others. */
static bool goes_on(const struct core_job *job)
{
        for (uint32_t i = 0; i < job->n_leased; i++)
                if (mfl_core_daemon_usable(job->leased[i], job) &&
                        (has_live_task(job->leased[i]) || mfl_round_trains_alone(job->leased[i], job)))
                        return true;
        return false;
}

static uint32_t limit_of(const struct core_job *job)
{
        uint32_t limit = job->spec->selection.daemons_max;
        return limit ? limit : UINT32_MAX;
}

/* Makes a team of daemons that the job has and of the first n_others of v, which has room for all of them. It gets those that it lacks,
 * and where it may not have more, others make room. False: there is no such team. */
static bool join(struct mfl_core *core, struct core_job *job, struct core_daemon **v, uint32_t n_others)
{
        struct core_daemon *team[MFL_GROUP_MAX];
        uint32_t n = n_others;
        for (uint32_t i = 0; i < job->n_leased; i++)
                if (mfl_core_daemon_usable(job->leased[i], job))
                        v[n++] = job->leased[i];
        n = mfl_round_team_find(core, job, v, n, limit_of(job), team);
        for (uint32_t k = job->n_leased; n && n_others && limit_of(job) != UINT32_MAX && k-- > 0;) {
                bool member = false;
                for (uint32_t i = 0; i < n; i++)
                        member |= team[i] == job->leased[k];
                if (!member && !has_live_task(job->leased[k]))
                        mfl_core_unlease(core, job->leased[k]);
        }
        for (uint32_t i = 0; i < n; i++)
                if (team[i]->job != job)
                        lease(core, team[i], job);
        return n > 0;
}

/* Some of its daemons can work in a team. */
static bool can_go_on(struct mfl_core *core, struct core_job *job)
{
        struct core_daemon **v = mfl_malloc(job->n_leased * sizeof(struct core_daemon *) + 1);
        bool can = v && join(core, job, v, 0);
        core->error = v ? core->error : -ENOMEM;
        free(v);
        return can;
}

static bool has_room(const struct core_job *job)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < job->n_leased; i++)
                n += mfl_core_daemon_usable(job->leased[i], job);
        return n < limit_of(job);
}

/* A free daemon that can work without others: those that can't make room for it. False: there is none. */
static bool take_able(struct mfl_core *core, struct pass *pass, struct core_job *job)
{
        uint32_t i = 0;
        while (i < pass->n_idle &&
                (!is_free_for(core, pass->idle[i], job) || !mfl_round_trains_alone(pass->idle[i], job)))
                i++;
        if (i == pass->n_idle)
                return false;
        for (uint32_t k = job->n_leased; k-- > 0 && job->n_leased_up >= most(job);)
                if (mfl_core_daemon_usable(job->leased[k], job))
                        mfl_core_unlease(core, job->leased[k]);
        lease(core, pass->idle[i], job);
        return true;
}

/* Free daemons that make a team, with each other or with those that the job has. False: there is none. */
static bool take_team(struct mfl_core *core, struct pass *pass, struct core_job *job)
{
        uint32_t n = 0;
        struct core_daemon **v =
                mfl_malloc((pass->n_idle + job->n_leased) * sizeof(struct core_daemon *) + 1);
        if (!v) {
                core->error = -ENOMEM;
                return false;
        }
        for (uint32_t i = 0; i < pass->n_idle; i++)
                if (is_free_for(core, pass->idle[i], job))
                        v[n++] = pass->idle[i];
        bool taken = join(core, job, v, n);
        free(v);
        return taken;
}

/* A phase under way that has lost all of its daemons, or has only some that can't work without others and form no team, gets what it needs
 * to go on, or one more. */
static void take_extra(struct mfl_core *core, struct pass *pass, struct core_job *job)
{
        if (mfl_core_job_is_local(job) || goes_on(job) || can_go_on(core, job))
                return;
        if (!job->moving && (take_able(core, pass, job) || take_team(core, pass, job)))
                return;
        if (has_room(job))
                take(core, pass, job, 1);
}

/* It holds daemons, and waits for more of them before any can work. */
static bool stands_still(struct mfl_core *core, struct core_job *job)
{
        return !mfl_core_job_is_local(job) && !job->moving && job->n_leased && !goes_on(job) &&
               !can_go_on(core, job);
}

/* What the others that stand still hold and the job can use. */
static uint32_t list_parts(
        struct core_job *const *still, uint32_t n_still, const struct core_job *job, struct core_daemon **v)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_still; i++)
                for (uint32_t k = 0; still[i] && still[i] != job && k < still[i]->n_leased; k++)
                        if (!has_live_task(still[i]->leased[k]) &&
                                mfl_core_daemon_usable(still[i]->leased[k], job))
                                v[n++] = still[i]->leased[k];
        return n;
}

/* Phases under way that hold parts of a team each would wait for each other for ever: the first one that they make a team for gets it. */
static void join_parts(struct mfl_core *core, struct pass *pass, const bool *active)
{
        uint32_t n = 0;
        struct core_job **still = mfl_malloc(pass->n_jobs * sizeof(struct core_job *) + 1);
        struct core_daemon **v = mfl_malloc(core->n_daemons * sizeof(struct core_daemon *) + 1);
        if (!still || !v) {
                core->error = -ENOMEM;
                goto out;
        }
        for (uint32_t i = 0; i < pass->n_jobs; i++)
                if (active[i] && stands_still(core, pass->jobs[i]))
                        still[n++] = pass->jobs[i];
        for (uint32_t i = 0; i < n; i++) {
                uint32_t n_parts = list_parts(still, n, still[i], v);
                if (n_parts && join(core, still[i], v, n_parts))
                        still[i] = NULL; /* it works, and keeps them */
        }
out:
        free(still);
        free(v);
}

/* Deals the free daemons one by one to the jobs in turn, up to each job's maximum. */
static void share_rest(struct mfl_core *core, struct pass *pass, const bool *active)
{
        uint32_t turn = 0;
        for (uint32_t i = 0; i < pass->n_idle; i++) {
                struct core_daemon *daemon = pass->idle[i];
                for (uint32_t k = 0; k < pass->n_jobs; k++) {
                        uint32_t j = (turn + k) % pass->n_jobs;
                        struct core_job *job = pass->jobs[j];
                        if (!active[j] || job->n_leased_up >= most(job) || !is_free_for(core, daemon, job))
                                continue;
                        lease(core, daemon, job);
                        turn = j + 1;
                        break;
                }
        }
}

/* Daemons that got nothing in a phase that begins are free for other jobs. */
static void give_back_idle(struct mfl_core *core, struct core_job *job)
{
        for (uint32_t i = job->n_leased; i-- > 0;)
                if (!job->leased[i]->tasks)
                        mfl_core_unlease(core, job->leased[i]);
}

static void set_off(struct mfl_core *core, struct core_job *job)
{
        bool begins = mfl_round_waits(job);
        if (begins) {
                job->served = ++core->turn;
                mfl_round_begin(core, job);
        }
        if (core->error || job->phase == PHASE_OVER)
                return;
        mfl_round_deal(core, job);
        if (begins)
                give_back_idle(core, job);
}

/* Daemons that no job wants take over clients from those with much work left. */
static void move_clients(struct mfl_core *core, struct pass *pass)
{
        for (struct core_job *job = core->jobs; job && !core->error; job = job->next) {
                uint32_t n = 0;
                if (!mfl_round_moves(job))
                        continue;
                for (uint32_t i = 0; i < pass->n_idle; i++) {
                        struct core_daemon *daemon = pass->idle[i];
                        if (daemon->job || daemon->reserved == core->pass)
                                continue;
                        pass->idle[i] = pass->idle[n];
                        pass->idle[n++] = daemon;
                }
                if (core->now_ms >= job->began_ms + AGAIN_MS / 2)
                        mfl_round_move(core, job, pass->idle, n);
                core->again_ms = core->now_ms + AGAIN_MS;
        }
}

void mfl_scheduler_run(struct mfl_core *core)
{
        struct pass pass = {0};
        bool *active = NULL;
        core->again_ms = CORE_NEVER;
        if (init_pass(core, &pass) || (pass.n_jobs && !(active = mfl_calloc(pass.n_jobs, sizeof *active)))) {
                core->error = -ENOMEM;
                goto out;
        }
        for (uint32_t i = 0; i < pass.n_jobs; i++) { /* jobs that hold daemons must be able to end */
                active[i] = !mfl_round_waits(pass.jobs[i]);
                if (active[i])
                        take_extra(core, &pass, pass.jobs[i]);
        }
        join_parts(core, &pass, active);
        for (uint32_t i = 0; i < pass.n_jobs; i++)
                if (!active[i])
                        active[i] = take_need(core, &pass, pass.jobs[i]);
        share_rest(core, &pass, active);
        for (uint32_t i = 0; i < pass.n_jobs; i++)
                if (active[i])
                        set_off(core, pass.jobs[i]);
        move_clients(core, &pass);
        if (core->again_ms != CORE_NEVER)
                mfl_core_wake(core, core->again_ms);
out:
        free(active);
        deinit_pass(&pass);
}
