/* SPDX-License-Identifier: Apache-2.0 */
/* One group's pass through the arena, and what each operator's forward and backward does in it. */
#ifndef MFL_KERNELS_CPU_PASS_H
#define MFL_KERNELS_CPU_PASS_H

#include "kernels/cpu/net.h"

struct pass {
        struct mfl_net *net;
        int group;
        int64_t rows, first_row;           /* rows with samples; number of the first within the step */
        const struct mfl_rng_key *dropout; /* NULL: inference */
        bool running;                      /* a forward updates running statistics, once */
        uint32_t step;
        enum mfl_moves moves;
        /* The optimizer whose step is taken on a tensor as soon as its gradient exists; NULL: gradients are
         * wanted, in `grads`. */
        const struct mfl_optimizer *opt;
        struct mfl_rate rate;
        /* Where gradients are rounded to as soon as they exist, with opt NULL; NULL: they are not. */
        const struct mfl_grad_sink *sink;
        float *statistics; /* those of the rows, layer by layer; NULL: not wanted */
        float *grads;      /* net->n_grads: the gradients, or room for them */
        struct mfl_error *err;
};

static inline void *mfl_cpu_aux(const struct mfl_net *net, int i)
{
        return net->arena + net->plan->layers[i].aux;
}

static inline float *mfl_cpu_group_params(const struct mfl_net *net, int group)
{
        return net->params + net->n_wide * (uint64_t)group;
}

/* A tensor of params, NULL for none. */
static inline const float *mfl_cpu_param(const struct pass *pass, int param)
{
        if (param < 0)
                return NULL;
        const struct mfl_cpu_param *own = &pass->net->wide[param];
        const struct mfl_cpu_frozen *frozen = &pass->net->frozen[pass->group];
        return own->at + (own->home == MFL_CPU_LENT ? frozen->lent
                                 : own->home == MFL_CPU_COPIED
                                         ? frozen->copy
                                         : mfl_cpu_group_params(pass->net, pass->group));
}

/* Whether layer i's gradient of a shared tensor comes after that of a later layer. */
static inline bool mfl_cpu_adds_grad(const struct pass *pass, int i, int param)
{
        return pass->net->graph->params[param].last_layer != i;
}

/* The place of layer i's gradient of it; NULL where it has none, or is not trained. */
static inline float *mfl_cpu_param_grad(const struct pass *pass, int i, int param)
{
        const struct mfl_net *net = pass->net;
        if (!mfl_cpu_is_trained(net->graph, param))
                return NULL;
        return mfl_cpu_adds_grad(pass, i, param) ? net->extra + net->wide[param].extra
                                                 : pass->grads + net->wide[param].grad;
}

/* Floats of layer i's output for a whole batch. */
static inline int64_t mfl_cpu_floats(const struct mfl_net *net, int i)
{
        return net->layers[i].layout.count * net->rows;
}

/* Vectors of the last dimension that a whole batch of that shape holds. */
static inline int64_t mfl_cpu_vectors(const struct mfl_net *net, const struct mfl_shape *shape)
{
        return net->rows * mfl_shape_count(shape) / shape->dim[shape->rank - 1];
}

/* Where the gradient of a tensor goes: see loops.h. */
struct mfl_apply mfl_cpu_apply(const struct pass *pass, int param);
/* Of a tensor that is no other layer's, too: its gradient goes straight to where the sink has it. False: it has no such place, and
 * `apply` is as it was. Else mfl_cpu_tell_ready follows. */
bool mfl_cpu_aim(const struct pass *pass, int param, struct mfl_apply *apply);
void mfl_cpu_tell_ready(const struct pass *pass, int param);
/* Elements [first, end) of the sink's gradient, of one tensor, go to the sink from pass->grads, while they lie in the cache. */
void mfl_cpu_give(const struct pass *pass, int param, uint64_t first, uint64_t end);
/* Takes layer i's gradient, at mfl_cpu_param_grad: adds it to those of later layers that use the tensor. The first layer
 * that uses it also takes the optimizer's step, where there is one. */
void mfl_cpu_take_grad(const struct pass *pass, int i, int param);
/* Takes the step alone, with the gradient in pass->grads, or rounds that. */
void mfl_cpu_step_tensor(const struct pass *pass, int param);

/* run.c: forward, loss and backward of a grain. */
int mfl_cpu_run_grain(const struct pass *pass, const struct mfl_device_data *data,
        const struct mfl_grain *grain, struct mfl_score *score);

/* The output of layer i in plain order: its own memory, or buffer `which` (0 or 1) of the network's. */
const float *mfl_cpu_plain(const struct mfl_net *net, int i, int which);

/* Products on the network's threads. */
void mfl_cpu_gemm(const struct mfl_net *net, const struct mfl_gemm *g);
/* The working floats of thread t. */
static inline float *mfl_cpu_work(const struct mfl_net *net, int t)
{
        return net->work + net->work_floats * t;
}

/* Working floats of a recurrent layer besides the threads' own; 0 for other layers. */
int64_t mfl_cpu_recurrent_work(const struct mfl_net *net, int i);

/* norm.c: batch and group norm of layer i. `grads` are of weight and bias; dx may be NULL. */
void mfl_cpu_norm_forward(const struct pass *pass, int i);
void mfl_cpu_norm_backward(const struct pass *pass, int i, float *dx, float *const grads[2]);

/* All layers. */
int mfl_cpu_run_forward(const struct pass *pass);
int mfl_cpu_layer_forward(const struct pass *pass, int i);
int mfl_cpu_run_backward(const struct pass *pass);

#endif
