/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches the changes of a round's clients (debug.deltas), one after another, and writes them as one npz. */
#include "cli/pull/pull.h"

#include <stdio.h>

#include "cli/pull/export.h"
#include "common/job/job.h"
#include "proto/pull/pulled.h"

struct changes {
        struct mfl_graph *graph;
        struct mfl_job *spec;
        struct mfl_changes_pulled pulled;
        uint64_t *clients, *weights;
        float *v;
        uint32_t counted; /* clients of the round */
};

static int make_room(const Mfl__PullBegin *begin, struct changes *c, struct mfl_error *err)
{
        uint32_t n = (uint32_t)begin->n_clients;
        if (!n || begin->n_weights != n)
                return mfl_fail(err, MFL_CLI_LOST,
                        "the server sent no list of clients: it may be of an older release");
        int r = mfl_pulled_graph(begin, &c->spec, &c->graph, err);
        if (r)
                return r;
        uint64_t bytes = n * c->graph->n * sizeof *c->v;
        c->clients = mfl_calloc(n, sizeof *c->clients);
        c->weights = mfl_calloc(n, sizeof *c->weights);
        c->v = mfl_calloc((size_t)n * c->graph->n, sizeof *c->v);
        if (!c->clients || !c->weights || !c->v)
                return mfl_fail_memory(err, bytes, "clients' changes");
        memcpy(c->clients, begin->clients, n * sizeof *c->clients);
        memcpy(c->weights, begin->weights, n * sizeof *c->weights);
        c->pulled = (struct mfl_changes_pulled){n, c->clients, c->weights, c->v};
        return 0;
}

/* The frames that follow PullBegin. */
static int receive(struct mfl_client *client, struct mfl_error *err)
{
        Mfl__Envelope *answer = NULL;
        int r = mfl_client_next(client, MFL_CLIENT_FOREVER, &answer, err);
        if (r != 0)
                return r == MFL_BUSY ? 0 : r;
        mfl_wire_free(answer);
        return mfl_fail(err, MFL_CLI_LOST, "the server sent a message that is not a client's change");
}

/* Change `i` of the round; the first one tells how many there are. */
static int fetch(struct mfl_client *client, const char *job, int64_t *round, uint32_t i, struct changes *c,
        struct mfl_error *err)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__Pull pull = MFL__PULL__INIT;
        char digest[65];
        pull.job = (char *)(uintptr_t)job;
        pull.round = *round;
        pull.change = i + 1;
        request.body_case = MFL__ENVELOPE__BODY_PULL;
        request.pull = &pull;
        int r = mfl_client_call(client, &request, MFL__ENVELOPE__BODY_PULL_BEGIN, &answer, err);
        const Mfl__PullBegin *begin = r ? NULL : answer->pull_begin;
        if (!r && !i)
                r = make_room(begin, c, err);
        if (!r && (begin->n_params != c->graph->n || begin->n_clients != c->pulled.n ||
                          memcmp(begin->clients, c->clients, c->pulled.n * sizeof *c->clients)))
                r = mfl_fail(err, MFL_CLI_LOST, "the round's clients have changed meanwhile; try again");
        if (!r)
                r = receive(client, err);
        if (!r && mfl_pulled_digest(client->params, begin, digest, err))
                r = MFL_CLI_LOST;
        if (r)
                return r;
        *round = begin->round->round;
        c->counted = begin->round->clients;
        memcpy(c->v + i * c->graph->n, client->params, c->graph->n * sizeof *c->v);
        return 0;
}

int mfl_pull_changes(struct mfl_client *client, const char *job, int64_t round, const char *path,
        struct mfl_pulled *ret_pulled, uint32_t *ret_n, uint32_t *ret_counted, struct mfl_error *err)
{
        struct changes c = {NULL};
        struct mfl_pulled p = {0};
        int r = fetch(client, job, &round, 0, &c, err);
        for (uint32_t i = 1; !r && i < c.pulled.n; i++)
                r = fetch(client, job, &round, i, &c, err);
        p.round = (uint32_t)round;
        if (path)
                mfl_strcpy(p.path, sizeof p.path, path);
        else
                snprintf(p.path, sizeof p.path, "%s-r%u-deltas.npz", job, p.round);
        if (!r)
                r = mfl_npz_write_changes(p.path, c.graph, &c.pulled, err);
        if (!r) {
                p.n_params = c.graph->n_moving;
                *ret_pulled = p;
                *ret_n = c.pulled.n;
                *ret_counted = c.counted;
        }
        mfl_graph_free(c.graph);
        mfl_job_free(c.spec);
        free(c.clients);
        free(c.weights);
        free(c.v);
        return r;
}
