/* SPDX-License-Identifier: Apache-2.0 */
/* A model with its network, which turns rows into outputs.
 *
 * Happy path: model file -> backend -> device -> network -> params. Failures: those of mfl_model_file_open and
 * mfl_backend_open; a model that the backend does not support.
 */
#include "kernels/infer/internal.h"

#define BATCH_MAX 65536u

static int check_options(const struct mfl_infer_options *options, struct mfl_error *err)
{
        if (options->batch_max < 1 || options->batch_max > BATCH_MAX || options->threads > 1024)
                return mfl_fail(err, MFL_INVALID,
                        "inference: 1 to %u rows at once and at most 1024 threads are possible", BATCH_MAX);
        return 0;
}

static int64_t outputs_of(const struct mfl_graph *graph)
{
        return mfl_shape_count(&graph->layers[graph->n_layers - 1].out);
}

/* How raw samples are read: the same for every call, except for their place. */
static void describe_rows(struct mfl_infer *v)
{
        const struct mfl_contract *c = v->model->contract;
        bool scales = !c->normalised && c->n_channels;
        v->count = mfl_shape_count(&c->shape);
        v->rows.dtype = mfl_contract_dtype(c);
        v->rows.n_planes = c->shape.rank == 3 && c->shape.dim[0] <= MFL_CHANNELS_MAX ? c->shape.dim[0] : 1;
        v->rows.plane = v->count / v->rows.n_planes;
        for (int i = 0; i < MFL_CHANNELS_MAX; i++)
                v->ones[i] = 1.0f;
        v->rows.scale = scales ? c->scale : v->ones;
        v->rows.shift = scales ? c->shift : v->zeros;
}

static int allocate(struct mfl_infer *v, struct mfl_error *err)
{
        const struct mfl_contract *c = v->model->contract;
        size_t in = (size_t)v->batch_max * (size_t)v->count * sizeof(float),
               out = (size_t)v->batch_max * v->outputs * sizeof(float);
        if (c->feature_mean && !c->normalised && !(v->columns = mfl_alloc_aligned(in)))
                return mfl_fail_memory(err, in, "rows of a table");
        if (v->ops->infer)
                return 0;
        v->x = mfl_alloc_aligned(in);
        v->y = mfl_alloc_aligned(out);
        return v->x && v->y ? 0 : mfl_fail_memory(err, in + out, "a batch");
}

static int make_net(struct mfl_infer *v, const struct mfl_infer_options *options, struct mfl_error *err)
{
        const struct mfl_graph *graph = v->model->graph;
        struct mfl_net_options net = {.batch = (int)options->batch_max,
                .groups = 1,
                .threads = options->threads ? (int)options->threads : 1,
                .precision = options->precision};
        int r = mfl_backend_open(options->backend ? options->backend : "auto", &v->ops, err);
        if (!r)
                r = v->ops->device_open(&v->device, err);
        net.infer = !r && v->ops->infer;
        if (!r)
                r = v->ops->net_new(v->device, graph, &net, &v->net, err);
        if (!r)
                r = mfl_backend_set(v->ops, v->net, graph, 0, v->model->params, err);
        return r;
}

/* A small network shows it. */
int mfl_infer_check_precision(
        const char *backend, enum mfl_precision precision, bool alone, struct mfl_error *err)
{
        static const struct mfl_shape input = {1, {4}};
        const struct mfl_net_options options = {
                .batch = 1, .groups = 1, .threads = 1, .precision = precision};
        const struct mfl_backend_ops *ops;
        struct mfl_device *device = NULL;
        struct mfl_graph *graph = NULL;
        struct mfl_net *net = NULL;
        struct mfl_error why;
        int r = mfl_backend_open(backend ? backend : "auto", &ops, err);
        if (!r && alone && precision != MFL_PRECISION_FP32 && !ops->infer)
                r = mfl_fail(err, MFL_INVALID,
                        "in %s, only the cpu backend gives a row the same bits alone and among others, and "
                        "this is %s: take fp32, or "
                        "the cpu backend",
                        mfl_precision_name(precision), ops->name);
        if (!r)
                r = mfl_graph_preset("mlp", &input, 2, &graph, err);
        if (!r)
                r = ops->device_open(&device, err);
        if (r) {
                mfl_graph_free(graph);
                return r;
        }
        r = ops->net_new(device, graph, &options, &net, &why);
        if (r)
                r = mfl_fail(err, r, "%.400s; fp32 is computed everywhere", why.text);
        else
                ops->net_free(net);
        ops->device_close(device);
        mfl_graph_free(graph);
        return r;
}

int mfl_infer_new(const struct mfl_model_file *model, const struct mfl_infer_options *options,
        struct mfl_infer **ret_infer, struct mfl_error *err)
{
        int r = check_options(options, err);
        if (r)
                return r;
        if (outputs_of(model->graph) > INT32_MAX / (int64_t)options->batch_max)
                return mfl_fail(err, MFL_INVALID,
                        "inference: %u rows of %lld outputs are too many at once; take fewer rows",
                        options->batch_max, (long long)outputs_of(model->graph));
        struct mfl_infer *v = mfl_calloc(1, sizeof *v);
        if (!v)
                return mfl_fail_memory(err, sizeof *v, "a model");
        v->model = model;
        v->batch_max = options->batch_max;
        v->precision = options->precision;
        v->outputs = (uint32_t)outputs_of(model->graph);
        describe_rows(v);
        r = make_net(v, options, err);
        if (!r)
                r = allocate(v, err);
        if (r)
                mfl_infer_free(v);
        else
                *ret_infer = v;
        return r;
}

int mfl_infer_open(const char *path, const struct mfl_infer_options *options, struct mfl_infer **ret_infer,
        struct mfl_error *err)
{
        struct mfl_model_file *model;
        struct mfl_infer *infer;
        int r = mfl_model_file_open(path, &model, err);
        if (r)
                return r;
        r = mfl_infer_new(model, options, &infer, err);
        if (r) {
                mfl_model_file_free(model);
                return r;
        }
        infer->own = model;
        *ret_infer = infer;
        return 0;
}

void mfl_infer_free(struct mfl_infer *infer)
{
        if (!infer)
                return;
        if (infer->net)
                infer->ops->net_free(infer->net);
        if (infer->device)
                infer->ops->device_close(infer->device);
        mfl_model_file_free(infer->own);
        free(infer->columns);
        free(infer->x);
        free(infer->y);
        free(infer);
}

const struct mfl_contract *mfl_infer_contract(const struct mfl_infer *infer)
{
        return infer->model->contract;
}

const struct mfl_model_file *mfl_infer_model(const struct mfl_infer *infer)
{
        return infer->model;
}

uint32_t mfl_infer_batch_max(const struct mfl_infer *infer)
{
        return infer->batch_max;
}

uint32_t mfl_infer_outputs(const struct mfl_infer *infer)
{
        return infer->outputs;
}

uint32_t mfl_infer_classes(const struct mfl_infer *infer)
{
        return infer->model->graph->classes ? (uint32_t)infer->model->graph->classes : infer->outputs;
}

void mfl_infer_scale_columns(const struct mfl_infer *infer, uint64_t n, const float *x, float *to)
{
        const struct mfl_contract *c = infer->model->contract;
        uint64_t rows = n * (uint64_t)infer->count / (uint64_t)c->n_features;
        for (uint64_t r = 0; r < rows; r++)
                for (int f = 0; f < c->n_features; f++, x++)
                        *to++ = (float)((*x - c->feature_mean[f]) / c->feature_std[f]);
}

/* A network without `infer` computes its whole batch, the missing rows as zeros. */
static int run_whole(struct mfl_infer *v, uint32_t n, float *y, struct mfl_error *err)
{
        mfl_host_read_rows(&v->rows, n, v->x);
        memset(v->x + (int64_t)n * v->count, 0, (size_t)(v->batch_max - n) * (size_t)v->count * sizeof *v->x);
        int r = v->ops->forward(v->net, v->x, NULL, v->y, err);
        if (!r)
                memcpy(y, v->y, (size_t)n * v->outputs * sizeof *y);
        return r;
}

int mfl_infer_run(struct mfl_infer *infer, uint32_t n, const void *x, float *y, struct mfl_error *err)
{
        mfl_assert(n >= 1 && n <= infer->batch_max);
        if (infer->columns)
                mfl_infer_scale_columns(infer, n, x, infer->columns);
        infer->rows.samples = infer->columns ? infer->columns : x;
        return infer->ops->infer ? infer->ops->infer(infer->net, &infer->rows, n, y, err)
                                 : run_whole(infer, n, y, err);
}
