/* SPDX-License-Identifier: Apache-2.0 */
/* Who may open a connection: the server's certificates, limits before a peer has said who it is, and whether
 * its certificate allows what its Hello says. */
#ifndef MFL_SERVER_SESSION_ADMISSION_H
#define MFL_SERVER_SESSION_ADMISSION_H

#include "server/session/session.h"

/* The files of the configuration, borrowed. */
struct mfl_tls_files mfl_admission_files(const struct mfl_server_config *config);
/* Reads the certificates that the configuration names; without TLS there is nothing to do. MFL_INVALID: the
 * old ones stay in use. */
int mfl_admission_load(struct mfl_sessions *sessions, struct mfl_error *err);
void mfl_admission_close(struct mfl_sessions *sessions);
bool mfl_admission_has_tls(const struct mfl_sessions *sessions);
/* A new connection, before it is accepted. -ENOMEM. */
int mfl_admission_prepare(struct mfl_session *session, struct mfl_error *err);
/* After the accept: false when a limit of its address or of all connections closed it. */
bool mfl_admission_begin(struct mfl_session *session);
/* Its greeting is over, or it is gone; idempotent. */
void mfl_admission_end(struct mfl_session *session);
/* Sets who and roles. MFL_INVALID: its certificate does not allow this role or name. */
int mfl_admission_check(struct mfl_session *session, const Mfl__Hello *hello, struct mfl_error *err);
/* A warning about a stranger: at most a few lines a second, so that strangers can't fill the log. */
void mfl_admission_warn(struct mfl_sessions *sessions, const char *fmt, ...) MFL_PRINTF(2, 3);
/* A few times a second: says how many warnings were left out, and gives memory back. */
void mfl_admission_tick(struct mfl_sessions *sessions);

/* The session's only change of state. */
void mfl_session_move(struct mfl_session *session, enum mfl_session_state next);

#endif
