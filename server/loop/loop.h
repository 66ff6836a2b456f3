/* SPDX-License-Identifier: Apache-2.0 */
/* The server's event loop: it owns libuv's loop, the core, the workers and the clock, and runs one event
 * through the core at a time.
 *
 *     sessions, jobs, timers ---- mfl_loop_feed(event) ----> core ---- actions ----> ops->carry_out
 *                                       ^                                                |
 *                                       +---------- events that come up meanwhile -------+
 *
 * The loop knows no session and no job: its owner carries out the actions. Everything here is for the loop
 * thread.
 */
#ifndef MFL_SERVER_LOOP_LOOP_H
#define MFL_SERVER_LOOP_LOOP_H

#include <uv.h>

#include "common/base/worker.h"
#include "server/core/core.h"

/* What the loop's owner does. */
struct mfl_loop_ops {
        /* Called before the core takes an event: to count it. */
        void (*before)(void *user, const struct mfl_core_event *event);
        /* Carries out one action. */
        void (*carry_out)(void *user, const struct mfl_core_action *action);
};

enum mfl_loop_state {
        MFL_LOOP_IDLE,     /* between two events */
        MFL_LOOP_STEPPING, /* an event is being processed; new events wait for their turn */
        MFL_LOOP_BROKEN,   /* memory, disk or database failed; the process is about to end */
        MFL_LOOP_STOPPING, /* connections and workers are closing; events are dropped */
};

struct mfl_loop {
        uv_loop_t uv;
        struct mfl_worker compute, disk; /* sums and strategies; SQLite and checkpoints */
        struct mfl_worker copies;        /* of checkpoints to other servers; see mfl_loop_open_copies */
        bool has_copies;
        struct mfl_core *core;
        /* Private from here on. */
        const struct mfl_loop_ops *ops;
        void *user;
        enum mfl_loop_state state;
        uv_timer_t tick;
        uint64_t tick_due_ms;
        struct mfl_core_actions actions;
        struct mfl_event_node *first, *last; /* events that wait for their turn */
        int fatal;
        struct mfl_error fatal_error;
};

/* Takes the core over. Blocking when it fails is the caller's end: the process exits. */
int mfl_loop_open(struct mfl_loop *loop, struct mfl_core *core, const struct mfl_loop_ops *ops, void *user,
        struct mfl_error *err);
/* Of a cluster: a worker that may wait for other servers, so that nothing else does. */
int mfl_loop_open_copies(struct mfl_loop *loop, struct mfl_error *err);
/* Runs until mfl_loop_stop or mfl_loop_fatal; the latter's code and text are returned. */
int mfl_loop_run(struct mfl_loop *loop, struct mfl_error *err);
void mfl_loop_stop(struct mfl_loop *loop);
/* From now on events are dropped. Closes the workers and the timer; they are closed when the loop has turned.
 */
void mfl_loop_begin_close(struct mfl_loop *loop);
/* Turns the loop until the last handle is closed. */
void mfl_loop_drain(struct mfl_loop *loop);
void mfl_loop_close(struct mfl_loop *loop);

/* Gives the core an event. An event that comes up while actions are carried out waits for its turn; the
 * borrowed parts of an event (daemon, msg, population) are valid during the call only, so events with such
 * parts are fed from stream callbacks alone. */
void mfl_loop_feed(struct mfl_loop *loop, struct mfl_core_event *event);
/* The clock of the core and of all events. */
uint64_t mfl_loop_now(const struct mfl_loop *loop);
bool mfl_loop_is_stopping(const struct mfl_loop *loop);
/* Ends the process in good order with this text. Only the first call counts. */
void mfl_loop_fatal(struct mfl_loop *loop, int code, const struct mfl_error *err);
/* The same for memory that ran out; what: "a session". */
void mfl_loop_no_memory(struct mfl_loop *loop, size_t bytes, const char *what);

uint64_t mfl_unix_ms(void);

#endif
