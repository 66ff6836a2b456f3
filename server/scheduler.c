/* SPDX-License-Identifier: Apache-2.0 */
/* Which job gets which daemons. */
#include "server/scheduler.h"

#include "proto/version.h"
#include "server/round.h"

/* One pass: the jobs that want daemons, the longest waiting first, and the daemons that are free. */
struct pass {
        struct core_job **jobs;
        struct core_daemon **idle;
        uint32_t n_jobs, n_idle;
};

static bool is_local(const struct core_job *job)
{
        return job->spec->data.partition == MFL_PARTITION_LOCAL;
}

static int compare_claims(const void *a, const void *b)
{
        const struct core_job *x = *(struct core_job *const *)a, *y = *(struct core_job *const *)b;
        if (x->served != y->served)
                return x->served < y->served ? -1 : 1;
        return (x->serial > y->serial) - (x->serial < y->serial);
}

static void deinit_pass(struct pass *pass)
{
        free(pass->jobs);
        free(pass->idle);
}

static int init_pass(struct mfl_core *core, struct pass *pass)
{
        uint32_t n = 0;
        for (struct core_job *job = core->jobs; job; job = job->next)
                n += mfl_round_wants(core, job);
        if (!n)
                return 0;
        pass->jobs = mfl_malloc(n * sizeof(struct core_job *));
        pass->idle = mfl_malloc(core->n_daemons * sizeof(struct core_daemon *));
        if (!pass->jobs || !pass->idle)
                return -ENOMEM;
        for (struct core_job *job = core->jobs; job; job = job->next)
                if (mfl_round_wants(core, job))
                        pass->jobs[pass->n_jobs++] = job;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                struct core_daemon *daemon = core->daemons[i];
                if (daemon->conn && !daemon->job && mfl_core_daemon_takes_work(daemon))
                        pass->idle[pass->n_idle++] = daemon;
        }
        qsort(pass->jobs, pass->n_jobs, sizeof(struct core_job *), compare_claims);
        core->pass++;
        return 0;
}

static bool is_free_for(
        const struct mfl_core *core, const struct core_daemon *daemon, const struct core_job *job)
{
        return !daemon->job && daemon->reserved != core->pass && mfl_core_daemon_usable(daemon, job);
}

static uint32_t count_free(const struct mfl_core *core, const struct pass *pass, const struct core_job *job)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < pass->n_idle; i++)
                n += is_free_for(core, pass->idle[i], job);
        return n;
}

/* usable: up and willing, busy or not. hopeless: there are daemons with the data set, and each has said that
 * it can't do this job. */
static void count_all(
        const struct mfl_core *core, const struct core_job *job, uint32_t *ret_usable, bool *ret_hopeless)
{
        uint32_t usable = 0, known = 0, barred = 0;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                usable += mfl_core_daemon_usable(daemon, job);
                known += mfl_core_daemon_data(daemon, job) != NULL;
                barred += mfl_core_daemon_barred(daemon, job);
        }
        *ret_usable = usable;
        *ret_hopeless = known > 0 && barred >= known;
}

/* Leases up to n of the free ones, or reserves them. */
static void take(struct mfl_core *core, struct pass *pass, struct core_job *job, uint32_t n, bool reserve)
{
        for (uint32_t i = 0; i < pass->n_idle && n; i++) {
                struct core_daemon *daemon = pass->idle[i];
                if (!is_free_for(core, daemon, job))
                        continue;
                if (reserve)
                        daemon->reserved = core->pass;
                else
                        mfl_core_lease(core, daemon, job);
                n--;
        }
}

/* Daemons that would do but for their age: how many, and one of them. Each is told of once, in the job's log
 * and in the list of daemons. */
static uint32_t tell_outdated(struct mfl_core *core, const struct core_job *job, const char **ret_name)
{
        uint32_t n = 0;
        *ret_name = "";
        for (uint32_t i = 0; job->n_frozen && i < core->n_daemons; i++) {
                struct core_daemon *daemon = core->daemons[i];
                if (!daemon->conn || !mfl_core_daemon_outdated(daemon, job))
                        continue;
                n++;
                *ret_name = daemon->info.name;
                struct core_relation *relation = mfl_core_relation(core, daemon, job);
                if (!relation || relation->outdated)
                        continue;
                relation->outdated = true;
                mfl_snprintf(daemon->note, sizeof daemon->note,
                        "%s: it has frozen params, which protocol %u does not know: upgrade this daemon",
                        job->id, daemon->info.protocol);
                mfl_core_trace(core, job,
                        "daemon %s gets nothing of this job: it speaks protocol %u, and frozen params need "
                        "%d; upgrade it",
                        daemon->info.name, daemon->info.protocol, MFL_PROTOCOL_FROZEN);
        }
        return n;
}

static void tell_wait(struct mfl_core *core, struct core_job *job, uint32_t usable, uint32_t need)
{
        const char *name;
        uint32_t n = usable < need ? tell_outdated(core, job, &name) : 0;
        if (n)
                mfl_round_reason(core, job, MFL_JOB_WAITING,
                        "waits for daemons: %u of %u are connected; %u more (%s) can't be used: frozen "
                        "params need "
                        "protocol %d, upgrade %s",
                        usable, need, n, name, MFL_PROTOCOL_FROZEN, n == 1 ? "it" : "them");
        else if (!usable)
                mfl_round_reason(core, job, MFL_JOB_WAITING, "no daemon with data set %s is connected",
                        job->spec->data.name);
        else if (usable < need)
                mfl_round_reason(core, job, MFL_JOB_WAITING, "waits for daemons: %u of %u are connected",
                        usable, need);
        else if (job->state != MFL_JOB_RUNNING)
                mfl_round_reason(core, job, MFL_JOB_WAITING, "waits for its turn");
}

/* What a job needs to begin. False: it waits (its free daemons are kept for it when the others are only
 * busy). */
static bool take_need(struct mfl_core *core, struct pass *pass, struct core_job *job)
{
        bool hopeless;
        const char *name;
        tell_outdated(core, job, &name);
        uint32_t need = job->phase == PHASE_TRAIN_WAIT ? MFL_MAX(job->spec->selection.daemons_min, 1u) : 1;
        if (core->by_conn.n < need) { /* while thousands connect, nobody is counted again and again */
                tell_wait(core, job, core->by_conn.n, need);
                return false;
        }
        uint32_t usable, idle = count_free(core, pass, job);
        count_all(core, job, &usable, &hopeless);
        if (hopeless) {
                mfl_round_hopeless(core, job);
                return false;
        }
        uint32_t all = is_local(job) ? usable : need;
        if (usable < need || idle < all) {
                tell_wait(core, job, usable, need);
                if (usable >= need)
                        take(core, pass, job, all, true);
                return false;
        }
        take(core, pass, job, all, false);
        return true;
}

static bool has_usable(const struct core_job *job)
{
        for (uint32_t i = 0; i < job->n_leased; i++)
                if (mfl_core_daemon_usable(job->leased[i], job))
                        return true;
        return false;
}

/* A phase under way that lost daemons: one is enough to go on, if it has none. */
static void take_extra(struct mfl_core *core, struct pass *pass, struct core_job *job)
{
        if (!is_local(job) && !has_usable(job))
                take(core, pass, job, 1, false);
}

static uint32_t most(const struct core_job *job)
{
        uint32_t most = mfl_round_size(job), limit = job->spec->selection.daemons_max;
        if (is_local(job))
                return 0; /* has all of its own already */
        return limit ? MFL_MIN(most, limit) : most;
}

/* One daemon after another to the jobs in turn, each up to its most. */
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
                        mfl_core_lease(core, daemon, job);
                        turn = j + 1;
                        break;
                }
        }
}

/* Daemons that got nothing of a phase that begins are free for others. */
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
        if (core->error)
                return;
        mfl_round_deal(core, job);
        if (begins)
                give_back_idle(core, job);
}

void mfl_scheduler_run(struct mfl_core *core)
{
        struct pass pass = {0};
        bool *active = NULL;
        if (init_pass(core, &pass) || (pass.n_jobs && !(active = mfl_calloc(pass.n_jobs, sizeof *active)))) {
                core->error = -ENOMEM;
                goto out;
        }
        for (uint32_t i = 0; i < pass.n_jobs; i++) { /* who holds daemons must be able to end */
                active[i] = !mfl_round_waits(pass.jobs[i]);
                if (active[i])
                        take_extra(core, &pass, pass.jobs[i]);
        }
        for (uint32_t i = 0; i < pass.n_jobs; i++)
                if (!active[i])
                        active[i] = take_need(core, &pass, pass.jobs[i]);
        share_rest(core, &pass, active);
        for (uint32_t i = 0; i < pass.n_jobs; i++)
                if (active[i])
                        set_off(core, pass.jobs[i]);
out:
        free(active);
        deinit_pass(&pass);
}
