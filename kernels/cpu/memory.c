/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a network, and an estimate of it. */
#include <sys/mman.h>

#include "kernels/cpu/op.h"

#define HUGE_PAGE ((size_t)2 << 20)

/* Zeroed memory for tensors, on huge pages where the kernel has them: rows of a large dense layer lie pages
 * apart. */
static void *tensors_new(size_t bytes)
{
        size_t padded = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        void *p = NULL;
        if (bytes < HUGE_PAGE) {
                p = mfl_alloc_aligned(bytes);
        } else {
                void *probe = mfl_malloc(1); /* so that tests with a failing allocator cover this call too */
                if (!probe)
                        return NULL;
                free(probe);
                if (posix_memalign(&p, HUGE_PAGE, padded))
                        return NULL;
                madvise(p, padded, MADV_HUGEPAGE);
        }
        if (p)
                memset(p, 0, bytes);
        return p;
}

/* Floats of the largest tensors that pass through the network's buffers, as first and second input: shares of
 * gradients, and tensors that are converted to plain order. */
static void find_buffers(const struct mfl_net *net, size_t share[2], size_t plain[2])
{
        const struct mfl_graph *graph = net->graph;
        for (int i = 1; i < graph->n_layers; i++)
                for (int k = 0; k < 2; k++) {
                        const struct mfl_plan_layer *plan = &net->plan->layers[i];
                        int input = k ? graph->layers[i].input2 : graph->layers[i].input;
                        if (input < 0)
                                continue;
                        const struct mfl_layout *l = &net->layers[input].layout;
                        size_t floats = (size_t)l->count * (size_t)net->options.batch;
                        bool adds = graph->layers[i].op == MFL_OP_ADD && !net->layers[i].plain;
                        if (!adds && net->plan->layers[input].wants_grad &&
                                !(k ? plan->writes_grad2 : plan->writes_grad))
                                share[k] = MFL_MAX(share[k], floats);
                        if (net->layers[i].plain && !l->identity)
                                plain[k] = MFL_MAX(plain[k], floats);
                }
}

/* Working floats of each thread, and of recurrent layers. */
static size_t find_work(struct mfl_net *net)
{
        const struct mfl_graph *graph = net->graph;
        int64_t recurrent = 0;
        for (int i = 1; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                bool products = net->layers[i].gemm || mfl_cpu_has(layer->op, MFL_CPU_PRODUCTS);
                int64_t floats = products ? MFL_GEMM_WORK : 0;
                if (layer->op == MFL_OP_ATTENTION)
                        floats = mfl_attention_work(layer->out.dim[0], layer->out.dim[1] / layer->heads);
                if (layer->op == MFL_OP_EMBEDDING) /* the tokens */
                        floats = MFL_MAX(floats, layer->out.dim[0] * net->options.batch);
                net->work_floats = MFL_MAX(net->work_floats, (floats + 15) / 16 * 16);
                recurrent = MFL_MAX(recurrent, mfl_cpu_recurrent_work(net, i));
        }
        return (size_t)(net->work_floats * net->options.threads + recurrent);
}

/* The params, what clients start from, and the optimizer's state: `wide` bytes each, or the sibling's. */
static bool allocate_params(struct mfl_net *net, size_t wide, size_t copies)
{
        const struct mfl_net *sibling = net->options.sibling;
        size_t one = (size_t)net->n_wide * sizeof(float);
        bool first = mfl_net_has_first(&net->options), second = mfl_net_has_second(&net->options);
        mfl_assert(!sibling || net->options.worker);
        bool lent = net->options.lent; /* the caller lends it later */
        mfl_assert(!lent || (net->options.worker && !sibling));
        net->params = sibling ? sibling->params : lent ? NULL : tensors_new(wide);
        net->copies = sibling ? sibling->copies : tensors_new(copies);
        net->frozen =
                sibling ? sibling->frozen : mfl_calloc((size_t)net->options.groups + 1, sizeof *net->frozen);
        if ((!net->params && !lent) || !net->copies || !net->frozen)
                return false;
        if (!net->options.training || net->options.worker)
                return true;
        net->first = tensors_new(net->options.shared_start ? one : wide);
        /* Where groups have their own start, most callers do not use this; untouched pages cost nothing. */
        net->base = net->options.shared_start ? net->first : mfl_calloc(1, one + 1);
        net->momentum = first ? tensors_new(wide) : NULL;
        net->second = second ? tensors_new(wide) : NULL;
        return net->first && net->base && (net->momentum || !first) && (net->second || !second);
}

/* Tensors that training needs beside the params. */
static bool allocate_training(struct mfl_net *net, const size_t share[2], const size_t plain[2])
{
        bool ok = true;
        if (net->options.corrects) {
                size_t groups = (size_t)net->options.groups;
                net->correction = tensors_new((size_t)net->n_wide * groups * sizeof(float));
                net->corrected = mfl_calloc(groups, sizeof *net->corrected);
                ok = net->correction && net->corrected;
        }
        net->sum = mfl_calloc(net->options.worker ? 1 : (size_t)net->n_wide + 1, sizeof *net->sum);
        net->grads = tensors_new((size_t)net->n_grads * sizeof(float));
        net->extra = tensors_new((size_t)net->n_extra * sizeof(float));
        net->unused = tensors_new((size_t)net->n_unused * sizeof(float));
        if (net->options.accumulate > 1) {
                net->part = tensors_new((size_t)net->n_wide * sizeof(float));
                ok = ok && net->part;
        }
        for (int k = 0; k < 2; k++) {
                net->share[k] = tensors_new(share[k] * sizeof(float));
                net->plain_grad[k] = tensors_new(plain[k] * sizeof(float));
                ok = ok && net->share[k] && net->plain_grad[k];
        }
        return ok && net->extra && net->unused && net->sum && net->grads;
}

int mfl_cpu_allocate(struct mfl_net *net, struct mfl_error *err)
{
        size_t groups = (size_t)net->options.groups, wide = (size_t)net->n_wide * groups * sizeof(float);
        size_t input = (size_t)net->layers[0].layout.count * (size_t)net->options.batch;
        size_t copies = (size_t)net->n_copied * (net->options.shared_start ? 1 : groups + 1) * sizeof(float);
        const struct mfl_layout *last = &net->layers[net->graph->n_layers - 1].layout;
        size_t outputs = last->identity ? 0 : (size_t)(last->logical * net->options.batch) * sizeof(float);
        size_t share[2] = {0}, plain[2] = {0};
        find_buffers(net, share, plain);
        net->arena = tensors_new((size_t)net->plan->arena_bytes);
        net->work = tensors_new(find_work(net) * sizeof(float));
        net->scratch = tensors_new(net->scratch_bytes);
        net->staging = tensors_new(net->staging_bytes);
        bool has_params = allocate_params(net, wide, copies);
        net->logits = tensors_new(outputs);
        net->dlogits = tensors_new(outputs);
        net->plain[0] = tensors_new(plain[0] * sizeof(float));
        net->plain[1] = tensors_new(plain[1] * sizeof(float));
        /* Only the conformance program uses this one; untouched pages cost nothing. */
        net->x = mfl_calloc(net->options.worker ? 1 : input * groups, sizeof(float));
        net->keys = mfl_calloc(groups, sizeof *net->keys);
        bool ok = net->arena && net->work && net->scratch && net->staging && has_params && net->logits &&
                  net->dlogits && net->plain[0] && net->plain[1] && net->x && net->keys;
        if (ok && (!net->options.training || allocate_training(net, share, plain)))
                return 0;
        return mfl_fail_memory(err, (size_t)mfl_cpu_net_bytes(net->graph, &net->options), "network");
}

/* Floats that a layer keeps or works in besides its output, for a whole batch and one thread. */
static uint64_t extra_floats(
        const struct mfl_graph *graph, int i, uint64_t batch, uint64_t threads, uint64_t *ret_work)
{
        const struct mfl_layer *layer = &graph->layers[i];
        uint64_t count = (uint64_t)mfl_shape_count(&layer->out) * batch,
                 positions = (uint64_t)layer->out.dim[0], hidden = (uint64_t)layer->out_channels;
        switch (layer->op) {
        case MFL_OP_ATTENTION:
                *ret_work = threads * (uint64_t)mfl_attention_work(
                                              (int64_t)positions, layer->out.dim[1] / layer->heads);
                return batch * (uint64_t)layer->heads * positions * 2;
        case MFL_OP_LSTM:
        case MFL_OP_GRU:
        case MFL_OP_RNN:
                *ret_work = threads * MFL_GEMM_WORK + batch * hidden * 6 + hidden +
                            (uint64_t)MFL_MAX(mfl_gemm_packed_floats((int64_t)hidden, 4 * (int64_t)hidden),
                                    mfl_gemm_packed_floats(4 * (int64_t)hidden, (int64_t)hidden));
                return 5 * count;
        case MFL_OP_DENSE:
                *ret_work = threads * MFL_GEMM_WORK;
                return layer->lora_rank ? 2 * count / hidden * (uint64_t)layer->lora_rank : 0;
        default:
                *ret_work = threads * (MFL_GEMM_WORK + positions * batch);
                return 6 * count / positions + count; /* statistics, masks, the places of maxima */
        }
}

void mfl_cpu_net_plan(const struct mfl_net *net, struct mfl_net_plan *ret_plan)
{
        *ret_plan = (struct mfl_net_plan){
                .tensor_bytes = net->plan->arena_bytes, .segments = net->plan->n_segments};
}

/* Floats of a sample's output, with channels padded to 16. */
static uint64_t padded_count(const struct mfl_shape *out)
{
        uint64_t channels = (uint64_t)out->dim[0], count = (uint64_t)mfl_shape_count(out);
        return out->rank == 3 ? count / channels * ((channels + 15) / 16 * 16) : count;
}

/* Floats of a step's tensors where some layers do not keep theirs for backward, by a plan of plain layers,
 * each with its own place. 0: no memory for the plan. */
static uint64_t planned_floats(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        MFL_CLEANUP_FREE struct mfl_plan_need *needs = mfl_calloc((size_t)graph->n_layers, sizeof *needs);
        struct mfl_plan *plan = NULL;
        if (!needs)
                return 0;
        mfl_plan_plain_needs(graph, options->batch, needs);
        for (int i = 0; i < graph->n_layers; i++) {
                uint64_t batch = (uint64_t)options->batch, work;
                enum mfl_op op = graph->layers[i].op;
                bool keeps = i > 0 && mfl_cpu_ops[op] &&
                             (mfl_cpu_ops[op]->aux_bytes || mfl_cpu_has(op, MFL_CPU_PRODUCTS));
                needs[i].act_bytes = padded_count(&graph->layers[i].out) * batch * sizeof(float);
                if (keeps)
                        needs[i].aux_bytes =
                                extra_floats(graph, i, batch, (uint64_t)options->threads, &work) *
                                sizeof(float);
        }
        if (mfl_plan_new(graph, options, needs, &plan, NULL))
                return 0;
        uint64_t floats = plan->arena_bytes / sizeof(float);
        mfl_plan_free(plan);
        return floats;
}

uint64_t mfl_cpu_tensor_most(const struct mfl_graph *graph, int tensor)
{
        uint64_t count = (uint64_t)mfl_shape_count(&graph->layers[tensor].out);
        bool blocked = false; /* convolutions choose layouts, and others keep them */
        int i = tensor;
        while (i > 0 && graph->layers[i].out.rank < 3 && graph->layers[i].op != MFL_OP_DENSE)
                i = graph->layers[i].input;
        for (int k = 1; k <= i; k++)
                blocked |= mfl_cpu_is_conv(graph->layers[k].op);
        if (!blocked || graph->layers[i].out.rank < 3)
                return count;
        uint64_t channels = (uint64_t)graph->layers[i].out.dim[0];
        return (count + channels - 1) / channels * ((channels + 15) / 16 * 16);
}

/* Floats of a wide vector and of the copies of frozen params, at most, and of the largest weights of a convolution; of
 * frozen params, the caller's memory has the rest. grads: of a worker's network. places: of what has no order of its own. */
struct most {
        uint64_t wide, copied, heaviest, grads, places;
};

static struct most params_most(const struct mfl_graph *graph)
{
        struct most most = {0};
        uint64_t of_layer = 0, shared = 0;
        for (int i = 0; i < graph->n_params; i++) {
                const struct mfl_param *param = &graph->params[i];
                uint64_t rest = param->count;
                enum mfl_op op = graph->layers[param->layer].op;
                bool conv = mfl_cpu_is_conv(op) && !param->is_bias, frozen = param->offset < graph->n_frozen;
                if (conv) {
                        uint64_t o = (uint64_t)param->shape.dim[0], c = (uint64_t)param->shape.dim[1];
                        rest = rest / (o * c) * ((o + 15) / 16 * 16) * ((c + 15) / 16 * 16);
                        most.heaviest = MFL_MAX(most.heaviest, rest);
                }
                const struct mfl_layer *layer = &graph->layers[param->layer];
                uint64_t out = (uint64_t)layer->out_channels;
                if (op == MFL_OP_DENSE && layer->param_weight == i && /* not one for each position */
                        param->count == out * (uint64_t)mfl_shape_count(&graph->layers[layer->input].out))
                        rest = out * mfl_cpu_tensor_most(graph, layer->input);
                bool padded = rest != param->count;
                rest += MFL_CPU_WIDE_ALIGN;
                of_layer = i && graph->params[i - 1].layer == param->layer ? of_layer + rest : rest;
                most.grads = MFL_MAX(most.grads, of_layer);
                shared += param->n_uses > 1 ? rest : 0;
                most.places += conv ? param->count : 0;
                if (!frozen)
                        most.wide += rest;
                else if (padded || conv || op == MFL_OP_BATCHNORM || op == MFL_OP_GROUPNORM)
                        most.copied += rest;
        }
        most.grads = MFL_MIN(most.grads + shared, most.wide);
        return most;
}

uint64_t mfl_cpu_wide_most(const struct mfl_graph *graph)
{
        return params_most(graph).wide;
}

/* Floats of the params and of what training keeps beside them; a sibling has only gradients and a sum. */
static uint64_t params_floats(const struct most *most, const struct mfl_net_options *options)
{
        uint64_t groups = (uint64_t)options->groups;
        uint64_t kept = !options->shared_start + mfl_net_has_first(options) + mfl_net_has_second(options) +
                        options->corrects;
        uint64_t floats = groups * most->wide + (options->shared_start ? 3 : groups + 3) * most->copied;
        if (options->worker)
                return (options->sibling
                                       ? 0
                                       : (options->lent ? 0 : most->wide) + most->copied * 2 + most->places) +
                       most->grads;
        floats += most->places;
        if (options->training)
                floats += (kept * groups + 4 + (options->accumulate > 1)) * most->wide;
        return floats;
}

/* Bytes that convolutions on tiles share: images for each thread, and more of large strides. */
static uint64_t tiles_most(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        uint64_t most = 0;
        for (int i = 1; i < graph->n_layers; i++)
                most = MFL_MAX(most, mfl_tile_conv_most(graph, i, options));
        return most;
}

/* An upper estimate that does not ask the library: channels padded to 16, activations and gradients side by
 * side, a scratchpad and the buffers between layers as large as the largest activation. Activations count
 * three times; a plan, which includes gradients, counts one and a half times. */
uint64_t mfl_cpu_net_bytes(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        uint64_t groups = (uint64_t)options->groups, batch = (uint64_t)options->batch, activations = 0;
        uint64_t largest = 0, work = 0;
        struct most most = params_most(graph);
        for (int i = 0; i < graph->n_layers; i++) {
                uint64_t own = 0;
                uint64_t count = padded_count(&graph->layers[i].out);
                activations +=
                        count * batch + extra_floats(graph, i, batch, (uint64_t)options->threads, &own);
                work = MFL_MAX(work, own);
                largest = MFL_MAX(largest, count * batch);
        }
        uint64_t tensors = activations * (options->training ? 3 : 1);
        if (options->training && (mfl_net_recomputes(options) || graph->n_frozen))
                tensors = planned_floats(graph, options) / 2 * 3;
        uint64_t floats = tensors + 6 * largest + work + params_floats(&most, options) +
                          groups * batch * (uint64_t)mfl_shape_count(&graph->input);
        for (int i = 0; i < graph->n_layers; i++)
                floats += mfl_map_bytes(graph, i) / sizeof(float);
        for (int i = 0; i < graph->n_params; i++)
                if (graph->params[i].offset >= graph->n_frozen && graph->params[i].n_uses > 1)
                        floats += graph->params[i].count; /* of one use */
        if (options->precision == MFL_PRECISION_BF16)     /* copies of a convolution's operands */
                floats += 4 * largest + 3 * most.heaviest + tiles_most(graph, options) / sizeof(float);
        return floats * sizeof(float) + 8 * HUGE_PAGE;
}
