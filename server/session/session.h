/* SPDX-License-Identifier: Apache-2.0 */
/* Connections, from accept to close. Until its Hello a peer is a stranger; then its role (daemon or operator)
 * has a table of operations, which the owner of the sessions registers, and which handles all that follows:
 *
 *     STRANGER --Hello--> GREETED --Welcome--> WELCOME
 *         |
 *         +--a rule or a limit--> REFUSED
 *
 * A session lives until its stream is closed, whatever its state. Ways to fail: too many connections, no
 * Hello or a wrong one, a message out of turn, a payload nobody asked for, silence, a peer that does not
 * read, the peer's own close. Each ends that session alone. Loop thread only.
 */
#ifndef MFL_SERVER_SESSION_SESSION_H
#define MFL_SERVER_SESSION_SESSION_H

#include "proto/stream.h"
#include "server/config/config.h"
#include "server/loop/loop.h"

struct mfl_session;
struct mfl_sessions;

/* What a role does. The table and `owner` belong to the room that registers them. */
struct mfl_session_ops {
        /* A peer whose Hello can't be accepted. text: why, where its certificate does not allow the role;
         * NULL: it speaks another version, and the certificate is fine. NULL if nobody needs to know. */
        void (*denied)(struct mfl_session *session, const Mfl__Envelope *hello, const char *text);
        /* Whether the rules let it in. False: mfl_session_refuse was called. NULL: everybody. */
        bool (*admit)(struct mfl_session *session, const Mfl__Envelope *hello);
        /* It has come in: sets session->peer. Codes as mfl_stream_ops.on_frame. */
        int (*greeted)(struct mfl_session *session, const Mfl__Envelope *hello, struct mfl_error *err);
        /* As mfl_stream_ops.on_payload and on_frame. */
        int (*payload)(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
                void **ret_dst, struct mfl_error *err);
        int (*frame)(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
                struct mfl_error *err);
        /* A session that this one carries goes. NULL: it carries none. */
        void (*dropped)(struct mfl_session *session, struct mfl_session *carried);
        /* The session goes; frees session->peer. Only of one that was greeted. */
        void (*closed)(struct mfl_session *session, const char *reason);
};

enum mfl_session_state {
        MFL_SESSION_STRANGER,
        MFL_SESSION_GREETED,
        MFL_SESSION_WELCOME,
        MFL_SESSION_REFUSED,
};

struct mfl_session {
        struct mfl_stream stream;
        struct mfl_sessions *all;
        struct mfl_session *next, **prev_next;
        struct mfl_session *hash_next; /* by conn */
        uint32_t conn;                 /* never used twice */
        enum mfl_session_state state;
        Mfl__Role role;                  /* unspecified before GREETED */
        uint32_t protocol;               /* the version spoken; 0 until Hello */
        uint64_t opened_ms;              /* the loop's clock */
        uint64_t connected_unix_ms;      /* when it was greeted */
        char address[80];                /* of the other end */
        char who[MFL_TLS_NAME_BYTES];    /* CN of its certificate; "local" or "anybody" without TLS */
        uint32_t roles;                  /* of it (MFL_TLS_ROLE_...); all without TLS */
        struct mfl_handshake *handshake; /* NULL: greeted, or plain */
        uint32_t n_work;                 /* work on the disk worker that it has asked for */
        void *peer;                      /* the role's own; NULL before `greeted` */
        struct mfl_transfer *transfer;   /* server/transfer/params_down.h; NULL: none */
        struct mfl_transfer *correction; /* the same, of a client */
        struct mfl_session *carrier;     /* the relay's, whose connection carries this one; NULL: none does */
        void (*sink)(void *user,
                const Mfl__Envelope *envelope); /* of an inner one: takes what is sent; else NULL */
        void *sink_user;
        char cn[MFL_TLS_NAME_BYTES],
                fingerprint
                        [65]; /* carried: of the daemon's certificate, as the relay says; "": it has none */
        char relay[MFL_NAME_BYTES]; /* of a relay, or carried: the relay's name */
};

/* Counters since the start. */
struct mfl_session_counts {
        uint64_t accepted, over_limit, ungreeted, unread;
        uint64_t bytes_in, bytes_out; /* of connections that are closed */
};

/* Private to admission.c. */
struct mfl_admission {
        struct mfl_tls_context *tls;      /* NULL: plain; connections keep the one they began with */
        struct mfl_handshake *handshakes; /* of connections that have not greeted */
        struct mfl_rate *rate;            /* of new connections by address; NULL: no limit */
        uint32_t n_parted,
                n_parted_before; /* connections closed since memory was given back, now and 1 s ago */
        uint32_t n_handshakes, n_warned, n_unsaid;
        uint64_t warned_ms; /* begin of the second in which n_warned lines about strangers were logged */
};

#define MFL_SESSION_BUCKETS 4096
struct mfl_sessions {
        struct mfl_loop *loop;
        const struct mfl_server_config *config;
        struct {
                const struct mfl_session_ops *ops;
                void *owner;
        } role[5]; /* by Mfl__Role; [0] stays empty */
        struct mfl_session *first, *buckets[MFL_SESSION_BUCKETS];
        uint32_t n, conn_last;
        uint64_t term;        /* of every message (Envelope.term); 0: no cluster */
        uint64_t unread_most; /* bytes: an upper bound of what is unread on all connections */
        struct mfl_session_counts counts;
        struct mfl_admission admission;
};

/* Reads the certificates; nothing to close when it fails. MFL_INVALID, -ENOMEM. */
int mfl_sessions_open(struct mfl_sessions *sessions, struct mfl_loop *loop,
        const struct mfl_server_config *config, struct mfl_error *err);
void mfl_sessions_register(
        struct mfl_sessions *sessions, Mfl__Role role, const struct mfl_session_ops *ops, void *owner);
/* Says Bye to all; the sessions go while the loop turns. */
void mfl_sessions_end(struct mfl_sessions *sessions, const char *reason);
void mfl_sessions_close(struct mfl_sessions *sessions);
/* A few times a second: closes connections that have not greeted in time. */
void mfl_sessions_beat(struct mfl_sessions *sessions);
/* A listener of libuv has a connection; listener->data: the sessions. */
void mfl_session_on_connection(uv_stream_t *listener, int status);

/* A stranger on a relay's connection, under the relay's number for it (proto/carry.h). NULL: memory ran out, which ends the process.
 * The relay's owner closes it before the relay's session goes. */
struct mfl_session *mfl_session_carried(struct mfl_session *carrier, uint32_t via);

/* An operator's session without a connection, for a request that came in another way (HTTP): greeted, with that name and those roles of
 * a certificate. What it is sent goes to sink; payloads can't be sent to it. It ends with mfl_stream_close; from then on sink is not
 * called. NULL: memory ran out, which ends the process. */
struct mfl_session *mfl_session_inner(struct mfl_sessions *sessions, const char *who, uint32_t roles,
        const char *address, void (*sink)(void *user, const Mfl__Envelope *envelope), void *sink_user);
/* Hands it a request. Not valid by mfl.proto: MFL_INVALID. */
int mfl_session_inner_ask(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err);

struct mfl_session *mfl_session_find(const struct mfl_sessions *sessions, uint32_t conn); /* NULL: gone */
bool mfl_session_is_daemon(const struct mfl_session *session);
/* The owner said Welcome. */
void mfl_session_welcomed(struct mfl_session *session);
/* Closes it with that reason, and does not count it as a stranger that said nothing. */
void mfl_session_refuse(struct mfl_session *session, const char *reason);

/* ---- sending ---- */
void mfl_session_send(struct mfl_session *session, const Mfl__Envelope *envelope);
/* extra: what the message carries besides (proto/wire.h); may be NULL. */
void mfl_session_send_msg(
        struct mfl_session *session, const struct mfl_msg *msg, const struct mfl_wire_extra *extra);
/* Answers a request with Failure. */
void mfl_session_fail(struct mfl_session *session, uint64_t request, Mfl__FailureCode code, const char *fmt,
        ...) MFL_PRINTF(4, 5);
/* Bytes that peers have been sent and have not read. *ret_most: who has the most; NULL: nobody has any. */
uint64_t mfl_session_unread(const struct mfl_sessions *sessions, struct mfl_session **ret_most);

/* ---- work on the disk that a peer has asked for ---- */
/* One peer may have MFL_SESSION_WORK_MAX items waiting, and all peers together half of the worker's queue:
 * the other half is for the server's own work, whose commits must never find it full. False: the limit is
 * reached, and the work was not taken. The done function of work that was taken calls mfl_session_worked,
 * whether the session is still there or not. */
#define MFL_SESSION_WORK_MAX 256
bool mfl_session_submit(struct mfl_session *session, struct mfl_work *work);
void mfl_session_worked(struct mfl_sessions *sessions, uint32_t conn);

#endif
