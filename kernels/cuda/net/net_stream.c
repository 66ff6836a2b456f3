/* SPDX-License-Identifier: Apache-2.0 */
/* Data that does not fit the device. For every few steps, the host gathers the raw rows of all groups into
 * one of two pinned buffers. These go to one of two halves of a staging area, on a stream of their own, while
 * the chunk before computes. Indices are renumbered to places in the staging area, so the same captured graph
 * serves.
 *
 *     host     gather 0 | gather 1 | wait copied 0, gather 2 | ...
 *     copies            | copy 0   | copy 1   | wait computed 0, copy 2 | ...
 *     stream                       | steps 0  | steps 1 | ...
 */
#include "kernels/cuda/net/net.h"

/* Gathers the rows of all groups of steps [first, first + n) into half `half`; returns how many. */
static uint32_t gather_rows(
        const struct mfl_cuda_work *work, uint32_t first, uint32_t n, uint32_t half, uint64_t half_rows)
{
        struct mfl_net *net = work->net;
        const struct mfl_cuda_control *control = &net->model.control;
        const struct mfl_split *split = work->data->split;
        uint32_t batch = (uint32_t)net->model.options.batch, steps_max = net->model.steps_max, row = 0;
        uint64_t row_bytes = work->data->row_bytes, base = half * half_rows;
        uint64_t answers = (uint64_t)work->data->answers;
        const uint32_t *count = mfl_cuda_pinned(net, control->count);
        uint32_t *index = mfl_cuda_pinned(net, control->index);
        for (uint32_t t = first; t < first + n; t++)
                for (int g = 0; g < net->model.options.groups; g++) {
                        size_t at = (size_t)g * steps_max + t;
                        for (uint32_t r = 0; r < count[at]; r++, row++) {
                                uint32_t *sample = &index[at * batch + r];
                                memcpy(net->pinned_stage + (base + row) * row_bytes,
                                        (const char *)split->samples + *sample * row_bytes,
                                        (size_t)row_bytes);
                                memcpy(net->pinned_labels + (base + row) * answers,
                                        (const int32_t *)work->data->host_answers + *sample * answers,
                                        (size_t)answers * sizeof(int32_t));
                                *sample = (uint32_t)(base + row);
                        }
                }
        return row;
}

static int send_rows(const struct mfl_cuda_work *work, uint64_t first, uint32_t rows, struct mfl_error *err)
{
        struct mfl_net *net = work->net;
        uint64_t row_bytes = work->data->row_bytes, answers = (uint64_t)work->data->answers;
        int rc = mfl_cuda_check(cudaMemcpyAsync((char *)mfl_cuda_at(net, MFL_CUDA_STAGE) + first * row_bytes,
                                        net->pinned_stage + first * row_bytes, (size_t)(rows * row_bytes),
                                        cudaMemcpyHostToDevice, net->copies),
                "copy samples to the device", err);
        if (!rc)
                rc = mfl_cuda_check(
                        cudaMemcpyAsync((int32_t *)mfl_cuda_at(net, MFL_CUDA_STAGE_LABELS) + first * answers,
                                net->pinned_labels + first * answers,
                                (size_t)(rows * answers) * sizeof(int32_t), cudaMemcpyHostToDevice,
                                net->copies),
                        "copy labels to the device", err);
        return rc;
}

static int run_chunk(const struct mfl_cuda_work *work, uint32_t chunk, uint32_t first, uint32_t n,
        uint64_t half_rows, struct mfl_error *err)
{
        struct mfl_net *net = work->net;
        uint32_t half = chunk % 2;
        /* An event that was never recorded counts as done. */
        int rc = mfl_cuda_check(cudaEventSynchronize(net->copied[half]), "wait for a copy", err);
        if (rc)
                return rc;
        uint32_t rows = gather_rows(work, first, n, half, half_rows);
        rc = mfl_cuda_check(cudaStreamWaitEvent(net->copies, net->computed[half], 0), "order streams", err);
        if (!rc)
                rc = send_rows(work, half * half_rows, rows, err);
        if (!rc)
                rc = mfl_cuda_tables_send(net, first, n, net->copies, err);
        if (!rc)
                rc = mfl_cuda_check(cudaEventRecord(net->copied[half], net->copies), "record an event", err);
        if (!rc)
                rc = mfl_cuda_check(
                        cudaStreamWaitEvent(net->main.stream, net->copied[half], 0), "order streams", err);
        if (!rc)
                rc = mfl_cuda_replay(work, n, err);
        if (!rc)
                rc = mfl_cuda_check(
                        cudaEventRecord(net->computed[half], net->main.stream), "record an event", err);
        return rc;
}

int mfl_cuda_stream_run(const struct mfl_cuda_work *work, uint32_t first, uint32_t n, struct mfl_error *err)
{
        const struct mfl_cuda_model *model = &work->net->model;
        uint64_t step_rows = (uint64_t)model->options.groups * (uint64_t)model->options.batch;
        uint64_t half_rows = model->stage_rows * (work->data->split->dtype == MFL_U8 ? 4 : 1);
        uint32_t steps = (uint32_t)(half_rows / step_rows), chunk = 0, end = first + n;
        int rc = 0;
        /* Whole large graphs where they fit. */
        if (steps > work->net->repeats)
                steps -= steps % work->net->repeats;
        for (uint32_t at = first, m; !rc && at < end; at += m, chunk++) {
                m = MFL_MIN(end - at, steps);
                rc = run_chunk(work, chunk, at, m, half_rows, err);
        }
        return rc;
}
