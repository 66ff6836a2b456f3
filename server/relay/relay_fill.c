/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of a relay: updates wait for one, arrive, and are added. */
#include "server/relay/relay_internal.h"

void mfl_relay_fill_queue(struct mfl_relay_core *core, struct relay_fill *fill)
{
        mfl_assert(fill->state == FILL_NONE);
        fill->state = FILL_QUEUED;
        fill->next = NULL;
        *core->queue_end = fill;
        core->queue_end = &fill->next;
}

static void unqueue(struct mfl_relay_core *core, struct relay_fill *fill)
{
        struct relay_fill **at = &core->queue;
        while (*at != fill)
                at = &(*at)->next;
        *at = fill->next;
        if (core->queue_end == &fill->next)
                core->queue_end = at;
        fill->state = FILL_NONE;
}

static void close_slot(struct mfl_relay_core *core, struct relay_fill *fill)
{
        struct mfl_relay_action *action = mfl_relay_act(core, MFL_RELAY_ACT_CLOSE, fill->peer);
        action->slot = fill->slot;
        action->grant = fill->grant;
        core->slots[fill->slot] = NULL;
}

void mfl_relay_fill_drop(struct mfl_relay_core *core, struct relay_fill *fill)
{
        if (fill->state == FILL_QUEUED) {
                unqueue(core, fill);
        } else if (fill->state == FILL_FILLING) {
                close_slot(core, fill);
                fill->state = FILL_NONE;
        }
}

void mfl_relay_fills_start(struct mfl_relay_core *core)
{
        for (uint32_t s = 0; s < core->options.n_slots && core->queue; s++) {
                struct relay_fill *fill = core->queue;
                if (core->slots[s])
                        continue;
                unqueue(core, fill);
                fill->state = FILL_FILLING;
                fill->slot = s;
                fill->grant = ++core->grant_serial;
                fill->moved_ms = core->now_ms;
                core->slots[s] = fill;
                struct mfl_relay_action *action = mfl_relay_act(core, MFL_RELAY_ACT_OPEN, fill->peer);
                action->slot = s;
                action->grant = fill->grant;
                action->task = fill->task;
                action->bytes = fill->group->bytes;
        }
}

struct relay_fill *mfl_relay_fill_stalled(struct mfl_relay_core *core)
{
        for (uint32_t s = 0; s < core->options.n_slots && core->options.stall_ms; s++) {
                struct relay_fill *fill = core->slots[s];
                if (!fill || fill->state != FILL_FILLING ||
                        core->now_ms - fill->moved_ms < core->options.stall_ms)
                        continue;
                mfl_relay_trace(
                        core, "an update of task %u does not come; it goes up alone", (uint32_t)fill->task);
                mfl_relay_fill_drop(core, fill);
                return fill;
        }
        return NULL;
}

static void begin_add(struct mfl_relay_core *core, struct relay_fill *fill)
{
        fill->state = FILL_ADDING;
        fill->group->n_adding++;
        struct mfl_relay_action *action = mfl_relay_act(core, MFL_RELAY_ACT_ADD, fill->peer);
        action->slot = fill->slot;
        action->grant = fill->grant;
        action->group = fill->group->number;
        action->bytes = fill->group->bytes;
}

struct relay_fill *mfl_relay_fill_event(struct mfl_relay_core *core, const struct mfl_relay_event *event)
{
        mfl_assert(event->slot < core->options.n_slots);
        struct relay_fill *fill = core->slots[event->slot];
        if (!fill || fill->grant != event->grant) /* late: the slot has been taken back */
                return NULL;
        if (event->kind == MFL_RELAY_EV_ADDED) {
                close_slot(core, fill);
                fill->state = event->ok ? FILL_DONE : FILL_NONE;
                return fill;
        }
        if (fill->state != FILL_FILLING)
                return NULL;
        if (event->kind == MFL_RELAY_EV_NO_ROOM) {
                mfl_relay_trace(core, "there is no memory for an update of task %u; it goes up alone",
                        (uint32_t)fill->task);
                mfl_relay_fill_drop(core, fill);
                return fill;
        }
        fill->moved_ms = core->now_ms;
        if (event->kind == MFL_RELAY_EV_WHOLE)
                begin_add(core, fill);
        return NULL;
}
