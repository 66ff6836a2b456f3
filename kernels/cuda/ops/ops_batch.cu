/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: gathering samples into NHWC tensors, the step counter, and the layout of conformance tests. */
#include "kernels/cuda/ops/ops_common.h"

/* ---- gather ----
 *
 * A block computes TILE pixels of one row. Threads read along a plane of the sample, so loads are coalesced
 * in NCHW; the values meet in shared memory and are stored from there as packs in NHWC. A tensor without
 * pixels (a vector) has a sample's elements in its own order: it is one plane of c pixels. */
#define TILE MFL_OPS_THREADS

struct gather_place {
        uint32_t group, row;
        int first;            /* pixel of the tile */
        int planes, plane, w; /* of the output, as the kernel sees it */
};

MFL_DEVICE struct gather_place gather_place(const struct mfl_cuda_gather *a)
{
        bool image = a->x.h * a->x.w > 1;
        struct gather_place at;
        at.planes = image ? a->x.c : 1;
        at.plane = image ? a->x.h * a->x.w : a->x.c;
        at.w = image ? a->x.w : a->x.c;
        uint32_t tiles = (uint32_t)(at.plane + TILE - 1) / TILE;
        at.group = blockIdx.y;
        at.row = blockIdx.x / tiles;
        at.first = (int)(blockIdx.x % tiles) * TILE;
        return at;
}

/* Element `plane * planes + from` of a sample as the model sees it; from < 0 is padding. */
MFL_DEVICE float gather_value(const struct mfl_cuda_gather *a, int64_t sample, int at, int from, int scale)
{
        float v = 0.0f;
        if (from >= 0)
                v = a->u8       ? (float)((const uint8_t *)a->samples)[sample + at + from]
                    : a->tokens ? (float)((const int32_t *)a->samples)[sample + at + from]
                                : ((const float *)a->samples)[sample + at + from];
        if (a->tokens)
                return v;
        return v * a->scale[scale] + a->shift[scale];
}

MFL_DEVICE void gather_pixel(
        const struct mfl_cuda_gather *a, const struct gather_place *at, uint32_t index, int pixel, float *to)
{
        int count = at->planes * at->plane, from = pixel;
        if ((a->augment.crop > 0 || a->augment.flip) && a->x.h * a->x.w > 1) {
                const struct mfl_cuda_steps *steps = &a->steps;
                struct mfl_rng_key key = mfl_rng_augment_key(
                        steps->augment[at->group], mfl_cuda_step_number(steps, at->group));
                struct mfl_augment_choice choice = mfl_augment_pick(
                        key, mfl_cuda_part(steps) * (uint32_t)a->x.batch + at->row, &a->augment);
                from = mfl_augment_source(choice, pixel / at->w, pixel % at->w, at->plane / at->w, at->w);
        }
        int per_scale = count / a->n_planes;
        for (int c = 0; c < at->planes; c++) {
                int plane = c * at->plane;
                int scale = a->n_planes == 1 ? 0 : (plane + pixel) / per_scale;
                to[c] = gather_value(a, (int64_t)index * count, plane, from, scale);
        }
}

MFL_DEVICE void gather(const struct mfl_cuda_gather *a, enum mfl_cuda_type type, int width)
{
        MFL_SHARED(float, tile, TILE *MFL_CHANNELS_MAX);
        struct gather_place at = gather_place(a);
        uint32_t rows = mfl_cuda_rows(&a->steps, at.group);
        if (rows == 0)
                return;
        int pixel = at.first + (int)threadIdx.x;
        int64_t slot = (int64_t)at.group * a->x.batch + at.row;
        uint32_t index = 0;
        if (at.row < rows)
                index = a->steps.index[((int64_t)at.group * a->steps.steps_max +
                                               (a->steps.step ? *a->steps.step : 0)) *
                                               a->steps.batch +
                                       at.row];
        if (pixel < at.plane) {
                if (at.row < rows)
                        gather_pixel(a, &at, index, pixel, tile + threadIdx.x * at.planes);
                else
                        for (int c = 0; c < at.planes; c++)
                                tile[threadIdx.x * at.planes + c] = 0.0f;
        }
        int answers = a->answers ? a->answers : 1;
        for (int k = pixel; a->labels && pixel < at.plane && k < answers; k += at.plane)
                a->labels[slot * answers + k] =
                        at.row < rows ? a->sample_labels[(int64_t)index * answers + k] : 0;
        MFL_SYNC();
        int left = at.plane - at.first, n = (left < TILE ? left : TILE) * at.planes;
        int64_t base = slot * at.planes * at.plane + (int64_t)at.first * at.planes;
        for (int i = (int)threadIdx.x * width; i < n; i += TILE * width) {
                float v[MFL_PACK_MAX];
                for (int k = 0; k < width; k++)
                        v[k] = tile[i + k];
                mfl_pack_store(a->to, base + i, v, type, width);
        }
}
MFL_OPS_KERNELS(gather, struct mfl_cuda_gather, gather)

MFL_HOST cudaError_t mfl_cuda_gather(const struct mfl_cuda_gather *a, cudaStream_t stream)
{
        int64_t pixels = mfl_ops_pixels(&a->x), plane = pixels > 1 ? pixels : a->x.c;
        int64_t blocks = mfl_blocks(plane, TILE) * a->x.batch;
        if (!mfl_ops_fits(&a->x) || blocks >= (int64_t)1 << 31 || (pixels > 1 && a->x.c > MFL_CHANNELS_MAX) ||
                a->n_planes < 1 || a->n_planes > MFL_CHANNELS_MAX || pixels * a->x.c % a->n_planes)
                return cudaErrorInvalidValue;
        bool wide = mfl_ops_wide(&a->x, pixels * a->x.c, (uintptr_t)a->to);
        return mfl_launch(
                gather_pick(a->x.type, wide), (uint32_t)blocks, (uint32_t)a->x.groups, 1, TILE, 0, stream, a);
}

/* ---- layout: one thread for each element, in the order of the output ---- */

MFL_KERNEL(layout, struct mfl_cuda_layout)
{
        int64_t pixels = mfl_ops_pixels(&a.x), count = pixels * a.x.c;
        int64_t i = MFL_GLOBAL_INDEX;
        if (i >= mfl_ops_elements(&a.x))
                return;
        i += (int64_t)blockIdx.y * mfl_ops_elements(&a.x);
        int64_t row = i / count, e = i % count;
        if (a.to_nchw)
                a.nchw[i] = mfl_load(a.nhwc, row * count + e % pixels * a.x.c + e / pixels, a.x.type);
        else
                mfl_store(a.nhwc, i, a.nchw[row * count + e % a.x.c * pixels + e / a.x.c], a.x.type);
}

MFL_HOST cudaError_t mfl_cuda_layout(const struct mfl_cuda_layout *a, cudaStream_t stream)
{
        if (!mfl_ops_fits(&a->x))
                return cudaErrorInvalidValue;
        return mfl_ops_launch_flat((const void *)(layout), mfl_ops_elements(&a->x), a->x.groups, stream, a);
}

/* ---- the step counter ---- */

struct next_step {
        uint32_t *step;
};
MFL_KERNEL(next_step, struct next_step)
{
        if (threadIdx.x == 0)
                *a.step += 1;
}

MFL_HOST cudaError_t mfl_cuda_next_step(uint32_t *step, cudaStream_t stream)
{
        struct next_step a = {step};
        return MFL_LAUNCH(next_step, 1, 1, 1, 1, 0, stream, &a);
}
