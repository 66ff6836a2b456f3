/* SPDX-License-Identifier: Apache-2.0 */
/* What all operators of a pass share. */
#include "kernels/cpu/pass.h"

bool mfl_cpu_is_sequence(enum mfl_op op)
{
        return op == MFL_OP_LAYERNORM || op == MFL_OP_RMSNORM || op == MFL_OP_SOFTMAX ||
               op == MFL_OP_MATMUL || op == MFL_OP_EMBEDDING || op == MFL_OP_ATTENTION;
}

bool mfl_cpu_is_shape(enum mfl_op op)
{
        return op == MFL_OP_ADD || op == MFL_OP_MULTIPLY || op == MFL_OP_CONCAT || op == MFL_OP_TRANSPOSE ||
               op == MFL_OP_SLICE || op == MFL_OP_MEAN || op == MFL_OP_WEIGHT;
}

const float *mfl_cpu_plain(const struct mfl_net *net, int i, int which)
{
        const struct mfl_layout *l = &net->layers[i].layout;
        if (l->identity)
                return mfl_cpu_act(net, i);
        mfl_layout_to_plain(l, net->options.batch, mfl_cpu_act(net, i), net->plain[which]);
        return net->plain[which];
}
