/* SPDX-License-Identifier: Apache-2.0 */
/* The server's shell: what the files around the core share. A libuv loop, its connections, the workers, and
 * the jobs' memory; decisions are the core's alone.
 *
 *     stream ---- session.c ---- event ----> core.c ---- actions ----> shell.c
 *       ^            |                                                    |
 *       |            +-- operators.c (requests of `mfl`)                  +-- job*.c (memory, workers)
 *       +-- transfer.c (params down)          watch.c (who looks on) <----+
 *
 * Loop thread only, but for the run functions of work. Ownership: the server owns sessions and jobs; a
 * session lives until its stream is closed; a job's object lives until it is deleted, its runtime until the
 * core releases it.
 */
#ifndef MFL_SERVER_SERVER_H
#define MFL_SERVER_SERVER_H

#include <uv.h>

#include "common/budget.h"
#include "common/job.h"
#include "common/worker.h"
#include "proto/stream.h"
#include "server/access.h"
#include "server/config.h"
#include "server/core.h"
#include "server/node_cost.h"
#include "server/observe.h"
#include "server/rate.h"
#include "server/runtime.h"
#include "server/store.h"

struct mfl_server;
struct mfl_server_job;

/* ---- sessions: one a connection ---- */

/* Params on their way to one peer: at most TRANSFER_WINDOW frames are queued at a time. */
struct mfl_transfer {
        struct mfl_params *params; /* NULL: none */
        struct mfl_server_job *job;
        uint64_t offset; /* next float */
        uint32_t in_flight;
        uint64_t request; /* of an operator's Pull; 0 for daemons */
};

struct mfl_session {
        struct mfl_stream stream;
        struct mfl_server *server;
        struct mfl_session *next, **prev_next; /* all sessions */
        struct mfl_session *hash_next;         /* by conn */
        uint32_t conn;
        Mfl__Role role;    /* unspecified until Hello */
        uint32_t protocol; /* the version spoken; 0 until Hello */
        uint64_t opened_ms, connected_unix_ms;
        char peer[80];
        char daemon[MFL_NAME_BYTES];     /* its name, of a daemon */
        char who[MFL_TLS_NAME_BYTES];    /* CN of its certificate; "local" without TLS */
        uint32_t roles;                  /* of it (MFL_TLS_ROLE_...); all without TLS */
        struct mfl_handshake *handshake; /* NULL: greeted, or plain */
        bool refused;                    /* by a rule or a limit, which was told */
        struct mfl_telemetry telemetry;  /* of a daemon; the newest, nothing known before the first */
        uint64_t telemetry_ms;           /* the loop's clock when it came */
        uint32_t n_work;                 /* on the disk worker, that it has asked for */
        struct mfl_transfer transfer;
        /* Where a Chunk's payload is landing; NULL: nowhere. Counts as an operation of the job. */
        struct mfl_server_job *chunk_job;
        struct mfl_slot_write chunk_write;
        size_t chunk_told; /* bytes of that payload that the core has heard of */
        /* Operators. */
        struct mfl_watcher *watchers;
        struct mfl_submission *submission; /* Initial frames are coming */
        struct mfl_lanes *lanes;           /* of a daemon, when a timeline is kept */
};

/* ---- jobs ---- */

struct mfl_slot_use {
        uint32_t conn; /* whose chunks are let in; 0: nobody's */
        uint64_t task;
        uint32_t update;
        uint64_t bytes;
        enum mfl_encoding encoding;
        bool open, adding;
        int refused;        /* what mfl_slot_open said; MFL_BUSY is asked again */
        bool grant_pending; /* because of that */
        struct mfl_error err;
};

struct mfl_server_job {
        char id[MFL_JOB_ID_BYTES];
        struct mfl_server *server;
        struct mfl_server_job *next;
        char owner[MFL_OWNER_BYTES];
        char *text;
        struct mfl_job *spec;
        enum mfl_job_state state;
        char reason[MFL_REASON_BYTES];
        uint64_t created_unix_ms, finished_unix_ms;
        uint32_t committed;
        uint64_t n_params, n_frozen;
        bool has_last, has_evaluated, has_best;
        struct mfl_store_round last, evaluated, best;
        bool in_core;        /* added, not yet released */
        bool releasing;      /* the core has let go of it; its memory goes when operations is 0 */
        uint32_t operations; /* on a worker, and chunks that are landing */
        struct mfl_graph *graph;
        struct mfl_runtime *runtime;
        uint32_t n_slots;
        struct mfl_slot_use *slots;
        struct mfl_node_costs costs[2]; /* of the round that was opened last, and of the one before, which
                                           may not be committed */
        bool per_token;                 /* its losses are of tokens */
        bool dirty;                     /* watchers have not seen its newest state */
        struct mfl_data_info data;
        char data_from[MFL_NAME_BYTES];
        uint32_t stop_after;   /* 0: it was not asked for */
        bool state_unwritten;  /* the disk would not take `state` */
        bool prepared_stored;  /* what PREPARE found is in the database; workers only, one after the other */
        uint32_t checkpointed; /* round of `file` and `frozen_file` */
        struct mfl_store_file file, frozen_file;
        struct mfl_job_observed observed;
        bool has_partition; /* a population's is in the store, or on its way there */
};

/* ---- the server ---- */

#define MFL_SESSION_BUCKETS 4096
#define MFL_SERVER_LISTENERS_MAX 8
#define MFL_LISTEN_BACKLOG 4096

struct mfl_server {
        struct mfl_server_config config;
        uv_loop_t loop;
        uint32_t n_listeners;
        uv_tcp_t listeners[MFL_SERVER_LISTENERS_MAX];
        uv_timer_t tick, flush;
        uv_signal_t sigterm, sigint, sighup;
        uv_timer_t status, watchdog; /* what the service manager is told; service.c */
        uint64_t watchdog_ms;        /* 0: nobody waits for signs of life */
        char status_text[400];
        struct mfl_tls_context *tls;      /* NULL: plain; connections keep the one they began with */
        struct mfl_handshake *handshakes; /* of connections that have not greeted */
        struct mfl_rate *rate;            /* of new connections by address; NULL: no limit */
        uint32_t n_parted;                /* handshakes that are over, since memory was last given back */
        uint32_t n_handshakes, n_warned, n_unsaid;
        uint32_t n_refusals; /* written to the audit in the minute that began at refusals_ms */
        uint64_t refusals_ms;
        uint64_t warned_ms; /* begin of the second in which n_warned lines about strangers were logged */
        uv_pipe_t stdin_pipe;
        struct mfl_worker compute, disk; /* sums and strategies; SQLite and checkpoints */
        struct mfl_core *core;
        struct mfl_core_actions actions;
        struct mfl_budget budget;
        struct mfl_store *store;
        struct mfl_session *sessions, *buckets[MFL_SESSION_BUCKETS];
        struct mfl_server_job *jobs;
        struct mfl_event_node *event_first, *event_last; /* events that came up while the core was busy */
        struct mfl_store_names drained;
        struct mfl_store_rules rules; /* who may take part */
        struct mfl_refused_list refused;
        struct mfl_drain_wait *drains; /* operators that wait for a daemon to be idle */
        uint64_t tick_due_ms;
        bool stepping, stopping, ready;
        uint32_t n_sessions, n_operators, n_log_watchers, conn_last;
        uint64_t unread_most; /* bytes; there are no more unread on all connections than this */
        int fatal;            /* a negative that ends the process */
        struct mfl_error fatal_error;
        char address[300];
        struct mfl_observed observed;
        struct mfl_http *http;           /* NULL: no HTTP port */
        struct mfl_page_detail *details; /* pages that wait for the database; the first is at it */
};

int mfl_server_open(
        const struct mfl_server_config *config, struct mfl_server **ret_server, struct mfl_error *err);
const char *mfl_server_address(const struct mfl_server *server);
/* Runs until stopped. */
int mfl_server_run(struct mfl_server *server, struct mfl_error *err);
void mfl_server_close(struct mfl_server *server);

/* shell.c: gives the core an event and carries out its actions. Called from anywhere on the loop thread; an
 * event that comes up while actions are carried out waits its turn. Borrowed parts of the event are used
 * during the call only when the core is idle, so daemon and msg are handed over only from stream callbacks.
 */
void mfl_server_feed(struct mfl_server *server, struct mfl_core_event *event);
/* The clock of the core and of all events. */
uint64_t mfl_server_now(struct mfl_server *server);
/* Ends the process in good order with this text: memory, disk or database are broken. */
void mfl_server_fatal(struct mfl_server *server, int code, const struct mfl_error *err);
uint64_t mfl_unix_ms(void);

/* shell.c: whether the configuration lets the server listen there. text is the address for people. */
int mfl_server_may_listen(
        struct mfl_server *server, const struct sockaddr *address, const char *text, struct mfl_error *err);

/* service.c */
/* Starts the watchdog and the status line, and listens for SIGHUP. Does nothing harmful where no manager is.
 */
void mfl_service_open(struct mfl_server *server);
/* Listens on the sockets that the service manager has opened, all of them; *ret_n: how many. */
int mfl_service_listen(struct mfl_server *server, uint32_t *ret_n, struct mfl_error *err);
/* Everything is loaded, and callers are taken. */
void mfl_service_ready(struct mfl_server *server);
/* Reads the configuration again and takes over what can change while the server runs. A configuration that is
 * wrong changes nothing, and the log says what is wrong with it. No connection notices. */
void mfl_server_reload(struct mfl_server *server);

/* session.c */
void mfl_session_on_connection(uv_stream_t *listener, int status);
struct mfl_session *mfl_session_find(struct mfl_server *server, uint32_t conn); /* NULL: gone */
/* What the daemon of a connection has told of itself; NULL: nothing, or nothing of late. Valid until the loop
 * goes on. */
const struct mfl_telemetry *mfl_session_telemetry(struct mfl_server *server, uint32_t conn);
/* Puts work on the disk worker that a peer has asked for. A peer may have MFL_SESSION_WORK_MAX waiting, and
 * all peers together half of the queue: the other half is for the server's own, whose commits must never find
 * it full. False: that is too much, and it was not taken. From the done of work that was taken, whether or
 * not the session still is there: mfl_session_worked. */
#define MFL_SESSION_WORK_MAX 256
bool mfl_session_submit(struct mfl_session *session, struct mfl_work *work);
void mfl_session_worked(struct mfl_server *server, uint32_t conn);
void mfl_session_send(struct mfl_session *session, const Mfl__Envelope *envelope);
/* Something was put into its queue, which had `before` unread bytes then: if all connections together have
 * more than unread_max, the one with the most is closed. */
void mfl_session_queued(struct mfl_session *session, size_t before);
/* Bytes that peers have been sent and have not read. *ret_most: who has the most; NULL: nobody has any. */
uint64_t mfl_session_unread(struct mfl_server *server, struct mfl_session **ret_most);
/* Tells every daemon that the job has ended, so that it frees its device. */
void mfl_session_job_over(struct mfl_server *server, const char *job);
/* Tells the core who is in the middle of a chunk, which may take long. */
void mfl_session_tell_chunks(struct mfl_server *server);
/* Closes those that have not greeted in time. */
void mfl_session_reap(struct mfl_server *server);

/* admission.c: certificates, and who may begin a handshake. */
/* Reads the files of the configuration; nothing without TLS. MFL_INVALID; the context stays as it was. */
int mfl_admission_load(struct mfl_server *server, struct mfl_error *err);
/* A new connection, before its accept; after it, whether it may go on: one address or all together may not
 * have more than so many handshakes under way. False: closed. */
int mfl_admission_prepare(struct mfl_session *session, struct mfl_error *err);
bool mfl_admission_begin(struct mfl_session *session);
void mfl_admission_end(struct mfl_session *session); /* greeted, or gone; idempotent */
/* Who it is, when its Hello is there. MFL_INVALID: its certificate does not allow this role or name. */
int mfl_admission_check(struct mfl_session *session, const Mfl__Hello *hello, struct mfl_error *err);
/* A warning about somebody unknown: a few a second, so that strangers can't fill the log. */
/* How many were left out is told by the tick, a few times a second. */
void mfl_admission_tick(struct mfl_server *server);
void mfl_admission_warn(struct mfl_server *server, const char *fmt, ...) MFL_PRINTF(2, 3);

/* audit.c: writes a row, soon; for what no request of the disk worker stands for. session NULL: the server
 * itself. Rows of refusals are bounded: 100 a minute. */
void mfl_audit_note(struct mfl_server *server, const struct mfl_session *session, const char *action,
        const char *object, const char *result, const char *text);

/* transfer.c: starts (or restarts) sending params from a float on; takes a reference. */
void mfl_transfer_start(struct mfl_session *session, struct mfl_server_job *job, struct mfl_params *params,
        uint64_t offset, uint64_t request);
void mfl_transfer_stop(struct mfl_session *session);

/* job.c; job_prepare.c, job_slot.c, job_round.c */
struct mfl_server_job *mfl_server_job_find(struct mfl_server *server, const char *id); /* NULL: none */
/* At start and after Submit: takes the job in and, when it is unfinished, hands it to the core. Blocking when
 * it resumes. */
int mfl_server_job_new(struct mfl_server *server, const struct mfl_store_job *row,
        struct mfl_server_job **ret_job, struct mfl_error *err);
int mfl_server_job_start(struct mfl_server_job *job, struct mfl_error *err);
/* Carry out the action of that name; each worker operation ends in its event. */
void mfl_server_job_prepare(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_set_data(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_set_state(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_retry_state(struct mfl_server_job *job);
void mfl_server_job_release(struct mfl_server_job *job);
void mfl_server_job_round_open(struct mfl_server_job *job, uint32_t round);
void mfl_server_job_slot_open(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_grant(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_retry_grants(struct mfl_server_job *job); /* those for which memory was busy */
void mfl_server_job_slot_add(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_slot_free(struct mfl_server_job *job, uint32_t slot);
void mfl_server_job_apply(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_checkpoint(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_commit(struct mfl_server_job *job, const struct mfl_core_action *action);
/* One operation less; the memory of a released job goes with the last. */
void mfl_server_job_operation_done(struct mfl_server_job *job);
/* Takes it out of the list and frees it; not while operations run. */
void mfl_server_job_free(struct mfl_server_job *job);

/* job_cost.c: what the rounds cost on the network. */
/* A round begins, or one more attempt at it. */
void mfl_server_job_cost_open(struct mfl_server_job *job, uint32_t round);
/* Bytes of the round at work that came from or went to a daemon. */
void mfl_server_job_cost_bytes(struct mfl_server_job *job, uint32_t conn, uint64_t up, uint64_t down);
void mfl_server_job_cost(struct mfl_server_job *job, const struct mfl_core_action *action);
/* The bytes of round->record.round, and its rows, a copy of the caller's. -ENOMEM. */
int mfl_server_job_cost_take(struct mfl_server_job *job, struct mfl_store_round *round,
        struct mfl_store_nodes *ret_nodes, struct mfl_error *err);
void mfl_server_job_cost_free(struct mfl_server_job *job);

/* operators.c: a request of `mfl`. MFL_INVALID: not one of an operator's messages. */
int mfl_operator_request(struct mfl_session *session, const Mfl__Envelope *envelope, struct mfl_error *err);
int mfl_operator_initial_begin(struct mfl_session *session, const Mfl__Envelope *envelope,
        size_t payload_bytes, void **ret_dst, struct mfl_error *err);
int mfl_operator_initial_done(struct mfl_session *session, const Mfl__Envelope *envelope,
        size_t payload_bytes, struct mfl_error *err);
void mfl_operator_forget(struct mfl_session *session);
/* By its name or with all others. A daemon that was drained before a restart of the server, or before its
 * own, stays so. */
bool mfl_operator_is_drained(struct mfl_server *server, const char *daemon);
/* operator_access.c: whether the rules let this daemon in. False: it was told so, and the session is closed.
 */
bool mfl_operator_admit(struct mfl_session *session, const Mfl__Hello *hello);
/* Answers those whose daemon is idle by now. */
void mfl_operator_check_drains(struct mfl_server *server);
void mfl_operator_fail(struct mfl_session *session, uint64_t request, Mfl__FailureCode code, const char *fmt,
        ...) MFL_PRINTF(4, 5);

/* watch.c */
void mfl_watch_start(
        struct mfl_session *session, uint64_t request, struct mfl_server_job *job, const Mfl__Watch *watch);
void mfl_watch_forget(struct mfl_session *session);
void mfl_watch_round(struct mfl_server_job *job, const struct mfl_store_round *info);
void mfl_watch_log(
        struct mfl_server *server, const char *job, uint64_t seq, uint64_t time_unix_ms, const char *text);
/* Tells watchers of every job that changed; a few times a second. */
void mfl_watch_flush(struct mfl_server *server);
/* Fills the protobuf view of a job; strings point into job, *info and static text. */
struct mfl_job_info_buffers {
        Mfl__RoundInfo last, evaluated, best;
        struct mfl_core_job_view view;
};
void mfl_watch_job_info(
        struct mfl_server_job *job, Mfl__JobInfo *ret_info, struct mfl_job_info_buffers *buffers);
void mfl_watch_round_info(const struct mfl_store_round *info, Mfl__RoundInfo *ret_info);

/* watch_crew.c: the daemons that work for a job; freed by the caller as one block. NULL: out of memory. */
struct mfl_crew;
struct mfl_crew *mfl_crew_new(struct mfl_server_job *job);
Mfl__Crew *mfl_crew_wire(struct mfl_crew *crew);

#endif
