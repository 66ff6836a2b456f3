/* SPDX-License-Identifier: Apache-2.0 */
/* The connections of daemons: their messages become events of the core, chunks of updates land in slots, and
 * params are sent on request. Loop thread only. */
#ifndef MFL_SERVER_DAEMONS_DAEMON_H
#define MFL_SERVER_DAEMONS_DAEMON_H

#include "server/access/gate.h"
#include "server/inquiry/inquiry.h"
#include "server/jobs/job.h"
#include "server/transfer/chunk_up.h"

struct mfl_daemons {
        struct mfl_loop *loop;
        struct mfl_sessions *sessions;
        struct mfl_jobs *jobs;
        struct mfl_gate *gate;
        struct mfl_inquiries *inquiries;
        struct mfl_timeline *timeline; /* NULL: none is kept */
};

/* What a daemon's session has. */
struct mfl_daemon_peer {
        char name[MFL_NAME_BYTES], site[MFL_NAME_BYTES]; /* as in Hello */
        struct mfl_telemetry telemetry;                  /* the newest; nothing is known before the first */
        uint64_t telemetry_ms;                           /* the loop's clock when it came */
        struct mfl_chunk chunk;
        /* Small models: how many bytes of params a Task may have inside, and which params the last such Task
         * had; and the Announce that the core is processing, if it has an update inside that nobody took. */
        uint32_t inline_max;
        uint8_t inline_digest[MFL_DIGEST_BYTES];
        const Mfl__Announce *announce;
        bool correcting;        /* a worker finds what is added to a client's gradients: one at a time */
        struct mfl_lanes lanes; /* when a timeline is kept */
};

/* Takes over the sessions of daemons. */
void mfl_daemons_open(struct mfl_daemons *daemons);
/* A few times a second: tells the core whose uploads move. */
void mfl_daemons_beat(struct mfl_daemons *daemons);
/* Sends a message, if the connection is still there. JOB_SPEC gets the job's text. */
void mfl_daemons_send(struct mfl_daemons *daemons, uint32_t conn, const struct mfl_msg *msg);
/* As mfl_jobs_ops.inside. */
const void *mfl_daemons_inside(
        struct mfl_daemons *daemons, uint32_t conn, uint64_t task, uint32_t update, size_t *ret_bytes);
/* As mfl_jobs_ops.corrected. */
void mfl_daemons_corrected(struct mfl_daemons *daemons, struct mfl_server_job *job,
        const struct mfl_correction_ask *ask, struct mfl_params *correction);
/* Sends a daemon or a relay the params that it asks for, or ParamsGone. */
void mfl_daemons_params(struct mfl_session *session, const Mfl__ParamsGet *get);
/* Tells every daemon that the job has ended, so that it frees its device. */
void mfl_daemons_job_over(struct mfl_daemons *daemons, const char *job);

/* NULL: the connection is gone. */
struct mfl_daemon_peer *mfl_daemon_find(const struct mfl_sessions *sessions, uint32_t conn);
/* The daemon's recent telemetry; NULL: none. Valid until the loop goes on. */
const struct mfl_telemetry *mfl_daemon_telemetry(const struct mfl_sessions *sessions, uint32_t conn);
/* Of a session of a daemon that was greeted. */
static inline struct mfl_daemon_peer *mfl_daemon_of(const struct mfl_session *session)
{
        mfl_assert(mfl_session_is_daemon(session));
        return session->peer;
}

#endif
