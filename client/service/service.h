/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon as a service: readiness, status and signs of life for its manager, and SIGHUP.
 *
 * A daemon is ready when it is up and tries to reach its server: if the server is away for a while, that must
 * not delay a boot or restart daemons. The status line says whether it is connected. Signs of life come from
 * the loop; the worker that trains may be busy for as long as it needs.
 *
 * Loop thread only. Without a manager, only SIGHUP has an effect. */
#ifndef MFL_CLIENT_SERVICE_SERVICE_H
#define MFL_CLIENT_SERVICE_SERVICE_H

#include <uv.h>

#include "client/service/config.h"

struct mfl_client_service {
        int argc; /* borrowed, as argv */
        char *const *argv;
        uv_signal_t sighup;
        uv_timer_t watchdog;
        void (*on_reload)(void *user); /* after the configuration was read again; may be NULL */
        void *user;
};

/* argc, argv, on_reload and user are set. Starts the watchdog's timer, which does not keep the loop alive,
 * and listens for SIGHUP: it reads the configuration again and applies log_level; a wrong file changes
 * nothing. */
void mfl_client_service_open(struct mfl_client_service *service, uv_loop_t *loop);
/* Says READY, with the status line. */
void mfl_client_service_ready(const char *status);
/* The daemon will end, but may take within_ms: asks the manager to wait that long, whatever its
 * TimeoutStopSec is. */
void mfl_client_service_stopping(uint64_t within_ms);
/* Says that the end has begun, and closes the handles. Idempotent. */
void mfl_client_service_close(struct mfl_client_service *service);

#endif
