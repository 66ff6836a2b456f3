/* SPDX-License-Identifier: Apache-2.0 */
/* Other servers of the cluster, which give and take files by their SHA-256 (server/cluster/copies.h): sessions with ROLE_SERVER, of a server
 * that leads and of one that follows. Loop thread; files on the disk worker. */
#ifndef MFL_SERVER_SHELL_PEERS_H
#define MFL_SERVER_SHELL_PEERS_H

#include "server/shell/server.h"

/* Registers the role, if the configuration has cluster.servers. */
void mfl_peers_open(struct mfl_server *server);

#endif
