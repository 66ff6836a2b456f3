/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons: coming, going, their grace time, liveness, drain, leases, and the messages sent to them. */
#include "server/core_internal.h"

#include "common/digest.h"

uint64_t mfl_core_name_key(const char *name)
{
        uint8_t digest[MFL_SHA256_BYTES];
        return mfl_sha256(name, strlen(name), digest, NULL) ? 0 : mfl_sha256_number(digest);
}

struct mfl_msg *mfl_core_send(struct mfl_core *core, struct core_daemon *daemon, enum mfl_msg_kind kind)
{
        mfl_assert(daemon->conn);
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_SEND, NULL);
        action->conn = daemon->conn;
        action->msg.kind = kind;
        daemon->sent_ms = core->now_ms;
        return &action->msg;
}

struct core_relation *mfl_core_relation(
        struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job)
{
        for (uint32_t i = 0; i < daemon->n_relations; i++)
                if (daemon->relations[i].job == job->serial)
                        return &daemon->relations[i];
        struct core_relation *v = mfl_realloc(daemon->relations, (daemon->n_relations + 1) * sizeof *v);
        if (!v) {
                core->error = -ENOMEM;
                return NULL;
        }
        daemon->relations = v;
        v[daemon->n_relations] = (struct core_relation){.job = job->serial};
        return &v[daemon->n_relations++];
}

static const struct core_relation *find_relation(const struct core_daemon *daemon, const struct core_job *job)
{
        for (uint32_t i = 0; i < daemon->n_relations; i++)
                if (daemon->relations[i].job == job->serial)
                        return &daemon->relations[i];
        return NULL;
}

bool mfl_core_daemon_takes_work(const struct core_daemon *daemon)
{
        return !daemon->draining && (!daemon->leaving || MFL_SIM_BUG(25));
}

bool mfl_core_daemon_usable(const struct core_daemon *daemon, const struct core_job *job)
{
        if (!daemon->conn || !mfl_core_daemon_takes_work(daemon) || !mfl_core_daemon_data(daemon, job))
                return false;
        const struct core_relation *relation = find_relation(daemon, job);
        return !relation || (!relation->barred && relation->rest_stamp != job->stamp);
}

bool mfl_core_daemon_barred(const struct core_daemon *daemon, const struct core_job *job)
{
        const struct core_relation *relation = find_relation(daemon, job);
        return relation && relation->barred;
}

/* ---- leases ---- */

void mfl_core_lease(struct mfl_core *core, struct core_daemon *daemon, struct core_job *job)
{
        mfl_assert(!daemon->job && daemon->conn);
        if (job->n_leased == job->leased_capacity) {
                uint32_t capacity = job->leased_capacity ? job->leased_capacity * 2 : 8;
                struct core_daemon **v = mfl_realloc(job->leased, capacity * sizeof *v);
                if (!v) {
                        core->error = -ENOMEM;
                        return;
                }
                job->leased = v;
                job->leased_capacity = capacity;
        }
        daemon->job = job;
        daemon->lease = job->n_leased;
        daemon->items_done = daemon->items_total = 0;
        job->leased[job->n_leased++] = daemon;
        job->n_leased_up++;
        mfl_core_dirty(core, job);
}

void mfl_core_unlease(struct mfl_core *core, struct core_daemon *daemon)
{
        struct core_job *job = daemon->job;
        if (!job)
                return;
        mfl_assert(job->leased[daemon->lease] == daemon);
        struct core_daemon *last = job->leased[--job->n_leased];
        job->leased[daemon->lease] = last;
        last->lease = daemon->lease;
        job->n_leased_up -= daemon->conn != 0;
        daemon->job = NULL;
        core->sched_dirty = true;
        mfl_core_dirty(core, job);
}

/* ---- coming and going ---- */

static int copy_info(struct mfl_daemon_info *to, const struct mfl_daemon_info *from)
{
        struct mfl_data_info *data_sets = mfl_calloc(from->n_data_sets, sizeof *data_sets);
        if (!data_sets)
                return -ENOMEM;
        if (from->n_data_sets)
                memcpy(data_sets, from->data_sets, from->n_data_sets * sizeof *data_sets);
        free(to->data_sets);
        *to = *from;
        to->data_sets = data_sets;
        return 0;
}

static struct core_daemon *add_daemon(struct mfl_core *core, uint64_t key)
{
        if (core->n_daemons == core->daemons_capacity) {
                uint32_t capacity = core->daemons_capacity ? core->daemons_capacity * 2 : 16;
                struct core_daemon **v = mfl_realloc(core->daemons, capacity * sizeof *v);
                if (!v)
                        return NULL;
                core->daemons = v;
                core->daemons_capacity = capacity;
        }
        struct core_daemon *daemon = mfl_calloc(1, sizeof *daemon);
        if (!daemon)
                return NULL;
        daemon->key = key;
        daemon->position = core->n_daemons;
        if (mfl_core_map_put(&core->by_key, key, daemon)) {
                free(daemon);
                return NULL;
        }
        core->daemons[core->n_daemons++] = daemon;
        return daemon;
}

void mfl_core_daemon_free(struct core_daemon *daemon)
{
        free(daemon->info.data_sets);
        free(daemon->relations);
        free(daemon);
}

/* Its clients go to others now. */
static void take_tasks(struct mfl_core *core, struct core_daemon *daemon, enum item_state local_to)
{
        while (daemon->tasks) {
                struct core_task *task = daemon->tasks;
                bool local = task->job->spec->data.partition == MFL_PARTITION_LOCAL;
                mfl_core_task_take(core, task, local ? local_to : ITEM_OPEN);
        }
}

static void remove_daemon(struct mfl_core *core, struct core_daemon *daemon)
{
        mfl_assert(!daemon->conn);
        take_tasks(core, daemon, ITEM_MISSING);
        mfl_core_unlease(core, daemon);
        mfl_core_node_leave(core, daemon);
        mfl_core_map_remove(&core->by_key, daemon->key);
        struct core_daemon *last = core->daemons[--core->n_daemons];
        core->daemons[daemon->position] = last;
        last->position = daemon->position;
        mfl_core_daemon_free(daemon);
        core->sched_dirty = true; /* for some job it may have been the last that had not refused it */
}

static void detach(struct mfl_core *core, struct core_daemon *daemon)
{
        mfl_core_map_remove(&core->by_conn, daemon->conn);
        core->changes++;
        daemon->conn = 0;
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
        mfl_core_trace(core, daemon->job, "daemon %s lost: %s%s", daemon->info.name, why,
                daemon->tasks ? "; its work waits for it" : "");
        detach(core, daemon);
}

static void send_close(struct mfl_core *core, uint32_t conn, bool retry, const char *reason)
{
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_CLOSE, NULL);
        action->conn = conn;
        action->retry = retry;
        mfl_strcpy(action->reason, sizeof action->reason, reason);
}

void mfl_core_daemon_close(
        struct mfl_core *core, struct core_daemon *daemon, bool retry, const char *fmt, ...)
{
        char reason[MFL_REASON_BYTES];
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(reason, sizeof reason, fmt, ap);
        va_end(ap);
        send_close(core, daemon->conn, retry, reason);
        mfl_core_daemon_down(core, daemon, reason);
}

void mfl_core_daemon_left(struct mfl_core *core, struct core_daemon *daemon, const char *reason)
{
        send_close(core, daemon->conn, false, "goodbye");
        mfl_core_trace(core, daemon->job, "daemon %s leaves: %.180s", daemon->info.name, reason);
        detach(core, daemon);
        if (!daemon->draining) {
                remove_daemon(core, daemon);
                return;
        }
        take_tasks(core, daemon, ITEM_MISSING);
        mfl_core_unlease(core, daemon);
}

/* Another process under the same name: what the old one held is gone with it. */
static void replace_instance(
        struct mfl_core *core, struct core_daemon *daemon, const struct mfl_daemon_info *info)
{
        mfl_core_trace(core, daemon->job, "daemon %s is a new process; what the old one had goes out again",
                info->name);
        take_tasks(core, daemon, ITEM_OPEN);
        daemon->n_relations = 0;
        daemon->leaving = false;
        daemon->note[0] = '\0';
        daemon->connected_ms = core->now_ms;
}

/* One that comes back without the data set that it is working on has given that work up. */
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

void mfl_core_daemon_up(
        struct mfl_core *core, uint32_t conn, const struct mfl_daemon_info *info, bool drained)
{
        uint64_t key = mfl_core_name_key(info->name);
        struct core_daemon *daemon = mfl_core_map_get(&core->by_key, key);
        bool known = daemon != NULL, replaced = known && daemon->info.instance != info->instance;
        mfl_assert(conn && !mfl_core_map_get(&core->by_conn, conn));
        if (known && strcmp(daemon->info.name, info->name) != 0) {
                send_close(
                        core, conn, false, "another daemon's name has the same digest: choose another name");
                return;
        }
        if (!known)
                daemon = add_daemon(core, key);
        if (!daemon) {
                core->error = -ENOMEM;
                return;
        }
        if (daemon->conn) {
                send_close(core, daemon->conn, !replaced,
                        replaced ? "another process came under this name" : "the daemon connected anew");
                detach(core, daemon);
        }
        if (replaced)
                replace_instance(core, daemon, info);
        if (!known)
                daemon->connected_ms = core->now_ms;
        if (!mfl_core_node_same(daemon, info))
                mfl_core_node_leave(core, daemon);
        if (copy_info(&daemon->info, info) || mfl_core_node_enter(core, daemon) ||
                mfl_core_map_put(&core->by_conn, conn, daemon)) {
                core->error = -ENOMEM;
                return;
        }
        mfl_core_refused_forget(core, info->name);
        core->changes++;
        daemon->conn = conn;
        daemon->draining |= drained; /* before the scheduler sees it */
        daemon->heard_ms = core->now_ms;
        if (daemon->job)
                daemon->job->n_leased_up++;
        mfl_core_trace(core, NULL, "daemon %s %s", info->name, known && !replaced ? "is back" : "is up");
        struct mfl_msg *msg = mfl_core_send(core, daemon, MFL_MSG_WELCOME);
        msg->welcome.heartbeat_ms = core->options.heartbeat_ms;
        msg->welcome.dead_ms = core->options.dead_ms;
        msg->welcome.server_instance = core->options.server_instance;
        take_impossible(core, daemon);
        for (struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (mfl_core_task_live(task))
                        mfl_core_task_send_again(core, task);
        mfl_core_wake(core, core->now_ms + core->options.heartbeat_ms);
        tell_jobs_of_arrival(core, daemon);
}

/* ---- timers and drain ---- */

static bool has_live_task(const struct core_daemon *daemon)
{
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (mfl_core_task_live(task))
                        return true;
        return false;
}

void mfl_core_daemon_timers(struct mfl_core *core, struct core_daemon *daemon, uint64_t *next_ms)
{
        const struct mfl_core_options *o = &core->options;
        if (daemon->conn && core->now_ms - daemon->heard_ms >= o->dead_ms)
                mfl_core_daemon_close(core, daemon, true, "nothing heard for %u ms", o->dead_ms);
        if (!daemon->conn) {
                uint64_t end = daemon->lost_ms + o->reconnect_grace_ms;
                if (core->now_ms < end) {
                        *next_ms = MFL_MIN(*next_ms, end);
                } else if (daemon->draining) { /* stays, so that it comes back drained; but it has no work any
                                                  more */
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

void mfl_core_daemon_idle(struct mfl_core *core, struct core_daemon *daemon)
{
        bool works = mfl_core_daemon_takes_work(daemon) &&
                     (!daemon->job || !daemon->conn || mfl_core_daemon_usable(daemon, daemon->job));
        if (!works && !has_live_task(daemon))
                mfl_core_unlease(core, daemon);
}

void mfl_core_daemon_drain(struct mfl_core *core, const char *name, bool on)
{
        struct core_daemon *daemon = mfl_core_map_get(&core->by_key, mfl_core_name_key(name));
        if (!daemon || daemon->draining == on)
                return;
        daemon->draining = on;
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
        mfl_snprintf(daemon->note, sizeof daemon->note, "it ends when its work is done: %.180s", reason);
        core->sched_dirty = true;
        mfl_core_daemon_idle(core, daemon);
        if (daemon->job)
                mfl_core_dirty(core, daemon->job);
}

/* It may be waited for, and its results may be on their way: none of that counts any more. What the worker is
 * adding was whole before, and counts. */
void mfl_core_daemon_expel(struct mfl_core *core, const char *name, const char *reason)
{
        struct core_daemon *daemon = mfl_core_map_get(&core->by_key, mfl_core_name_key(name));
        if (!daemon)
                return;
        mfl_core_trace(core, daemon->job, "daemon %s is sent away: %.180s", daemon->info.name, reason);
        mfl_core_refused(core, &daemon->info, MFL_REFUSAL_RULE);
        for (struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                mfl_core_task_cancel(core, task, "the daemon may not take part any more");
        if (!MFL_SIM_BUG(26))
                take_tasks(core, daemon, ITEM_MISSING);
        if (daemon->conn) {
                send_close(core, daemon->conn, true, reason);
                detach(core, daemon);
        }
        if (MFL_SIM_BUG(26))
                return;
        if (daemon->draining)
                mfl_core_unlease(core, daemon);
        else
                remove_daemon(core, daemon);
}
