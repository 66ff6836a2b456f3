/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse linear maps in the reference backend. */
#include "kernels/reference/layer.h"

static void map_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        mfl_ref_map_forward(pass->net->maps[i], pass->rows, x, y);
}

static void map_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        if (g->dx)
                mfl_ref_map_backward(pass->net->maps[i], pass->rows, dy, g->add, g->dx);
}

const struct mfl_ref_op mfl_ref_op_map = {map_forward, map_backward};
