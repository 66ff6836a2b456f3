/* SPDX-License-Identifier: Apache-2.0 */
/* Exact unlearning: a job runs again as if one of its clients had never been there. The new job has the client among selection.without,
 * begins with its first round, and takes the place of the old one. The rounds before the client's first turn have the same models. */
#ifndef MFL_SERVER_ADMIN_FORGET_H
#define MFL_SERVER_ADMIN_FORGET_H

#include "server/admin/request.h"

/* submit.c: op->new_job is in the store; it starts, and the asker is told of it. */
void mfl_submit_answer(struct mfl_request *op, struct mfl_session *session);
/* The asker may touch the job. One that has not ended is refused. */
void mfl_operator_forget(struct mfl_session *session, uint64_t request, struct mfl_server_job *job,
        const Mfl__CloneJob *clone);

#endif
