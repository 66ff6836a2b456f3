/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons as operators and pages see them. Nothing here changes anything. */
#ifndef MFL_SERVER_VIEWS_DAEMON_VIEW_H
#define MFL_SERVER_VIEWS_DAEMON_VIEW_H

#include "server/daemons/daemon.h"

/* One daemon: what the core knows, and what its connection tells. */
struct mfl_daemon_row {
        struct mfl_core_daemon_view view;      /* view.node is never empty if Hello named one */
        const struct mfl_telemetry *telemetry; /* NULL: none that is recent */
        const char *address;                   /* "" when it is not connected */
        uint64_t connected_unix_ms;            /* 0 when it is not connected */
};
/* The i-th daemon of the core. Pointers are valid until the loop goes on. */
void mfl_daemon_row(const struct mfl_sessions *sessions, uint32_t i, struct mfl_daemon_row *ret_row);
/* At most `max` daemons, by node and name. NULL: out of memory. Freed by the caller. */
struct mfl_daemon_row *mfl_daemon_rows(const struct mfl_sessions *sessions, uint32_t max, uint32_t *ret_n);

/* A row as a message. */
struct mfl_daemon_info_buffers {
        Mfl__Telemetry telemetry;
        Mfl__Activity activity;
        Mfl__DataSet sets[MFL_DATA_SETS_MAX];
        Mfl__DataSet *set_pointers[MFL_DATA_SETS_MAX];
        uint32_t shapes[MFL_DATA_SETS_MAX][MFL_SHAPE_RANK_MAX];
};
/* Strings of the message point into the row. */
void mfl_view_daemon(
        const struct mfl_daemon_row *row, Mfl__DaemonInfo *ret_info, struct mfl_daemon_info_buffers *buffers);
/* The same of a daemon that was refused. */
void mfl_view_refused(const struct mfl_refused_daemon *refused, Mfl__DaemonInfo *ret_info);

#endif
