/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a model file.
 *
 * Happy path: safetensors -> metadata -> job -> graph -> params -> contract. Failures: no such file; a safetensors file
 * without a model (of `mfl pull` before this, or of another program); a job that this version can't read; tensors
 * that don't fit, or are not those of the digest; a contract that doesn't fit the model.
 */
#include "common/contract/model_file.h"

#include <stdio.h>

#include "common/base/digest.h"

static int parse_shape(const char *text, struct mfl_shape *ret_shape)
{
        struct mfl_shape shape = {0};
        for (;;) {
                char *end;
                long long dim = strtoll(text, &end, 10);
                if (end == text || dim < 1 || dim > INT32_MAX || shape.rank == MFL_SHAPE_RANK_MAX)
                        return MFL_INVALID;
                shape.dim[shape.rank++] = dim;
                if (!*end)
                        break;
                if (*end != ',')
                        return MFL_INVALID;
                text = end + 1;
        }
        *ret_shape = shape;
        return 0;
}

void mfl_model_meta(struct mfl_model_meta *meta, const char *job_text, bool by_layers,
        const struct mfl_shape *input, int classes, const char *contract)
{
        int at = 0;
        *meta = (struct mfl_model_meta){0};
        for (int i = 0; i < input->rank; i++)
                at += snprintf(meta->input + at, sizeof meta->input - (size_t)at, "%s%lld", i ? "," : "",
                        (long long)input->dim[i]);
        snprintf(meta->classes, sizeof meta->classes, "%d", classes);
        meta->v[meta->n++] = (struct mfl_st_meta){"input", meta->input};
        meta->v[meta->n++] = (struct mfl_st_meta){"classes", meta->classes};
        if (by_layers)
                meta->v[meta->n++] = (struct mfl_st_meta){"by_layers", "1"};
        if (contract && *contract)
                meta->v[meta->n++] = (struct mfl_st_meta){"contract", contract};
        meta->v[meta->n++] = (struct mfl_st_meta){"job_text", job_text};
}

static void read_origin(const struct mfl_st_file *file, struct mfl_model_file *model)
{
        const char *job = mfl_st_meta_get(file, "job"), *round = mfl_st_meta_get(file, "round"),
                   *digest = mfl_st_meta_get(file, "digest"), *software = mfl_st_meta_get(file, "software"),
                   *loss = mfl_st_meta_get(file, "loss"), *accuracy = mfl_st_meta_get(file, "accuracy");
        mfl_strcpy(model->job_id, sizeof model->job_id, job ? job : "");
        mfl_strcpy(model->digest, sizeof model->digest, digest ? digest : "");
        mfl_strcpy(model->software, sizeof model->software, software ? software : "");
        model->round = round ? strtoll(round, NULL, 10) : -1;
        model->has_loss = loss != NULL;
        model->has_accuracy = accuracy != NULL;
        model->loss = loss ? strtod(loss, NULL) : 0;
        model->accuracy = accuracy ? strtod(accuracy, NULL) : 0;
}

static int read_graph(const struct mfl_st_file *file, const struct mfl_shape *input,
        struct mfl_model_file *model, struct mfl_error *err)
{
        const char *text = mfl_st_meta_get(file, "job_text"), *classes = mfl_st_meta_get(file, "classes");
        struct mfl_error why;
        int r = mfl_job_parse(text, strlen(text), "job_text", &model->job, &why);
        if (r)
                return mfl_fail(err, r, "%.200s: its job can't be read: %.300s", model->path, why.text);
        if (model->job->model.tensors)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: only the training program %s knows the layers of this model, so nothing "
                        "else computes "
                        "its answers; `mfl validate JOB` asks the sites that have the program",
                        model->path, model->job->training.program);
        model->job->by_layers = mfl_st_meta_get(file, "by_layers") != NULL;
        r = mfl_job_graph(model->job, input, (int)strtol(classes, NULL, 10), &model->graph, &why);
        return r ? mfl_fail(err, r, "%.200s: its model can't be built: %.300s", model->path, why.text) : 0;
}

/* A bit that has changed on a disk changes answers, and nothing else shows it. */
static int check_digest(const struct mfl_model_file *model, struct mfl_error *err)
{
        uint8_t digest[MFL_SHA256_BYTES];
        char hex[MFL_SHA256_HEX_BYTES];
        int r = *model->digest ? mfl_sha256(model->params, (size_t)model->graph->n * sizeof *model->params,
                                         digest, err)
                               : 0;
        if (r || !*model->digest)
                return r;
        mfl_hex(digest, sizeof digest, hex);
        return !strcmp(hex, model->digest) ? 0
                                           : mfl_fail(err, MFL_INVALID,
                                                     "%.200s: the SHA-256 of its params is %.16s, and its "
                                                     "metadata 'digest' says %.16s: the "
                                                     "file is damaged (pull it again), or another program "
                                                     "has changed the params (then "
                                                     "remove 'digest')",
                                                     model->path, hex, model->digest);
}

static int read_params(const struct mfl_st_file *file, struct mfl_model_file *model, struct mfl_error *err)
{
        size_t bytes = (size_t)model->graph->n * sizeof *model->params;
        model->params = mfl_alloc_aligned(bytes);
        if (!model->params)
                return mfl_fail_memory(err, bytes, "the params of a model");
        const int r = mfl_st_to_params(file, NULL, model->graph, model->params, err);
        return r ? r : check_digest(model, err);
}

/* The contract's sample is the job's, in which a flat one may stand for an image. */
static int check_contract(
        const struct mfl_model_file *model, const struct mfl_shape *input, struct mfl_error *err)
{
        const struct mfl_contract *c = model->contract;
        if (mfl_shape_count(&c->shape) != mfl_shape_count(input) ||
                (c->vocabulary > 0) != (model->graph->vocabulary > 0) ||
                c->vocabulary > model->graph->vocabulary)
                return mfl_fail(
                        err, MFL_INVALID, "%.200s: its contract is of another model's input", model->path);
        return 0;
}

static int read_contract(const struct mfl_st_file *file, const struct mfl_shape *input,
        struct mfl_model_file *model, struct mfl_error *err)
{
        const char *text = mfl_st_meta_get(file, "contract");
        int r = text ? mfl_contract_parse(text, model->path, &model->contract, err)
                     : mfl_contract_plain(input, model->graph->vocabulary, &model->contract, err);
        if (r)
                return r;
        struct mfl_contract *c = model->contract;
        c->loss = model->job->training.loss;
        c->has_loss = true;
        if (!text && mfl_loss_answers(c->loss) == MFL_ANSWERS_TARGETS)
                c->n_targets = model->graph->classes;
        else if (!text)
                c->classes = model->graph->classes;
        return check_contract(model, input, err);
}

static int read_model(const struct mfl_st_file *file, struct mfl_model_file *model, struct mfl_error *err)
{
        struct mfl_shape input;
        const char *shape = mfl_st_meta_get(file, "input");
        if (!mfl_st_meta_get(file, "job_text") || !mfl_st_meta_get(file, "classes") || !shape)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: the file has params but not their model: an older `mfl pull` or another "
                        "program wrote "
                        "it; pull the job again, or use an ONNX file",
                        model->path);
        if (parse_shape(shape, &input))
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: metadata 'input' is '%.60s', not a shape such as 1,28,28", model->path,
                        shape);
        read_origin(file, model);
        int r = read_graph(file, &input, model, err);
        if (!r)
                r = read_params(file, model, err);
        return r ? r : read_contract(file, &input, model, err);
}

int mfl_model_file_open(const char *path, struct mfl_model_file **ret_model, struct mfl_error *err)
{
        struct mfl_st_file *file = NULL;
        struct mfl_model_file *model = mfl_calloc(1, sizeof *model);
        if (!model)
                return mfl_fail_memory(err, sizeof *model, "a model");
        model->path = mfl_strdup(path);
        int r = model->path ? mfl_st_open(path, &file, err) : mfl_fail_memory(err, strlen(path), "a path");
        if (!r)
                r = read_model(file, model, err);
        mfl_st_close(file);
        if (r)
                mfl_model_file_free(model);
        else
                *ret_model = model;
        return r;
}

void mfl_model_file_free(struct mfl_model_file *model)
{
        if (!model)
                return;
        mfl_job_free(model->job);
        mfl_graph_free(model->graph);
        mfl_contract_free(model->contract);
        free(model->params);
        free(model->path);
        free(model);
}
