/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets that the server listens on. */
#ifndef MFL_SERVER_SHELL_LISTEN_H
#define MFL_SERVER_SHELL_LISTEN_H

#include "server/shell/server.h"

/* Listens on the service manager's sockets, or on the configured address if there are none. MFL_INVALID: an
 * address that the configuration does not allow. */
int mfl_server_listen(struct mfl_server *server, struct mfl_error *err);

#endif
