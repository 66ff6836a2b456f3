/* SPDX-License-Identifier: Apache-2.0 */
/* A relay: opened, stepped, closed. */
#include "server/relay/relay.h"

#include <sys/random.h>
#include <unistd.h>

#include "common/base/log.h"
#include "server/relay/relay_shell.h"
#include "server/session/admission.h"
#include "server/transfer/params_down.h"

#define BEAT_MS 200
#define SLOTS_DEFAULT 4u

/* ---- the core ---- */

/* Without memory the update goes up by itself. */
static void open_slot(
        struct mfl_relay *relay, struct relay_daemon *daemon, const struct mfl_relay_action *action)
{
        struct mfl_range range = {.offset = 0, .bytes = action->bytes};
        struct mfl_msg msg = {.kind = MFL_MSG_GRANT};
        struct mfl_relay_event event = {
                .kind = MFL_RELAY_EV_NO_ROOM, .slot = action->slot, .grant = action->grant};
        if (!daemon || !relay_slot_open(relay, action)) {
                relay_step(relay, &event);
                return;
        }
        msg.update.task = action->task;
        msg.update.n_ranges = 1;
        msg.update.ranges = &range;
        relay_daemon_send(daemon, &msg, false);
}

static void carry_out(struct mfl_relay *relay, const struct mfl_relay_action *action)
{
        struct relay_daemon *daemon = action->peer ? relay_daemon_find(relay, action->peer) : NULL;
        switch (action->kind) {
        case MFL_RELAY_ACT_PASS:
                if (daemon)
                        relay_daemon_pass(daemon, action);
                break;
        case MFL_RELAY_ACT_SEND:
                if (daemon)
                        relay_daemon_send(daemon, &action->msg, action->up);
                break;
        case MFL_RELAY_ACT_PART:
                if (daemon)
                        relay_daemon_part(daemon);
                break;
        case MFL_RELAY_ACT_OPEN:
                open_slot(relay, daemon, action);
                break;
        case MFL_RELAY_ACT_CLOSE:
                relay_slot_close(relay, action);
                break;
        case MFL_RELAY_ACT_ADD:
                relay_slot_add(relay, action);
                break;
        case MFL_RELAY_ACT_SUM_SEND:
                relay_sum_send(relay, action);
                break;
        case MFL_RELAY_ACT_SUM_FREE:
                relay_sum_free(relay, action->group);
                break;
        case MFL_RELAY_ACT_TRACE:
                mfl_log(MFL_LOG_INFO, "%s", action->text);
                break;
        }
}

/* An event that comes up while actions are carried out has nothing borrowed, and waits for its turn. */
struct waiting_event {
        struct mfl_relay_event event;
        struct waiting_event *next;
};

static void step_one(struct mfl_relay *relay, struct mfl_relay_event *event)
{
        struct mfl_relay_actions actions = {0};
        event->now_ms = mfl_loop_now(relay->loop);
        if (mfl_relay_core_step(relay->core, event, &actions))
                mfl_loop_no_memory(relay->loop, 0, "the relay");
        for (uint32_t i = 0; i < actions.n; i++)
                carry_out(relay, &actions.v[i]);
        mfl_relay_actions_deinit(&actions);
}

static void step(struct mfl_relay *relay, struct mfl_relay_event *event)
{
        struct waiting_event *waiting;
        if (relay->stepping) {
                mfl_assert(!event->msg);
                waiting = mfl_calloc(1, sizeof *waiting);
                if (!waiting) {
                        mfl_loop_no_memory(relay->loop, sizeof *waiting, "an event");
                        return;
                }
                waiting->event = *event;
                *relay->waiting_end = waiting;
                relay->waiting_end = &waiting->next;
                return;
        }
        relay->stepping = true;
        step_one(relay, event);
        while ((waiting = relay->waiting)) {
                relay->waiting = waiting->next;
                if (!relay->waiting)
                        relay->waiting_end = &relay->waiting;
                step_one(relay, &waiting->event);
                free(waiting);
        }
        relay->stepping = false;
}

static void reset(struct mfl_relay *relay)
{
        struct mfl_error err;
        const struct mfl_relay_options options = {
                .n_slots = relay->config->slots ? MFL_MIN(relay->config->slots, MFL_RELAY_SLOTS_MAX)
                                                : SLOTS_DEFAULT,
                .stall_ms = relay->config->upload_stall_ms};
        struct mfl_relay_core *core;
        mfl_assert(!relay->stepping);
        int r = mfl_relay_core_new(&options, &core, &err);
        if (r) {
                mfl_loop_fatal(relay->loop, r, &err);
                return;
        }
        mfl_relay_core_free(relay->core);
        relay->core = core;
        relay->epoch++;
        relay_sums_reset(relay);
}

static const struct relay_top top = {.step = step, .reset = reset};

/* ---- relays below ---- */

static bool is_ready(void *user, const char **ret_why)
{
        const struct mfl_relay *relay = user;
        *ret_why = "the relay is not connected to its server yet";
        return relay_is_up(relay);
}

static void lower_params(void *user, struct mfl_session *session, const Mfl__ParamsGet *get)
{
        relay_params_ask(user, session, get);
}

static void lower_closed(void *user, struct mfl_session *session)
{
        relay_params_leave(user, session);
        mfl_transfer_stop(session);
}

static const struct mfl_carriers_ops lower_ops = {
        .ready = is_ready, .params = lower_params, .closed = lower_closed};

static void on_beat(uv_timer_t *timer)
{
        struct mfl_relay *relay = timer->data;
        struct mfl_relay_event tick = {.kind = MFL_RELAY_EV_TICK};
        mfl_sessions_beat(relay->sessions);
        mfl_carriers_beat(&relay->carriers);
        relay_up_beat(relay);
        relay_daemons_resume(relay);
        relay_step(relay, &tick);
}

/* ---- open and close ---- */

static bool is_name(const char *name)
{
        static const char chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
        return *name && !name[strspn(name, chars)];
}

static int find_name(struct mfl_relay *relay, struct mfl_error *err)
{
        const struct mfl_tls_context *tls = relay->sessions->admission.tls;
        const char *cn = tls ? mfl_tls_context_identity(tls)->name : "";
        if (*relay->config->name)
                mfl_strcpy(relay->name, sizeof relay->name, relay->config->name);
        else if (*cn)
                mfl_strcpy(relay->name, sizeof relay->name, cn);
        else if (gethostname(relay->name, sizeof relay->name - 1))
                return mfl_fail_errno(err, "gethostname");
        if (!is_name(relay->name))
                return mfl_fail(err, MFL_INVALID,
                        "name: '%s' is not 1 to 63 of A-Z a-z 0-9 . _ -: give the relay another one (--name)",
                        relay->name);
        if (*cn && strcmp(cn, relay->name) != 0)
                return mfl_fail(err, MFL_INVALID,
                        "name: the relay is called %s, and its certificate is that of %s: leave name out",
                        relay->name, cn);
        return 0;
}

int mfl_relay_open(struct mfl_loop *loop, struct mfl_sessions *sessions,
        const struct mfl_server_config *config, struct mfl_budget *budget, struct mfl_relay **ret_relay,
        struct mfl_error *err)
{
        struct mfl_relay *relay = mfl_calloc(1, sizeof *relay);
        if (!relay)
                return mfl_fail_memory(err, sizeof *relay, "a relay");
        *relay = (struct mfl_relay){.loop = loop, .sessions = sessions, .config = config, .budget = budget};
        relay->top = &top;
        relay->waiting_end = &relay->waiting;
        if (getrandom(&relay->instance, sizeof relay->instance, 0) < 0)
                return mfl_fail_errno(err, "getrandom");
        int r = find_name(relay, err);
        if (r)
                return r;
        relay->carriers = (struct mfl_carriers){.loop = loop,
                .sessions = sessions,
                .heartbeat_ms = (uint32_t)config->heartbeat_ms,
                .dead_ms = (uint32_t)config->dead_ms,
                .instance = relay->instance,
                .name = relay->name,
                .ops = &lower_ops,
                .user = relay};
        reset(relay);
        relay_daemons_open(relay);
        mfl_carriers_open(&relay->carriers);
        uv_timer_init(&loop->uv, &relay->beat);
        relay->beat.data = relay;
        uv_timer_start(&relay->beat, on_beat, BEAT_MS, BEAT_MS);
        *ret_relay = relay;
        return relay_up_open(relay, err);
}

const char *mfl_relay_name(const struct mfl_relay *relay)
{
        return relay->name;
}

const char *mfl_relay_over(const struct mfl_relay *relay)
{
        return relay->up.final ? relay->up.bye : NULL;
}

void mfl_relay_end(struct mfl_relay *relay)
{
        relay->ended = true;
        uv_close((uv_handle_t *)&relay->beat, NULL);
        for (struct relay_daemon *daemon = relay->daemons; daemon; daemon = daemon->next)
                relay_daemon_part(daemon);
        relay_up_close(relay);
}

void mfl_relay_close(struct mfl_relay *relay)
{
        mfl_assert(!relay->daemons && relay->up.state == UP_NONE);
        relay_params_reset(relay, true);
        relay_sums_reset(relay);
        mfl_relay_core_free(relay->core);
        mfl_core_map_deinit(&relay->by_conn);
        free(relay);
}
