/* SPDX-License-Identifier: Apache-2.0 */
/* Params on their way to one peer: frames that point into one shared, reference-counted buffer, a few of them
 * queued at a time.
 *
 *     SENDING --the last frame is queued--> QUEUED --it is sent--> ENDED
 *        |                                     |
 *        +----- stopped, or params retired ----+-----------------> ENDED
 *
 * A session has at most one transfer of params, and beside it one of what is added to a client's gradients. Its memory goes when it has ended and no frame of it is queued.
 */
#ifndef MFL_SERVER_TRANSFER_PARAMS_DOWN_H
#define MFL_SERVER_TRANSFER_PARAMS_DOWN_H

#include "server/jobs/job.h"
#include "server/session/session.h"

/* Starts sending params from a float on, instead of what the session was being sent; takes a reference.
 * request: of an operator's Pull; 0 for daemons. have: the digest of params that a daemon has; NULL: of none. */
void mfl_transfer_start(struct mfl_session *session, struct mfl_server_job *job, struct mfl_params *params,
        uint64_t offset, uint64_t request, const uint8_t *have);
/* The same of params that belong to no job of this process: a relay has them. */
void mfl_transfer_start_alone(
        struct mfl_session *session, const char *job, struct mfl_params *params, uint64_t offset);
/* The same for what is added to the gradients of a client's training, instead of another client's. */
void mfl_transfer_start_client(struct mfl_session *session, struct mfl_server_job *job,
        struct mfl_params *correction, uint64_t client, uint64_t offset);
/* Both. Fine without a transfer. */
void mfl_transfer_stop(struct mfl_session *session);
/* Stops all transfers of a job. */
void mfl_transfer_stop_job(struct mfl_sessions *sessions, const struct mfl_server_job *job);

#endif
