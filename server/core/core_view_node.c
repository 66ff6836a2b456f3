/* SPDX-License-Identifier: Apache-2.0 */
/* What lists show of nodes: how a daemon adds with the others, or why it adds alone. */
#include "server/core/core_view_node.h"

#include "server/work/core_member.h"

static const struct core_group *group_of(const struct core_daemon *daemon)
{
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (task->group)
                        return task->group;
        return NULL;
}

/* The first two of its connected daemons that share a GPU. The answer is kept until a daemon comes or
 * goes, because a list asks for every daemon of the node. */
static void find_sharers(const struct mfl_core *core, struct core_node *node)
{
        if (node->sharers_of == core->changes)
                return;
        node->sharers_of = core->changes;
        node->sharers[0] = node->sharers[1] = NULL;
        for (const struct core_daemon *d = node->first; d; d = d->node_next)
                for (const struct core_daemon *o = d->conn ? d->node_next : NULL; o; o = o->node_next)
                        if (o->conn && strcmp(d->info.device_uuid, o->info.device_uuid) == 0) {
                                node->sharers[0] = d;
                                node->sharers[1] = o;
                                return;
                        }
}

/* Why the node does not add by NCCL, as one of its GPUs sees it: its own reason, or else that two others
 * share a GPU, which is the only reason that others can have if each of them could add with this one. */
static bool tell_no_nccl(
        const struct mfl_core *core, const struct core_daemon *daemon, char reason[MFL_REASON_BYTES])
{
        struct core_node *node = daemon->node;
        const char *failed = mfl_core_comm_reason(core, daemon->info.instance);
        if (mfl_core_node_obstacle(daemon, 0, reason))
                return true;
        if (failed) {
                mfl_snprintf(reason, MFL_REASON_BYTES, "nccl failed twice: %.200s", failed);
                return true;
        }
        find_sharers(core, node);
        if (!node->sharers[0])
                return false;
        mfl_snprintf(reason, MFL_REASON_BYTES, "%s: shares %s with %s", node->sharers[0]->info.name,
                node->sharers[0]->info.device_uuid, node->sharers[1]->info.name);
        return true;
}

/* The first by name of the daemons on the same host that are in another node. */
static const struct core_daemon *find_stranger(const struct core_daemon *daemon)
{
        const struct core_daemon *found = NULL;
        for (const struct core_node *node = daemon->node->host->first; node; node = node->host_next)
                for (const struct core_daemon *d = node->first; d && node != daemon->node; d = d->node_next)
                        if (d->conn && (!found || strcmp(d->info.name, found->info.name) < 0))
                                found = d;
        return found;
}

static void tell_alone(const struct core_daemon *daemon, char reason[MFL_REASON_BYTES])
{
        const struct mfl_daemon_info *have = &daemon->info;
        const struct core_daemon *other = daemon->conn && have->node[0] ? find_stranger(daemon) : NULL;
        const struct mfl_reach *a = &have->reach, *b = other ? &other->info.reach : NULL;
        if (!daemon->conn)
                mfl_strcpy(reason, MFL_REASON_BYTES, "it is not connected");
        else if (!other)
                mfl_strcpy(reason, MFL_REASON_BYTES, "no other daemon on its node");
        else if (!have->has_reach)
                mfl_strcpy(reason, MFL_REASON_BYTES, "it does not say how others can reach it");
        else if (!a->memory_space)
                mfl_snprintf(reason, MFL_REASON_BYTES, "%.200s", a->memory_reason);
        else if (!have->instance)
                mfl_strcpy(reason, MFL_REASON_BYTES, "its instance number is 0");
        else if (!other->info.has_reach)
                mfl_snprintf(reason, MFL_REASON_BYTES, "%s does not say how to reach it", other->info.name);
        else if (a->user != b->user)
                mfl_snprintf(reason, MFL_REASON_BYTES, "another user than %s (uid %u, here %u)",
                        other->info.name, b->user, a->user);
        else if (a->network_space != b->network_space)
                mfl_snprintf(reason, MFL_REASON_BYTES, "another network namespace than %s", other->info.name);
        else if (!b->memory_space)
                mfl_snprintf(reason, MFL_REASON_BYTES, "%s: %.180s", other->info.name, b->memory_reason);
        else if (!other->info.instance)
                mfl_snprintf(reason, MFL_REASON_BYTES, "%s: its instance number is 0", other->info.name);
        else
                mfl_snprintf(reason, MFL_REASON_BYTES, "another /dev/shm than %s", other->info.name);
}

static const struct core_daemon *first_connected(const struct core_node *node, uint32_t *ret_n)
{
        const struct core_daemon *first = NULL;
        *ret_n = 0;
        for (const struct core_daemon *d = node->first; d; d = d->node_next) {
                if (!d->conn)
                        continue;
                first = first ? first : d;
                ++*ret_n;
        }
        return first;
}

void mfl_core_node_view(
        const struct mfl_core *core, const struct core_daemon *daemon, struct mfl_core_daemon_view *ret_view)
{
        uint32_t n;
        const struct core_daemon *first = first_connected(daemon->node, &n);
        const struct core_group *group = group_of(daemon);
        ret_view->collective = MFL_COLLECTIVE_SOLO;
        ret_view->leader = false;
        ret_view->alone[0] = '\0';
        if (daemon->conn && daemon->info.relay[0]) {
                ret_view->collective = MFL_COLLECTIVE_RELAY;
                return;
        }
        if (!daemon->conn || n < 2) {
                tell_alone(daemon, ret_view->alone);
                return;
        }
        ret_view->leader = daemon == first;
        bool no_nccl = tell_no_nccl(core, daemon, ret_view->alone);
        ret_view->collective = group ? group->collective : no_nccl ? MFL_COLLECTIVE_SHM : MFL_COLLECTIVE_NCCL;
        if (ret_view->collective == MFL_COLLECTIVE_NCCL || !daemon->info.device_uuid[0])
                ret_view->alone[0] = '\0'; /* nobody expects NCCL among CPUs */
}

void mfl_core_node(const struct mfl_core *core, uint32_t conn, char ret_node[MFL_NODE_BYTES])
{
        const struct core_daemon *daemon = mfl_core_map_get(&core->by_conn, conn);
        ret_node[0] = '\0';
        if (daemon)
                mfl_core_node_label(daemon, ret_node);
}
