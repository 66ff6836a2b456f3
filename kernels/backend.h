/* SPDX-License-Identifier: Apache-2.0 */
/* A backend: where arithmetic happens. `reference` (plain loops, the specification) is built in; `cpu`
 * (oneDNN) and `cuda` are modules opened at run time, so that a program starts at once where a library is
 * missing.
 *
 * The unit of a backend is a network, not an operator. A network is a graph compiled for a batch size and a
 * number of groups G (clients trained at once): G parameter vectors, G data batches, G streams of random
 * numbers, G step masks, one call. The layout of tensors, the schedule, the arena and the fusion of operators
 * are the backend's own business (blocked layouts on the CPU, a captured CUDA graph on a GPU); what crosses
 * this table is plain: flat parameter vectors in the order of the graph's table, NCHW samples, sample
 * numbers. An operator alone is a network of one layer: that is how the conformance program tests each of
 * them, on every backend, through this same table.
 *
 * Threads: a device may be used by several threads; a network belongs to one thread at a time. Everything
 * blocks. No allocation happens inside step, eval, forward or backward. A group's result does not depend on
 * G, on its place among the groups, nor on the other groups' data. Errors: 0; MFL_INVALID (text) for a graph
 * or option that the backend cannot do; negative when the device or the memory is broken.
 */
#ifndef MFL_KERNELS_BACKEND_H
#define MFL_KERNELS_BACKEND_H

#ifndef __cplusplus /* kernels see this header too, as C++, which has no such types */
#include <stdatomic.h>
#endif

#include "common/base.h"
#include "common/data/dataset.h"
#include "common/fixed.h"
#include "common/model/graph.h"
#include "common/rng.h"

#define MFL_BACKEND_ABI 8

struct mfl_device;
struct mfl_net;
struct mfl_device_data;
struct mfl_sum;
struct mfl_comm;

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

/* What products are computed in. Params, gradients of params and the optimizer are float always. */
enum mfl_precision {
        MFL_PRECISION_FP32, /* float products, float sums */
        MFL_PRECISION_TF32, /* operands of convolutions, dense layers, matmul and attention's products rounded
                               to 10 bits of mantissa, to nearest; float sums */
        MFL_PRECISION_BF16, /* activations and copies of weights in bfloat16, float sums, float master
                               weights; normalisation statistics, softmax and loss in float. On the CPU
                               activations are float between products: kernels/cpu/bf16.h */
        MFL_PRECISION_FP16, /* the same in IEEE half, with a loss scale per group that starts at 2^16, halves
                               on an overflow (that step is left out) and doubles after 2000 good steps
                               (Micikevicius et al. 2018) */
        MFL_PRECISION_COUNT_
};

/* Of images in training, in this order: a window of the image's size at a random offset of the image padded
 * with `crop` zeros (before scale and shift) on each side; then, with `flip`, mirrored left to right with
 * probability 1/2. Row r of a step uses block r of mfl_rng_augment_key(key, step): v[0] % (2 crop + 1) is the
 * row offset, v[1] % (2 crop + 1) the column offset, v[2] >> 31 the flip. */
struct mfl_augment {
        int crop; /* pixels; 0: none */
        bool flip;
};

/* What is minimised, z being the last layer's output. A sample has one or more predictions that are scored:
 * each has a loss, and the loss of a step is the mean of those of all its rows.
 *   cross entropy: one prediction of `classes` logits at each position (graph->positions of them); a negative
 *     label is not scored. With smoothing e the target is 1 - e on the label and e / classes on every class,
 *     as in PyTorch (Szegedy et al. 2016). A hit: the first largest logit is the label
 *   binary cross entropy with logits: each of the data set's n_targets is one; a hit: (z > 0) == (target >
 * .5) mean squared error: the same with (z - target)^2; no hits */
enum mfl_loss_kind {
        MFL_LOSS_CROSS_ENTROPY,
        MFL_LOSS_BINARY,
        MFL_LOSS_SQUARED,
};
struct mfl_loss {
        enum mfl_loss_kind kind;
        float smoothing; /* [0, 1) */
};

#define MFL_SEGMENTS_AUTO (-1)
#define MFL_SEGMENTS_MAX 64

struct mfl_net_options {
        int batch;                    /* rows of a batch, the largest */
        int groups;                   /* G >= 1 */
        int threads;                  /* CPU threads that one network computes on, >= 1 */
        bool training;                /* false: no gradients, no optimizer state */
        enum mfl_precision precision; /* a backend that has not got it says MFL_INVALID */
        /* false: bits depend on the job and the kind of device alone. true: what measures fastest, also where
         * another run or another G then gives other last bits. */
        bool fast;
        bool shared_start; /* see params_base; ignored where that is NULL */
        bool streamed;     /* has room for data that is not resident; see data_new */
        struct mfl_augment augment;
        struct mfl_loss loss;
        /* A step of so many batches: their gradients are added, weighted so that it is the mean over all rows
         * of the step, then the optimizer steps once (0: 1). Batch norm sees each batch by itself. Rows of
         * dropout and augmentation are numbered over the step. */
        int accumulate;
        /* Training: the graph is cut into at most so many segments (2 to MFL_SEGMENTS_MAX, or
         * MFL_SEGMENTS_AUTO), and what backward reads within one is computed again when its backward comes
         * (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"), so that only what crosses a
         * cut is kept through the step. Bits stay the same: randomness is a function of step and layer, and
         * running statistics move at the first forward only. 0, 1: everything is kept. */
        int segments;
        bool input_grad; /* training: room for the gradient of the input, which `backward` may be asked for */
};

/* Whether some of the layers are computed again. */
static inline bool mfl_net_recomputes(const struct mfl_net_options *options)
{
        return options->segments > 1 || options->segments == MFL_SEGMENTS_AUTO;
}

/* How a network's tensors of a step lie. */
struct mfl_net_plan {
        uint64_t tensor_bytes; /* of activations, their gradients and what layers keep, of all groups that
                                  have room at once */
        int segments;          /* 1: everything is kept */
};

/* One step of a parameter p with gradient g, as in PyTorch; t counts a group's steps from 1 on, since its
 * params_set, which zeroes the state. p0 are the params of params_set.
 *   all:     g is scaled by min(1, clip_norm / (norm + 1e-6)) where clip_norm > 0, norm being that of the
 *            gradient of all trained params together; then g += prox_mu * (p - p0) (FedProx: Li et al. 2020,
 *            eq. 2), and but for AdamW g += weight_decay * p
 *   SGD:     m = momentum * m + g (m = g at the first step); p -= lr * (nesterov ? g + momentum * m : m)
 *   Adam:    m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2;
 *            p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)           (Kingma and Ba 2015)
 *   AdamW:   p -= lr * weight_decay * p first, then Adam                    (Loshchilov and Hutter 2019)
 *   Adagrad: v = v + g^2; p -= lr * g / (sqrt(v) + eps)                             (Duchi et al. 2011)
 * lr is that of the step: lr * group.lr_scale[step]. */
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
};

/* Sums over predictions that were scored. */
struct mfl_score {
        int64_t loss_sum; /* mfl_fixed_loss units */
        uint64_t n_correct, n_scored;
};

/* One group's share of a call: n_steps steps over samples of `data`. With rows = batch * accumulate, step t
 * uses rows index[t * rows .. + count[t]); count[t] <= rows; count[t] = 0 leaves the group untouched in that
 * step. */
struct mfl_group_steps {
        const uint32_t *index;
        const uint32_t *count;
        struct mfl_rng_key dropout; /* mfl_rng_derive(seed, MFL_RNG_DROPOUT, client, round) */
        struct mfl_rng_key augment; /* mfl_rng_derive(seed, MFL_RNG_AUGMENT, client, round) */
        uint32_t step_first; /* number of the first step within the local training, for dropout, augmentation
                              */
        const float *lr_scale; /* factor of the learning rate in each step; NULL: 1 */
        /* out, added to what is there: */
        struct mfl_score score; /* of the predictions before each step */
        uint64_t n_samples;     /* rows */
};

#define MFL_STEPS_MAX 1024u /* of one call of step */

/* ---- devices of one host that add their sums among themselves (cuda: NCCL) ---- */

#define MFL_COMM_ID_BYTES 128 /* ncclUniqueId */

enum {
        MFL_COMM_BROKEN = 17, /* cancelled, too late, or another rank is gone: close the communicator */
};

/* What the starter of a call may watch and do meanwhile, from any thread. Zeroed before the call. */
#ifndef __cplusplus
struct mfl_comm_control {
        atomic_bool cancel; /* the call returns MFL_COMM_BROKEN soon */
        _Atomic uint64_t
                ready; /* elements of the sum in the host's memory that are final, from the first on */
};
#else
struct mfl_comm_control;
#endif

/* Communicators among devices; every function blocks but polls its control and its deadline, so none hangs
 * with a rank that died. A communicator belongs to one thread at a time. */
struct mfl_comm_ops {
        /* What this process would use, for people and to be compared: "NCCL 2.28.9". Ranks must have the
         * same. MFL_INVALID, with the reason, where there is none for this device (no library, a MIG
         * instance). */
        int (*version)(
                struct mfl_device *device, char text[64], uint32_t *ret_version, struct mfl_error *err);
        /* A new communicator's id: one rank makes it, all ranks open with it. */
        int (*id)(struct mfl_device *device, uint8_t id[MFL_COMM_ID_BYTES], struct mfl_error *err);
        int (*open)(struct mfl_device *device, const uint8_t id[MFL_COMM_ID_BYTES], uint32_t rank,
                uint32_t n_ranks, uint32_t deadline_ms, struct mfl_comm_control *control,
                struct mfl_comm **ret_comm, struct mfl_error *err);
        /* Adds the ranks' sums, all of the same length; at the root (out is not NULL) the total comes to
         * out[0 .. n) in the host's memory, range by range, control->ready telling how far. `own` is not
         * changed. All ranks must call it in the same order with the same root. After any error the
         * communicator is of no use any more. */
        int (*reduce)(struct mfl_comm *comm, struct mfl_sum *own, uint32_t root, int64_t *out,
                uint32_t deadline_ms, struct mfl_comm_control *control, struct mfl_error *err);
        /* Aborts what still runs; does not wait for other ranks. NULL is fine. */
        void (*close)(struct mfl_comm *comm);
};

struct mfl_backend_ops {
        uint32_t abi;
        const char *name;

        int (*device_open)(struct mfl_device **ret_device, struct mfl_error *err);
        void (*device_close)(struct mfl_device *device);
        void (*device_info)(const struct mfl_device *device, struct mfl_device_info *ret_info);

        /* Makes a split readable by networks of this device. It stays referenced, so it must outlive the
         * handle. With `resident`, and where data_bytes is not 0, it is copied to the device's own memory
         * once; without, networks made with `streamed` read it through pinned buffers as they need it. */
        int (*data_new)(struct mfl_device *device, const struct mfl_dataset *dataset,
                const struct mfl_split *split, bool resident, struct mfl_device_data **ret_data,
                struct mfl_error *err);
        /* Bytes of the device's own memory that a resident split takes; NULL: 0. */
        uint64_t (*data_bytes)(const struct mfl_dataset *dataset, const struct mfl_split *split);
        void (*data_free)(struct mfl_device_data *data);

        int (*net_new)(struct mfl_device *device, const struct mfl_graph *graph,
                const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err);
        void (*net_free)(struct mfl_net *net);
        /* Bytes that net_new would allocate (of the device's own memory where it has one), for budgets; the
         * graph is assumed valid. */
        uint64_t (*net_bytes)(const struct mfl_graph *graph, const struct mfl_net_options *options);
        void (*net_plan)(const struct mfl_net *net, struct mfl_net_plan *ret_plan);

        /* Group g gets these params, in the two parts of the graph's flat vector (graph->n_frozen and
         * n_moving floats, frozen NULL where there are none): start of a local training; optimizer state is
         * zeroed. With params_base (NULL: not there), clients that all start from the same params cost one
         * transfer: params_base keeps a copy on the device, and params_set with moving NULL starts the group
         * from it. With options.shared_start groups start in this way only, and no copy is kept for each.
         * params_get: floats [first, n) of the flat vector; n_frozen for those that can have changed.
         * (Inside, a network keeps all params for each group, and as many numbers for gradients and sums.) */
        int (*params_base)(
                struct mfl_net *net, const float *frozen, const float *moving, struct mfl_error *err);
        int (*params_set)(struct mfl_net *net, int group, const float *frozen, const float *moving,
                struct mfl_error *err);
        int (*params_get)(
                struct mfl_net *net, int group, uint64_t first, float *params, struct mfl_error *err);
        /* The network's own sum of updates, on the device; both NULL where there is no gain (the caller then
         * uses params_get). sum_add: for every group with weight[g] > 0, sum += round(weight[g] * (params(g)
         * - params_set(g)) * 2^s), the bits of mfl_fixed_add_delta; a group with an element that is not
         * finite or beyond delta_max adds nothing, and n_bad[g] is set to the number of such elements (0
         * else, and for weight 0). sum_take: acc[0..n_moving) += sum of the params that move (acc NULL: it is
         * dropped), and the sum is 0 again, as after net_new. */
        int (*sum_add)(struct mfl_net *net, const struct mfl_fixed *fixed, const uint64_t *weight,
                uint64_t *n_bad, struct mfl_error *err);
        int (*sum_take)(struct mfl_net *net, int64_t *acc, struct mfl_error *err);
        /* A sum of n elements that outlives the task it comes from, in the device's own memory, where comm
         * can reach it; new ones hold zeros. sum_move: sum += the network's own sum, which is 0 then; any
         * network of the device with n parameters that move. sum_read: the whole sum to the host. sum_bytes:
         * of device memory. All five NULL where comm is. */
        int (*sum_new)(
                struct mfl_device *device, uint64_t n, struct mfl_sum **ret_sum, struct mfl_error *err);
        void (*sum_free)(struct mfl_sum *sum);
        int (*sum_clear)(struct mfl_sum *sum, struct mfl_error *err);
        int (*sum_move)(struct mfl_net *net, struct mfl_sum *sum, struct mfl_error *err);
        int (*sum_read)(struct mfl_sum *sum, int64_t *out, struct mfl_error *err);
        uint64_t (*sum_bytes)(uint64_t n);
        const struct mfl_comm_ops *comm; /* NULL: this backend has none */
        /* How many groups to train at once, at most `wanted`: what fits memory_bytes, and no more than still
         * makes a client cheaper (the knee of the curve, measured or known). NULL: 1. options->groups is
         * ignored. MFL_INVALID, with both sizes, when not even one fits. */
        int (*fuse)(struct mfl_device *device, const struct mfl_graph *graph,
                const struct mfl_net_options *options, int wanted, uint64_t memory_bytes, int *ret_groups,
                struct mfl_error *err);

        /* n_steps optimizer steps for every group; groups has G entries. n_steps <= MFL_STEPS_MAX. */
        int (*step)(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *groups,
                uint32_t n_steps, const struct mfl_optimizer *opt, struct mfl_error *err);
        /* Score of rows index[0 .. n) under group g's params, dropout off and without smoothing, in batches
         * of the net's size from index[0] on (callers cut work at multiples of it, so that batches are always
         * the same). */
        int (*eval)(struct mfl_net *net, int group, const struct mfl_device_data *data, const uint32_t *index,
                uint32_t n, struct mfl_score *ret_score, struct mfl_error *err);

        /* Nanoseconds that the device worked on the steps of this network so far, by the device's own clock;
         * what a call of step takes longer is the host's share. NULL: host and device are one. */
        uint64_t (*busy_ns)(struct mfl_net *net);
        /* Nanoseconds of this network's steps and evaluations so far that went into putting batches together,
         * while nothing was computed. NULL: that is a part of the computing, or hidden behind it. */
        uint64_t (*gather_ns)(struct mfl_net *net);

        /* For conformance. x: batch * input floats per group, group-major; y: the last layer's output, NCHW,
         * batch * output floats per group. dropout: G keys for training mode at step 0 (which updates the
         * running statistics among the params, once), NULL for inference. */
        int (*forward)(struct mfl_net *net, const float *x, const struct mfl_rng_key *dropout, float *y,
                struct mfl_error *err);
        /* After a forward of a training net, and in its mode: from dy (like y) the gradient of the input
         * (like x; NULL: not wanted; options.input_grad else) and of the params (G * n floats, overwritten; 0
         * for those that are not trained). */
        int (*backward)(
                struct mfl_net *net, const float *dy, float *dx, float *dparams, struct mfl_error *err);
        /* What a backend can check of its inner choices that this table does not show (on a GPU: every
         * variant of a kernel against the first, bit for bit; libraries against own kernels): one report
         * each. NULL: nothing. Errors as above, when it could not go on. */
        int (*selftest)(struct mfl_device *device, void (*report)(void *user, bool ok, const char *text),
                void *user, struct mfl_error *err);
};

#ifndef __cplusplus
/* params_set of a flat vector that lies in one piece; params NULL: from the base. */
static inline int mfl_backend_set(const struct mfl_backend_ops *ops, struct mfl_net *net,
        const struct mfl_graph *graph, int group, const float *params, struct mfl_error *err)
{
        return ops->params_set(net, group, params, params ? params + graph->n_frozen : NULL, err);
}
#endif

/* Opens a backend by name: "reference", "cpu", "cuda", or "auto" (the first of cuda, cpu, reference that
 * opens). Modules are looked for in $MFL_MODULE_DIR, beside the executable, in ../lib/mfl relative to it, in
 * a build tree, and in the installation's directory. The table lives until the process ends. MFL_NOT_FOUND:
 * no such module here, with the reason; MFL_INVALID: another ABI. Not thread-safe; call once at start. */
int mfl_backend_open(const char *name, const struct mfl_backend_ops **ret_ops, struct mfl_error *err);
extern const struct mfl_backend_ops mfl_backend_reference;

/* What a module exports. */
#define MFL_BACKEND_SYMBOL "mfl_backend_module"

#endif
