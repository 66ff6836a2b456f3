/* SPDX-License-Identifier: Apache-2.0 */
/* A relay's decisions: which message means what. */
#include "server/relay/relay_core.h"

#include "server/relay/relay_internal.h"

/* ---- daemons ---- */

static struct relay_peer *find_peer(const struct mfl_relay_core *core, uint32_t conn)
{
        return mfl_core_map_get(&core->peers, conn);
}

static void peer_up(struct mfl_relay_core *core, const struct mfl_relay_event *event)
{
        struct relay_peer *peer = mfl_calloc(1, sizeof *peer);
        mfl_assert(event->peer && !find_peer(core, event->peer));
        if (!peer || mfl_core_map_put(&core->peers, event->peer, peer)) {
                free(peer);
                core->error = -ENOMEM;
                return;
        }
        peer->conn = event->peer;
        peer->lane = event->lane;
        peer->instance = event->instance;
        if (mfl_core_map_put(&core->instances, peer->instance, peer)) /* the newest of them */
                core->error = -ENOMEM;
}

/* Its connection above has ended. */
static void forget_peer(struct mfl_relay_core *core, struct relay_peer *peer)
{
        peer->parted = true;
        while (peer->members)
                mfl_relay_leave(core, peer->members, false);
        mfl_core_map_remove(&core->peers, peer->conn);
        if (mfl_core_map_get(&core->instances, peer->instance) == peer)
                mfl_core_map_remove(&core->instances, peer->instance);
        free(peer);
}

static bool is_in_sum(const struct relay_member *member)
{
        return member->ready && !member->lane;
}

/* What is in a sum counts, if the server is not told of the loss before it has answered. */
static void peer_down(struct mfl_relay_core *core, struct relay_peer *peer)
{
        peer->gone = true;
        for (struct relay_member *m = peer->members, *next; m; m = next) {
                next = m->peer_next;
                if (!is_in_sum(m))
                        mfl_relay_leave(core, m, false);
        }
        if (peer->n_members)
                mfl_relay_trace(
                        core, "a daemon is lost, and its update is in a sum: the server is told later");
        mfl_relay_part(core, peer);
}

/* ---- messages ---- */

static void pass(struct mfl_relay_core *core, const struct relay_peer *peer, bool up)
{
        mfl_relay_act(core, MFL_RELAY_ACT_PASS, peer->conn)->up = up;
}

/* The task's update is the server's business from here on. */
static void let_go(struct mfl_relay_core *core, const struct relay_peer *peer, uint64_t task, bool tells)
{
        struct relay_member *member = mfl_relay_member(core, task);
        if (member && member->peer == peer)
                mfl_relay_leave(core, member, tells);
}

static void from_above(struct mfl_relay_core *core, struct relay_peer *peer, const struct mfl_msg *msg)
{
        struct relay_group *group;
        switch (msg->kind) {
        case MFL_MSG_TASK:
                if (msg->task.group.group)
                        mfl_relay_task(core, peer, msg);
                else
                        pass(core, peer, false);
                return;
        case MFL_MSG_COMBINE:
                mfl_relay_combine(core, peer, msg);
                return;
        case MFL_MSG_GRANT:
                group = mfl_core_map_get(&core->numbers, msg->update.task);
                if (group) {
                        mfl_relay_granted(core, group, msg);
                        return;
                }
                let_go(core, peer, msg->update.task, false);
                break;
        case MFL_MSG_ACCEPTED:
        case MFL_MSG_REFUSED:
                let_go(core, peer, msg->update.task, false);
                break;
        case MFL_MSG_CANCEL:
                let_go(core, peer, msg->cancel.task, false);
                break;
        case MFL_MSG_ALONE:
                let_go(core, peer, msg->cancel.task, true);
                break;
        default:
                break;
        }
        pass(core, peer, false);
}

/* Its daemon is lost, and the server does not know. */
static void for_gone(struct mfl_relay_core *core, struct relay_peer *peer, const struct mfl_msg *msg)
{
        struct relay_group *group;
        switch (msg->kind) {
        case MFL_MSG_PING:
                mfl_relay_send(core, peer->conn, true, MFL_MSG_PONG)->cookie = msg->cookie;
                return;
        case MFL_MSG_COMBINE:
                mfl_relay_combine(core, peer, msg);
                return;
        case MFL_MSG_ACCEPTED:
        case MFL_MSG_REFUSED:
                let_go(core, peer, msg->update.task, false);
                break;
        case MFL_MSG_GRANT:
                group = mfl_core_map_get(&core->numbers, msg->update.task);
                if (group) {
                        mfl_relay_granted(core, group, msg);
                        return;
                }
                let_go(core, peer, msg->update.task, false);
                break;
        case MFL_MSG_CANCEL:
        case MFL_MSG_ALONE:
                let_go(core, peer, msg->cancel.task, false);
                break;
        case MFL_MSG_TASK: /* somebody else must do it */
                while (peer->n_members)
                        mfl_relay_leave(core, peer->members, false);
                mfl_relay_part(core, peer);
                break;
        default:
                break;
        }
}

static void from_below(struct mfl_relay_core *core, struct relay_peer *peer, const struct mfl_msg *msg)
{
        struct relay_group *group;
        switch (msg->kind) {
        case MFL_MSG_ANNOUNCE:
                mfl_relay_announced(core, peer, msg);
                return;
        case MFL_MSG_COMBINE_FAILED:
                group = mfl_core_map_get(&core->numbers, msg->cancel.task);
                if (group && peer->lane && group->combining)
                        mfl_relay_combine_failed(core, group, msg->cancel.reason);
                return;
        case MFL_MSG_TASK_FAILED:
                let_go(core, peer, msg->failed.task, false);
                break;
        default:
                break;
        }
        pass(core, peer, true);
}

static void job_over(struct mfl_relay_core *core, const char *job)
{
        for (struct relay_group *group = core->groups, *next; group; group = next) {
                next = group->next;
                uint32_t n = group->description.n_members, n_left = group->n_here;
                if (strcmp(group->job, job) != 0)
                        continue;
                for (uint32_t r = 0; r < n && n_left > 0; r++) { /* the last one may free the group */
                        if (!group->members[r].task)
                                continue;
                        n_left--;
                        mfl_relay_leave(core, &group->members[r], false);
                }
        }
}

/* ---- entrance ---- */

static void take_message(struct mfl_relay_core *core, const struct mfl_relay_event *event)
{
        struct relay_peer *peer = find_peer(core, event->peer);
        if (!peer)
                return;
        if (event->kind == MFL_RELAY_EV_FROM_BELOW)
                from_below(core, peer, event->msg);
        else if (peer->gone)
                for_gone(core, peer, event->msg);
        else
                from_above(core, peer, event->msg);
}

int mfl_relay_core_step(
        struct mfl_relay_core *core, const struct mfl_relay_event *event, struct mfl_relay_actions *actions)
{
        struct relay_peer *peer = event->peer ? find_peer(core, event->peer) : NULL;
        struct relay_fill *fill;
        core->out = actions;
        core->now_ms = event->now_ms;
        switch (event->kind) {
        case MFL_RELAY_EV_TICK:
                while ((fill = mfl_relay_fill_stalled(core)))
                        mfl_relay_unfilled(core, fill);
                break;
        case MFL_RELAY_EV_UP:
                peer_up(core, event);
                break;
        case MFL_RELAY_EV_DOWN:
                if (peer && !peer->gone)
                        peer_down(core, peer);
                break;
        case MFL_RELAY_EV_ENDED:
                if (peer)
                        forget_peer(core, peer);
                break;
        case MFL_RELAY_EV_FROM_ABOVE:
        case MFL_RELAY_EV_FROM_BELOW:
                take_message(core, event);
                break;
        case MFL_RELAY_EV_JOB_OVER:
                job_over(core, event->job);
                break;
        default:
                fill = mfl_relay_fill_event(core, event);
                if (fill && event->kind == MFL_RELAY_EV_ADDED)
                        mfl_relay_added(core, fill, event->ok);
                else if (fill)
                        mfl_relay_unfilled(core, fill);
        }
        mfl_relay_fills_start(core);
        return core->error;
}

/* ---- life ---- */

int mfl_relay_core_new(
        const struct mfl_relay_options *options, struct mfl_relay_core **ret_core, struct mfl_error *err)
{
        struct mfl_relay_core *core = mfl_calloc(1, sizeof *core);
        mfl_assert(options->n_slots >= 1 && options->n_slots <= MFL_RELAY_SLOTS_MAX);
        if (!core)
                return mfl_fail_memory(err, sizeof *core, "a relay");
        core->options = *options;
        core->queue_end = &core->queue;
        *ret_core = core;
        return 0;
}

void mfl_relay_core_free(struct mfl_relay_core *core)
{
        if (!core)
                return;
        while (core->groups) {
                struct relay_group *group = core->groups;
                core->groups = group->next;
                mfl_relay_group_free(group);
        }
        for (uint32_t i = 0; i < core->peers.capacity; i++)
                free(core->peers.values[i]);
        mfl_core_map_deinit(&core->peers);
        mfl_core_map_deinit(&core->instances);
        mfl_core_map_deinit(&core->tasks);
        mfl_core_map_deinit(&core->numbers);
        mfl_msg_deinit(&core->scrap.msg);
        free(core->scrap.ranges);
        free(core);
}

static void check_group(const struct mfl_relay_core *core, const struct relay_group *group)
{
        uint32_t n_here = 0, n_adding = 0;
        for (uint32_t r = 0; r < group->description.n_members; r++) {
                const struct relay_member *member = &group->members[r];
                n_here += member->task != 0;
                n_adding += member->fill.state == FILL_ADDING;
                mfl_assert(!member->task == !member->peer);
                mfl_assert(!member->task || mfl_relay_member(core, member->task) == member);
                mfl_assert(!member->keeps || member->announce.kind == MFL_MSG_ANNOUNCE);
                mfl_assert(!member->keeps ||
                           (member->fill.state != FILL_NONE && member->fill.state != FILL_DONE));
                mfl_assert(!(group->in_sum >> r & 1) || member->fill.state == FILL_DONE);
        }
        for (uint32_t i = 0; i < group->n_lanes; i++)
                n_adding += group->lanes[i].fill.state == FILL_ADDING;
        mfl_assert(group->n_here == n_here && group->n_adding == n_adding && (n_here || n_adding));
        mfl_assert(!group->in_sum || group->has_sum);
}

void mfl_relay_core_check(const struct mfl_relay_core *core)
{
        for (const struct relay_group *group = core->groups; group; group = group->next)
                check_group(core, group);
        for (uint32_t s = 0; s < core->options.n_slots; s++) {
                const struct relay_fill *fill = core->slots[s];
                mfl_assert(!fill ||
                           (fill->slot == s && (fill->state == FILL_FILLING || fill->state == FILL_ADDING)));
        }
        for (const struct relay_fill *fill = core->queue; fill; fill = fill->next)
                mfl_assert(fill->state == FILL_QUEUED && fill->group->n_here);
}
