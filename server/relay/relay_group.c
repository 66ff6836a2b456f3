/* SPDX-License-Identifier: Apache-2.0 */
/* Groups at a relay: their members, and their sums. */
#include "server/relay/relay_internal.h"

struct relay_member *mfl_relay_member(const struct mfl_relay_core *core, uint64_t task)
{
        return mfl_core_map_get(&core->tasks, task);
}

/* ---- beginning ---- */

static struct relay_lane *find_lane(struct relay_group *group, uint32_t conn)
{
        for (uint32_t i = 0; conn && i < group->n_lanes; i++)
                if (group->lanes[i].conn == conn)
                        return &group->lanes[i];
        return NULL;
}

/* Members below one relay have a group there, if they are two or more. */
static void find_lanes(struct mfl_relay_core *core, struct relay_group *group)
{
        uint32_t n_members = group->description.n_members, n = 0;
        for (uint32_t r = 0; r < n_members; r++) {
                struct relay_member *member = &group->members[r];
                const struct relay_peer *peer = mfl_core_map_get(&core->instances, member->instance);
                struct relay_lane *lane = peer ? find_lane(group, peer->lane) : NULL;
                if (!peer || !peer->lane)
                        continue;
                if (!lane) {
                        lane = &group->lanes[group->n_lanes++];
                        *lane = (struct relay_lane){.conn = peer->lane};
                }
                member->lane = peer->lane;
                member->lane_rank = lane->n_members++;
        }
        for (uint32_t i = 0; i < group->n_lanes; i++)
                if (group->lanes[i].n_members >= 2)
                        group->lanes[n++] = group->lanes[i];
        group->n_lanes = n;
        for (uint32_t r = 0; r < n_members; r++)
                if (!find_lane(group, group->members[r].lane))
                        group->members[r].lane = 0;
        for (uint32_t i = 0; i < n; i++)
                group->lanes[i].fill = (struct relay_fill){.group = group, .task = group->number};
}

static struct relay_group *new_group(struct mfl_relay_core *core, const struct mfl_task *task)
{
        const struct mfl_group *g = &task->group;
        struct relay_group *group = mfl_calloc(1, sizeof *group + g->n_members * sizeof *group->members);
        if (group)
                group->lanes = mfl_calloc(g->n_members, sizeof *group->lanes);
        if (!group || !group->lanes || mfl_core_map_put(&core->numbers, g->group, group)) {
                mfl_relay_group_free(group);
                core->error = -ENOMEM;
                return NULL;
        }
        group->number = g->group;
        group->description = *g;
        mfl_strcpy(group->job, sizeof group->job, task->job);
        for (uint32_t r = 0; r < g->n_members; r++) {
                struct relay_member *member = &group->members[r];
                *member = (struct relay_member){.instance = g->members[r], .group = group, .rank = r};
                member->fill = (struct relay_fill){.group = group};
        }
        find_lanes(core, group);
        group->next = core->groups;
        group->prev_next = &core->groups;
        if (group->next)
                group->next->prev_next = &group->next;
        core->groups = group;
        return group;
}

void mfl_relay_group_free(struct relay_group *group)
{
        if (!group)
                return;
        for (uint32_t r = 0; r < group->description.n_members; r++)
                mfl_msg_deinit(&group->members[r].announce);
        free(group->ranges);
        free(group->lanes);
        free(group);
}

static void pass_task(struct mfl_relay_core *core, const struct relay_member *member)
{
        const struct relay_group *group = member->group;
        struct mfl_relay_action *action = mfl_relay_act(core, MFL_RELAY_ACT_PASS, member->peer->conn);
        action->change = MFL_RELAY_FOR_SUM;
        if (!member->lane)
                return;
        action->change = MFL_RELAY_NEW_GROUP;
        action->members = group->description;
        action->members.rank = member->lane_rank;
        action->members.n_members = 0;
        for (uint32_t r = 0; r < group->description.n_members; r++)
                if (group->members[r].lane == member->lane)
                        action->members.members[action->members.n_members++] = group->members[r].instance;
}

static void pass_alone(struct mfl_relay_core *core, uint32_t peer)
{
        mfl_relay_act(core, MFL_RELAY_ACT_PASS, peer)->change = MFL_RELAY_NO_GROUP;
}

void mfl_relay_task(struct mfl_relay_core *core, struct relay_peer *peer, const struct mfl_msg *msg)
{
        const struct mfl_group *g = &msg->task.group;
        struct relay_member *old = mfl_relay_member(core, msg->task.task);
        if (old) /* resent */
                mfl_relay_leave(core, old, true);
        struct relay_group *group = mfl_core_map_get(&core->numbers, g->group);
        if (!group)
                group = new_group(core, &msg->task);
        if (!group)
                return;
        struct relay_member *member =
                g->rank < group->description.n_members ? &group->members[g->rank] : NULL;
        bool fits = member && !member->taken && member->instance == peer->instance && !group->combining &&
                    !strcmp(group->job, msg->task.job);
        if (!fits) {
                pass_alone(core, peer->conn);
                return;
        }
        if (mfl_core_map_put(&core->tasks, msg->task.task, member)) {
                core->error = -ENOMEM;
                return;
        }
        member->task = member->fill.task = msg->task.task;
        member->fill.peer = peer->conn;
        member->peer = peer;
        member->taken = true;
        member->peer_next = peer->members;
        peer->members = member;
        peer->n_members++;
        group->n_here++;
        pass_task(core, member);
}

/* ---- leaving ---- */

void mfl_relay_part(struct mfl_relay_core *core, struct relay_peer *peer)
{
        if (!peer->gone || peer->parted || peer->n_members)
                return;
        peer->parted = true;
        mfl_relay_act(core, MFL_RELAY_ACT_PART, peer->conn);
}

static void take_from_peer(struct mfl_relay_core *core, struct relay_member *member)
{
        struct relay_peer *peer = member->peer;
        struct relay_member **at = &peer->members;
        while (*at != member)
                at = &(*at)->peer_next;
        *at = member->peer_next;
        peer->n_members--;
        mfl_relay_part(core, peer);
}

static void send_kept(struct mfl_relay_core *core, struct relay_member *member, uint64_t group)
{
        struct mfl_msg *msg = mfl_relay_send(core, member->peer->conn, true, MFL_MSG_ANNOUNCE);
        mfl_msg_deinit(msg);
        *msg = member->announce;
        msg->announce.group = group;
        member->announce = (struct mfl_msg){.kind = MFL_MSG_NONE};
        member->keeps = false;
}

static void settle(struct mfl_relay_core *core, struct relay_group *group)
{
        if (group->n_here)
                return;
        for (uint32_t i = 0; i < group->n_lanes; i++)
                mfl_relay_fill_drop(core, &group->lanes[i].fill);
        if (!group->over)
                mfl_core_map_remove(&core->numbers, group->number);
        group->over = true;
        if (group->n_adding)
                return;
        if (group->has_sum)
                mfl_relay_act(core, MFL_RELAY_ACT_SUM_FREE, 0)->group = group->number;
        *group->prev_next = group->next;
        if (group->next)
                group->next->prev_next = group->prev_next;
        mfl_relay_group_free(group);
}

void mfl_relay_leave(struct mfl_relay_core *core, struct relay_member *member, bool tells)
{
        struct relay_group *group = member->group;
        mfl_relay_fill_drop(core, &member->fill);
        if (member->keeps && tells)
                send_kept(core, member, 0);
        member->keeps = false;
        mfl_core_map_remove(&core->tasks, member->task);
        take_from_peer(core, member);
        member->task = 0;
        member->peer = NULL;
        mfl_assert(group->n_here > 0);
        group->n_here--;
        settle(core, group);
}

/* ---- announcing ---- */

static bool can_add(const struct relay_group *group, const struct mfl_announce *a)
{
        return a->encoding == MFL_ENCODING_I64 && a->bytes && a->update == 0 && a->item_first == 0 &&
               !a->group && a->n_rejected < a->item_count && (!group->bytes || group->bytes == a->bytes) &&
               !group->combining;
}

static void pass_leaving(struct mfl_relay_core *core, struct relay_member *member)
{
        uint32_t conn = member->peer->conn;
        mfl_relay_leave(
                core, member, true); /* its task has several updates, and the first one may wait here */
        mfl_relay_act(core, MFL_RELAY_ACT_PASS, conn)->up = true;
}

void mfl_relay_announced(struct mfl_relay_core *core, struct relay_peer *peer, const struct mfl_msg *msg)
{
        const struct mfl_announce *a = &msg->announce;
        struct relay_member *member = mfl_relay_member(core, a->task);
        if (!member || member->peer != peer) {
                mfl_relay_act(core, MFL_RELAY_ACT_PASS, peer->conn)->up = true;
                return;
        }
        struct relay_group *group = member->group;
        if (member->lane) {
                if (a->group != group->number || (group->bytes && group->bytes != a->bytes)) {
                        pass_leaving(core, member);
                        return;
                }
                group->bytes = a->bytes;
                member->ready = true;
                mfl_relay_act(core, MFL_RELAY_ACT_PASS, peer->conn)->up = true;
                return;
        }
        if ((member->keeps || member->ready) && !a->update) /* it announces twice */
                return;
        if (!can_add(group, a)) {
                pass_leaving(core, member);
                return;
        }
        if (mfl_msg_copy(msg, &member->announce)) {
                core->error = -ENOMEM;
                return;
        }
        member->keeps = true;
        group->bytes = a->bytes;
        mfl_relay_fill_queue(core, &member->fill);
}

/* ---- the sum ---- */

static void send_sum(struct mfl_relay_core *core, struct relay_group *group)
{
        if (!group->combining || !group->granted)
                return;
        for (uint32_t i = 0; i < group->n_lanes; i++)
                if (group->lanes[i].wanted && group->lanes[i].fill.state != FILL_DONE)
                        return;
        struct mfl_relay_action *action = mfl_relay_act(core, MFL_RELAY_ACT_SUM_SEND, group->leader);
        action->group = group->number;
        action->bytes = group->bytes;
        action->n_ranges = group->n_ranges;
        action->ranges = group->ranges;
        group->granted = false;
        group->n_ranges = 0;
        group->ranges = NULL;
}

void mfl_relay_granted(struct mfl_relay_core *core, struct relay_group *group, const struct mfl_msg *msg)
{
        uint32_t n = msg->update.n_ranges;
        struct mfl_range *ranges = mfl_calloc(n, sizeof *ranges);
        if (!ranges) {
                core->error = -ENOMEM;
                return;
        }
        if (n)
                memcpy(ranges, msg->update.ranges, n * sizeof *ranges);
        free(group->ranges);
        group->ranges = ranges;
        group->n_ranges = n;
        group->granted = true;
        send_sum(core, group);
}

void mfl_relay_combine_failed(struct mfl_relay_core *core, struct relay_group *group, const char *reason)
{
        mfl_relay_trace(
                core, "a sum of %u daemons is not combined: %s", group->description.n_members, reason);
        struct mfl_msg *msg = mfl_relay_send(core, group->leader, true, MFL_MSG_COMBINE_FAILED);
        msg->cancel.task = group->number;
        mfl_strcpy(msg->cancel.reason, sizeof msg->cancel.reason, reason);
}

/* What keeps the sum from being that of these ranks; NULL: nothing. */
static const char *combine_fault(const struct relay_group *group, uint64_t ranks)
{
        if (group->in_sum & ~ranks)
                return "the sum has the update of a daemon that is lost";
        for (uint32_t r = 0; r < group->description.n_members; r++) {
                const struct relay_member *member = &group->members[r];
                bool wanted = ranks >> r & 1;
                if (wanted && (!member->task || !member->ready))
                        return "an update is not here";
                if (!wanted && member->fill.state == FILL_ADDING)
                        return "a late update is being added";
        }
        return NULL;
}

static void combine_lane(
        struct mfl_relay_core *core, struct relay_group *group, struct relay_lane *lane, uint32_t deadline_ms)
{
        uint64_t ranks = 0;
        const struct relay_member *leader = NULL;
        for (uint32_t r = 0; r < group->description.n_members; r++) {
                const struct relay_member *member = &group->members[r];
                if (member->lane != lane->conn || !(group->ranks >> r & 1))
                        continue;
                ranks |= (uint64_t)1 << member->lane_rank;
                leader = leader ? leader : member;
        }
        if (!leader)
                return;
        struct mfl_msg *msg = mfl_relay_send(core, leader->peer->conn, false, MFL_MSG_COMBINE);
        msg->combine.group = group->number;
        msg->combine.ranks = ranks;
        msg->combine.leader = leader->lane_rank;
        msg->combine.deadline_ms = deadline_ms;
        lane->wanted = true;
        lane->fill.peer = leader->peer->conn;
        mfl_relay_fill_queue(core, &lane->fill);
}

void mfl_relay_combine(struct mfl_relay_core *core, struct relay_peer *peer, const struct mfl_msg *msg)
{
        struct relay_group *group = mfl_core_map_get(&core->numbers, msg->combine.group);
        if (!group) {
                struct mfl_msg *failed = mfl_relay_send(core, peer->conn, true, MFL_MSG_COMBINE_FAILED);
                failed->cancel.task = msg->combine.group;
                mfl_strcpy(failed->cancel.reason, sizeof failed->cancel.reason, "no such group");
                return;
        }
        if (group->combining) /* resent */
                return;
        group->leader = peer->conn;
        const char *fault = combine_fault(group, msg->combine.ranks);
        if (fault) {
                mfl_relay_combine_failed(core, group, fault);
                return;
        }
        group->combining = true;
        group->ranks = msg->combine.ranks;
        for (uint32_t r = 0; r < group->description.n_members; r++)
                if (group->members[r].task && !(group->ranks >> r & 1)) /* late: goes up alone */
                        mfl_relay_leave(core, &group->members[r], true);
        for (uint32_t i = 0; i < group->n_lanes; i++)
                combine_lane(core, group, &group->lanes[i], msg->combine.deadline_ms);
}

static void end_fill(struct mfl_relay_core *core, struct relay_fill *fill, bool ok)
{
        struct relay_group *group = fill->group;
        if (fill->task == group->number) { /* of a relay below */
                if (ok)
                        send_sum(core, group);
                else if (group->n_here)
                        mfl_relay_combine_failed(core, group, "the sum of a relay below does not come");
                return;
        }
        struct relay_member *member = MFL_CONTAINER_OF(fill, struct relay_member, fill);
        if (ok)
                group->in_sum |= (uint64_t)1 << member->rank;
        if (!member->task)
                return;
        if (!ok) {
                mfl_relay_leave(core, member, true);
                return;
        }
        member->ready = true;
        send_kept(core, member, group->number);
}

void mfl_relay_added(struct mfl_relay_core *core, struct relay_fill *fill, bool ok)
{
        struct relay_group *group = fill->group;
        group->has_sum |= ok;
        end_fill(core, fill, ok);
        mfl_assert(group->n_adding > 0);
        group->n_adding--; /* until here the group is not freed */
        settle(core, group);
}

void mfl_relay_unfilled(struct mfl_relay_core *core, struct relay_fill *fill)
{
        end_fill(core, fill, false);
}
