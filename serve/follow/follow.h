/* SPDX-License-Identifier: Apache-2.0 */
/* Follows a job of a mfl-server, or a registered model: each committed round, or each version that the model becomes, is written as a model
 * file, which is replaced atomically.
 *
 *   AWAY --timer--> CONNECTING --Welcome--> WATCHING: Watch tells of rounds, WatchModel of versions; Pull fetches the one that is wanted; the digest is
 *   checked and the file written on a worker; on_new tells the owner
 *
 * When the server is away, the file stays as it is, and a new attempt follows after a pause that grows from 1 s to 15 s. What the
 * server refuses (no such job, no rights) is logged, and tried again in the same way: it may be mended while nobody looks. A file that came from
 * another `server` than the present one stays until this one has answered: with a round, or that it has no such job or model, or no round of it yet, which on_denied tells. A round that
 * is no longer kept when it is asked for is none of these: the next one is asked for.
 * Loop thread only.
 */
#ifndef MFL_SERVE_FOLLOW_FOLLOW_H
#define MFL_SERVE_FOLLOW_FOLLOW_H

#include "common/base/worker.h"
#include "proto/servers.h"
#include "proto/stream.h"

struct mfl_follow_config {
        const char *name;           /* of the model, for the log */
        const char *server;         /* "host:port", or all servers of a cluster (proto/servers.h) */
        const char *job;            /* its id; "": a registered model is followed */
        const char *model;          /* "NAME@alias", "NAME@version" or "NAME" */
        bool best;                  /* of a job: the best round in place of the newest */
        struct mfl_tls_files tls;   /* ca NULL or "": plain */
        const char *path;           /* of the file that is written; its folder is made */
        void (*on_new)(void *user); /* the file has another model */
        void (*on_denied)(
                void *user); /* the file is another server's, and the present one knows nothing of it */
        /* What is served now, for the server: texts stay until the next call. NULL: it is not told. */
        void (*describe)(void *user, Mfl__Serving *serving);
        void *user;
};

struct mfl_followed; /* a model that is being written */
struct mfl_follow {
        /* For people and metrics. */
        bool connected;
        uint32_t round; /* that was written last since the start; 0: none */
        uint64_t n_written, n_failed;
        /* Private. */
        struct mfl_follow_config config;
        uv_loop_t *loop;
        struct mfl_worker *worker;
        struct mfl_stream stream;
        uv_timer_t timer; /* between attempts; the pulse of a connection otherwise */
        bool open, welcomed, wanted, pulling, closing, tells;
        bool inherited;  /* the file came from another server */
        uint32_t newest; /* of a job: the newest round that this connection has told of; 0: none */
        uint32_t pause_ms, heartbeat_ms, dead_ms;
        uint64_t told_ms;              /* when the server was told what is served */
        char target[MFL_JOB_ID_BYTES]; /* of a registered model: the round that it is */
        uint32_t target_round;
        char asked[MFL_JOB_ID_BYTES],
                job[MFL_JOB_ID_BYTES]; /* of the pull; of the round that was written last */
        uint64_t request, watch;       /* the last request's number; the watch's */
        Mfl__Envelope *begin;          /* of the pull */
        float *params;
        uint64_t n_params, have;
        struct mfl_followed *writing;
        struct mfl_servers servers;
        char leader[304]; /* whom a server that does not lead has named */
        char said[256];   /* why the last attempt ended: told once */
};

/* config's texts must stay. The worker must outlive it. */
void mfl_follow_start(struct mfl_follow *follow, uv_loop_t *loop, struct mfl_worker *worker,
        const struct mfl_follow_config *config);
/* The memory must stay until the loop has ended. */
void mfl_follow_close(struct mfl_follow *follow);

#endif
