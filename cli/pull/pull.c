/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches a model.
 *
 * Happy path: Pull -> PullBegin -> Params frames -> graph from the job file -> digest -> PATH.tmp, fsync,
 * rename. Failures: no such job or round; the connection; params that do not match the graph or the digest;
 * the disk.
 */
#include "cli/pull/pull.h"

#include <inttypes.h>
#include <stdio.h>

#include "cli/pull/export.h"
#include "cli/onnx/onnx.h"
#include "common/base/digest.h"
#include "common/base/fs.h"
#include "common/job/job.h"
#include "common/model/safetensors.h"

static int read_graph(const Mfl__PullBegin *begin, struct mfl_job **ret_job, struct mfl_graph **ret_graph,
        struct mfl_error *err)
{
        struct mfl_job *job;
        struct mfl_shape input = {.rank = (int)begin->n_input};
        for (size_t i = 0; i < begin->n_input; i++)
                input.dim[i] = begin->input[i];
        int r = mfl_job_parse(begin->text, strlen(begin->text), "job file of the model", &job, err);
        if (r)
                return r;
        job->by_layers = !begin->n_frozen;
        r = mfl_job_graph(job, &input, (int)begin->classes, ret_graph, err);
        if (!r && (*ret_graph)->n == begin->n_params && (*ret_graph)->n_frozen == begin->n_frozen) {
                *ret_job = job;
                return 0;
        }
        mfl_job_free(job);
        if (r)
                return r;
        r = mfl_fail(err, MFL_INVALID,
                "the job's graph has %" PRIu64 " parameters, %" PRIu64
                " of them frozen; the server's model %" PRIu64 " and %" PRIu64,
                (*ret_graph)->n, (*ret_graph)->n_frozen, begin->n_params, begin->n_frozen);
        mfl_graph_free(*ret_graph);
        return r;
}

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

static int check_digest(
        const float *params, const Mfl__PullBegin *begin, char *ret_hex, struct mfl_error *err)
{
        uint8_t digest[MFL_SHA256_BYTES];
        int r = mfl_sha256(params, begin->n_params * sizeof(float), digest, err);
        if (r)
                return r;
        mfl_hex(digest, sizeof digest, ret_hex);
        if (begin->round->digest.len == sizeof digest &&
                !memcmp(begin->round->digest.data, digest, sizeof digest))
                return 0;
        return mfl_fail(err, MFL_CLI_LOST,
                "the params were damaged on the way: their SHA-256 is %s, not the one that the server sent; "
                "nothing was written",
                ret_hex);
}

static int write_file(const struct mfl_graph *graph, const float *params, const struct mfl_st_meta *meta,
        int n_meta, const char *path, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        size_t n = (size_t)graph->n_params + (size_t)graph->n_aliases;
        MFL_CLEANUP_FREE struct mfl_st_tensor *tensors = mfl_calloc(n, sizeof *tensors);
        if (!tensors)
                return mfl_fail_memory(err, n * sizeof *tensors, "a table of tensors");
        mfl_st_from_params(graph, params, tensors);
        int r = mfl_fs_begin(&file, path, err);
        if (r)
                return r;
        r = mfl_st_write(file.fd, path, tensors, mfl_st_add_aliases(graph, tensors), meta, n_meta, err);
        if (!r)
                return mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

static int write_model(const struct mfl_graph *graph, const float *params, const char *job,
        struct mfl_pulled *p, struct mfl_error *err)
{
        char round[16], accuracy[32], loss[32];
        snprintf(round, sizeof round, "%u", p->round);
        mfl_double_text(p->accuracy, accuracy);
        mfl_double_text(p->loss, loss);
        struct mfl_st_meta meta[] = {{"job", job}, {"round", round}, {"digest", p->digest},
                {"software", "mfl " MFL_VERSION}, {"loss", loss}, {"accuracy", accuracy}};
        /* Values that were not measured are not written. */
        int n_meta = p->has_accuracy ? 6 : p->evaluated ? 5 : 4;
        return write_file(graph, params, meta, n_meta, p->path, err);
}

static int fetch(struct mfl_client *client, const char *job, const Mfl__PullBegin *begin,
        const struct mfl_job *spec, const struct mfl_graph *graph, enum mfl_pull_format format,
        const char *base, struct mfl_pulled *p, struct mfl_error *err)
{
        int r = receive(client, err);
        if (!r)
                r = check_digest(client->params, begin, p->digest, err);
        if (r)
                return r;
        if (format == MFL_PULL_NPZ)
                return mfl_npz_write(p->path, graph, client->params, err);
        if (format == MFL_PULL_ONNX && spec->model.tensors)
                return mfl_fail(err, MFL_INVALID,
                        "--format onnx: only the program %s knows the layers of this model; pull safetensors "
                        "or "
                        "npz",
                        spec->training.program);
        if (format == MFL_PULL_ONNX)
                return mfl_onnx_write(p->path, graph, client->params, err);
        if (format == MFL_PULL_PEFT)
                return mfl_peft_write(p->path, base, spec, graph, client->params, err);
        return write_model(graph, client->params, job, p, err);
}

int mfl_pull(struct mfl_client *client, const char *job, int64_t round, const char *path,
        enum mfl_pull_format format, const char *base, struct mfl_pulled *ret_pulled, struct mfl_error *err)
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
        r = read_graph(begin, &spec, &graph, err);
        if (r)
                return r;
        r = fetch(client, job, begin, spec, graph, format, base, &p, err);
        mfl_job_free(spec);
        mfl_graph_free(graph);
        if (!r)
                *ret_pulled = p;
        return r;
}
