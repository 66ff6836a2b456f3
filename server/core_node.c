/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemons form a node, in which order, and what keeps a daemon out of one. See core.h, "Nodes".
 *
 * A node is found by a digest of what must be equal, as daemons are by that of their names. A daemon that
 * nobody can reach is a node of its own, so that every daemon has one.
 */
#include "server/core_internal.h"

/* Two hosts that don't say which they are may have the same spaces, and members are known to each other by
 * their instance numbers, of which 0 means nobody. */
static bool is_reachable(const struct mfl_daemon_info *info)
{
        return info->has_reach && info->reach.memory_space && info->node[0] && info->instance;
}

static bool is_mig(const struct core_daemon *daemon)
{
        return strncmp(daemon->info.device_uuid, "MIG-", 4) == 0;
}

static uint64_t node_key(const struct mfl_daemon_info *info)
{
        char text[4 * MFL_NAME_BYTES];
        const struct mfl_reach *reach = &info->reach;
        if (is_reachable(info))
                mfl_snprintf(text, sizeof text, "node %s, user %u, spaces %llu %llu", info->node, reach->user,
                        (unsigned long long)reach->network_space, (unsigned long long)reach->memory_space);
        else
                mfl_snprintf(text, sizeof text, "daemon %s", info->name);
        return mfl_core_name_key(text);
}

/* Its leader should have the most memory, since it holds the others' sums for a moment. The bus and the name
 * only make the order the same each time. */
static int compare(const struct core_daemon *x, const struct core_daemon *y)
{
        if (x->info.device_memory != y->info.device_memory)
                return x->info.device_memory > y->info.device_memory ? -1 : 1;
        int r = strcmp(x->info.device_pci, y->info.device_pci);
        return r ? r : strcmp(x->info.name, y->info.name);
}

/* ---- coming and going ---- */

bool mfl_core_node_same(const struct core_daemon *daemon, const struct mfl_daemon_info *info)
{
        const struct mfl_daemon_info *was = &daemon->info;
        return daemon->node && was->instance == info->instance && strcmp(was->node, info->node) == 0 &&
               node_key(was) == node_key(info) && was->device_memory == info->device_memory &&
               strcmp(was->device_pci, info->device_pci) == 0 &&
               strcmp(was->device_uuid, info->device_uuid) == 0 && was->reach.nccl == info->reach.nccl;
}

static struct core_host *find_host(struct mfl_core *core, const char *name)
{
        uint64_t key = mfl_core_name_key(name);
        struct core_host *host = mfl_core_map_get(&core->hosts, key);
        if (host)
                return host;
        host = mfl_calloc(1, sizeof *host);
        if (!host || mfl_core_map_put(&core->hosts, key, host)) {
                free(host);
                return NULL;
        }
        host->key = key;
        return host;
}

static void free_empty_host(struct mfl_core *core, struct core_host *host)
{
        if (host->n_nodes)
                return;
        mfl_core_map_remove(&core->hosts, host->key);
        free(host);
}

static struct core_node *find_node(struct mfl_core *core, const struct mfl_daemon_info *info)
{
        uint64_t key = node_key(info);
        struct core_node *node = mfl_core_map_get(&core->nodes, key);
        if (node)
                return node;
        struct core_host *host = find_host(core, info->node);
        if (!host)
                return NULL;
        node = mfl_calloc(1, sizeof *node);
        if (!node || mfl_core_map_put(&core->nodes, key, node)) {
                free(node);
                free_empty_host(core, host);
                return NULL;
        }
        node->key = key;
        node->host = host;
        node->host_next = host->first;
        host->first = node;
        host->n_nodes++;
        return node;
}

int mfl_core_node_enter(struct mfl_core *core, struct core_daemon *daemon)
{
        if (daemon->node)
                return 0;
        struct core_node *node = find_node(core, &daemon->info);
        if (!node)
                return -ENOMEM;
        struct core_daemon **at = &node->first;
        while (*at && compare(*at, daemon) < 0)
                at = &(*at)->node_next;
        daemon->node_next = *at;
        *at = daemon;
        daemon->node = node;
        node->n++;
        if (!node->by_name || strcmp(daemon->info.name, node->by_name->info.name) < 0)
                node->by_name = daemon;
        mfl_core_comm_change(core, node, 0);
        return 0;
}

static void find_by_name(struct core_node *node)
{
        node->by_name = node->first;
        for (const struct core_daemon *d = node->first; d; d = d->node_next)
                if (strcmp(d->info.name, node->by_name->info.name) < 0)
                        node->by_name = d;
}

void mfl_core_node_leave(struct mfl_core *core, struct core_daemon *daemon)
{
        struct core_node *node = daemon->node;
        if (!node)
                return;
        mfl_core_comm_change(core, node, daemon->info.instance);
        struct core_daemon **at = &node->first;
        while (*at != daemon)
                at = &(*at)->node_next;
        *at = daemon->node_next;
        daemon->node = NULL;
        daemon->node_next = NULL;
        if (node->by_name == daemon)
                find_by_name(node);
        if (--node->n)
                return;
        struct core_node **link = &node->host->first;
        while (*link != node)
                link = &(*link)->host_next;
        *link = node->host_next;
        node->host->n_nodes--;
        free_empty_host(core, node->host);
        mfl_core_map_remove(&core->nodes, node->key);
        free(node);
}

/* ---- what is shown ---- */

void mfl_core_node_label(const struct core_daemon *daemon, char ret_node[MFL_NODE_BYTES])
{
        const struct core_node *node = daemon->node;
        const char *first = node ? node->by_name->info.name : daemon->info.name;
        if (!daemon->info.node[0])
                mfl_strcpy(ret_node, MFL_NODE_BYTES, first);
        else if (node && node->host->n_nodes > 1)
                mfl_snprintf(ret_node, MFL_NODE_BYTES, "%s/%s", daemon->info.node, first);
        else
                mfl_strcpy(ret_node, MFL_NODE_BYTES, daemon->info.node);
}

void mfl_core_node(const struct mfl_core *core, uint32_t conn, char ret_node[MFL_NODE_BYTES])
{
        const struct core_daemon *daemon = mfl_core_map_get(&core->by_conn, conn);
        ret_node[0] = '\0';
        if (daemon)
                mfl_core_node_label(daemon, ret_node);
}

static bool is_in(const struct core_daemon *daemon, uint64_t deal)
{
        return daemon->conn && (!deal || (daemon->deal == deal && daemon->n_dealt == 1));
}

static void version_text(uint32_t version, char text[16])
{
        mfl_snprintf(text, 16, "%u.%u.%u", version / 10000, version / 100 % 100, version % 100);
}

/* What keeps one daemon from NCCL with anybody. */
static bool own_obstacle(const struct core_daemon *daemon, char reason[MFL_REASON_BYTES])
{
        const struct mfl_reach *reach = &daemon->info.reach;
        if (!daemon->info.device_uuid[0])
                mfl_strcpy(reason, MFL_REASON_BYTES, "it has no GPU");
        else if (is_mig(daemon))
                mfl_strcpy(reason, MFL_REASON_BYTES, "a MIG instance");
        else if (!reach->nccl)
                mfl_strcpy(reason, MFL_REASON_BYTES,
                        reach->nccl_reason[0] ? reach->nccl_reason : "it has no NCCL");
        else
                return false;
        return true;
}

/* What keeps it from NCCL with another one. */
static bool obstacle_with(
        const struct core_daemon *daemon, const struct core_daemon *other, char reason[MFL_REASON_BYTES])
{
        const struct mfl_daemon_info *have = &daemon->info, *o = &other->info;
        char why[MFL_REASON_BYTES], here[16], there[16];
        if (!o->device_uuid[0])
                mfl_snprintf(reason, MFL_REASON_BYTES, "%s has no GPU", o->name);
        else if (own_obstacle(other, why))
                mfl_snprintf(reason, MFL_REASON_BYTES, "%s: %.180s", o->name, why);
        else if (strcmp(have->device_uuid, o->device_uuid) == 0)
                mfl_snprintf(reason, MFL_REASON_BYTES, "shares %s with %s", have->device_uuid, o->name);
        else if (have->reach.nccl != o->reach.nccl) {
                version_text(have->reach.nccl, here);
                version_text(o->reach.nccl, there);
                mfl_snprintf(reason, MFL_REASON_BYTES, "NCCL %s here, %s at %s", here, there, o->name);
        } else
                return false;
        return true;
}

static bool obstacle(const struct core_daemon *daemon, uint64_t deal, char reason[MFL_REASON_BYTES])
{
        if (own_obstacle(daemon, reason))
                return true;
        for (const struct core_daemon *d = daemon->node->first; d; d = d->node_next)
                if (d != daemon && is_in(d, deal) && obstacle_with(daemon, d, reason))
                        return true;
        return false;
}

bool mfl_core_node_nccl(const struct core_node *node, uint64_t deal)
{
        char reason[MFL_REASON_BYTES];
        for (const struct core_daemon *d = node->first; d; d = d->node_next)
                if (is_in(d, deal) && obstacle(d, deal, reason))
                        return false;
        return true;
}

/* The first two of its connected daemons that share a GPU. Looked for once until a daemon comes or goes: a
 * list asks for every daemon of the node. */
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

/* Why not NCCL, seen from one of its GPUs: its own reason, or the only one that others can have among
 * themselves when each of them could add with this one. */
static bool tell_no_nccl(
        const struct mfl_core *core, const struct core_daemon *daemon, char reason[MFL_REASON_BYTES])
{
        struct core_node *node = daemon->node;
        const char *failed = mfl_core_comm_reason(core, daemon->info.instance);
        if (obstacle(daemon, 0, reason))
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

/* Of the daemons of its host, the first by name among those that are of another node. */
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

static const struct core_group *group_of(const struct core_daemon *daemon)
{
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (task->group)
                        return task->group;
        return NULL;
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
        if (!daemon->conn || n < 2) {
                tell_alone(daemon, ret_view->alone);
                return;
        }
        ret_view->leader = daemon == first;
        bool no_nccl = tell_no_nccl(core, daemon, ret_view->alone);
        ret_view->collective = group ? group->collective : no_nccl ? MFL_COLLECTIVE_SHM : MFL_COLLECTIVE_NCCL;
        if (ret_view->collective == MFL_COLLECTIVE_NCCL || !daemon->info.device_uuid[0])
                ret_view->alone[0] = '\0'; /* among CPUs nobody expects it */
}

/* ---- invariants ---- */

static uint32_t check_node(const struct core_node *node)
{
        uint32_t n = 0;
        for (const struct core_daemon *d = node->first; d; d = d->node_next, n++) {
                mfl_assert(d->node == node && node_key(&d->info) == node->key);
                mfl_assert(!d->node_next || compare(d, d->node_next) < 0);
                mfl_assert(strcmp(node->by_name->info.name, d->info.name) <= 0);
        }
        mfl_assert(n == node->n && n > 0 && node->host->n_nodes > 0);
        return n;
}

void mfl_core_node_check(const struct mfl_core *core)
{
        uint32_t n = 0, n_nodes = 0, n_daemons = 0;
        for (uint32_t i = 0; i < core->nodes.capacity; i++) {
                if (!core->nodes.values[i])
                        continue;
                n_daemons += check_node(core->nodes.values[i]);
                n++;
        }
        for (uint32_t i = 0; i < core->hosts.capacity; i++) {
                const struct core_host *host = core->hosts.values[i];
                n_nodes += host ? host->n_nodes : 0;
        }
        mfl_assert(n == core->nodes.n && n_nodes == n && n_daemons == core->n_daemons);
}
