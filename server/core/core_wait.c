/* SPDX-License-Identifier: Apache-2.0 */
/* Why a running job makes no progress. */
#include "server/core/core_wait.h"

#include "server/round/round_deal.h"
#include "server/round/round_team.h"
#include "server/work/core_data.h"

#define TOLD_MS 3000 /* a job that waits longer between its phases tells what for */

/* The first by name of the usable daemons that work for another job, and the number of these. */
static const struct core_daemon *busy_for(
        const struct mfl_core *core, const struct core_job *job, uint32_t *ret_n, uint32_t *ret_usable)
{
        const struct core_daemon *first = NULL;
        *ret_n = *ret_usable = 0;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                if (!mfl_core_daemon_usable(daemon, job))
                        continue;
                ++*ret_usable;
                if (!daemon->job || daemon->job == job ||
                        (mfl_core_job_is_local(job) && mfl_core_site_worker(core, job, daemon->client)))
                        continue;
                ++*ret_n;
                if (!first || strcmp(daemon->info.name, first->info.name) < 0)
                        first = daemon;
        }
        return first;
}

/* What is there for a team of parallel.members.min workers. */
struct there {
        uint32_t n_workers, n_alone; /* alone: of daemons that join no team */
        /* The first by name: of all, with other last bits than that, in no team by its configuration or its age, without a port for
         * other nodes, resting, and that has reported that it can't do the job. */
        const struct core_daemon *first, *other, *alone, *silent, *resting, *barred;
};

static void keep_first(const struct core_daemon **first, const struct core_daemon *daemon)
{
        if (!*first || strcmp(daemon->info.name, (*first)->info.name) < 0)
                *first = daemon;
}

static struct there look_for_team(const struct mfl_core *core, const struct core_job *job)
{
        struct there there = {0};
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                if (daemon->conn && mfl_core_daemon_takes_work(daemon) && mfl_core_daemon_rests(daemon, job))
                        keep_first(&there.resting, daemon);
                if (daemon->conn && mfl_core_daemon_takes_work(daemon) && mfl_core_daemon_barred(daemon, job))
                        keep_first(&there.barred, daemon);
                if (!mfl_core_daemon_usable(daemon, job))
                        continue;
                there.n_workers += mfl_round_team_width(daemon, job);
                keep_first(&there.first, daemon);
                if (mfl_round_team_alone(daemon)) {
                        there.n_alone += mfl_round_team_width(daemon, job);
                        keep_first(&there.alone, daemon);
                } else if (!daemon->info.peer[0])
                        keep_first(&there.silent, daemon);
        }
        for (uint32_t i = 0; i < core->n_daemons; i++)
                if (mfl_core_daemon_usable(core->daemons[i], job) &&
                        strcmp(core->daemons[i]->info.numerics, there.first->info.numerics))
                        keep_first(&there.other, core->daemons[i]);
        return there;
}

/* From the word on in which they differ. */
static void tell_numerics(const struct core_daemon *a, const struct core_daemon *b, char *text, size_t bytes)
{
        const char *x = a->info.numerics, *y = b->info.numerics;
        size_t same = 0;
        while (x[same] == y[same])
                same++;
        while (same && x[same - 1] != ' ')
                same--;
        mfl_snprintf(text, bytes, "; these compute with other last bits: %.20s (%.36s) and %.20s (%.36s)",
                a->info.name, *x ? x + same : "unknown", b->info.name, *y ? y + same : "unknown");
}

/* Why the usable daemons are no team of parallel.members.min workers. */
static void tell_team(
        const struct mfl_core *core, const struct core_job *job, char ret_text[MFL_REASON_BYTES])
{
        uint32_t least = job->spec->parallel.members_min;
        const struct there there = look_for_team(core, job);
        size_t n = (size_t)mfl_snprintf(ret_text, MFL_REASON_BYTES,
                "waits for daemons that reach each other and have %u workers together (parallel.members.min)",
                least);
        char *text = ret_text + n;
        size_t bytes = MFL_REASON_BYTES - n;
        if (there.resting)
                mfl_snprintf(text, bytes, "; %.20s rests for some seconds; %.100s", there.resting->info.name,
                        there.resting->note);
        else if (there.n_workers < least && there.barred)
                mfl_snprintf(text, bytes, "; those that can do it have %u; %.20s: %.150s", there.n_workers,
                        there.barred->info.name, there.barred->note);
        else if (there.n_workers < least)
                mfl_snprintf(text, bytes, "; all have %u", there.n_workers);
        else if (there.n_workers - there.n_alone < least)
                mfl_snprintf(text, bytes, "; daemon %.40s joins no team (team: off, or an older release)",
                        there.alone->info.name);
        else if (there.other)
                tell_numerics(there.first, there.other, text, bytes);
        else if (job->spec->parallel.within == MFL_WITHIN_ANY && there.silent)
                mfl_snprintf(text, bytes,
                        "; daemon %.40s has no peer_listen in client.yaml, so other nodes can't reach it",
                        there.silent->info.name);
        else
                mfl_snprintf(text, bytes, "; no node has them (within: any joins nodes)");
}

static void tell_turn(
        const struct mfl_core *core, const struct core_job *job, char ret_text[MFL_REASON_BYTES])
{
        uint32_t n, n_usable;
        const struct core_daemon *busy = busy_for(core, job, &n, &n_usable);
        bool all = job->spec->data.partition == MFL_PARTITION_LOCAL;
        if (!n_usable)
                mfl_core_data_lack(core, job, ret_text);
        else if (!busy && job->phase != PHASE_EVAL && job->spec->parallel.members_min > 1)
                tell_team(core, job, ret_text);
        else if (!busy)
                mfl_snprintf(ret_text, MFL_REASON_BYTES,
                        "waits for its turn: the free daemons are kept for a job that has waited longer");
        else if (n == 1)
                mfl_snprintf(ret_text, MFL_REASON_BYTES, "waits for %s%s, which works for %s",
                        all ? "daemon " : "its turn: daemon ", busy->info.name, busy->job->id);
        else
                mfl_snprintf(ret_text, MFL_REASON_BYTES,
                        "waits for %s%u daemons that work for other jobs, among them %s for %s",
                        all ? "" : "its turn: ", n, busy->info.name, busy->job->id);
}

/* For a phase under way that no daemon works on. */
static void tell_missing(
        const struct mfl_core *core, const struct core_job *job, char ret_text[MFL_REASON_BYTES])
{
        const struct core_daemon *lost = NULL;
        uint32_t n, n_usable;
        for (const struct core_task *task = job->tasks; task; task = task->job_next) {
                if (mfl_core_task_live(task) && task->daemon->conn)
                        return;
                if (mfl_core_task_live(task))
                        lost = task->daemon;
        }
        busy_for(core, job, &n, &n_usable);
        if (lost && n_usable)
                mfl_snprintf(ret_text, MFL_REASON_BYTES, "waits for daemon %s, whose connection is lost",
                        lost->info.name);
        else if (lost || job->count[ITEM_OPEN])
                tell_turn(core, job, ret_text);
}

void mfl_core_wait_reason(
        const struct mfl_core *core, const struct core_job *job, char ret_text[MFL_REASON_BYTES])
{
        bool works = job->phase == PHASE_TRAIN || job->phase == PHASE_EVAL;
        ret_text[0] = '\0';
        if (works)
                tell_missing(core, job, ret_text);
        else if (mfl_round_waits(job) && job->wait_ms && core->now_ms - job->wait_ms >= TOLD_MS)
                tell_turn(core, job, ret_text);
}
