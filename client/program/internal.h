/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of a program: its process, and its memory. */
#ifndef MFL_CLIENT_PROGRAM_INTERNAL_H
#define MFL_CLIENT_PROGRAM_INTERNAL_H

#include <sys/types.h>

#include "client/program/program.h"

#define PROGRAM_FD 3                     /* of the socket, in the program */
#define LIFE_FD 4                        /* in the supervisor: at its end, everything ends */
#define PROGRAM_ANSWER_MAX (1u << 20)    /* bytes of a message of the program */
#define PROGRAM_MESSAGE_MAX (64u << 20)  /* of the daemon */
#define SANDBOX_LINE "mfl-sandbox: "     /* what the supervisor writes about itself begins so */
#define SANDBOX_END "the program begins" /* after this line of its, such lines are the program's */

/* ---- the process: process.c ---- */

#define TAIL_BYTES 2048 /* of its output that is kept */
#define TAIL_SHOWN 400  /* of these, in a reason */
struct program_process {
        pid_t pid; /* of the supervisor; 0: none */
        int socket, output, life;
        char tail[TAIL_BYTES];
        size_t n_tail;
        bool begun; /* what it writes are its own words */
        const char *job;
};
/* How long a call may wait, and who may stop it. */
struct program_wait {
        uint64_t until_ms;
        bool (*stopped)(void *user);
        void *user;
};
/* MFL_PROGRAM_FAILED, or negative. */
int mfl_program_start(
        struct program_process *process, const struct mfl_program_options *options, struct mfl_error *err);
/* Sends a message, with descriptors beside its first byte. MFL_PROGRAM_FAILED, MFL_PROGRAM_STOPPED. */
int mfl_program_send(struct program_process *process, const void *message, size_t n, const int *fds,
        int n_fds, const struct program_wait *wait, struct mfl_error *err);
/* The answer, on the heap. */
int mfl_program_receive(struct program_process *process, const struct program_wait *wait, void **ret_message,
        size_t *ret_n, struct mfl_error *err);
/* Kills the program and what it has started, and waits until they are gone. *ret_text says how it had ended before that: "" if it had
 * not. */
void mfl_program_kill(struct program_process *process, char *ret_text, size_t text_bytes);
/* "TEXT; its last lines: ..." */
int mfl_program_fail(struct program_process *process, struct mfl_error *err, const char *fmt, ...)
        MFL_PRINTF(3, 4);

/* ---- memory that it shares: memory.c ---- */

struct program_memory {
        int fd; /* -1: none */
        void *at;
        size_t bytes;
};
/* The daemon reads and writes it; the program may only read it, unless `shared`. Neither can change its size. Zeros. Negative. */
int mfl_program_memory_open(
        struct program_memory *memory, const char *name, size_t bytes, bool shared, struct mfl_error *err);
void mfl_program_memory_close(struct program_memory *memory);

/* ---- the supervisor's: seccomp.c or seccomp_absent.c ---- */

/* From here on, this process and its children can't do what a training program has no use for. memory_files: they may make files that lie in
 * memory (memfd_create). False: errno. */
bool mfl_program_filter(bool network, bool memory_files);
extern const bool mfl_program_filters; /* false: this build has no filter */

/* ---- the supervisor's: landlock.c or landlock_absent.c ---- */

struct program_files {
        const char *dir, *command; /* dir "": the daemon's, which is not for writing */
        char **read, **write;      /* what `read` and `write` of client.yaml name */
        int n_read, n_write;
        bool own_shm; /* /dev/shm is the program's own, and for writing */
};
/* The version of the kernel's Landlock; 0: it has none. */
int mfl_program_landlock(void);
/* From here on, this process and its children open only those files. Needs no_new_privs. False: it can't be held, errno. */
bool mfl_program_hold_files(const struct program_files *files, bool network);

/* ---- control groups: cgroup.c ---- */

#define CGROUP_BYTES MFL_PROGRAM_GROUP_BYTES
/* Makes a group of its own for a program of the supervisor pid, which starts it through one process more than `processes`. False: errno. */
bool mfl_program_cgroup_new(
        const char *parent, pid_t pid, uint64_t memory, uint32_t processes, char group[CGROUP_BYTES]);
bool mfl_program_cgroup_enter(const char *group);   /* this process */
bool mfl_program_cgroup_is_full(const char *group); /* the kernel has killed in it for want of memory */
void mfl_program_cgroup_free(const char *group);    /* kills what is in it */

#endif
