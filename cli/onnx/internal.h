/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the conversion of an ONNX graph; private to cli/onnx and its rooms.
 *
 * The nodes are converted in order, for one sample (a batch of 1). Each value is a constant or a view: the
 * elements of one native layer's output in some order, under some function of one variable. Reshape,
 * Transpose, Slice, Split and Gather only make other views, with an exact table of indices. So the many ways
 * in which exporters write the same thing (heads of attention, sequences before batches) give the same table.
 * A function of one variable is represented by its values at sample points, so every spelling of GELU is the
 * same function. A layer is made when an operator needs one. A node that native layers can't express is
 * refused by name.
 */
#ifndef MFL_CLI_ONNX_INTERNAL_H
#define MFL_CLI_ONNX_INTERNAL_H

#include "common/model/unary.h"
#include "cli/onnx/onnx.h"
#include "cli/proof/described.h"
#include "onnx.pb-c.h"

#define ONNX_RANK_MAX 8
#define ONNX_SAMPLES 153
#define ONNX_ELEMENTS_MAX ((int64_t)1 << 30)
#define ONNX_TENSORS_PER_LAYER 4

struct onnx_shape {
        int rank;
        int64_t dim[ONNX_RANK_MAX];
};

/* A constant: floats, or whole numbers (also for bool). */
struct onnx_tensor {
        struct onnx_shape shape;
        int64_t count;
        const float *f;
        const int64_t *i;
        const char *origin; /* the initializer it came from; NULL: computed, or a Constant node */
        int moved;          /* 1 + the first node that moved the initializer; 0: not moved */
        bool is_bool;
        bool turned; /* the initializer transposed, or an odd number of times */
        /* Which parameters of PyTorch's model the numbers are (origin.c). Element i is number first +
         * order[i] of all initializers' elements, or ids[i] if the tensor joins several of them; -1: a
         * constant, which nothing trains. */
        bool shared; /* a moved tensor that is used more than once */
        bool param;  /* some element is a parameter's */
        bool buffer; /* of an initializer: what it is used for shows that it is none, whatever param says */
        bool generated;     /* the exporter made the initializer's name, so what it was can't be known */
        bool known;         /* the file says what the initializer was */
        const char *folded; /* the tensors that the exporter computed it from; NULL: it did not */
        bool unsure;        /* the exporter moved it: a parameter or a buffer */
        int64_t first;
        const int32_t *order; /* NULL: the same order */
        const int64_t *ids;   /* NULL: first and order say it */
};

/* The pending step of a value. All but NONE have a base view. */
enum onnx_pending {
        ONNX_NONE,
        ONNX_PRODUCT, /* base times a constant matrix: dense; a bias may follow */
        ONNX_MEAN,    /* mean over the last dimension; the next ones are the steps of a normalisation */
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
        ONNX_UNIFORM, /* random numbers from `rate` on, without a base; then whether each is kept; then that divided by
                       * the share */
        ONNX_KEPT,
        ONNX_NOISE,
        ONNX_DROPPED, /* the base times KEPT of `drawn`, by a node of itself; a division by the share may follow */
        ONNX_LIST /* a SplitToSequence of the base */
};

/* Where a condition on a number holds: below one bound or above another, either of which may be infinite; or, with
 * `between`, elsewhere. */
struct onnx_cut {
        double below, above;
        bool between;
};

/* What a function of a 0 or a 1 gives; its samples lie on a line through both. */
struct onnx_pair {
        double value[2], samples[ONNX_SAMPLES];
};

struct onnx_value {
        struct onnx_shape shape;
        int node; /* the node that made it; -1: an input or initializer */
        int uses;
        bool aside; /* computed from samples, and a file's fixed batch is not its first dimension */
        int batch_at; /* 1 + the dimension that is the file's fixed batch, and 1 here, where that is known; 0: not known */
        struct onnx_tensor *tensor; /* set for a constant; the members below are for all other values */
        int layer;
        const int32_t *map;               /* element -> element of the layer's output; NULL: the same order */
        const struct onnx_value *parent;  /* the view that the last move was applied to; NULL: none */
        const int32_t *step;              /* the last move: element -> the parent's element */
        const double *samples;            /* values of the function; NULL: the identity */
        const struct mfl_layer *function; /* the layer that computes it, where the samples do not tell */
        const struct onnx_cut *cut;       /* the value is whether the layer's is there */
        const struct onnx_pair *pair;     /* of a flag, if its samples are this one's (flags.c) */
        struct onnx_value *unmoved;       /* the value of the same function before moves; NULL: this one */
        enum onnx_pending pending;
        const struct onnx_value *base, *other; /* other: the keys of an attention */
        const struct onnx_tensor *weight;
        bool transposed, centered; /* weight is [in][out]; the normalisation subtracts the mean */
        int groups;
        float eps, rate;
        double scale; /* factor of the scores */
        const struct onnx_value
                *mask; /* of the scores, a constant: not 0 where nothing is seen; NULL: none */
        const struct onnx_value *added; /* to the scores, besides: a view without a function; NULL: none */
        struct onnx_value *narrow;      /* the value that this one repeats (Expand); NULL: none */
        struct onnx_value
                *drawn; /* of random numbers: those that the random node made, whose layer is the dropout */
        struct onnx_value *made, *exact; /* the views that it was resolved to; NULL: not yet */
        struct onnx_value *lifted; /* of a constant: the same numbers as a view of a layer; NULL: not yet */
};

struct onnx_layer {
        struct mfl_layer layer;
        int at, node; /* the layer is placed after this node; made at */
        const struct onnx_tensor *tensors[ONNX_TENSORS_PER_LAYER]; /* in the order of the parameter table */
        bool of_params; /* its output does not depend on the samples */
        bool flag;      /* its output is 0 or 1: whether a token is another than padding */
        /* Its output hangs, by sums, products and moves alone, on a product with a reciprocal that PyTorch divides by. */
        bool quotient;
};

/* Names of one tensor of the PyTorch model. */
struct onnx_tie {
        struct onnx_tie *next;
        const char *const *names;
        size_t n;
};

/* One of the graph's inputs: elements [offset, offset + count) of the model's. */
struct onnx_input {
        int64_t offset, count;
        bool whole; /* tokens */
};
#define ONNX_INPUTS_MAX MFL_PROOF_INPUTS_MAX

struct onnx_block {
        struct onnx_block *next;
};
struct onnx_entry {
        const char *name;
        struct onnx_value *value;
};

struct onnx {
        const char *path;
        const Onnx__ModelProto *file;
        const Onnx__GraphProto *graph; /* the file's */
        int64_t opset;
        const struct mfl_onnx_files *files;
        struct onnx_block *blocks; /* all memory of the conversion; freed at its end */
        uint64_t budget;
        bool out_of_memory;
        struct onnx_entry *table; /* values by name, open addressing */
        size_t n_table;
        const Onnx__ValueInfoProto **infos; /* those with metadata, by name, open addressing */
        size_t n_infos;
        struct onnx_said *said; /* signature.c, by name, open addressing; NULL: nothing */
        size_t n_said;
        struct onnx_layer *layers;
        int n_layers;
        int node;    /* the current node */
        int parents; /* depth of nested views in view.c */
        bool narrow; /* view.c: only with reshapes, slices and transpositions */
        bool exact;  /* resolve.c: steps have the bits of PyTorch's, or are those of a file of mfl's */
        struct onnx_tie *ties;
        bool knows_ties; /* equal tensors under two names are two: the file lists those that are one */
        bool current; /* PyTorch's first exporter, whose nodes are "/module/Operator", did not write the file */
        bool own;     /* mfl wrote the file: nodes are "/LAYER" and "/LAYER/what" */
        struct onnx_input inputs[ONNX_INPUTS_MAX];
        int n_inputs;
        int64_t batch; /* the fixed batch of the first input, which its shapes contain; 0: none */
        /* The file's description of the module; NULL: none. With `tagging`, parameters hold tags. */
        struct mfl_described *described;
        bool tagging;
        bool *lifts; /* by node: its constant inputs are taken as views of layers, because they are trained */
        int64_t n_elements; /* of all initializers */
        uint8_t *bits;      /* one per element, for origin.c; NULL: not yet */
        char *notes;
        struct mfl_error *err;
        bool log_softmax; /* at the end, left out */
};

/* read.c */
void *mfl_onnx_alloc(
        struct onnx *o, size_t n, size_t size); /* NULL: o->err is set, and the code is onnx_memory(o) */
static inline int onnx_memory(const struct onnx *o)
{
        return o->out_of_memory ? -ENOMEM : MFL_INVALID;
}
int mfl_onnx_fail(struct onnx *o, const char *fmt, ...) MFL_PRINTF(2, 3); /* the text names file, node and
                                                                       * operator */
void mfl_onnx_note(struct onnx *o, const char *fmt, ...) MFL_PRINTF(2, 3);
int mfl_onnx_read_tensor(struct onnx *o, const Onnx__TensorProto *proto, struct onnx_tensor **ret_tensor);
struct onnx_value *mfl_onnx_find(const struct onnx *o, const char *name);
int mfl_onnx_set(struct onnx *o, const char *name, struct onnx_value *value);

const Onnx__NodeProto *mfl_onnx_node(const struct onnx *o);
/* What PyTorch's current exporter says of the operation that the node was, "args = (%x, %p_fc_weight)"; NULL: nothing. */
const char *mfl_onnx_note_of(const Onnx__NodeProto *node);
/* Whether a value is the same for all samples: a constant, or computed from parameters only. */
bool mfl_onnx_of_params(const struct onnx *o, const struct onnx_value *v);
int mfl_onnx_check_batch(struct onnx *o, const struct onnx_value *x, int64_t axis); /* refuses the batch */
const Onnx__AttributeProto *mfl_onnx_attribute(const struct onnx *o, const char *name); /* NULL: absent */
int64_t mfl_onnx_int(const struct onnx *o, const char *name, int64_t otherwise);
float mfl_onnx_float(const struct onnx *o, const char *name, float otherwise);
bool mfl_onnx_string_is(const struct onnx *o, const char *name, const char *otherwise, const char *value);
/* Input i of the node; NULL if absent. */
struct onnx_value *mfl_onnx_input(const struct onnx *o, size_t i);
/* The whole numbers of an attribute or, since later opsets, of a constant input. *ret_n is -1 if both are
 * absent. */
int mfl_onnx_ints(struct onnx *o, const char *attribute, size_t input, const int64_t **ret_v, int *ret_n);
int mfl_onnx_output(struct onnx *o, size_t i, struct onnx_value *value);
bool mfl_onnx_scalar(
        const struct onnx_value *value, double *ret_v); /* true for a constant with one element */
double mfl_onnx_number(const struct onnx_tensor *t, int64_t i);
/* The target kind of Cast, or of CastLike by its second input. ONNX_KIND_OTHER: text, complex, 8-bit floats.
 */
enum onnx_kind { ONNX_KIND_FLOAT, ONNX_KIND_WHOLE, ONNX_KIND_BOOL, ONNX_KIND_OTHER };
enum onnx_kind onnx_kind_of(const struct onnx *o, const struct onnx_value *v);
int mfl_onnx_cast_kind(struct onnx *o, enum onnx_kind *ret_kind);

#include "cli/onnx/known.h"

/* ---- Each file below uses only those above it. ---- */

/* shape.c */
int64_t mfl_onnx_count(const struct onnx_shape *shape);
int mfl_onnx_broadcast(
        struct onnx *o, const struct onnx_shape *a, const struct onnx_shape *b, struct onnx_shape *ret);
int64_t mfl_onnx_broadcast_at(const struct onnx_shape *out, int64_t i, const struct onnx_shape *in);

/* layers.c */
int mfl_onnx_new_value(struct onnx *o, const struct onnx_shape *shape, struct onnx_value **ret_value);
int mfl_onnx_add_layer(struct onnx *o, const struct mfl_layer *layer,
        const struct onnx_tensor *const *tensors, int at, int *ret_layer);
/* Adds a slice, transposition, reshape, concatenation or function of one variable, or finds the same layer
 * among those that exist. */
int mfl_onnx_derive(struct onnx *o, const struct mfl_layer *layer, int at, int *ret_layer);
int mfl_onnx_layer_value(
        struct onnx *o, int layer, const struct onnx_shape *shape, struct onnx_value **ret_value);
/* Adds a layer whose value is the node's output. */
int mfl_onnx_layer_output(struct onnx *o, const struct mfl_layer *layer,
        const struct onnx_tensor *const *tensors, const struct onnx_shape *shape);
const struct mfl_shape *mfl_onnx_layer_shape(const struct onnx *o, int layer);
/* The native shape of a value as an operator over images, or over rows of features, sees it. */
int mfl_onnx_sample_shape(struct onnx *o, const struct onnx_value *v, struct mfl_shape *ret_shape);
/* The same where only the last dimension matters, or none: of a value of more dimensions, the first are joined. */
int mfl_onnx_flat_shape(struct onnx *o, const struct onnx_value *v, struct mfl_shape *ret_shape);
/* The layer of an image, or of a row of positions as an image of height 1: {1, channels, positions}. */
int mfl_onnx_image(struct onnx *o, struct onnx_value *x, int *ret_layer, struct mfl_shape *ret_shape);
void mfl_onnx_rows_shape(const struct onnx_value *v, struct mfl_shape *ret_shape);
bool mfl_onnx_name_is_taken(const struct onnx *o, const char *name); /* by a layer */
/* Whether the exporter made the name, and no module has it. */
bool mfl_onnx_is_generated(const struct onnx *o, const char *name);
/* Whether a name of n characters is one of these, with or without numbers behind it: "select_1", "val_1_1". The list ends with NULL. */
bool mfl_onnx_has_stem(const char *name, size_t n, const char *const *stems);
void mfl_onnx_name(
        struct onnx *o, struct mfl_layer *layer, const struct onnx_tensor *tensor, const char *suffix);
/* Where the layer of a tensor of params stands: at the first node that takes it. */
int mfl_onnx_place_of(const struct onnx *o, const struct onnx_value *constant);
int mfl_onnx_ones(struct onnx *o, int64_t n, float v, const struct onnx_tensor **ret_tensor);
/* The number of element i among all initializers' elements; -1: a constant. */
int64_t mfl_onnx_element(const struct onnx_tensor *t, int64_t i);
/* Whether both are the same elements of parameters, and the same constants, in one order; with `turned`, b is a's matrix
 * transposed. Equal numbers are not enough: slices of a parameter may all be 0. */
bool mfl_onnx_same_elements(const struct onnx_tensor *a, const struct onnx_tensor *b, bool turned);
/* Whether both come from one initializer in the same way. */
bool mfl_onnx_same_tensor(const struct onnx_tensor *a, const struct onnx_tensor *b);
bool mfl_onnx_same_view(const struct onnx_value *a, const struct onnx_value *b);

/* open/export.c: refuses to train what an export for inference has changed, once the initializers are read. */
int mfl_onnx_check_export(struct onnx *o);

/* origin.c: which numbers are trained. */
/* n elements of a tensor, in the order of map, which must outlive it; its shape is set by the caller. */
int mfl_onnx_take(struct onnx *o, const struct onnx_tensor *from, const int32_t *map, int64_t n,
        struct onnx_tensor **ret_tensor);
/* Whether no parameter's element stands in it twice. */
int mfl_onnx_is_simple(struct onnx *o, const struct onnx_tensor *t, bool *ret_simple);
/* The constant as a layer of its own, the same for all samples: *ret_view is a view of that layer. A later call for the
 * same numbers finds the same layer. */
int mfl_onnx_lift(struct onnx *o, struct onnx_value *constant, struct onnx_value **ret_view);
int mfl_onnx_lift_tensor(struct onnx *o, const struct onnx_tensor *t, const struct onnx_shape *shape,
        struct onnx_value **ret_view);
/* A constant that is a part of a parameter, as a view of the layer that holds more of it; *ret_view NULL: there is none, or it
 * holds just this part. */
int mfl_onnx_lifted_part(struct onnx *o, const struct onnx_value *constant, struct onnx_value **ret_view);
/* The same as a layer of this shape. */
int mfl_onnx_weight_layer(
        struct onnx *o, const struct onnx_value *constant, const struct mfl_shape *shape, int *ret_layer);
/* Whether the node computes with a parameter. Then it becomes layers instead of a constant: its inputs are lifted, and
 * from here on mfl_onnx_input gives the lifted ones at this node. */
int mfl_onnx_lift_inputs(struct onnx *o, bool *ret_lifted);
/* Whether a node other than a product of matrices computes with w, an initializer that several nodes read. */
bool mfl_onnx_is_computed_with(const struct onnx *o, const struct onnx_value *w);
/* Whether a bias stands in more places than the weights beside it, or is trained unlike them. Then it is no part of their layer, which
 * shares all of its tensors or its weights alone, and is trained as a whole. */
bool mfl_onnx_bias_is_apart(
        const struct onnx *o, const struct onnx_tensor *bias, const struct onnx_tensor *weight);
/* Whether the shift of a norm, input 2, is trained and its scale, input 1, is not, or the other way round: then they are layers
 * of their own behind the norm, which has one element per channel. */
bool mfl_onnx_scale_is_apart(const struct onnx *o);
int mfl_onnx_scale_channels(struct onnx *o, struct onnx_value **v);
/* The tensor's use shows that it is no parameter: it is compared, or is the mask of an attention. */
void mfl_onnx_is_buffer(struct onnx *o, const struct onnx_tensor *t);
/* The name of a parameter that the value is computed from; NULL: none. */
const char *mfl_onnx_param_of(const struct onnx *o, const struct onnx_value *v);
/* Of a value that is not resolved yet: another one that is the same, as a Cast of floats to floats gives (mfl_onnx_stays_float: the
 * node is one, or an Identity). */
int mfl_onnx_copy_pending(struct onnx *o, const struct onnx_value *of, struct onnx_value **ret_value);
bool mfl_onnx_stays_float(struct onnx *o);

/* Moves of a value that knows where the file's fixed batch is (nodes/batch.c). Of a reshape, false: the batch would not stay a
 * dimension of its own. The others give the result's batch_at; axes: a bit for each dimension that goes (or comes, with `un`). */
bool mfl_onnx_batch_reshape(const struct onnx *o, const struct onnx_value *in, const int64_t *dims, int n,
        bool allow_zero, struct onnx_shape *ret_shape, int *ret_batch_at);
int mfl_onnx_batch_transpose(const struct onnx *o, const struct onnx_value *in);
int mfl_onnx_batch_squeeze(const struct onnx_value *in, const struct onnx_shape *out, unsigned axes, bool un);

/* After the last node: refuses parameters that two layers would train as two, and notes what can't be known. */
int mfl_onnx_check_params(struct onnx *o);

/* fold.c: nodes whose inputs are all constants */
bool mfl_onnx_is_fold(const struct onnx *o);
int mfl_onnx_fold(struct onnx *o);
/* A constant of zeros; element i; the node's result. */
int mfl_onnx_fold_new(
        struct onnx *o, const struct onnx_shape *shape, bool is_float, struct onnx_tensor **ret_tensor);
void mfl_onnx_fold_put(struct onnx_tensor *t, int64_t i, double v);
int mfl_onnx_fold_output(struct onnx *o, struct onnx_tensor *t);
/* fold_index.c; all inputs that are needed are there */
int mfl_onnx_fold_cumsum(struct onnx *o);
int mfl_onnx_fold_non_zero(struct onnx *o);
int mfl_onnx_fold_gather_nd(struct onnx *o);
int mfl_onnx_fold_gather_elements(struct onnx *o);
int mfl_onnx_fold_scatter_nd(struct onnx *o);
/* The node's result if its data had this shape and were all `data`; its updates are all *update if that is not NULL. */
int mfl_onnx_fold_scattered(struct onnx *o, const struct onnx_shape *shape, float data, const float *update,
        struct onnx_tensor **ret_tensor);
int mfl_onnx_fold_reduce(struct onnx *o);
int mfl_onnx_fold_pad(struct onnx *o);
int mfl_onnx_read_pads(struct onnx *o, int rank, int64_t pads[ONNX_RANK_MAX][2]);
bool mfl_onnx_pads_nothing(const struct onnx *o);
int mfl_onnx_pad_mode(struct onnx *o, enum mfl_map_mode *ret_mode);

/* view.c. A new view: the elements of `of` in the order of map (NULL: the same order), in a shape. */
int mfl_onnx_view(struct onnx *o, const struct onnx_value *of, const struct onnx_shape *shape,
        const int32_t *map, struct onnx_value **ret_value);
/* The layer whose output is the view in this native shape; it is made if no layer has it. The view has no
 * pending step and no function. */
int mfl_onnx_view_layer(
        struct onnx *o, const struct onnx_value *view, const struct mfl_shape *shape, int *ret_layer);

/* strided.c: a view's elements as one layer, a strided view or a gather, in this shape. */
int mfl_onnx_make_strided(
        struct onnx *o, const struct onnx_value *v, const struct mfl_shape *shape, int *ret_layer);

/* flags.c: functions of a flag, a layer that is 0 or 1. False for any other value; pair[0] is what it gives where the layer
 * is 0, which is where a token is the one that was compared with. */
bool mfl_onnx_pair(const struct onnx *o, const struct onnx_value *v, double ret_pair[2]);
/* Another function of the elements of `of`, whose layer is a flag. */
int mfl_onnx_new_pair(
        struct onnx *o, const struct onnx_value *of, const double pair[2], struct onnx_value **ret_value);
/* Whether a layer's numbers are whole and follow from which tokens are padding, and from constants. */
bool mfl_onnx_counts_padding(const struct onnx *o, int layer);
/* Its layers. */
int mfl_onnx_make_pair(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);

/* function.c: functions of one variable. The numbers at which they are sampled, in ascending order: */
double mfl_onnx_sample_at(int i);
double mfl_onnx_value_at(const struct onnx_value *v, int i); /* the function's value there */
bool mfl_onnx_is_unary(const char *op);
/* f[i] = the node's function of the value of `of` at sample i; v: the value that will have it. *ret_hidden: the samples do not
 * show what the node does, so that it must be a layer behind the resolved `of`. */
int mfl_onnx_sample_unary(
        struct onnx *o, const struct onnx_value *of, double *f, struct onnx_value *v, bool *ret_hidden);
/* The node's function of a constant that nothing trains. */
int mfl_onnx_fold_unary(struct onnx *o, const struct onnx_value *constant);
/* A view of the same elements under a function; *ret_f, ONNX_SAMPLES numbers, is filled by the caller. */
int mfl_onnx_new_function(
        struct onnx *o, const struct onnx_value *of, double **ret_f, struct onnx_value **ret_value);
/* The layer `function` of a view that has no function itself. */
int mfl_onnx_add_unary(struct onnx *o, const struct onnx_value *v, const struct mfl_layer *function,
        struct onnx_value **ret_view);
bool mfl_onnx_linear(const struct onnx_value *v, double *ret_scale); /* the function is x * scale */
/* A number that is no parameter: a frozen weight of one element, with the rank of v's layer. */
int mfl_onnx_add_scalar(struct onnx *o, const struct onnx_value *v, float c, int *ret_layer);
/* x times or plus such a number. */
int mfl_onnx_add_constant(
        struct onnx *o, const struct onnx_value *v, enum mfl_op op, float c, struct onnx_value **ret_view);
/* The layer's output times scale plus offset, whatever v's function is. */
int mfl_onnx_make_affine(
        struct onnx *o, struct onnx_value *v, double scale, double offset, struct onnx_value **ret_view);
/* v's function as one layer, or as one layer between changes of scale. *ret_view is not set if there is no
 * such layer. */
int mfl_onnx_make_known(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);
/* Whether that would join several steps with numbers to one. */
bool mfl_onnx_joins_steps(const struct onnx_value *v);
/* The node's function of a view that has no function itself. */
int mfl_onnx_make_unary(struct onnx *o, struct onnx_value *of, struct onnx_value **ret_view);
/* scale * v^exponent of a view that has no function itself. */
int mfl_onnx_make_power(
        struct onnx *o, struct onnx_value *of, double exponent, double scale, struct onnx_value **ret_view);
#define ONNX_NOT_KNOWN                                                                                       \
        "is not supported as a function of one value; 'mfl help job' lists the functions that are layers"

/* join.c. The operators of two inputs that work element by element; those with a layer of their own (sums and
 * products); and Where with a condition on the samples, which is not a constant mask. */
bool mfl_onnx_is_binary(const char *op);
bool mfl_onnx_is_arithmetic(const char *op);
bool mfl_onnx_is_choice(const struct onnx *o);
/* The dimension of the batch in the joined shape, -1 if it has none; and a shape without it, as a layer of
 * `rank` dimensions. */
int mfl_onnx_batch_axis(const struct onnx_shape *shape);
int mfl_onnx_without(
        struct onnx *o, const struct onnx_shape *shape, int rank, int axis, struct mfl_shape *ret_shape);
/* Whether `small` has the dimensions of `large`, or 1 in their place. */
bool mfl_onnx_spreads(const struct mfl_shape *small, const struct mfl_shape *large);
/* Whether a join computes it: it repeats at most one of its inputs. */
bool mfl_onnx_repeats_one(const struct mfl_shape *a, const struct mfl_shape *b);
/* Layers a and b in shapes sa and sb under op, as a value in `shape`. A gate has its flag second, which is not the larger one. */
int mfl_onnx_join(struct onnx *o, enum mfl_op op, int a, int b, const struct mfl_shape *sa,
        const struct mfl_shape *sb, const struct onnx_shape *shape, struct onnx_value **ret_view);

/* make.c: pending values as layers. Their bases are views without pending step and function. */
int mfl_onnx_make_product(
        struct onnx *o, struct onnx_value *v, const struct onnx_tensor *bias, struct onnx_value **ret_view);
int mfl_onnx_make_norm(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);
int mfl_onnx_make_groupnorm(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);
/* The same with the scale and the shift that the node gives; NULL: without. */
int mfl_onnx_make_scaled_norm(struct onnx *o, const struct onnx_value *v, const struct onnx_tensor *bias,
        struct onnx_value **ret_view);
int mfl_onnx_make_scaled_groups(struct onnx *o, const struct onnx_value *v, const struct onnx_tensor *weight,
        const struct onnx_tensor *bias, struct onnx_value **ret_view);

int mfl_onnx_make_dropped(struct onnx *o, const struct onnx_value *v, struct onnx_value **ret_view);
/* Samples of x, a view as above, that the noise, one number for each sample, keeps; `divided` by the share. */
int mfl_onnx_make_kept(struct onnx *o, struct onnx_value *x, const struct onnx_value *noise, bool divided,
        struct onnx_value **ret_view);
bool mfl_onnx_is_of_samples(const struct onnx *o, const struct onnx_shape *shape);

/* scores.c. Matrices at the end of a shape: {.., rows, columns}, `heads` of them; false: it has none. */
bool mfl_onnx_heads(const struct onnx_shape *s, int64_t *heads, int64_t *rows, int64_t *columns);
/* Whether the dimensions before two matrices are the same. */
bool mfl_onnx_same_lead(const struct onnx_shape *a, const struct onnx_shape *b);
/* Repeats the matrices of either value as MatMul does, so that both have the same dimensions before them. */
int mfl_onnx_as_many(struct onnx *o, const struct onnx_value **a, const struct onnx_value **b);
/* A layer with the same numbers: no layer of two inputs reads one layer twice. */
int mfl_onnx_copy_layer(struct onnx *o, int layer, int *ret_layer);
/* Scores, or weights, that no attention layer takes, as layers. */
int mfl_onnx_make_scores(struct onnx *o, const struct onnx_value *v, struct onnx_value **ret_view);
int mfl_onnx_make_weights(struct onnx *o, const struct onnx_value *v, struct onnx_value **ret_view);
/* The product of weights and values, both resolved. */
int mfl_onnx_weigh(struct onnx *o, const struct onnx_value *weights, const struct onnx_value *values,
        struct onnx_value **ret_value);

/* resolve.c. A view without a pending step: */
int mfl_onnx_settle(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);
/* A view without a pending step and without a function: */
int mfl_onnx_resolve(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);
/* The same for what jumps: numbers are added, multiplied and divided by one at a time, as PyTorch does it, so that 41 / 41 is 1. */
int mfl_onnx_resolve_exact(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view);
/* mfl_onnx_view_layer of the resolved value. */
int mfl_onnx_layer_of(struct onnx *o, struct onnx_value *v, const struct mfl_shape *shape, int *ret_layer);
/* The sum or product of two values. */
int mfl_onnx_combine(struct onnx *o, enum mfl_op op, struct onnx_value *a, struct onnx_value *b,
        struct onnx_value **ret_view);
/* The node's sum, difference, product or quotient of two values. */
int mfl_onnx_join_views(
        struct onnx *o, struct onnx_value *a, struct onnx_value *b, struct onnx_value **ret_view);

/* The node's comparison, as a flag; whether a value lies beyond the bounds of its cut, as a flag; what the node, a Where, chooses. */
int mfl_onnx_make_comparison(struct onnx *o, struct onnx_value **ret_view);
int mfl_onnx_make_cut(struct onnx *o, const struct onnx_value *v, struct onnx_value **ret_flag);
int mfl_onnx_as_flag(
        struct onnx *o, struct onnx_value *v, struct onnx_value **ret_flag); /* of any condition */
int mfl_onnx_make_choice(struct onnx *o, struct onnx_value **ret_view);

/* BatchNormalization of {rows, features} of each sample, as x.view(-1, features) makes: the statistics are of all rows of the
 * batch. l: the norm without input and output. */
int mfl_onnx_norm_of_rows(struct onnx *o, struct mfl_layer *l, const struct onnx_tensor *const *t,
        struct onnx_value *x, struct onnx_value **ret_view);
/* nodes/: groupnorm.c, norm.c, attention.c, noise.c: sequences of nodes that one layer stands for. *ret_taken says
 * whether the node was such a step. */
int mfl_onnx_groupnorm_step(struct onnx *o, bool *ret_taken);
int mfl_onnx_reshape_groups(struct onnx *o, const struct onnx_value *v, const struct onnx_shape *shape);
int mfl_onnx_norm_step(struct onnx *o, bool *ret_taken);
int mfl_onnx_attention_step(struct onnx *o, bool *ret_taken);
/* tokens.c: masks that are computed from tokens */
int mfl_onnx_tokens_step(struct onnx *o, bool *ret_taken);
/* sequence.c */
int mfl_onnx_sequence_step(struct onnx *o, bool *ret_taken);
int mfl_onnx_noise_step(struct onnx *o, bool *ret_taken);
#define ONNX_RANDOM                                                                                          \
        "random numbers are supported as dropout (nn.Dropout) and as stochastic depth: x * (torch.rand(n, "  \
        "1, 1) < p) / p; give others as an input, drawn with the data"

/* condition.c: functions of computed values that only their names tell (unary.def); And, Or and Not of conditions on different ones */
#define ONNX_STOP "StopGradient" /* mfl_export.py writes it for detach(), in the domain "mfl" */
int mfl_onnx_named_step(struct onnx *o, bool *ret_taken);
int mfl_onnx_condition_step(struct onnx *o, bool *ret_taken);

/* move.c: nodes that only move elements */
bool mfl_onnx_is_move(const struct onnx *o);
int mfl_onnx_move(struct onnx *o);

/* elementwise.c */
bool mfl_onnx_is_elementwise(const struct onnx *o);
int mfl_onnx_elementwise(struct onnx *o);
/* Conditions that join others, equality with a number, and a choice that is the same for all samples. */
int mfl_onnx_cut_step(struct onnx *o, bool *ret_taken);

/* sparse.c: padding, interpolation, and sums over dimensions, as sparse linear maps. */
/* Trilu of computed values. */
int mfl_onnx_convert_trilu(struct onnx *o);
int mfl_onnx_convert_pad(struct onnx *o);
int mfl_onnx_convert_resize(struct onnx *o);
int mfl_onnx_convert_cumsum(struct onnx *o);
/* The sum or the mean over the dimensions of x that have a bit in `over`. *ret_done is false if the dimensions lie too
 * far apart for a layer. */
int mfl_onnx_add_sum(
        struct onnx *o, struct onnx_value *x, unsigned over, bool mean, int *ret_layer, bool *ret_done);

/* dense.c. The initializer at an input, which must have this rank: */
int mfl_onnx_weight_of(struct onnx *o, size_t i, int rank, const struct onnx_tensor **ret_tensor);
/* A parameter times a number, in the shape of w; *ret_tensor NULL: w is computed in another way. */
int mfl_onnx_scaled_weight(
        struct onnx *o, struct onnx_value *w, const struct onnx_tensor **ret_tensor, double *ret_scale);
/* Refuses weights that are computed. */
int mfl_onnx_fail_computed(struct onnx *o, size_t i, const struct onnx_value *v);
/* x times a matrix that is computed from parameters, of at most this many numbers: each sample of a batch has a copy. It is
 * {outputs, features}, or `transposed`. */
#define MFL_ONNX_COMPUTED_MAX ((int64_t)1 << 18)
int mfl_onnx_product_with_computed(struct onnx *o, struct onnx_value *x, struct onnx_value *w,
        bool transposed, struct onnx_value **ret_value);
int mfl_onnx_computed_step(struct onnx *o, bool *ret_taken);
/* Gemm and MatMul of constant zeros. Before parameters become layers. */
int mfl_onnx_zeros_step(struct onnx *o, bool *ret_taken);
int mfl_onnx_matmul(struct onnx *o);
int mfl_onnx_gemm(struct onnx *o);

/* log_sum.c. Over the last dimension: log(softmax(x)), and log(sum(exp(x))), which is {1, rows, 1}. */
int mfl_onnx_log_softmax(struct onnx *o, const struct onnx_value *x, struct onnx_value **ret_view);
int mfl_onnx_log_sum_exp(struct onnx *o, const struct onnx_value *x, struct onnx_value **ret_view);

/* reduce.c. The view with dimension `axis` last, and the other way round, in the former shape: */
int mfl_onnx_axis_last(struct onnx *o, const struct onnx_value *of, int axis, struct onnx_value **ret_view);
int mfl_onnx_axis_back(struct onnx *o, const struct onnx_value *of, int axis, const struct onnx_shape *shape,
        struct onnx_value **ret_view);
int mfl_onnx_reduce(struct onnx *o);
int mfl_onnx_prelu(struct onnx *o);
int mfl_onnx_extreme(struct onnx *o);

/* embedding.c, sort.c */
int mfl_onnx_embedding(struct onnx *o);
int mfl_onnx_one_hot(struct onnx *o);
/* After the nodes: where an embedding reads the tokens, what else computes with them reads a frozen embedding of the numbers from 0 on.
 * *last is the output's layer, whose number may change. */
int mfl_onnx_number_tokens(struct onnx *o, int *last);
int mfl_onnx_top(struct onnx *o);

/* softmax.c, scatter.c */
int mfl_onnx_softmax(struct onnx *o);
int mfl_onnx_scatter(struct onnx *o);
int mfl_onnx_gather_elements(struct onnx *o);

/* einsum.c */
int mfl_onnx_einsum(struct onnx *o);

/* recurrent.c, ops.c: operators with a layer of their own */
int mfl_onnx_recurrent(struct onnx *o);
int mfl_onnx_operator(struct onnx *o, bool *ret_known);
/* volume.c: some of them for {batch, channels, depth, height, width} */
int mfl_onnx_volume_step(struct onnx *o, bool *ret_taken);
/* frames.c: of several images of each sample */
int mfl_onnx_frames_step(struct onnx *o, bool *ret_taken);

/* open/input.c: layer 0 and a value for each of the graph's inputs, after the initializers are read */
int mfl_onnx_read_inputs(struct onnx *o, struct mfl_shape *ret_input);

/* open/node.c */
int mfl_onnx_convert_node(struct onnx *o);

/* open/text.c */
int mfl_onnx_text(struct onnx *o, const struct mfl_graph *graph, char **ret_text);

#endif
