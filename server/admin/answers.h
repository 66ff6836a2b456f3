/* SPDX-License-Identifier: Apache-2.0 */
/* What operator.c hands messages to: each function answers one message, now or when the disk worker is done.
 */
#ifndef MFL_SERVER_ADMIN_ANSWERS_H
#define MFL_SERVER_ADMIN_ANSWERS_H

#include "server/admin/request.h"

/* jobs.c */
void mfl_operator_list(struct mfl_session *session, uint64_t request, const Mfl__ListJobs *ask);
void mfl_operator_show(struct mfl_session *session, uint64_t request, const char *id);
void mfl_operator_models(struct mfl_session *session, uint64_t request, const char *id);
void mfl_operator_partition(struct mfl_session *session, uint64_t request, const char *id);
/* pull.c */
void mfl_operator_pull(struct mfl_session *session, uint64_t request, const Mfl__Pull *pull);
/* stop.c */
void mfl_operator_stop(struct mfl_session *session, uint64_t request, const char *id, bool after_round);
void mfl_operator_archive(struct mfl_session *session, uint64_t request, const Mfl__ArchiveJob *ask);
void mfl_operator_delete(struct mfl_session *session, uint64_t request, const char *id);
/* Nothing of the job runs any more, or the asker is told that something does. */
bool mfl_operator_at_rest(struct mfl_session *session, uint64_t request, const struct mfl_server_job *job);
/* submit.c: a job, and the initial params that may follow it. */
void mfl_operator_submit(struct mfl_session *session, uint64_t request, const Mfl__Submit *submit);
int mfl_operator_initial_begin(struct mfl_session *session, const Mfl__Initial *initial, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err);
int mfl_operator_initial_done(struct mfl_session *session, size_t payload_bytes, struct mfl_error *err);
void mfl_operator_clone(struct mfl_session *session, uint64_t request, const Mfl__CloneJob *clone);
/* Starts op->new_job, which is in the store with op->row. A negative result has ended the process; MFL_INVALID: its file. */
int mfl_submit_start(struct mfl_request *op, const char *what, struct mfl_error *err);
/* Whether this server runs a job with that spec, of its settings: simulation, secure_sum, plug-ins. MFL_INVALID. */
int mfl_submit_allows(
        const struct mfl_admin *admin, struct mfl_job *spec, const char *file, struct mfl_error *err);
/* op->new_job is in the store: it starts, and the asker is told of it. */
void mfl_submit_answer(struct mfl_request *op, struct mfl_session *session);
/* forget.c: exact unlearning. A job that has not ended is refused. */
void mfl_operator_forget(struct mfl_session *session, uint64_t request, const Mfl__CloneJob *clone);
/* move.c: each step of a job's move, on either side. */
void mfl_operator_move(struct mfl_session *session, uint64_t request, const Mfl__Move *move);
/* replay.c: a job's committed rounds once more. */
void mfl_operator_replay(struct mfl_session *session, uint64_t request, const Mfl__CloneJob *clone);
/* The params that were coming will not come. Fine without any. */
void mfl_submission_free(struct mfl_session *session);
/* daemons.c, drain.c */
void mfl_operator_daemons(struct mfl_session *session, uint64_t request, const Mfl__ListDaemons *ask);
void mfl_operator_drain(struct mfl_session *session, uint64_t request, const Mfl__Drain *drain);
/* Answers those whose daemon is idle by now. */
void mfl_operator_check_drains(struct mfl_admin *admin);
/* rules.c */
void mfl_operator_access(struct mfl_session *session, uint64_t request, const Mfl__Access *access);
void mfl_operator_access_list(struct mfl_session *session, uint64_t request);
/* inquire.c */
void mfl_operator_inquire(struct mfl_session *session, uint64_t request, const Mfl__Inquire *inquire);
void mfl_operator_inquiries(struct mfl_session *session, uint64_t request, const Mfl__ListInquiries *list);
/* The model that was coming will not come. Fine without any. */
void mfl_operator_asking_free(struct mfl_session *session);
/* As mfl_operator_initial_begin and _done, which hand frames on; false: none is coming. */
bool mfl_operator_asking_begin(struct mfl_session *session, const Mfl__Initial *initial, size_t payload_bytes,
        void **ret_dst, int *ret_status, struct mfl_error *err);
bool mfl_operator_asking_done(struct mfl_session *session, size_t payload_bytes);
/* registry.c */
void mfl_operator_change_model(struct mfl_session *session, uint64_t request, const Mfl__ChangeModel *change);
void mfl_operator_registry(struct mfl_session *session, uint64_t request, const Mfl__ListRegistry *list);
/* serving.c: those who serve models. */
void mfl_operator_watch_model(struct mfl_session *session, uint64_t request, const Mfl__WatchModel *watch);
/* The registry has changed: watchers whose model is another version now are told. */
void mfl_operator_models_changed(struct mfl_admin *admin);
void mfl_operator_serving(struct mfl_session *session, const Mfl__Serving *serving);
void mfl_operator_serving_list(struct mfl_session *session, uint64_t request);
/* Of a session that ends. */
void mfl_operator_serving_forget(struct mfl_session *session);
/* login.c */
void mfl_operator_login(struct mfl_session *session, uint64_t request, const Mfl__IssueLogin *issue);

/* audit.c */
void mfl_operator_audit(struct mfl_session *session, uint64_t request, const Mfl__ListAudit *list);
void mfl_operator_spent(struct mfl_session *session, uint64_t request);

#endif
