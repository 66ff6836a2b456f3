/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to the server for commands: one request at a time, with waits that run the loop.
 *
 * mfl_client_open -> mfl_client_call or mfl_client_ask + mfl_client_next -> mfl_client_close. While a
 * function waits, the loop runs, so other handles on it (children, signals) get their callbacks. Do not call
 * these functions from a callback. The connection answers Ping, sends Ping when it is idle, and treats a
 * silent server as lost.
 *
 * Codes: 0; MFL_CLI_LOST (closed, silent, Bye), MFL_CLI_REFUSED (open: a Bye that rules out a second try),
 * MFL_CLI_INTERRUPTED, MFL_CLI_TIMEOUT; a Failure of the server as MFL_INVALID, MFL_NOT_FOUND,
 * MFL_CLI_CONFLICT or MFL_CLI_LIMIT with its text; negative: memory.
 */
#ifndef MFL_CLI_BASE_CLIENT_H
#define MFL_CLI_BASE_CLIENT_H

#include "cli/base/cli.h"
#include "proto/stream.h"

struct mfl_client_link;

struct mfl_client {
        struct mfl_cli *cli;
        struct mfl_client_link *link; /* NULL: closed */
        uint64_t request;
        uint32_t protocol; /* with this server */
        /* Params of the current request. Allocated when PullBegin arrives, because the first frame may follow
         * at once. The client owns them until the next request or mfl_client_close. */
        float *params;
        uint64_t params_total, params_have;
};

#define MFL_CLIENT_TIMEOUT_MS 10000
#define MFL_CLIENT_FOREVER UINT64_MAX

/* Connects and exchanges greetings within timeout_ms. address may be a list (proto/servers.h): then the one that leads the cluster is
 * asked, and a cluster without a leader is waited for, as long. */
int mfl_client_open(struct mfl_client *client, struct mfl_cli *cli, const char *address, uint64_t timeout_ms,
        struct mfl_error *err);
/* Idempotent, also on a zeroed object. Says goodbye to the server. */
void mfl_client_close(struct mfl_client *client);

/* Sends a request and fills in its number. Answers to earlier requests are dropped from now on. */
int mfl_client_ask(struct mfl_client *client, Mfl__Envelope *request, struct mfl_error *err);
/* Returns the next frame that answers the request; free it with mfl_wire_free. Failure frames become a code.
 * Params are not returned here: MFL_BUSY means that all params_total of them have arrived. */
int mfl_client_next(
        struct mfl_client *client, uint64_t timeout_ms, Mfl__Envelope **ret_answer, struct mfl_error *err);
/* mfl_client_ask and mfl_client_next; the answer must be of that kind. */
int mfl_client_call(struct mfl_client *client, Mfl__Envelope *request, Mfl__Envelope__BodyCase expected,
        Mfl__Envelope **ret_answer, struct mfl_error *err);
/* Sends one payload frame of the current request and waits until it is sent. */
int mfl_client_send_payload(struct mfl_client *client, Mfl__Envelope *envelope, const void *payload,
        size_t payload_bytes, struct mfl_error *err);

/* pages.c. All jobs in the order in which they were submitted, on as many requests as they need. MFL_CLI_LOST, too, if the
 * server's pages do not advance. On failure ret_jobs is untouched. */
struct mfl_client_pages {
        Mfl__Envelope **page;
        size_t n;
};
struct mfl_client_jobs {
        Mfl__JobList list; /* points into the pages */
        struct mfl_client_pages pages;
};
int mfl_client_jobs(struct mfl_client *client, bool without_archived, struct mfl_client_jobs *ret_jobs,
        struct mfl_error *err);
void mfl_client_jobs_deinit(struct mfl_client_jobs *jobs); /* idempotent, also on a zeroed object */

/* The same of daemons, by name. */
struct mfl_client_daemons {
        Mfl__DaemonList list; /* points into the pages */
        struct mfl_client_pages pages;
};
int mfl_client_daemons(
        struct mfl_client *client, struct mfl_client_daemons *ret_daemons, struct mfl_error *err);
void mfl_client_daemons_deinit(struct mfl_client_daemons *daemons); /* idempotent, also on a zeroed object */

/* resolve.c. Finds the id of the job that ref names: an id, the only job of that name, or "last". ret_job has
 * room for MFL_JOB_ID_BYTES. MFL_NOT_FOUND; MFL_CLI_CONFLICT if several jobs have the name. */
int mfl_client_resolve(struct mfl_client *client, const char *ref, char *ret_job, struct mfl_error *err);

/* The same for a model: NAME@ALIAS, NAME@VERSION or, without '@', a job; then *ret_round is left as it is. MFL_NOT_FOUND. */
int mfl_client_resolve_model(
        struct mfl_client *client, const char *ref, char *ret_job, int64_t *ret_round, struct mfl_error *err);

/* Runs the loop for ms milliseconds, or until a signal asks to end: then MFL_CLI_INTERRUPTED. */
int mfl_client_sleep(struct mfl_cli *cli, uint64_t ms, struct mfl_error *err);

static inline void mfl_client_envelope_freep(Mfl__Envelope **envelope)
{
        mfl_wire_free(*envelope);
}
#define MFL_CLEANUP_ENVELOPE __attribute__((cleanup(mfl_client_envelope_freep)))
#define MFL_CLEANUP_CLIENT_JOBS __attribute__((cleanup(mfl_client_jobs_deinit)))
#define MFL_CLEANUP_CLIENT_DAEMONS __attribute__((cleanup(mfl_client_daemons_deinit)))
#define MFL_CLEANUP_CLIENT __attribute__((cleanup(mfl_client_close)))

#endif
