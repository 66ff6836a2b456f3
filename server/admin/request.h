/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of operators on their way through the disk worker, and the answers that all requests share. */
#ifndef MFL_SERVER_ADMIN_REQUEST_H
#define MFL_SERVER_ADMIN_REQUEST_H

#include "proto/wire.h"
#include "server/admin/admin.h"

struct mfl_admin *mfl_admin_of(const struct mfl_session *session);
struct mfl_operator_peer *mfl_operator_of(const struct mfl_session *session);

/* ---- answers ---- */
/* Lists are cut to what an envelope holds, with room for what is around them. */
#define MFL_LIST_BYTES_MAX (MFL_ENVELOPE_MAX - 4096)
Mfl__FailureCode mfl_operator_failure_code(int status);
void mfl_operator_done(struct mfl_session *session, uint64_t request, const char *text);
/* NULL: there is none, and the operator got a Failure. */
struct mfl_server_job *mfl_operator_job(struct mfl_session *session, uint64_t request, const char *id);
void mfl_operator_no_memory(struct mfl_session *session, size_t bytes, const char *what);

/* ---- requests that the disk worker does ---- */
struct mfl_request {
        struct mfl_work work;
        struct mfl_admin *admin;
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
        Mfl__RoundScores *scores;     /* show; NULL: none */
        char *contract;               /* show, pull; NULL: none */
        struct mfl_store_audits audits;
        struct mfl_store_spents spents;
        Mfl__Partition *partition;  /* get_partition; NULL: nothing known */
        struct mfl_store_rule rule; /* access; remove: it goes */
        bool remove;
        bool drain, wait; /* drain: on; until the daemon is idle */
        /* pull; stop: the last round; audit: how many rows */
        int64_t which;
        bool by_layers;  /* pull: for a peer that knows no frozen params */
        bool tensors;    /* pull: with the names of the tensors */
        uint32_t change; /* pull: of a client; 0: the model */
        uint32_t n_changes;
        struct mfl_change *changes; /* NULL: none */
        struct mfl_graph *graph;
        struct mfl_data_info data; /* submit: what daemons say of the job's data set */
        struct mfl_store_round round;
        struct mfl_params *params;
        /* inquire, change_model, list_registry: more of it, and what frees that */
        void *own;
        void (*own_free)(void *own);
};

struct mfl_request *mfl_request_of(struct mfl_work *work);
/* run sets status and err; answer is called on the loop when status is 0 or MFL_EXISTS. NULL: out of memory,
 * which ends the process. */
struct mfl_request *mfl_request_new(struct mfl_session *session, uint64_t request, const char *job,
        void (*run)(struct mfl_work *), void (*answer)(struct mfl_request *, struct mfl_session *));
/* On the disk worker: loads round `which` of the job: text, contract, graph, data, round and params, or status and err. pull.c. */
void mfl_request_load_model(struct mfl_request *op);
/* For one that was not started. */
void mfl_request_free(struct mfl_request *op);
/* Takes the request over; it is freed after its answer. */
void mfl_request_start(struct mfl_request *op, struct mfl_session *session);
/* What it does goes to the audit with its result, before it is answered. object: "" for a request that makes
 * a job. */
void mfl_request_audit(struct mfl_request *op, const char *action, const char *object);

#endif
