/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemons form a node, in which order, and what keeps a daemon from adding by NCCL.
 *
 * Nodes are found by a digest of what must be equal, as daemons are by a digest of their names.
 */
#include "server/state/state.h"

/* Hosts without a name may have equal spaces by chance. Members know each other by their instances; 0
 * means nobody. */
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

/* The leader should have the most memory, because it holds the others' sums for a moment. Bus and name
 * make the order the same every time. */
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

/* ---- what it is, and what it can ---- */

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

static bool is_in(const struct core_daemon *daemon, uint64_t deal)
{
        return daemon->conn && (!deal || (daemon->deal == deal && daemon->n_dealt == 1));
}

static void version_text(uint32_t version, char text[16])
{
        mfl_snprintf(text, 16, "%u.%u.%u", version / 10000, version / 100 % 100, version % 100);
}

/* What keeps the daemon from using NCCL at all. */
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

/* What keeps the daemon from using NCCL with the other one. */
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

bool mfl_core_node_obstacle(const struct core_daemon *daemon, uint64_t deal, char reason[MFL_REASON_BYTES])
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
                if (is_in(d, deal) && mfl_core_node_obstacle(d, deal, reason))
                        return false;
        return true;
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
