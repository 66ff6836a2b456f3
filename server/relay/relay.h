/* SPDX-License-Identifier: Apache-2.0 */
/* A relay's shell: a server to the daemons below, one connection to the server above, and the decisions of relay_core.h between
 * them.
 *
 *   daemon's session --frame--> core: pass it on, or add the update here --> its stream on the connection above
 *                    <-- pass it on, or answer here -- core <--frame--
 *
 *   relay.c         opens and closes it, carries out the core's actions
 *   relay_up.c      the connection above: connects, greets, tries again
 *   relay_daemon.c  daemons' connections, and their streams above
 *   relay_params.c  params: fetched once, sent to all who ask
 *   relay_sum.c     slots and sums
 *
 * When the connection above ends, all that is under way here is dropped: daemons are told to come again, and announce again. Ways
 * to fail: the server above can't be reached, or refuses (it tries again; for good, *mfl_relay_over); memory for params is
 * short (their daemons wait and ask again) or for sums (updates go up one by one). Loop thread only, except the additions.
 */
#ifndef MFL_SERVER_RELAY_RELAY_H
#define MFL_SERVER_RELAY_RELAY_H

#include "common/base/budget.h"
#include "server/config/config.h"
#include "server/session/session.h"

struct mfl_relay;

/* Takes over the roles daemon and relay of the sessions. MFL_INVALID: a wrong name, address or certificate. */
int mfl_relay_open(struct mfl_loop *loop, struct mfl_sessions *sessions,
        const struct mfl_server_config *config, struct mfl_budget *budget, struct mfl_relay **ret_relay,
        struct mfl_error *err);
const char *mfl_relay_name(const struct mfl_relay *relay);
/* The server above has refused it for good; the loop is stopped. Else NULL. */
const char *mfl_relay_over(const struct mfl_relay *relay);
/* Ends the connection above; the loop must turn before mfl_relay_close. */
void mfl_relay_end(struct mfl_relay *relay);
void mfl_relay_close(struct mfl_relay *relay);

#endif
