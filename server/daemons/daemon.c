/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon's connection, from its Hello to its end. */
#include "server/daemons/daemon.h"

#include "common/base/log.h"
#include "proto/version.h"
#include "server/daemons/partition_take.h"
#include "server/transfer/params_down.h"

#define TELEMETRY_MS_MAX 60000u /* older figures are not shown: the daemon's sampler may hang */

struct mfl_daemon_peer *mfl_daemon_find(const struct mfl_sessions *sessions, uint32_t conn)
{
        const struct mfl_session *session = conn ? mfl_session_find(sessions, conn) : NULL;
        return session && mfl_session_is_daemon(session) ? mfl_daemon_of(session) : NULL;
}

const struct mfl_telemetry *mfl_daemon_telemetry(const struct mfl_sessions *sessions, uint32_t conn)
{
        const struct mfl_daemon_peer *peer = mfl_daemon_find(sessions, conn);
        bool known = peer && peer->telemetry.known &&
                     mfl_loop_now(sessions->loop) - peer->telemetry_ms <= TELEMETRY_MS_MAX;
        return known ? &peer->telemetry : NULL;
}

/* ---- the greeting ---- */

/* So that jobs can say why they have no daemon. Best effort: a Hello that can't be read says nothing. */
static void tell_refused(struct mfl_daemons *daemons, const Mfl__Envelope *envelope, enum mfl_refusal refusal)
{
        struct mfl_msg msg;
        if (mfl_wire_to_msg(envelope, &msg, NULL))
                return;
        struct mfl_core_event event = {.kind = MFL_EV_REFUSED, .daemon = &msg.hello, .refusal = refusal};
        mfl_loop_feed(daemons->loop, &event);
        mfl_msg_deinit(&msg);
}

static struct mfl_daemons *daemons_of(const struct mfl_session *session)
{
        return session->all->role[MFL__ROLE__ROLE_DAEMON].owner;
}

static void on_denied(struct mfl_session *session, const Mfl__Envelope *envelope, const char *text)
{
        struct mfl_daemons *daemons = daemons_of(session);
        if (text)
                mfl_gate_denied(daemons->gate, session, envelope->hello, text);
        else
                tell_refused(daemons, envelope, MFL_REFUSAL_VERSION);
}

/* A relay's daemons stay with their relay. One that does not know the server where the jobs went stays here, too, as does one of an older
 * release, which can't be told. */
static bool follows_job(struct mfl_session *session, const Mfl__Hello *hello)
{
        const char *to = session->carrier ? NULL : mfl_jobs_moved_to(daemons_of(session)->jobs);
        char text[400];
        if (!to || hello->stays || hello->protocol_max < MFL_PROTOCOL_RELAYS)
                return false;
        mfl_snprintf(text, sizeof text, "the jobs of this server have moved to %s", to);
        session->stream.leader = to;
        mfl_session_refuse(session, text);
        session->stream.leader = NULL;
        return true;
}

static bool on_admit(struct mfl_session *session, const Mfl__Envelope *envelope)
{
        struct mfl_daemons *daemons = daemons_of(session);
        if (follows_job(session, envelope->hello))
                return false;
        bool ok = mfl_gate_admit(daemons->gate, session, envelope->hello);
        if (!ok)
                tell_refused(daemons, envelope, MFL_REFUSAL_RULE);
        return ok;
}

/* Only the relay that carries a daemon says that it is below a relay. A path that is too long is cut. */
static void put_relay(const struct mfl_session *session, const char *rest, char ret_path[MFL_RELAY_BYTES])
{
        ret_path[0] = '\0';
        if (session->carrier)
                mfl_snprintf(ret_path, MFL_RELAY_BYTES, "%s%s%.190s", session->relay, *rest ? "/" : "", rest);
}

static int on_greeted(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        struct mfl_daemons *daemons = daemons_of(session);
        struct mfl_msg msg;
        int r = mfl_wire_to_msg(envelope, &msg, err);
        if (r)
                return r;
        struct mfl_daemon_peer *peer = mfl_calloc(1, sizeof *peer);
        if (!peer) {
                mfl_msg_deinit(&msg);
                return mfl_fail_memory(err, sizeof *peer, "a daemon's connection");
        }
        mfl_assert(!session->peer && *msg.hello.name);
        put_relay(session, envelope->hello->relay, msg.hello.relay);
        mfl_strcpy(peer->name, sizeof peer->name, msg.hello.name);
        mfl_strcpy(peer->site, sizeof peer->site, msg.hello.site);
        mfl_strcpy(peer->lanes.daemon, sizeof peer->lanes.daemon, msg.hello.name);
        peer->inline_max = MFL_MIN(envelope->hello->inline_max, (uint32_t)MFL_INLINE_MAX);
        session->peer = peer;
        struct mfl_core_event event = {.kind = MFL_EV_DAEMON_UP, .conn = session->conn, .daemon = &msg.hello};
        event.drained = mfl_gate_is_drained(daemons->gate, msg.hello.name);
        mfl_loop_feed(daemons->loop, &event); /* the core sends Welcome */
        mfl_msg_deinit(&msg);
        return 0;
}

/* ---- frames ---- */

static void send_gone(struct mfl_session *session, const Mfl__ParamsGet *get)
{
        Mfl__ParamsGone body = MFL__PARAMS_GONE__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.job = get->job;
        body.digest = get->digest;
        body.of_client = get->of_client;
        body.client = get->client;
        envelope.body_case = MFL__ENVELOPE__BODY_PARAMS_GONE;
        envelope.params_gone = &body;
        mfl_session_send(session, &envelope);
}

/* A daemon sees what concerns its own clients, and no others'. */
static void serve_correction(struct mfl_session *session, const Mfl__ParamsGet *get)
{
        struct mfl_daemons *daemons = daemons_of(session);
        struct mfl_server_job *job = mfl_server_job_find(daemons->jobs, get->job);
        bool ready = job && job->stage == MFL_STAGE_READY && mfl_runtime_corrects(job->runtime);
        struct mfl_correction_ask ask = {.conn = session->conn, .client = get->client, .offset = get->offset};
        struct mfl_daemon_peer *peer = mfl_daemon_of(session);
        if (!ready || peer->correcting ||
                !mfl_core_trains(daemons->loop->core, session->conn, get->job, get->client)) {
                send_gone(session, get);
                return;
        }
        memcpy(ask.digest, get->digest.data, MFL_DIGEST_BYTES);
        peer->correcting = true;
        mfl_server_job_correct(job, &ask);
}

void mfl_daemons_corrected(struct mfl_daemons *daemons, struct mfl_server_job *job,
        const struct mfl_correction_ask *ask, struct mfl_params *correction)
{
        struct mfl_session *session = mfl_session_find(daemons->sessions, ask->conn);
        Mfl__ParamsGet get = MFL__PARAMS_GET__INIT;
        if (!session || session->stream.closing || !session->peer)
                return;
        mfl_daemon_of(session)->correcting = false;
        if (correction && ask->offset < correction->n && job->stage == MFL_STAGE_READY) {
                mfl_transfer_start_client(session, job, correction, ask->client, ask->offset);
                return;
        }
        get.job = job->id;
        get.digest = (ProtobufCBinaryData){MFL_DIGEST_BYTES, (uint8_t *)(uintptr_t)ask->digest};
        get.of_client = true;
        get.client = ask->client;
        send_gone(session, &get);
}

/* The core has no part in it. */
void mfl_daemons_params(struct mfl_session *session, const Mfl__ParamsGet *get)
{
        struct mfl_server_job *job = mfl_server_job_find(daemons_of(session)->jobs, get->job);
        struct mfl_params *params =
                job && job->runtime ? mfl_runtime_params(job->runtime, get->digest.data) : NULL;
        if (params && get->offset < params->n) {
                mfl_transfer_start(
                        session, job, params, get->offset, 0, get->have.len ? get->have.data : NULL);
                mfl_params_unref(params);
                return;
        }
        mfl_params_unref(params);
        send_gone(session, get);
}

static int on_payload(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        if (envelope->body_case != MFL__ENVELOPE__BODY_CHUNK)
                return mfl_fail(err, MFL_INVALID, "a payload that nobody asked for");
        return mfl_chunk_begin(session, &mfl_daemon_of(session)->chunk, daemons_of(session)->jobs, envelope,
                payload_bytes, ret_dst, err);
}

static int feed_message(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err)
{
        struct mfl_daemon_peer *peer = mfl_daemon_of(session);
        struct mfl_msg msg;
        int r = mfl_wire_to_msg(envelope, &msg, err);
        if (r == MFL_NOT_FOUND)
                return mfl_fail(err, MFL_INVALID, "a daemon may not send this message");
        if (r)
                return r;
        struct mfl_core_event event = {.kind = MFL_EV_MESSAGE, .conn = session->conn, .msg = &msg};
        if (msg.kind == MFL_MSG_PARAMS_GET) {
                event.kind = MFL_EV_HEARD;
                event.msg = NULL;
                if (envelope->params_get->of_client)
                        serve_correction(session, envelope->params_get);
                else
                        mfl_daemons_params(session, envelope->params_get);
        } else if (msg.kind == MFL_MSG_TELEMETRY) {
                /* For people who look: the core decides nothing by it. */
                event.kind = MFL_EV_HEARD;
                event.msg = NULL;
                peer->telemetry = msg.telemetry;
                peer->telemetry_ms = mfl_loop_now(session->all->loop);
        }
        if (msg.kind == MFL_MSG_ANNOUNCE && envelope->announce->data.len)
                peer->announce = envelope->announce;
        mfl_loop_feed(session->all->loop, &event);
        peer->announce = NULL;
        mfl_msg_deinit(&msg);
        return 0;
}

/* The core has no part in inquiries, but a daemon that speaks is alive. */
static void tell_heard(struct mfl_session *session)
{
        struct mfl_core_event event = {.kind = MFL_EV_HEARD, .conn = session->conn};
        mfl_loop_feed(session->all->loop, &event);
}

static int on_frame(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
        struct mfl_error *err)
{
        struct mfl_daemons *daemons = daemons_of(session);
        struct mfl_daemon_peer *peer = mfl_daemon_of(session);
        switch (envelope->body_case) {
        case MFL__ENVELOPE__BODY_CHUNK:
                return mfl_chunk_arrived(session, &peer->chunk, payload_bytes, err);
        case MFL__ENVELOPE__BODY_INQUIRY_MODEL_GET:
                tell_heard(session);
                return mfl_inquiry_model_get(daemons->inquiries, session, envelope->inquiry_model_get);
        case MFL__ENVELOPE__BODY_INQUIRY_ANSWER:
                tell_heard(session);
                return mfl_inquiry_take(daemons->inquiries, session, envelope->inquiry_answer, err);
        case MFL__ENVELOPE__BODY_PARTITION:
                mfl_job_partition_take(daemons->jobs, session, peer->name, peer->site, envelope->partition);
                return 0;
        default:
                return feed_message(session, envelope, err);
        }
}

static void on_closed(struct mfl_session *session, const char *reason)
{
        struct mfl_daemons *daemons = daemons_of(session);
        struct mfl_daemon_peer *peer = mfl_daemon_of(session);
        mfl_chunk_broken(session, &peer->chunk);
        mfl_transfer_stop(session);
        if (daemons->timeline)
                mfl_lanes_end(daemons->timeline, &peer->lanes, mfl_loop_now(daemons->loop));
        free(peer);
        session->peer = NULL;
        struct mfl_core_event event = {
                .kind = session->stream.broken ? MFL_EV_LIED : MFL_EV_DAEMON_DOWN, .conn = session->conn};
        mfl_strcpy(event.reason, sizeof event.reason, reason);
        mfl_loop_feed(daemons->loop, &event);
}

static const struct mfl_session_ops ops = {
        .denied = on_denied,
        .admit = on_admit,
        .greeted = on_greeted,
        .payload = on_payload,
        .frame = on_frame,
        .closed = on_closed,
};

/* ---- all of them ---- */

void mfl_daemons_open(struct mfl_daemons *daemons)
{
        mfl_sessions_register(daemons->sessions, MFL__ROLE__ROLE_DAEMON, &ops, daemons);
}

void mfl_daemons_beat(struct mfl_daemons *daemons)
{
        for (struct mfl_session *s = daemons->sessions->first; s; s = s->next)
                if (mfl_session_is_daemon(s) && s->peer && !s->stream.closing)
                        mfl_chunk_beat(s, &mfl_daemon_of(s)->chunk);
}

/* What belongs to a task's params and travels with it: their grid, and small params themselves, if this connection has
 * not been sent them yet. Other params the daemon has, or asks for. The caller gives the reference back. */
static struct mfl_params *params_for(struct mfl_daemons *daemons, struct mfl_session *session,
        const struct mfl_task *task, struct mfl_wire_extra *ret_extra)
{
        struct mfl_daemon_peer *peer = mfl_daemon_of(session);
        struct mfl_server_job *job = mfl_server_job_find(daemons->jobs, task->job);
        uint64_t bytes = (task->n_params - task->n_frozen) * sizeof(float);
        bool inside = bytes <= peer->inline_max &&
                      memcmp(peer->inline_digest, task->params_digest, MFL_DIGEST_BYTES);
        struct mfl_params *params =
                job && job->runtime ? mfl_runtime_params(job->runtime, task->params_digest) : NULL;
        if (!params)
                return NULL;
        if (task->kind == MFL_TASK_TRAIN) {
                ret_extra->grid = params->grid;
                ret_extra->n_grid = params->n_grid;
        }
        ret_extra->state_digest = mfl_params_site_state(params, task->items[0]);
        if (inside) {
                memcpy(peer->inline_digest, task->params_digest, MFL_DIGEST_BYTES);
                mfl_server_job_cost_bytes(job, session->conn, 0, bytes);
                ret_extra->data = params->v;
                ret_extra->n = bytes;
        }
        return params;
}

const void *mfl_daemons_inside(
        struct mfl_daemons *daemons, uint32_t conn, uint64_t task, uint32_t update, size_t *ret_bytes)
{
        struct mfl_daemon_peer *peer = mfl_daemon_find(daemons->sessions, conn);
        const Mfl__Announce *announce = peer ? peer->announce : NULL;
        if (!announce || announce->task != task || announce->update != update)
                return NULL;
        peer->announce = NULL;
        *ret_bytes = announce->data.len;
        return announce->data.data;
}

void mfl_daemons_send(struct mfl_daemons *daemons, uint32_t conn, const struct mfl_msg *msg)
{
        struct mfl_session *session = mfl_session_find(daemons->sessions, conn);
        struct mfl_wire_extra extra = {.job_text = NULL};
        struct mfl_params *params = NULL;
        struct mfl_msg welcome;
        if (!session)
                return;
        mfl_assert(mfl_session_is_daemon(session));
        if (msg->kind == MFL_MSG_JOB_SPEC) {
                const struct mfl_server_job *job = mfl_server_job_find(daemons->jobs, msg->job);
                if (!job)
                        return;
                extra.job_text = job->text;
                extra.job_owner = job->owner;
        }
        if (msg->kind == MFL_MSG_TASK)
                params = params_for(daemons, session, &msg->task, &extra);
        if (msg->kind == MFL_MSG_WELCOME) { /* versions are the session's business */
                welcome = *msg;
                welcome.welcome.protocol = session->protocol;
                mfl_session_welcomed(session);
                msg = &welcome;
        }
        mfl_session_send_msg(session, msg, &extra);
        mfl_params_unref(params);
}

void mfl_daemons_job_over(struct mfl_daemons *daemons, const char *job)
{
        Mfl__JobOver body = MFL__JOB_OVER__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.job = (char *)(uintptr_t)job;
        envelope.body_case = MFL__ENVELOPE__BODY_JOB_OVER;
        envelope.job_over = &body;
        for (struct mfl_session *s = daemons->sessions->first; s; s = s->next)
                if (mfl_session_is_daemon(s) && s->state == MFL_SESSION_WELCOME)
                        mfl_session_send(s, &envelope);
}
