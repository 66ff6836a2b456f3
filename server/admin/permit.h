/* SPDX-License-Identifier: Apache-2.0 */
/* Who may change what. A viewer only looks. An operator submits, drains, and does as they like with their own
 * jobs; a mfl-serve (OU=serve) loads models and follows them; somebody else's job takes an admin, and so does a rule about daemons, because it takes work away from
 * everybody's jobs. Refusals go to the audit. */
#ifndef MFL_SERVER_ADMIN_PERMIT_H
#define MFL_SERVER_ADMIN_PERMIT_H

#include "server/admin/request.h"

/* False: the asker got a Failure. */
bool mfl_operator_may_change(struct mfl_session *session, const Mfl__Envelope *envelope);
/* Whether the asker owns the job or is an admin. False: as above. */
bool mfl_operator_may_touch(
        struct mfl_session *session, uint64_t request, const struct mfl_server_job *job, const char *action);
/* Whether the job's file can be read, so that there may be another job of it. False: the session was told that it can't. */
bool mfl_operator_may_copy(struct mfl_session *session, uint64_t request, const struct mfl_server_job *job);
/* Whether the asker may have all files of the job. Its owner has no states of single clients (docs/jobs.md, Personal layers). False: as
 * above. */
bool mfl_operator_may_carry(struct mfl_session *session, uint64_t request, const struct mfl_server_job *job);
/* "disable", "enable", "allow", "disallow" */
const char *mfl_operator_access_verb(const Mfl__Access *access);

/* What a change of the registry is called in the audit. */
const char *mfl_operator_model_verb(Mfl__ModelVerb verb);

#endif
