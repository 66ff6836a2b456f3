/* SPDX-License-Identifier: Apache-2.0 */
/* Watching a job until it ends, through restarts of the server: used by watch, wait, submit --watch and run.
 *
 * The death of a server loses nothing, so a lost connection is made again (with growing pauses) and the watch
 * goes on after the last round seen, until give_up_ms have passed without a server.
 */
#ifndef MFL_CLI_WATCH_H
#define MFL_CLI_WATCH_H

#include "cli/client.h"
#include "cli/crew.h"
#include "cli/display.h"
#include "cli/json.h"

enum mfl_watch_output {
        MFL_WATCH_SILENT,
        MFL_WATCH_LINES, /* one line per round and change of state; drawn in place on a terminal */
        MFL_WATCH_JSON,  /* one object per line */
};

/* A committed round; its digest is beside info, which has none. */
struct mfl_watch_round {
        Mfl__RoundInfo info;
        uint8_t digest[MFL_DIGEST_BYTES];
};

struct mfl_watch {
        /* Set by the caller; the rest is zero at first. */
        struct mfl_cli *cli;
        const char *address;
        char job[MFL_JOB_ID_BYTES];
        enum mfl_watch_output output;
        uint64_t give_up_ms;     /* without a server */
        uint64_t waiting_max_ms; /* in state "waiting"; 0: no limit */
        char abort[512]; /* a callback that sets this ends the watch with MFL_CLI_FAILED and that text */
        bool once;       /* ends when the rounds that there are have come, whatever the job's state */
        uint32_t after;  /* rounds up to this one are not asked for */
        bool all_rounds; /* all of the past, not the newest 1000 */
        /* Each round, ascending, once; NULL: nobody. What it returns, unless 0, ends the watch. */
        int (*on_round)(void *user, const Mfl__RoundInfo *round, struct mfl_error *err);
        void *user;

        /* What is known. */
        char name[MFL_NAME_BYTES], phase[MFL_NAME_BYTES], reason[512];
        Mfl__JobState state;
        uint32_t round, rounds, in_round, attempt, clients_done, clients_total, daemons;
        struct mfl_watch_round *all; /* rounds seen, ascending */
        size_t n, room;
        double *accuracy, *loss; /* of the rounds that were evaluated */
        size_t n_evaluated;
        bool no_accuracy, per_token; /* as in RoundInfo and JobInfo */
        double bytes_up, bytes_down;
        json_t *info; /* the last JobInfo as JSON, for the last word */
        struct mfl_crew crew;

        /* Private. */
        uint64_t started_ms, lost_ms, waiting_ms, crew_ms; /* crew_ms: when an event told of the crew */
        bool connected_once, ended;
        char notice[256];
        struct mfl_screen screen;
};

/* 0: the job is done. MFL_CLI_FAILED: failed, stopped or aborted. MFL_CLI_LOST: no server for give_up_ms.
 * MFL_CLI_TIMEOUT: it waited for waiting_max_ms; the text is the reason. MFL_CLI_INTERRUPTED; MFL_NOT_FOUND.
 */
int mfl_watch_run(struct mfl_watch *watch, struct mfl_error *err);
/* Says something in between: above the drawing, as a line, or as an event; also from callbacks. */
void mfl_watch_note(struct mfl_watch *watch, const char *fmt, ...) MFL_PRINTF(2, 3);
/* Leaves the drawing on the screen and shows the cursor. Idempotent; mfl_watch_run does it at its end. */
void mfl_watch_end(struct mfl_watch *watch);
void mfl_watch_deinit(struct mfl_watch *watch);

/* Opens, resolves ref, and watches: what watch, wait and submit --watch do. Prints the last word and returns
 * the exit code. */
int mfl_watch_command(struct mfl_cli *cli, const char *ref, enum mfl_watch_output output);

#endif
