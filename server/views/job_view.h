/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs and rounds as messages of mfl.proto, for operators, watchers and pages. Nothing here changes anything.
 */
#ifndef MFL_SERVER_VIEWS_JOB_VIEW_H
#define MFL_SERVER_VIEWS_JOB_VIEW_H

#include "proto/wire.h"
#include "server/jobs/job.h"

/* Strings of a filled JobInfo point into the job, *buffers and static text. */
struct mfl_job_info_buffers {
        Mfl__RoundInfo last, evaluated, best;
        struct mfl_core_job_view view;
};
void mfl_view_job(
        const struct mfl_server_job *job, Mfl__JobInfo *ret_info, struct mfl_job_info_buffers *buffers);
/* Points into *round. */
void mfl_view_round(const struct mfl_store_round *round, Mfl__RoundInfo *ret_info);

#endif
