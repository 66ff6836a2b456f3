/* SPDX-License-Identifier: Apache-2.0 */
/* One group's pass through the arena, and what each operator's forward and backward does in it. */
#ifndef MFL_KERNELS_CPU_PASS_H
#define MFL_KERNELS_CPU_PASS_H

#include "kernels/cpu/net.h"

struct pass {
        struct mfl_net *net;
        int group;
        int64_t rows, first_row;           /* that hold samples; number of the first within the step */
        const struct mfl_rng_key *dropout; /* NULL: inference */
        bool running;                      /* a forward updates running statistics, once */
        uint32_t step;
        /* Taken on a tensor as soon as its gradient is there; NULL: gradients are wanted, in `grads`. */
        const struct mfl_optimizer *opt;
        struct mfl_rate rate;
        float *grads; /* a wide vector: the gradients, or room for them */
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
        return param < 0 ? NULL : mfl_cpu_group_params(pass->net, pass->group) + pass->net->wide[param].at;
}

/* The place of its gradient; NULL where it is none that is trained. */
static inline float *mfl_cpu_param_grad(const struct pass *pass, int param)
{
        return mfl_cpu_is_trained(pass->net->graph, param) ? pass->grads + pass->net->wide[param].at : NULL;
}

/* Floats of layer i's output for a whole batch. */
static inline int64_t mfl_cpu_floats(const struct mfl_net *net, int i)
{
        return net->layers[i].layout.count * net->options.batch;
}

/* Vectors of the last dimension that a whole batch of that shape holds. */
static inline int64_t mfl_cpu_vectors(const struct mfl_net *net, const struct mfl_shape *shape)
{
        return net->options.batch * mfl_shape_count(shape) / shape->dim[shape->rank - 1];
}

/* What becomes of the gradient of a tensor: see loops.h. */
struct mfl_apply mfl_cpu_apply(const struct pass *pass, int param);
/* The gradient is at mfl_cpu_param_grad: takes the optimizer's step where there is one. */
void mfl_cpu_take_grad(const struct pass *pass, int param);

/* The output of layer i in plain order: its own memory, or buffer `which` (0 or 1) of the network's. */
const float *mfl_cpu_plain(const struct mfl_net *net, int i, int which);

/* Products on the network's threads. */
void mfl_cpu_gemm(const struct mfl_net *net, const struct mfl_gemm *g);
/* The working floats of thread t. */
static inline float *mfl_cpu_work(const struct mfl_net *net, int t)
{
        return net->work + net->work_floats * t;
}

/* Operators. dx and dx2 are written, in plain order where the layer is `plain`; NULL: not wanted. */
void mfl_cpu_dense_forward(const struct pass *pass, int i);
void mfl_cpu_dense_backward(const struct pass *pass, int i, float *dx);
uint64_t mfl_cpu_dense_aux_bytes(const struct mfl_net *net, int i);
void mfl_cpu_sequence_forward(const struct pass *pass, int i);
void mfl_cpu_sequence_backward(const struct pass *pass, int i, float *dx, float *dx2);
uint64_t mfl_cpu_sequence_aux_bytes(const struct mfl_net *net, int i);
void mfl_cpu_recurrent_forward(const struct pass *pass, int i);
void mfl_cpu_recurrent_backward(const struct pass *pass, int i, float *dx);
/* Working floats of a recurrent layer beside the threads' own; 0 for other layers. */
int64_t mfl_cpu_recurrent_work(const struct mfl_net *net, int i);
void mfl_cpu_shape_forward(const struct pass *pass, int i);
void mfl_cpu_shape_backward(const struct pass *pass, int i, float *dx, float *dx2);

/* All layers. */
int mfl_cpu_run_forward(const struct pass *pass);
int mfl_cpu_layer_forward(const struct pass *pass, int i);
int mfl_cpu_run_backward(const struct pass *pass);

#endif
