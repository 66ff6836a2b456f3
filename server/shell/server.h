/* SPDX-License-Identifier: Apache-2.0 */
/* The whole server: the one place that knows every room, and connects them.
 *
 *     streams -- session -- daemons, admin -- events --> loop -- core -- actions --> server.c
 *                                ^                                                       |
 *                                +-- jobs (memory, workers) <----------------------------+
 *
 * Rooms see only what is below them: loop; then session and jobs; then access, transfer, daemons; then views;
 * then admin and web. Where a lower room must tell a higher one something, the higher one has registered a
 * table of functions. Loop thread only, except the run functions of work.
 */
#ifndef MFL_SERVER_SHELL_SERVER_H
#define MFL_SERVER_SHELL_SERVER_H

#include "server/access/logins.h"
#include "server/admin/admin.h"
#include "server/carrier/carrier.h"
#include "server/cluster/cluster.h"
#include "server/cluster/copies.h"
#include "server/relay/relay.h"
#include "server/web/pages.h"

#define MFL_SERVER_LISTENERS_MAX 8

struct mfl_server {
        struct mfl_server_config config;
        struct mfl_loop loop;
        struct mfl_budget budget;
        struct mfl_store *store;
        struct mfl_plugins *plugins;
        struct mfl_observed observed;
        struct mfl_jobs jobs;
        struct mfl_sessions sessions;
        struct mfl_book book;
        struct mfl_gate gate;
        struct mfl_inquiries inquiries;
        struct mfl_logins logins;
        struct mfl_daemons daemons;
        struct mfl_carriers carriers;
        struct mfl_relay *relay;     /* with upstream, in place of everything from the store to the pages */
        struct mfl_cluster *cluster; /* NULL: this server is alone; not its own */
        bool standby;                /* it does not lead the cluster: neither core nor state are open */
        bool turned;                 /* the role in the cluster is another one now */
        struct mfl_server_shunned { /* servers that have sent files which are not what they were said to be */
                char name[64];
                uint32_t times;
                uint64_t until_ms;
        } shunned[MFL_COPIES_SERVERS_MAX];
        uv_async_t role; /* with cluster */
        struct mfl_admin admin;
        struct mfl_pages pages;
        uint32_t n_listeners, n_flushes;
        uv_tcp_t listeners[MFL_SERVER_LISTENERS_MAX];
        uv_timer_t flush;
        uv_signal_t sigterm, sigint, sighup;
        uv_pipe_t stdin_pipe;
        uv_timer_t status, watchdog; /* service.c */
        uint64_t watchdog_ms;        /* 0: no watchdog */
        char status_text[400];
        char address[300]; /* that it listens on */
};

/* Nothing to close when it fails: the process ends. cluster, which may be NULL, outlives it. */
int mfl_server_open(const struct mfl_server_config *config, struct mfl_cluster *cluster,
        struct mfl_server **ret_server, struct mfl_error *err);
const char *mfl_server_address(const struct mfl_server *server);
/* Runs until stopped, or until server->turned: then it is closed, and opened again. */
int mfl_server_run(struct mfl_server *server, struct mfl_error *err);
void mfl_server_close(struct mfl_server *server);

#endif
