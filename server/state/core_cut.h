/* SPDX-License-Identifier: Apache-2.0 */
/* One way in which daemons cut a job's population into clients: how many samples each client has. How daemons
 * tell it, and which cut is valid, is in server/work/core_vote.h. */
#ifndef MFL_SERVER_STATE_CORE_CUT_H
#define MFL_SERVER_STATE_CORE_CUT_H

#include "server/state/core_daemon.h"
#include "server/state/core_job.h"

/* Different cuts of one population that are kept. All but one are false. */
#define CORE_CUTS_MAX 3

struct core_cut {
        struct core_cut *next;      /* of its job, in the order of telling */
        char first[MFL_NAME_BYTES]; /* the daemon that told it first */
        uint64_t samples;
        uint32_t samples_min, samples_max;
        uint32_t n_known, *count;    /* counts of the first n_known clients; NULL: none was told */
        uint32_t n_tellers, n_votes; /* all daemons that tell it; those that are connected and told all */
        uint32_t n_held;             /* the latter, and those that are lost but may come back to their work */
        uint32_t n_workers;          /* daemons that told all, and take work or still do work of this job */
};

void mfl_core_cuts_free(struct core_job *job);
void mfl_core_cut_free(struct core_cut *cut);
/* The job's valid cut is known with all of its counts. */
bool mfl_core_cut_is_exact(const struct core_job *job);
/* The daemon has told all that it will tell: every count, or the sizes alone. */
bool mfl_core_cut_has_told(const struct core_job *job, const struct core_relation *relation);
/* The daemon's cut is not the valid one. */
bool mfl_core_cut_differs(const struct core_relation *relation, const struct core_job *job);
/* The daemon came or is lost, takes work or no longer does, or its relations are about to go: its jobs must count the votes again. */
void mfl_core_cuts_changed(struct mfl_core *core, const struct core_daemon *daemon);

#endif
