/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that `mfl run` starts: one server and some daemons, which never outlive it.
 *
 * Each child is a session of its own, so Ctrl-C on the terminal reaches only `mfl`; its standard input is a
 * pipe whose other end is held here, and it exits when that end closes, so that even `kill -9` of `mfl`
 * leaves nothing. Output goes to DIR/NAME.log. A child that ends by itself is told about with the end of its
 * log and started again, up to MFL_CHILD_RESTARTS times. Loop thread only.
 */
#ifndef MFL_CLI_CHILDREN_H
#define MFL_CLI_CHILDREN_H

#include <uv.h>

#include "cli/cli.h"

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
        int64_t status; /* what it exited with last; -1: a signal ended it */
};

struct mfl_children_ops {
        /* A child ended by itself; text says how. Return whether it shall be started again. */
        bool (*on_ended)(struct mfl_child *child, const char *text, const char *log_tail);
        /* It could not be started again; it stays dead. */
        void (*on_given_up)(struct mfl_child *child, const char *text);
};

struct mfl_children {
        uv_loop_t *loop;
        const struct mfl_children_ops *ops;
        void *owner;
        struct mfl_child *child; /* array of n, made once: handles may not move */
        int n;
        bool stopping;
};

int mfl_children_init(struct mfl_children *set, uv_loop_t *loop, int n, const struct mfl_children_ops *ops,
        void *owner, struct mfl_error *err);
/* Names child i; its log is dir/name.log; argv[0] is program. */
int mfl_child_setup(struct mfl_child *child, const char *name, const char *dir, const char *program,
        struct mfl_error *err);
/* Adds one argument, copied. */
int mfl_child_argument(struct mfl_child *child, struct mfl_error *err, const char *fmt, ...) MFL_PRINTF(3, 4);
/* ready_fd: given to the child as descriptor 3; -1: none. */
int mfl_child_start(struct mfl_child *child, int ready_fd, struct mfl_error *err);
int mfl_children_running(const struct mfl_children *set);
/* Closes their inputs and sends SIGTERM, waits for grace_ms, then SIGKILL; returns when all have ended. A
 * signal to `mfl` meanwhile (cli->interrupted grows) kills at once. Idempotent. */
void mfl_children_stop(struct mfl_children *set, struct mfl_cli *cli, uint64_t grace_ms);
void mfl_children_deinit(struct mfl_children *set);

/* The program NAME beside this one: $env, ../PART/NAME in a build tree, or the same directory. MFL_NOT_FOUND.
 */
int mfl_child_find_program(const char *env, const char *part, const char *name, char *ret_path,
        size_t path_bytes, struct mfl_error *err);

#endif
