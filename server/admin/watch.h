/* SPDX-License-Identifier: Apache-2.0 */
/* Watchers: operators that are told when a job changes, commits a round or logs a line. First they get the
 * past, page by page from the disk worker, then what happens:
 *
 *     PAST --a page was asked for--> READING --the last page was sent--> FOLLOWING --> (freed with Done)
 *       ^                               |
 *       +---- the peer is slow, or the disk worker busy: the next flush asks again
 */
#ifndef MFL_SERVER_ADMIN_WATCH_H
#define MFL_SERVER_ADMIN_WATCH_H

#include "server/admin/request.h"

void mfl_watch_start(struct mfl_session *session, uint64_t request, const Mfl__Watch *watch);
/* The session goes. */
void mfl_watch_forget(struct mfl_session *session);
void mfl_watch_round(struct mfl_admin *admin, const struct mfl_server_job *job);
void mfl_watch_log(
        struct mfl_admin *admin, const char *job, uint64_t seq, uint64_t time_unix_ms, const char *text);
/* Tells watchers of every job that changed. */
void mfl_watch_flush(struct mfl_admin *admin);

#endif
