/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches a model.
 *
 * Happy path: Pull -> PullBegin -> Params frames -> graph from the job file -> digest -> PATH.tmp, fsync,
 * rename. Failures: no such job or round; the connection; params that do not match the graph or the digest;
 * the disk.
 */
#include "cli/pull/pull.h"

#include <stdio.h>

#include "cli/pull/export.h"
#include "cli/onnx/onnx.h"
#include "common/contract/contract.h"
#include "common/job/job.h"
#include "proto/pull/pulled.h"

static int receive(struct mfl_client *client, struct mfl_error *err)
{
        Mfl__Envelope *answer = NULL;
        int r = mfl_client_next(client, MFL_CLIENT_FOREVER, &answer, err);
        if (r == MFL_BUSY)
                return 0;
        if (r)
                return r;
        mfl_wire_free(answer);
        return mfl_fail(err, MFL_CLI_LOST, "the server sent a message that is not params");
}

static int write_onnx(const Mfl__PullBegin *begin, const struct mfl_graph *graph, const float *params,
        bool with_input, const struct mfl_pulled *p, struct mfl_error *err)
{
        struct mfl_contract *contract = NULL;
        if (with_input && !*begin->contract)
                return mfl_fail(err, MFL_INVALID,
                        "--with-input: the server does not know what this model's input is: no daemon has "
                        "told it");
        int r = with_input ? mfl_contract_parse(begin->contract, "the server's answer", &contract, err) : 0;
        const struct mfl_onnx_contract with = {begin->contract, contract};
        if (!r)
                r = mfl_onnx_write_with(p->path, graph, params, &with, err);
        mfl_contract_free(contract);
        return r;
}

static int fetch(struct mfl_client *client, const char *job, const Mfl__PullBegin *begin,
        const struct mfl_job *spec, const struct mfl_graph *graph, enum mfl_pull_format format,
        const char *base, bool with_input, struct mfl_pulled *p, struct mfl_error *err)
{
        int r = receive(client, err);
        if (!r)
                r = mfl_pulled_digest(client->params, begin, p->digest, err);
        if (r == MFL_INVALID)
                return MFL_CLI_LOST;
        if (r)
                return r;
        if (format == MFL_PULL_NPZ)
                return mfl_npz_write(p->path, graph, client->params, begin->contract, err);
        if (format == MFL_PULL_ONNX && spec->model.tensors)
                return mfl_fail(err, MFL_INVALID,
                        "--format onnx: only the program %s knows the layers of this model; pull safetensors "
                        "or "
                        "npz",
                        spec->training.program);
        if (format == MFL_PULL_ONNX)
                return write_onnx(begin, graph, client->params, with_input, p, err);
        if (format == MFL_PULL_PEFT)
                return mfl_peft_write(p->path, base, spec, graph, client->params, err);
        return mfl_pulled_write(begin, spec, graph, client->params, job, p->digest, p->path, err);
}

int mfl_pull(struct mfl_client *client, const char *job, int64_t round, const char *path,
        enum mfl_pull_format format, const char *base, bool with_input, struct mfl_pulled *ret_pulled,
        struct mfl_error *err)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__Pull pull = MFL__PULL__INIT;
        struct mfl_graph *graph;
        struct mfl_job *spec = NULL;
        pull.job = (char *)(uintptr_t)job;
        pull.round = round;
        request.body_case = MFL__ENVELOPE__BODY_PULL;
        request.pull = &pull;
        int r = mfl_client_call(client, &request, MFL__ENVELOPE__BODY_PULL_BEGIN, &answer, err);
        if (r)
                return r;
        const Mfl__PullBegin *begin = answer->pull_begin;
        struct mfl_pulled p = {.round = begin->round->round,
                .evaluated = begin->round->evaluated,
                .has_accuracy = mfl_has_accuracy(begin->round),
                .accuracy = begin->round->accuracy,
                .loss = begin->round->loss,
                .n_params = begin->n_params};
        if (path)
                mfl_strcpy(p.path, sizeof p.path, path);
        else
                snprintf(p.path, sizeof p.path, "%s-r%u%s", job, p.round,
                        format == MFL_PULL_NPZ    ? ".npz"
                        : format == MFL_PULL_ONNX ? ".onnx"
                        : format == MFL_PULL_PEFT ? "-peft"
                                                  : ".safetensors");
        r = mfl_pulled_graph(begin, &spec, &graph, err);
        if (r)
                return r;
        p.open = spec->privacy.kind && p.evaluated;
        r = fetch(client, job, begin, spec, graph, format, base, with_input, &p, err);
        mfl_job_free(spec);
        mfl_graph_free(graph);
        if (!r)
                *ret_pulled = p;
        return r;
}

int mfl_pull_round(const char *text, int64_t *ret_round, struct mfl_error *err)
{
        char *end;
        if (!text || !strcmp(text, "last")) {
                *ret_round = MFL_PULL_LAST;
                return 0;
        }
        if (!strcmp(text, "best")) {
                *ret_round = MFL_PULL_BEST;
                return 0;
        }
        errno = 0;
        int64_t v = strtoll(text, &end, 10);
        if (errno || end == text || *end || v < 0 || v > UINT32_MAX)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--round: '%.60s' is not a round's number, 'best' or 'last'", text);
        *ret_round = v;
        return 0;
}
