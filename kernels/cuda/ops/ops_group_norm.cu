/* SPDX-License-Identifier: Apache-2.0 */
/* Group normalisation: each sample's channels in norm_groups groups.
 *
 * One launch: a block takes a tile of whole norm groups of one sample and computes the moments (or sums) of
 * each channel over its pixels, as in ops_columns.h, then of the channels of a group, then goes over the
 * pixels again. Order over the channels of a group: `parts` lanes take channels p, p + parts, ..., then a
 * tree.
 */
#include "kernels/cuda/ops/ops_norm.h"

#define GROUPS_MAX 64 /* of a tile */

struct group_norm {
        struct mfl_cuda_norm op;
        int pixels, channels;     /* of a sample; of a norm group */
        int groups, units, tiles; /* norm groups and units of a tile; tiles of a sample */
        int slots, lanes;         /* units that a block processes at once */
        int parts;                /* threads for one norm group */
        float *columns;           /* [G][batch][2][c]: moments or sums of each sample's channels */
};

struct group_place {
        int row, group, channel; /* the tile's first norm group and channel */
        int64_t sample;          /* row over all groups */
        int slot, lane;
        bool counts;
};

MFL_DEVICE struct group_place group_place(const struct group_norm *b, uint32_t rows)
{
        struct group_place at;
        at.row = (int)(blockIdx.x / (uint32_t)b->tiles);
        at.group = (int)(blockIdx.x % (uint32_t)b->tiles) * b->groups;
        at.channel = at.group * b->channels;
        at.sample = (int64_t)blockIdx.y * b->op.x.batch + at.row;
        at.slot = (int)threadIdx.x % b->slots;
        at.lane = (int)threadIdx.x / b->slots;
        at.counts = (uint32_t)at.row < rows;
        return at;
}

/* This thread's lane for the units from `first` on; -1: it has none. */
MFL_DEVICE int group_lane(const struct group_norm *b, const struct group_place *at, int first)
{
        return at->lane < b->lanes && first + at->slot < b->units ? at->lane : -1;
}

MFL_DEVICE int64_t group_at(const struct group_norm *b, const struct group_place *at, int channel, int pixel)
{
        return (at->sample * b->pixels + pixel) * b->op.x.c + channel;
}

/* From a lane's pixel to its next one. */
MFL_DEVICE int64_t group_step(const struct group_norm *b)
{
        return (int64_t)b->lanes * b->op.x.c;
}

/* The sum of v over the threads of each norm group; red is shared, [256]. */
MFL_DEVICE float group_sum(float *red, float v, int parts)
{
        int t = (int)threadIdx.x, part = t % parts;
        red[t] = v;
        MFL_SYNC();
        for (int s = parts / 2; s > 0; s /= 2) {
                if (part < s)
                        red[t] += red[t + s];
                MFL_SYNC();
        }
        v = red[t - part];
        MFL_SYNC();
        return v;
}

/* ---- forward ---- */

/* Computes mean and m2 of every channel of the tile into b->columns. */
MFL_DEVICE void group_columns(
        const struct group_norm *b, const struct group_place *at, enum mfl_cuda_type type, int width)
{
        MFL_SHARED(float, part, MFL_MOMENTS_PART);
        MFL_SHARED(int, count, MFL_OPS_THREADS);
        float *to = b->columns + at->sample * 2 * b->op.x.c;
        for (int first = 0; first < b->units; first += b->slots) {
                int lane = group_lane(b, at, first), channel = at->channel + (first + at->slot) * width,
                    n = 0;
                float mean[MFL_PACK_MAX], m2[MFL_PACK_MAX];
                mfl_zero(mean, width);
                mfl_zero(m2, width);
                if (lane >= 0)
                        n = mfl_moments_of(mean, m2, b->op.in, group_at(b, at, channel, lane), group_step(b),
                                lane, b->pixels, b->lanes, type, width);
                mfl_moments_tree(part, count, mean, m2, n, width, at->slot, lane, b->slots, b->lanes);
                for (int k = 0; lane == 0 && k < width; k++) {
                        to[channel + k] = part[k * MFL_OPS_THREADS + at->slot];
                        to[b->op.x.c + channel + k] = part[MFL_MOMENTS_M2 + k * MFL_OPS_THREADS + at->slot];
                }
                MFL_SYNC();
        }
}

/* Joins the channels of each norm group, which all have the same number of values. */
MFL_DEVICE void group_join(
        const struct group_norm *b, const struct group_place *at, float *group_mean, float *group_inverse)
{
        MFL_SHARED(float, red, MFL_OPS_THREADS);
        int g = (int)threadIdx.x / b->parts, part = (int)threadIdx.x % b->parts;
        int first = at->channel + g * b->channels;
        const float *mean = b->columns + at->sample * 2 * b->op.x.c, *m2 = mean + b->op.x.c;
        float sum = 0.0f, squares = 0.0f, within = 0.0f;
        for (int c = part; g < b->groups && c < b->channels; c += b->parts)
                sum += mean[first + c];
        float centre = group_sum(red, sum, b->parts) / (float)b->channels;
        for (int c = part; g < b->groups && c < b->channels; c += b->parts) {
                float d = mean[first + c] - centre;
                within += m2[first + c];
                squares += d * d;
        }
        squares = group_sum(red, squares, b->parts) * (float)b->pixels;
        float var = (group_sum(red, within, b->parts) + squares) / ((float)b->pixels * (float)b->channels);
        if (g < b->groups && part == 0) {
                int64_t to = at->sample * b->op.norm_groups + at->group + g;
                group_mean[g] = centre;
                group_inverse[g] = 1.0f / sqrtf(var + b->op.eps);
                if (b->op.mean)
                        b->op.mean[to] = group_mean[g];
                if (b->op.inverse)
                        b->op.inverse[to] = group_inverse[g];
        }
        MFL_SYNC();
}

MFL_DEVICE void group_norm_forward(const struct group_norm *b, enum mfl_cuda_type type, int width)
{
        MFL_SHARED(float, group_mean, GROUPS_MAX);
        MFL_SHARED(float, group_inverse, GROUPS_MAX);
        uint32_t rows = mfl_cuda_rows(&b->op.steps, blockIdx.y);
        if (rows == 0)
                return;
        struct group_place at = group_place(b, rows);
        group_columns(b, &at, type, width);
        group_join(b, &at, group_mean, group_inverse);
        for (int first = 0; first < b->units; first += b->slots) {
                int lane = group_lane(b, &at, first), offset = (first + at.slot) * width;
                if (lane < 0)
                        continue;
                float mean[MFL_PACK_MAX], scale[MFL_PACK_MAX], shift[MFL_PACK_MAX];
                uint64_t vector = blockIdx.y * b->op.stride + (uint64_t)(at.channel + offset);
                mfl_floats_load(scale, b->op.weight + vector, width);
                mfl_floats_load(shift, b->op.bias + vector, width);
                for (int k = 0; k < width; k++) {
                        mean[k] = group_mean[(offset + k) / b->channels];
                        scale[k] *= group_inverse[(offset + k) / b->channels];
                }
                int64_t p = lane, place = group_at(b, &at, at.channel + offset, lane), step = group_step(b);
                MFL_NORM_ROWS(p, b->pixels, b->lanes, place, step, n,
                        mfl_norm_apply(&b->op, place, step, n, mean, scale, shift, type, width));
        }
}
MFL_OPS_KERNELS(group_norm_forward, struct group_norm, group_norm_forward)

/* ---- backward ---- */

MFL_DEVICE void group_kept(const struct group_norm *b, const struct group_place *at, int channel, float *mean,
        float *inverse, int width)
{
        for (int k = 0; k < width; k++) {
                int64_t from = at->sample * b->op.norm_groups + (channel + k) / b->channels;
                mean[k] = b->op.mean[from];
                inverse[k] = b->op.inverse[from];
        }
}

/* Computes the sums of dz and of dz * xhat of every channel of the tile into b->columns; zeros beyond count.
 */
MFL_DEVICE void group_sums(
        const struct group_norm *b, const struct group_place *at, enum mfl_cuda_type type, int width)
{
        MFL_SHARED(float, part, 2 * MFL_PACK_MAX * MFL_OPS_THREADS);
        float *to = b->columns + at->sample * 2 * b->op.x.c;
        for (int first = 0; first < b->units; first += b->slots) {
                int lane = group_lane(b, at, first), channel = at->channel + (first + at->slot) * width;
                float sum[2 * MFL_PACK_MAX];
                mfl_zero(sum, 2 * width);
                if (lane >= 0 && at->counts) {
                        float mean[MFL_PACK_MAX], inverse[MFL_PACK_MAX];
                        group_kept(b, at, channel, mean, inverse, width);
                        int64_t p = lane, place = group_at(b, at, channel, lane), step = group_step(b);
                        MFL_NORM_ROWS(p, b->pixels, b->lanes, place, step, n,
                                mfl_norm_sums(&b->op, place, step, n, mean, inverse, sum, sum + width, type,
                                        width));
                }
                mfl_columns_tree(part, sum, 2 * width, at->slot, lane, b->slots, b->lanes);
                for (int k = 0; lane == 0 && k < width; k++) {
                        to[channel + k] = part[k * MFL_OPS_THREADS + at->slot];
                        to[b->op.x.c + channel + k] = part[(width + k) * MFL_OPS_THREADS + at->slot];
                }
                MFL_SYNC();
        }
}

/* Means over a norm group of weight * dz and weight * dz * xhat. */
MFL_DEVICE void group_means(
        const struct group_norm *b, const struct group_place *at, float *mean_dz, float *mean_dz_xhat)
{
        MFL_SHARED(float, red, MFL_OPS_THREADS);
        int g = (int)threadIdx.x / b->parts, part = (int)threadIdx.x % b->parts;
        int first = at->channel + g * b->channels;
        const float *dz = b->columns + at->sample * 2 * b->op.x.c, *dz_xhat = dz + b->op.x.c;
        const float *weight = b->op.weight + blockIdx.y * b->op.stride;
        float sum = 0.0f, sum_xhat = 0.0f, n = (float)b->pixels * (float)b->channels;
        for (int c = part; g < b->groups && c < b->channels; c += b->parts) {
                sum += weight[first + c] * dz[first + c];
                sum_xhat += weight[first + c] * dz_xhat[first + c];
        }
        sum = group_sum(red, sum, b->parts) / n;
        sum_xhat = group_sum(red, sum_xhat, b->parts) / n;
        if (g < b->groups && part == 0) {
                mean_dz[g] = sum;
                mean_dz_xhat[g] = sum_xhat;
        }
        MFL_SYNC();
}

/* The pixels of `width` channels from the tile's channel `offset` on. */
MFL_DEVICE void group_pixels_backward(const struct group_norm *b, const struct group_place *at, int offset,
        const float *group_dz, const float *group_dz_xhat, enum mfl_cuda_type type, int width)
{
        float mean[MFL_PACK_MAX], inverse[MFL_PACK_MAX], weight[MFL_PACK_MAX];
        float dz[MFL_PACK_MAX], dz_xhat[MFL_PACK_MAX];
        int channel = at->channel + offset;
        group_kept(b, at, channel, mean, inverse, width);
        mfl_floats_load(weight, b->op.weight + blockIdx.y * b->op.stride + (uint64_t)channel, width);
        for (int k = 0; k < width; k++) {
                dz[k] = group_dz[(offset + k) / b->channels];
                dz_xhat[k] = group_dz_xhat[(offset + k) / b->channels];
        }
        int64_t p = at->lane, place = group_at(b, at, channel, at->lane), step = group_step(b);
        MFL_NORM_ROWS(p, b->pixels, b->lanes, place, step, n,
                mfl_norm_dx(&b->op, place, step, n, mean, inverse, weight, dz, dz_xhat, type, width));
}

MFL_DEVICE void group_norm_backward(const struct group_norm *b, enum mfl_cuda_type type, int width)
{
        MFL_SHARED(float, mean_dz, GROUPS_MAX);
        MFL_SHARED(float, mean_dz_xhat, GROUPS_MAX);
        uint32_t rows = mfl_cuda_rows(&b->op.steps, blockIdx.y);
        if (rows == 0)
                return;
        struct group_place at = group_place(b, rows);
        group_sums(b, &at, type, width);
        group_means(b, &at, mean_dz, mean_dz_xhat);
        for (int first = 0; first < b->units; first += b->slots) {
                int offset = (first + at.slot) * width;
                if (group_lane(b, &at, first) < 0)
                        continue;
                if (at.counts)
                        group_pixels_backward(b, &at, offset, mean_dz, mean_dz_xhat, type, width);
                else
                        for (int p = at.lane; p < b->pixels; p += b->lanes)
                                mfl_norm_dx_none(
                                        &b->op, group_at(b, &at, at.channel + offset, p), type, width);
        }
}
MFL_OPS_KERNELS(group_norm_backward, struct group_norm, group_norm_backward)

/* ---- host ---- */

MFL_HOST uint64_t mfl_cuda_group_norm_workspace(const struct mfl_cuda_tensor *x)
{
        return (uint64_t)x->groups * (uint64_t)x->batch * 2 * (uint64_t)x->c * 4;
}

/* A tile is the fewest norm groups that form whole packs, doubled up to 8 units: 128 bytes of a pixel. */
static struct group_norm group_norm_of(const struct mfl_cuda_norm *a)
{
        struct group_norm b;
        int width = a->x.c % mfl_pack_width(a->x.type) == 0 ? mfl_pack_width(a->x.type) : 1;
        b.op = *a;
        b.pixels = a->x.h * a->x.w;
        b.channels = a->x.c / a->norm_groups;
        b.groups = 1;
        while (b.groups * b.channels % width)
                b.groups *= 2;
        while (a->norm_groups % (b.groups * 2) == 0 && b.groups * 2 * b.channels / width <= 8)
                b.groups *= 2;
        b.units = b.groups * b.channels / width;
        b.tiles = a->norm_groups / b.groups;
        b.slots = MFL_MIN(b.units, MFL_OPS_THREADS);
        b.lanes = MFL_OPS_THREADS / b.slots;
        b.parts = 32;
        while (b.parts * b.groups > MFL_OPS_THREADS)
                b.parts /= 2;
        b.columns = (float *)a->workspace;
        return b;
}

static cudaError_t launch_group_norm(const void *kernel, const struct group_norm *b, cudaStream_t stream)
{
        return mfl_launch(kernel, (uint32_t)(b->op.x.batch * b->tiles), (uint32_t)b->op.x.groups, 1,
                MFL_OPS_THREADS, 0, stream, b);
}

MFL_HOST cudaError_t mfl_cuda_group_norm_forward(const struct mfl_cuda_norm *a, cudaStream_t stream)
{
        if (a->x.c % a->norm_groups)
                return cudaErrorInvalidValue;
        struct group_norm b = group_norm_of(a);
        bool wide = a->x.c % mfl_pack_width(a->x.type) == 0;
        return launch_group_norm(group_norm_forward_pick(a->x.type, wide), &b, stream);
}

MFL_HOST cudaError_t mfl_cuda_group_norm_backward(const struct mfl_cuda_norm *a, cudaStream_t stream)
{
        if (a->x.c % a->norm_groups)
                return cudaErrorInvalidValue;
        struct group_norm b = group_norm_of(a);
        bool wide = a->x.c % mfl_pack_width(a->x.type) == 0;
        cudaError_t r = launch_group_norm(group_norm_backward_pick(a->x.type, wide), &b, stream);
        if (r != cudaSuccess || (!a->dweight && !a->dbias))
                return r;
        struct mfl_sum_chunks sum = {b.columns, {a->dbias, a->dweight}, NULL, a->stride, a->x.groups,
                a->x.batch, 2, a->x.c, a->steps};
        return mfl_cuda_sum_chunks(&sum, stream);
}
