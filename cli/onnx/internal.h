/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that convert an ONNX graph share; private to cli/onnx.
 *
 * Nodes are taken in order, for one sample (a batch of 1). Each value is a constant, or a view: elements of
 * one native layer's output in some order, under some function of one variable. Reshape, Transpose, Slice,
 * Split and Gather only make other views, by an exact table of indices, so that the many ways in which
 * exporters write the same thing (heads of attention, sequences before batches) come out as the same table.
 * Functions of one variable are followed by their values at sample points, so that every spelling of GELU is
 * the same function. A layer is made when an operator needs one. What can't be said as native layers is
 * refused with the name of the node.
 */
#ifndef MFL_CLI_ONNX_INTERNAL_H
#define MFL_CLI_ONNX_INTERNAL_H

#include "cli/onnx/onnx.h"
#include "onnx.pb-c.h"

#define ONNX_RANK_MAX 8
#define ONNX_SAMPLES 37
#define ONNX_ELEMENTS_MAX ((int64_t)1 << 30)
#define ONNX_TENSORS_PER_LAYER 4

struct onnx_shape {
        int rank;
        int64_t dim[ONNX_RANK_MAX];
};
int64_t onnx_count(const struct onnx_shape *shape);

/* A constant: floats or whole numbers (bool too). */
struct onnx_tensor {
        struct onnx_shape shape;
        int64_t count;
        const float *f;
        const int64_t *i;
        const char *origin; /* the initializer that it was made from; NULL: computed or of a Constant node */
        int moved;          /* 1 + the first node that moved the initializer; 0: it is as it was */
        bool is_bool;
};

/* What a value waits to become. All but NONE have a base view. */
enum onnx_pending {
        ONNX_NONE,
        ONNX_PRODUCT, /* base times a constant matrix: dense, maybe with a bias that follows */
        ONNX_MEAN,    /* over the last dimension; what follows are the steps of a normalisation */
        ONNX_CENTERED,
        ONNX_SQUARED,
        ONNX_VARIANCE,
        ONNX_DEVIATION,
        ONNX_INVERSE, /* 1 / deviation */
        ONNX_NORMED,
        ONNX_SCALED_NORM,
        ONNX_GROUPS, /* group normalisation, in any shape; a scale and a shift may follow */
        ONNX_SCALED_GROUPS,
        ONNX_SCORES,  /* q k^T */
        ONNX_WEIGHTS, /* softmax of it */
        ONNX_UNIFORM, /* random numbers, without a base; for each whether it is kept; and that over the share
                       */
        ONNX_KEPT,
        ONNX_NOISE
};

struct onnx_value {
        struct onnx_shape shape;
        int node; /* that made it; -1: an input or initializer */
        int uses;
        struct onnx_tensor *tensor; /* a constant; what follows is of the others */
        int layer;
        const int32_t *map;              /* element -> element of the layer's output; NULL: the same */
        const struct onnx_value *parent; /* the view that it is the last move of, NULL for none, and that */
        const int32_t *step;             /* move: element -> the parent's element */
        const double *samples;           /* of the function; NULL: the value itself */
        enum onnx_pending pending;
        const struct onnx_value *base, *other; /* other: keys */
        const struct onnx_tensor *weight;
        bool transposed, centered; /* weight is [in][out]; the normalisation takes the mean away */
        int groups;
        float eps, rate;
        double scale; /* of scores */
        bool causal;
        struct onnx_value *made; /* the view that it has become; NULL: not yet */
};

struct onnx_layer {
        struct mfl_layer layer;
        int at;                                                    /* the node after which it stands */
        const struct onnx_tensor *tensors[ONNX_TENSORS_PER_LAYER]; /* in the order of the parameter table */
};

struct onnx_block {
        struct onnx_block *next;
};
struct onnx_entry {
        const char *name;
        struct onnx_value *value;
};

struct onnx {
        const char *path;
        const Onnx__GraphProto *graph;
        int64_t opset;
        const struct mfl_onnx_files *files;
        struct onnx_block *blocks; /* everything made on the way; freed at the end */
        uint64_t budget;
        bool out_of_memory;
        struct onnx_entry *table; /* values by name, open addressing */
        size_t n_table;
        struct onnx_layer *layers;
        int n_layers;
        int node;    /* at work */
        int parents; /* of views that are at work, one within the other */
        bool tokens; /* the input is whole numbers */
        char *notes;
        struct mfl_error *err;
};

/* read.c */
void *onnx_alloc(
        struct onnx *o, size_t n, size_t size); /* NULL: o->err is set, and the code is onnx_memory(o) */
static inline int onnx_memory(const struct onnx *o)
{
        return o->out_of_memory ? -ENOMEM : MFL_INVALID;
}
int onnx_fail(struct onnx *o, const char *fmt, ...) MFL_PRINTF(2, 3); /* with file, node and operator */
void onnx_note(struct onnx *o, const char *fmt, ...) MFL_PRINTF(2, 3);
int onnx_read_tensor(struct onnx *o, const Onnx__TensorProto *proto, struct onnx_tensor **ret_tensor);
struct onnx_value *onnx_find(const struct onnx *o, const char *name);
int onnx_set(struct onnx *o, const char *name, struct onnx_value *value);

const Onnx__NodeProto *onnx_node(const struct onnx *o);
const Onnx__AttributeProto *onnx_attribute(const struct onnx *o, const char *name); /* NULL: not given */
int64_t onnx_int(const struct onnx *o, const char *name, int64_t otherwise);
float onnx_float(const struct onnx *o, const char *name, float otherwise);
bool onnx_string_is(const struct onnx *o, const char *name, const char *otherwise, const char *value);
/* Input i of the node; NULL where it is not given. */
struct onnx_value *onnx_input(const struct onnx *o, size_t i);
/* Whole numbers of an attribute or, since other opsets, of a constant input: *ret_n is -1 where neither is
 * given. */
int onnx_ints(struct onnx *o, const char *attribute, size_t input, const int64_t **ret_v, int *ret_n);
int onnx_output(struct onnx *o, size_t i, struct onnx_value *value);
bool onnx_scalar(const struct onnx_value *value, double *ret_v); /* a constant of one element */
double onnx_number(const struct onnx_tensor *t, int64_t i);
/* What Cast, or CastLike by its second input, makes of a value. ONNX_KIND_OTHER: text, complex, 8-bit floats.
 */
enum onnx_kind { ONNX_KIND_FLOAT, ONNX_KIND_WHOLE, ONNX_KIND_BOOL, ONNX_KIND_OTHER };
enum onnx_kind onnx_kind_of(const struct onnx *o, const struct onnx_value *v);
int onnx_cast_kind(struct onnx *o, enum onnx_kind *ret_kind);

/* fold.c: false when the node is none of constants. */
bool onnx_is_fold(const struct onnx *o);
int onnx_fold(struct onnx *o);
int onnx_broadcast(
        struct onnx *o, const struct onnx_shape *a, const struct onnx_shape *b, struct onnx_shape *ret);
int64_t onnx_broadcast_at(const struct onnx_shape *out, int64_t i, const struct onnx_shape *in);

/* move.c */
bool onnx_is_move(const struct onnx *o);
int onnx_move(struct onnx *o);
int onnx_view(struct onnx *o, const struct onnx_value *of, const struct onnx_shape *shape, const int32_t *map,
        struct onnx_value **ret_value);

/* layers.c */
int onnx_new_value(struct onnx *o, const struct onnx_shape *shape, struct onnx_value **ret_value);
int onnx_add_layer(struct onnx *o, const struct mfl_layer *layer, const struct onnx_tensor *const *tensors,
        int at, int *ret_layer);
/* A slice, transposition, reshape, concatenation or function of one variable: the same may be there already.
 */
int onnx_derive(struct onnx *o, const struct mfl_layer *layer, int at, int *ret_layer);
int onnx_layer_value(
        struct onnx *o, int layer, const struct onnx_shape *shape, struct onnx_value **ret_value);
const struct mfl_shape *onnx_layer_shape(const struct onnx *o, int layer);
/* The native shape of a value as an operator over images, or over rows of features, sees it. */
int onnx_sample_shape(struct onnx *o, const struct onnx_value *v, struct mfl_shape *ret_shape);
void onnx_rows_shape(const struct onnx_value *v, struct mfl_shape *ret_shape);
/* A view without pending and function. */
int onnx_resolve(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);
/* The same, but its function stays. */
int onnx_settle(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);
bool onnx_is_generated(const char *name); /* no module's, but the exporter's */
void onnx_name(struct onnx *o, struct mfl_layer *layer, const struct onnx_tensor *tensor, const char *suffix);
/* Where the layer of a tensor of params stands: at the first node that takes it. */
int onnx_place_of(const struct onnx *o, const struct onnx_value *constant);
int onnx_ones(struct onnx *o, int64_t n, float v, const struct onnx_tensor **ret_tensor);
bool onnx_same_view(const struct onnx_value *a, const struct onnx_value *b);
bool onnx_same_map(const struct onnx_value *a, const struct onnx_value *b);

/* view.c: the layer whose output is the value in this native shape, made where it is not there. */
int onnx_layer_of(struct onnx *o, struct onnx_value *v, const struct mfl_shape *shape, int *ret_layer);

/* function.c: functions of one variable. The numbers that they are followed at, in ascending order: */
double onnx_sample_at(int i);
double onnx_value_at(const struct onnx_value *v, int i); /* the function's value there */
bool onnx_is_unary(const char *op);
int onnx_unary(struct onnx *o, struct onnx_value *x);
/* A view of the same elements under a function; *ret_f, ONNX_SAMPLES numbers, is filled by the caller. */
int onnx_new_function(
        struct onnx *o, const struct onnx_value *of, double **ret_f, struct onnx_value **ret_value);
bool onnx_linear(const struct onnx_value *v, double *ret_scale); /* the function is x * scale */
/* A number that is no parameter: a frozen weight of one element, of the rank of v's layer. */
int onnx_add_scalar(struct onnx *o, const struct onnx_value *v, float c, int *ret_layer);
/* x times or plus such a number. */
int onnx_add_constant(
        struct onnx *o, const struct onnx_value *v, enum mfl_op op, float c, struct onnx_value **ret_view);
/* The layer's output times scale plus offset, whatever v's function is. */
int onnx_make_affine(
        struct onnx *o, struct onnx_value *v, double scale, double offset, struct onnx_value **ret_view);
/* v's function as one layer, or one between changes of scale; *ret_view is not set where there is none. */
int onnx_make_known(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);
/* The node's function of a value that is a layer's own by now. */
int onnx_make_unary(struct onnx *o, struct onnx_value *of, struct onnx_value **ret_view);
#define ONNX_NOT_KNOWN                                                                                       \
        "is not supported as a function of one value; supported are Relu, LeakyRelu, Elu, Clip, Tanh, "      \
        "Sigmoid, HardSigmoid, HardSwish, SiLU, GELU, Softplus, and sums and products with constants"

/* elementwise.c */
bool onnx_is_elementwise(const struct onnx *o);
int onnx_elementwise(struct onnx *o);
int onnx_make_function(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);

/* norm.c: true when the node is a step of a normalisation and was taken. */
int onnx_norm_step(struct onnx *o, bool *ret_taken);
int onnx_make_norm(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);

/* groupnorm.c: the same. */
int onnx_groupnorm_step(struct onnx *o, bool *ret_taken);
int onnx_reshape_groups(struct onnx *o, const struct onnx_value *v, const struct onnx_shape *shape);
int onnx_make_groupnorm(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);

/* attention.c, noise.c: the same. */
int onnx_attention_step(struct onnx *o, bool *ret_taken);
int onnx_noise_step(struct onnx *o, bool *ret_taken);
#define ONNX_RANDOM "random numbers are supported as dropout and as stochastic depth: x * (random < p) / p"

/* ops.c, recurrent.c */
int onnx_operator(struct onnx *o, bool *ret_known);
int onnx_make_product(
        struct onnx *o, struct onnx_value *v, const struct onnx_tensor *bias, struct onnx_value **ret_view);
int onnx_recurrent(struct onnx *o);

/* text.c */
int onnx_text(struct onnx *o, const struct mfl_graph *graph, char **ret_text);

#endif
