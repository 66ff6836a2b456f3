/* SPDX-License-Identifier: Apache-2.0 */
/* What leaves a relay's core: actions, messages and trace lines. */
#include "server/relay/relay_internal.h"

struct mfl_relay_action *mfl_relay_act(
        struct mfl_relay_core *core, enum mfl_relay_action_kind kind, uint32_t peer)
{
        struct mfl_relay_actions *out = core->out;
        struct mfl_relay_action *action = &core->scrap;
        if (out->n == out->capacity) {
                uint32_t capacity = out->capacity ? out->capacity * 2 : 8;
                struct mfl_relay_action *v = mfl_realloc(out->v, capacity * sizeof *v);
                if (v) {
                        out->v = v;
                        out->capacity = capacity;
                }
        }
        if (out->n < out->capacity) {
                action = &out->v[out->n++];
        } else {
                core->error = -ENOMEM;
                mfl_msg_deinit(&core->scrap.msg);
                free(core->scrap.ranges);
        }
        *action = (struct mfl_relay_action){.kind = kind, .peer = peer};
        return action;
}

struct mfl_msg *mfl_relay_send(struct mfl_relay_core *core, uint32_t peer, bool up, enum mfl_msg_kind kind)
{
        struct mfl_relay_action *action = mfl_relay_act(core, MFL_RELAY_ACT_SEND, peer);
        action->up = up;
        action->msg.kind = kind;
        return &action->msg;
}

void mfl_relay_trace(struct mfl_relay_core *core, const char *fmt, ...)
{
        va_list ap;
        struct mfl_relay_action *action = mfl_relay_act(core, MFL_RELAY_ACT_TRACE, 0);
        va_start(ap, fmt);
        mfl_vsnprintf(action->text, sizeof action->text, fmt, ap);
        va_end(ap);
}

void mfl_relay_actions_clear(struct mfl_relay_actions *actions)
{
        for (uint32_t i = 0; i < actions->n; i++) {
                mfl_msg_deinit(&actions->v[i].msg);
                free(actions->v[i].ranges);
        }
        actions->n = 0;
}

void mfl_relay_actions_deinit(struct mfl_relay_actions *actions)
{
        mfl_relay_actions_clear(actions);
        free(actions->v);
        *actions = (struct mfl_relay_actions){0};
}
