/* SPDX-License-Identifier: Apache-2.0 */
/* A private federation for one job: a server and daemons as children, and the folder of results. */
#ifndef MFL_CLI_RUN_RUN_H
#define MFL_CLI_RUN_RUN_H

#include "cli/run/children.h"
#include "cli/pull/pull.h"
#include "cli/job/submit.h"
#include "cli/view/watch.h"

struct mfl_run {
        struct mfl_cli *cli;
        struct mfl_submission submission;
        struct mfl_watch watch;
        struct mfl_children children; /* [0] is the server */
        char out[3072];               /* the folder; empty: none */
        bool out_made;                /* this run created it */
        bool logs_named;              /* a message names the logs */
        char address[96];             /* of the server; empty until it has reported it */
        uv_pipe_t ready;              /* the pipe on which it does */
        bool ready_open;
        char ready_text[96];
        size_t ready_bytes;
        char failure[512]; /* why the server did not start */
        double seconds;    /* from submission to the end of the job */
        bool has_model;
        struct mfl_pulled pulled;
};

/* run_out.c: the folder. Makes DIR (it must be new or empty), or mfl-run, mfl-run-2, ... for NULL. */
int mfl_run_make_out(struct mfl_run *run, const char *dir, struct mfl_error *err);
/* Writes job.yaml. */
int mfl_run_write_job(struct mfl_run *run, struct mfl_error *err);
/* Writes rounds.csv from the rounds that the watch has seen. */
int mfl_run_write_rounds(struct mfl_run *run, struct mfl_error *err);
/* Removes what the server and the daemons keep. */
int mfl_run_remove_state(struct mfl_run *run, struct mfl_error *err);
/* Removes the folder of a run that has trained nothing, if the run created it. */
void mfl_run_discard_out(struct mfl_run *run);
/* Prints the result for people, or with --json as the last line. */
int mfl_run_print_result(struct mfl_run *run, struct mfl_error *err);

/* run_start.c. Checks that the daemons will have the job's data; MFL_NOT_FOUND if not. */
int mfl_run_check_data(struct mfl_run *run, struct mfl_error *err);
/* Makes and starts the children. Returns when the server listens. */
int mfl_run_start(struct mfl_run *run, struct mfl_error *err);

#endif
