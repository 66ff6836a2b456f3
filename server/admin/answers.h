/* SPDX-License-Identifier: Apache-2.0 */
/* What operator.c hands messages to: each function answers one message, now or when the disk worker is done.
 */
#ifndef MFL_SERVER_ADMIN_ANSWERS_H
#define MFL_SERVER_ADMIN_ANSWERS_H

#include "server/admin/request.h"

/* jobs.c */
void mfl_operator_list(struct mfl_session *session, uint64_t request);
void mfl_operator_show(struct mfl_session *session, uint64_t request, const char *id);
void mfl_operator_models(struct mfl_session *session, uint64_t request, const char *id);
void mfl_operator_partition(struct mfl_session *session, uint64_t request, const char *id);
/* pull.c */
void mfl_operator_pull(struct mfl_session *session, uint64_t request, const Mfl__Pull *pull);
/* stop.c */
void mfl_operator_stop(struct mfl_session *session, uint64_t request, const char *id, bool after_round);
void mfl_operator_delete(struct mfl_session *session, uint64_t request, const char *id);
/* submit.c: a job, and the initial params that may follow it. */
void mfl_operator_submit(struct mfl_session *session, uint64_t request, const Mfl__Submit *submit);
int mfl_operator_initial_begin(struct mfl_session *session, const Mfl__Initial *initial, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err);
int mfl_operator_initial_done(struct mfl_session *session, size_t payload_bytes, struct mfl_error *err);
void mfl_operator_clone(struct mfl_session *session, uint64_t request, const Mfl__CloneJob *clone);
/* The params that were coming will not come. Fine without any. */
void mfl_submission_free(struct mfl_session *session);
/* daemons.c, drain.c */
void mfl_operator_daemons(struct mfl_session *session, uint64_t request);
void mfl_operator_drain(struct mfl_session *session, uint64_t request, const Mfl__Drain *drain);
/* Answers those whose daemon is idle by now. */
void mfl_operator_check_drains(struct mfl_admin *admin);
/* rules.c */
void mfl_operator_access(struct mfl_session *session, uint64_t request, const Mfl__Access *access);
void mfl_operator_access_list(struct mfl_session *session, uint64_t request);
/* login.c */
void mfl_operator_login(struct mfl_session *session, uint64_t request, const Mfl__IssueLogin *issue);
/* audit.c */
void mfl_operator_audit(struct mfl_session *session, uint64_t request, const Mfl__ListAudit *list);

#endif
