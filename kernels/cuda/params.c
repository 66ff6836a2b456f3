/* SPDX-License-Identifier: Apache-2.0 */
/* Params between the host's flat order and the device's wide one, and the exact sum of updates. */
#include "kernels/cuda/net.h"

/* The host's params into a wide vector, and into its copy of the element type where there is one. */
static int upload(struct mfl_net *net, const float *frozen, const float *moving, float *wide, void *low,
        struct mfl_error *err)
{
        uint64_t n = net->model.graph->n, n_frozen = net->model.graph->n_frozen;
        float *flat = mfl_cuda_at(net, MFL_CUDA_FLAT);
        struct mfl_cuda_reorder a = {.n = n,
                .place = mfl_cuda_at(net, MFL_CUDA_PLACE),
                .from = mfl_cuda_at(net, MFL_CUDA_FLAT),
                .to = wide,
                .scatter = true,
                .low = low,
                .low_type = net->model.type};
        if (n == 0)
                return 0;
        int rc = 0;
        if (n_frozen)
                rc = mfl_cuda_check(cudaMemcpyAsync(flat, frozen, (size_t)n_frozen * sizeof(float),
                                            cudaMemcpyHostToDevice, net->main.stream),
                        "copy frozen params to the device", err);
        if (!rc && n > n_frozen)
                rc = mfl_cuda_check(
                        cudaMemcpyAsync(flat + n_frozen, moving, (size_t)(n - n_frozen) * sizeof(float),
                                cudaMemcpyHostToDevice, net->main.stream),
                        "copy params to the device", err);
        return rc ? rc : mfl_cuda_check(mfl_cuda_reorder(&a, net->main.stream), "reorder params", err);
}

static int copy(struct mfl_net *net, void *to, const void *from, uint64_t bytes, struct mfl_error *err)
{
        if (!to || !bytes)
                return 0;
        return mfl_cuda_check(
                cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, net->main.stream),
                "copy params on the device", err);
}

int mfl_cuda_params_base(struct mfl_net *net, const float *frozen, const float *moving, struct mfl_error *err)
{
        int rc = mfl_cuda_enter(net, err);
        if (!rc)
                rc = upload(net, frozen, moving, mfl_cuda_at(net, MFL_CUDA_BASE),
                        mfl_cuda_at(net, MFL_CUDA_BASE_LOW), err);
        return rc ? rc : mfl_cuda_sync(net, "params to the device", err);
}

/* Optimizer state and loss scale of a group as at the start of a training. */
static int reset_state(struct mfl_net *net, uint64_t group, struct mfl_error *err)
{
        uint64_t stride = net->model.stride;
        float *states[] = {mfl_cuda_at(net, MFL_CUDA_MOMENTUM), mfl_cuda_at(net, MFL_CUDA_SECOND)};
        struct mfl_cuda_scale *scale = mfl_cuda_at(net, MFL_CUDA_SCALE);
        int rc = 0;
        for (size_t k = 0; !rc && k < MFL_ARRAY_SIZE(states); k++)
                if (states[k])
                        rc = mfl_cuda_check(cudaMemsetAsync(states[k] + group * stride, 0,
                                                    (size_t)stride * sizeof(float), net->main.stream),
                                "clear the optimizer's state", err);
        if (rc || !scale)
                return rc;
        return copy(net, scale + group, scale + net->model.options.groups, sizeof *scale, err);
}

/* Params of the host's are read when this returns: CUDA does not promise that of a copy, only that it may be
 * so. A group that starts from the base waits for nothing: what follows is ordered behind it. */
int mfl_cuda_params_set(
        struct mfl_net *net, int group, const float *frozen, const float *moving, struct mfl_error *err)
{
        uint64_t stride = net->model.stride, g = (uint64_t)group;
        uint64_t element = (uint64_t)mfl_cuda_type_bytes(net->model.type), bytes = stride * sizeof(float);
        float *wide = (float *)mfl_cuda_at(net, MFL_CUDA_PARAMS) + g * stride;
        float *first = mfl_cuda_at(net, MFL_CUDA_FIRST);
        char *low = mfl_cuda_at(net, MFL_CUDA_LOW);
        mfl_assert(group >= 0 && group < net->model.options.groups);
        mfl_assert(!moving || !net->model.options.shared_start || !net->model.options.training);
        low = low ? low + g * stride * element : NULL;
        first = first ? first + g * stride : NULL;
        int rc = mfl_cuda_enter(net, err);
        if (!rc && moving)
                rc = upload(net, frozen, moving, wide, low, err);
        if (!rc && !moving)
                rc = copy(net, wide, mfl_cuda_at(net, MFL_CUDA_BASE), bytes, err);
        if (!rc && !moving)
                rc = copy(net, low, mfl_cuda_at(net, MFL_CUDA_BASE_LOW), stride * element, err);
        if (!rc)
                rc = copy(net, first, wide, bytes, err);
        if (!rc)
                rc = reset_state(net, g, err);
        return rc || !moving ? rc : mfl_cuda_sync(net, "params to the device", err);
}

int mfl_cuda_params_get(struct mfl_net *net, int group, uint64_t first, float *params, struct mfl_error *err)
{
        uint64_t n = net->model.graph->n - first;
        struct mfl_cuda_reorder a = {.n = n,
                .place = (uint32_t *)mfl_cuda_at(net, MFL_CUDA_PLACE) + first,
                .from = (float *)mfl_cuda_at(net, MFL_CUDA_PARAMS) + net->model.stride * (uint64_t)group,
                .to = mfl_cuda_at(net, MFL_CUDA_FLAT)};
        mfl_assert(group >= 0 && group < net->model.options.groups);
        int rc = mfl_cuda_enter(net, err);
        if (rc || n == 0)
                return rc;
        rc = mfl_cuda_check(mfl_cuda_reorder(&a, net->main.stream), "reorder params", err);
        if (!rc)
                rc = mfl_cuda_check(cudaMemcpyAsync(params, a.to, (size_t)n * sizeof(float),
                                            cudaMemcpyDeviceToHost, net->main.stream),
                        "copy params to the host", err);
        return rc ? rc : mfl_cuda_sync(net, "params to the host", err);
}

int mfl_cuda_net_sum_add(struct mfl_net *net, const struct mfl_fixed *fixed, const uint64_t *weight,
        uint64_t *n_bad, struct mfl_error *err)
{
        const struct mfl_cuda_control *control = &net->model.control;
        size_t bytes = (size_t)net->model.options.groups * sizeof(uint64_t);
        float *first = mfl_cuda_at(net, MFL_CUDA_FIRST);
        struct mfl_cuda_sum a = {.groups = net->model.options.groups,
                .n = net->model.stride,
                .stride = net->model.stride,
                .params = mfl_cuda_at(net, MFL_CUDA_PARAMS),
                .first = first ? first : mfl_cuda_at(net, MFL_CUDA_BASE),
                .first_stride = first ? net->model.stride : 0,
                .weight = mfl_cuda_control_at(net, control->weight),
                .n_bad = mfl_cuda_control_at(net, control->n_bad),
                .fixed = *fixed,
                .sum = mfl_cuda_at(net, MFL_CUDA_SUM)};
        cudaStream_t stream = net->main.stream;
        mfl_assert(net->model.options.training);
        int rc = mfl_cuda_enter(net, err);
        if (rc)
                return rc;
        memset(n_bad, 0, bytes);
        if (net->model.graph->n == 0)
                return 0;
        memcpy(mfl_cuda_pinned(net, control->weight), weight, bytes);
        rc = mfl_cuda_check(cudaMemcpyAsync((void *)a.weight, mfl_cuda_pinned(net, control->weight), bytes,
                                    cudaMemcpyHostToDevice, stream),
                "copy weights to the device", err);
        if (!rc)
                rc = mfl_cuda_check(mfl_cuda_sum_count(&a, stream), "check updates", err);
        if (!rc)
                rc = mfl_cuda_check(mfl_cuda_sum_add(&a, stream), "add updates", err);
        if (!rc)
                rc = mfl_cuda_check(cudaMemcpyAsync(mfl_cuda_pinned(net, control->n_bad), a.n_bad, bytes,
                                            cudaMemcpyDeviceToHost, stream),
                        "copy the verdict on updates", err);
        if (!rc)
                rc = mfl_cuda_sync(net, "add updates", err);
        if (!rc)
                memcpy(n_bad, mfl_cuda_pinned(net, control->n_bad), bytes);
        return rc;
}

/* A piece of the sum to the host, where it is added. A piece is as large as FLAT. */
static int take_piece(
        struct mfl_net *net, uint64_t at, uint64_t n, int64_t *host, int64_t *acc, struct mfl_error *err)
{
        int64_t *flat = mfl_cuda_at(net, MFL_CUDA_FLAT);
        const uint32_t *place = (uint32_t *)mfl_cuda_at(net, MFL_CUDA_PLACE) + net->model.graph->n_frozen;
        int rc = mfl_cuda_check(
                mfl_cuda_reorder_i64(n, place + at, mfl_cuda_at(net, MFL_CUDA_SUM), flat, net->main.stream),
                "reorder the sum of updates", err);
        if (!rc)
                rc = mfl_cuda_check(cudaMemcpyAsync(host, flat, (size_t)n * sizeof *host,
                                            cudaMemcpyDeviceToHost, net->main.stream),
                        "copy the sum of updates", err);
        if (!rc)
                rc = mfl_cuda_sync(net, "the sum of updates", err);
        for (uint64_t i = 0; !rc && i < n; i++)
                acc[at + i] += host[i];
        return rc;
}

#define SUM_PIECE ((uint64_t)1 << 16) /* elements: stays in a core's cache */

int mfl_cuda_net_sum_take(struct mfl_net *net, int64_t *acc, struct mfl_error *err)
{
        uint64_t n = net->model.graph->n_moving;
        uint64_t piece = MFL_MIN((n + 1) / 2, SUM_PIECE);
        mfl_assert(net->model.options.training);
        int rc = mfl_cuda_enter(net, err);
        if (rc || n == 0)
                return rc;
        MFL_CLEANUP_FREE int64_t *host = acc ? mfl_malloc((size_t)piece * sizeof *host) : NULL;
        if (acc && !host)
                return mfl_fail_memory(err, (size_t)piece * sizeof *host, "sum of updates");
        for (uint64_t at = 0; !rc && acc && at < n; at += piece)
                rc = take_piece(net, at, MFL_MIN(piece, n - at), host, acc, err);
        if (!rc)
                rc = mfl_cuda_check(cudaMemsetAsync(mfl_cuda_at(net, MFL_CUDA_SUM), 0,
                                            (size_t)net->model.region_bytes[MFL_CUDA_SUM], net->main.stream),
                        "clear the sum of updates", err);
        return rc ? rc : mfl_cuda_sync(net, "the sum of updates", err);
}
