/* SPDX-License-Identifier: Apache-2.0 */
/* A network of the CUDA backend: G clients as one network on one GPU.
 *
 * It is made in two stages. The model (net_model.c, net_fuse.c) is pure: fusions, the places of params and
 * tensors, the size of everything; so net_bytes needs no device. The network adds plans of convolutions,
 * memory (one allocation, cut into regions) and captured graphs.
 *
 * Tensors are group-major NHWC. A flattened image keeps the order of the image: the columns of the dense
 * layer behind it are permuted instead. Params are "wide": trained tensors first, then running statistics,
 * each tensor at a multiple of 64 elements, filters [k][r][s][c]; `place` maps the graph's flat order to it.
 *
 * Fusion. An activation that alone reads a convolution, dense layer, normalisation or sum is applied by that
 * layer (its carrier); a sum that alone reads a normalisation is added by it. All of these share one
 * activation and one gradient in memory. The gradient of an activation is applied by the normalisation or sum
 * that carries it, else by the operator that completes the gradient of its output, else on its own in place.
 *
 * One step of training is captured as one CUDA graph; the gradients of weights are on a branch of it beside
 * those of data, in a context of their own (`side`).
 */
#ifndef MFL_KERNELS_CUDA_NET_H
#define MFL_KERNELS_CUDA_NET_H

#include "kernels/backend.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/conv_plan.h"
#include "kernels/cuda/ops.h"
#include "kernels/plan.h"

struct mfl_device {
        int ordinal; /* CUDA's number */
        int sm_version, driver;
        struct mfl_device_info info; /* memory_free_bytes is asked for anew each time */
        struct mfl_tuner *tuner;
};

struct mfl_device_data {
        struct mfl_device *device;
        const struct mfl_dataset *dataset;
        const struct mfl_split *split;
        uint64_t serial; /* tells handles apart, also at one address */
        int64_t count;   /* elements of a sample */
        int n_planes;
        int answers; /* words of a sample's labels or targets */
        const void *host_answers;
        uint64_t row_bytes;
        void *memory;        /* NULL: not resident */
        const void *samples; /* within memory */
        int32_t *labels;
};

static inline uint64_t mfl_cuda_round_up(uint64_t bytes)
{
        return (bytes + 255) / 256 * 256;
}

struct mfl_cuda_layer {
        struct mfl_cuda_tensor x; /* of the output, as it lies in memory */
        bool live;
        int only_reader;           /* -1: none, or several */
        enum mfl_cuda_act act;     /* what a carrier applies to its output */
        int residual;              /* norms: the layer that is added to the output; -1 */
        int alias;                 /* the layer whose memory this one shares; -1 */
        bool carried;              /* nothing to do forward: done by an earlier layer */
        bool folded;               /* nothing to do backward: done by another layer */
        bool add, add2;            /* the gradient of input (input2, residual) is added to what is there */
        enum mfl_cuda_act in_act;  /* the gradient of this activation, the input's, is applied behind it */
        struct mfl_cuda_conv conv; /* conv2d, dense; of LSTM and GRU the product with the input */
        struct mfl_cuda_conv_plan *forward, *data, *weights; /* data: NULL where training needs none */
        struct mfl_cuda_conv conv2; /* LSTM, GRU: the product with the output before, as one of the output */
        struct mfl_cuda_conv_plan *weights2;
};

/* Parts of the one allocation. */
enum mfl_cuda_region {
        MFL_CUDA_ARENA,     /* activations, gradients, auxiliary: kernels/plan.h */
        MFL_CUDA_PARAMS,    /* [G][stride] floats */
        MFL_CUDA_LOW,       /* [G][stride] of the element type; 16-bit types only */
        MFL_CUDA_BASE,      /* [stride] floats: of params_base */
        MFL_CUDA_BASE_LOW,  /* [stride] of the element type */
        MFL_CUDA_FIRST,     /* [G][stride] floats: of params_set; training, as the next five. None where all
                               groups start from BASE */
        MFL_CUDA_MOMENTUM,  /* [G][stride] floats */
        MFL_CUDA_SECOND,    /* [G][stride] floats: of Adam, AdamW, Adagrad */
        MFL_CUDA_GRADS,     /* [G][stride] floats; 0 where no operator writes */
        MFL_CUDA_GRADS_SUM, /* [G][stride] floats: of a step's batches, where it has several */
        MFL_CUDA_NORMS,     /* [G][mfl_cuda_norms_count] floats */
        MFL_CUDA_SUM,       /* [stride] int64 */
        MFL_CUDA_SCALE,     /* [G + 1] struct mfl_cuda_scale; fp16. The last is what a training starts with */
        MFL_CUDA_WORKSPACE_2, /* of the gradients of weights */
        MFL_CUDA_EVAL,        /* [stride] floats: the group that eval looks at; G > 1 */
        MFL_CUDA_EVAL_LOW,    /* [stride] of the element type */
        MFL_CUDA_WORKSPACE,
        MFL_CUDA_PLACE,   /* [n] uint32 */
        MFL_CUDA_FLAT,    /* [n] floats: params on their way */
        MFL_CUDA_LABELS,  /* [G][batch][answers] words */
        MFL_CUDA_CONTROL, /* struct mfl_cuda_control */
        MFL_CUDA_BOUNCE,  /* tensors of forward and backward on their way */
        MFL_CUDA_STAGE,   /* streamed: two halves of raw samples */
        MFL_CUDA_STAGE_LABELS,
        MFL_CUDA_REGIONS_,
};

/* What the host tells the device in one call, and what comes back: offsets in the region, which has a pinned
 * copy. Up to `count` it travels as one. */
struct mfl_cuda_control {
        uint64_t step, step_first, dropout, augment;
        uint64_t loss_sum, n_correct, n_scored; /* [G] each, one after another */
        uint64_t weight, n_bad;                 /* [G] */
        /* Tables by batch; a step of the optimizer has options.accumulate of them. */
        uint64_t count;  /* [G][steps_max] rows */
        uint64_t scored; /* [G][steps_max] predictions of the batch's whole step that count */
        uint64_t rates;  /* [G][steps_max] struct mfl_rate */
        uint64_t index;  /* [G][steps_max][batch] */
        uint64_t bytes;
};

/* What is known without a device. */
struct mfl_cuda_model {
        const struct mfl_graph *graph;
        struct mfl_net_options options;
        enum mfl_cuda_type type;
        struct mfl_cuda_layer *layers;
        struct mfl_plan *plan;
        uint64_t *at;               /* [n_params] first element of a tensor in a wide vector */
        uint64_t n_trained, stride; /* elements of a wide vector: those that are trained, all */
        uint32_t accumulate;        /* batches of a step, at least 1 */
        int answers;                /* words of a sample's labels or targets */
        uint32_t steps_max;         /* batches of one upload of tables, a multiple of accumulate */
        uint64_t stage_rows;        /* of float samples in half of the staging area; bytes: four times */
        uint64_t bounce_bytes;
        struct mfl_cuda_control control;
        uint64_t workspace_bytes[2]; /* upper bounds, until there are plans */
        uint64_t at_region[MFL_CUDA_REGIONS_], region_bytes[MFL_CUDA_REGIONS_], bytes;
};

/* A captured graph, and what it was captured for. */
struct mfl_cuda_replay {
        cudaGraphExec_t exec; /* NULL: not yet */
        uint64_t data;        /* serial; 0: no data, the batch is what lies there */
        struct mfl_optimizer opt;
};

struct mfl_net {
        struct mfl_device *device;
        struct mfl_cuda_model model;
        struct mfl_cuda_context main, side; /* side: gradients of weights */
        cudaEvent_t fork, join;             /* of the side */
        char *memory;                       /* the regions */
        char *pinned;                       /* copies of control and of the staging area */
        char *pinned_stage;
        int32_t *pinned_labels;
        uint32_t repeats;                         /* steps in the second graph of each pair */
        struct mfl_cuda_replay train[2], eval[2]; /* of one step; of several */
        cudaStream_t copies;                      /* streamed */
        cudaEvent_t copied[2], computed[2];
        cudaEvent_t begin, end; /* of the steps of one upload, for busy_ns */
        uint64_t busy_ns;
        bool training; /* forward was given keys: backward is of that mode */
};

/* NULL for a region that this network has not got. */
static inline void *mfl_cuda_at(const struct mfl_net *net, enum mfl_cuda_region region)
{
        return net->model.region_bytes[region] ? net->memory + net->model.at_region[region] : NULL;
}

/* ---- the model: net_model.c, net_fuse.c, net_sizes.c ---- */

/* Errors: MFL_INVALID names the layer that the backend has not got; -ENOMEM. */
int mfl_cuda_model_init(struct mfl_cuda_model *model, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_error *err);
void mfl_cuda_model_deinit(struct mfl_cuda_model *model); /* plans of convolutions too */
/* Carriers, aliases, and what is done by whom. */
int mfl_cuda_model_fuse(struct mfl_cuda_model *model, struct mfl_error *err); /* -ENOMEM */
/* Params, control and regions; again when workspace_bytes are known better. */
int mfl_cuda_model_place_params(struct mfl_cuda_model *model, struct mfl_error *err); /* MFL_INVALID */
/* What normalisation i works on. */
struct mfl_cuda_tensor mfl_cuda_norm_tensor(const struct mfl_cuda_model *model, int i);
/* Layer i's output as vectors, one for each row of the batch. */
struct mfl_cuda_tensor mfl_cuda_row_tensor(const struct mfl_cuda_model *model, int i);
/* Layers whose output's numbers lie where their input's do, in the same order. */
bool mfl_cuda_is_copy(const struct mfl_cuda_model *model, int i);
/* An add of tensors of one shape, which others may carry and which carries activations. */
bool mfl_cuda_is_plain_add(const struct mfl_graph *graph, int i);
bool mfl_cuda_is_shape(const struct mfl_cuda_model *model, int i); /* launched by run_shape.c */
bool mfl_cuda_is_sequence(enum mfl_op op);                         /* by run_sequence.c */
/* Whether the T x T weights of attention layer `layer` are in memory, in what it keeps and as much in the
 * workspace; and the floats that it keeps of a sample. run_attention.c */
bool mfl_cuda_attention_keeps_weights(const struct mfl_layer *layer);
uint64_t mfl_cuda_attention_kept_floats(const struct mfl_layer *layer, bool training);
void mfl_cuda_model_sizes(struct mfl_cuda_model *model);
/* place[i] = where element i of the flat vector lies in a wide one. */
void mfl_cuda_model_permutation(const struct mfl_cuda_model *model, uint32_t *place);
enum mfl_cuda_act mfl_cuda_act_of(enum mfl_op op);    /* NONE for what is no activation */
bool mfl_cuda_is_conv(const struct mfl_layer *layer); /* conv2d, dense: they have plans */
/* Whether backward asks for the gradient of a convolution's or dense layer's weights, or of its input. */
bool mfl_cuda_conv_gives(const struct mfl_cuda_model *model, int i, enum mfl_cuda_pass pass);
bool mfl_cuda_is_direct(const struct mfl_layer *layer); /* convolutions launched by run_direct.c */
bool mfl_cuda_is_norm(enum mfl_op op);
bool mfl_cuda_is_recurrent(enum mfl_op op); /* LSTM, GRU: they have plans, too */
bool mfl_cuda_has_plans(const struct mfl_layer *layer);
/* Of LSTM or GRU in a step of training, beside its plans: run_lstm.c. */
uint32_t mfl_cuda_lstm_launches(const struct mfl_cuda_model *model, int i);

/* ---- one pass over the layers: run.c, run_backward.c ---- */

struct mfl_cuda_run {
        struct mfl_net *net;
        bool training;       /* dropout is on, batch normalisation takes the batch's statistics */
        bool again;          /* forward for the second time: running statistics stay */
        const float *params; /* of group 0 */
        const void *low;     /* what products read, of group 0: low or params */
        uint64_t stride;     /* from a group's params to the next one's; 0: all read the same */
        struct mfl_cuda_steps steps;
        struct mfl_error *err;
};
int mfl_cuda_run_forward(const struct mfl_cuda_run *pass);
int mfl_cuda_layer_forward(const struct mfl_cuda_run *pass, int i);
int mfl_cuda_run_backward(const struct mfl_cuda_run *pass);
/* Launches for the pass's params of all groups. */
struct mfl_cuda_run mfl_cuda_run_of(struct mfl_net *net, bool training, struct mfl_error *err);
void *mfl_cuda_act_at(const struct mfl_net *net, int i);
void *mfl_cuda_grad_at(const struct mfl_net *net, int i);
void *mfl_cuda_aux_at(const struct mfl_net *net, int i);
/* mfl_cuda_check with "layer NAME, WHAT". */
int mfl_cuda_check_layer(const struct mfl_cuda_run *pass, int i, const char *what, cudaError_t status);

/* ---- captured steps: net_replay.c ---- */

/* What a step is of. data NULL: of the batch that lies there, with labels 0. opt NULL: evaluation of one
 * batch per group under the params of one. */
struct mfl_cuda_work {
        struct mfl_net *net;
        const struct mfl_device_data *data;
        const struct mfl_optimizer *opt;
};
/* A batch of rows of `samples`; NULL where no group has rows. */
cudaError_t mfl_cuda_launch_gather(
        const struct mfl_cuda_run *pass, const struct mfl_device_data *data, bool u8);
int mfl_cuda_launch_step(const struct mfl_cuda_work *work, struct mfl_error *err);
/* What follows the gradients of a batch. */
int mfl_cuda_launch_update(
        const struct mfl_cuda_run *pass, const struct mfl_optimizer *opt, struct mfl_error *err);
/* n batches, by graphs that are captured where there are none for this work. */
int mfl_cuda_replay(const struct mfl_cuda_work *work, uint32_t n, struct mfl_error *err);
void mfl_cuda_replay_deinit(struct mfl_cuda_replay *replay);

/* ---- tables and streams: net_step.c, net_stream.c ---- */

/* The pinned copy of a part of the control region. */
static inline void *mfl_cuda_pinned(const struct mfl_net *net, uint64_t offset)
{
        return net->pinned + offset;
}
static inline void *mfl_cuda_control_at(const struct mfl_net *net, uint64_t offset)
{
        return (char *)mfl_cuda_at(net, MFL_CUDA_CONTROL) + offset;
}
/* The head of the control region to the device: step 0, sums 0; keys as they lie in the pinned copy. */
int mfl_cuda_control_send(struct mfl_net *net, struct mfl_error *err);
/* Tables of batches [first, first + n), as they lie in the pinned copy. */
int mfl_cuda_tables_send(
        struct mfl_net *net, uint32_t first, uint32_t n, cudaStream_t stream, struct mfl_error *err);
/* Sums back, and waits for everything. */
int mfl_cuda_control_receive(struct mfl_net *net, struct mfl_error *err);
/* Runs n batches whose tables lie in the pinned copy, over data that is not resident: rows are gathered by
 * the host, and indices renumbered in place. */
int mfl_cuda_stream_run(const struct mfl_cuda_work *work, uint32_t n, struct mfl_error *err);
/* Waits for the stream. */
int mfl_cuda_sync(struct mfl_net *net, const char *what, struct mfl_error *err);
int mfl_cuda_enter(const struct mfl_net *net, struct mfl_error *err);

/* ---- the table of functions (kernels/backend.h) ---- */

int mfl_cuda_device_open(struct mfl_device **ret_device, struct mfl_error *err);
void mfl_cuda_device_close(struct mfl_device *device);
void mfl_cuda_device_info(const struct mfl_device *device, struct mfl_device_info *ret_info);
int mfl_cuda_data_new(struct mfl_device *device, const struct mfl_dataset *dataset,
        const struct mfl_split *split, bool resident, struct mfl_device_data **ret_data,
        struct mfl_error *err);
uint64_t mfl_cuda_data_bytes(const struct mfl_dataset *dataset, const struct mfl_split *split);
void mfl_cuda_data_free(struct mfl_device_data *data);
int mfl_cuda_net_new(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err);
void mfl_cuda_net_free(struct mfl_net *net);
uint64_t mfl_cuda_net_bytes(const struct mfl_graph *graph, const struct mfl_net_options *options);
void mfl_cuda_net_plan(const struct mfl_net *net, struct mfl_net_plan *ret_plan);
int mfl_cuda_params_base(
        struct mfl_net *net, const float *frozen, const float *moving, struct mfl_error *err);
int mfl_cuda_params_set(
        struct mfl_net *net, int group, const float *frozen, const float *moving, struct mfl_error *err);
int mfl_cuda_params_get(struct mfl_net *net, int group, uint64_t first, float *params, struct mfl_error *err);
int mfl_cuda_net_sum_add(struct mfl_net *net, const struct mfl_fixed *fixed, const uint64_t *weight,
        uint64_t *n_bad, struct mfl_error *err);
int mfl_cuda_net_sum_take(struct mfl_net *net, int64_t *acc, struct mfl_error *err);
int mfl_cuda_fuse(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, int wanted, uint64_t memory_bytes, int *ret_groups,
        struct mfl_error *err);
int mfl_cuda_step(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *groups,
        uint32_t n_steps, const struct mfl_optimizer *opt, struct mfl_error *err);
int mfl_cuda_eval(struct mfl_net *net, int group, const struct mfl_device_data *data, const uint32_t *index,
        uint32_t n, struct mfl_score *ret_score, struct mfl_error *err);
uint64_t mfl_cuda_busy_ns(struct mfl_net *net);
int mfl_cuda_forward(struct mfl_net *net, const float *x, const struct mfl_rng_key *dropout, float *y,
        struct mfl_error *err);
int mfl_cuda_backward(struct mfl_net *net, const float *dy, float *dx, float *dparams, struct mfl_error *err);

#endif
