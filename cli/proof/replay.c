/* SPDX-License-Identifier: Apache-2.0 */
/* Replays a proof: computes its two batches, and compares outputs and gradients with PyTorch's.
 *
 *   - build the graph without dropout; open the CPU backend, or the reference;
 *   - for each batch: make the inputs from the seed, forward, compare outputs; backward, compare gradients.
 *
 * Where outputs differ, the graph is cut behind each layer that has the name of a PyTorch module, in order, until
 * the norms of both differ: that layer is named.
 *
 * Rounding decides ReLUs and winners of max pools, and each such flip changes a gradient by much. So what differs in floats is
 * computed again in double (kernels/double.h), as PyTorch did, and there the bounds hold as they are. Where that would take
 * too long, or PyTorch computed in floats itself, judge.c compares with what rounding changes in PyTorch.
 *
 * Double runs on the reference, so it says that the model is right, and nothing of the backend. What the backend computes far from
 * PyTorch, though double agrees, is computed by the reference in floats, too: if that one is near, the backend is wrong, and not rounding.
 */
#include <math.h>
#include <unistd.h>

#include "cli/proof/judge.h"
#include "cli/proof/seeded.h"
#include "kernels/double.h"

#define NORM_BOUND 1e-3
#define DOUBLE_FLOPS_MAX 4e11 /* minutes of plain loops */

struct replay {
        const struct mfl_proof *proof;
        struct mfl_graph *graph;
        const float *params;
        size_t heads; /* the main output, and auxiliary ones, which the proof's loss has no part of */
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        bool done[MFL_PROOF_BATCHES]; /* in double: what is close in floats */
        struct mfl_proof_differences found;
};

/* One batch on one network. */
struct pass {
        struct mfl_net *net;
        uint32_t rows;
        float *x, *y, *dy, *dparams;
};

/* ---- graphs ---- */

/* The same layers with all rates 0; with `last`, only that layer and those that it needs. */
static int build(const struct mfl_graph *from, int last, struct mfl_graph **ret_graph, struct mfl_error *err)
{
        size_t n = (size_t)from->n_layers;
        MFL_CLEANUP_FREE struct mfl_layer *layers = mfl_calloc(n, sizeof *layers);
        MFL_CLEANUP_FREE int *number = mfl_calloc(n, sizeof *number);
        int end = last < 0 ? from->n_layers - 1 : last, kept = 0;
        if (!layers || !number)
                return mfl_fail_memory(err, n * sizeof *layers, "a graph");
        number[0] = number[end] = 1;
        for (int i = end; i > 0; i--) {
                const struct mfl_layer *l = &from->layers[i];
                if (number[i] && l->input >= 0)
                        number[l->input] = 1;
                if (number[i] && l->input2 >= 0)
                        number[l->input2] = 1;
                if (number[i] && l->shares)
                        number[l->shares] = 1;
        }
        for (int i = 0; i <= end; i++) {
                if (!number[i])
                        continue;
                number[i] = kept;
                layers[kept] = from->layers[i];
                layers[kept].rate = 0;
                layers[kept].input = from->layers[i].input < 0 ? -1 : number[from->layers[i].input];
                layers[kept].input2 = from->layers[i].input2 < 0 ? -1 : number[from->layers[i].input2];
                layers[kept].shares = from->layers[i].shares ? number[from->layers[i].shares] : 0;
                kept++;
        }
        int r = mfl_graph_build(from->name, layers, kept, last < 0 ? from->classes : 0, ret_graph, err);
        if (!r && (r = mfl_graph_by_layers(*ret_graph, err)))
                mfl_graph_free(*ret_graph);
        return r;
}

/* ---- one batch ---- */

static void pass_deinit(struct replay *p, struct pass *pass)
{
        p->ops->net_free(pass->net);
        free(pass->x);
        free(pass->y);
        free(pass->dy);
        free(pass->dparams);
        *pass = (struct pass){.net = NULL};
}

static size_t output_count(const struct mfl_graph *graph)
{
        return (size_t)mfl_shape_count(&graph->layers[graph->n_layers - 1].out);
}

static int make_net(struct replay *p, const struct mfl_graph *graph, struct pass *pass, struct mfl_error *err)
{
        struct mfl_net_options options = {.batch = (int)pass->rows,
                .groups = 1,
                .threads = 1,
                .training = true,
                .moments = MFL_MOMENTS_NONE};
        return p->ops->net_new(p->device, graph, &options, &pass->net, err);
}

/* Inputs from the seed, as tokens or floats in the order of the samples' elements; of several inputs, a sample has
 * one after the other. */
static void fill_inputs(const struct replay *p, int b, struct pass *pass)
{
        float *x = pass->x;
        for (uint32_t row = 0; row < pass->rows; row++) {
                for (uint32_t n = 0; n < p->proof->n_inputs; n++) {
                        const struct mfl_proof_input *in = &p->proof->input[n];
                        uint32_t stream = MFL_PROOF_STREAM_INPUT(b, n);
                        for (uint64_t i = row * in->count; i < (row + 1) * in->count; i++) {
                                uint64_t hash = mfl_proof_hash(p->proof->seed, stream, i);
                                double unit = mfl_proof_uniform(p->proof->seed, stream, i) * sqrt(3.0);
                                *x++ = in->below ? (float)(hash * in->below >> 24)
                                                 : (float)(in->mean + in->deviation * unit);
                        }
                }
        }
}

static int forward(struct replay *p, const struct mfl_graph *graph, const float *params, int b,
        struct pass *ret_pass, struct mfl_error *err)
{
        static const struct mfl_rng_key unused = {{0}, {0}};
        struct pass pass = {.rows = p->proof->batch[b].rows};
        size_t x = (size_t)mfl_shape_count(&graph->input), y = output_count(graph);
        pass.x = mfl_calloc(x * pass.rows, sizeof *pass.x);
        pass.y = mfl_calloc(y * pass.rows, sizeof *pass.y);
        pass.dy = mfl_calloc(y * pass.rows, sizeof *pass.dy);
        pass.dparams = mfl_alloc_aligned((graph->n + 1) * sizeof *pass.dparams);
        int r = 0;
        if (!pass.x || !pass.y || !pass.dy || !pass.dparams)
                r = mfl_fail_memory(err, (x + 2 * y) * pass.rows * sizeof *pass.x, "the batch of a proof");
        if (!r)
                r = make_net(p, graph, &pass, err);
        if (!r) {
                fill_inputs(p, b, &pass);
                r = mfl_backend_set(p->ops, pass.net, graph, 0, params, err);
        }
        if (!r)
                r = p->ops->forward(pass.net, pass.x, &unused, pass.y, err);
        if (r)
                pass_deinit(p, &pass);
        else
                *ret_pass = pass;
        return r;
}

/* ---- which layer ---- */

static int layer_named(const struct mfl_graph *graph, const char *name)
{
        for (int i = 1; i < graph->n_layers; i++)
                if (!strcmp(graph->layers[i].name, name))
                        return i;
        return -1;
}

/* The params of the part, from those of the whole. */
static void copy_params(const struct replay *p, const struct mfl_graph *part, float *to)
{
        for (int t = 0; t < part->n_params; t++)
                for (int u = 0; u < p->graph->n_params; u++)
                        if (!strcmp(part->params[t].name, p->graph->params[u].name))
                                memcpy(to + part->params[t].offset, p->params + p->graph->params[u].offset,
                                        part->params[t].count * sizeof *to);
}

/* The output of one layer: the caller frees the part and the pass. */
static int forward_part(struct replay *p, int layer, int b, struct mfl_graph **ret_part,
        struct pass *ret_pass, struct mfl_error *err)
{
        struct mfl_graph *part;
        int r = build(p->graph, layer, &part, err);
        if (r)
                return r;
        MFL_CLEANUP_FREE float *params = mfl_alloc_aligned((part->n + 1) * sizeof *params);
        if (params) {
                copy_params(p, part, params);
                r = forward(p, part, params, b, ret_pass, err);
        } else {
                r = mfl_fail_memory(err, part->n * sizeof *params, "the params of a proof");
        }
        if (r)
                mfl_graph_free(part);
        else
                *ret_part = part;
        return r;
}

static int compare_norm(struct replay *p, int layer, const struct mfl_proof_module *m, int b,
        bool *ret_differs, struct mfl_error *err)
{
        struct mfl_graph *part;
        struct pass pass;
        double sum = 0;
        int r = forward_part(p, layer, b, &part, &pass, err);
        if (r)
                return r;
        for (size_t i = 0; i < output_count(part) * pass.rows; i++)
                sum += (double)pass.y[i] * pass.y[i];
        *ret_differs = !(fabs(sqrt(sum) - m->norm[b]) <= NORM_BOUND * m->norm[b] + 1e-9);
        pass_deinit(p, &pass);
        mfl_graph_free(part);
        return 0;
}

/* The first module in the order of the forward pass whose layer gives something else; NULL: none is known. A part
 * that can't be computed alone is skipped. */
static const struct mfl_proof_module *first_wrong(struct replay *p, int b)
{
        const struct mfl_proof_module *m = mfl_proof_modules(p->proof);
        struct mfl_error ignored;
        for (uint32_t i = 0; i < p->proof->n_modules; i++) {
                int layer = layer_named(p->graph, m[i].name);
                bool differs = false;
                if (layer > 0 && !compare_norm(p, layer, &m[i], b, &differs, &ignored) && differs)
                        return &m[i];
        }
        return NULL;
}

/* ---- outputs ---- */

/* PyTorch may have classes before positions ({batch, classes, rows, columns}); mfl has them last. */
static bool has_classes_first(const struct replay *p)
{
        const int64_t *shape = p->proof->shape;
        const struct mfl_shape *own = &p->graph->layers[p->graph->n_layers - 1].out;
        if (p->proof->rank < 3 || own->rank != 2)
                return false;
        return p->proof->rank > 3 ? shape[p->proof->rank - 1] != own->dim[1] || shape[1] == own->dim[1]
                                  : shape[2] != own->dim[1] && shape[1] == own->dim[1];
}

/* mfl's place of PyTorch's output i. Auxiliary outputs come after the main one, as further positions, or as further rows
 * of each channel of an image. */
static size_t output_at(const struct replay *p, size_t i)
{
        const struct mfl_shape *own = &p->graph->layers[p->graph->n_layers - 1].out;
        size_t all = output_count(p->graph), n = all / p->heads, row = i / n, at = i % n;
        if (has_classes_first(p)) {
                size_t positions = (size_t)own->dim[0] / p->heads, classes = (size_t)own->dim[1];
                at = at % positions * classes + at / positions;
        } else if (own->rank == 3) {
                size_t channel = n / (size_t)own->dim[0];
                at = at / channel * channel * p->heads + at % channel;
        }
        return row * all + at;
}

static int check_shapes(const struct replay *p, struct mfl_error *err)
{
        const struct mfl_proof *proof = p->proof;
        uint64_t n = 1, x = 0, own = (uint64_t)mfl_shape_count(&p->graph->input);
        for (uint32_t d = 1; d < proof->rank && n <= UINT32_MAX; d++)
                n *= (uint64_t)proof->shape[d];
        for (uint32_t i = 0; i < proof->n_inputs; i++)
                x += proof->input[i].count;
        if (x != own)
                return mfl_fail(err, MFL_INVALID,
                        "proof: a sample has %llu numbers in %u inputs, but %llu in mfl's model",
                        (unsigned long long)x, proof->n_inputs, (unsigned long long)own);
        if (n * p->heads != output_count(p->graph))
                return mfl_fail(err, MFL_INVALID,
                        "proof: the module has %llu outputs for a sample, but mfl's model has %zu",
                        (unsigned long long)n, output_count(p->graph) / p->heads);
        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                for (uint32_t i = 0; i < proof->batch[b].n_outputs; i++)
                        if (mfl_proof_outputs(proof, b)[i].index >= n * proof->batch[b].rows)
                                return mfl_fail(err, MFL_INVALID, "proof: an output is outside the outputs");
        return 0;
}

static double worst_output(const struct replay *p, int b, const struct pass *pass)
{
        const struct mfl_proof_output *out = mfl_proof_outputs(p->proof, b);
        double worst = 0;
        for (uint32_t i = 0; i < p->proof->batch[b].n_outputs; i++) {
                double d = fabs((double)pass->y[output_at(p, out[i].index)] - out[i].value);
                worst = d > worst || isnan(d) ? d : worst;
        }
        return worst;
}

static int fail_output(struct replay *p, int b, struct mfl_error *err)
{
        const struct mfl_proof_module *m = first_wrong(p, b);
        char where[2 * MFL_PROOF_NAME_BYTES + 64] = "";
        if (m)
                mfl_snprintf(
                        where, sizeof where, "; the first layer that differs is %s (%s)", m->name, m->kind);
        return mfl_fail(err, MFL_INVALID,
                "proof: mfl's outputs differ from PyTorch's by %.2g of the largest one%s. mfl would train "
                "another model: "
                "change that part of the module, or report it",
                p->found.output[b] / fmax(p->proof->batch[b].largest, 1e-30), where);
}

/* ---- both batches ---- */

static int replay_batch(struct replay *p, int b, struct mfl_error *err)
{
        struct pass pass;
        int r = forward(p, p->graph, p->params, b, &pass, err);
        if (r)
                return r;
        for (size_t i = 0; i < output_count(p->graph) / p->heads * pass.rows; i++)
                pass.dy[output_at(p, i)] =
                        (float)mfl_proof_uniform(p->proof->seed, MFL_PROOF_STREAM_WEIGHTS(b), i);
        p->found.output[b] = worst_output(p, b, &pass);
        r = p->ops->backward(pass.net, pass.dy, NULL, pass.dparams, err);
        if (!r)
                mfl_proof_compare(p->proof, b, pass.dparams, p->found.gradient[b]);
        pass_deinit(p, &pass);
        return r;
}

static int replay_batches(struct replay *p, struct mfl_error *err)
{
        int r = mfl_proof_differences_init(&p->found, p->proof, err);
        for (int b = 0; !r && b < MFL_PROOF_BATCHES; b++)
                r = p->done[b] ? 0 : replay_batch(p, b, err);
        return r;
}

static int judge(struct replay *p, bool rounds, struct mfl_error *err)
{
        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                if (!mfl_proof_output_agrees(p->proof, &p->found, b, rounds))
                        return fail_output(p, b, err);
        return mfl_proof_judge(p->proof, &p->found, rounds, err);
}

/* ---- memory ---- */

/* What the replay needs beside the params that are there; 0: it fits into this machine. */
static uint64_t missing_memory(const struct replay *p)
{
        struct mfl_net_options options = {.batch = (int)p->proof->batch[1].rows,
                .groups = 1,
                .threads = 1,
                .training = true,
                .moments = MFL_MOMENTS_NONE};
        uint64_t need = p->ops->net_bytes(p->graph, &options) + (p->graph->n + 1) * sizeof(float);
        long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
        return pages > 0 && size > 0 && need > (uint64_t)pages * (uint64_t)size / 4 * 3 ? need : 0;
}

/* ---- backends ---- */

/* Whether this backend can build the network. */
static bool can_build(struct replay *p)
{
        struct pass pass = {.rows = p->proof->batch[0].rows};
        struct mfl_error ignored;
        int r = make_net(p, p->graph, &pass, &ignored);
        if (!r)
                p->ops->net_free(pass.net);
        return !r;
}

static int choose_backend(struct replay *p, const char *backend, struct mfl_error *err)
{
        struct mfl_error ignored;
        if (strcmp(backend, "reference") && !mfl_backend_open("cpu", &p->ops, &ignored) &&
                !p->ops->device_open(&p->device, &ignored)) {
                if (can_build(p))
                        return 0;
                p->ops->device_close(p->device);
        }
        p->ops = &mfl_backend_reference;
        return p->ops->device_open(&p->device, err);
}

/* ---- in double ---- */

static bool is_close(const struct replay *p)
{
        bool close = true;
        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                close = close && mfl_proof_is_close(p->proof, &p->found, b);
        return close;
}

static bool is_affordable(const struct replay *p)
{
        uint64_t forward, training, rows = 0;
        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                rows += p->done[b] ? 0 : p->proof->batch[b].rows;
        mfl_graph_flops(p->graph, &forward, &training);
        return (double)(forward + training) * (double)rows <= DOUBLE_FLOPS_MAX;
}

/* ---- the backend itself ---- */

#define FAR_OUTPUT 1e-2 /* of the largest */
#define FAR_GRADIENT                                                                                         \
        0.5            /* of its norm: rounding changes as much only where it changes the reference's, too */
#define NEAR_SHARE 0.1 /* of the backend's difference: the reference's is another thing */

/* The first that the backend computes far from PyTorch, and the reference near. gradient: -1 is the output. */
struct far {
        bool found;
        int b, gradient;
        double by, reference;
};

static struct far find_far(const struct replay *p, const struct mfl_proof_differences *own,
        const struct mfl_proof_differences *near)
{
        for (int b = 0; b < MFL_PROOF_BATCHES; b++) {
                double largest = fmax(p->proof->batch[b].largest, 1e-30);
                double by = own->output[b] / largest, reference = near ? near->output[b] / largest : 0;
                if (!(by <= FAR_OUTPUT) && reference <= NEAR_SHARE * (isnan(by) ? 1 : by))
                        return (struct far){true, b, -1, by, reference};
        }
        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                for (uint32_t i = p->proof->n_gradients; i-- > 0;) {
                        double by = own->gradient[b][i].norm,
                               reference = near ? near->gradient[b][i].norm : 0;
                        if (!(by <= FAR_GRADIENT) && reference <= NEAR_SHARE * (isnan(by) ? 1 : by))
                                return (struct far){true, b, (int)i, by, reference};
                }
        return (struct far){.found = false};
}

/* Whether a layer, with all that it needs, gives something else on both. */
static bool layer_differs(struct replay *p, struct replay *q, int layer, int b)
{
        struct mfl_graph *part, *other;
        struct pass pass, near;
        struct mfl_error ignored;
        double by = 0, of = 0;
        if (forward_part(p, layer, b, &part, &pass, &ignored))
                return false;
        if (!forward_part(q, layer, b, &other, &near, &ignored)) {
                for (size_t i = 0; i < output_count(part) * pass.rows; i++) {
                        by += ((double)pass.y[i] - near.y[i]) * ((double)pass.y[i] - near.y[i]);
                        of += (double)near.y[i] * near.y[i];
                }
                pass_deinit(q, &near);
                mfl_graph_free(other);
        }
        pass_deinit(p, &pass);
        mfl_graph_free(part);
        return !(sqrt(by) <= NORM_BOUND * sqrt(of) + 1e-9);
}

/* The layer at which the backend leaves the reference: those before it agree. */
static const struct mfl_layer *leaving_layer(struct replay *p, struct replay *q, int b)
{
        int agrees = 0, differs = p->graph->n_layers - 1;
        while (differs - agrees > 1) {
                int middle = (agrees + differs) / 2;
                if (layer_differs(p, q, middle, b))
                        differs = middle;
                else
                        agrees = middle;
        }
        return &p->graph->layers[differs];
}

static int fail_backend(struct replay *p, struct replay *q, const struct far *far, struct mfl_error *err)
{
        struct mfl_device_info info;
        char where[MFL_LAYER_NAME_BYTES + 64] = "", what[MFL_PROOF_NAME_BYTES + 32] = "outputs differ";
        p->ops->device_info(p->device, &info);
        if (far->gradient < 0) {
                const struct mfl_layer *l = leaving_layer(p, q, far->b);
                mfl_snprintf(where, sizeof where, "; the first layer that differs is %s (%s)", l->name,
                        mfl_layer_kind(l));
        } else {
                mfl_snprintf(what, sizeof what, "gradient of %s differs",
                        mfl_proof_gradients(p->proof)[far->gradient].name);
        }
        return mfl_fail(err, MFL_INVALID,
                "proof: the model is right, but the %s backend (%s) is not: its %s from PyTorch's by %.2g "
                "(plain loops: %.2g)%s. Report it with "
                "this file; '--backend reference' computes it rightly, but slowly",
                info.backend, info.library, what, far->by, far->reference, where);
}

/* The model is right in double. Whether the backend that trains it is, too. */
static int check_backend(struct replay *p, struct mfl_error *err)
{
        struct replay q = *p;
        struct mfl_error ignored;
        if (p->ops == &mfl_backend_reference || !find_far(p, &p->found, NULL).found)
                return 0;
        q.ops = &mfl_backend_reference;
        q.found = (struct mfl_proof_differences){.gradient = {NULL}};
        int r = q.ops->device_open(&q.device, err);
        if (r)
                return r;
        struct far far = {.found = false};
        if (!missing_memory(&q) && !replay_batches(&q, &ignored))
                far = find_far(p, &p->found, &q.found);
        r = far.found ? fail_backend(p, &q, &far, err) : 0;
        q.ops->device_close(q.device);
        mfl_proof_differences_deinit(&q.found);
        return r;
}

/* What differs in floats, again in double. *ret_double: the verdict is that one's. */
static int look_closer(struct replay *p, bool *ret_double, struct mfl_error *err)
{
        struct replay q = *p;
        struct mfl_error ignored;
        bool settled = false;
        q.ops = &mfl_backend_double;
        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                q.done[b] = mfl_proof_is_close(p->proof, &p->found, b);
        q.found = (struct mfl_proof_differences){.gradient = {NULL}};
        int r = is_affordable(&q) ? q.ops->device_open(&q.device, err) : MFL_INVALID;
        if (r)
                return r < 0 ? r : judge(p, true, err);
        if (!missing_memory(&q) && !(r = replay_batches(&q, &ignored))) {
                bool agrees = is_close(&q);
                settled = agrees || p->proof->exact;
                r = agrees ? 0 : p->proof->exact ? judge(&q, false, err) : 0;
                if (settled && !r)
                        r = check_backend(p, err);
        }
        q.ops->device_close(q.device);
        if (settled) {
                mfl_proof_differences_deinit(&p->found);
                p->found = q.found;
        } else {
                mfl_proof_differences_deinit(&q.found);
        }
        *ret_double = settled && !r;
        return settled ? r : judge(p, true, err);
}

static void describe(const struct replay *p, bool in_double, char ret_text[MFL_PROOF_TEXT])
{
        const char *name;
        double worst = mfl_proof_worst(p->proof, &p->found, &name);
        mfl_snprintf(ret_text, MFL_PROOF_TEXT,
                "proof: outputs and %u gradients agree with PyTorch (worst %.1e at %s%s)",
                p->proof->n_gradients, worst, name,
                in_double                          ? ", in double"
                : worst > MFL_PROOF_GRADIENT_BOUND ? ", where rounding decides it in PyTorch, too"
                                                   : "");
}

int mfl_proof_replay(const struct mfl_proof *proof, const struct mfl_graph *graph, const float *params,
        uint32_t auxiliary, const char *backend, char ret_text[MFL_PROOF_TEXT], struct mfl_error *err)
{
        struct replay p = {.proof = proof, .params = params, .heads = 1 + (size_t)auxiliary};
        int r = build(graph, -1, &p.graph, err);
        if (r)
                return r;
        mfl_assert(p.graph->n == graph->n);
        r = check_shapes(&p, err);
        if (!r)
                r = choose_backend(&p, backend, err);
        if (r) {
                mfl_graph_free(p.graph);
                return r;
        }
        uint64_t missing = missing_memory(&p);
        bool in_double = false;
        if (!missing)
                r = replay_batches(&p, err);
        if (!r && !missing && !is_close(&p))
                r = look_closer(&p, &in_double, err);
        if (!r && missing)
                mfl_snprintf(ret_text, MFL_PROOF_TEXT,
                        "proof: not replayed: it needs %.1f GiB, which this machine does not have; 'mfl "
                        "check' on a larger "
                        "one replays it",
                        (double)missing / (1 << 30));
        else if (!r)
                describe(&p, in_double, ret_text);
        mfl_proof_differences_deinit(&p.found);
        p.ops->device_close(p.device);
        mfl_graph_free(p.graph);
        return r;
}
