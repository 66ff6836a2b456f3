/* SPDX-License-Identifier: Apache-2.0 */
/* The server as a service: what its manager is told, and reload. */
#ifndef MFL_SERVER_SHELL_SERVICE_H
#define MFL_SERVER_SHELL_SERVICE_H

#include "server/shell/server.h"

/* Starts the watchdog and the status line, and reads the configuration again on SIGHUP. Harmless without a
 * service manager. */
void mfl_service_open(struct mfl_server *server);
/* Everything is loaded, and the server listens. */
void mfl_service_ready(struct mfl_server *server);
/* The server is going to be closed and opened again in another role of its cluster: nobody signals the watchdog meanwhile. */
void mfl_service_turning(void);
void mfl_service_stopping(void);

#endif
