/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of the CPU backend. */
#ifndef MFL_KERNELS_CPU_OP_H
#define MFL_KERNELS_CPU_OP_H

#include "kernels/cpu/pass.h"
#include "kernels/operators.h"

enum mfl_cpu_op_flags {
        MFL_CPU_PLAIN = 1, /* works in plain order only; add and multiply only where they repeat a tensor */
        MFL_CPU_IN_PLACE = 2,  /* can work in its input's memory */
        MFL_CPU_YIELDS = 4,    /* its backward does not read its output: the next layer may be in its place */
        MFL_CPU_NO_INPUT = 8,  /* its backward does not read its input, unlike plain loops */
        MFL_CPU_PRODUCTS = 16, /* needs the working floats of matrix products */
};

struct mfl_cpu_op {
        unsigned flags;
        int (*forward)(const struct pass *pass, int i);
        /* Writes dx and dx2, in plain order where the layer is `plain`; NULL: not wanted. A convolution writes
         * where its primitive was bound. */
        int (*backward)(const struct pass *pass, int i, float *dx, float *dx2);
        /* What it keeps from its forward to its backward. NULL: nothing. */
        uint64_t (*aux_bytes)(const struct mfl_net *net, int i);
};

/* mfl_cpu_op_<name>, each beside its bodies. Functions of one variable are mfl_cpu_op_unary. */
#define MFL_CPU_DECLARE(symbol, name) extern const struct mfl_cpu_op mfl_cpu_op_##name;
MFL_OPERATORS(MFL_CPU_DECLARE)
extern const struct mfl_cpu_op mfl_cpu_op_unary;

/* table.c; NULL for MFL_OP_INPUT, and for an operator that this backend does not have. */
extern const struct mfl_cpu_op *const mfl_cpu_ops[MFL_OP_COUNT_];

/* False too for the model's input. */
static inline bool mfl_cpu_has(enum mfl_op op, unsigned flag)
{
        return mfl_cpu_ops[op] && mfl_cpu_ops[op]->flags & flag;
}

#endif
