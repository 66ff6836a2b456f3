/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates a model as daemons do: their batches, their function. */
#include "kernels/check.h"
#include "kernels/infer/internal.h"

int mfl_infer_check(const struct mfl_infer *infer, const struct mfl_dataset *dataset, struct mfl_error *err)
{
        const struct mfl_graph *graph = infer->model->graph;
        const struct mfl_model_numbers numbers = {
                .frozen = infer->model->params, .moving = infer->model->params + graph->n_frozen};
        struct mfl_dataset scaled = *dataset;
        size_t bytes = dataset->train.n * (size_t)infer->count * sizeof(float);
        if (!infer->columns)
                return mfl_check_codes(graph, &numbers, dataset, err);
        scaled.train.samples = mfl_alloc_aligned(bytes);
        if (!scaled.train.samples)
                return mfl_fail_memory(err, bytes, "rows of a table");
        mfl_infer_scale_columns(infer, dataset->train.n, dataset->train.samples, scaled.train.samples);
        int r = mfl_check_codes(graph, &numbers, &scaled, err);
        free(scaled.train.samples);
        return r;
}

static int evaluate(const struct mfl_infer *v, struct mfl_net *net, struct mfl_device_data *data, uint32_t n,
        struct mfl_score *ret_score, struct mfl_error *err)
{
        MFL_CLEANUP_FREE uint32_t *index = mfl_calloc(n, sizeof *index);
        if (!index)
                return mfl_fail_memory(err, n * sizeof *index, "an evaluation");
        for (uint32_t i = 0; i < n; i++)
                index[i] = i;
        int r = mfl_backend_set(v->ops, net, v->model->graph, 0, v->model->params, err);
        return r ? r : v->ops->eval(net, 0, data, index, n, ret_score, err);
}

static int evaluate_split(const struct mfl_infer *v, const struct mfl_dataset *dataset,
        const struct mfl_split *split, enum mfl_tally tally, struct mfl_score *ret_score,
        struct mfl_error *err)
{
        const struct mfl_job *job = v->model->job;
        struct mfl_net_options options = {.batch = (int)job->evaluation.batch,
                .groups = 1,
                .threads = 1,
                .precision = v->precision,
                .streamed = true,
                .loss = mfl_loss_of_job(job),
                .tally = tally};
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        int r = v->ops->net_new(v->device, v->model->graph, &options, &net, err);
        if (!r)
                r = v->ops->data_new(v->device, dataset, split, false, &data, err);
        if (!r)
                r = evaluate(v, net, data, split->n, ret_score, err);
        if (data)
                v->ops->data_free(data);
        if (net)
                v->ops->net_free(net);
        return r;
}

int mfl_infer_evaluate(const struct mfl_infer *infer, const struct mfl_dataset *dataset, enum mfl_tally tally,
        struct mfl_score *ret_score, struct mfl_error *err)
{
        struct mfl_split split = dataset->train;
        size_t bytes = split.n * (size_t)infer->count * sizeof(float);
        if (!infer->model->job)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: the model does not say what loss it was trained with", infer->model->path);
        int r = mfl_infer_check(infer, dataset, err);
        if (r)
                return r;
        if (!infer->columns)
                return evaluate_split(infer, dataset, &split, tally, ret_score, err);
        split.samples = mfl_alloc_aligned(bytes);
        if (!split.samples)
                return mfl_fail_memory(err, bytes, "rows of a table");
        mfl_infer_scale_columns(infer, split.n, dataset->train.samples, split.samples);
        r = evaluate_split(infer, dataset, &split, tally, ret_score, err);
        free(split.samples);
        return r;
}
