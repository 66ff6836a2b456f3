/* SPDX-License-Identifier: Apache-2.0 */
/* Lifetimes of a step's tensors and a first-fit placement of them in one arena. */
#include "kernels/plan.h"

struct span {
        uint64_t bytes, offset;
        int first, last; /* times of use, both included */
        bool used;
};

static bool reads(const struct mfl_graph *graph, int j, int i)
{
        return graph->layers[j].input == i || graph->layers[j].input2 == i;
}

int mfl_plan_readers(const struct mfl_graph *graph, int i)
{
        int n = 0;
        for (int j = i + 1; j < graph->n_layers; j++)
                n += reads(graph, j, i);
        return n;
}

struct mfl_window mfl_window_of(const struct mfl_graph *graph, int i)
{
        const struct mfl_layer *layer = &graph->layers[i];
        const struct mfl_shape *in = &graph->layers[layer->input].out;
        struct mfl_window v = {.c = in->dim[0],
                .h = in->dim[1],
                .w = in->dim[2],
                .o = layer->out.dim[0],
                .oh = layer->out.dim[1],
                .ow = layer->out.dim[2]};
        v.groups = layer->conv_groups ? layer->conv_groups : 1;
        for (int a = 0; a < 2; a++) {
                v.k[a] = layer->kernel[a];
                v.s[a] = layer->stride[a] ? layer->stride[a] : 1;
                v.p[a] = layer->padding[a];
                v.d[a] = layer->dilation[a] ? layer->dilation[a] : 1;
        }
        return v;
}

/* Whose backward, as plain loops, looks at what came in. */
static bool reads_input(enum mfl_op op)
{
        switch (op) {
        case MFL_OP_CONV2D:
        case MFL_OP_CONVTRANSPOSE2D:
        case MFL_OP_DENSE:
        case MFL_OP_MAXPOOL2D:
        case MFL_OP_GLOBAL_MAXPOOL2D:
        case MFL_OP_BATCHNORM:
        case MFL_OP_GROUPNORM:
        case MFL_OP_LAYERNORM:
        case MFL_OP_RMSNORM:
        case MFL_OP_GELU:
        case MFL_OP_SILU:
        case MFL_OP_MULTIPLY:
        case MFL_OP_MATMUL:
        case MFL_OP_EMBEDDING:
        case MFL_OP_ATTENTION:
        case MFL_OP_LSTM:
        case MFL_OP_GRU:
                return true;
        default:
                return false;
        }
}

void mfl_plan_plain_needs(const struct mfl_graph *graph, int batch, struct mfl_plan_need *needs)
{
        for (int i = 0; i < graph->n_layers; i++) {
                enum mfl_op op = graph->layers[i].op;
                needs[i] = (struct mfl_plan_need){
                        .act_bytes = (uint64_t)mfl_shape_count(&graph->layers[i].out) * (uint64_t)batch *
                                     sizeof(float),
                        .alias = -1,
                        .uses_input = reads_input(op),
                        .uses_input2 = op == MFL_OP_MULTIPLY || op == MFL_OP_MATMUL,
                        .uses_output = op == MFL_OP_RELU || op == MFL_OP_RELU6 || op == MFL_OP_TANH ||
                                       op == MFL_OP_SIGMOID || op == MFL_OP_SOFTMAX || op == MFL_OP_LSTM ||
                                       op == MFL_OP_GRU,
                };
        }
}

static void extend(struct span *span, int time)
{
        if (!span->used) {
                span->first = span->last = time;
                span->used = true;
        }
        span->first = MFL_MIN(span->first, time);
        span->last = MFL_MAX(span->last, time);
}

static int root_of(const struct mfl_plan_need *needs, int i)
{
        while (needs[i].alias >= 0)
                i = needs[i].alias;
        return i;
}

/* What layer i reads and, in backward, gives gradients to. */
static void use_inputs(const struct mfl_graph *graph, bool training, const struct mfl_plan_need *needs, int i,
        struct span *spans)
{
        const int inputs[] = {graph->layers[i].input, graph->layers[i].input2};
        int n = graph->n_layers, backward = 2 * n - i;
        for (size_t k = 0; k < MFL_ARRAY_SIZE(inputs); k++) {
                if (inputs[k] < 0)
                        continue;
                int r = root_of(needs, inputs[k]);
                extend(&spans[r], i);
                if (training && (k == 0 ? needs[i].uses_input : needs[i].uses_input2))
                        extend(&spans[r], backward);
                if (training)
                        extend(&spans[n + r], backward);
        }
}

/* spans: n activations, n gradients, n auxiliary buffers, by layer. */
static void find_lifetimes(const struct mfl_graph *graph, bool training, const struct mfl_plan_need *needs,
        const struct mfl_plan *plan, struct span *spans)
{
        int n = graph->n_layers;
        for (int i = 0; i < n; i++) {
                if (!plan->layers[i].live)
                        continue;
                int r = root_of(needs, i), backward = 2 * n - i;
                struct span *act = &spans[r], *grad = &spans[n + r], *aux = &spans[2 * n + i];
                act->bytes = MFL_MAX(act->bytes, needs[i].act_bytes);
                extend(act, i);
                if (i == n - 1)
                        extend(act, n);
                use_inputs(graph, training, needs, i, spans);
                if (needs[i].aux_bytes) {
                        aux->bytes = needs[i].aux_bytes;
                        extend(aux, i);
                }
                if (!training)
                        continue;
                if (needs[i].uses_output)
                        extend(act, backward);
                grad->bytes = MFL_MAX(grad->bytes, needs[i].act_bytes);
                extend(grad, i == n - 1 ? n : backward);
                extend(grad, backward);
                if (needs[i].aux_bytes)
                        extend(aux, backward);
        }
}

/* Puts a span at the lowest offset where no span placed before it and alive at the same time lies. */
static uint64_t place(struct span *const *placed, int n_placed, struct span *span)
{
        uint64_t at = 0;
        for (bool moved = true; moved;) {
                moved = false;
                for (int i = 0; i < n_placed; i++) {
                        const struct span *other = placed[i];
                        bool together = other->first <= span->last && span->first <= other->last;
                        if (together && other->offset < at + span->bytes &&
                                at < other->offset + other->bytes) {
                                at = other->offset + other->bytes;
                                moved = true;
                        }
                }
        }
        span->offset = at;
        return at + span->bytes;
}

static int compare_spans(const void *a, const void *b)
{
        const struct span *x = *(struct span *const *)a, *y = *(struct span *const *)b;
        if (x->bytes != y->bytes)
                return x->bytes < y->bytes ? 1 : -1;
        return x < y ? -1 : x > y;
}

static bool is_trained(const struct mfl_graph *graph, int i)
{
        const struct mfl_layer *layer = &graph->layers[i];
        const int params[] = {
                layer->param_weight, layer->param_bias, layer->param_weight2, layer->param_bias2};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(params); k++)
                if (params[k] >= 0 && graph->params[params[k]].trained)
                        return true;
        return false;
}

static void find_flow(const struct mfl_graph *graph, struct mfl_plan *plan)
{
        int n = graph->n_layers;
        for (int i = n - 1; i >= 0; i--) {
                struct mfl_plan_layer *layer = &plan->layers[i];
                int last = -1; /* reader */
                layer->live = i == n - 1;
                layer->out_count = mfl_shape_count(&graph->layers[i].out);
                for (int j = i + 1; j < n; j++) {
                        if (!reads(graph, j, i) || !plan->layers[j].live)
                                continue;
                        layer->live = true;
                        layer->n_readers++;
                        last = j;
                }
                if (last >= 0 && graph->layers[last].input == i)
                        plan->layers[last].writes_grad = true;
                else if (last >= 0)
                        plan->layers[last].writes_grad2 = true;
        }
        for (int i = 1; i < n; i++) {
                struct mfl_plan_layer *layer = &plan->layers[i];
                int input = graph->layers[i].input, input2 = graph->layers[i].input2;
                layer->in_count = input >= 0 ? plan->layers[input].out_count : 0;
                layer->wants_grad = (input >= 0 && plan->layers[input].wants_grad) ||
                                    (input2 >= 0 && plan->layers[input2].wants_grad) || is_trained(graph, i);
        }
}

static int place_all(const struct mfl_graph *graph, bool training, const struct mfl_plan_need *needs,
        struct mfl_plan *plan, struct mfl_error *err)
{
        int n = graph->n_layers, n_order = 0;
        MFL_CLEANUP_FREE struct span *spans = mfl_calloc(3 * (size_t)n, sizeof *spans);
        MFL_CLEANUP_FREE struct span **order = mfl_calloc(3 * (size_t)n, sizeof *order);
        if (!spans || !order)
                return mfl_fail_memory(err, 3 * (size_t)n * sizeof *spans, "plan of a network");
        find_lifetimes(graph, training, needs, plan, spans);
        for (int i = 0; i < 3 * n; i++)
                if (spans[i].used && spans[i].bytes) {
                        spans[i].bytes =
                                (spans[i].bytes + MFL_PLAN_ALIGN - 1) / MFL_PLAN_ALIGN * MFL_PLAN_ALIGN;
                        order[n_order++] = &spans[i];
                }
        qsort(order, (size_t)n_order, sizeof *order, compare_spans);
        for (int i = 0; i < n_order; i++) {
                uint64_t end = place(order, i, order[i]);
                plan->arena_bytes = MFL_MAX(plan->arena_bytes, end);
        }
        for (int i = 0; i < n; i++) {
                int r = root_of(needs, i);
                plan->layers[i].act = spans[r].offset;
                plan->layers[i].grad = spans[n + r].offset;
                plan->layers[i].aux = spans[2 * n + i].offset;
        }
        return 0;
}

int mfl_plan_new(const struct mfl_graph *graph, bool training, const struct mfl_plan_need *needs,
        struct mfl_plan **ret_plan, struct mfl_error *err)
{
        size_t n = (size_t)graph->n_layers;
        struct mfl_plan *plan = mfl_calloc(1, sizeof *plan + n * sizeof *plan->layers);
        if (!plan)
                return mfl_fail_memory(err, n * sizeof *plan->layers, "plan of a network");
        plan->n_layers = graph->n_layers;
        plan->layers = (struct mfl_plan_layer *)(plan + 1);
        find_flow(graph, plan);
        int rc = place_all(graph, training, needs, plan, err);
        if (rc) {
                free(plan);
                return rc;
        }
        *ret_plan = plan;
        return 0;
}

void mfl_plan_free(struct mfl_plan *plan)
{
        free(plan);
}
