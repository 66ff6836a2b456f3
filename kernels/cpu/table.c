/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of the CPU backend. */
#include "kernels/cpu/op.h"

#define ENTRY(symbol, name) [MFL_OP_##symbol] = &mfl_cpu_op_##name,

const struct mfl_cpu_op *const mfl_cpu_ops[MFL_OP_COUNT_] = {MFL_OPERATORS(ENTRY)
#define UNARY(symbol, ...) ENTRY(symbol, unary)
#include "common/model/unary.def"
};
