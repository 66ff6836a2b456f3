/* SPDX-License-Identifier: Apache-2.0 */
/* What the server counts for those who look on (metrics, the dashboard): taken from the core's events and
 * actions as they pass the shell, so that counting touches no decision. On the hot path it costs an add.
 *
 * Loop thread only. Counters never fall while the process lives. Nothing here is on disk.
 */
#ifndef MFL_SERVER_OBSERVE_H
#define MFL_SERVER_OBSERVE_H

#include "server/access.h"
#include "server/core.h"
#include "server/exposition.h"

struct mfl_server;
struct mfl_session;
struct mfl_server_job;

/* What is asked of the disk, each told apart. */
enum mfl_disk_op {
        MFL_DISK_CHECKPOINT,
        MFL_DISK_COMMIT,
        MFL_DISK_STATE, /* of a job */
        MFL_DISK_LOG,
        MFL_DISK_OPS_,
};
const char *mfl_disk_op_name(enum mfl_disk_op op);

/* ---- who did what, for the timeline ---- */
enum mfl_span_kind {
        MFL_SPAN_TRAIN,    /* from Task to the announcement of its last item */
        MFL_SPAN_EVALUATE, /* from Task to EvalResult */
        MFL_SPAN_WAIT, /* an update is ready, or here and not yet added; or the others of its node are not */
        MFL_SPAN_UPLOAD, /* from Grant to the last byte */
};
const char *mfl_span_kind_name(enum mfl_span_kind kind);

struct mfl_span {
        char daemon[MFL_NAME_BYTES];
        char job[MFL_JOB_ID_BYTES];
        uint32_t round;
        enum mfl_span_kind kind;
        uint64_t from_ms, to_ms; /* the loop's clock */
};
/* What a daemon is at, computing and sending side by side. Owned by its session. */
struct mfl_lanes {
        char daemon[MFL_NAME_BYTES];
        struct mfl_lane {
                bool open;
                struct mfl_span span; /* daemon and to_ms are not set */
        } compute, network;
        uint64_t task;
        uint32_t n_items, n_announced; /* of the tasks in the computing lane */
        uint32_t n_updates;            /* announced and neither counted nor refused */
};

struct mfl_round_seen {
        char job[MFL_JOB_ID_BYTES];
        uint32_t round, daemons, clients;
        uint64_t started_ms, ended_ms, committed_ms; /* the loop's clock */
};

#define MFL_SPANS_MAX 4096
#define MFL_ROUNDS_SEEN_MAX 128
/* Rings; there only when somebody may look, i.e. when there is an HTTP port. */
struct mfl_timeline {
        uint64_t n_spans, n_rounds; /* since the start; the newest lie before n % MAX */
        struct mfl_span spans[MFL_SPANS_MAX];
        struct mfl_round_seen rounds[MFL_ROUNDS_SEEN_MAX];
};

/* ---- counters ---- */
/* Of the whole server. */
struct mfl_observed {
        uint64_t started_unix_ms;
        uint64_t connections_accepted, connections_refused, connections_ungreeted, connections_unread;
        uint64_t daemons_refused[MFL_ACCESS_COUNT_]; /* [MFL_ACCESS_OK]: by their certificate */
        uint64_t bytes_in, bytes_out;                /* of connections that are closed */
        uint64_t uploads_refused[MFL_REFUSED_UNKNOWN + 1];
        uint64_t updates_added, updates_rejected, clients_rejected, rounds_committed;
        uint64_t jobs_ended[MFL_JOB_STOPPED + 1];
        uint64_t disk_failures[MFL_DISK_OPS_];
        uint64_t disk_failed_ms[MFL_DISK_OPS_]; /* the last failure since the last success; 0: none */
        char disk_reason[MFL_REASON_BYTES];     /* of the last failure */
        struct mfl_histogram commit_seconds, checkpoint_seconds, loop_lag_seconds;
        uint64_t beat_ns;
        struct mfl_timeline *timeline; /* NULL: nobody can look */
};
/* Of a job, since this start of the server. */
struct mfl_job_observed {
        uint64_t bytes_up, bytes_down; /* updates from and params to its daemons */
        struct mfl_histogram round_seconds;
        uint64_t rounds, clients, clients_rejected;
        uint64_t checkpoint_ns, commit_ns; /* when the order was given; 0: none is out */
        struct mfl_round_record record;    /* being committed */
        bool evaluated;
        double accuracy, loss; /* of the last round that was evaluated */
};
/* Seconds. */
extern const struct mfl_bounds mfl_round_bounds, mfl_disk_bounds, mfl_lag_bounds;

/* At the start. timeline: whether to keep one. -ENOMEM. */
int mfl_observe_open(struct mfl_server *server, bool timeline, struct mfl_error *err);
void mfl_observe_close(struct mfl_server *server);
/* Before the core takes an event; after its action was carried out. */
void mfl_observe_event(struct mfl_server *server, const struct mfl_core_event *event);
void mfl_observe_action(struct mfl_server *server, const struct mfl_core_action *action);
/* How an order to the disk ended that is no event of the core's. */
void mfl_observe_disk(struct mfl_server *server, enum mfl_disk_op op, bool ok, const char *why);
/* From a timer of that period: how late the loop is. */
void mfl_observe_beat(struct mfl_server *server, uint64_t period_ms);
/* A connection is gone: keeps its bytes, frees its lanes. */
void mfl_observe_closed(struct mfl_session *session);
/* Whether the disk refused something within the last half minute and has not taken the like since: why, or
 * NULL. */
const char *mfl_observe_disk_failing(const struct mfl_server *server, uint64_t now_ms);
/* Calls once for each span, the oldest first; the ones under way, which end now, last. */
void mfl_observe_spans(struct mfl_server *server,
        void (*call)(void *user, const struct mfl_span *span, bool open), void *user);

#endif
