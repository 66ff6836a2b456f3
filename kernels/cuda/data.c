/* SPDX-License-Identifier: Apache-2.0 */
/* Splits of a data set for networks on a GPU: a copy in the device's memory, or the host's own memory, which
 * streamed networks read through pinned buffers (net_stream.c). */
#include "kernels/cuda/net/net.h"

#include <stdatomic.h>

static size_t element_bytes(const struct mfl_split *split)
{
        return split->dtype == MFL_U8 ? 1 : sizeof(float);
}

static int answers_of(const struct mfl_dataset *dataset)
{
        return dataset->n_targets > 0 ? dataset->n_targets : (int)mfl_dataset_labels_per_sample(dataset);
}

static uint64_t sample_bytes(const struct mfl_dataset *dataset, const struct mfl_split *split)
{
        return (uint64_t)mfl_shape_count(&dataset->shape) * element_bytes(split);
}

uint64_t mfl_cuda_data_bytes(const struct mfl_dataset *dataset, const struct mfl_split *split)
{
        return mfl_cuda_round_up(sample_bytes(dataset, split) * split->n) +
               mfl_cuda_round_up(
                       (uint64_t)MFL_MAX(split->n, 1u) * (uint64_t)answers_of(dataset) * sizeof(int32_t));
}

static int upload(struct mfl_device_data *data, struct mfl_error *err)
{
        const struct mfl_split *split = data->split;
        uint64_t samples = data->row_bytes * split->n;
        int rc = mfl_cuda_check(cudaSetDevice(data->device->ordinal), "set device", err);
        if (!rc)
                rc = mfl_cuda_alloc(mfl_cuda_data_bytes(data->dataset, split), "data set on the device",
                        &data->memory, err);
        if (rc)
                return rc;
        data->samples = data->memory;
        data->labels = (int32_t *)((char *)data->memory + mfl_cuda_round_up(samples));
        rc = mfl_cuda_check(cudaMemcpy(data->memory, split->samples, (size_t)samples, cudaMemcpyHostToDevice),
                "copy samples to the device", err);
        if (!rc)
                rc = mfl_cuda_check(cudaMemcpy(data->labels, data->host_answers,
                                            (size_t)split->n * (size_t)data->answers * sizeof(int32_t),
                                            cudaMemcpyHostToDevice),
                        "copy labels to the device", err);
        /* From pageable memory, cudaMemcpy returns when the last piece is in the driver's own buffer, and the
         * streams of networks do not wait for the default stream. */
        return rc ? rc : mfl_cuda_check(cudaStreamSynchronize(NULL), "copy a data set to the device", err);
}

int mfl_cuda_data_new(struct mfl_device *device, const struct mfl_dataset *dataset,
        const struct mfl_split *split, bool resident, struct mfl_device_data **ret_data,
        struct mfl_error *err)
{
        static atomic_uint_fast64_t serial;
        struct mfl_device_data *data = mfl_calloc(1, sizeof *data);
        if (!data)
                return mfl_fail_memory(err, sizeof *data, "data handle");
        *data = (struct mfl_device_data){.device = device,
                .dataset = dataset,
                .split = split,
                .serial = atomic_fetch_add(&serial, 1) + 1,
                .count = mfl_shape_count(&dataset->shape),
                .n_planes = dataset->shape.rank == 3 ? (int)dataset->shape.dim[0] : 1,
                .answers = answers_of(dataset),
                .host_answers = dataset->n_targets > 0 ? (const void *)split->targets : split->labels,
                .row_bytes = sample_bytes(dataset, split)};
        mfl_assert(data->n_planes <= MFL_CHANNELS_MAX);
        int rc = resident ? upload(data, err) : 0;
        if (rc) {
                mfl_cuda_data_free(data);
                return rc;
        }
        *ret_data = data;
        return 0;
}

void mfl_cuda_data_free(struct mfl_device_data *data)
{
        if (!data)
                return;
        if (data->memory)
                (void)cudaFree(data->memory);
        free(data);
}
