/* SPDX-License-Identifier: Apache-2.0 */
/* Actions, trace lines and the next timer of a step. */
#include "server/state/state.h"

void mfl_core_action_deinit(struct mfl_core_action *action)
{
        if (action->kind == MFL_ACT_SEND)
                mfl_msg_deinit(&action->msg);
}

struct mfl_core_action *mfl_core_act(
        struct mfl_core *core, enum mfl_core_action_kind kind, const struct core_job *job)
{
        struct mfl_core_actions *out = core->out;
        if (out->n == out->capacity) {
                uint32_t capacity = out->capacity ? out->capacity * 2 : 16;
                struct mfl_core_action *v = mfl_realloc(out->v, capacity * sizeof *v);
                if (!v) {
                        core->error = -ENOMEM;
                        mfl_core_action_deinit(&core->scrap);
                        core->scrap = (struct mfl_core_action){.kind = kind};
                        return &core->scrap;
                }
                out->v = v;
                out->capacity = capacity;
        }
        struct mfl_core_action *action = &out->v[out->n++];
        *action = (struct mfl_core_action){.kind = kind};
        if (job) {
                mfl_strcpy(action->job, sizeof action->job, job->id);
                action->round = job->round;
        }
        return action;
}

void mfl_core_trace(struct mfl_core *core, const struct core_job *job, const char *fmt, ...)
{
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_TRACE, job);
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(action->reason, sizeof action->reason, fmt, ap);
        va_end(ap);
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

void mfl_core_send_close(struct mfl_core *core, uint32_t conn, bool retry, const char *reason)
{
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_CLOSE, NULL);
        action->conn = conn;
        action->retry = retry;
        mfl_strcpy(action->reason, sizeof action->reason, reason);
}

void mfl_core_wake(struct mfl_core *core, uint64_t at_ms)
{
        core->scan_ms = MFL_MIN(core->scan_ms, at_ms);
}

uint64_t mfl_core_number(struct mfl_core *core)
{
        return (uint64_t)core->options.boot << 32 | ++core->task_serial;
}
