/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a daemon can work for a job: its data set, its protocol version, its cut of the population. */
#ifndef MFL_SERVER_STATE_CORE_FIT_H
#define MFL_SERVER_STATE_CORE_FIT_H

#include "proto/message.h"

struct core_daemon;
struct core_job;

enum core_fit {
        FIT,
        FIT_SHAPE, /* this differs, and so on */
        FIT_CLASSES,
        FIT_MEANING,
        FIT_CONTENT,
};

/* Something in a job that only newer protocols know. */
struct core_demand {
        uint32_t version;        /* the first protocol that knows it; 0: every protocol does */
        const char *what, *kind; /* "hardswish", " layers" */
};

/* What the daemon offers under a name: a data set, a program or a filter; NULL: nothing. */
const struct mfl_data_info *mfl_core_fit_offer(const struct core_daemon *daemon, const char *name);
/* The first of the job's filters that the daemon does not offer; NULL: it offers all. */
const char *mfl_core_fit_lacks(const struct core_daemon *daemon, const struct core_job *job);
/* The daemon's data set with the name that the job wants; NULL: it has none, or lacks a program or filter of the job. */
const struct mfl_data_info *mfl_core_fit_find(const struct core_daemon *daemon, const struct core_job *job);
enum core_fit mfl_core_fit_compare(const struct mfl_data_info *have, const struct core_job *job);
struct core_demand mfl_core_fit_demand(const struct core_job *job);
/* It speaks a protocol that is too old for the job. */
bool mfl_core_fit_is_outdated(const struct core_daemon *daemon, const struct core_job *job);

/* A job's selection.where ("": any) holds for a daemon. */
bool mfl_core_fit_where(const struct mfl_daemon_info *info, const char *where);
bool mfl_core_fit_is_wanted(const struct core_daemon *daemon, const struct core_job *job);

/* The daemon's data set for the job; NULL: it has none that fits, is outdated, or not wanted. */
const struct mfl_data_info *mfl_core_daemon_data(
        const struct core_daemon *daemon, const struct core_job *job);
/* It is connected, takes work, has the job's data set, and may do this phase. */
bool mfl_core_daemon_usable(const struct core_daemon *daemon, const struct core_job *job);

#endif
