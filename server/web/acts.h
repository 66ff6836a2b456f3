/* SPDX-License-Identifier: Apache-2.0 */
/* What people who are logged in do from a browser. Each request becomes a request of mfl.proto, asked by an inner session with the
 * login's name and roles, so rights, audit and answers are those of the command line. Loop thread, except mfl_acts_known.
 *
 *      POST /api/login                body: a code -> the cookie, and as GET
 *      GET  /api/login                who is logged in, the roles, the CSRF token
 *      POST /api/logout
 *      POST /api/jobs                 body: a job file; X-MFL-Token: as Submit.token
 *      POST /api/jobs/ID/clone, stop, stop-after-round
 *      GET  /api/jobs/ID/model/ROUND  ROUND: a number, best, newest; a safetensors file
 *
 * Answers are JSON; of a failure {"error": TEXT}. 401: not logged in, or no longer. 403: a wrong CSRF token, or FAILURE_DENIED. 400, 404,
 * 409, 503: the other failures. */
#ifndef MFL_SERVER_WEB_ACTS_H
#define MFL_SERVER_WEB_ACTS_H

#include "server/web/pages.h"

bool mfl_acts_known(const char *path, bool post);
void mfl_act(struct mfl_pages *pages, const struct mfl_http_act *act);
/* What was asked is answered to nobody. */
void mfl_acts_close(struct mfl_pages *pages);

#endif
