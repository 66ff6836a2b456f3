/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of plain tensors, for the conformance program: they travel piece by piece through a
 * small buffer on the device, where their order changes. */
#include "kernels/cuda/net/net.h"

/* Copies between plain floats of the host, NCHW, and a tensor of all groups on the device. */
static int move_tensor(struct mfl_net *net, const struct mfl_cuda_tensor *x, void *device, const float *from,
        float *to, struct mfl_error *err)
{
        uint64_t row = (uint64_t)x->h * (uint64_t)x->w * (uint64_t)x->c;
        uint64_t rows = (uint64_t)x->groups * (uint64_t)x->batch;
        uint64_t most = net->model.bounce_bytes / sizeof(float) / row;
        float *bounce = mfl_cuda_at(net, MFL_CUDA_BOUNCE);
        int rc = 0;
        for (uint64_t at = 0, n; !rc && at < rows; at += n) {
                n = MFL_MIN(rows - at, MFL_MIN(most, (uint64_t)1 << 20));
                size_t bytes = (size_t)(n * row * sizeof(float));
                struct mfl_cuda_layout a = {.x = *x,
                        .nhwc = (char *)device + at * row * (uint64_t)mfl_cuda_type_bytes(x->type),
                        .nchw = bounce,
                        .to_nchw = to != NULL};
                a.x.groups = 1;
                a.x.batch = (int)n;
                if (from)
                        rc = mfl_cuda_check(cudaMemcpyAsync(bounce, from + at * row, bytes,
                                                    cudaMemcpyHostToDevice, net->main.stream),
                                "copy a tensor to the device", err);
                if (!rc)
                        rc = mfl_cuda_check(mfl_cuda_layout(&a, net->main.stream), "reorder a tensor", err);
                if (!rc && to)
                        rc = mfl_cuda_check(cudaMemcpyAsync(to + at * row, bounce, bytes,
                                                    cudaMemcpyDeviceToHost, net->main.stream),
                                "copy a tensor to the host", err);
        }
        return rc;
}

struct mfl_cuda_run mfl_cuda_plain_pass(struct mfl_net *net, struct mfl_error *err)
{
        struct mfl_cuda_run pass = mfl_cuda_run_of(net, net->training, err);
        pass.steps.count = NULL;
        pass.steps.index = NULL;
        return pass;
}

int mfl_cuda_forward(struct mfl_net *net, const float *x, const struct mfl_rng_key *dropout, float *y,
        struct mfl_error *err)
{
        const struct mfl_cuda_control *control = &net->model.control;
        size_t groups = (size_t)net->model.options.groups;
        int last = net->model.graph->n_layers - 1;
        const struct mfl_cuda_tensor *in = &net->model.layers[0].x, *out = &net->model.layers[last].x;
        int rc = mfl_cuda_enter(net, err);
        if (rc)
                return rc;
        net->training = dropout != NULL;
        memset(mfl_cuda_pinned(net, control->step_first), 0, groups * sizeof(uint32_t));
        if (dropout)
                memcpy(mfl_cuda_pinned(net, control->dropout), dropout, groups * sizeof *dropout);
        struct mfl_cuda_run pass = mfl_cuda_plain_pass(net, err);
        rc = mfl_cuda_control_send(net, 0, err);
        if (!rc)
                rc = move_tensor(net, in, mfl_cuda_act_at(net, 0), x, NULL, err);
        if (!rc)
                rc = mfl_cuda_run_forward(&pass);
        if (!rc)
                rc = move_tensor(net, out, mfl_cuda_act_at(net, last), NULL, y, err);
        return rc ? rc : mfl_cuda_sync(net, "forward of a network", err);
}

static int get_gradients(struct mfl_net *net, float *dparams, struct mfl_error *err)
{
        const struct mfl_cuda_model *model = &net->model;
        uint64_t n = model->flat->n;
        int rc = 0;
        for (uint64_t g = 0; !rc && n && g < (uint64_t)model->options.groups; g++) {
                struct mfl_cuda_reorder a = {.n = n,
                        .place = mfl_cuda_at(net, MFL_CUDA_PLACE),
                        .from = (float *)mfl_cuda_at(net, MFL_CUDA_GRADS) + g * model->stride,
                        .to = mfl_cuda_at(net, MFL_CUDA_FLAT)};
                rc = mfl_cuda_check(mfl_cuda_reorder(&a, net->main.stream), "reorder gradients", err);
                if (!rc)
                        rc = mfl_cuda_check(cudaMemcpyAsync(dparams + g * n, a.to, (size_t)n * sizeof(float),
                                                    cudaMemcpyDeviceToHost, net->main.stream),
                                "copy gradients to the host", err);
        }
        if (!rc)
                rc = mfl_cuda_sync(net, "gradients to the host", err);
        /* What is not trained has no gradient, though some operators give one. */
        for (int p = 0; !rc && p < model->flat->n_params; p++) {
                const struct mfl_param *param = &model->flat->params[p];
                for (uint64_t g = 0; !param->trained && g < (uint64_t)model->options.groups; g++)
                        memset(dparams + g * n + param->offset, 0, (size_t)param->count * sizeof *dparams);
        }
        return rc;
}

int mfl_cuda_backward(struct mfl_net *net, const float *dy, float *dx, float *dparams, struct mfl_error *err)
{
        int last = net->model.graph->n_layers - 1;
        const struct mfl_cuda_tensor *in = &net->model.layers[0].x, *out = &net->model.layers[last].x;
        struct mfl_cuda_run pass = mfl_cuda_plain_pass(net, err);
        mfl_assert(net->model.options.training && (!dx || net->model.options.input_grad));
        int rc = mfl_cuda_enter(net, err);
        if (!rc)
                rc = move_tensor(net, out, mfl_cuda_grad_at(net, last), dy, NULL, err);
        if (!rc)
                rc = mfl_cuda_run_backward(&pass);
        if (!rc && dx)
                rc = move_tensor(net, in, mfl_cuda_grad_at(net, 0), NULL, dx, err);
        if (!rc)
                rc = get_gradients(net, dparams, err);
        return rc;
}
