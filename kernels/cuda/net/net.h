/* SPDX-License-Identifier: Apache-2.0 */
/* A network of the CUDA backend: G clients as one network on one GPU.
 *
 * It is made in two stages. The model (net_model.c, net_fuse.c) is pure: fusions, the places of params and
 * tensors, the size of everything; so net_bytes needs no device. The network adds plans of convolutions,
 * memory (one allocation, cut into regions) and captured graphs.
 *
 * Tensors are group-major NHWC. A flattened image keeps the order of the image; the columns of the dense
 * layer behind it are permuted instead. Params are "wide": trained tensors first, then running statistics,
 * each tensor at a multiple of 64 elements, filters [k][r][s][c]; `place` maps the graph's flat order to it.
 *
 * Fusion. A convolution, dense layer, normalisation or sum applies the activation that is its only reader
 * (the layer is the activation's carrier). A normalisation adds the sum that is its only reader. All of these
 * share one activation and one gradient in memory. The gradient of an activation is applied by the
 * normalisation or sum that carries it; otherwise by the operator that completes the gradient of its output;
 * otherwise by a launch of its own, in place.
 *
 * One step of training is captured as one CUDA graph. The gradients of weights are on a branch of it, beside
 * those of data, in a context of their own (`side`).
 */
#ifndef MFL_KERNELS_CUDA_NET_NET_H
#define MFL_KERNELS_CUDA_NET_NET_H

#include "kernels/backend.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/device.h"
#include "kernels/cuda/base/pipe.h"
#include "kernels/cuda/conv/conv_plan.h"
#include "kernels/cuda/ops/ops.h"
#include "kernels/grad_host.h"
#include "kernels/plan.h"

/* Staged params, in the flat order. */
struct mfl_stage {
        struct mfl_device *device;
        uint64_t n;
        float *memory;
        cudaStream_t stream;
        struct mfl_cuda_pipe pipe;
};

struct mfl_device_data {
        struct mfl_device *device;
        const struct mfl_dataset *dataset;
        const struct mfl_split *split;
        uint64_t serial; /* distinguishes handles, even at the same address */
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
        struct mfl_cuda_tensor x; /* the output, as it lies in memory */
        bool live;
        int only_reader;           /* -1: none, or several */
        enum mfl_cuda_act act;     /* what a carrier applies to its output */
        int residual;              /* norms: the layer that is added to the output; -1: none */
        int alias;                 /* the layer whose memory this one shares; -1: none */
        bool carried;              /* forward: nothing to do, an earlier layer does it */
        bool folded;               /* backward: nothing to do, another layer does it */
        bool add, add2;            /* the gradient of input (input2, residual) is added to what is there */
        enum mfl_cuda_act in_act;  /* after the gradient of input, the gradient of this activation of the
                                      input is applied */
        struct mfl_cuda_conv conv; /* conv2d, dense; for recurrent layers the product with the input */
        struct mfl_cuda_conv_plan *forward, *data, *weights; /* data: NULL where training needs none */
        struct mfl_cuda_conv
                conv2; /* recurrent layers: the product with the previous output, as a convolution of
                                       the output */
        struct mfl_cuda_conv_plan *weights2;
        uint64_t map_at; /* maps: offset of the tables in their region */
};

/* Parts of the one allocation. */
enum mfl_cuda_region {
        MFL_CUDA_ARENA,      /* activations, gradients, auxiliary: kernels/plan.h */
        MFL_CUDA_PARAMS,     /* [G][stride] floats */
        MFL_CUDA_LOW,        /* [G][stride] of the element type; 16-bit types only */
        MFL_CUDA_BASE,       /* [stride] floats: of params_base */
        MFL_CUDA_BASE_LOW,   /* [stride] of the element type */
        MFL_CUDA_FIRST,      /* [G][stride] floats: of params_set; only in training, as the next five. None
                               where all groups start from BASE */
        MFL_CUDA_MOMENTUM,   /* [G][stride] floats; where options.moments has it, as for SECOND */
        MFL_CUDA_SECOND,     /* [G][stride] floats: for Adam, AdamW, Adagrad */
        MFL_CUDA_CORRECTION, /* [G][stride] floats: added to gradients; with options.corrects */
        MFL_CUDA_GRADS,      /* [G][stride] floats; 0 where no operator writes */
        MFL_CUDA_GRADS_SUM,  /* [G][stride] floats: of a step's batches, where it has several */
        MFL_CUDA_NORMS,      /* [G][mfl_cuda_norms_count] floats */
        MFL_CUDA_SUM,        /* [stride] int64 */
        MFL_CUDA_SCALE, /* [G + 1] struct mfl_cuda_scale; fp16. The last is what a training starts with */
        MFL_CUDA_WORKSPACE_2, /* for the gradients of weights */
        MFL_CUDA_EVAL,        /* [stride] floats: the group that eval uses; G > 1 */
        MFL_CUDA_EVAL_LOW,    /* [stride] of the element type */
        MFL_CUDA_WORKSPACE,
        MFL_CUDA_MAPS,          /* tables of sparse linear maps: run_map.c */
        MFL_CUDA_PLACE,         /* [n] uint32 */
        MFL_CUDA_TIES,          /* [n_tie_tables] uint32 */
        MFL_CUDA_FLAT,          /* [n] floats: params on their way; or a piece of the sum, int64 */
        MFL_CUDA_LABELS,        /* [G][batch][answers] words */
        MFL_CUDA_CLASS_WEIGHTS, /* options.loss.weights; only where it has some */
        MFL_CUDA_CONTROL,       /* struct mfl_cuda_control */
        MFL_CUDA_BOUNCE,        /* tensors of forward and backward on their way */
        MFL_CUDA_STAGE,         /* streamed: two halves of raw samples */
        MFL_CUDA_STAGE_LABELS,
        MFL_CUDA_REGIONS_,
};

/* What the host tells the device in one call, and what comes back: offsets in the region, which has a pinned
 * copy. Everything up to `count` travels as one copy. */
struct mfl_cuda_control {
        uint64_t step, step_first, dropout, augment;
        uint64_t loss_sum, n_correct, n_scored; /* [G] each, one after another */
        uint64_t tally;                         /* of options.tally, of all groups together */
        uint64_t weight, n_bad;                 /* [G] */
        /* Tables by batch; a step of the optimizer has options.accumulate batches. */
        uint64_t count; /* [G][steps_max] rows */
        uint64_t share; /* [G][steps_max] struct mfl_loss_share, of the batch's whole step */
        uint64_t rates; /* [G][steps_max] struct mfl_rate */
        uint64_t index; /* [G][steps_max][batch] */
        uint64_t bytes;
};

/* A tensor of a layer that shares it with an earlier one: its place in a wide vector, and that of the earlier. */
struct mfl_cuda_tie {
        uint64_t own, copy, count, table; /* table: where its order begins in tie_tables */
        bool trained, has_table;          /* has_table false: both have one order */
};

/* What is known without a device. */
struct mfl_cuda_model {
        const struct mfl_graph *graph; /* in which no layers share tensors: flat, or apart */
        const struct mfl_graph *flat;  /* the caller's: the order of flat vectors */
        struct mfl_graph *apart;       /* NULL where flat has no shared tensors */
        int *shared;                   /* [apart->n_params] the tensor of flat; NULL likewise */
        int *first;                    /* [flat->n_params] the first layer's tensor in apart; NULL likewise */
        struct mfl_cuda_tie *ties;
        int n_ties;
        uint32_t *tie_tables; /* element of a copy -> element of the first, in the orders of both */
        uint64_t n_tie_tables;
        struct mfl_net_options options;
        enum mfl_cuda_type type;
        struct mfl_cuda_layer *layers;
        struct mfl_map **maps; /* of MFL_OP_MAP layers, in the order of the device's tensors */
        struct mfl_plan *plan;
        uint64_t *at; /* [n_params] first element of a tensor in a wide vector */
        uint64_t n_trained, n_own,
                stride;      /* elements of a wide vector: those that are trained, those without the
                                              copies of shared tensors, all */
        uint32_t accumulate; /* batches of a step, at least 1 */
        int answers;         /* words of a sample's labels or targets */
        uint32_t steps_max;  /* batches of one upload of tables, a multiple of accumulate */
        uint64_t stage_rows; /* float samples in half of the staging area; of bytes there are four
                                       times as many */
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
        cudaEvent_t fork, join;             /* for the side */
        char *memory;                       /* the regions */
        char *pinned;                       /* copies of control and of the staging area */
        char *pinned_stage;
        int32_t *pinned_labels;
        struct mfl_cuda_pipe pipe;                /* of params and sums, on main.stream */
        uint32_t repeats;                         /* steps in the second graph of each pair */
        struct mfl_cuda_replay train[2], eval[2]; /* one step; several steps */
        cudaStream_t copies;                      /* streamed */
        cudaEvent_t copied[2], computed[2];
        const struct mfl_device_data *last_data; /* of the last call of step, for `time`; NULL: none */
        struct mfl_optimizer last_opt;
        bool training; /* forward was given keys, and backward is in that mode */
        struct mfl_grad_host
                host; /* of a worker's; its params are the network's, and the device has copies */
        struct mfl_cuda_resident *resident; /* of a worker that resides on the device; NULL: it does not */
};

/* NULL for a region that this network does not have. */
static inline void *mfl_cuda_at(const struct mfl_net *net, enum mfl_cuda_region region)
{
        return net->model.region_bytes[region] ? net->memory + net->model.at_region[region] : NULL;
}

/* ---- the model: net_model.c, net_fuse.c, net_sizes.c ---- */

/* Errors: MFL_INVALID names the layer that the backend does not have; -ENOMEM. */
int mfl_cuda_model_init(struct mfl_cuda_model *model, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_error *err);
void mfl_cuda_model_deinit(struct mfl_cuda_model *model); /* with the plans of convolutions */
/* Carriers, aliases, and which layer does what. */
int mfl_cuda_model_fuse(struct mfl_cuda_model *model, struct mfl_error *err); /* -ENOMEM */
/* Params, control and regions; called again when workspace_bytes are known more exactly. */
int mfl_cuda_model_place_params(struct mfl_cuda_model *model, struct mfl_error *err); /* MFL_INVALID */
/* run_map.c: makes the tables of maps, and sizes their region. MFL_INVALID; -ENOMEM. Then sends them. */
int mfl_cuda_model_maps(struct mfl_cuda_model *model, struct mfl_error *err);
int mfl_cuda_maps_send(struct mfl_net *net, struct mfl_error *err);
/* The tensor that normalisation i works on. */
struct mfl_cuda_tensor mfl_cuda_norm_tensor(const struct mfl_cuda_model *model, int i);
/* Layer i's output as vectors, one for each row of the batch. */
struct mfl_cuda_tensor mfl_cuda_row_tensor(const struct mfl_cuda_model *model, int i);
/* An add of tensors of one shape; others may carry it, and it may carry activations. */
bool mfl_cuda_is_plain_add(const struct mfl_graph *graph, int i);
bool mfl_cuda_is_curve(enum mfl_op op); /* a function of one variable that no layer carries */
bool mfl_cuda_is_shape(const struct mfl_cuda_model *model, int i); /* launched by run_shape.c */
bool mfl_cuda_is_sequence(enum mfl_op op);                         /* by run_sequence.c */
/* net_sizes.c: whether the T x T weights of attention layer `layer` are in memory (in what it keeps, and as
 * much in the workspace); and the floats that it keeps per sample. */
bool mfl_cuda_attention_keeps_weights(const struct mfl_layer *layer);
uint64_t mfl_cuda_attention_kept_floats(const struct mfl_layer *layer, bool training);
void mfl_cuda_model_sizes(struct mfl_cuda_model *model);
/* Where the elements of tensor p of model->graph lie in a wide vector. */
void mfl_cuda_place_tensor(const struct mfl_cuda_model *model, int p, uint32_t *place);
/* place[i] = where element i of the flat vector lies in a wide one. */
void mfl_cuda_model_permutation(const struct mfl_cuda_model *model, uint32_t *place);
enum mfl_cuda_act mfl_cuda_act_of(enum mfl_op op);    /* NONE for other operators */
bool mfl_cuda_is_conv(const struct mfl_layer *layer); /* conv2d, dense: they have plans */
/* Whether backward computes the gradient of a convolution's or dense layer's weights, or of its input. */
bool mfl_cuda_conv_gives(const struct mfl_cuda_model *model, int i, enum mfl_cuda_pass pass);
bool mfl_cuda_is_direct(const struct mfl_layer *layer); /* convolutions launched by run_direct.c */
bool mfl_cuda_is_norm(enum mfl_op op);
bool mfl_cuda_is_recurrent(enum mfl_op op); /* they have plans too */
bool mfl_cuda_has_plans(const struct mfl_layer *layer);
/* For a recurrent layer in a step of training, besides its plans: run_lstm.c. */
uint32_t mfl_cuda_lstm_launches(const struct mfl_cuda_model *model, int i);

/* ---- shared params: net_tie.c ---- */

int mfl_cuda_model_untie(struct mfl_cuda_model *model, struct mfl_error *err); /* sets graph; -ENOMEM */
/* The tensor of model->graph that holds tensor p of model->flat. */
static inline int mfl_cuda_first_use(const struct mfl_cuda_model *model, int p)
{
        return model->first ? model->first[p] : p;
}
/* Whether a step leaves tensor p of model->graph as it is. */
static inline bool mfl_cuda_stays(const struct mfl_cuda_model *model, int p, enum mfl_moves moves)
{
        return mfl_param_stays(&model->flat->params[model->apart ? model->shared[p] : p], moves);
}
/* Places the copies behind the other params. MFL_INVALID, -ENOMEM. */
int mfl_cuda_model_place_ties(struct mfl_cuda_model *model, struct mfl_error *err);
int mfl_cuda_send_ties(struct mfl_net *net, struct mfl_error *err);
struct mfl_cuda_run;
/* Adds the gradients of copies to those of their tensors. */
int mfl_cuda_tie_grads(const struct mfl_cuda_run *pass);
/* Makes the copies in `groups` wide vectors, and in those of the element type (low NULL: none); all: also those that
 * are not trained. */
int mfl_cuda_tie_params(
        struct mfl_net *net, int groups, float *params, void *low, bool all, struct mfl_error *err);

/* ---- one pass over the layers: run.c, run_backward.c ---- */

struct mfl_cuda_run {
        struct mfl_net *net;
        bool training; /* dropout is on, batch normalisation takes the batch's statistics */
        bool again;    /* forward for the second time: running statistics stay */
        enum mfl_moves moves;
        const float *params; /* of group 0 */
        const void *low;     /* what products read, of group 0: low or params */
        uint64_t stride;     /* from a group's params to the next one's; 0: all groups read the same */
        struct mfl_cuda_steps steps;
        struct mfl_error *err;
};
int mfl_cuda_run_forward(const struct mfl_cuda_run *pass);
int mfl_cuda_layer_forward(const struct mfl_cuda_run *pass, int i);
int mfl_cuda_run_backward(const struct mfl_cuda_run *pass);
/* Launches for the params of all groups. */
struct mfl_cuda_run mfl_cuda_run_of(struct mfl_net *net, bool training, struct mfl_error *err);
void *mfl_cuda_act_at(const struct mfl_net *net, int i);
void *mfl_cuda_grad_at(const struct mfl_net *net, int i);
void *mfl_cuda_aux_at(const struct mfl_net *net, int i);
/* mfl_cuda_check with "layer NAME, WHAT". */
int mfl_cuda_check_layer(const struct mfl_cuda_run *pass, int i, const char *what, cudaError_t status);

/* ---- captured steps: net_replay.c ---- */

/* What a step works on. data NULL: the batch that lies there, with labels 0. opt NULL: evaluation of one
 * batch per group under the params of one. */
struct mfl_cuda_work {
        struct mfl_net *net;
        const struct mfl_device_data *data;
        const struct mfl_optimizer *opt;
        bool grain; /* opt is NULL, and it is training without the optimizer */
};
/* Gathers a batch of rows of `samples`; NULL where no group has rows. */
cudaError_t mfl_cuda_launch_gather(
        const struct mfl_cuda_run *pass, const struct mfl_device_data *data, bool u8);
int mfl_cuda_launch_step(const struct mfl_cuda_work *work, struct mfl_error *err);
/* Launches what follows the gradients of a batch. */
int mfl_cuda_launch_update(
        const struct mfl_cuda_run *pass, const struct mfl_optimizer *opt, struct mfl_error *err);
/* Runs n batches by graphs, and captures them where there are none for this work. */
int mfl_cuda_replay(const struct mfl_cuda_work *work, uint32_t n, struct mfl_error *err);
void mfl_cuda_replay_deinit(struct mfl_cuda_replay *replay);

/* ---- tables and streams: net_tables.c, net_stream.c ---- */

/* The pinned copy of a part of the control region. */
static inline void *mfl_cuda_pinned(const struct mfl_net *net, uint64_t offset)
{
        return net->pinned + offset;
}
static inline void *mfl_cuda_control_at(const struct mfl_net *net, uint64_t offset)
{
        return (char *)mfl_cuda_at(net, MFL_CUDA_CONTROL) + offset;
}
/* Sends the head of the control region to the device: the step's number, sums 0; keys as they lie in the pinned copy. */
int mfl_cuda_control_send(struct mfl_net *net, uint32_t step, struct mfl_error *err);
/* Sends the tables of batches [first, first + n), as they lie in the pinned copy. */
int mfl_cuda_tables_send(
        struct mfl_net *net, uint32_t first, uint32_t n, cudaStream_t stream, struct mfl_error *err);
/* Fetches the sums, and waits for everything. */
int mfl_cuda_control_receive(struct mfl_net *net, struct mfl_error *err);
/* Runs batches [first, first + n), whose tables lie in the pinned copy, over data that is not resident: the host gathers
 * rows and renumbers indices in place. */
int mfl_cuda_stream_run(const struct mfl_cuda_work *work, uint32_t first, uint32_t n, struct mfl_error *err);
/* Waits for the stream. */
int mfl_cuda_sync(struct mfl_net *net, const char *what, struct mfl_error *err);
int mfl_cuda_enter(const struct mfl_net *net, struct mfl_error *err);

/* ---- workers of a team: net_grad.c ---- */

extern const struct mfl_grad_ops mfl_cuda_grad_ops;
int mfl_cuda_grad_init(struct mfl_net *net, struct mfl_error *err);
void mfl_cuda_grad_deinit(struct mfl_net *net);
/* As params_set and params_get; moving NULL: they are there. */
int mfl_cuda_grad_set(struct mfl_net *net, const float *frozen, const float *moving, struct mfl_error *err);
int mfl_cuda_grad_get(struct mfl_net *net, uint64_t first, float *params, struct mfl_error *err);

/* ---- workers that reside on the device: net_resident.c ---- */

extern const struct mfl_grad_device_ops mfl_cuda_grad_device_ops;
void mfl_cuda_resident_free(struct mfl_net *net);
float *mfl_cuda_resident_params(const struct mfl_net *net); /* in the flat order; NULL: it does not reside */
int mfl_cuda_resident_set(struct mfl_net *net, const float *moving, struct mfl_error *err);
int mfl_cuda_resident_get(
        struct mfl_net *net, uint64_t first, uint64_t n, float *params, struct mfl_error *err);
/* The gradient of the grain that has just been launched; `times` as 1 / its loss scale. */
int mfl_cuda_resident_take(
        struct mfl_net *net, float times, const struct mfl_grad_sink *sink, struct mfl_error *err);
/* As in struct mfl_grad_ops. */
int mfl_cuda_resident_squares(struct mfl_net *net, const struct mfl_grad_total *total,
        const struct mfl_optimizer *opt, double *ret_squares, struct mfl_error *err);
int mfl_cuda_resident_apply(struct mfl_net *net, const struct mfl_grad_total *total,
        const struct mfl_optimizer *opt, const struct mfl_rate *rate, float factor, struct mfl_error *err);
int mfl_cuda_resident_statistics(struct mfl_net *net, const float *of_grain, struct mfl_error *err);

/* ---- the table of functions (kernels/backend.h) ---- */

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
int mfl_cuda_correction_set(struct mfl_net *net, int group, const float *moving, struct mfl_error *err);
int mfl_cuda_params_get(struct mfl_net *net, int group, uint64_t first, float *params, struct mfl_error *err);
int mfl_cuda_params_staged(struct mfl_net *net, int group, const struct mfl_params_part *frozen,
        const struct mfl_params_part *moving, struct mfl_error *err);
int mfl_cuda_stage_new(
        struct mfl_device *device, uint64_t n, struct mfl_stage **ret_stage, struct mfl_error *err);
void mfl_cuda_stage_free(struct mfl_stage *stage);
int mfl_cuda_stage_put(
        struct mfl_stage *stage, uint64_t first, const float *params, uint64_t n, struct mfl_error *err);
uint64_t mfl_cuda_stage_bytes(uint64_t n);
int mfl_cuda_net_sum_add(struct mfl_net *net, const struct mfl_fixed *fixed, const uint64_t *weight,
        uint64_t *n_bad, struct mfl_error *err);
int mfl_cuda_net_sum_take(
        struct mfl_net *net, int64_t *acc, bool add, struct mfl_comm_control *control, struct mfl_error *err);
int mfl_cuda_fuse(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, int wanted, uint64_t memory_bytes, int *ret_groups,
        struct mfl_error *err);
int mfl_cuda_step(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *groups,
        uint32_t n_steps, const struct mfl_optimizer *opt, struct mfl_error *err);
/* Whether the network can train on the data, or evaluate it: MFL_INVALID. */
int mfl_cuda_check_data_of(
        const struct mfl_net *net, const struct mfl_device_data *data, struct mfl_error *err);
/* Sends the tables of batches [first, first + n) as they lie in the pinned copy, runs them, and fetches the sums. */
int mfl_cuda_run_tables(const struct mfl_cuda_work *work, uint32_t first, uint32_t n, struct mfl_error *err);
int mfl_cuda_eval(struct mfl_net *net, int group, const struct mfl_device_data *data, const uint32_t *index,
        uint32_t n, struct mfl_score *ret_score, struct mfl_error *err);
int mfl_cuda_net_time(struct mfl_net *net, enum mfl_timed what, double *ret_ns, struct mfl_error *err);
/* All rows of all groups, step 0: net_plain.c. */
struct mfl_cuda_run mfl_cuda_plain_pass(struct mfl_net *net, struct mfl_error *err);
int mfl_cuda_forward(struct mfl_net *net, const float *x, const struct mfl_rng_key *dropout, float *y,
        struct mfl_error *err);
int mfl_cuda_backward(struct mfl_net *net, const float *dy, float *dx, float *dparams, struct mfl_error *err);

#endif
