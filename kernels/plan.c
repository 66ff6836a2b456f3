/* SPDX-License-Identifier: Apache-2.0 */
/* What a graph's layers need, and how gradients flow through it. */
#include "kernels/plan_internal.h"

int mfl_plan_readers(const struct mfl_graph *graph, int i)
{
        int n = 0;
        for (int j = i + 1; j < graph->n_layers; j++)
                n += mfl_plan_reads(graph, j, i);
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

void mfl_plan_plain_needs(const struct mfl_graph *graph, int batch, struct mfl_plan_need *needs)
{
        for (int i = 0; i < graph->n_layers; i++) {
                unsigned reads = mfl_op_info(graph->layers[i].op)->reads;
                needs[i] = (struct mfl_plan_need){
                        .act_bytes = (uint64_t)mfl_shape_count(&graph->layers[i].out) * (uint64_t)batch *
                                     sizeof(float),
                        .alias = -1,
                        .uses_input = reads & MFL_READS_INPUT,
                        .uses_input2 = reads & MFL_READS_INPUT2,
                        .uses_output = reads & MFL_READS_OUTPUT,
                };
        }
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

/* First forward through the graph, then from each layer that shares memory to the owner of that memory. The
 * owner has no other reader, so all readers of a layer that wants a gradient still want one. */
static void find_wanted(const struct mfl_graph *graph, bool input_grad, const struct mfl_plan_need *needs,
        struct mfl_plan *plan)
{
        plan->layers[0].wants_grad = input_grad;
        for (int i = 1; i < graph->n_layers; i++) {
                int input = graph->layers[i].input, input2 = graph->layers[i].input2;
                plan->layers[i].wants_grad = (input >= 0 && plan->layers[input].wants_grad) ||
                                             (input2 >= 0 && plan->layers[input2].wants_grad) ||
                                             is_trained(graph, i);
        }
        for (int i = graph->n_layers - 1; i > 0; i--)
                if (plan->layers[i].wants_grad && needs[i].alias >= 0)
                        plan->layers[needs[i].alias].wants_grad = true;
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
                        if (!mfl_plan_reads(graph, j, i) || !plan->layers[j].live)
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
                int input = graph->layers[i].input;
                layer->in_count = input >= 0 ? plan->layers[input].out_count : 0;
        }
}

int mfl_plan_new(const struct mfl_graph *graph, const struct mfl_net_options *options,
        const struct mfl_plan_need *needs, struct mfl_plan **ret_plan, struct mfl_error *err)
{
        bool training = options->training;
        size_t n = (size_t)graph->n_layers, n_steps = training ? 2 * n : 0;
        size_t bytes = n * sizeof(struct mfl_plan_layer) + n_steps * sizeof(struct mfl_plan_step);
        struct mfl_plan *plan = mfl_calloc(1, sizeof *plan + bytes);
        if (!plan)
                return mfl_fail_memory(err, bytes, "plan of a network");
        plan->n_layers = graph->n_layers;
        plan->n_segments = 1;
        plan->layers = (struct mfl_plan_layer *)(plan + 1);
        plan->backward = (struct mfl_plan_step *)(plan->layers + n);
        find_flow(graph, plan);
        find_wanted(graph, options->input_grad, needs, plan);
        struct mfl_plan_draft draft = {.graph = graph, .training = training, .needs = needs, .plan = plan};
        int rc = mfl_plan_draft_init(&draft, err);
        if (!rc && training && mfl_net_recomputes(options))
                rc = mfl_plan_cut(&draft, options->segments, err);
        if (!rc) {
                mfl_plan_live(&draft);
                mfl_plan_place(&draft);
        }
        mfl_plan_draft_deinit(&draft);
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
