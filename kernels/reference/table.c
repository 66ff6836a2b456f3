/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of the reference backend. */
#include "kernels/reference/layer.h"

#define ENTRY(symbol, name) [MFL_OP_##symbol] = &mfl_ref_op_##name,

const struct mfl_ref_op *const mfl_ref_ops[MFL_OP_COUNT_] = {MFL_OPERATORS(ENTRY)
#define UNARY(symbol, ...) ENTRY(symbol, unary)
#include "common/model/unary.def"
};
