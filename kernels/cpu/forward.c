/* SPDX-License-Identifier: Apache-2.0 */
/* Forward over the layers. */
#include "kernels/cpu/op.h"

int mfl_cpu_layer_forward(const struct pass *pass, int i)
{
        return mfl_cpu_ops[pass->net->graph->layers[i].op]->forward(pass, i);
}

int mfl_cpu_run_forward(const struct pass *pass)
{
        int rc = 0;
        for (int i = 1; !rc && i < pass->net->graph->n_layers; i++)
                if (pass->net->plan->layers[i].live)
                        rc = mfl_cpu_layer_forward(pass, i);
        return rc;
}
