/* SPDX-License-Identifier: Apache-2.0 */
/* Copies the control region to the device and back. */
#include "kernels/cuda/net/net.h"

int mfl_cuda_enter(const struct mfl_net *net, struct mfl_error *err)
{
        return mfl_cuda_check(cudaSetDevice(net->device->ordinal), "set device", err);
}

int mfl_cuda_sync(struct mfl_net *net, const char *what, struct mfl_error *err)
{
        return mfl_cuda_check(cudaStreamSynchronize(net->main.stream), what, err);
}

int mfl_cuda_control_send(struct mfl_net *net, uint32_t step, struct mfl_error *err)
{
        const struct mfl_cuda_control *control = &net->model.control;
        *(uint32_t *)mfl_cuda_pinned(net, control->step) = step;
        memset(mfl_cuda_pinned(net, control->loss_sum), 0, (size_t)(control->weight - control->loss_sum));
        return mfl_cuda_check(cudaMemcpyAsync(mfl_cuda_at(net, MFL_CUDA_CONTROL), net->pinned,
                                      (size_t)control->count, cudaMemcpyHostToDevice, net->main.stream),
                "copy keys to the device", err);
}

int mfl_cuda_tables_send(
        struct mfl_net *net, uint32_t first, uint32_t n, cudaStream_t stream, struct mfl_error *err)
{
        const struct mfl_cuda_control *control = &net->model.control;
        const struct {
                uint64_t at, each; /* bytes of a batch's entry */
                const char *what;
        } tables[] = {{control->count, sizeof(uint32_t), "copy counts to the device"},
                {control->share, sizeof(struct mfl_loss_share), "copy what a step shares to the device"},
                {control->rates, sizeof(struct mfl_rate), "copy learning rates to the device"},
                {control->index, sizeof(uint32_t) * (uint64_t)net->model.options.batch,
                        "copy sample numbers to the device"}};
        int rc = 0;
        for (size_t i = 0; !rc && i < MFL_ARRAY_SIZE(tables); i++) {
                uint64_t at = tables[i].at + first * tables[i].each;
                size_t pitch = (size_t)(net->model.steps_max * tables[i].each);
                rc = mfl_cuda_check(
                        cudaMemcpy2DAsync(mfl_cuda_control_at(net, at), pitch, mfl_cuda_pinned(net, at),
                                pitch, (size_t)(n * tables[i].each), (size_t)net->model.options.groups,
                                cudaMemcpyHostToDevice, stream),
                        tables[i].what, err);
        }
        return rc;
}

int mfl_cuda_control_receive(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_cuda_control *control = &net->model.control;
        size_t bytes = (size_t)(control->count - control->loss_sum);
        int rc = mfl_cuda_check(cudaMemcpyAsync(mfl_cuda_pinned(net, control->loss_sum),
                                        mfl_cuda_control_at(net, control->loss_sum), bytes,
                                        cudaMemcpyDeviceToHost, net->main.stream),
                "copy sums to the host", err);
        return rc ? rc : mfl_cuda_sync(net, "steps of a network", err);
}
