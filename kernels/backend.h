/* SPDX-License-Identifier: Apache-2.0 */
/* A backend is where arithmetic happens. `reference` (plain loops, the specification) is built in; `cpu`
 * (oneDNN) and `cuda` are modules opened at run time, so that a program starts at once where a library is
 * missing.
 *
 * The unit of a backend is a network, not an operator. A network is a graph compiled for a batch size and a
 * number of groups G (clients trained at once): G parameter vectors, G data batches, G streams of random
 * numbers, G step masks, one call. Each backend chooses the layout of tensors, the schedule, the arena and
 * the fusion of operators (blocked layouts on the CPU, a captured CUDA graph on a GPU). What crosses this
 * table is plain: flat parameter vectors in the order of the graph's table, NCHW samples, sample numbers. A
 * single operator is a network of one layer: the conformance program tests each of them, on every backend,
 * through this same table.
 *
 * Threads: several threads may use a device; a network belongs to one thread at a time. Every function
 * blocks. step, eval, forward and backward allocate nothing. A group's result does not depend on G, on its
 * place among the groups, or on the other groups' data. Errors: 0; MFL_INVALID (text) for a graph or option
 * that the backend does not support; negative when the device or the memory is broken.
 */
#ifndef MFL_KERNELS_BACKEND_H
#define MFL_KERNELS_BACKEND_H

#ifndef __cplusplus /* C++ has no such types, and kernels include this header as C++ */
#include <stdatomic.h>
#endif

#include "common/base/base.h"
#include "common/data/dataset.h"
#include "common/base/fixed.h"
#include "common/job/losses.h"
#include "common/measure/tally.h"
#include "common/model/graph.h"
#include "common/base/rng.h"
#include "kernels/grad.h"

#define MFL_BACKEND_ABI 13

struct mfl_device;
struct mfl_net;
struct mfl_device_data;
struct mfl_sum;
struct mfl_comm;
struct mfl_mesh;
struct mfl_stage;

struct mfl_device_info {
        char backend[16]; /* "reference", "cpu", "cuda" */
        char name[96];    /* "Intel(R) Xeon(R) Processor", "NVIDIA H200" */
        char library[64]; /* "oneDNN 2.6.3", "cuDNN 9.19.0, CUDA 13.0" */
        int cores;        /* of the CPU; multiprocessors of a GPU */
        uint64_t memory_bytes;
        bool own_memory;            /* networks and data lie in the device's own memory, not in the host's */
        uint64_t memory_free_bytes; /* now, of the device's own; else 0 */
        char uuid[48];              /* "GPU-5d3c...", as nvidia-smi -L prints it; empty on a CPU */
        char pci[16];               /* "0000:65:00.0"; empty on a CPU */
};

/* The format of products. Params, gradients of params and the optimizer are always float. */
enum mfl_precision {
        MFL_PRECISION_FP32, /* float products, float sums */
        MFL_PRECISION_TF32, /* operands of convolutions, dense layers, matmul and attention's products rounded
                               to 10 bits of mantissa, to nearest; float sums */
        MFL_PRECISION_BF16, /* activations and copies of weights in bfloat16, float sums, float master
                               weights; normalisation statistics, softmax and loss in float. On the CPU
                               activations are float between products: kernels/cpu/base/bf16.h */
        MFL_PRECISION_FP16, /* the same in IEEE half, with a loss scale per group: it starts at 2^16,
                               halves on an overflow (which skips that step) and doubles after 2000 good
                               steps (Micikevicius et al. 2018) */
        MFL_PRECISION_COUNT_
};

/* What training does to images, in this order: it takes a window of the image's size, at a random offset,
 * from the image padded with `crop` zeros on each side (before scale and shift); then, with `flip`, it
 * mirrors the window left to right with probability 1/2. Row r of a step uses block r of
 * mfl_rng_augment_key(key, step): v[0] % (2 crop + 1) is the row offset, v[1] % (2 crop + 1) the column
 * offset, v[2] >> 31 the flip. */
struct mfl_augment {
        int crop; /* pixels; 0: none */
        bool flip;
};

/* What training minimises; z is the last layer's output. A sample has one or more scored predictions. Each
 * has a loss (kernels/bodies.h has the formulas), and the loss of a step is the mean over all its rows.
 *   labels    one prediction of `classes` logits at each position; a label that is negative or `ignored` is
 *             not scored. A hit: the first largest logit is the label
 *   targets   each of the data set's n_targets numbers is a prediction; a hit, of binary only:
 *             (z > 0) == (target > .5)
 * With `weights`, cross entropy's mean over a step is weighted, as PyTorch's: the weighted losses are divided
 * by the sum of the weights of the step's scored labels. Of focal, the weights are the paper's alpha_t, and of
 * binary they are PyTorch's pos_weight: both are divided by the number of predictions.
 *
 * Heads: with n_auxiliary > 0 the last layer has n_auxiliary + 1 times as many positions as a sample has
 * labels: those of the main output, then those of each auxiliary one, for the same labels. The loss is the
 * main output's, plus auxiliary_weights[i] times that of each other. Only the main output is scored. */
#define MFL_AUXILIARY_MAX 7
struct mfl_loss {
        enum mfl_loss_kind kind;
        float smoothing;  /* cross entropy: [0, 1) */
        float parameter;  /* focal: gamma >= 0; huber: delta > 0; smooth L1: beta > 0 */
        bool has_ignored; /* labels */
        int ignored;      /* a label that is not scored, as negative ones */
        int n_weights;    /* labels: 0 or graph->classes; binary: 0, 1 (for all targets) or graph->classes */
        int n_auxiliary;  /* labels: at most MFL_AUXILIARY_MAX */
        const float *weights; /* n_weights, >= 0; the caller's, for as long as the network lives */
        float auxiliary_weights[MFL_AUXILIARY_MAX];
};

/* What evaluation reports: no smoothing and no weights, and cross entropy in place of focal, so that jobs
 * compare. */
static inline struct mfl_loss mfl_loss_plain(const struct mfl_loss *loss)
{
        struct mfl_loss plain = *loss;
        plain.kind = loss->kind == MFL_LOSS_FOCAL ? MFL_LOSS_CROSS_ENTROPY : loss->kind;
        plain.smoothing = 0.0f;
        plain.n_weights = 0;
        plain.weights = (const float *)0;
        return plain;
}

/* What the predictions of one step share. */
struct mfl_loss_share {
        float scale; /* factor of the gradient of each prediction's weighted loss */
        float ratio; /* factor of the loss that is reported: with weights, the number of the step's scored
                        predictions by the sum of their weights, so that a score is still a mean */
};

/* What a training network keeps for each param beside it, for the optimizer. The network has memory for
 * nothing else: a step with an optimizer that keeps more is a programmer's error. */
enum mfl_moments {
        MFL_MOMENTS_ANY,    /* both: for any optimizer */
        MFL_MOMENTS_NONE,   /* SGD without momentum */
        MFL_MOMENTS_FIRST,  /* SGD with momentum */
        MFL_MOMENTS_SECOND, /* Adagrad */
};

#define MFL_SEGMENTS_AUTO (-1)
#define MFL_SEGMENTS_MAX 64

struct mfl_net_options {
        int batch;                    /* rows of the largest batch */
        int groups;                   /* G >= 1 */
        int threads;                  /* CPU threads that one network computes on, >= 1 */
        bool training;                /* false: no gradients, no optimizer state */
        enum mfl_precision precision; /* MFL_INVALID where the backend does not have it */
        /* false: bits depend only on the job and the kind of device. true: the backend takes what measures
         * fastest, even where another run or another G then has other last bits. */
        bool fast;
        bool shared_start; /* see params_base; ignored where that is NULL */
        bool streamed;     /* has room for data that is not resident; see data_new */
        /* Not training, one group, where the backend has `infer`: a network for that alone. */
        bool infer;
        struct mfl_augment augment;
        struct mfl_loss loss;
        enum mfl_tally tally; /* what evaluations can add up beside the score */
        /* Batches of one step (0: 1). The network adds their gradients, weighted so that the sum is the mean
         * over all rows of the step; then the optimizer steps once. Batch norm sees each batch separately.
         * Rows of dropout and augmentation are numbered over the step. */
        int accumulate;
        /* Training: the most segments that the graph is cut into (2 to MFL_SEGMENTS_MAX, or
         * MFL_SEGMENTS_AUTO). Only what crosses a cut is kept through the step. What backward reads within a
         * segment is computed again when the backward of that segment begins (Chen et al. 2016, "Training
         * Deep Nets with Sublinear Memory Cost"). Bits stay the same: randomness is a function of step and
         * layer, and only the first forward updates running statistics. 0, 1: everything is kept. */
        int segments;
        bool input_grad; /* training: has room for the gradient of the input, which `backward` may be asked
                            for */
        enum mfl_moments moments; /* training; for Adam and AdamW ANY */
        bool corrects;            /* training: has room for corrections, see correction_set */
        bool holds; /* training: steps may leave some params as they are, see mfl_optimizer.moves */
        /* Training, where the backend has `grad`, one group: a network of one of a team's workers (kernels/team/team.h). Of
         * what belongs to the params it keeps only these. It has no start, no optimizer's state, no gradient of the whole
         * and no sum of updates, so it has no params_base, step, backward, sum_add and sum_take. Only such a network has
         * `grad`. */
        bool worker;
        /* A worker's network: it uses the params of this one, which has the same graph and options, is used by other
         * threads meanwhile only as kernels/team/team.h says, and is freed later. params_set is for the other one alone.
         * NULL: its own. */
        struct mfl_net *sibling;
        /* A worker's network without a sibling: it has no memory for the params that move, and uses what the caller lends it
         * (kernels/grad.h). */
        bool lent;
};

static inline bool mfl_net_has_first(const struct mfl_net_options *options)
{
        return options->training && !options->worker &&
               (options->moments == MFL_MOMENTS_ANY || options->moments == MFL_MOMENTS_FIRST);
}

static inline bool mfl_net_has_second(const struct mfl_net_options *options)
{
        return options->training && !options->worker &&
               (options->moments == MFL_MOMENTS_ANY || options->moments == MFL_MOMENTS_SECOND);
}

/* Whether some layers are computed again. */
static inline bool mfl_net_recomputes(const struct mfl_net_options *options)
{
        return options->segments > 1 || options->segments == MFL_SEGMENTS_AUTO;
}

/* How a network's tensors lie during a step. */
struct mfl_net_plan {
        uint64_t tensor_bytes; /* of all groups that have room at once: activations, their gradients and
                                  what layers keep */
        int segments;          /* 1: everything is kept */
};

/* One step of a parameter p with gradient g, as in PyTorch. t counts a group's steps from 1 on, since its
 * params_set, which zeroes the state. p0 are the params of params_set. lr is that of the step: lr *
 * group.lr_scale[step].
 *   all:     g += the group's correction (correction_set); g += prox_mu * (p - p0) (FedProx: Li et al. 2020, eq. 2: the loss includes the proximal term). Then
 *            g is scaled by min(1, clip_norm / (norm + 1e-6)) where clip_norm > 0; norm is that of the
 *            gradient of all trained params together. Then, except for AdamW, g += weight_decay * p. Without
 *            clip_prox, g is clipped before the proximal term is added: for jobs that began so
 *   SGD:     m = momentum * m + g (m = g at the first step); p -= lr * (nesterov ? g + momentum * m : m)
 *   Adam:    m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2;
 *            p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)          (Kingma and Ba 2015)
 *   AdamW:   p -= lr * weight_decay * p first, then Adam                   (Loshchilov and Hutter 2019)
 *   Adagrad: v = v + g^2; p -= lr * g / (sqrt(v) + eps)                            (Duchi et al. 2011) */
enum mfl_optimizer_kind {
        MFL_OPTIMIZER_SGD,
        MFL_OPTIMIZER_ADAM,
        MFL_OPTIMIZER_ADAMW,
        MFL_OPTIMIZER_ADAGRAD,
};
struct mfl_optimizer {
        enum mfl_optimizer_kind kind;
        float lr, momentum, weight_decay, prox_mu;
        float beta1, beta2, eps; /* Adam, AdamW; Adagrad: eps */
        float clip_norm;         /* 0: none */
        bool nesterov;
        bool clip_prox; /* the norm includes the proximal term */
        /* What the step moves; for other than all, options.holds is set. The rest stays as it is, to the bit, running
         * statistics and the optimizer's state too, and is no part of the norm. Not in teams. */
        enum mfl_moves moves;
};

/* Whether the proximal term must be in the gradient before the optimizer's step. */
static inline bool mfl_optimizer_clips_prox(const struct mfl_optimizer *opt)
{
        return opt->clip_prox && opt->clip_norm > 0.0f && opt->prox_mu != 0.0f;
}

static inline enum mfl_moments mfl_optimizer_moments(const struct mfl_optimizer *opt)
{
        if (opt->kind == MFL_OPTIMIZER_SGD)
                return opt->momentum != 0.0f ? MFL_MOMENTS_FIRST : MFL_MOMENTS_NONE;
        return opt->kind == MFL_OPTIMIZER_ADAGRAD ? MFL_MOMENTS_SECOND : MFL_MOMENTS_ANY;
}

/* Whether a network with these moments has room for what this optimizer keeps. */
static inline bool mfl_moments_hold(enum mfl_moments moments, const struct mfl_optimizer *opt)
{
        enum mfl_moments own = mfl_optimizer_moments(opt);
        return moments == MFL_MOMENTS_ANY || own == MFL_MOMENTS_NONE || own == moments;
}

/* Sums over scored predictions. */
struct mfl_score {
        int64_t loss_sum; /* mfl_fixed_loss units */
        uint64_t n_correct, n_scored;
        /* Evaluation: what it adds to, the caller's, mfl_tally_size(options.tally, graph->classes) numbers; NULL: not
         * wanted. */
        uint64_t *tally;
};

/* One group's share of a call: n_steps steps over samples of `data`. With rows = batch * accumulate, step t
 * uses rows index[t * rows .. + count[t]), where count[t] <= rows. count[t] = 0 leaves the group untouched in
 * that step. */
struct mfl_group_steps {
        const uint32_t *index;
        const uint32_t *count;
        struct mfl_rng_key dropout; /* mfl_rng_derive(seed, MFL_RNG_DROPOUT, client, round) */
        struct mfl_rng_key augment; /* mfl_rng_derive(seed, MFL_RNG_AUGMENT, client, round) */
        uint32_t step_first;   /* number of the call's first step within the local training, for dropout and
                                augmentation */
        const float *lr_scale; /* factor of the learning rate in each step; NULL: 1 */
        /* Out, added to what is there: */
        struct mfl_score score; /* of the predictions before each step */
        uint64_t n_samples;     /* rows */
};

#define MFL_STEPS_MAX 1024u /* in one call of step */
#define MFL_SELFTEST_NAME 96

/* Samples as they are stored: n * n_planes * plane elements, and what the model sees of them (common/data/dataset.h). */
struct mfl_rows {
        const void *samples;
        enum mfl_dtype dtype;
        int64_t n_planes, plane;
        const float *scale, *shift; /* n_planes; ignored for MFL_I32 */
};

/* What `time` measures. */
enum mfl_timed {
        MFL_TIMED_FORWARD,
        MFL_TIMED_BACKWARD,
        MFL_TIMED_STEP,
};

/* ---- devices of one host that add their sums to each other (cuda: NCCL) ---- */

#define MFL_COMM_ID_BYTES 128 /* ncclUniqueId */

enum {
        MFL_COMM_BROKEN = 17, /* cancelled, too late, or another rank is gone: close the communicator */
};

/* What the caller of a function may watch and do while it runs, from any thread. Zeroed before the call. */
#ifndef __cplusplus
struct mfl_comm_control {
        atomic_bool cancel; /* the call returns MFL_COMM_BROKEN soon */
        _Atomic uint64_t
                ready; /* this many elements of the sum, from the first on, are final in the host's memory */
        void (*advanced)(void *user); /* `ready` has grown; called on one of the function's threads. NULL:
                                         no calls */
        void *user;
};

/* control NULL: nobody watches. */
static inline void mfl_comm_advance(struct mfl_comm_control *control, uint64_t ready)
{
        if (!control)
                return;
        atomic_store_explicit(&control->ready, ready, memory_order_release);
        if (control->advanced)
                control->advanced(control->user);
}

/* About how many elements of a sum become ready at once: a chunk on the wire. */
#define MFL_SUM_RANGE ((uint64_t)1 << 17)

/* Communicators among devices. Every function blocks, but polls its control and its deadline, so that none
 * hangs when a rank dies. A communicator belongs to one thread at a time. */
struct mfl_comm_ops {
        /* The library that this process would use, for people and for comparison: "NCCL 2.28.9". Ranks must
         * have the same. MFL_INVALID, with the reason, where this device has none (no library, a MIG
         * instance). */
        int (*version)(
                struct mfl_device *device, char text[64], uint32_t *ret_version, struct mfl_error *err);
        /* A new communicator's id. One rank makes it; all ranks open with it. */
        int (*id)(struct mfl_device *device, uint8_t id[MFL_COMM_ID_BYTES], struct mfl_error *err);
        int (*open)(struct mfl_device *device, const uint8_t id[MFL_COMM_ID_BYTES], uint32_t rank,
                uint32_t n_ranks, uint32_t deadline_ms, struct mfl_comm_control *control,
                struct mfl_comm **ret_comm, struct mfl_error *err);
        /* Adds the ranks' sums, all of the same length. At the root (out is not NULL) the total arrives in
         * out[0 .. n), in the host's memory, range by range; control->ready says how far. `own` is not
         * changed. All ranks must call it in the same order with the same root. After an error the
         * communicator can no longer be used. */
        int (*reduce)(struct mfl_comm *comm, struct mfl_sum *own, uint32_t root, int64_t *out,
                uint32_t deadline_ms, struct mfl_comm_control *control, struct mfl_error *err);
        /* Aborts what still runs, without waiting for other ranks. NULL is fine. */
        void (*close)(struct mfl_comm *comm);
        /* A communicator as a mesh (kernels/mesh/mesh.h), for a team's vectors in the devices' memory (kernels/grad.h): all-reduce and
         * reduce-scatter of integers, all-gather of floats. *cancel (NULL: nobody does) ends the opening. Errors as of
         * `open`, but MFL_MESH_BROKEN in place of MFL_COMM_BROKEN. */
        int (*mesh)(struct mfl_device *device, const uint8_t id[MFL_COMM_ID_BYTES], uint32_t rank,
                uint32_t n_ranks, uint32_t deadline_ms, const atomic_bool *cancel, struct mfl_mesh **ret_mesh,
                struct mfl_error *err);
};
#else
struct mfl_comm_control;
struct mfl_comm_ops;
#endif

/* One part of the flat vector of params: in the host's memory, and the same floats on the device if they were
 * staged. */
struct mfl_params_part {
        const float *host;
        const struct mfl_stage *stage; /* NULL: not staged */
};

struct mfl_backend_ops {
        uint32_t abi;
        const char *name;

        int (*device_open)(struct mfl_device **ret_device, struct mfl_error *err);
        void (*device_close)(struct mfl_device *device);
        void (*device_info)(const struct mfl_device *device, struct mfl_device_info *ret_info);

        /* Makes a split readable by networks of this device. The handle refers to the split, which must
         * outlive it. With `resident`, and where data_bytes is not 0, the split is copied once to the
         * device's own memory. Otherwise networks made with `streamed` read it through pinned buffers when
         * they need it. */
        int (*data_new)(struct mfl_device *device, const struct mfl_dataset *dataset,
                const struct mfl_split *split, bool resident, struct mfl_device_data **ret_data,
                struct mfl_error *err);
        /* Bytes of the device's own memory that a resident split takes; NULL: 0. */
        uint64_t (*data_bytes)(const struct mfl_dataset *dataset, const struct mfl_split *split);
        void (*data_free)(struct mfl_device_data *data);

        int (*net_new)(struct mfl_device *device, const struct mfl_graph *graph,
                const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err);
        void (*net_free)(struct mfl_net *net);
        /* Bytes that net_new would allocate (of the device's own memory where it has one), for budgets. The
         * graph must be valid. */
        uint64_t (*net_bytes)(const struct mfl_graph *graph, const struct mfl_net_options *options);
        void (*net_plan)(const struct mfl_net *net, struct mfl_net_plan *ret_plan);

        /* Sets the params of group g, given as the two parts of the graph's flat vector (graph->n_frozen and
         * n_moving floats; frozen is NULL where there are none). This starts a local training and zeroes the
         * optimizer's state. params_base (NULL: not there) keeps one copy of params on the device; params_set
         * with moving NULL then starts the group from it, so that many clients with the same start cost one
         * transfer. With options.shared_start, groups start only this way, and the network keeps no copy for
         * each group. `frozen` stays the caller's, unchanged, until the group (or the base) is set again or the
         * network is not used any more: a backend may read it in place. params_get: floats [first, n) of the flat
         * vector; pass n_frozen for those that can have changed. (Inside, a network keeps the params that move, or all, for
         * each group, and as many numbers for gradients and sums.) */
        int (*params_base)(
                struct mfl_net *net, const float *frozen, const float *moving, struct mfl_error *err);
        int (*params_set)(struct mfl_net *net, int group, const float *frozen, const float *moving,
                struct mfl_error *err);
        int (*params_get)(
                struct mfl_net *net, int group, uint64_t first, float *params, struct mfl_error *err);
        /* Adds `moving` (n_moving floats, read before it returns) to the gradient of each of the group's steps, until its
         * next params_set or correction_set; NULL: nothing. Only trained params have a gradient: the others' floats are
         * ignored. Only with options.corrects; not in teams. */
        int (*correction_set)(struct mfl_net *net, int group, const float *moving, struct mfl_error *err);
        /* Params that come to the device's own memory while they still arrive: stage_new makes room for n
         * floats, stage_put copies floats [first, first + n) of them and has read the host's memory when it
         * returns. A stage belongs to one thread at a time, but not to that of any network. params_staged is
         * params_set from such parts, or with group -1 params_base; the stage may be freed or filled again
         * when it returns. stage_bytes: of device memory. All NULL where networks read the host's memory. */
        int (*stage_new)(
                struct mfl_device *device, uint64_t n, struct mfl_stage **ret_stage, struct mfl_error *err);
        void (*stage_free)(struct mfl_stage *stage); /* NULL is fine */
        int (*stage_put)(struct mfl_stage *stage, uint64_t first, const float *params, uint64_t n,
                struct mfl_error *err);
        uint64_t (*stage_bytes)(uint64_t n);
        int (*params_staged)(struct mfl_net *net, int group, const struct mfl_params_part *frozen,
                const struct mfl_params_part *moving, struct mfl_error *err);
        /* The network's own sum of updates, on the device. Both are NULL where this gains nothing; the caller
         * then uses params_get.
         * sum_add: for every group with weight[g] > 0, sum += round(weight[g] * (params(g) - params_set(g)) *
         * 2^s), with the bits of mfl_fixed_add_delta. A group with an element that is not finite or beyond
         * delta_max adds nothing, and n_bad[g] becomes the number of such elements (otherwise 0, also for
         * weight 0).
         * sum_take: acc[0 .. n_moving) = the sum over the params that move (with `add`: +=; acc NULL: drops
         * it). The sum is 0 again afterwards, as after net_new. acc fills range by range from the first
         * element on, and `control` says how far (NULL: nobody watches; cancel has no effect).
         */
        int (*sum_add)(struct mfl_net *net, const struct mfl_fixed *fixed, const uint64_t *weight,
                uint64_t *n_bad, struct mfl_error *err);
        int (*sum_take)(struct mfl_net *net, int64_t *acc, bool add, struct mfl_comm_control *control,
                struct mfl_error *err);
        /* A sum of n elements in the device's own memory, where comm can reach it; it outlives the task that
         * made it. New sums hold zeros. sum_move: sum += the sum of a network of this device with n moving
         * params; the network's sum becomes 0. sum_read copies the whole sum to the host, range by range as
         * sum_take does; a reduction of it may run at the same time. sum_bytes: bytes of device memory. All
         * of them are NULL where comm is NULL. */
        int (*sum_new)(
                struct mfl_device *device, uint64_t n, struct mfl_sum **ret_sum, struct mfl_error *err);
        void (*sum_free)(struct mfl_sum *sum);
        int (*sum_clear)(struct mfl_sum *sum, struct mfl_error *err);
        int (*sum_move)(struct mfl_net *net, struct mfl_sum *sum, struct mfl_error *err);
        int (*sum_read)(
                struct mfl_sum *sum, int64_t *out, struct mfl_comm_control *control, struct mfl_error *err);
        uint64_t (*sum_bytes)(uint64_t n);
        const struct mfl_comm_ops *comm; /* NULL: this backend has none */
        /* How many groups to train at once, at most `wanted`: as many as memory_bytes holds, and only while
         * one more still makes a client cheaper (the knee of the curve, measured or known). NULL: 1.
         * options->groups is ignored. MFL_INVALID, with both sizes, when not even one fits. */
        int (*fuse)(struct mfl_device *device, const struct mfl_graph *graph,
                const struct mfl_net_options *options, int wanted, uint64_t memory_bytes, int *ret_groups,
                struct mfl_error *err);

        /* n_steps optimizer steps for every group; groups has G entries. n_steps <= MFL_STEPS_MAX. */
        int (*step)(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *groups,
                uint32_t n_steps, const struct mfl_optimizer *opt, struct mfl_error *err);
        /* One client over several networks. NULL: this backend trains a client by one network alone. */
        const struct mfl_grad_ops *grad;
        /* Score of rows index[0 .. n) under group g's params, without dropout, by mfl_loss_plain, in
         * batches of the net's size from index[0] on. ret_score->tally is the caller's, and is set before. Callers cut work at multiples of that size, so that
         * batches are always the same. */
        int (*eval)(struct mfl_net *net, int group, const struct mfl_device_data *data, const uint32_t *index,
                uint32_t n, struct mfl_score *ret_score, struct mfl_error *err);

        /* Outputs of n <= batch samples under group 0's params, without dropout: y is n * outputs floats, NCHW. A sample's
         * output has the same bits for every n and whatever the other samples are; n samples cost about as much as a
         * network of that batch. Only with options.infer. NULL: this backend has none; forward of a whole batch
         * replaces it. */
        int (*infer)(
                struct mfl_net *net, const struct mfl_rows *x, uint32_t n, float *y, struct mfl_error *err);

        /* Nanoseconds of the device itself, launch after launch, without waiting for the host. It measures a
         * forward, a forward and backward (of the data that lies there, with buffers that are not in its
         * cache), or a step like the first of the last call of `step`; that call's data must still exist and
         * be resident. The host's share of a call of step is what the call takes beyond its steps. Params and
         * results stay as they are. MFL_INVALID: not possible now; the text says why. NULL: host and device
         * are the same. */
        int (*time)(struct mfl_net *net, enum mfl_timed what, double *ret_ns, struct mfl_error *err);
        /* Nanoseconds of this network's steps and evaluations so far in which it gathered batches and
         * computed nothing. NULL: gathering is part of the computing, or hidden behind it. */
        uint64_t (*gather_ns)(struct mfl_net *net);

        /* For conformance. x: batch * input floats per group, group-major. y: the last layer's output, NCHW,
         * batch * output floats per group. dropout: G keys for training mode at step 0, which updates the
         * running statistics among the params once; NULL: inference. */
        int (*forward)(struct mfl_net *net, const float *x, const struct mfl_rng_key *dropout, float *y,
                struct mfl_error *err);
        /* After a forward of a training net, and in its mode: computes, from dy (laid out like y), the
         * gradient of the input (like x; NULL: not wanted; else options.input_grad must be set) and of the
         * params (G * n floats, overwritten; 0 for those that are not trained). */
        int (*backward)(
                struct mfl_net *net, const float *dy, float *dx, float *dparams, struct mfl_error *err);
        /* Checks of the backend's inner choices, which this table does not show: on a GPU, every variant of a
         * kernel against the first, bit for bit, and libraries against own kernels. Parts are numbered from
         * 0. selftest_name: false after the last part. selftest: one report for each check; errors as above,
         * when it cannot go on. Both NULL: nothing to check. */
        bool (*selftest_name)(struct mfl_device *device, int part, char name[MFL_SELFTEST_NAME]);
        int (*selftest)(struct mfl_device *device, int part,
                void (*report)(void *user, bool ok, const char *text), void *user, struct mfl_error *err);
};

#ifndef __cplusplus
/* params_set with a flat vector in one piece; params NULL: from the base. */
static inline int mfl_backend_set(const struct mfl_backend_ops *ops, struct mfl_net *net,
        const struct mfl_graph *graph, int group, const float *params, struct mfl_error *err)
{
        return ops->params_set(net, group, params, params ? params + graph->n_frozen : NULL, err);
}
#endif

/* Opens a backend by name: "reference", "cpu", "cuda", or "auto" (the first of cuda, cpu, reference that
 * opens). Modules are searched for in $MFL_MODULE_DIR, beside the executable, in ../lib/mfl relative to it,
 * in a build tree, and in the installation's directory. The table lives until the process ends.
 * MFL_NOT_FOUND: no such module here, with the reason; MFL_INVALID: another ABI. Not thread-safe; call once
 * at start. */
int mfl_backend_open(const char *name, const struct mfl_backend_ops **ret_ops, struct mfl_error *err);
extern const struct mfl_backend_ops mfl_backend_reference;

/* What a module exports. */
#define MFL_BACKEND_SYMBOL "mfl_backend_module"

#endif
