/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon's shell: it carries out the agent's decisions on a libuv loop.
 *
 *   - connects, turns frames into messages, keeps the agent's timer;
 *   - receives params from the socket straight into their memory; meanwhile a worker hashes them and copies
 *     them to the device;
 *   - compares each task with the site's policy (gate), before the agent sees it;
 *   - runs tasks through struct mfl_compute_ops; the loop stays free, so Ping is answered meanwhile;
 *   - sends granted ranges as Chunks straight from the result's buffer, a few in flight at a time;
 *   - adds a group's sum through the same table, and sends its final part while the rest is added.
 *
 * Params of a node: if there is a share, all params from the server are received into shared memory, and
 * published under their digest once it is checked. This is done even if the task does not name this daemon in
 * params_from: it costs no more than private memory, and a later task may name it without a copy. If the
 * share has no room, the params go to private memory, and a page of another size under their digest tells the
 * other daemons at once to ask the server. A daemon whose task names another daemon maps that daemon's copy:
 * it is not hashed again and is not charged to the budget.
 *
 * Ways to fail: a connection that is refused, lost or garbled (the agent connects again); params with a wrong
 * digest (fetched again) or without room (that task fails); a task that fails (the server is told); no
 * memory, or a broken device (on_exit with status 1).
 *
 * No globals: many links may share a loop. Loop thread only. */
#ifndef MFL_CLIENT_LINK_LINK_H
#define MFL_CLIENT_LINK_LINK_H

#include "client/agent/agent.h"
#include "client/inquiry/predict.h"
#include "client/policy/gate.h"
#include "client/train/compute.h"
#include "common/base/worker.h"
#include "proto/tls/tls.h"

struct mfl_link;

/* What the site's inquiries are answered from. All of it outlives the link. */
struct mfl_link_site {
        uint32_t n_data_sets; /* loaded ones */
        const struct mfl_dataset *const *data_sets;
        const uint64_t *fingerprints; /* one each */
        const char *predictions_dir;  /* "": the site keeps no predictions */
        const char *backend;          /* that computes them */
        /* mfl_site_predict; here, so that the link needs no backend. */
        int (*predict)(const struct mfl_site_model *model, const struct mfl_dataset *dataset,
                const char *backend, const char *dir, uint64_t *ret_rows, struct mfl_error *err);
};

struct mfl_link_options {
        const char *server;       /* "host:port", or a list (proto/servers.h); copied */
        struct mfl_tls_files tls; /* read again for each connection, so renewed files count; the strings
                                     outlive the link; ca NULL: plain TCP */
        struct mfl_agent_options agent;
        const struct mfl_compute_ops *ops;
        void *compute;                    /* outlives the link */
        struct mfl_worker *hasher;        /* outlives the link; may be shared by links */
        struct mfl_budget *budget;        /* params are charged to it; outlives the link; NULL: no limit */
        struct mfl_share *share;          /* outlives the link; NULL: none */
        struct mfl_activity *activity;    /* told of transfers; outlives the link; NULL: none */
        const struct mfl_link_site *site; /* NULL: it has no data to be asked about */
        const struct mfl_site_privacy *privacy; /* as the trainer's; NULL: none */
        struct mfl_gate *gate; /* the site's policy; outlives the link; NULL: every job is taken */
        uint32_t chunk_bytes;  /* 0: 1 MiB; a multiple of 8 */
        uint32_t chunks_max;   /* in flight; 0: 4 */
        void *user;
        /* The agent has decided to end, or the process can't go on: the owner calls mfl_link_close (it may do
         * so here). status: exit status of a program. */
        void (*on_exit)(struct mfl_link *link, int status, const char *reason);
        /* May be NULL. */
        void (*on_online)(struct mfl_link *link, bool online);
        void (*on_trace)(struct mfl_link *link, const char *line);
};

/* Begins to connect. MFL_INVALID for a bad address; then no callback is made. */
int mfl_link_open(uv_loop_t *loop, const struct mfl_link_options *options, struct mfl_link **ret_link,
        struct mfl_error *err);
/* Like SIGTERM: the agent aborts its work and says Bye, then on_exit is called. */
void mfl_link_stop(struct mfl_link *link);
/* Takes no more work; stops as by mfl_link_stop when none is left, or after within_ms. */
void mfl_link_leave(struct mfl_link *link, uint64_t within_ms);
/* Cancels what runs, closes everything, calls closed (may be NULL), and frees the link. Idempotent. */
void mfl_link_close(struct mfl_link *link, void (*closed)(void *user));
/* Tells the server the state of the device and of the workers; does nothing while offline. */
void mfl_link_telemetry(struct mfl_link *link, const struct mfl_telemetry *telemetry);
/* The address that it is connected to, or tries next. */
const char *mfl_link_server(const struct mfl_link *link);
void *mfl_link_user(const struct mfl_link *link);

#endif
