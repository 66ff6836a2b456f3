/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to the server as commands see it: one request at a time, and waiting that runs the loop.
 *
 * mfl_client_open -> mfl_client_call or mfl_client_ask + mfl_client_next -> mfl_client_close. While a
 * function waits, the loop runs, so other handles on it (children, signals) get their callbacks; none of
 * these functions may be called from one. Answers Ping, sends Ping when idle, takes a silent server for lost.
 *
 * Codes: 0; MFL_CLI_LOST (closed, silent, Bye), MFL_CLI_REFUSED (open: a Bye that rules out a second try),
 * MFL_CLI_INTERRUPTED, MFL_CLI_TIMEOUT; a Failure of the server as MFL_INVALID, MFL_NOT_FOUND,
 * MFL_CLI_CONFLICT or MFL_CLI_LIMIT with its text; negative: memory.
 */
#ifndef MFL_CLI_CLIENT_H
#define MFL_CLI_CLIENT_H

#include "cli/cli.h"
#include "proto/stream.h"

struct mfl_client_link;

struct mfl_client {
        struct mfl_cli *cli;
        struct mfl_client_link *link; /* NULL: closed */
        uint64_t request;
        /* Params of the current request: made when PullBegin comes, as the first frame may be right behind
         * it. The client's, until the next request or mfl_client_close. */
        float *params;
        uint64_t params_total, params_have;
};

#define MFL_CLIENT_TIMEOUT_MS 10000
#define MFL_CLIENT_FOREVER UINT64_MAX

/* Connects and greets within timeout_ms. */
int mfl_client_open(struct mfl_client *client, struct mfl_cli *cli, const char *address, uint64_t timeout_ms,
        struct mfl_error *err);
/* Idempotent; fine on a zeroed object. Says goodbye. */
void mfl_client_close(struct mfl_client *client);

/* Sends a request, whose number is filled in here; answers to an earlier one are dropped from now on. */
int mfl_client_ask(struct mfl_client *client, Mfl__Envelope *request, struct mfl_error *err);
/* The next frame that answers the request; freed with mfl_wire_free. Failure frames become a code. Params do
 * not come out here: MFL_BUSY tells that all of params_total have arrived. */
int mfl_client_next(
        struct mfl_client *client, uint64_t timeout_ms, Mfl__Envelope **ret_answer, struct mfl_error *err);
/* Both, and the answer is of that kind. */
int mfl_client_call(struct mfl_client *client, Mfl__Envelope *request, Mfl__Envelope__BodyCase expected,
        Mfl__Envelope **ret_answer, struct mfl_error *err);
/* Sends one frame with payload of the current request and waits until it is out. */
int mfl_client_send_payload(struct mfl_client *client, Mfl__Envelope *envelope, const void *payload,
        size_t payload_bytes, struct mfl_error *err);

/* The id of the job that ref names: an id, the only job of that name, or "last". ret_job has room for
 * MFL_JOB_ID_BYTES. MFL_NOT_FOUND; MFL_CLI_CONFLICT when a name is of several jobs. */
int mfl_client_resolve(struct mfl_client *client, const char *ref, char *ret_job, struct mfl_error *err);

/* Runs the loop for so long, or until a signal to end comes: MFL_CLI_INTERRUPTED then. */
int mfl_client_sleep(struct mfl_cli *cli, uint64_t ms, struct mfl_error *err);

static inline void mfl_client_envelope_freep(Mfl__Envelope **envelope)
{
        mfl_wire_free(*envelope);
}
#define MFL_CLEANUP_ENVELOPE __attribute__((cleanup(mfl_client_envelope_freep)))
#define MFL_CLEANUP_CLIENT __attribute__((cleanup(mfl_client_close)))

#endif
