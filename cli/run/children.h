/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that `mfl run` starts: one server and some daemons. They never outlive `mfl run`.
 *
 * Each child has a session of its own, so Ctrl-C on the terminal reaches only `mfl`. Its standard input is a
 * pipe, and it exits when this end of the pipe closes; so even `kill -9` of `mfl` leaves no process. Output
 * goes to DIR/NAME.log. A child that ends by itself is reported with the end of its log and started again, at
 * most MFL_CHILD_RESTARTS times. Loop thread only.
 */
#ifndef MFL_CLI_RUN_CHILDREN_H
#define MFL_CLI_RUN_CHILDREN_H

#include <uv.h>

#include "cli/base/cli.h"

#define MFL_CHILD_RESTARTS 3
#define MFL_CHILD_ARGUMENTS_MAX 64

struct mfl_children;

struct mfl_child {
        struct mfl_children *set;
        uv_process_t process;
        uv_pipe_t input;
        int handles; /* process and input, not closed yet */
        char name[32];
        char *log;                                /* path */
        char *arguments[MFL_CHILD_ARGUMENTS_MAX]; /* argv, ends with NULL */
        int n_arguments;
        bool running, given_up;
        int starts;
        int64_t status; /* its last exit status; -1: a signal ended it */
};

struct mfl_children_ops {
        /* A child ended by itself; text says how. Return whether to start it again. */
        bool (*on_ended)(struct mfl_child *child, const char *text, const char *log_tail);
        /* The child could not be started again; it stays down. */
        void (*on_given_up)(struct mfl_child *child, const char *text);
};

struct mfl_children {
        uv_loop_t *loop;
        const struct mfl_children_ops *ops;
        void *owner;
        struct mfl_child *child; /* an array of n that never moves, because handles may not move */
        int n;
        bool stopping;
};

int mfl_children_init(struct mfl_children *set, uv_loop_t *loop, int n, const struct mfl_children_ops *ops,
        void *owner, struct mfl_error *err);
/* Names a child; its log is dir/name.log; argv[0] is program. */
int mfl_child_setup(struct mfl_child *child, const char *name, const char *dir, const char *program,
        struct mfl_error *err);
/* Adds one argument, copied. */
int mfl_child_argument(struct mfl_child *child, struct mfl_error *err, const char *fmt, ...) MFL_PRINTF(3, 4);
/* ready_fd becomes descriptor 3 of the child; -1: none. */
int mfl_child_start(struct mfl_child *child, int ready_fd, struct mfl_error *err);
/* Closes their inputs and sends SIGTERM, waits for grace_ms, then sends SIGKILL. Returns when all have ended.
 * A signal to `mfl` in the meantime (cli->interrupted grows) kills them at once. Idempotent. */
void mfl_children_stop(struct mfl_children *set, struct mfl_cli *cli, uint64_t grace_ms);
void mfl_children_deinit(struct mfl_children *set);

/* Finds the program NAME beside this one: $env, ../PART/NAME in a build tree, or the same directory.
 * MFL_NOT_FOUND. */
int mfl_child_find_program(const char *env, const char *part, const char *name, char *ret_path,
        size_t path_bytes, struct mfl_error *err);

#endif
