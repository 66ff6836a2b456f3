/* SPDX-License-Identifier: Apache-2.0 */
/* Where params lie in a wide vector, and how large each region of a network's memory is. */
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/net/net.h"
#include "kernels/cuda/ops/ops_recurrent.h"
#include "kernels/cuda/ops/ops_sequence.h"

#define PARAM_ALIGN 64                    /* elements: 128 bytes of the smallest type */
#define TABLE_BYTES ((uint64_t)8 << 20)   /* approximate limit of one upload of indices */
#define STAGE_BYTES ((uint64_t)16 << 20)  /* approximate limit of half of a staging area */
#define BOUNCE_FLOATS ((uint64_t)1 << 18) /* approximate limit of a piece of a tensor on its way */

int mfl_cuda_model_place_params(struct mfl_cuda_model *model, struct mfl_error *err)
{
        const struct mfl_graph *graph = model->graph;
        for (int trained = 1; trained >= 0; trained--) {
                for (int i = 0; i < graph->n_params; i++) {
                        const struct mfl_param *param = &graph->params[i];
                        bool first = !model->apart || mfl_cuda_first_use(model, model->shared[i]) == i;
                        if (param->trained != trained || !first)
                                continue;
                        model->at[i] = model->stride;
                        model->stride += (param->count + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
                }
                if (trained)
                        model->n_trained = model->stride;
        }
        if (model->stride <= UINT32_MAX)
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "model %s: %llu parameters; the cuda backend supports less than 2^32", graph->name,
                (unsigned long long)graph->n);
}

/* Element (y, x, c) of an image in the backend's order, from its number in NCHW order. */
static uint64_t image_order(const struct mfl_cuda_tensor *x, uint64_t e)
{
        uint64_t plane = (uint64_t)x->h * (uint64_t)x->w;
        return e % plane * (uint64_t)x->c + e / plane;
}

static bool is_rownorm(enum mfl_op op)
{
        return op == MFL_OP_LAYERNORM || op == MFL_OP_RMSNORM;
}

void mfl_cuda_place_tensor(const struct mfl_cuda_model *model, int p, uint32_t *place)
{
        const struct mfl_param *param = &model->graph->params[p];
        const struct mfl_layer *layer = &model->graph->layers[param->layer];
        const struct mfl_cuda_layer *own = &model->layers[param->layer];
        const struct mfl_cuda_tensor *in = &model->layers[MFL_MAX(layer->input, 0)].x;
        uint64_t at = model->at[p];
        bool weight = p == layer->param_weight;
        for (uint64_t e = 0; e < param->count; e++) {
                uint64_t to = e;
                if (weight && (layer->op == MFL_OP_CONV2D || layer->op == MFL_OP_CONVTRANSPOSE2D)) {
                        struct mfl_cuda_tensor filter = {.h = (int)param->shape.dim[2],
                                .w = (int)param->shape.dim[3],
                                .c = (int)param->shape.dim[1]};
                        uint64_t size = (uint64_t)filter.h * (uint64_t)filter.w * (uint64_t)filter.c;
                        to = e / size * size + image_order(&filter, e % size);
                } else if (weight && layer->op == MFL_OP_DENSE) {
                        uint64_t columns = (uint64_t)own->conv.c;
                        to = image_order(&own->x, e / columns) * columns + image_order(in, e % columns);
                } else if (p == layer->param_weight2 && layer->op == MFL_OP_DENSE) { /* LoRA's A */
                        uint64_t columns = (uint64_t)own->conv.c;
                        to = e / columns * columns + image_order(in, e % columns);
                } else if (p == layer->param_bias2 && layer->op == MFL_OP_DENSE) { /* LoRA's B */
                        uint64_t rank = (uint64_t)layer->lora_rank;
                        to = image_order(&own->x, e / rank) * rank + e % rank;
                } else if (layer->op == MFL_OP_DENSE) { /* bias */
                        to = image_order(&own->x, e);
                } else if (layer->op == MFL_OP_WEIGHT) {
                        to = image_order(&own->x, e);
                } else if (layer->out.rank == 1 && (mfl_cuda_is_norm(layer->op) || is_rownorm(layer->op))) {
                        to = image_order(in, e);
                }
                place[e] = (uint32_t)(at + to);
        }
}

void mfl_cuda_model_permutation(const struct mfl_cuda_model *model, uint32_t *place)
{
        for (int p = 0; p < model->flat->n_params; p++)
                mfl_cuda_place_tensor(
                        model, mfl_cuda_first_use(model, p), place + model->flat->params[p].offset);
}

static uint64_t take(uint64_t *at, uint64_t bytes)
{
        uint64_t here = *at;
        *at += (bytes + 15) / 16 * 16;
        return here;
}

static void size_control(struct mfl_cuda_model *model)
{
        struct mfl_cuda_control *control = &model->control;
        uint64_t groups = (uint64_t)model->options.groups, batch = (uint64_t)model->options.batch, at = 0;
        uint64_t a_row = (batch + 1) * sizeof(uint32_t) + sizeof(struct mfl_rate) +
                         sizeof(struct mfl_loss_share),
                 whole = model->accumulate;
        /* A worker's batches are the grains of one step, of which there may be many. */
        uint64_t most = model->options.worker ? UINT32_MAX : MFL_STEPS_MAX;
        uint64_t steps = MFL_MIN(MFL_MAX(TABLE_BYTES / (groups * a_row * whole), 1), most);
        model->steps_max = (uint32_t)(steps * whole);
        control->step = take(&at, sizeof(uint32_t));
        control->step_first = take(&at, groups * sizeof(uint32_t));
        control->dropout = take(&at, groups * sizeof(struct mfl_rng_key));
        control->augment = take(&at, groups * sizeof(struct mfl_rng_key));
        control->loss_sum = take(&at, groups * sizeof(int64_t));
        control->n_correct = take(&at, groups * sizeof(uint64_t));
        control->n_scored = take(&at, groups * sizeof(uint64_t));
        control->tally = take(&at,
                mfl_tally_size(model->options.tally, (uint32_t)model->graph->classes) * sizeof(uint64_t));
        control->weight = take(&at, groups * sizeof(uint64_t));
        control->n_bad = take(&at, groups * sizeof(uint64_t));
        control->count = take(&at, groups * model->steps_max * sizeof(uint32_t));
        control->share = take(&at, groups * model->steps_max * sizeof(struct mfl_loss_share));
        control->rates = take(&at, groups * model->steps_max * sizeof(struct mfl_rate));
        control->index = take(&at, groups * model->steps_max * batch * sizeof(uint32_t));
        control->bytes = at;
}

static void size_staging(struct mfl_cuda_model *model)
{
        uint64_t rows = (uint64_t)model->options.groups * (uint64_t)model->options.batch;
        uint64_t a_row = (uint64_t)mfl_shape_count(&model->graph->input) * sizeof(float);
        uint64_t steps = MFL_MIN(MFL_MAX(STAGE_BYTES / (rows * a_row), 1), 64);
        model->stage_rows = rows * MFL_MIN(steps, model->steps_max);
        model->region_bytes[MFL_CUDA_STAGE] = 2 * model->stage_rows * a_row;
        /* Bytes are a quarter of floats, so four times as many rows fit. */
        model->region_bytes[MFL_CUDA_STAGE_LABELS] =
                2 * 4 * model->stage_rows * (uint64_t)model->answers * sizeof(int32_t);
}

static void size_bounce(struct mfl_cuda_model *model)
{
        const struct mfl_graph *graph = model->graph;
        uint64_t rows = (uint64_t)model->options.groups * (uint64_t)model->options.batch;
        uint64_t in = (uint64_t)mfl_shape_count(&graph->input);
        uint64_t out = (uint64_t)mfl_shape_count(&graph->layers[graph->n_layers - 1].out);
        uint64_t most = MFL_MAX(in, out);
        model->bounce_bytes = MFL_MAX(most, MFL_MIN(BOUNCE_FLOATS, rows * most)) * sizeof(float);
}

bool mfl_cuda_attention_keeps_weights(const struct mfl_layer *layer)
{
        return layer->input2 >= 0 || layer->out.dim[1] / layer->heads > MFL_FLASH_SIZE_MAX;
}

uint64_t mfl_cuda_attention_kept_floats(const struct mfl_layer *layer, bool training)
{
        uint64_t queries = (uint64_t)layer->out.dim[0] * (uint64_t)layer->heads;
        if (mfl_cuda_attention_keeps_weights(layer))
                return queries * (uint64_t)layer->out.dim[0];
        return training ? queries * MFL_FLASH_KEPT : 0;
}

static void size_rows(struct mfl_cuda_model *model)
{
        int groups = model->options.groups, batch = model->options.batch;
        for (int i = 1; i < model->graph->n_layers; i++) {
                const struct mfl_layer *layer = &model->graph->layers[i];
                struct mfl_cuda_tensor x = mfl_cuda_row_tensor(model, i);
                int width = (int)layer->out.dim[layer->out.rank - 1];
                uint64_t bytes = 0;
                if (mfl_cuda_is_direct(layer))
                        bytes = mfl_cuda_bias_workspace(&model->layers[i].x);
                else if (layer->op == MFL_OP_WEIGHT)
                        bytes = mfl_cuda_bias_workspace(&x);
                else if (is_rownorm(layer->op))
                        bytes = mfl_cuda_rownorm_workspace(groups, batch * (x.c / width), width, model->type);
                else if (layer->op == MFL_OP_ATTENTION && mfl_cuda_attention_keeps_weights(layer))
                        bytes = (uint64_t)groups *
                                (uint64_t)batch * /* dropped weights, gradients of scores */
                                mfl_cuda_attention_kept_floats(layer, true) * sizeof(float);
                else if (mfl_cuda_is_recurrent(layer->op))
                        bytes = mfl_cuda_recurrent_workspace(
                                groups, batch, width, mfl_cell_of(layer), model->options.precision);
                if (model->layers[i].live && (model->options.training || mfl_cuda_is_recurrent(layer->op)))
                        model->workspace_bytes[0] = MFL_MAX(model->workspace_bytes[0], bytes);
        }
}

static void size_norms(struct mfl_cuda_model *model)
{
        for (int i = 1; i < model->graph->n_layers; i++) {
                const struct mfl_layer *layer = &model->graph->layers[i];
                if (!model->layers[i].live || !mfl_cuda_is_norm(layer->op))
                        continue;
                struct mfl_cuda_tensor x = mfl_cuda_norm_tensor(model, i);
                uint64_t bytes =
                        mfl_cuda_norm_workspace(&x, layer->op == MFL_OP_GROUPNORM ? layer->norm_groups : 0);
                model->workspace_bytes[0] = MFL_MAX(model->workspace_bytes[0], bytes);
        }
}

struct mfl_cuda_tensor mfl_cuda_norm_tensor(const struct mfl_cuda_model *model, int i)
{
        struct mfl_cuda_tensor x = model->layers[i].x;
        if (model->graph->layers[i].out.rank == 3)
                return x;
        x.c *= x.h * x.w; /* each feature of a vector is a channel */
        x.h = x.w = 1;
        return x;
}

struct mfl_cuda_tensor mfl_cuda_row_tensor(const struct mfl_cuda_model *model, int i)
{
        struct mfl_cuda_tensor x = model->layers[i].x;
        x.c *= x.h * x.w;
        x.h = x.w = 1;
        return x;
}

void mfl_cuda_model_sizes(struct mfl_cuda_model *model)
{
        uint64_t *bytes = model->region_bytes, groups = (uint64_t)model->options.groups;
        uint64_t wide = groups * model->stride * sizeof(float), element = 0;
        /* Vectors whose copies of shared params are not used need no room for the last group's. */
        uint64_t own = (groups - 1) * model->stride * sizeof(float) + model->n_own * sizeof(float);
        bool training = model->options.training, worker = model->options.worker, steps = training && !worker;
        if (model->type != MFL_CUDA_F32)
                element = (uint64_t)mfl_cuda_type_bytes(model->type);
        size_control(model);
        size_norms(model);
        size_rows(model);
        size_bounce(model);
        bytes[MFL_CUDA_ARENA] = model->plan->arena_bytes;
        bytes[MFL_CUDA_PARAMS] = wide;
        bytes[MFL_CUDA_LOW] = groups * model->stride * element;
        bytes[MFL_CUDA_BASE] = worker ? 0 : model->stride * sizeof(float);
        bytes[MFL_CUDA_BASE_LOW] = worker ? 0 : model->stride * element;
        bytes[MFL_CUDA_FIRST] = steps && !model->options.shared_start ? own : 0;
        bytes[MFL_CUDA_MOMENTUM] = mfl_net_has_first(&model->options) ? own : 0;
        bytes[MFL_CUDA_SECOND] = mfl_net_has_second(&model->options) ? own : 0;
        bytes[MFL_CUDA_CORRECTION] = training && model->options.corrects ? wide : 0;
        bytes[MFL_CUDA_GRADS] = training ? wide : 0;
        bytes[MFL_CUDA_GRADS_SUM] = training && model->accumulate > 1 ? own : 0;
        bytes[MFL_CUDA_NORMS] = steps ? groups * mfl_cuda_norms_count(model->n_trained) * sizeof(float) : 0;
        bytes[MFL_CUDA_SUM] = steps ? model->n_own * sizeof(int64_t) : 0;
        if (training && model->options.precision == MFL_PRECISION_FP16)
                bytes[MFL_CUDA_SCALE] = (groups + 1) * sizeof(struct mfl_cuda_scale);
        bytes[MFL_CUDA_EVAL] = groups > 1 ? model->stride * sizeof(float) : 0;
        bytes[MFL_CUDA_EVAL_LOW] = groups > 1 ? model->stride * element : 0;
        bytes[MFL_CUDA_WORKSPACE] = model->workspace_bytes[0];
        bytes[MFL_CUDA_WORKSPACE_2] = model->workspace_bytes[1];
        bytes[MFL_CUDA_TIES] = model->n_tie_tables * sizeof(uint32_t);
        bytes[MFL_CUDA_PLACE] = model->flat->n * sizeof(uint32_t);
        /* Params, or a piece of a sum on its way. */
        bytes[MFL_CUDA_FLAT] = MFL_MAX(model->flat->n * sizeof(float),
                MFL_MIN(model->flat->n * sizeof(int64_t), MFL_CUDA_PIPE_BYTES));
        bytes[MFL_CUDA_CLASS_WEIGHTS] =
                training ? (uint64_t)model->options.loss.n_weights * sizeof(float) : 0;
        bytes[MFL_CUDA_LABELS] =
                groups * (uint64_t)model->options.batch * (uint64_t)model->answers * sizeof(int32_t);
        bytes[MFL_CUDA_CONTROL] = model->control.bytes;
        bytes[MFL_CUDA_BOUNCE] = model->bounce_bytes;
        if (model->options.streamed)
                size_staging(model);
        model->bytes = 0;
        for (int r = 0; r < MFL_CUDA_REGIONS_; r++) {
                model->at_region[r] = model->bytes;
                model->bytes += mfl_cuda_round_up(bytes[r]);
        }
        model->bytes = (model->bytes + 511) / 512 * 512; /* as cudaMalloc does */
}
