/* SPDX-License-Identifier: Apache-2.0 */
/* The model: a static graph of standard operators with inferred shapes, and the table of its parameters over
 * one flat vector of floats.
 *
 * Shapes are per sample, without the batch: {C, H, W} for images, {F} for vectors, {T, F} for sequences of T
 * positions, {T} for sequences of tokens (whole numbers, held as floats). Activations are row-major in this
 * order (NCHW), convolution weights OIHW, dense weights [out][in], as in PyTorch, so that parameters exchange
 * without permutation. Layer i may read layer j < i only. The last layer gives the logits: {classes}, or
 * {T, classes}, one prediction for each position.
 *
 * Ownership: a graph is one heap object, freed with mfl_graph_free. Immutable once built, so any thread may
 * read it. Errors: MFL_INVALID with the layer's name and what would be right; -ENOMEM.
 */
#ifndef MFL_COMMON_MODEL_GRAPH_H
#define MFL_COMMON_MODEL_GRAPH_H

#include "common/base/base.h"
#include "common/base/fixed.h"
#include "common/base/rng.h"
#include "common/model/graph_map.h"

#define MFL_SHAPE_RANK_MAX 4
#define MFL_LAYERS_MAX 4096
#define MFL_LAYERS_OLD 1024 /* before protocol 5 */
#define MFL_WIDTH_MAX                                                                                        \
        (1 << 20) /* features, channels, classes, targets, tokens of a vocabulary, sizes of the input */
#define MFL_WIDTH_OLD 65536 /* before protocol 8 */
#define MFL_NAME_BYTES 64
#define MFL_LAYER_NAME_BYTES 192 /* PyTorch's names of modules, which are paths */
#define MFL_LAYER_NAME_OLD 63    /* bytes of a name before protocol 8 */
#define MFL_TENSOR_NAME_BYTES                                                                                \
        (MFL_LAYER_NAME_BYTES + 16)        /* a layer's name and its tensor's: ".weight_ih_l0" */
#define MFL_TAGS_BYTES 256                 /* a daemon's tags: "gpu=h100,region=eu" */
#define MFL_PARAMS_MAX ((uint64_t)1 << 34) /* elements */
#define MFL_GRAPH_ALPHA_MAX 1000           /* of slopes and the like of functions of one variable */

struct mfl_shape {
        int rank;
        int64_t dim[MFL_SHAPE_RANK_MAX];
};
int64_t mfl_shape_count(const struct mfl_shape *shape); /* product of dims; 1 for rank 0 */
bool mfl_shape_equal(const struct mfl_shape *a, const struct mfl_shape *b);
/* "1x28x28"; buf of at least 96 bytes; returns buf. */
const char *mfl_shape_text(const struct mfl_shape *shape, char *buf, size_t buf_bytes);

/* op.def says what each of them does; the functions of one variable are in unary.def. */
enum mfl_op {
        MFL_OP_INPUT, /* layer 0, and only it */
#define OP(symbol, ...) MFL_OP_##symbol,
#include "common/model/op.def"
        MFL_OP_COUNT_
};

/* What the backward of an operator reads; bits of mfl_op_info.reads. */
enum mfl_reads {
        MFL_READS_NOTHING = 0,
        MFL_READS_INPUT = 1,
        MFL_READS_OUTPUT = 2,
        MFL_READS_INPUT_AND_OUTPUT = 3,
        MFL_READS_INPUT2 = 4,
        MFL_READS_BOTH_INPUTS = 5,
};
struct mfl_op_info {
        const char *name; /* as in job files: "conv2d", "dense", ... */
        const char *stem; /* the start of the generated name of a layer without a name */
        int n_inputs;     /* how many layers it reads: 0, 1 or 2 */
        unsigned reads;   /* written as plain loops; enum mfl_reads */
        uint32_t since;   /* the first version of the protocol whose daemons know it */
        bool unary;       /* a function of one variable (unary.h) */
};
const struct mfl_op_info *mfl_op_info(enum mfl_op op);
const char *mfl_op_name(enum mfl_op op); /* "?" for a number that is no operator */
int mfl_op_inputs(enum mfl_op op);
/* What a recurrent layer computes at each position, and how many gates it has. */
enum mfl_cell {
        MFL_CELL_LSTM,
        MFL_CELL_GRU,
        MFL_CELL_TANH, /* rnn */
        MFL_CELL_RELU, /* rnn with `relu` */
};
static inline MFL_HD int mfl_cell_gates(enum mfl_cell cell)
{
        return cell == MFL_CELL_LSTM ? 4 : cell == MFL_CELL_GRU ? 3 : 1;
}
bool mfl_op_is_recurrent(enum mfl_op op); /* lstm, gru, rnn */
struct mfl_layer;
enum mfl_cell mfl_cell_of(const struct mfl_layer *layer); /* of a recurrent layer */
/* The layer's word in job files: mfl_op_name, or the kind of a map. */
const char *mfl_layer_kind(const struct mfl_layer *layer);
/* Whether the layer had no name, so that its name is its kind and a number: no module of PyTorch's has it. */
bool mfl_layer_is_unnamed(const struct mfl_layer *layer);

#define MFL_MASKED (-1e9f)

enum mfl_init {
        MFL_INIT_HE,     /* weights uniform in +-sqrt(6 / fan_in) (He et al. 2015, eq. 10), biases 0 */
        MFL_INIT_GLOROT, /* uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, eq. 16), biases
                            0 */
        MFL_INIT_TORCH, /* PyTorch's default: weights and biases uniform in +-1/sqrt(fan_in) (of lstm, gru, rnn:
                           +-1/sqrt(H)); embeddings and weight tensors uniform with standard deviation 1 */
        MFL_INIT_ZERO,
        MFL_INIT_GPT2, /* weights uniform with standard deviation 0.02 (Radford et al. 2019), biases 0 */
};

/* Which tensors a layer has in common with the earlier layer `shares`: one tensor in the flat vector, whose gradient is
 * the sum over all layers that use it. */
enum mfl_sharing {
        MFL_SHARES_ALL, /* the same operator again: each tensor of the layer is the other's, adapters too */
        MFL_SHARES_WEIGHT, /* `weight` only; its bias is its own. Shapes are equal, of `weight` the numbers of
                                  elements; operators may differ: conv2d, convtranspose2d, dense, embedding, weight,
                                  norms */
        MFL_SHARES_TRANSPOSED, /* dense only: its weight [out][in] is the other's [in][out] transposed: dense,
                                  embedding, weight */
};

struct mfl_layer {
        enum mfl_op op;
        char name[MFL_LAYER_NAME_BYTES];
        int input;  /* index of the layer it reads; -1 for MFL_OP_INPUT and MFL_OP_WEIGHT */
        int input2; /* add, multiply, concat, matmul: the second input; attention: the mask or -1; otherwise -1 (0 in a description means -1
                       there) */
        int out_channels; /* conv2d: filters; dense: outputs; embedding: features; lstm, gru, rnn: hidden units */
        int kernel[2], stride[2], padding[2], dilation[2]; /* h, w; conv and pools */
        bool ceil_mode;        /* maxpool2d: a last window that starts inside may reach beyond the image */
        int output_padding[2]; /* convtranspose2d: rows and columns added at the end */
        int conv_groups; /* conv2d, convtranspose2d: divides both numbers of channels; 0: 1. Equal to the input
                                  channels: a depthwise convolution */
        bool bias;       /* conv2d, dense, layernorm, lstm, gru, rnn */
        float rate;      /* dropout; attention: of its weights */
        int norm_groups;               /* groupnorm: divides the channels */
        float eps, momentum;           /* norms; 0: 1e-5 and 0.1 */
        int axis;                      /* concat, slice, mean: a dimension of the sample */
        int start, end;                /* slice; end 0: to the end */
        int order[MFL_SHAPE_RANK_MAX]; /* transpose */
        struct mfl_shape shape;        /* reshape, weight, map (view, gather): the output's */
        struct mfl_map_spec map;       /* map; an avgpool2d has its window above */
        int vocabulary;                /* embedding */
        bool has_padding;              /* embedding */
        int padding_idx;               /* embedding with has_padding; padding_mask */
        int heads;                     /* attention: divides D */
        bool causal;                   /* attention */
        bool transposed;               /* matmul */
        bool approximate;              /* gelu */
        bool relu;                     /* rnn: max(., 0) in place of tanh */
        bool last_cell; /* lstm: the last position is not read; the output there is the cell state after the one before */
        float alpha, beta; /* functions of one variable: their parameters (unary.def) */
        bool frozen;       /* its params are not trained; all layers that use a tensor agree */
        int shares;        /* index of an earlier layer whose tensors it uses; 0: none */
        enum mfl_sharing sharing;
        /* dense: Hu et al. 2021. rank > 0: y = W x + b + alpha / rank * B (A x), and only A and B are
         * trained; A starts as MFL_INIT_TORCH, B at 0. alpha 0: rank. */
        int lora_rank;
        float lora_alpha;
        enum mfl_init init;
        struct mfl_shape out;         /* inferred */
        int param_weight, param_bias; /* index into params, -1 for none; inferred */
        int param_weight2,
                param_bias2;       /* lstm, gru, rnn: weight_hh, bias_hh; dense with LoRA: A, B; inferred */
        int param_mean, param_var; /* batchnorm: the running statistics; -1 elsewhere; inferred */
        bool turned;               /* dense: the tensor of its weight is [in][out]; inferred */
};

/* One parameter tensor: `count` floats at `offset` of the flat vector. Names are those of a PyTorch
 * state_dict: weight, bias, running_mean, running_var of each layer. A batchnorm "n.statistics", whose scale and shift are the layers
 * n.weight and n.bias, has n.running_mean and n.running_var.
 *
 * Tensors that no training changes come first in the flat vector, so that the rest, the only part that is sent in a
 * round, is one range at its end: [n_frozen, n). Within each of the two parts the tensors are in the order of layers,
 * as in a state_dict. If all params move, the whole vector is in this order. */
struct mfl_param {
        char name[MFL_TENSOR_NAME_BYTES]; /* "conv1.weight", "bn1.running_mean" */
        struct mfl_shape shape;
        uint64_t offset, count;
        int number;              /* in the order of layers; names the stream of its first values */
        uint64_t place;          /* its offset in the order of layers of all tensors: for files of floats */
        int layer;               /* the first that uses it: its name, first values and fans are of this one */
        int last_layer, n_uses;  /* the last that uses it; by how many layers it is used */
        int64_t fan_in, fan_out; /* of the layer's weights; 1 for norms */
        bool is_bias;
        bool trained; /* false: running statistics, and what is frozen. They have no gradient, and optimizers,
                         weight decay, the proximal term and server optimizers leave them alone: their deltas
                         are averaged */
        bool moves; /* the tensor is trained, or has running statistics, which training changes even in a frozen layer */
        bool personal; /* stays with each client; set by mfl_job_graph */
};

/* Which tensors a phase of a client's local training moves: all, those that are personal, or the others. */
enum mfl_moves {
        MFL_MOVES_ALL,
        MFL_MOVES_PERSONAL,
        MFL_MOVES_OTHERS,
};

static inline bool mfl_param_stays(const struct mfl_param *param, enum mfl_moves moves)
{
        return moves != MFL_MOVES_ALL && param->personal != (moves == MFL_MOVES_PERSONAL);
}

/* The name that a shared tensor would have as a later layer's own. Files may have either name. */
struct mfl_alias {
        char name[MFL_TENSOR_NAME_BYTES]; /* "lm_head.weight" */
        int param, layer;
        bool written; /* exported files have it too, as a PyTorch state_dict has: of MFL_SHARES_WEIGHT in a
                         layer whose name is not generated */
};

static inline bool mfl_param_is_statistics(const struct mfl_param *param)
{
        return param->moves && !param->trained;
}

struct mfl_graph {
        char name[MFL_NAME_BYTES];
        int n_layers, n_params; /* n_params: tensors */
        struct mfl_layer *layers;
        struct mfl_param *params;
        struct mfl_alias *aliases;
        int n_aliases;
        uint64_t n;                        /* floats in the flat vector */
        uint64_t n_frozen;                 /* of them, the number that no training changes; they come first */
        uint64_t n_moving;                 /* the others; n_frozen + n_moving = n */
        int i_moving;                      /* the first tensor that moves; n_params: none does */
        uint64_t *edges;                   /* of statistics */
        struct mfl_fixed_parts statistics; /* running statistics among the n_moving floats */
        uint64_t *personal_edges;
        struct mfl_fixed_parts
                personal; /* what stays with each client, among them too; set by mfl_job_graph */
        struct mfl_shape input;
        int classes;
        int positions;  /* predictions per sample: T if the last layer is {T, classes}, otherwise 1 */
        int vocabulary; /* the input consists of tokens below this; 0: no tokens */
};

/* Builds a graph from layer descriptions (inferred fields ignored; layers[0] is MFL_OP_INPUT, its `out` the
 * input shape; zero stride or dilation means 1, empty names are generated, "conv1"), inferring every shape.
 * Limits: MFL_LAYERS_MAX layers, MFL_PARAMS_MAX parameters, widths of at most MFL_WIDTH_MAX, kernels and other
 * sizes of at most 65536. The last layer's
 * output must be {classes} or {T, classes}, or an image {classes, H, W} of logits for each pixel, which the graph turns
 * into {H * W, classes} by a reshape and a transposition at its end; classes = 0 lifts this, for conformance tests of single
 * operators. Each layer but the last is read by at least one other; two inputs of a layer are different
 * layers. The caller keeps `layers`. */
int mfl_graph_build(const char *name, const struct mfl_layer *layers, int n_layers, int classes,
        struct mfl_graph **ret_graph, struct mfl_error *err);
void mfl_graph_free(struct mfl_graph *graph);
/* A graph without layers, whose params are n tensors in their order: of a model that only a program knows. All of them are trained,
 * except those whose names end in running_mean or running_var, as PyTorch calls running statistics. Its input is {1}, and it has
 * one class. names: n texts of less than MFL_TENSOR_NAME_BYTES bytes. MFL_INVALID: too many params, or two tensors with one name. */
int mfl_graph_of_tensors(const char *name, const char *const *names, const struct mfl_shape *shapes, int n,
        struct mfl_graph **ret_graph, struct mfl_error *err);
/* The same layers without shared tensors: each layer has its own. *ret_param (freed by the caller) has the tensor of
 * `graph` for each tensor of the new graph. -ENOMEM, MFL_INVALID (more than MFL_PARAMS_MAX). */
int mfl_graph_untie(
        const struct mfl_graph *graph, struct mfl_graph **ret_graph, int **ret_param, struct mfl_error *err);
/* Whether several layers use one tensor, at least once. */
bool mfl_graph_is_tied(const struct mfl_graph *graph);
/* The tensor of that name or alias; -1: none. */
int mfl_graph_find_param(const struct mfl_graph *graph, const char *name);
/* Features that dense layer i reads: columns of its weight. */
int64_t mfl_graph_features(const struct mfl_graph *graph, int i);
/* Puts all params in the order of layers, and treats all as moving, as version 1 of the protocol does: for its peers,
 * and for jobs that began with it. -ENOMEM; then nothing has changed. */
int mfl_graph_by_layers(struct mfl_graph *graph, struct mfl_error *err);
/* Whether the layers form a graph. If not (MFL_INVALID), *ret_layer is the layer that fails, or 0 for none in
 * particular; it is set only then. */
int mfl_graph_check(
        const struct mfl_layer *layers, int n_layers, int classes, int *ret_layer, struct mfl_error *err);

/* The named preset of mfl_presets for that input and number of classes. Presets for text take samples {T} of tokens;
 * their number of classes is also the vocabulary. Weights start as MFL_INIT_TORCH says, those of lenet5 as
 * MFL_INIT_GLOROT, those of residual networks and mobilenet-v2 as MFL_INIT_HE, those of transformers as
 * MFL_INIT_GPT2. The weights of norms start at 1, their biases at 0, always. MFL_NOT_FOUND for another name (the text
 * lists them), MFL_INVALID when the shape does not fit. */
int mfl_graph_preset(const char *preset, const struct mfl_shape *input, int classes,
        struct mfl_graph **ret_graph, struct mfl_error *err);
/* NULL-terminated list of {name, one-line description}. */
struct mfl_preset_info {
        const char *name, *summary;
};
extern const struct mfl_preset_info mfl_presets[];

/* Fills params[graph->n] from the seed: the same bits on every machine (uniform numbers and correctly rounded
 * operations only). Tensor t uses stream (seed, MFL_RNG_INIT, its number, 0). */
void mfl_graph_init_params(const struct mfl_graph *graph, uint64_t seed, float *params);
/* The same with the two parts of the vector in different places: n_frozen and n_moving floats. */
void mfl_graph_init_parts(const struct mfl_graph *graph, uint64_t seed, float *frozen, float *moving);

/* Floating-point operations of one sample: forward, and forward + backward (multiply and add count as two; a
 * norm is 8 for each element: mean, variance, subtract, scale, shift). */
void mfl_graph_flops(const struct mfl_graph *graph, uint64_t *ret_forward, uint64_t *ret_training);

/* A table for people: layer, output shape, parameters. Caller frees. NULL when out of memory. */
char *mfl_graph_describe(const struct mfl_graph *graph);

#endif
