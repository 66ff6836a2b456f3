/* SPDX-License-Identifier: Apache-2.0 */
/* Losses.
 *
 * Few classes: 32 rows meet in shared memory, and a thread computes a row as the CPU does, with the bits of
 * mfl_softmax_xent. Many: a block computes a row. Its sum over the classes has a fixed order, the same on
 * every device: thread t adds the classes t, t + 256, t + 512, ..; then the threads' sums are added by halves
 * (t and t + 128, t and t + 64, ..).
 */
#include "common/base/fixed.h"
#include "kernels/cuda/ops/ops_common.h"

#define ROWS 32     /* of a block */
#define CLASSES 64  /* at most this many are few */
#define THREADS 128 /* of a block, few */

/* Predictions of this batch. */
MFL_DEVICE uint32_t predictions(const struct mfl_cuda_loss *a)
{
        return mfl_cuda_rows(&a->steps, blockIdx.y) * (uint32_t)(a->positions ? a->positions : 1);
}

/* What the step's predictions share, with the group's loss scale. */
MFL_DEVICE struct mfl_loss_share share_of(const struct mfl_cuda_loss *a, uint32_t n)
{
        struct mfl_loss_share share = {n ? 1.0f / (float)n : 0.0f, 1.0f};
        if (a->share)
                share = a->share[blockIdx.y * a->steps.steps_max + *a->steps.step];
        if (a->scale)
                share.scale *= a->scale[blockIdx.y].scale;
        return share;
}

/* A prediction: its label (-1: not scored), the factor of its output, and whether that is the main one. */
struct place {
        int label;
        float head;
        bool main;
};

MFL_DEVICE struct place place_of(const struct mfl_cuda_loss *a, uint32_t row, uint32_t rows)
{
        int heads = 1 + a->loss.n_auxiliary, positions = a->positions ? a->positions : 1;
        int each = positions / heads, t = (int)(row % (uint32_t)positions);
        struct place place = {-1, mfl_head_weight(&a->loss, t, each), t < each};
        if (row >= rows || (!place.main && !a->share))
                return place;
        int64_t first = (int64_t)(row / (uint32_t)positions) * each;
        int label = a->labels[(int64_t)blockIdx.y * (a->z.batch / heads) + first + t % each];
        if (mfl_is_scored(&a->loss, label))
                place.label = label;
        return place;
}

MFL_DEVICE void count_classes(const struct mfl_cuda_loss *a, int label, int best)
{
        int classes = a->z.c;
        if (a->tally_kind == MFL_TALLY_CONFUSION) {
                mfl_atomic_add_u64(&a->tally[label * classes + best], 1);
                return;
        }
        mfl_atomic_add_u64(&a->tally[label], 1);
        mfl_atomic_add_u64(&a->tally[classes + best], 1);
        if (label == best)
                mfl_atomic_add_u64(&a->tally[2 * classes + label], 1);
}

/* Adds a block's share to the sums, once in each block. */
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
        struct place place = place_of(a, row, rows);
        if (place.label >= 0) {
                bool hit;
                struct mfl_loss_share share = share_of(a, rows);
                const float *own = z + t * pitch;
                float v = mfl_label_loss(&a->loss, own, classes, place.label, share.scale * place.head,
                        a->dz ? dz + t * pitch : NULL, &hit);
                loss[t] = mfl_fixed_loss(v * (share.ratio * place.head));
                hits[t] = place.main ? SCORED + hit : 0;
                if (a->tally && place.main) {
                        int best = 0;
                        for (int c = 1; c < classes; c++)
                                best = own[c] > own[best] ? c : best;
                        count_classes(a, place.label, best);
                }
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

/* What is added over the classes. */
enum term {
        TERM_EXP,   /* exp(z - max) */
        TERM_SHIFT, /* z - max */
        TERM_WEIGHTED_SHIFT,
        TERM_WEIGHT,
};

/* The sum in the fixed order, the same for all threads. part is shared, [MFL_OPS_THREADS]. */
MFL_DEVICE float sum_over(const struct mfl_cuda_loss *a, float *part, int64_t base, float max, enum term term,
        enum mfl_cuda_type type)
{
        int classes = a->z.c;
        int t = (int)threadIdx.x;
        float sum = 0.0f;
        for (int c = t; c < classes; c += MFL_OPS_THREADS) {
                float d = term == TERM_WEIGHT ? 1.0f : mfl_load(a->logits, base + c, type) - max;
                if (term == TERM_WEIGHTED_SHIFT || term == TERM_WEIGHT)
                        d = a->loss.weights[c] * d;
                sum += term == TERM_EXP ? expf(d) : d;
        }
        part[t] = sum;
        MFL_SYNC();
        for (int s = MFL_OPS_THREADS / 2; s > 0; s /= 2) {
                if (t < s)
                        part[t] += part[t + s];
                MFL_SYNC();
        }
        sum = part[0];
        MFL_SYNC();
        return sum;
}

/* What a row's loss and gradient are made of. */
struct row {
        float max, log_sum, inverse; /* of the exponentials: the logarithm of their sum, 1 / it */
        float plain;                 /* cross entropy */
        float shifts, weights;       /* smoothing: sums over the classes */
        float own, factor;           /* the label's weight; focal's factor of the gradient */
        float scale;
};

MFL_DEVICE float loss_of_row(const struct mfl_loss *loss, int classes, struct row *v)
{
        float e = loss->smoothing;
        v->factor = 1.0f;
        if (loss->kind == MFL_LOSS_FOCAL)
                return v->own * mfl_focal_loss(v->plain, loss->parameter, &v->factor);
        if (e > 0.0f && loss->weights)
                return mfl_smooth_weighted_loss(
                        v->plain, v->log_sum, v->own, v->weights, v->shifts, classes, e);
        if (e > 0.0f)
                return mfl_smooth_loss(v->plain, v->log_sum, v->shifts, classes, e);
        return v->own * v->plain;
}

MFL_DEVICE float grad_of_class(
        const struct mfl_loss *loss, int classes, const struct row *v, float z, int c, bool is_label)
{
        float p = expf(z - v->max) * v->inverse, e = loss->smoothing;
        if (e > 0.0f && loss->weights)
                return mfl_smooth_weighted_grad(
                               p, is_label, v->own, loss->weights[c], v->weights, classes, e) *
                       v->scale;
        float d = (p - (is_label ? 1.0f : 0.0f)) * (v->scale * v->own);
        if (loss->kind == MFL_LOSS_FOCAL)
                return d * v->factor;
        return e > 0.0f ? mfl_smooth_grad(d, is_label, classes, e, v->scale) : d;
}

MFL_DEVICE void loss_many(const struct mfl_cuda_loss *a, enum mfl_cuda_type type)
{
        MFL_SHARED(float, best, MFL_OPS_THREADS);
        MFL_SHARED(int, at, MFL_OPS_THREADS);
        MFL_SHARED(float, part, MFL_OPS_THREADS);
        uint32_t rows = predictions(a), row = blockIdx.x;
        int classes = a->z.c;
        int64_t base = ((int64_t)blockIdx.y * a->z.batch + row) * classes;
        if (rows == 0)
                return;
        struct place place = place_of(a, row, rows);
        int label = place.label;
        if (label < 0) {
                for (int c = (int)threadIdx.x; a->dz && c < classes; c += MFL_OPS_THREADS)
                        mfl_store(a->dz, base + c, 0.0f, type);
                return;
        }
        find_best(best, at, a->logits, base, classes, type);
        struct mfl_loss_share share = share_of(a, rows);
        bool weighted = a->loss.weights, smooth = a->loss.smoothing > 0.0f;
        struct row v = {.max = best[0]};
        float sum = sum_over(a, part, base, v.max, TERM_EXP, type);
        if (smooth)
                v.shifts = sum_over(a, part, base, v.max, weighted ? TERM_WEIGHTED_SHIFT : TERM_SHIFT, type);
        if (smooth && weighted)
                v.weights = sum_over(a, part, base, v.max, TERM_WEIGHT, type);
        float shift = mfl_load(a->logits, base + label, type) - v.max;
        v.inverse = 1.0f / sum;
        v.plain = logf(sum) - shift;
        v.log_sum = v.plain + shift;
        v.own = weighted ? a->loss.weights[label] : 1.0f;
        v.scale = share.scale * place.head;
        float loss = loss_of_row(&a->loss, classes, &v) * (share.ratio * place.head);
        if (threadIdx.x == 0) {
                add_sums(a, mfl_fixed_loss(loss), place.main && at[0] == label, place.main);
                if (a->tally && place.main)
                        count_classes(a, label, at[0]);
        }
        for (int c = (int)threadIdx.x; a->dz && c < classes; c += MFL_OPS_THREADS)
                mfl_store(a->dz, base + c,
                        grad_of_class(
                                &a->loss, classes, &v, mfl_load(a->logits, base + c, type), c, c == label),
                        type);
}

/* ---- targets: a thread for each; integer sums, so their order does not matter ---- */

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
                float d, value = mfl_target_loss(&a->loss, (int)(i % a->z.c), z, target, &d);
                loss[t] = mfl_fixed_loss(value);
                hits[t] = binary && (z > 0.0f) == (target > 0.5f);
                if (a->dz)
                        mfl_store(a->dz, at, d * share_of(a, (uint32_t)counts).scale, type);
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
        if (mfl_loss_answers(a->loss.kind) == MFL_ANSWERS_TARGETS)
                return mfl_launch(targets[a->z.type], (uint32_t)mfl_blocks(mfl_ops_elements(&a->z), THREADS),
                        (uint32_t)a->z.groups, 1, THREADS, 0, stream, a);
        if (a->z.c <= CLASSES)
                return mfl_launch(few[a->z.type], (uint32_t)mfl_blocks(a->z.batch, ROWS),
                        (uint32_t)a->z.groups, 1, THREADS, 0, stream, a);
        return mfl_launch(many[a->z.type], (uint32_t)a->z.batch, (uint32_t)a->z.groups, 1, MFL_OPS_THREADS, 0,
                stream, a);
}
