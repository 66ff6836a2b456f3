/* SPDX-License-Identifier: Apache-2.0 */
/* Losses. Softmax cross-entropy has the bits of mfl_softmax_xent: its sum over the classes goes from class 0
 * on.
 *
 * Few classes: 32 rows meet in shared memory, and a thread does a row as the CPU does. Many: a block does a
 * row; only the sum itself, an addition for each class, is left to one thread.
 */
#include "common/fixed.h"
#include "kernels/cuda/ops_common.h"

#define ROWS 32     /* of a block */
#define CLASSES 64  /* few */
#define THREADS 128 /* of a block, few */
#define CHUNK 1024  /* classes whose exponentials wait for the sum, many */

/* Predictions of this batch. */
MFL_DEVICE uint32_t predictions(const struct mfl_cuda_loss *a)
{
        return mfl_cuda_rows(&a->steps, blockIdx.y) * (uint32_t)(a->positions ? a->positions : 1);
}

/* 1 / predictions of the step, times the group's loss scale. */
MFL_DEVICE float gradient_scale(const struct mfl_cuda_loss *a, uint32_t n)
{
        if (a->scored)
                n = a->scored[blockIdx.y * a->steps.steps_max + *a->steps.step];
        float scale = n ? 1.0f / (float)n : 0.0f;
        return a->scale ? scale * a->scale[blockIdx.y].scale : scale;
}

/* A block's share of the sums, once in each block. */
MFL_DEVICE void add_sums(const struct mfl_cuda_loss *a, int64_t loss, uint64_t hits, uint64_t rows)
{
        mfl_atomic_add_i64(&a->loss_sum[blockIdx.y], loss);
        if (hits)
                mfl_atomic_add_u64(&a->n_correct[blockIdx.y], hits);
        if (rows)
                mfl_atomic_add_u64(&a->n_scored[blockIdx.y], rows);
}

/* ---- few classes ---- */

#define SCORED 2u /* of a row's `hits`; 1: a hit */

/* The host's way (kernels/host.c), behind mfl_softmax_xent. */
MFL_DEVICE float smooth_row(
        const struct mfl_cuda_loss *a, const float *z, int label, float plain, float scale, float *dz)
{
        float max = z[0], sum = 0.0f, e = a->loss.smoothing;
        int classes = a->z.c;
        for (int c = 1; c < classes; c++)
                max = z[c] > max ? z[c] : max;
        for (int c = 0; c < classes; c++)
                sum += z[c] - max;
        for (int c = 0; dz && c < classes; c++)
                dz[c] = mfl_smooth_grad(dz[c], c == label, classes, e, scale);
        return mfl_smooth_loss(plain, plain + (z[label] - max), sum, classes, e);
}

/* z and dz are shared, [ROWS][classes + 1]: rows begin in different banks. */
MFL_DEVICE void loss_rows(const struct mfl_cuda_loss *a, uint32_t rows, const float *z, float *dz,
        int64_t *loss, uint32_t *hits)
{
        int classes = a->z.c, t = (int)threadIdx.x, pitch = classes + 1;
        uint32_t row = blockIdx.x * ROWS + threadIdx.x;
        if (t >= ROWS)
                return;
        loss[t] = 0;
        hits[t] = 0;
        int label = row < rows ? a->labels[(int64_t)blockIdx.y * a->z.batch + row] : -1;
        if (label >= 0) {
                bool hit;
                float scale = gradient_scale(a, rows), *to = a->dz ? dz + t * pitch : NULL;
                float v = mfl_softmax_xent(z + t * pitch, classes, label, scale, to, &hit);
                if (a->loss.smoothing > 0.0f)
                        v = smooth_row(a, z + t * pitch, label, v, scale, to);
                loss[t] = mfl_fixed_loss(v);
                hits[t] = SCORED + hit;
        } else if (a->dz) {
                for (int c = 0; c < classes; c++)
                        dz[t * pitch + c] = 0.0f;
        }
}

MFL_DEVICE void loss_few(const struct mfl_cuda_loss *a, enum mfl_cuda_type type)
{
        MFL_SHARED(float, z, ROWS *(CLASSES + 1));
        MFL_SHARED(float, dz, ROWS *(CLASSES + 1));
        MFL_SHARED(int64_t, loss, ROWS);
        MFL_SHARED(uint32_t, hits, ROWS);
        uint32_t rows = predictions(a);
        if (rows == 0)
                return;
        int classes = a->z.c, first = (int)blockIdx.x * ROWS, left = a->z.batch - first;
        int n = (left < ROWS ? left : ROWS) * classes;
        int64_t base = ((int64_t)blockIdx.y * a->z.batch + first) * classes;
        for (int i = (int)threadIdx.x; i < n; i += THREADS)
                z[i / classes * (classes + 1) + i % classes] = mfl_load(a->logits, base + i, type);
        MFL_SYNC();
        loss_rows(a, rows, z, dz, loss, hits);
        MFL_SYNC();
        for (int i = (int)threadIdx.x; a->dz && i < n; i += THREADS)
                mfl_store(a->dz, base + i, dz[i / classes * (classes + 1) + i % classes], type);
        if (threadIdx.x != 0 || (uint32_t)first >= rows)
                return;
        int64_t loss_sum = 0;
        uint32_t hit_sum = 0, scored = 0;
        uint32_t count = rows - (uint32_t)first < ROWS ? rows - (uint32_t)first : ROWS;
        for (uint32_t i = 0; i < count; i++) {
                loss_sum += loss[i];
                hit_sum += hits[i] % SCORED;
                scored += hits[i] / SCORED;
        }
        add_sums(a, loss_sum, hit_sum, scored);
}

/* ---- many classes ---- */

/* The first largest logit of the row: value and class. */
MFL_DEVICE void find_best(
        float *best, int *at, const void *z, int64_t base, int classes, enum mfl_cuda_type type)
{
        int t = (int)threadIdx.x, mine = t < classes ? t : 0;
        float value = mfl_load(z, base + mine, type);
        for (int c = mine + MFL_OPS_THREADS; c < classes; c += MFL_OPS_THREADS) {
                float v = mfl_load(z, base + c, type);
                if (v > value) {
                        value = v;
                        mine = c;
                }
        }
        best[t] = value;
        at[t] = mine;
        MFL_SYNC();
        for (int s = MFL_OPS_THREADS / 2; s > 0; s /= 2) {
                if (t < s && (best[t + s] > best[t] || (best[t + s] == best[t] && at[t + s] < at[t]))) {
                        best[t] = best[t + s];
                        at[t] = at[t + s];
                }
                MFL_SYNC();
        }
}

/* The sum of exp(z - max) (plain: of z - max) from class 0 on, the same for all threads. e is shared, [CHUNK
 * + 1]. */
MFL_DEVICE float sum_exp(
        float *e, const void *z, int64_t base, int classes, float max, bool plain, enum mfl_cuda_type type)
{
        float sum = 0.0f;
        for (int first = 0; first < classes; first += CHUNK) {
                int n = classes - first < CHUNK ? classes - first : CHUNK;
                for (int c = (int)threadIdx.x; c < n; c += MFL_OPS_THREADS) {
                        float d = mfl_load(z, base + first + c, type) - max;
                        e[c] = plain ? d : expf(d);
                }
                MFL_SYNC();
                if (threadIdx.x == 0)
                        for (int c = 0; c < n; c++)
                                sum += e[c];
                MFL_SYNC();
        }
        if (threadIdx.x == 0)
                e[CHUNK] = sum;
        MFL_SYNC();
        sum = e[CHUNK];
        MFL_SYNC();
        return sum;
}

MFL_DEVICE void loss_many(const struct mfl_cuda_loss *a, enum mfl_cuda_type type)
{
        MFL_SHARED(float, best, MFL_OPS_THREADS);
        MFL_SHARED(int, at, MFL_OPS_THREADS);
        MFL_SHARED(float, e, CHUNK + 1);
        uint32_t rows = predictions(a), row = blockIdx.x;
        int classes = a->z.c;
        int64_t slot = (int64_t)blockIdx.y * a->z.batch + row, base = slot * classes;
        if (rows == 0)
                return;
        int label = row < rows ? a->labels[slot] : -1;
        if (label < 0) {
                for (int c = (int)threadIdx.x; a->dz && c < classes; c += MFL_OPS_THREADS)
                        mfl_store(a->dz, base + c, 0.0f, type);
                return;
        }
        find_best(best, at, a->logits, base, classes, type);
        float max = best[0], sum = sum_exp(e, a->logits, base, classes, max, false, type);
        float smoothing = a->loss.smoothing, shifts = 0.0f;
        if (smoothing > 0.0f)
                shifts = sum_exp(e, a->logits, base, classes, max, true, type);
        float inverse = 1.0f / sum, scale = gradient_scale(a, rows);
        if (threadIdx.x == 0) {
                float shift = mfl_load(a->logits, base + label, type) - max, loss = logf(sum) - shift;
                if (smoothing > 0.0f)
                        loss = mfl_smooth_loss(loss, loss + shift, shifts, classes, smoothing);
                add_sums(a, mfl_fixed_loss(loss), at[0] == label, 1);
        }
        for (int c = (int)threadIdx.x; a->dz && c < classes; c += MFL_OPS_THREADS) {
                float p = expf(mfl_load(a->logits, base + c, type) - max) * inverse;
                float d = (p - (c == label ? 1.0f : 0.0f)) * scale;
                if (smoothing > 0.0f)
                        d = mfl_smooth_grad(d, c == label, classes, smoothing, scale);
                mfl_store(a->dz, base + c, d, type);
        }
}

/* ---- numbers to be met: a thread for each; integer sums, so their order does not matter ---- */

MFL_DEVICE void loss_targets(const struct mfl_cuda_loss *a, enum mfl_cuda_type type)
{
        MFL_SHARED(int64_t, loss, THREADS);
        MFL_SHARED(uint32_t, hits, THREADS);
        uint32_t rows = predictions(a), t = threadIdx.x;
        if (rows == 0)
                return;
        bool binary = a->loss.kind == MFL_LOSS_BINARY;
        int64_t i = MFL_GLOBAL_INDEX, n = (int64_t)a->z.batch * a->z.c, at = blockIdx.y * n + i;
        int64_t counts = (int64_t)rows * a->z.c;
        loss[t] = 0;
        hits[t] = 0;
        if (i < counts) {
                float z = mfl_load(a->logits, at, type), target = mfl_bits_to_float((uint32_t)a->labels[at]);
                float d = z - target, scale = gradient_scale(a, (uint32_t)counts);
                loss[t] = mfl_fixed_loss(binary ? mfl_binary_loss(z, target) : d * d);
                hits[t] = binary && (z > 0.0f) == (target > 0.5f);
                if (a->dz)
                        mfl_store(a->dz, at, (binary ? mfl_sigmoid(z) - target : 2.0f * d) * scale, type);
        } else if (i < n && a->dz) {
                mfl_store(a->dz, at, 0.0f, type);
        }
        MFL_SYNC();
        for (uint32_t s = THREADS / 2; s > 0; s /= 2) {
                if (t < s) {
                        loss[t] += loss[t + s];
                        hits[t] += hits[t + s];
                }
                MFL_SYNC();
        }
        int64_t left = counts - (int64_t)blockIdx.x * THREADS;
        if (t == 0 && left > 0)
                add_sums(a, loss[0], hits[0], (uint64_t)(left < THREADS ? left : THREADS));
}

MFL_KERNEL(loss_targets_f32, struct mfl_cuda_loss)
{
        loss_targets(&a, MFL_CUDA_F32);
}
MFL_KERNEL(loss_targets_bf16, struct mfl_cuda_loss)
{
        loss_targets(&a, MFL_CUDA_BF16);
}
MFL_KERNEL(loss_targets_f16, struct mfl_cuda_loss)
{
        loss_targets(&a, MFL_CUDA_F16);
}

MFL_KERNEL(loss_few_f32, struct mfl_cuda_loss)
{
        loss_few(&a, MFL_CUDA_F32);
}
MFL_KERNEL(loss_few_bf16, struct mfl_cuda_loss)
{
        loss_few(&a, MFL_CUDA_BF16);
}
MFL_KERNEL(loss_few_f16, struct mfl_cuda_loss)
{
        loss_few(&a, MFL_CUDA_F16);
}
MFL_KERNEL(loss_many_f32, struct mfl_cuda_loss)
{
        loss_many(&a, MFL_CUDA_F32);
}
MFL_KERNEL(loss_many_bf16, struct mfl_cuda_loss)
{
        loss_many(&a, MFL_CUDA_BF16);
}
MFL_KERNEL(loss_many_f16, struct mfl_cuda_loss)
{
        loss_many(&a, MFL_CUDA_F16);
}

MFL_HOST cudaError_t mfl_cuda_loss(const struct mfl_cuda_loss *a, cudaStream_t stream)
{
        if (!mfl_ops_fits(&a->z) || mfl_ops_pixels(&a->z) != 1)
                return cudaErrorInvalidValue;
        const void *few[3] = {
                (const void *)(loss_few_f32), (const void *)(loss_few_bf16), (const void *)(loss_few_f16)};
        const void *many[3] = {
                (const void *)(loss_many_f32), (const void *)(loss_many_bf16), (const void *)(loss_many_f16)};
        const void *targets[3] = {(const void *)(loss_targets_f32), (const void *)(loss_targets_bf16),
                (const void *)(loss_targets_f16)};
        if (a->loss.kind != MFL_LOSS_CROSS_ENTROPY)
                return mfl_launch(targets[a->z.type], (uint32_t)mfl_blocks(mfl_ops_elements(&a->z), THREADS),
                        (uint32_t)a->z.groups, 1, THREADS, 0, stream, a);
        if (a->z.c <= CLASSES)
                return mfl_launch(few[a->z.type], (uint32_t)mfl_blocks(a->z.batch, ROWS),
                        (uint32_t)a->z.groups, 1, THREADS, 0, stream, a);
        return mfl_launch(many[a->z.type], (uint32_t)a->z.batch, (uint32_t)a->z.groups, 1, MFL_OPS_THREADS, 0,
                stream, a);
}
