/* SPDX-License-Identifier: Apache-2.0 */
/* A server of a cluster (server/cluster/cluster.h): as long as it does not lead, it has sessions and a loop, and sends every peer to the
 * leader. When the role changes, the loop stops, and main opens the server again in the new one. Loop thread only. */
#ifndef MFL_SERVER_SHELL_STANDBY_H
#define MFL_SERVER_SHELL_STANDBY_H

#include "server/shell/server.h"

/* Starts to listen to the cluster; the loop is open. Without a cluster it does nothing. */
void mfl_standby_watch(struct mfl_server *server);
/* Nobody listens any more; before the handles are closed. */
void mfl_standby_unwatch(struct mfl_server *server);
/* Registers the roles of one that does not lead. */
void mfl_standby_open(struct mfl_server *server);
/* What the configuration says, for mfl_cluster_open. */
struct mfl_cluster_options mfl_standby_options(const struct mfl_server_config *config);

#endif
