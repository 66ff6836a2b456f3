/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon's shell: it carries out what the agent core decides, on a libuv loop.
 *
 *   - connects, turns frames into messages, keeps the agent's timer;
 *   - params go from the socket straight into their buffer, and are hashed on a worker while the rest still
 * comes;
 *   - tasks run through struct mfl_compute_ops; the loop stays free, so Ping is answered while they do;
 *   - granted ranges go out as Chunks straight from the result's buffer, a few in flight at a time;
 *   - sums of a group are added by the same table; what is final of one goes out while the rest is added.
 * At most two versions of a job's params are kept, besides one that a running task reads, and of a job with
 * frozen params those, as long as its file.
 *
 * Params of a node: where there is a share, every version that comes from the server lands in shared memory
 * and is published under its digest once that is checked. Always, not only for a task whose params_from is
 * this daemon: it costs the same as private memory, and a later task may make this daemon the one that
 * fetches for the node without anything to be copied. When the share has no room they land in private memory,
 * and a page of another size under their digest tells the others at once that they won't come. A daemon whose
 * task names another one maps that one's copy: it isn't hashed again and costs no budget. It looks every few
 * ms, as long as the other one lives, at most 5 s and 1 s per 16 MiB; then it asks the server.
 *
 * Ways to fail: a connection that is refused, lost or garbled (the agent connects anew); params whose digest
 * is wrong (fetched anew) or that don't fit the memory (that task fails); a task that fails (told to the
 * server); want of memory or a broken device (on_exit with status 1).
 *
 * No globals: many links may live on one loop. Loop thread only.
 */
#ifndef MFL_CLIENT_LINK_H
#define MFL_CLIENT_LINK_H

#include "client/agent.h"
#include "client/compute.h"
#include "common/worker.h"
#include "proto/tls.h"

struct mfl_link;

struct mfl_link_options {
        const char *server;       /* "host:port"; copied */
        struct mfl_tls_files tls; /* read at each connection, so that renewed ones count; the strings outlive
                                     the link; ca NULL: plain TCP */
        struct mfl_agent_options agent;
        const struct mfl_compute_ops *ops;
        void *compute;                 /* outlives the link */
        struct mfl_worker *hasher;     /* outlives the link; may be shared by links */
        struct mfl_budget *budget;     /* params are charged to it; outlives the link; NULL: no limit */
        struct mfl_share *share;       /* outlives the link; NULL: none */
        struct mfl_activity *activity; /* is told of transfers; outlives the link; NULL: none */
        uint32_t chunk_bytes;          /* 0: 1 MiB; a multiple of 8 */
        uint32_t chunks_max;           /* in flight; 0: 4 */
        void *user;
        /* The agent has decided to end, or the process can't go on: the owner calls mfl_link_close (here, if
         * it likes). status: exit status of a program. */
        void (*on_exit)(struct mfl_link *link, int status, const char *reason);
        /* May be NULL. */
        void (*on_online)(struct mfl_link *link, bool online);
        void (*on_trace)(struct mfl_link *link, const char *line);
};

/* Starts to connect. MFL_INVALID for a bad address; then nothing is called. */
int mfl_link_open(uv_loop_t *loop, const struct mfl_link_options *options, struct mfl_link **ret_link,
        struct mfl_error *err);
/* As SIGTERM: the agent aborts its work, says goodbye, and on_exit comes. */
void mfl_link_stop(struct mfl_link *link);
/* Takes no more work; ends as by mfl_link_stop when there is none left, after within_ms at the latest. */
void mfl_link_leave(struct mfl_link *link, uint64_t within_ms);
/* Cancels what runs, closes everything, calls closed (may be NULL), and frees the link. Idempotent. */
void mfl_link_close(struct mfl_link *link, void (*closed)(void *user));
/* Tells the server how the device is and what the workers do; nothing while offline. */
void mfl_link_telemetry(struct mfl_link *link, const struct mfl_telemetry *telemetry);
void *mfl_link_user(const struct mfl_link *link);
bool mfl_link_online(const struct mfl_link *link);

#endif
