/* SPDX-License-Identifier: Apache-2.0 */
/* The model of a network: shapes in memory, problems of convolutions, what each layer needs of the arena. */
#include "kernels/check.h"
#include "kernels/cuda/net/net.h"
#include "kernels/cuda/ops/ops_recurrent.h"

/* What net_fuse.c, the plan and the run need to know of an operator. 0: this backend does not have it. */
enum traits {
        KNOWN = 1,
        ORDER = 2,         /* its output, where it is a vector, keeps the order of its input's elements */
        READS_INPUT = 4,   /* its backward reads its input */
        READS_OUTPUT = 8,  /* its output */
        READS_INPUT2 = 16, /* its second input */
        KEEPS_ALWAYS = 32, /* its forward works in the auxiliary memory, also without training */
};
static const unsigned char traits[MFL_OP_COUNT_] = {
        [MFL_OP_INPUT] = KNOWN,
        [MFL_OP_CONV2D] = KNOWN | READS_INPUT,
        [MFL_OP_CONVTRANSPOSE2D] = KNOWN | READS_INPUT,
        [MFL_OP_DENSE] = KNOWN | READS_INPUT | KEEPS_ALWAYS, /* LoRA */
        [MFL_OP_MAXPOOL2D] = KNOWN,
        [MFL_OP_AVGPOOL2D] = KNOWN,
        [MFL_OP_GLOBAL_AVGPOOL2D] = KNOWN,
        [MFL_OP_GLOBAL_MAXPOOL2D] = KNOWN | READS_INPUT,
        [MFL_OP_DROPOUT] = KNOWN | ORDER,
        [MFL_OP_FLATTEN] = KNOWN | ORDER,
        [MFL_OP_ADD] = KNOWN | ORDER,
        [MFL_OP_MULTIPLY] = KNOWN | ORDER | READS_INPUT | READS_INPUT2,
        [MFL_OP_GATE] = KNOWN | ORDER | READS_INPUT2,
        [MFL_OP_BATCHNORM] = KNOWN | ORDER | READS_INPUT,
        [MFL_OP_GROUPNORM] = KNOWN | ORDER | READS_INPUT,
        [MFL_OP_LAYERNORM] = KNOWN | ORDER | READS_INPUT,
        [MFL_OP_RMSNORM] = KNOWN | ORDER | READS_INPUT,
        [MFL_OP_SOFTMAX] = KNOWN | ORDER | READS_OUTPUT,
        [MFL_OP_CONCAT] = KNOWN,
        [MFL_OP_RESHAPE] = KNOWN,
        [MFL_OP_TRANSPOSE] = KNOWN,
        [MFL_OP_SLICE] = KNOWN,
        [MFL_OP_MEAN] = KNOWN,
        [MFL_OP_MAP] = KNOWN,
        [MFL_OP_WEIGHT] = KNOWN,
        [MFL_OP_EMBEDDING] = KNOWN | READS_INPUT,
        [MFL_OP_MATMUL] = KNOWN | READS_INPUT | READS_INPUT2,
        [MFL_OP_PADDING_MASK] = KNOWN,
        [MFL_OP_ATTENTION] = KNOWN | READS_INPUT | READS_INPUT2 | READS_OUTPUT | KEEPS_ALWAYS,
        [MFL_OP_LSTM] = KNOWN | READS_INPUT | READS_OUTPUT | KEEPS_ALWAYS,
        [MFL_OP_GRU] = KNOWN | READS_INPUT | READS_OUTPUT | KEEPS_ALWAYS,
        [MFL_OP_RNN] = KNOWN | READS_INPUT | READS_OUTPUT | KEEPS_ALWAYS,
/* Those that a layer carries read their output, unless it applies their gradient: describe_needs. */
#define UNARY(symbol, ...) [MFL_OP_##symbol] = KNOWN | ORDER,
#include "common/model/unary.def"
};

#define ELEMENTS_MAX INT32_MAX /* per group and batch: kernels count them in 32 bits */
#define CROP_MAX 65536
#define ACCUMULATE_MAX 65536
#define GROUPS_MAX 65535 /* they are the grid's second dimension */

static int refuse(const struct mfl_layer *layer, const char *why, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID, "layer %s: the cuda backend %s", layer->name, why);
}

/* The whole numbers from 0 on that a format holds exactly. */
static int whole_numbers(enum mfl_cuda_type type)
{
        return type == MFL_CUDA_BF16 ? 257 : type == MFL_CUDA_F16 ? 2049 : 1 << 24;
}

static struct mfl_cuda_tensor tensor_of(const struct mfl_cuda_model *model, const struct mfl_shape *shape)
{
        struct mfl_cuda_tensor x = {.groups = model->options.groups,
                .batch = model->options.batch,
                .h = 1,
                .w = 1,
                .type = model->type};
        bool image = shape->rank == 3;
        /* A sequence is a vector in memory: each position's features, one position after another. */
        x.c = (int)(image ? shape->dim[0] : mfl_shape_count(shape));
        x.h = image ? (int)shape->dim[1] : 1;
        x.w = image ? (int)shape->dim[2] : 1;
        return x;
}

static bool in_image_order(const struct mfl_cuda_tensor *x)
{
        return x->h * x->w > 1;
}

/* Vectors that keep the order of their input's elements. */
static bool keeps_order(const struct mfl_layer *layer)
{
        return layer->out.rank != 3 && traits[layer->op] & ORDER;
}

/* How the layer's output lies in memory, except for the order of vectors. */
static int shape_layer(struct mfl_cuda_model *model, int i, struct mfl_error *err)
{
        const struct mfl_layer *layer = &model->graph->layers[i];
        if (mfl_shape_count(&layer->out) > ELEMENTS_MAX / model->options.batch)
                return refuse(layer, "needs batches of less than 2^31 elements: make the batch smaller", err);
        bool numbers =
                layer->op == MFL_OP_EMBEDDING && layer->frozen && layer->out_channels == 1; /* of tokens */
        if (layer->op == MFL_OP_EMBEDDING && (layer->input > 0 || numbers) &&
                layer->vocabulary > whole_numbers(model->type))
                return refuse(layer,
                        "holds the columns of a table, or tokens as numbers, in the precision's format, "
                        "which is too small for this vocabulary: set training.precision to fp32 or tf32",
                        err);
        model->layers[i].x = tensor_of(model, &layer->out);
        if (i == 0 && model->graph->vocabulary) /* no 16-bit float holds every token */
                model->layers[i].x.type = MFL_CUDA_F32;
        return 0;
}

/* A dense layer may give its outputs in any order, by permuting its params: what is added to a flattened
 * image takes the image's order. Returns whether something changed. */
static bool give_order(struct mfl_cuda_model *model, int i, const struct mfl_cuda_tensor *x)
{
        const struct mfl_layer *layer = &model->graph->layers[i];
        while (keeps_order(layer) && layer->input >= 0) {
                i = layer->input;
                layer = &model->graph->layers[i];
        }
        if (layer->op != MFL_OP_DENSE || layer->out.rank != 1 || in_image_order(&model->layers[i].x))
                return false;
        model->layers[i].x = *x;
        return true;
}

/* One pass over the orders of vectors, from inputs to outputs. */
static bool pass_orders(struct mfl_cuda_model *model)
{
        bool changed = false;
        for (int i = 1; i < model->graph->n_layers; i++) {
                const struct mfl_layer *layer = &model->graph->layers[i];
                struct mfl_cuda_tensor *own = &model->layers[i].x;
                const struct mfl_cuda_tensor *in = &model->layers[layer->input].x;
                if (!keeps_order(layer))
                        continue;
                if (mfl_cuda_is_plain_add(model->graph, i)) {
                        const struct mfl_cuda_tensor *two = &model->layers[layer->input2].x;
                        if (in_image_order(in) && !in_image_order(two))
                                changed |= give_order(model, layer->input2, in);
                        else if (in_image_order(two) && !in_image_order(in))
                                changed |= give_order(model, layer->input, two);
                }
                if (in_image_order(in) && !in_image_order(own)) {
                        *own = *in;
                        changed = true;
                }
        }
        return changed;
}

static int check_orders(const struct mfl_cuda_model *model, struct mfl_error *err)
{
        for (int i = 1; i < model->graph->n_layers; i++) {
                const struct mfl_layer *layer = &model->graph->layers[i];
                const struct mfl_cuda_tensor *in = &model->layers[layer->input].x;
                if (!keeps_order(layer))
                        continue;
                if (layer->op == MFL_OP_GROUPNORM && in_image_order(in))
                        return refuse(layer,
                                "does not support group norm after flattening an image: put the norm before "
                                "the flatten",
                                err);
                if (!mfl_cuda_is_plain_add(model->graph, i))
                        continue;
                const struct mfl_cuda_tensor *two = &model->layers[layer->input2].x;
                if (in->h != two->h || in->w != two->w || in->c != two->c)
                        return refuse(layer,
                                "can't add these two vectors: they come from images of "
                                "different sizes, or from one and from the input",
                                err);
        }
        return 0;
}

/* The weights of the previous output are those of a convolution of one tap. At position t it reads t - 1, and
 * zeros before the first position: padding on one side. */
static void describe_recurrent(struct mfl_cuda_model *model, int i)
{
        const struct mfl_layer *layer = &model->graph->layers[i];
        struct mfl_cuda_layer *own = &model->layers[i];
        own->conv.k = mfl_cell_gates(mfl_cell_of(layer)) * layer->out_channels;
        own->conv2 = own->conv;
        own->conv2.c = layer->out_channels;
        own->conv2.pad[0] = 1;
}

static void describe_conv(struct mfl_cuda_model *model, int i)
{
        const struct mfl_layer *layer = &model->graph->layers[i];
        const struct mfl_cuda_tensor *in = &model->layers[layer->input].x;
        struct mfl_cuda_conv *conv = &model->layers[i].conv;
        *conv = (struct mfl_cuda_conv){.groups = model->options.groups,
                .n = model->options.batch,
                .h = 1,
                .w = 1,
                .c = in->h * in->w * in->c,
                .oh = 1,
                .ow = 1,
                .k = layer->out_channels,
                .r = 1,
                .s = 1,
                .stride = {1, 1},
                .dilation = {1, 1},
                .precision = model->options.precision};
        if (layer->op != MFL_OP_CONV2D && layer->out.rank == 2) { /* each position is a pixel */
                conv->h = conv->oh = (int)layer->out.dim[0];
                conv->c /= conv->h;
        }
        if (mfl_cuda_is_recurrent(layer->op))
                describe_recurrent(model, i);
        if (layer->op != MFL_OP_CONV2D)
                return;
        struct mfl_window window = mfl_window_of(model->graph, i);
        conv->h = in->h;
        conv->w = in->w;
        conv->c = in->c;
        conv->oh = (int)window.oh;
        conv->ow = (int)window.ow;
        conv->r = (int)window.k[0];
        conv->s = (int)window.k[1];
        for (int a = 0; a < 2; a++) {
                conv->stride[a] = (int)window.s[a];
                conv->pad[a] = (int)window.p[a];
                conv->dilation[a] = (int)window.d[a];
        }
}

static uint64_t count_of(const struct mfl_cuda_tensor *x)
{
        return (uint64_t)x->groups * (uint64_t)x->batch * (uint64_t)x->h * (uint64_t)x->w * (uint64_t)x->c;
}

static uint64_t aux_of(const struct mfl_cuda_model *model, int i)
{
        const struct mfl_layer *layer = &model->graph->layers[i];
        uint64_t rows = (uint64_t)model->options.groups * (uint64_t)model->options.batch;
        uint64_t vectors =
                rows * (uint64_t)(mfl_shape_count(&layer->out) / layer->out.dim[layer->out.rank - 1]);
        if (layer->op == MFL_OP_LAYERNORM || layer->op == MFL_OP_RMSNORM) /* mean and inverse */
                return vectors * 2 * sizeof(float);
        if (layer->op == MFL_OP_ATTENTION)
                return rows * mfl_cuda_attention_kept_floats(layer, model->options.training) * sizeof(float);
        if (mfl_cuda_is_recurrent(layer->op))
                return mfl_cuda_recurrent_kept(vectors, layer->out_channels, mfl_cell_of(layer), model->type);
        if (layer->op == MFL_OP_DENSE && layer->lora_rank) /* A x and its gradient */
                return vectors * 2 * (uint64_t)layer->lora_rank * sizeof(float);
        if (layer->op == MFL_OP_EMBEDDING) /* links */
                return vectors * sizeof(uint32_t);
        if (layer->op == MFL_OP_MAXPOOL2D)
                return count_of(&model->layers[i].x) *
                       ((int64_t)layer->kernel[0] * layer->kernel[1] > 255 ? sizeof(uint32_t) : 1);
        if (layer->op == MFL_OP_BATCHNORM) /* mean and inverse */
                return (uint64_t)model->options.groups * (uint64_t)mfl_shape_count(&layer->out) * 2 *
                       sizeof(float);
        if (layer->op == MFL_OP_GROUPNORM)
                return rows * (uint64_t)layer->norm_groups * 2 * sizeof(float);
        return 0;
}

static void describe_needs(const struct mfl_cuda_model *model, struct mfl_plan_need *needs)
{
        for (int i = 0; i < model->graph->n_layers; i++) {
                const struct mfl_layer *layer = &model->graph->layers[i];
                enum mfl_op op = layer->op;
                const struct mfl_cuda_layer *own = &model->layers[i];
                bool act = mfl_cuda_act_of(op) != MFL_CUDA_ACT_NONE;
                bool applies = own->act != MFL_CUDA_ACT_NONE && !mfl_cuda_is_conv(layer);
                needs[i] = (struct mfl_plan_need){
                        .act_bytes = count_of(&own->x) * (uint64_t)mfl_cuda_type_bytes(own->x.type),
                        .aux_bytes =
                                model->options.training || traits[op] & KEEPS_ALWAYS ? aux_of(model, i) : 0,
                        .alias = own->alias,
                        .uses_input = traits[op] & READS_INPUT || mfl_cuda_is_curve(op) ||
                                      own->in_act != MFL_CUDA_ACT_NONE,
                        .uses_input2 = traits[op] & READS_INPUT2,
                        .uses_output = (act && !own->folded) || applies || traits[op] & READS_OUTPUT};
        }
}

static int describe_layers(struct mfl_cuda_model *model, struct mfl_error *err)
{
        int rc = 0;
        for (int i = 0; !rc && i < model->graph->n_layers; i++) {
                if (!traits[model->graph->layers[i].op])
                        return refuse(&model->graph->layers[i], "does not support this operator", err);
                rc = shape_layer(model, i, err);
        }
        if (rc)
                return rc;
        while (pass_orders(model)) {
        }
        for (int i = 1; i < model->graph->n_layers; i++)
                if (mfl_cuda_has_plans(&model->graph->layers[i]))
                        describe_conv(model, i);
        return check_orders(model, err);
}

bool mfl_cuda_conv_gives(const struct mfl_cuda_model *model, int i, enum mfl_cuda_pass pass)
{
        const struct mfl_layer *layer = &model->graph->layers[i];
        if (!model->options.training)
                return false;
        return pass == MFL_CUDA_BACKWARD_DATA ? model->plan->layers[layer->input].wants_grad
                                              : model->graph->params[layer->param_weight].trained;
}

/* Upper bounds of the workspaces: of operators on the stream, and of those on the side. */
static void bound_workspaces(struct mfl_cuda_model *model)
{
        uint64_t *most = model->workspace_bytes;
        for (int i = 1; i < model->graph->n_layers; i++) {
                const struct mfl_cuda_layer *own = &model->layers[i];
                struct mfl_cuda_conv_use use = {.pass = MFL_CUDA_FORWARD,
                        .bias = model->graph->layers[i].bias,
                        .act = own->act,
                        .fast = model->options.fast};
                if (!own->live || !mfl_cuda_has_plans(&model->graph->layers[i]))
                        continue;
                most[0] = MFL_MAX(most[0], mfl_cuda_conv_plan_workspace_max(&own->conv, &use));
                use.pass = MFL_CUDA_BACKWARD_WEIGHTS;
                use.act = MFL_CUDA_ACT_NONE;
                bool weights = mfl_cuda_conv_gives(model, i, MFL_CUDA_BACKWARD_WEIGHTS);
                if (weights)
                        most[1] = MFL_MAX(most[1], mfl_cuda_conv_plan_workspace_max(&own->conv, &use));
                if (weights && own->conv2.groups)
                        most[1] = MFL_MAX(most[1], mfl_cuda_conv_plan_workspace_max(&own->conv2, &use));
                if (!mfl_cuda_conv_gives(model, i, MFL_CUDA_BACKWARD_DATA))
                        continue;
                use = (struct mfl_cuda_conv_use){.pass = MFL_CUDA_BACKWARD_DATA,
                        .act = own->in_act,
                        .add = own->add,
                        .fast = model->options.fast};
                most[0] = MFL_MAX(most[0], mfl_cuda_conv_plan_workspace_max(&own->conv, &use));
        }
}

static int check_options(
        const struct mfl_graph *graph, const struct mfl_net_options *options, struct mfl_error *err)
{
        if (options->batch < 1 || options->groups < 1 || options->threads < 1)
                return mfl_fail(err, MFL_INVALID, "batch %d, groups %d, threads %d: each must be at least 1",
                        options->batch, options->groups, options->threads);
        if (options->groups > GROUPS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "the cuda backend trains at most %d clients at once, not %d", GROUPS_MAX,
                        options->groups);
        if (options->accumulate < 0 || options->accumulate > ACCUMULATE_MAX)
                return mfl_fail(err, MFL_INVALID, "%d batches per step: must be 0 to %d", options->accumulate,
                        ACCUMULATE_MAX);
        if (options->precision < 0 || options->precision >= MFL_PRECISION_COUNT_)
                return mfl_fail(err, MFL_INVALID, "the cuda backend does not support precision %d",
                        (int)options->precision);
        if (options->segments < MFL_SEGMENTS_AUTO || options->segments > MFL_SEGMENTS_MAX)
                return mfl_fail(err, MFL_INVALID, "%d segments: must be 0 to %d", options->segments,
                        MFL_SEGMENTS_MAX);
        if (options->tally == MFL_TALLY_TARGETS)
                return mfl_fail(err, MFL_INVALID,
                        "evaluation.detailed of target values is not supported on the cuda backend yet: use "
                        "training.backend: cpu, or remove it");
        if (options->augment.crop < 0 || options->augment.crop > CROP_MAX)
                return mfl_fail(
                        err, MFL_INVALID, "crop %d: must be 0 to %d", options->augment.crop, CROP_MAX);
        if ((options->augment.crop || options->augment.flip) && graph->input.rank != 3)
                return mfl_fail(err, MFL_INVALID, "model %s: only images can be augmented", graph->name);
        return 0;
}

int mfl_cuda_model_init(struct mfl_cuda_model *model, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_error *err)
{
        size_t n_layers = (size_t)graph->n_layers;
        *model = (struct mfl_cuda_model){
                .flat = graph, .options = *options, .type = mfl_cuda_type_of(options->precision)};
        model->accumulate = (uint32_t)MFL_MAX(options->accumulate, 1);
        bool labels = mfl_loss_answers(options->loss.kind) == MFL_ANSWERS_LABELS;
        model->answers = labels ? graph->positions / (1 + options->loss.n_auxiliary) : graph->classes;
        model->answers = MFL_MAX(model->answers, 1);
        int rc = check_options(graph, options, err);
        if (!rc)
                rc = mfl_cuda_model_untie(model, err);
        if (rc)
                return rc;
        graph = model->graph;
        MFL_CLEANUP_FREE struct mfl_plan_need *needs = mfl_calloc(n_layers, sizeof *needs);
        model->layers = mfl_calloc(n_layers, sizeof *model->layers);
        model->at = mfl_calloc((size_t)graph->n_params, sizeof *model->at);
        if (!needs || !model->layers || !model->at)
                rc = mfl_fail_memory(err, n_layers * sizeof *model->layers, "network");
        if (!rc)
                rc = describe_layers(model, err);
        if (!rc)
                rc = mfl_cuda_model_maps(model, err);
        if (!rc)
                rc = mfl_cuda_model_fuse(model, err);
        if (!rc) {
                describe_needs(model, needs);
                rc = mfl_plan_new(graph, options, needs, &model->plan, err);
        }
        if (!rc)
                rc = mfl_cuda_model_place_params(model, err);
        if (!rc)
                rc = mfl_cuda_model_place_ties(model, err);
        if (rc) {
                mfl_cuda_model_deinit(model);
                return rc;
        }
        bound_workspaces(model);
        mfl_cuda_model_sizes(model);
        return 0;
}

void mfl_cuda_model_deinit(struct mfl_cuda_model *model)
{
        for (int i = 0; model->layers && i < model->graph->n_layers; i++) {
                mfl_cuda_conv_plan_free(model->layers[i].forward);
                mfl_cuda_conv_plan_free(model->layers[i].data);
                mfl_cuda_conv_plan_free(model->layers[i].weights);
                mfl_cuda_conv_plan_free(model->layers[i].weights2);
        }
        mfl_plan_free(model->plan);
        mfl_maps_free(model->graph, model->maps);
        free(model->layers);
        free(model->at);
        free(model->ties);
        free(model->tie_tables);
        free(model->shared);
        free(model->first);
        mfl_graph_free(model->apart);
        *model = (struct mfl_cuda_model){0};
}

void mfl_cuda_net_plan(const struct mfl_net *net, struct mfl_net_plan *ret_plan)
{
        *ret_plan = (struct mfl_net_plan){
                .tensor_bytes = net->model.plan->arena_bytes, .segments = net->model.plan->n_segments};
}

uint64_t mfl_cuda_net_bytes(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        struct mfl_cuda_model model;
        if (mfl_cuda_model_init(&model, graph, options, NULL))
                return 0; /* net_new reports the error */
        uint64_t bytes = model.bytes;
        mfl_cuda_model_deinit(&model);
        return bytes;
}
