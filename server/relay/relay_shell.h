/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a relay's shell share. */
#ifndef MFL_SERVER_RELAY_RELAY_SHELL_H
#define MFL_SERVER_RELAY_RELAY_SHELL_H

#include "proto/servers.h"
#include "server/carrier/carrier.h"
#include "server/relay/relay.h"
#include "server/relay/relay_core.h"
#include "server/runtime/runtime.h"
#include "server/state/core_map.h"

enum relay_up_state {
        UP_NONE, /* waits before it tries again */
        UP_CONNECTING,
        UP_GREETED, /* Hello is sent */
        UP_WELCOME,
        UP_CLOSING,
};

struct relay_up {
        enum relay_up_state state;
        struct mfl_stream stream;
        uv_timer_t retry;
        uint32_t n_failures;
        uint32_t heartbeat_ms, dead_ms;
        char last_reason[MFL_REASON_BYTES]; /* logged: one line, not one per attempt */
        char bye[MFL_REASON_BYTES];         /* what the server said */
        bool final;                         /* it said that coming back is useless */
        struct mfl_servers servers;         /* one; or those of a cluster */
        char leader[304];                   /* whom one that does not lead has named */
};

/* Numbers of a slot or a sum, shared by all who still use them. */
struct relay_block {
        uint32_t refs;
        struct mfl_budget *budget;
        uint64_t bytes;
        int64_t v[];
};

#define RELAY_PIECES_MAX 64u

struct relay_slot {
        bool open;
        uint64_t grant, task, bytes, arrived;
        uint32_t conn;
        struct relay_block *block;
        uint32_t n_pieces; /* of what has arrived: ascending, with gaps between them */
        struct mfl_range pieces[RELAY_PIECES_MAX];
};

/* A sum of a group. */
struct relay_sum {
        uint64_t group;
        struct relay_block *block;
        struct relay_sum *next;
};

/* A daemon below; its number is its session's. */
struct relay_daemon {
        struct mfl_relay *relay;
        uint32_t conn;
        struct mfl_session *session; /* NULL: it is gone */
        struct mfl_stream up;        /* carried by the connection above */
        bool up_open;
        struct relay_daemon *next, **prev_next;
        uint8_t *from_below, *from_above; /* a payload that is passed on */
        /* A chunk that arrives in a slot. */
        struct relay_block *landing;
        uint32_t landing_slot;
        uint64_t landing_grant, landing_offset, landing_bytes;
        size_t landing_packed;
};

/* What relay.c does for the files below it. */
struct relay_top {
        void (*step)(struct mfl_relay *relay, struct mfl_relay_event *event);
        void (*reset)(struct mfl_relay *relay); /* a new core: nothing is under way */
};

struct mfl_relay {
        const struct relay_top *top;
        struct mfl_loop *loop;
        struct mfl_sessions *sessions;
        const struct mfl_server_config *config;
        struct mfl_budget *budget;
        struct mfl_carriers carriers;
        uint64_t instance;
        char name[MFL_NAME_BYTES];
        struct relay_up up;
        uv_timer_t beat;
        struct mfl_relay_core *core;
        uint64_t epoch; /* rises when the core is made anew: what was ordered before is for nobody */
        bool stepping, ended;
        struct waiting_event *waiting, **waiting_end; /* relay.c */
        const Mfl__Envelope *passing;                 /* while the core looks at it */
        struct relay_daemon *daemons;
        struct core_map by_conn;
        struct relay_slot slots[MFL_RELAY_SLOTS_MAX];
        struct relay_sum *sums;
        struct relay_cached *cache; /* relay_params.c */
};

static inline void relay_step(struct mfl_relay *relay, struct mfl_relay_event *event)
{
        relay->top->step(relay, event);
}

static inline struct relay_daemon *relay_daemon_find(const struct mfl_relay *relay, uint32_t conn)
{
        return mfl_core_map_get(&relay->by_conn, conn);
}

/* relay_up.c */
int relay_up_open(struct mfl_relay *relay, struct mfl_error *err);
void relay_up_beat(struct mfl_relay *relay);
void relay_up_close(struct mfl_relay *relay);
static inline bool relay_is_up(const struct mfl_relay *relay)
{
        return relay->up.state == UP_WELCOME;
}

/* relay_daemon.c */
void relay_daemons_open(struct mfl_relay *relay);
/* Daemons whose bytes had to wait may send again, if what waits to go up is little. */
void relay_daemons_resume(struct mfl_relay *relay);
void relay_daemon_pass(struct relay_daemon *daemon, const struct mfl_relay_action *action);
void relay_daemon_send(struct relay_daemon *daemon, const struct mfl_msg *msg, bool up);
void relay_daemon_part(struct relay_daemon *daemon);
/* The connection above has ended: all of them are told to come again. */
void relay_daemons_drop(struct mfl_relay *relay, const char *reason);

/* relay_params.c */
void relay_params_ask(struct mfl_relay *relay, struct mfl_session *session, const Mfl__ParamsGet *get);
/* It does not wait for params any longer. */
void relay_params_leave(struct mfl_relay *relay, const struct mfl_session *session);
/* As mfl_stream_ops, for what comes to the relay itself. */
int relay_params_payload(
        struct mfl_relay *relay, const Mfl__Params *params, size_t payload_bytes, void **ret_dst);
void relay_params_frame(struct mfl_relay *relay, const Mfl__Params *params, size_t payload_bytes);
void relay_params_gone(struct mfl_relay *relay, const Mfl__ParamsGone *gone);
/* Nothing is fetched any longer. all: also drops what is whole. */
void relay_params_reset(struct mfl_relay *relay, bool all);
void relay_params_forget(struct mfl_relay *relay, const char *job);

/* relay_sum.c */
/* False: there is no memory. */
bool relay_slot_open(struct mfl_relay *relay, const struct mfl_relay_action *action);
void relay_slot_close(struct mfl_relay *relay, const struct mfl_relay_action *action);
void relay_slot_add(struct mfl_relay *relay, const struct mfl_relay_action *action);
/* Whether a slot takes this chunk; *ret_dst NULL: read and drop it. MFL_INVALID: outside the update. */
bool relay_slot_begin(struct relay_daemon *daemon, const Mfl__Chunk *chunk, size_t payload_bytes,
        void **ret_dst, int *ret_status, struct mfl_error *err);
/* The chunk has arrived, or never will. False: none was coming. */
bool relay_slot_end(struct relay_daemon *daemon, bool arrived, int *ret_status, struct mfl_error *err);
void relay_sum_send(struct mfl_relay *relay, const struct mfl_relay_action *action);
void relay_sum_free(struct mfl_relay *relay, uint64_t group);
void relay_sums_reset(struct mfl_relay *relay);

#endif
