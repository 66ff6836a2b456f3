/* SPDX-License-Identifier: Apache-2.0 */
/* Runs events through the core in order, and its actions in order. */
#include "server/loop/loop.h"

#include <sys/time.h>

#include "server/loop/states.h"

#define WORKER_QUEUE_MAX 65536

static const unsigned edges[] = {
        [MFL_LOOP_IDLE] = MFL_TO(MFL_LOOP_STEPPING) | MFL_TO(MFL_LOOP_BROKEN) | MFL_TO(MFL_LOOP_STOPPING),
        [MFL_LOOP_STEPPING] = MFL_TO(MFL_LOOP_IDLE) | MFL_TO(MFL_LOOP_BROKEN),
        [MFL_LOOP_BROKEN] = MFL_TO(MFL_LOOP_STOPPING),
        [MFL_LOOP_STOPPING] = 0,
};

struct mfl_event_node {
        struct mfl_core_event event;
        struct mfl_event_node *next;
};

uint64_t mfl_unix_ms(void)
{
        struct timeval tv;
        gettimeofday(&tv, NULL);
        return (uint64_t)tv.tv_sec * 1000u + (uint64_t)tv.tv_usec / 1000u;
}

uint64_t mfl_loop_now(const struct mfl_loop *loop)
{
        return uv_now(&loop->uv);
}

bool mfl_loop_is_stopping(const struct mfl_loop *loop)
{
        return loop->state == MFL_LOOP_STOPPING;
}

void mfl_loop_fatal(struct mfl_loop *loop, int code, const struct mfl_error *err)
{
        mfl_assert(code < 0);
        if (!mfl_state_may(loop->state, edges, MFL_LOOP_BROKEN))
                return;
        mfl_state_move(loop->state, edges, MFL_LOOP_BROKEN);
        loop->fatal = code;
        loop->fatal_error = *err;
        uv_stop(&loop->uv);
}

void mfl_loop_no_memory(struct mfl_loop *loop, size_t bytes, const char *what)
{
        struct mfl_error err;
        mfl_loop_fatal(loop, mfl_fail_memory(&err, bytes, what), &err);
}

/* ---- events and actions ---- */

static void queue_event(struct mfl_loop *loop, const struct mfl_core_event *event)
{
        /* These have borrowed parts, which would be gone when their turn comes. */
        mfl_assert(event->kind != MFL_EV_MESSAGE && event->kind != MFL_EV_DAEMON_UP &&
                   event->kind != MFL_EV_REFUSED && event->kind != MFL_EV_POPULATION);
        struct mfl_event_node *node = mfl_malloc(sizeof *node);
        if (!node) {
                mfl_loop_no_memory(loop, sizeof *node, "an event");
                return;
        }
        *node = (struct mfl_event_node){.event = *event};
        if (loop->last)
                loop->last->next = node;
        else
                loop->first = node;
        loop->last = node;
}

static struct mfl_event_node *take_event(struct mfl_loop *loop)
{
        struct mfl_event_node *node = loop->first;
        if (!node)
                return NULL;
        loop->first = node->next;
        if (!loop->first)
                loop->last = NULL;
        return node;
}

static void step(struct mfl_loop *loop, struct mfl_core_event *event)
{
        event->now_ms = mfl_loop_now(loop);
        loop->ops->before(loop->user, event);
        mfl_assert(!loop->actions.n);
        if (mfl_core_step(loop->core, event, &loop->actions) < 0) {
                mfl_loop_no_memory(loop, 0, "the core");
                return;
        }
        for (uint32_t i = 0; i < loop->actions.n && loop->state == MFL_LOOP_STEPPING; i++)
                loop->ops->carry_out(loop->user, &loop->actions.v[i]);
        mfl_core_actions_clear(&loop->actions);
}

static void on_tick(uv_timer_t *timer)
{
        struct mfl_loop *loop = timer->data;
        struct mfl_core_event event = {.kind = MFL_EV_TICK};
        loop->tick_due_ms = 0;
        mfl_loop_feed(loop, &event);
}

static void arm_tick(struct mfl_loop *loop)
{
        uint64_t due = mfl_core_next_ms(loop->core), now = mfl_loop_now(loop);
        if (due == loop->tick_due_ms)
                return;
        loop->tick_due_ms = due;
        if (due == UINT64_MAX)
                uv_timer_stop(&loop->tick);
        else
                uv_timer_start(&loop->tick, on_tick, due > now ? due - now : 0, 0);
}

void mfl_loop_feed(struct mfl_loop *loop, struct mfl_core_event *event)
{
        struct mfl_event_node *node;
        if (loop->state == MFL_LOOP_STEPPING) {
                queue_event(loop, event);
                return;
        }
        if (loop->state != MFL_LOOP_IDLE)
                return;
        mfl_state_move(loop->state, edges, MFL_LOOP_STEPPING);
        step(loop, event);
        while (loop->state == MFL_LOOP_STEPPING && (node = take_event(loop))) {
                step(loop, &node->event);
                free(node);
        }
        if (loop->state != MFL_LOOP_STEPPING)
                return;
        mfl_state_move(loop->state, edges, MFL_LOOP_IDLE);
        arm_tick(loop);
}

/* ---- open, run, close ---- */

int mfl_loop_open(struct mfl_loop *loop, struct mfl_core *core, const struct mfl_loop_ops *ops, void *user,
        struct mfl_error *err)
{
        mfl_assert(ops->before && ops->carry_out);
        *loop = (struct mfl_loop){.core = core, .ops = ops, .user = user, .state = MFL_LOOP_IDLE};
        int r = uv_loop_init(&loop->uv);
        if (r)
                return mfl_fail(err, -1, "libuv: %s", uv_strerror(r));
        uv_timer_init(&loop->uv, &loop->tick);
        loop->tick.data = loop;
        r = mfl_worker_start(&loop->compute, &loop->uv, "mfl-sums", WORKER_QUEUE_MAX, err);
        return r ? r : mfl_worker_start(&loop->disk, &loop->uv, "mfl-disk", WORKER_QUEUE_MAX, err);
}

int mfl_loop_open_copies(struct mfl_loop *loop, struct mfl_error *err)
{
        int r = mfl_worker_start(&loop->copies, &loop->uv, "mfl-copies", WORKER_QUEUE_MAX, err);
        loop->has_copies = !r;
        return r;
}

int mfl_loop_run(struct mfl_loop *loop, struct mfl_error *err)
{
        uv_run(&loop->uv, UV_RUN_DEFAULT);
        if (loop->fatal)
                *err = loop->fatal_error;
        return loop->fatal;
}

void mfl_loop_stop(struct mfl_loop *loop)
{
        uv_stop(&loop->uv);
}

void mfl_loop_begin_close(struct mfl_loop *loop)
{
        mfl_state_move(loop->state, edges, MFL_LOOP_STOPPING);
        mfl_worker_close(&loop->compute, NULL);
        mfl_worker_close(&loop->disk, NULL);
        if (loop->has_copies)
                mfl_worker_close(&loop->copies, NULL);
        uv_close((uv_handle_t *)&loop->tick, NULL);
}

void mfl_loop_drain(struct mfl_loop *loop)
{
        mfl_assert(mfl_loop_is_stopping(loop));
        uv_run(&loop->uv, UV_RUN_DEFAULT);
}

void mfl_loop_close(struct mfl_loop *loop)
{
        struct mfl_event_node *node;
        mfl_assert(mfl_loop_is_stopping(loop));
        while ((node = take_event(loop)))
                free(node);
        mfl_core_free(loop->core);
        mfl_core_actions_deinit(&loop->actions);
        uv_loop_close(&loop->uv);
}
