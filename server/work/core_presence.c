/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons come and go. */
#include "server/work/core_presence.h"

#include "server/work/core_data.h"
#include "server/work/core_group.h"
#include "server/work/core_task.h"
#include "server/work/core_team.h"

/* Its clients go to other daemons; those of `local` jobs become `local_to`. */
static void take_tasks(struct mfl_core *core, struct core_daemon *daemon, enum item_state local_to)
{
        while (daemon->tasks) {
                struct core_task *task = daemon->tasks;
                bool local = mfl_core_job_is_local(task->job);
                mfl_core_task_take(core, task, local ? local_to : ITEM_OPEN);
        }
}

/* For some job it may have been the last daemon that had not refused the job, so the scheduler looks
 * again. */
static void remove_daemon(struct mfl_core *core, struct core_daemon *daemon)
{
        take_tasks(core, daemon, ITEM_MISSING);
        mfl_core_unlease(core, daemon);
        mfl_core_node_leave(core, daemon);
        mfl_core_site_leave(core, daemon);
        mfl_core_cuts_changed(core, daemon);
        mfl_core_daemon_remove(core, daemon);
        core->sched_dirty = true;
}

static void detach(struct mfl_core *core, struct core_daemon *daemon)
{
        mfl_core_map_remove(&core->by_conn, daemon->conn);
        core->changes++;
        daemon->conn = 0;
        mfl_core_cuts_changed(core, daemon);
        daemon->lost_ms = core->now_ms;
        daemon->n_specs = 0;
        if (daemon->job) {
                daemon->job->n_leased_up--;
                mfl_core_dirty(core, daemon->job);
        }
        for (struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                mfl_core_task_offline(core, task);
        mfl_core_group_fetcher_lost(core, daemon);
        mfl_core_comm_cut(core, daemon->info.instance);
        core->sched_dirty = true;
        mfl_core_wake(core, core->now_ms + core->options.reconnect_grace_ms);
}

void mfl_core_daemon_down(struct mfl_core *core, struct core_daemon *daemon, const char *why)
{
        mfl_core_trace(core, daemon->job, "daemon %s is lost: %s%s", daemon->info.name, why,
                daemon->tasks ? "; its work waits for it" : "");
        detach(core, daemon);
}

void mfl_core_daemon_close(
        struct mfl_core *core, struct core_daemon *daemon, bool retry, const char *fmt, ...)
{
        char reason[MFL_REASON_BYTES];
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(reason, sizeof reason, fmt, ap);
        va_end(ap);
        mfl_core_send_close(core, daemon->conn, retry, reason);
        mfl_core_daemon_down(core, daemon, reason);
}

void mfl_core_daemon_left(struct mfl_core *core, struct core_daemon *daemon, const char *reason)
{
        mfl_core_send_close(core, daemon->conn, false, "goodbye");
        mfl_core_trace(core, daemon->job, "daemon %s leaves: %.180s", daemon->info.name, reason);
        detach(core, daemon);
        if (!daemon->draining) {
                remove_daemon(core, daemon);
                return;
        }
        take_tasks(core, daemon, ITEM_MISSING);
        mfl_core_unlease(core, daemon);
}

/* Another process came under the same name. What the old one held is lost. */
static void replace_instance(
        struct mfl_core *core, struct core_daemon *daemon, const struct mfl_daemon_info *info)
{
        mfl_core_trace(core, daemon->job,
                "daemon %s is a new process; the work of the old one is dealt again", info->name);
        take_tasks(core, daemon, ITEM_OPEN);
        mfl_core_cuts_changed(core, daemon);
        daemon->n_relations = 0;
        mfl_core_team_restarted(core, daemon);
        daemon->leaving = false;
        daemon->note[0] = '\0';
        daemon->connected_ms = core->now_ms;
}

/* A daemon that comes back without the data set that it works on has given up that work. */
static void take_impossible(struct mfl_core *core, struct core_daemon *daemon)
{
        for (struct core_task *task = daemon->tasks, *next; task; task = next) {
                next = task->daemon_next;
                if (!mfl_core_daemon_data(daemon, task->job))
                        mfl_core_task_take(core, task, ITEM_OPEN);
        }
}

static void tell_jobs_of_arrival(struct mfl_core *core, struct core_daemon *daemon)
{
        core->arrival_ms = core->now_ms;
        for (struct core_job *job = core->jobs; job; job = job->next) {
                mfl_core_data_arrived(core, job, daemon);
                if (!mfl_core_daemon_data(daemon, job))
                        continue;
                job->arrival_ms = core->now_ms;
                mfl_core_dirty(core, job);
        }
        core->sched_dirty = true;
}

/* Why this process may not come in at all; NULL: it may. */
static const char *bar(
        const struct mfl_core *core, const struct core_daemon *daemon, const struct mfl_daemon_info *info)
{
        if (daemon && strcmp(daemon->info.name, info->name) != 0)
                return "another daemon's name has the same digest: choose another name";
        if (mfl_core_refused_liar(core, info))
                return "this process was sent away because it reported something impossible";
        return NULL;
}

static int attach(struct mfl_core *core, struct core_daemon *daemon, uint32_t conn,
        const struct mfl_daemon_info *info, bool drained)
{
        if (!mfl_core_node_same(daemon, info))
                mfl_core_node_leave(core, daemon);
        if (mfl_core_info_copy(&daemon->info, info) || mfl_core_node_enter(core, daemon) ||
                mfl_core_site_enter(core, daemon) || mfl_core_map_put(&core->by_conn, conn, daemon))
                return -ENOMEM;
        mfl_core_refused_forget(core, info->name);
        daemon->came = ++core->changes;
        daemon->conn = conn;
        mfl_core_cuts_changed(core, daemon);
        daemon->draining |= drained; /* before the scheduler sees it */
        daemon->heard_ms = core->now_ms;
        if (daemon->job)
                daemon->job->n_leased_up++;
        return 0;
}

static void welcome(struct mfl_core *core, struct core_daemon *daemon)
{
        struct mfl_msg *msg = mfl_core_send(core, daemon, MFL_MSG_WELCOME);
        msg->welcome.heartbeat_ms = core->options.heartbeat_ms;
        msg->welcome.dead_ms = core->options.dead_ms;
        msg->welcome.server_instance = core->options.server_instance;
        for (uint32_t i = 0; i < daemon->n_relations; i++) /* its administrator may have decided meanwhile */
                daemon->relations[i].asks = false;
        take_impossible(core, daemon);
        for (struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (mfl_core_task_live(task))
                        mfl_core_task_send_again(core, task);
        mfl_core_wake(core, core->now_ms + core->options.heartbeat_ms);
        tell_jobs_of_arrival(core, daemon);
}

bool mfl_core_daemon_up(
        struct mfl_core *core, uint32_t conn, const struct mfl_daemon_info *info, bool drained)
{
        uint64_t key = mfl_core_name_key(info->name);
        struct core_daemon *daemon = mfl_core_map_get(&core->by_key, key);
        bool known = daemon != NULL, replaced = known && daemon->info.instance != info->instance;
        const char *why = bar(core, daemon, info);
        char reason[MFL_REASON_BYTES];
        mfl_assert(conn && !mfl_core_map_get(&core->by_conn, conn));
        if (why) {
                mfl_core_send_close(core, conn, false, why);
                return true;
        }
        if (replaced && daemon->conn)
                return false;
        if (mfl_core_site_conflicts(core, info, reason)) {
                mfl_core_trace(core, NULL, "daemon %s is refused: %.200s", info->name, reason);
                mfl_core_refused_add(core, info, MFL_REFUSAL_SITE);
                mfl_core_send_close(core, conn, true, reason);
                return true;
        }
        if (!known)
                daemon = mfl_core_daemon_add(core, key);
        if (!daemon) {
                core->error = -ENOMEM;
                return true;
        }
        if (daemon->conn) {
                mfl_core_send_close(core, daemon->conn, true, "the daemon connected again");
                detach(core, daemon);
        }
        if (replaced)
                replace_instance(core, daemon, info);
        if (!known)
                daemon->connected_ms = core->now_ms;
        if (attach(core, daemon, conn, info, drained)) {
                core->error = -ENOMEM;
                return true;
        }
        mfl_core_trace(core, NULL, "daemon %s %s", info->name, known && !replaced ? "is back" : "is up");
        if (info->leaving)
                mfl_core_daemon_leaving(core, daemon, "it was asked to stop");
        welcome(core, daemon);
        return true;
}

/* ---- timers and drain ---- */

void mfl_core_daemon_timers(struct mfl_core *core, struct core_daemon *daemon, uint64_t *next_ms)
{
        const struct mfl_core_options *o = &core->options;
        if (daemon->conn && core->now_ms - daemon->heard_ms >= o->dead_ms)
                mfl_core_daemon_close(core, daemon, true, "nothing heard for %u ms", o->dead_ms);
        if (!daemon->conn) {
                uint64_t end = daemon->lost_ms + o->reconnect_grace_ms;
                if (core->now_ms < end) {
                        *next_ms = MFL_MIN(*next_ms, end);
                } else if (daemon->draining) { /* kept, so that it comes back drained */
                        take_tasks(core, daemon, ITEM_MISSING);
                        mfl_core_unlease(core, daemon);
                } else {
                        mfl_core_trace(core, daemon->job, "daemon %s did not come back within %u ms",
                                daemon->info.name, o->reconnect_grace_ms);
                        remove_daemon(core, daemon);
                }
                return;
        }
        if (core->now_ms - daemon->sent_ms >= o->heartbeat_ms)
                mfl_core_send(core, daemon, MFL_MSG_PING)->cookie = core->now_ms;
        *next_ms = MFL_MIN(*next_ms, daemon->sent_ms + o->heartbeat_ms);
        *next_ms = MFL_MIN(*next_ms, daemon->heard_ms + o->dead_ms);
}

void mfl_core_daemon_drain(struct mfl_core *core, const char *name, bool on)
{
        struct core_daemon *daemon = mfl_core_daemon_find(core, name);
        if (!daemon || daemon->draining == on)
                return;
        daemon->draining = on;
        mfl_core_cuts_changed(core, daemon); /* nobody waits for one that gets no more work */
        core->sched_dirty = true;
        mfl_core_daemon_idle(core, daemon);
        if (!on && !daemon->conn)
                mfl_core_wake(core, core->now_ms);
        if (daemon->job)
                mfl_core_dirty(core, daemon->job);
        if (!on)
                tell_jobs_of_arrival(core, daemon);
        mfl_core_trace(core, daemon->job, "daemon %s %s", daemon->info.name,
                on ? "is being drained" : "takes work again");
}

void mfl_core_daemon_leaving(struct mfl_core *core, struct core_daemon *daemon, const char *reason)
{
        if (daemon->leaving)
                return;
        mfl_core_trace(core, daemon->job, "daemon %s gets no more work: %.180s", daemon->info.name, reason);
        daemon->leaving = true;
        mfl_core_cuts_changed(core, daemon);
        mfl_snprintf(daemon->note, sizeof daemon->note, "it ends when its work is done: %.180s", reason);
        core->sched_dirty = true;
        mfl_core_daemon_idle(core, daemon);
        if (daemon->job)
                mfl_core_dirty(core, daemon->job);
}

/* The daemon has no grace time, and its results that are under way no longer count. An update that the worker
 * is adding is whole already, and counts. */
static void send_away(
        struct mfl_core *core, struct core_daemon *daemon, enum mfl_refusal why, const char *reason)
{
        mfl_core_refused_add(core, &daemon->info, why);
        for (struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                mfl_core_task_cancel(core, task, "the daemon may no longer take part");
        take_tasks(core, daemon, ITEM_MISSING);
        if (daemon->conn) {
                mfl_core_send_close(core, daemon->conn, why != MFL_REFUSAL_LIE, reason);
                detach(core, daemon);
        }
        if (daemon->draining)
                mfl_core_unlease(core, daemon);
        else
                remove_daemon(core, daemon);
}

void mfl_core_daemon_expel(struct mfl_core *core, const char *name, const char *reason)
{
        struct core_daemon *daemon = mfl_core_daemon_find(core, name);
        if (!daemon)
                return;
        mfl_core_trace(core, daemon->job, "daemon %s is sent away: %.180s", daemon->info.name, reason);
        send_away(core, daemon, MFL_REFUSAL_RULE, reason);
}

void mfl_core_daemon_lied(
        struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job, const char *fmt, ...)
{
        char reason[MFL_REASON_BYTES];
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(reason, sizeof reason, fmt, ap);
        va_end(ap);
        job = job ? job : daemon->job;
        mfl_core_trace(
                core, job, "daemon %s is sent away for what it said: %.180s", daemon->info.name, reason);
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_ACCUSE, job);
        action->conn = daemon->conn;
        mfl_strcpy(action->accused, sizeof action->accused, daemon->info.name);
        mfl_strcpy(action->reason, sizeof action->reason, reason);
        send_away(core, daemon, MFL_REFUSAL_LIE, reason);
}
