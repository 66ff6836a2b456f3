/* SPDX-License-Identifier: Apache-2.0 */
/* A second process under the name of a connected daemon. */
#include "server/work/core_rival.h"

#include "server/work/core_presence.h"

#define SILENT_MS 2000
#define WAIT_MAX_MS 8000 /* a daemon that gets no Welcome gives up after 10 s */

struct core_rival {
        struct core_rival *next;
        uint64_t key, cookie, since_ms;
        uint32_t conn;
        bool drained;
        struct mfl_daemon_info info;
};

static void take_out(struct mfl_core *core, struct core_rival *rival)
{
        struct core_rival **at = &core->rivals;
        while (*at != rival)
                at = &(*at)->next;
        *at = rival->next;
}

static void free_rival(struct core_rival *rival)
{
        free(rival->info.data_sets);
        free(rival);
}

void mfl_core_rivals_free(struct mfl_core *core)
{
        while (core->rivals) {
                struct core_rival *rival = core->rivals;
                core->rivals = rival->next;
                free_rival(rival);
        }
}

static struct core_rival *find(const struct mfl_core *core, uint64_t key)
{
        struct core_rival *rival = core->rivals;
        while (rival && rival->key != key)
                rival = rival->next;
        return rival;
}

static void refuse(struct mfl_core *core, struct core_daemon *daemon, struct core_rival *rival)
{
        char reason[MFL_REASON_BYTES];
        mfl_snprintf(reason, sizeof reason,
                "another process under the name %s is connected, on node %s: give each daemon its own name",
                daemon->info.name, *daemon->info.node ? daemon->info.node : "unknown");
        if (daemon->rival_instance != rival->info.instance)
                mfl_core_trace(core, NULL,
                        "a second process under the name %s, on node %s, is refused while the first one "
                        "lives",
                        daemon->info.name, *rival->info.node ? rival->info.node : "unknown");
        daemon->rival_instance = rival->info.instance;
        daemon->rival_ms = core->now_ms;
        mfl_strcpy(daemon->rival_node, sizeof daemon->rival_node, rival->info.node);
        mfl_core_send_close(core, rival->conn, true, reason);
        take_out(core, rival);
        free_rival(rival);
}

/* One rival per daemon: a later one takes the place of the one before, and its waiting time. */
void mfl_core_rival_add(
        struct mfl_core *core, uint32_t conn, const struct mfl_daemon_info *info, bool drained)
{
        struct core_daemon *daemon = mfl_core_daemon_find(core, info->name);
        struct core_rival *before = find(core, daemon->key), *rival = mfl_calloc(1, sizeof *rival);
        if (!rival || mfl_core_info_copy(&rival->info, info)) {
                free(rival);
                core->error = -ENOMEM;
                return;
        }
        rival->key = daemon->key;
        rival->conn = conn;
        rival->drained = drained;
        rival->since_ms = before ? before->since_ms : core->now_ms;
        rival->cookie = (uint64_t)1 << 63 | ++core->rival_serial; /* no other Ping has such a cookie */
        rival->next = core->rivals;
        core->rivals = rival;
        if (before) {
                mfl_core_send_close(core, before->conn, true, "another process came under this name");
                take_out(core, before);
                free_rival(before);
        }
        mfl_core_send(core, daemon, MFL_MSG_PING)->cookie = rival->cookie;
        mfl_core_wake(core, core->now_ms + SILENT_MS);
}

void mfl_core_rival_pong(struct mfl_core *core, struct core_daemon *daemon, uint64_t cookie)
{
        struct core_rival *rival = find(core, daemon->key);
        if (rival && rival->cookie == cookie)
                refuse(core, daemon, rival);
}

void mfl_core_rival_gone(struct mfl_core *core, uint32_t conn)
{
        for (struct core_rival *rival = core->rivals; rival; rival = rival->next)
                if (rival->conn == conn) {
                        take_out(core, rival);
                        free_rival(rival);
                        return;
                }
}

void mfl_core_rival_expel(struct mfl_core *core, const char *name, const char *reason)
{
        struct core_rival *rival = find(core, mfl_core_name_key(name));
        if (!rival)
                return;
        mfl_core_send_close(core, rival->conn, true, reason);
        take_out(core, rival);
        free_rival(rival);
}

/* A daemon that is heard from lives, even if its Pong is stuck behind other messages on a slow line. */
static void decide(struct mfl_core *core, struct core_rival *rival, uint64_t *next_ms)
{
        struct core_daemon *daemon = mfl_core_map_get(&core->by_key, rival->key);
        if (!daemon || !daemon->conn)
                return;
        uint64_t silent_at = MFL_MAX(rival->since_ms, daemon->heard_ms) + SILENT_MS;
        uint64_t end = rival->since_ms + WAIT_MAX_MS;
        if (core->now_ms >= silent_at)
                mfl_core_daemon_close(
                        core, daemon, true, "it is silent, and another process came under its name");
        else if (core->now_ms >= end)
                refuse(core, daemon, rival);
        else
                *next_ms = MFL_MIN(*next_ms, MFL_MIN(silent_at, end));
}

void mfl_core_rivals_timers(struct mfl_core *core, uint64_t *next_ms)
{
        for (struct core_rival *rival = core->rivals, *next; rival; rival = next) {
                next = rival->next;
                decide(core, rival, next_ms);
        }
}

void mfl_core_rivals_admit(struct mfl_core *core)
{
        for (struct core_rival *rival = core->rivals, *next; rival && !core->error; rival = next) {
                struct core_daemon *daemon = mfl_core_map_get(&core->by_key, rival->key);
                next = rival->next;
                if (daemon && daemon->conn)
                        continue;
                take_out(core, rival);
                bool in = mfl_core_daemon_up(core, rival->conn, &rival->info, rival->drained);
                mfl_assert(in);
                free_rival(rival);
        }
}
