/* SPDX-License-Identifier: Apache-2.0 */
/* Watches a job until it ends, across restarts of the server: for watch, wait, submit --watch and run.
 *
 * A restart of the server loses nothing. So a lost connection is made again (with growing pauses), and the
 * watch continues after the last round seen, until give_up_ms have passed without a server.
 */
#ifndef MFL_CLI_VIEW_WATCH_H
#define MFL_CLI_VIEW_WATCH_H

#include "cli/base/client.h"
#include "cli/view/crew.h"
#include "cli/base/display.h"
#include "cli/base/json.h"

enum mfl_watch_output {
        MFL_WATCH_SILENT,
        MFL_WATCH_LINES, /* one line per round and change of state; drawn in place on a terminal */
        MFL_WATCH_JSON,  /* one object per line */
};

/* A committed round; the digest is beside info, whose own pointer to it is not kept. */
struct mfl_watch_round {
        Mfl__RoundInfo info;
        uint8_t digest[MFL_DIGEST_BYTES];
        struct mfl_measures measures;
        struct mfl_metrics metrics;
};

struct mfl_watch {
        /* Set by the caller; the rest must be zero at first. */
        struct mfl_cli *cli;
        const char *address;
        char job[MFL_JOB_ID_BYTES];
        enum mfl_watch_output output;
        uint64_t give_up_ms;     /* give up after this time without a server */
        uint64_t waiting_max_ms; /* give up after this time in state "waiting"; 0: no limit */
        uint64_t quiet_ms;       /* a shorter wait at the start is not reported to people */
        char abort[512]; /* a callback that sets this ends the watch with MFL_CLI_FAILED and that text */
        bool once;       /* end when all existing rounds have arrived, whatever the job's state */
        uint32_t after;  /* do not ask for rounds up to this one */
        bool all_rounds; /* all past rounds, not only the newest 1000 */
        /* Called once per round, in ascending order; may be NULL. A result other than 0 ends the watch. */
        int (*on_round)(void *user, const Mfl__RoundInfo *round, struct mfl_error *err);
        void *user;

        /* What is known about the job. */
        char name[MFL_NAME_BYTES], phase[MFL_NAME_BYTES], reason[512];
        Mfl__JobState state;
        uint32_t round, rounds, in_round, attempt, clients_done, clients_total, daemons;
        double trained;
        struct mfl_watch_round *all; /* rounds seen, ascending */
        size_t n, room;
        double *accuracy, *loss; /* one value per evaluated round */
        size_t n_evaluated;
        bool no_accuracy, per_token; /* as in RoundInfo and JobInfo */
        double bytes_up, bytes_down;
        json_t *info; /* the last JobInfo as JSON, for the final message */
        struct mfl_crew crew;

        /* Private. */
        uint64_t started_ms, lost_ms, waiting_ms, crew_ms; /* crew_ms: time of the last event about the crew
                                                            */
        uint64_t took_ms; /* for a job that has ended: the time since its submission; 0: it has not ended */
        /* The current training as first seen: its speed gives the time left before any round is done. */
        uint64_t first_ms, told_ms; /* told: time of the last change of `trained` */
        uint32_t first_round, first_attempt;
        double first_trained;
        bool open_told;                   /* what of the job is not private */
        bool connected_once, ended, held; /* held: the state has not been shown yet */
        char notice[256];
        struct mfl_screen screen;
};

/* Returns 0 if the job is done. MFL_CLI_FAILED: failed, stopped or aborted. MFL_CLI_LOST: no server for
 * give_up_ms. MFL_CLI_TIMEOUT: it waited for waiting_max_ms; the text is the reason. MFL_CLI_INTERRUPTED;
 * MFL_NOT_FOUND. */
int mfl_watch_run(struct mfl_watch *watch, struct mfl_error *err);
/* Prints a note: above the drawing, as a line, or as an event. Callbacks may call it, too. */
void mfl_watch_note(struct mfl_watch *watch, const char *fmt, ...) MFL_PRINTF(2, 3);
void mfl_watch_deinit(struct mfl_watch *watch);

/* Connects, resolves ref, and watches: the body of watch, wait and submit --watch. Prints the final message
 * and returns the exit code. */
int mfl_watch_command(struct mfl_cli *cli, const char *ref, enum mfl_watch_output output);

#endif
