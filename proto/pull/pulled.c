/* SPDX-License-Identifier: Apache-2.0 */
/* A model that a server has sent: its graph from the job file, its digest, its file. */
#include "proto/pull/pulled.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/digest.h"
#include "common/base/fs.h"
#include "common/contract/model_file.h"
#include "common/model/safetensors.h"
#include "proto/json/json.h"

int mfl_pulled_graph(const Mfl__PullBegin *begin, struct mfl_job **ret_job, struct mfl_graph **ret_graph,
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

int mfl_pulled_digest(
        const float *params, const Mfl__PullBegin *begin, char ret_hex[65], struct mfl_error *err)
{
        uint8_t digest[MFL_SHA256_BYTES];
        int r = mfl_sha256(params, begin->n_params * sizeof(float), digest, err);
        if (r)
                return r;
        mfl_hex(digest, sizeof digest, ret_hex);
        if (begin->round->digest.len == sizeof digest &&
                !memcmp(begin->round->digest.data, digest, sizeof digest))
                return 0;
        return mfl_fail(err, MFL_INVALID,
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

int mfl_pulled_write(const Mfl__PullBegin *begin, const struct mfl_job *spec, const struct mfl_graph *graph,
        const float *params, const char *job, const char *digest, const char *path, struct mfl_error *err)
{
        const Mfl__RoundInfo *info = begin->round;
        struct mfl_model_meta model;
        struct mfl_shape input = {.rank = (int)begin->n_input};
        for (size_t i = 0; i < begin->n_input; i++)
                input.dim[i] = begin->input[i];
        char round[16], accuracy[MFL_DOUBLE_BYTES], loss[MFL_DOUBLE_BYTES];
        snprintf(round, sizeof round, "%u", info->round);
        mfl_double_text(info->accuracy, accuracy);
        mfl_double_text(info->loss, loss);
        struct mfl_st_meta meta[6 + MFL_MODEL_META_MAX] = {{"job", job}, {"round", round}, {"digest", digest},
                {"software", "mfl " MFL_VERSION}, {"loss", loss}, {"accuracy", accuracy}};
        /* Values that were not measured are not written, nor what has no noise: whoever gets a private model may have its file. */
        int n_meta = spec->privacy.kind ? 4 : mfl_has_accuracy(info) ? 6 : info->evaluated ? 5 : 4;
        mfl_model_meta(&model, begin->text, !begin->n_frozen, &input, (int)begin->classes, begin->contract);
        memcpy(meta + n_meta, model.v, (size_t)model.n * sizeof *meta);
        return write_file(graph, params, meta, n_meta + model.n, path, err);
}
