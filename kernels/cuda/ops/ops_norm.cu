/* SPDX-License-Identifier: Apache-2.0 */
/* Batch normalisation: columns are channels, rows are the pixels of all samples that count.
 *
 * A small batch takes one launch: each block has all rows of its channels, computes their moments (or sums)
 * and then goes over them again. A large one takes three: chunks, their join, and the rows again. The choice
 * is a function of the shape.
 */
#include "kernels/cuda/ops/ops_norm.h"

struct norm {
        struct mfl_cuda_norm op;
        struct mfl_columns plan;
        float *chunks; /* [G][chunks][2][c]: moments or sums of chunks */
        float *sums;   /* [G][2][c]: backward, of all rows */
};

/* Pixels of group g's samples that count; rows are numbered from the group's first pixel. */
MFL_DEVICE int64_t norm_rows(const struct norm *b)
{
        return (int64_t)mfl_cuda_rows(&b->op.steps, blockIdx.y) * b->op.x.h * b->op.x.w;
}

MFL_DEVICE int64_t norm_at(const struct norm *b, const struct mfl_columns_place *at, int64_t row, int width)
{
        return (blockIdx.y * b->plan.rows + row) * b->op.x.c + (int64_t)at->unit * width;
}

/* From a lane's row to its next one. */
MFL_DEVICE int64_t norm_step(const struct norm *b)
{
        return (int64_t)b->plan.lanes * b->op.x.c;
}

/* All of the batch's rows, including those beyond count. */
MFL_DEVICE int64_t norm_chunk_end(const struct norm *b, const struct mfl_columns_place *at)
{
        int64_t end = at->first + b->plan.chunk_rows;
        return end < b->plan.rows ? end : b->plan.rows;
}

MFL_DEVICE float norm_inverse(float var, float eps)
{
        return 1.0f / sqrtf(var + eps);
}

/* ---- forward ---- */

/* Leaves the moments of the block's chunk in part, see mfl_moments_tree. */
MFL_DEVICE void norm_moments(const struct norm *b, const struct mfl_columns_place *at, float *part,
        int *count, enum mfl_cuda_type type, int width)
{
        float mean[MFL_PACK_MAX], m2[MFL_PACK_MAX];
        int n = 0;
        mfl_zero(mean, width);
        mfl_zero(m2, width);
        if (at->lane >= 0) {
                int64_t r = at->first + at->lane;
                n = mfl_moments_of(mean, m2, b->op.in, norm_at(b, at, r, width), norm_step(b), r, at->end,
                        b->plan.lanes, type, width);
        }
        mfl_moments_tree(part, count, mean, m2, n, width, at->slot, at->lane, b->plan.tile, b->plan.lanes);
}

/* Keeps channel c's statistics for backward and in the running ones. */
MFL_DEVICE void norm_keep(const struct norm *b, int c, float mean, float m2, int64_t n)
{
        const struct mfl_cuda_norm *a = &b->op;
        int64_t at = (int64_t)blockIdx.y * a->x.c + c;
        a->mean[at] = mean;
        a->inverse[at] = norm_inverse(m2 / (float)n, a->eps);
        if (!a->running_mean)
                return;
        float var = m2 / (float)(n > 1 ? n - 1 : n);
        float *running_mean = a->running_mean + blockIdx.y * a->stride + c;
        float *running_var = a->running_var + blockIdx.y * a->stride + c;
        *running_mean = (1.0f - a->momentum) * *running_mean + a->momentum * mean;
        *running_var = (1.0f - a->momentum) * *running_var + a->momentum * var;
}

/* All rows of the batch in the block's chunk, including those beyond count. inverse becomes the scale. */
MFL_DEVICE void norm_rows_forward(const struct norm *b, const struct mfl_columns_place *at, const float *mean,
        float *inverse, enum mfl_cuda_type type, int width)
{
        float weight[MFL_PACK_MAX], shift[MFL_PACK_MAX];
        uint64_t vector = blockIdx.y * b->op.stride + (uint64_t)(at->unit * width);
        mfl_floats_load(weight, b->op.weight + vector, width);
        mfl_floats_load(shift, b->op.bias + vector, width);
        MFL_UNROLL
        for (int k = 0; k < width; k++)
                inverse[k] *= weight[k];
        int64_t end = norm_chunk_end(b, at), r = at->first + at->lane;
        int64_t place = norm_at(b, at, r, width), step = norm_step(b);
        MFL_NORM_ROWS(r, end, b->plan.lanes, place, step, n,
                mfl_norm_apply(&b->op, place, step, n, mean, inverse, shift, type, width));
}

MFL_DEVICE void norm_forward_small(const struct norm *b, enum mfl_cuda_type type, int width)
{
        MFL_SHARED(float, part, MFL_MOMENTS_PART);
        MFL_SHARED(int, count, MFL_OPS_THREADS);
        int64_t rows = norm_rows(b);
        if (rows == 0)
                return;
        struct mfl_columns_place at = mfl_columns_place(&b->plan, rows);
        norm_moments(b, &at, part, count, type, width);
        if (at.lane < 0)
                return;
        float mean[MFL_PACK_MAX], inverse[MFL_PACK_MAX];
        for (int k = 0; k < width; k++) {
                float m2 = part[MFL_MOMENTS_M2 + k * MFL_OPS_THREADS + at.slot];
                mean[k] = part[k * MFL_OPS_THREADS + at.slot];
                inverse[k] = norm_inverse(m2 / (float)rows, b->op.eps);
                if (at.lane == 0)
                        norm_keep(b, at.unit * width + k, mean[k], m2, rows);
        }
        norm_rows_forward(b, &at, mean, inverse, type, width);
}
MFL_OPS_KERNELS(norm_forward_small, struct norm, norm_forward_small)

MFL_DEVICE void norm_chunk(const struct norm *b, enum mfl_cuda_type type, int width)
{
        MFL_SHARED(float, part, MFL_MOMENTS_PART);
        MFL_SHARED(int, count, MFL_OPS_THREADS);
        int64_t rows = norm_rows(b);
        if (rows == 0)
                return;
        struct mfl_columns_place at = mfl_columns_place(&b->plan, rows);
        norm_moments(b, &at, part, count, type, width);
        if (at.lane != 0)
                return;
        float *to = b->chunks + ((int64_t)blockIdx.y * b->plan.chunks + at.chunk) * 2 * b->op.x.c;
        for (int k = 0; k < width; k++) {
                to[at.unit * width + k] = part[k * MFL_OPS_THREADS + at.slot];
                to[b->op.x.c + at.unit * width + k] = part[MFL_MOMENTS_M2 + k * MFL_OPS_THREADS + at.slot];
        }
}
MFL_OPS_KERNELS(norm_chunk, struct norm, norm_chunk)

/* Joins the chunks' moments: 32 lanes, then their tree. */
MFL_KERNEL(norm_join, struct norm)
{
        MFL_SHARED(float, part, MFL_MOMENTS_PART);
        MFL_SHARED(int, count, MFL_OPS_THREADS);
        int64_t rows = norm_rows(&a);
        if (rows == 0)
                return;
        int slot = (int)threadIdx.x % MFL_CHUNK_TILE, lane = (int)threadIdx.x / MFL_CHUNK_TILE;
        int c = (int)blockIdx.x * MFL_CHUNK_TILE + slot, n = 0;
        float mean = 0.0f, m2 = 0.0f;
        for (int i = lane; c < a.op.x.c && i < a.plan.chunks; i += MFL_CHUNK_LANES) {
                const float *from = a.chunks + ((int64_t)blockIdx.y * a.plan.chunks + i) * 2 * a.op.x.c;
                int64_t left = rows - i * a.plan.chunk_rows;
                int m = left <= 0 ? 0 : (int)(left < a.plan.chunk_rows ? left : a.plan.chunk_rows);
                mfl_moments_join(&mean, &m2, n, from[c], from[a.op.x.c + c], m);
                n += m;
        }
        mfl_moments_tree(part, count, &mean, &m2, n, 1, slot, lane, MFL_CHUNK_TILE, MFL_CHUNK_LANES);
        if (lane == 0 && c < a.op.x.c)
                norm_keep(&a, c, part[slot], part[MFL_MOMENTS_M2 + slot], rows);
}

/* With known statistics: those of this batch, or the running ones. */
MFL_DEVICE void norm_forward_rows(const struct norm *b, enum mfl_cuda_type type, int width)
{
        const struct mfl_cuda_norm *a = &b->op;
        int64_t rows = norm_rows(b);
        struct mfl_columns_place at = mfl_columns_place(&b->plan, rows);
        if (rows == 0 || at.lane < 0)
                return;
        float mean[MFL_PACK_MAX], inverse[MFL_PACK_MAX];
        if (a->training) {
                int64_t kept = (int64_t)blockIdx.y * a->x.c + at.unit * width;
                mfl_floats_load(mean, a->mean + kept, width);
                mfl_floats_load(inverse, a->inverse + kept, width);
        } else {
                uint64_t vector = blockIdx.y * a->stride + (uint64_t)(at.unit * width);
                mfl_floats_load(mean, a->running_mean + vector, width);
                mfl_floats_load(inverse, a->running_var + vector, width);
                for (int k = 0; k < width; k++)
                        inverse[k] = norm_inverse(inverse[k], a->eps);
        }
        norm_rows_forward(b, &at, mean, inverse, type, width);
}
MFL_OPS_KERNELS(norm_forward_rows, struct norm, norm_forward_rows)

/* ---- backward ---- */

MFL_DEVICE void norm_kept(
        const struct norm *b, const struct mfl_columns_place *at, float *mean, float *inverse, int width)
{
        int64_t kept = (int64_t)blockIdx.y * b->op.x.c + at->unit * width;
        if (!b->op.training) { /* after a forward with the running statistics */
                uint64_t vector = blockIdx.y * b->op.stride + (uint64_t)(at->unit * width);
                mfl_floats_load(mean, b->op.running_mean + vector, width);
                mfl_floats_load(inverse, b->op.running_var + vector, width);
                for (int k = 0; k < width; k++)
                        inverse[k] = norm_inverse(inverse[k], b->op.eps);
                return;
        }
        mfl_floats_load(mean, b->op.mean + kept, width);
        mfl_floats_load(inverse, b->op.inverse + kept, width);
}

/* Leaves the chunk's sums of dz in part and, after them, those of dz * xhat. */
MFL_DEVICE void norm_chunk_sums(const struct norm *b, const struct mfl_columns_place *at, float *part,
        enum mfl_cuda_type type, int width)
{
        float sum[2 * MFL_PACK_MAX];
        mfl_zero(sum, 2 * width);
        if (at->lane >= 0) {
                float mean[MFL_PACK_MAX], inverse[MFL_PACK_MAX];
                norm_kept(b, at, mean, inverse, width);
                int64_t r = at->first + at->lane, place = norm_at(b, at, r, width), step = norm_step(b);
                MFL_NORM_ROWS(r, at->end, b->plan.lanes, place, step, n,
                        mfl_norm_sums(&b->op, place, step, n, mean, inverse, sum, sum + width, type, width));
        }
        mfl_columns_tree(part, sum, 2 * width, at->slot, at->lane, b->plan.tile, b->plan.lanes);
}

MFL_DEVICE void norm_rows_backward(const struct norm *b, const struct mfl_columns_place *at, int64_t rows,
        float *sum, float *sum_xhat, enum mfl_cuda_type type, int width)
{
        float mean[MFL_PACK_MAX], inverse[MFL_PACK_MAX], weight[MFL_PACK_MAX];
        norm_kept(b, at, mean, inverse, width);
        mfl_floats_load(
                weight, b->op.weight + blockIdx.y * b->op.stride + (uint64_t)(at->unit * width), width);
        MFL_UNROLL
        for (int k = 0; k < width; k++) {
                /* Running statistics do not depend on x. */
                sum[k] = b->op.training ? sum[k] / (float)rows * weight[k] : 0.0f;
                sum_xhat[k] = b->op.training ? sum_xhat[k] / (float)rows * weight[k] : 0.0f;
        }
        int64_t end = norm_chunk_end(b, at), counting = end < rows ? end : rows;
        int64_t r = at->first + at->lane, place = norm_at(b, at, r, width), step = norm_step(b);
        MFL_NORM_ROWS(r, counting, b->plan.lanes, place, step, n,
                mfl_norm_dx(&b->op, place, step, n, mean, inverse, weight, sum, sum_xhat, type, width));
        for (; r < end; r += b->plan.lanes, place += step)
                mfl_norm_dx_none(&b->op, place, type, width);
}

MFL_DEVICE void norm_backward_small(const struct norm *b, enum mfl_cuda_type type, int width)
{
        MFL_SHARED(float, part, 2 * MFL_PACK_MAX * MFL_OPS_THREADS);
        int64_t rows = norm_rows(b);
        if (rows == 0)
                return;
        struct mfl_columns_place at = mfl_columns_place(&b->plan, rows);
        norm_chunk_sums(b, &at, part, type, width);
        if (at.lane < 0)
                return;
        float sum[MFL_PACK_MAX], sum_xhat[MFL_PACK_MAX];
        for (int k = 0; k < width; k++) {
                uint64_t vector = blockIdx.y * b->op.stride + (uint64_t)(at.unit * width + k);
                sum[k] = part[k * MFL_OPS_THREADS + at.slot];
                sum_xhat[k] = part[(width + k) * MFL_OPS_THREADS + at.slot];
                if (at.lane == 0 && b->op.dbias)
                        b->op.dbias[vector] = sum[k];
                if (at.lane == 0 && b->op.dweight)
                        b->op.dweight[vector] = sum_xhat[k];
        }
        norm_rows_backward(b, &at, rows, sum, sum_xhat, type, width);
}
MFL_OPS_KERNELS(norm_backward_small, struct norm, norm_backward_small)

MFL_DEVICE void norm_chunk_backward(const struct norm *b, enum mfl_cuda_type type, int width)
{
        MFL_SHARED(float, part, 2 * MFL_PACK_MAX * MFL_OPS_THREADS);
        int64_t rows = norm_rows(b);
        if (rows == 0)
                return;
        struct mfl_columns_place at = mfl_columns_place(&b->plan, rows);
        norm_chunk_sums(b, &at, part, type, width);
        if (at.lane != 0)
                return;
        float *to = b->chunks + ((int64_t)blockIdx.y * b->plan.chunks + at.chunk) * 2 * b->op.x.c;
        for (int k = 0; k < width; k++) {
                to[at.unit * width + k] = part[k * MFL_OPS_THREADS + at.slot];
                to[b->op.x.c + at.unit * width + k] = part[(width + k) * MFL_OPS_THREADS + at.slot];
        }
}
MFL_OPS_KERNELS(norm_chunk_backward, struct norm, norm_chunk_backward)

MFL_DEVICE void norm_backward_rows(const struct norm *b, enum mfl_cuda_type type, int width)
{
        int64_t rows = norm_rows(b);
        struct mfl_columns_place at = mfl_columns_place(&b->plan, rows);
        if (rows == 0 || at.lane < 0)
                return;
        float sum[MFL_PACK_MAX], sum_xhat[MFL_PACK_MAX];
        const float *sums = b->sums + (int64_t)blockIdx.y * 2 * b->op.x.c + at.unit * width;
        mfl_floats_load(sum, sums, width);
        mfl_floats_load(sum_xhat, sums + b->op.x.c, width);
        norm_rows_backward(b, &at, rows, sum, sum_xhat, type, width);
}
MFL_OPS_KERNELS(norm_backward_rows, struct norm, norm_backward_rows)

/* ---- host ---- */

static struct mfl_columns norm_plan(const struct mfl_cuda_tensor *x)
{
        return mfl_columns_of(x->batch * mfl_ops_pixels(x), x->c, x->type);
}

MFL_HOST uint64_t mfl_cuda_norm_workspace(const struct mfl_cuda_tensor *x, int norm_groups)
{
        if (norm_groups > 0)
                return mfl_cuda_group_norm_workspace(x);
        struct mfl_columns plan = norm_plan(x);
        return plan.chunks == 1 ? 0
                                : (uint64_t)x->groups * (uint64_t)(plan.chunks + 1) * 2 * (uint64_t)x->c * 4;
}

static struct norm norm_of(const struct mfl_cuda_norm *a)
{
        struct norm b;
        b.op = *a;
        b.plan = norm_plan(&a->x);
        b.chunks = (float *)a->workspace;
        b.sums = b.plan.chunks == 1 ? NULL : b.chunks + (int64_t)a->x.groups * b.plan.chunks * 2 * a->x.c;
        return b;
}

static cudaError_t launch_norm(const void *kernel, const struct norm *b, cudaStream_t stream)
{
        return mfl_launch(kernel, (uint32_t)(b->plan.tiles * b->plan.chunks), (uint32_t)b->op.x.groups, 1,
                MFL_OPS_THREADS, 0, stream, b);
}

static cudaError_t check_norm(const struct mfl_cuda_norm *a)
{
        return !mfl_ops_fits(&a->x)   ? cudaErrorInvalidValue
               : !mfl_norm_aligned(a) ? cudaErrorMisalignedAddress
                                      : cudaSuccess;
}

MFL_HOST cudaError_t mfl_cuda_norm_forward(const struct mfl_cuda_norm *a, cudaStream_t stream)
{
        cudaError_t r = check_norm(a);
        if (r != cudaSuccess)
                return r;
        if (a->norm_groups > 0)
                return mfl_cuda_group_norm_forward(a, stream);
        struct norm b = norm_of(a);
        bool wide = b.plan.width > 1;
        if (a->training && b.plan.chunks == 1)
                return launch_norm(norm_forward_small_pick(a->x.type, wide), &b, stream);
        if (a->training) {
                r = launch_norm(norm_chunk_pick(a->x.type, wide), &b, stream);
                if (r == cudaSuccess)
                        r = MFL_LAUNCH(norm_join, mfl_blocks(a->x.c, MFL_CHUNK_TILE), a->x.groups, 1,
                                MFL_OPS_THREADS, 0, stream, &b);
        }
        return r != cudaSuccess ? r : launch_norm(norm_forward_rows_pick(a->x.type, wide), &b, stream);
}

MFL_HOST cudaError_t mfl_cuda_norm_backward(const struct mfl_cuda_norm *a, cudaStream_t stream)
{
        cudaError_t r = check_norm(a);
        if (r != cudaSuccess)
                return r;
        if (a->norm_groups > 0)
                return mfl_cuda_group_norm_backward(a, stream);
        struct norm b = norm_of(a);
        bool wide = b.plan.width > 1;
        if (b.plan.chunks == 1)
                return launch_norm(norm_backward_small_pick(a->x.type, wide), &b, stream);
        r = launch_norm(norm_chunk_backward_pick(a->x.type, wide), &b, stream);
        if (r != cudaSuccess)
                return r;
        struct mfl_sum_chunks sum = {b.chunks, {a->dbias, a->dweight}, b.sums, a->stride, a->x.groups,
                b.plan.chunks, 2, a->x.c, a->steps};
        r = mfl_cuda_sum_chunks(&sum, stream);
        return r != cudaSuccess ? r : launch_norm(norm_backward_rows_pick(a->x.type, wide), &b, stream);
}
