/* SPDX-License-Identifier: Apache-2.0 */
/* Params between the host's flat order and the device's wide one, and the exact sum of updates. */
#include "kernels/cuda/net/net.h"

/* One part into the flat vector: from its stage, or from the host. */
static int bring_part(struct mfl_net *net, float *flat, const struct mfl_params_part *part, uint64_t n,
        const char *what, struct mfl_error *err)
{
        if (n == 0)
                return 0;
        if (!part->stage)
                return mfl_cuda_pipe_send(
                        &net->pipe, net->main.stream, flat, part->host, n * sizeof(float), what, err);
        mfl_assert(part->stage->n == n);
        return mfl_cuda_check(cudaMemcpyAsync(flat, part->stage->memory, (size_t)(n * sizeof(float)),
                                      cudaMemcpyDeviceToDevice, net->main.stream),
                what, err);
}

/* Copies params into a wide vector, and into its copy of the element type where there is one. */
static int upload(struct mfl_net *net, const struct mfl_params_part *frozen,
        const struct mfl_params_part *moving, float *wide, void *low, struct mfl_error *err)
{
        uint64_t n = net->model.flat->n, n_frozen = net->model.flat->n_frozen;
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
        int rc = bring_part(net, flat, frozen, n_frozen, "copy frozen params to the device", err);
        if (!rc)
                rc = bring_part(net, flat + n_frozen, moving, n - n_frozen, "copy params to the device", err);
        if (!rc)
                rc = mfl_cuda_check(mfl_cuda_reorder(&a, net->main.stream), "reorder params", err);
        return rc ? rc : mfl_cuda_tie_params(net, 1, wide, low, true, err);
}

static int copy(struct mfl_net *net, void *to, const void *from, uint64_t bytes, struct mfl_error *err)
{
        if (!to || !bytes)
                return 0;
        return mfl_cuda_check(
                cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, net->main.stream),
                "copy params on the device", err);
}

static int set_base(struct mfl_net *net, const struct mfl_params_part *frozen,
        const struct mfl_params_part *moving, struct mfl_error *err)
{
        int rc = mfl_cuda_enter(net, err);
        return rc ? rc
                  : upload(net, frozen, moving, mfl_cuda_at(net, MFL_CUDA_BASE),
                            mfl_cuda_at(net, MFL_CUDA_BASE_LOW), err);
}

int mfl_cuda_params_base(struct mfl_net *net, const float *frozen, const float *moving, struct mfl_error *err)
{
        const struct mfl_params_part first = {.host = frozen}, second = {.host = moving};
        return set_base(net, &first, &second, err);
}

/* Resets a group's correction, optimizer state and loss scale to those at the start of a training. */
static int reset_state(struct mfl_net *net, uint64_t group, struct mfl_error *err)
{
        uint64_t stride = net->model.stride;
        float *states[] = {mfl_cuda_at(net, MFL_CUDA_MOMENTUM), mfl_cuda_at(net, MFL_CUDA_SECOND),
                mfl_cuda_at(net, MFL_CUDA_CORRECTION)};
        struct mfl_cuda_scale *scale = mfl_cuda_at(net, MFL_CUDA_SCALE);
        int rc = 0;
        for (size_t k = 0; !rc && k < MFL_ARRAY_SIZE(states); k++)
                if (states[k])
                        rc = mfl_cuda_check(
                                cudaMemsetAsync(states[k] + group * stride, 0,
                                        (size_t)net->model.n_own * sizeof(float), net->main.stream),
                                "clear the optimizer's state", err);
        if (rc || !scale)
                return rc;
        return copy(net, scale + group, scale + net->model.options.groups, sizeof *scale, err);
}

/* Later work is ordered after this, so it does not wait; the pipe has read the host's params when it returns.
 * moving NULL: from the base. */
static int set_group(struct mfl_net *net, int group, const struct mfl_params_part *frozen,
        const struct mfl_params_part *moving, struct mfl_error *err)
{
        uint64_t stride = net->model.stride, g = (uint64_t)group;
        uint64_t element = (uint64_t)mfl_cuda_type_bytes(net->model.type), bytes = stride * sizeof(float);
        float *wide = (float *)mfl_cuda_at(net, MFL_CUDA_PARAMS) + g * stride;
        float *first = mfl_cuda_at(net, MFL_CUDA_FIRST);
        char *low = mfl_cuda_at(net, MFL_CUDA_LOW);
        mfl_assert(group >= 0 && group < net->model.options.groups);
        mfl_assert(!moving || !net->model.options.shared_start || !net->model.options.training);
        if (net->model.options.worker) {
                int r = mfl_cuda_enter(net, err);
                return r ? r : mfl_cuda_grad_set(net, frozen->host, moving ? moving->host : NULL, err);
        }
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
                rc = copy(net, first, wide, net->model.n_own * sizeof(float), err);
        if (!rc)
                rc = reset_state(net, g, err);
        return rc;
}

int mfl_cuda_params_set(
        struct mfl_net *net, int group, const float *frozen, const float *moving, struct mfl_error *err)
{
        const struct mfl_params_part first = {.host = frozen}, second = {.host = moving};
        return set_group(net, group, &first, moving ? &second : NULL, err);
}

int mfl_cuda_correction_set(struct mfl_net *net, int group, const float *moving, struct mfl_error *err)
{
        uint64_t n = net->model.flat->n_moving, n_frozen = net->model.flat->n_frozen;
        uint64_t stride = net->model.stride;
        float *to = (float *)mfl_cuda_at(net, MFL_CUDA_CORRECTION), *flat = mfl_cuda_at(net, MFL_CUDA_FLAT);
        mfl_assert(to && group >= 0 && group < net->model.options.groups);
        to += stride * (uint64_t)group;
        struct mfl_cuda_reorder a = {.n = n,
                .place = (uint32_t *)mfl_cuda_at(net, MFL_CUDA_PLACE) + n_frozen,
                .from = flat,
                .to = to,
                .scatter = true,
                .low_type = net->model.type};
        int rc = mfl_cuda_enter(net, err);
        if (!rc)
                rc = mfl_cuda_check(
                        cudaMemsetAsync(to, 0, (size_t)(net->model.n_own * sizeof(float)), net->main.stream),
                        "clear a correction", err);
        if (rc || !moving || !n)
                return rc;
        rc = mfl_cuda_pipe_send(&net->pipe, net->main.stream, flat, moving, n * sizeof(float),
                "copy a correction to the device", err);
        return rc ? rc : mfl_cuda_check(mfl_cuda_reorder(&a, net->main.stream), "reorder a correction", err);
}

/* Waits until the stages have been read. */
int mfl_cuda_params_staged(struct mfl_net *net, int group, const struct mfl_params_part *frozen,
        const struct mfl_params_part *moving, struct mfl_error *err)
{
        int rc = group < 0 ? set_base(net, frozen, moving, err) : set_group(net, group, frozen, moving, err);
        return rc ? rc : mfl_cuda_check(cudaStreamSynchronize(net->main.stream), "copy staged params", err);
}

struct params_landing {
        const float *flat;
        char *to;
};

static int find_params(void *arg, uint64_t at, uint64_t n, const void **ret_from, struct mfl_error *err)
{
        const struct params_landing *landing = arg;
        *ret_from = (const char *)landing->flat + at;
        return 0;
}

static void take_params(void *arg, uint64_t at, uint64_t n, const void *bytes)
{
        const struct params_landing *landing = arg;
        memcpy(landing->to + at, bytes, (size_t)n);
}

int mfl_cuda_params_get(struct mfl_net *net, int group, uint64_t first, float *params, struct mfl_error *err)
{
        uint64_t n = net->model.flat->n - first;
        if (net->model.options.worker) { /* those that move have a place of their own */
                uint64_t moving = MFL_MAX(first, net->model.flat->n_frozen);
                int rc = mfl_cuda_enter(net, err);
                if (!rc)
                        rc = mfl_cuda_grad_get(net, moving, params + (moving - first), err);
                if (rc)
                        return rc;
                n = moving - first;
        }
        struct mfl_cuda_reorder a = {.n = n,
                .place = (uint32_t *)mfl_cuda_at(net, MFL_CUDA_PLACE) + first,
                .from = (float *)mfl_cuda_at(net, MFL_CUDA_PARAMS) + net->model.stride * (uint64_t)group,
                .to = mfl_cuda_at(net, MFL_CUDA_FLAT)};
        mfl_assert(group >= 0 && group < net->model.options.groups);
        int rc = mfl_cuda_enter(net, err);
        if (rc || n == 0)
                return rc;
        struct params_landing to = {a.to, (char *)params};
        struct mfl_cuda_landing landing = {
                "copy params to the host", n * sizeof(float), find_params, take_params, &to};
        rc = mfl_cuda_check(mfl_cuda_reorder(&a, net->main.stream), "reorder params", err);
        return rc ? rc : mfl_cuda_pipe_land(&net->pipe, net->main.stream, &landing, err);
}

int mfl_cuda_net_sum_add(struct mfl_net *net, const struct mfl_fixed *fixed, const uint64_t *weight,
        uint64_t *n_bad, struct mfl_error *err)
{
        const struct mfl_cuda_control *control = &net->model.control;
        size_t bytes = (size_t)net->model.options.groups * sizeof(uint64_t);
        float *first = mfl_cuda_at(net, MFL_CUDA_FIRST);
        struct mfl_cuda_sum a = {.groups = net->model.options.groups,
                .n = net->model.n_own,
                .stride = net->model.stride,
                .params = mfl_cuda_at(net, MFL_CUDA_PARAMS),
                .first = first ? first : mfl_cuda_at(net, MFL_CUDA_BASE),
                .first_stride = first ? net->model.stride : 0,
                .weight = mfl_cuda_control_at(net, control->weight),
                .n_bad = mfl_cuda_control_at(net, control->n_bad),
                .fixed = *fixed,
                .n_trained = net->model.n_trained,
                .sum = mfl_cuda_at(net, MFL_CUDA_SUM)};
        cudaStream_t stream = net->main.stream;
        mfl_assert(net->model.options.training);
        int rc = mfl_cuda_enter(net, err);
        if (rc)
                return rc;
        memset(n_bad, 0, bytes);
        if (net->model.flat->n == 0)
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

struct sum_landing {
        struct mfl_net *net;
        int64_t *acc;
        bool add;
        struct mfl_comm_control *control;
};

/* The piece in flat order. It is ordered after the copy of the piece before. */
static int make_sum(void *arg, uint64_t at, uint64_t n, const void **ret_from, struct mfl_error *err)
{
        const struct sum_landing *landing = arg;
        struct mfl_net *net = landing->net;
        const uint32_t *place = (uint32_t *)mfl_cuda_at(net, MFL_CUDA_PLACE) + net->model.flat->n_frozen;
        int64_t *flat = mfl_cuda_at(net, MFL_CUDA_FLAT);
        *ret_from = flat;
        return mfl_cuda_check(mfl_cuda_reorder_i64(n / sizeof *flat, place + at / sizeof *flat,
                                      mfl_cuda_at(net, MFL_CUDA_SUM), flat, net->main.stream),
                "reorder the sum of updates", err);
}

static void take_sum(void *arg, uint64_t at, uint64_t n, const void *bytes)
{
        const struct sum_landing *landing = arg;
        const int64_t *from = bytes;
        uint64_t count = n / sizeof *from, first = at / sizeof *from;
        int64_t *to = landing->acc + first;
        for (uint64_t i = 0; landing->add && i < count; i++)
                to[i] += from[i];
        if (!landing->add)
                memcpy(to, from, (size_t)n);
        mfl_comm_advance(landing->control, first + count);
}

int mfl_cuda_net_sum_take(
        struct mfl_net *net, int64_t *acc, bool add, struct mfl_comm_control *control, struct mfl_error *err)
{
        struct sum_landing to = {net, acc, add, control};
        struct mfl_cuda_landing landing = {
                "copy the sum of updates", net->model.flat->n_moving * sizeof *acc, make_sum, take_sum, &to};
        mfl_assert(net->model.options.training);
        int rc = mfl_cuda_enter(net, err);
        if (rc || !landing.bytes)
                return rc;
        if (acc)
                rc = mfl_cuda_pipe_land(&net->pipe, net->main.stream, &landing, err);
        return rc ? rc
                  : mfl_cuda_check(cudaMemsetAsync(mfl_cuda_at(net, MFL_CUDA_SUM), 0,
                                           (size_t)net->model.region_bytes[MFL_CUDA_SUM], net->main.stream),
                            "clear the sum of updates", err);
}
