/* SPDX-License-Identifier: Apache-2.0 */
/* Own training code: a program of the daemon's administrator that trains the clients of one job (docs/programs.md). What is said to it is in
 * proto/program.proto.
 *
 * A program is started at its first call and kept until it is freed, or until it fails: then it is killed with everything that it
 * has started, and the next call starts it anew. It runs below a supervisor, this executable under another name (child.c), which
 * limits it. Calls block; one at a time, on any thread.
 *
 * Failures: the program can't be started, ends, does not answer in time, answers what is wrong, or says that it can't (MFL_PROGRAM_FAILED,
 * with its last lines); the caller wants no more (MFL_PROGRAM_STOPPED). No answer ends the daemon. */
#ifndef MFL_CLIENT_PROGRAM_PROGRAM_H
#define MFL_CLIENT_PROGRAM_PROGRAM_H

#include "common/data/dataset.h"
#include "common/job/job.h"
#include "common/settings/yaml.h"

#define MFL_PROGRAMS_MAX 16
#define MFL_PROGRAM_GROUP_BYTES 1024
#define MFL_PROGRAM_PATHS_MAX 16
#define MFL_PROGRAM_PATH_BYTES 1024
#define MFL_PROGRAM_PROCESSES 2000u      /* default of processes */
#define MFL_PROGRAM_SAMPLES_MAX 1000000u /* default of samples_max */

enum {
        MFL_PROGRAM_FAILED = 24,  /* the program's fault; the text is for the submitter */
        MFL_PROGRAM_STOPPED = 25, /* stopped() was true */
};

/* One entry of `programs:` in client.yaml. */
struct mfl_program_config {
        char name[MFL_PROGRAM_BYTES];
        char **command; /* n_command texts, then NULL; the first is an absolute path */
        uint32_t n_command;
        char *dir;             /* its working directory; NULL: the daemon's */
        uint64_t timeout_ms;   /* of one answer */
        uint64_t memory_bytes; /* of it and its children together; 0: not limited */
        uint32_t threads;      /* OMP_NUM_THREADS */
        uint32_t samples_max;  /* of a client, where the data are the program's own */
        bool network;          /* it may use sockets beyond this host */
        uint32_t processes;    /* and threads, at once */
        char **read,
                **write; /* n_read and n_write absolute paths, then NULL: what it may open; read NULL: everything */
        uint32_t n_read, n_write;
};
struct mfl_programs {
        uint32_t n;
        struct mfl_program_config v[MFL_PROGRAMS_MAX];
        char group[MFL_PROGRAM_GROUP_BYTES]; /* mfl_program_cgroups has found it; "": none */
};
/* Reads `programs`; value: a struct mfl_programs. MFL_INVALID, -ENOMEM. */
int mfl_programs_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
void mfl_programs_deinit(struct mfl_programs *programs);
const struct mfl_program_config *mfl_programs_find(const struct mfl_programs *programs, const char *name);

/* What a daemon offers for a program: a data set of the name mfl_job_program_offer whose samples nobody reads. */
void mfl_program_offer(const struct mfl_program_config *config, struct mfl_dataset *ret_offer);
#define MFL_PROGRAM_FINGERPRINT 1 /* of such a data set */

/* At the daemon's start, where it has programs: makes room for their control groups, and says what of them there is. group: where they will
 * be; "": nowhere. */
const char *mfl_program_cgroups(char group[MFL_PROGRAM_GROUP_BYTES]);
/* What else this machine holds programs with: "Landlock 7 for files; system calls are filtered". */
const char *mfl_program_holds(char *text, size_t bytes);

struct mfl_program_options {
        const struct mfl_program_config *config;
        const char *job; /* its number */
        const struct mfl_job *spec;
        const struct mfl_graph *graph;
        const struct mfl_dataset *data; /* NULL: the program's own */
        const char *group;              /* as mfl_program_cgroups has found it; NULL or "": none */
        const char *const *hidden; /* paths that the program must not read; ends with NULL; may be NULL */
};
struct mfl_program;
/* What it takes of the daemon's memory, and shares with the program. */
uint64_t mfl_program_bytes(const struct mfl_graph *graph, const struct mfl_dataset *data);
/* Starts nothing. What the options point to outlives the program. -ENOMEM. */
int mfl_program_new(
        const struct mfl_program_options *options, struct mfl_program **ret_program, struct mfl_error *err);
void mfl_program_free(struct mfl_program *program); /* kills it; NULL is fine */

struct mfl_program_call {
        bool evaluates; /* otherwise it trains */
        uint64_t item;  /* the client, or the part of the test samples */
        uint32_t round;
        uint64_t seed;
        const uint32_t *samples; /* NULL: the data are its own */
        uint32_t n_samples;
        const float *params; /* graph->n */
        bool same_params;    /* as in the call before, which needs no copy then */
        bool (*stopped)(void *user);
        void *user;
};
struct mfl_program_answer {
        uint64_t samples, correct;
        double loss; /* finite, not negative */
        bool delta;  /* what `result` has */
        const float *
                result; /* training: graph->n floats that the program may still change: copy them, then check them */
};
/* Negative: this process can't go on. */
int mfl_program_call(struct mfl_program *program, const struct mfl_program_call *call,
        struct mfl_program_answer *ret_answer, struct mfl_error *err);

/* What is wrong with the numbers of its last answer, with its last lines behind it. */
void mfl_program_blame(struct mfl_program *program, const char *why, struct mfl_error *ret_text);

/* The supervisor, at the start of main: -1 if this process is none, otherwise its exit status. */
int mfl_program_child(int argc, char **argv);

#endif
