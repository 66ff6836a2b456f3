/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of operators: what operators.c (answers, jobs, dispatch), operator_submit.c and operator_daemons.c
 * share. */
#ifndef MFL_SERVER_OPERATOR_H
#define MFL_SERVER_OPERATOR_H

#include "server/server.h"

/* ---- answers ---- */
/* Lists are cut to what an envelope holds, with room for what is around them. */
#define MFL_LIST_BYTES_MAX (MFL_ENVELOPE_MAX - 4096)
Mfl__FailureCode mfl_operator_failure_code(int status);
void mfl_operator_done(struct mfl_session *session, uint64_t request, const char *text);
void mfl_operator_no_memory(struct mfl_session *session, size_t bytes, const char *what);
/* NULL: there is none, which the operator was told. */
struct mfl_server_job *mfl_operator_job(struct mfl_session *session, uint64_t request, const char *id);

/* ---- requests that the disk worker does ---- */
struct mfl_request {
        struct mfl_work work;
        struct mfl_server *server;
        uint32_t conn;
        uint64_t request;
        char job[MFL_JOB_ID_BYTES];
        void (*run)(struct mfl_work *work);
        struct mfl_store_audit audit; /* action "": none; who and address are the asker's */
        int status;
        struct mfl_error err;
        void (*answer)(
                struct mfl_request *op, struct mfl_session *session); /* session NULL: the asker is gone */
        /* submit, clone */
        char *text;
        char token[MFL_TOKEN_BYTES], name[MFL_NAME_BYTES];
        struct mfl_store_upload *upload;
        char new_job[MFL_JOB_ID_BYTES];
        struct mfl_store_job row;
        /* show, models */
        struct mfl_store_rounds rounds;
        struct mfl_store_nodes nodes; /* show */
        struct mfl_store_audits audits;
        Mfl__Partition *partition;  /* get_partition; NULL: nothing known */
        struct mfl_store_rule rule; /* access; which: it goes */
        /* pull: the round; drain: on or off */
        int64_t which;
        bool by_layers; /* pull: for who knows no frozen params */
        bool wait;
        struct mfl_graph *graph;
        struct mfl_data_info data;
        struct mfl_store_round round;
        struct mfl_params *params;
};

struct mfl_request *mfl_request_of(struct mfl_work *work);
/* run sets status and err; answer is called on the loop when status is 0 or MFL_EXISTS. NULL: out of memory,
 * which ends the process. */
struct mfl_request *mfl_request_new(struct mfl_session *session, uint64_t request, const char *job,
        void (*run)(struct mfl_work *), void (*answer)(struct mfl_request *, struct mfl_session *));
void mfl_request_free(struct mfl_request *op);
/* Takes the request over; it is freed after its answer. */
void mfl_request_start(struct mfl_request *op, struct mfl_session *session);

/* What it does is written down with its result, before it is answered. object: of a request that makes a job,
 * "". */
void mfl_request_audit(struct mfl_request *op, const char *action, const char *object);

/* ---- who may do what: audit.c ---- */
/* The name of what a request changes; NULL when it only looks. */
const char *mfl_operator_action(const Mfl__Envelope *envelope);
/* False: the asker was told so, and it is written down. */
bool mfl_operator_may_change(struct mfl_session *session, const Mfl__Envelope *envelope);
/* Whether the job is the asker's own, or the asker an admin. */
bool mfl_operator_may_touch(
        struct mfl_session *session, uint64_t request, const struct mfl_server_job *job, const char *action);
void mfl_operator_audit(struct mfl_session *session, uint64_t request, const Mfl__ListAudit *list);

/* ---- messages ---- */
void mfl_operator_submit(struct mfl_session *session, uint64_t request, const Mfl__Submit *submit);
void mfl_operator_clone(struct mfl_session *session, uint64_t request, const Mfl__CloneJob *clone);
void mfl_operator_daemons(struct mfl_session *session, uint64_t request);
/* "disable", "enable", "allow", "disallow" */
const char *mfl_operator_access_verb(const Mfl__Access *access);
void mfl_operator_access(struct mfl_session *session, uint64_t request, const Mfl__Access *access);
void mfl_operator_access_list(struct mfl_session *session, uint64_t request);
/* Its strings are those of refused. */
void mfl_operator_fill_refused(const struct mfl_refused_daemon *refused, Mfl__DaemonInfo *ret_info);
void mfl_operator_drain(struct mfl_session *session, uint64_t request, const Mfl__Drain *drain);

#endif
