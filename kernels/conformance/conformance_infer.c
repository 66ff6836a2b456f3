/* SPDX-License-Identifier: Apache-2.0 */
/* Inference: a row's bits are those that it has alone, in every number of rows, at every place and beside rows that are
 * not numbers; and its values are those of a forward of the whole batch. */
#include "kernels/conformance/conformance.h"

#include <math.h>

#define ROWS 64
/* A whole batch may add in another order than one row: a few roundings of sums, seen relative to the largest output. */
#define TOLERANCE 1e-4

static const struct {
        const char *preset;
        struct mfl_shape input;
        int classes;
} presets[] = {{"lenet5", {3, {1, 28, 28}}, 10}, {"fedavg-cnn", {3, {1, 28, 28}}, 10},
        {"resnet20", {3, {3, 32, 32}}, 10}, {"mobilenet-v2", {3, {3, 32, 32}}, 10},
        {"vit-tiny", {3, {3, 32, 32}}, 10}, {"char-lstm", {1, {20}}, 30}, {"char-gpt", {1, {20}}, 30}};

struct inference {
        const struct conf_backend *b;
        const struct mfl_graph *graph;
        size_t in, out; /* floats of a row */
        float *x, *params, *alone, *y;
        struct mfl_net *net;
};

static int open_net(struct inference *v, bool infer, struct mfl_error *err)
{
        struct mfl_net_options options = {
                .batch = ROWS, .groups = 1, .threads = 1, .precision = v->b->precision, .infer = infer};
        int r = v->b->ops->net_new(v->b->device, v->graph, &options, &v->net, err);
        if (!r)
                mfl_conf_must(mfl_backend_set(v->b->ops, v->net, v->graph, 0, v->params, err), err);
        return r;
}

static void infer(const struct inference *v, const float *x, size_t n, float *y)
{
        static const float one = 1.0f, zero = 0.0f;
        struct mfl_error err = {""};
        struct mfl_rows rows = {.samples = x,
                .dtype = MFL_F32,
                .n_planes = 1,
                .plane = (int64_t)v->in,
                .scale = &one,
                .shift = &zero};
        mfl_conf_must(v->b->ops->infer(v->net, &rows, (uint32_t)n, y, &err), &err);
}

/* n rows from row `first` on. */
static bool agrees(const struct inference *v, size_t first, size_t n)
{
        infer(v, v->x + first * v->in, n, v->y);
        return !memcmp(v->y, v->alone + first * v->out, n * v->out * sizeof *v->y);
}

/* Row `good` among rows of NaN. */
static bool survives(const struct inference *v, size_t good, size_t n)
{
        MFL_CLEANUP_FREE float *x = mfl_conf_alloc(n * v->in * sizeof *x);
        for (size_t i = 0; i < n * v->in; i++)
                x[i] = NAN;
        memcpy(x + good * v->in, v->x + good * v->in, v->in * sizeof *x);
        infer(v, x, n, v->y);
        return !memcmp(v->y + good * v->out, v->alone + good * v->out, v->out * sizeof *v->y);
}

static double distance(const float *a, const float *b, size_t n)
{
        double most = 0, scale = 1e-30;
        for (size_t i = 0; i < n; i++) {
                if (!(fabs((double)a[i] - (double)b[i]) < INFINITY))
                        return memcmp(&a[i], &b[i], sizeof *a) ? INFINITY : most / scale;
                most = fmax(most, fabs((double)a[i] - (double)b[i]));
                scale = fmax(scale, fabs((double)b[i]));
        }
        return most / scale;
}

static void test_rows(struct inference *v, const char *name, bool few)
{
        size_t bad = 0;
        for (size_t r = 0; r < ROWS; r++)
                infer(v, v->x + r * v->in, 1, v->alone + r * v->out);
        for (size_t n = 1; n <= ROWS && !bad; n += few && n > 9 && n < ROWS - 7 ? 6 : 1)
                if (!agrees(v, (n * 7) % (ROWS - n + 1), n))
                        bad = n;
        mfl_conf_report(!bad, "%s: %s: a row's bits are the same alone and among 1 to %d%s", v->b->label,
                name, ROWS, bad ? ", but not among this many" : "");
        if (!mfl_conf_vocabulary(v->graph))
                mfl_conf_report(survives(v, 0, 2) && survives(v, 5, 9) && survives(v, ROWS - 1, ROWS),
                        "%s: %s: rows that are not numbers change no other", v->b->label, name);
}

static void test_values(struct inference *v, const char *name)
{
        struct mfl_error err = {""};
        mfl_conf_must(open_net(v, false, &err), &err);
        mfl_conf_must(v->b->ops->forward(v->net, v->x, NULL, v->y, &err), &err);
        v->b->ops->net_free(v->net);
        double far = distance(v->alone, v->y, ROWS * v->out);
        mfl_conf_report(far <= TOLERANCE || v->b->precision != MFL_PRECISION_FP32,
                "%s: %s: values of a whole batch (%.2g)", v->b->label, name, far);
}

static void test_graph(const struct conf_backend *b, const struct conf_case *kase,
        const struct mfl_graph *graph, const char *name, bool few)
{
        struct mfl_error err = {""};
        struct inference v = {.b = b,
                .graph = graph,
                .in = (size_t)mfl_shape_count(&graph->input),
                .out = (size_t)mfl_shape_count(&graph->layers[graph->n_layers - 1].out)};
        v.x = mfl_conf_alloc(ROWS * v.in * sizeof *v.x);
        v.params = mfl_conf_alloc((size_t)(graph->n + 1) * sizeof *v.params);
        v.alone = mfl_conf_alloc(ROWS * v.out * sizeof *v.alone);
        v.y = mfl_conf_alloc(ROWS * v.out * sizeof *v.y);
        mfl_conf_make_inputs(kase, graph, 1, ROWS, v.x, v.params, v.y);
        if (!*kase->name)
                mfl_graph_init_params(graph, 3, v.params);
        int r = open_net(&v, true, &err);
        if (!r || !mfl_conf_refused(r, &err, "%s: %s", b->label, name)) {
                test_rows(&v, name, few);
                b->ops->net_free(v.net);
                test_values(&v, name);
        }
        free(v.x);
        free(v.params);
        free(v.alone);
        free(v.y);
}

/* A quick run, which sanitizers slow down twentyfold, has the layers of all of them in its cases already. */
static void test_presets(const struct conf_backend *b, const char *filter)
{
        struct mfl_error err = {""};
        for (size_t i = 0; i < (conf_quick ? 1 : MFL_ARRAY_SIZE(presets)); i++) {
                struct conf_case kase = {.name = "", .input = presets[i].input};
                struct mfl_graph *graph;
                if (!strstr(presets[i].preset, filter) ||
                        !mfl_conf_begin("%s: infer %s", b->label, presets[i].preset))
                        continue;
                mfl_conf_must(
                        mfl_graph_preset(presets[i].preset, &kase.input, presets[i].classes, &graph, &err),
                        &err);
                test_graph(b, &kase, graph, presets[i].preset, true);
                mfl_graph_free(graph);
        }
}

void mfl_conf_test_inference(const struct conf_backend *backend, const char *filter)
{
        const struct conf_case *kase;
        if (!backend->ops->infer)
                return;
        for (int i = 0; (kase = mfl_conf_case_at(i)); i++) {
                if (!strstr(kase->name, filter) ||
                        (kase->only_fp32 && backend->precision != MFL_PRECISION_FP32) ||
                        (conf_smoke && !mfl_conf_is_smoke(kase->name)))
                        continue;
                if (!mfl_conf_begin("%s: infer %s", backend->label, kase->name))
                        continue;
                struct mfl_graph *graph = mfl_conf_graph_new(kase);
                test_graph(backend, kase, graph, kase->name, conf_quick);
                mfl_graph_free(graph);
        }
        if (!conf_smoke && strcmp(backend->ops->name, "reference"))
                test_presets(backend, filter);
}
