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

#include "common/base.h"

#define MFL_SHAPE_RANK_MAX 4
#define MFL_LAYERS_MAX 1024
#define MFL_NAME_BYTES 64
#define MFL_PARAMS_MAX ((uint64_t)1 << 34) /* elements */
#define MFL_GRAPH_ALPHA_MAX 1000           /* of leaky_relu and elu */

struct mfl_shape {
        int rank;
        int64_t dim[MFL_SHAPE_RANK_MAX];
};
int64_t mfl_shape_count(const struct mfl_shape *shape); /* product of dims; 1 for rank 0 */
bool mfl_shape_equal(const struct mfl_shape *a, const struct mfl_shape *b);
/* "1x28x28"; buf of at least 96 bytes; returns buf. */
const char *mfl_shape_text(const struct mfl_shape *shape, char *buf, size_t buf_bytes);

enum mfl_op {
        MFL_OP_INPUT,     /* layer 0, and only it */
        MFL_OP_CONV2D,    /* y[o,h,w] = b[o] + sum x[i, h*s-p+r*d, w*s-p+c*d] * W[o,i,r,c] */
        MFL_OP_DENSE,     /* y = W x + b; a {C,H,W} input is taken as flattened; {T,F} -> {T,units}, each
                             position by itself */
        MFL_OP_RELU,      /* max(x, 0) */
        MFL_OP_TANH,      /* tanh(x) */
        MFL_OP_SIGMOID,   /* 1 / (1 + exp(-x)) */
        MFL_OP_MAXPOOL2D, /* largest of the window; padding never wins; first index wins a tie */
        MFL_OP_AVGPOOL2D, /* mean of the window; padding counts as zeros (count_include_pad) */
        MFL_OP_DROPOUT,   /* training: x * keep / (1 - rate), keep from the counter stream; else x */
        MFL_OP_FLATTEN,   /* {C,H,W} -> {C*H*W} */
        MFL_OP_ADD,       /* x + x2: the join of a residual block (He et al. 2016). Each dimension of x2 is
                             x's, or 1: then it is repeated */
        MFL_OP_GLOBAL_AVGPOOL2D, /* {C,H,W} -> {C,1,1}: the mean of each channel */
        /* Ioffe and Szegedy 2015: y = weight * (x - mean) / sqrt(var + eps) + bias, per channel (feature of a
         * vector). Training: mean and biased variance of the batch's rows (those of a short batch only), and
         * running <- (1 - momentum) * running + momentum * (mean, unbiased variance; biased where there is a
         * single value). Inference: the running ones. As PyTorch's BatchNorm; the running statistics are
         * params that are not trained. */
        MFL_OP_BATCHNORM,
        MFL_OP_GROUPNORM, /* Wu and He 2018: each sample's channels in norm_groups groups, mean and biased
                             variance over a group; weight and bias per channel */
        MFL_OP_CONVTRANSPOSE2D,  /* the gradient of a convolution by its input, as a layer: y[o, h*s-p+r*d,
                                    w*s-p+c*d] += x[i,h,w] * W[i,o,r,c], then b[o] */
        MFL_OP_GLOBAL_MAXPOOL2D, /* {C,H,W} -> {C,1,1}; first index wins a tie */
        MFL_OP_RELU6,            /* min(max(x, 0), 6) (Howard et al. 2017) */
        MFL_OP_GELU,             /* x * Phi(x) (Hendrycks and Gimpel 2016): Phi by erf; with `approximate`
                                    0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
        MFL_OP_SILU,             /* x / (1 + exp(-x)) */
        MFL_OP_MULTIPLY,         /* x * x2, shapes as add's */
        MFL_OP_CONCAT,           /* x, then x2 along axis; the other dimensions equal */
        MFL_OP_RESHAPE,          /* the same numbers in the shape `shape`, of equal count */
        MFL_OP_TRANSPOSE,        /* output dimension i is input dimension order[i] */
        MFL_OP_SLICE,            /* [start, end) of axis */
        MFL_OP_MEAN,             /* the mean along axis, which goes: {T,F} -> {F} for axis 0 */
        MFL_OP_WEIGHT,    /* a tensor of params of the shape `shape`, the same for all samples: position
                             embeddings, class tokens, scales. Reads nothing */
        MFL_OP_EMBEDDING, /* tokens {T} -> {T,features}: row x[t] of the weights [vocabulary][features];
                             a number outside takes the nearest inside. Reads the input only */
        /* Ba et al. 2016: over the last dimension of {F} or {T,F}: (x - mean) / sqrt(var + eps) * weight +
         * bias, var biased; bias only where `bias` is set. */
        MFL_OP_LAYERNORM,
        MFL_OP_RMSNORM, /* Zhang and Sennrich 2019: x / sqrt(mean(x^2) + eps) * weight, over the last
                         * dimension
                         */
        MFL_OP_SOFTMAX, /* over the last dimension */
        MFL_OP_MATMUL,  /* {..,M,K} x {..,K,N} -> {..,M,N}, rank 2 or 3 with equal leading dimensions; with
                           `transposed`, x2 is {..,N,K} */
        /* Vaswani et al. 2017, section 3.2. {T, 3D} -> {T, D}: columns [0,D) are queries, [D,2D) keys,
         * [2D,3D) values, as PyTorch's packed in_proj; head h has columns [h D/heads, (h+1) D/heads) of each.
         * y = dropout(softmax(q k^T / sqrt(D/heads))) v; `causal`: position i sees j <= i. Dropout of weight
         * (i, j) of head h of row r is element ((r heads + h) T + i) T + j of the layer's mask. */
        MFL_OP_ATTENTION,
        /* {T,F} -> {T,H}, from zero state; params and equations of torch.nn.LSTM and GRU of one layer and one
         * direction: weight_ih [4H][F] (gates i, f, g, o; GRU 3H: r, z, n), weight_hh, bias_ih, bias_hh. */
        MFL_OP_LSTM,
        MFL_OP_GRU,
        MFL_OP_LEAKY_RELU,  /* x > 0 ? x : alpha x (Maas et al. 2013) */
        MFL_OP_ELU,         /* x > 0 ? x : alpha (exp(x) - 1) (Clevert et al. 2016) */
        MFL_OP_HARDSIGMOID, /* min(max(x + 3, 0), 6) / 6 (Howard et al. 2019, MobileNetV3) */
        MFL_OP_HARDSWISH,   /* x * min(max(x + 3, 0), 6) / 6 (the same) */
        MFL_OP_SOFTPLUS,    /* log(1 + exp(x)) */
        MFL_OP_COUNT_
};
const char *mfl_op_name(enum mfl_op op); /* as in job files: "conv2d", "dense", ... */
int mfl_op_inputs(enum mfl_op op);       /* how many layers it reads: 0, 1 or 2 */

enum mfl_init {
        MFL_INIT_HE,     /* weights uniform in +-sqrt(6 / fan_in) (He et al. 2015, eq. 10), biases 0 */
        MFL_INIT_GLOROT, /* uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, eq. 16), biases
                            0 */
        MFL_INIT_TORCH, /* PyTorch's default: weights and biases uniform in +-1/sqrt(fan_in) (of lstm and gru:
                           +-1/sqrt(H)); embeddings and weight tensors uniform with standard deviation 1 */
        MFL_INIT_ZERO,
        MFL_INIT_GPT2, /* weights uniform with standard deviation 0.02 (Radford et al. 2019), biases 0 */
};

struct mfl_layer {
        enum mfl_op op;
        char name[MFL_NAME_BYTES];
        int input;  /* index of the layer it reads; -1 for MFL_OP_INPUT and MFL_OP_WEIGHT */
        int input2; /* add, multiply, concat, matmul: the second; -1 elsewhere (0 in a description is taken
                       as -1 there) */
        int out_channels; /* conv2d: filters; dense: outputs; embedding: features; lstm, gru: hidden units */
        int kernel[2], stride[2], padding[2], dilation[2]; /* h, w; conv and pools */
        bool ceil_mode;        /* maxpool2d: a last window that starts inside may reach beyond the image */
        int output_padding[2]; /* convtranspose2d: rows and columns added at the end */
        int conv_groups;       /* conv2d, convtranspose2d: divides both numbers of channels; 0: 1. Of as many
                                  as input channels, a depthwise convolution */
        bool bias;             /* conv2d, dense, layernorm, lstm, gru */
        float rate;            /* dropout; attention: of its weights */
        int norm_groups;       /* groupnorm: divides the channels */
        float eps, momentum;   /* norms; 0: 1e-5 and 0.1 */
        int axis;              /* concat, slice, mean: a dimension of the sample */
        int start, end;        /* slice; end 0: to the end */
        int order[MFL_SHAPE_RANK_MAX]; /* transpose */
        struct mfl_shape shape;        /* reshape, weight: the output's */
        int vocabulary;                /* embedding */
        int heads;                     /* attention: divides D */
        bool causal;                   /* attention */
        bool transposed;               /* matmul */
        bool approximate;              /* gelu */
        float alpha; /* leaky_relu: negative_slope; elu; above 0, at most 1000; 0: 0.01 and 1 */
        bool frozen; /* its params are not trained */
        /* dense: Hu et al. 2021. rank > 0: y = W x + b + alpha / rank * B (A x), and only A and B are
         * trained; A starts as MFL_INIT_TORCH, B at 0. alpha 0: rank. */
        int lora_rank;
        float lora_alpha;
        enum mfl_init init;
        struct mfl_shape out;           /* inferred */
        int param_weight, param_bias;   /* index into params, -1 for none; inferred */
        int param_weight2, param_bias2; /* lstm, gru: weight_hh, bias_hh; dense with LoRA: A, B; inferred */
        int param_mean, param_var;      /* batchnorm: the running statistics; -1 elsewhere; inferred */
};

/* One parameter tensor: `count` floats at `offset` of the flat vector. Names are those of a PyTorch
 * state_dict: weight, bias, running_mean, running_var of each layer.
 *
 * What no training changes comes first in the flat vector, so that the rest, which is all that travels in a
 * round, is one range at its end: [n_frozen, n). Within each of the two parts tensors lie in the order of
 * layers, that of a state_dict. A model of which everything moves is in this order as a whole. */
struct mfl_param {
        char name[MFL_NAME_BYTES + 16]; /* "conv1.weight", "bn1.running_mean" */
        struct mfl_shape shape;
        uint64_t offset, count;
        int number;     /* in the order of layers; of its stream of first values */
        uint64_t place; /* its offset if all lay in the order of layers: in files of floats */
        int layer;
        int64_t fan_in, fan_out; /* of the layer's weights; 1 for norms */
        bool is_bias;
        bool trained; /* false: running statistics, and what is frozen. They have no gradient, and optimizers,
                         weight decay, the proximal term and server optimizers leave them alone: their deltas
                         are averaged */
        bool moves; /* it is trained, or running statistics, which training changes also in a frozen layer */
};

struct mfl_graph {
        char name[MFL_NAME_BYTES];
        int n_layers, n_params; /* n_params: tensors */
        struct mfl_layer *layers;
        struct mfl_param *params;
        uint64_t n;        /* floats in the flat vector */
        uint64_t n_frozen; /* of them those that no training changes, which come first */
        uint64_t n_moving; /* the others; n_frozen + n_moving = n */
        int i_moving;      /* the first tensor that moves; n_params: none does */
        struct mfl_shape input;
        int classes;
        int positions;  /* predictions of a sample: T of a last layer {T, classes}, else 1 */
        int vocabulary; /* the input is tokens below this; 0: it is not tokens */
};

/* Builds a graph from layer descriptions (inferred fields ignored; layers[0] is MFL_OP_INPUT, its `out` the
 * input shape; zero stride or dilation means 1, empty names are generated, "conv1"), inferring every shape.
 * Limits: MFL_LAYERS_MAX layers, MFL_PARAMS_MAX parameters, kernel and sizes at most 65536. The last layer's
 * output must be {classes} or {T, classes}; classes = 0 lifts this, for conformance tests of single
 * operators. Each layer but the last is read by at least one other; two inputs of a layer are different
 * layers. The caller keeps `layers`. */
int mfl_graph_build(const char *name, const struct mfl_layer *layers, int n_layers, int classes,
        struct mfl_graph **ret_graph, struct mfl_error *err);
void mfl_graph_free(struct mfl_graph *graph);
/* All params in the order of layers, and all of them taken as moving, as version 1 of the protocol
 * knows them: for who speaks it, and for jobs that were begun so. -ENOMEM; then nothing has changed. */
int mfl_graph_by_layers(struct mfl_graph *graph, struct mfl_error *err);
/* Whether the layers make a graph, and if not (MFL_INVALID), at which of them it fails: 0 where it is none in
 * particular. *ret_layer is set in this case only. */
int mfl_graph_check(
        const struct mfl_layer *layers, int n_layers, int classes, int *ret_layer, struct mfl_error *err);

/* A named preset for that input and number of classes: those of mfl_presets. Those of text take samples {T}
 * of tokens, and the number of classes is the vocabulary too.
 * Weights start as MFL_INIT_TORCH says, those of lenet5 as MFL_INIT_GLOROT, those of residual networks and
 * mobilenet-v2 as MFL_INIT_HE, those of transformers as MFL_INIT_GPT2. The weights of norms start at 1, their
 * biases at 0, always. MFL_NOT_FOUND for another name (the text lists them), MFL_INVALID when the shape does
 * not fit. */
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
