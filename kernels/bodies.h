/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of elementwise operators, written once: CPU loops and CUDA kernels call the same inline functions.
 *
 * Everything is float arithmetic in the order written; nothing is contracted. The CPU and CUDA differ only in
 * the last bits of expf, logf and tanhf.
 */
#ifndef MFL_KERNELS_BODIES_H
#define MFL_KERNELS_BODIES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/rng.h"
#include "kernels/backend.h"

static inline MFL_HD float mfl_relu(float x)
{
        return x > 0.0f ? x : 0.0f;
}

/* From the output, as all three derivatives here. */
static inline MFL_HD float mfl_relu_grad(float y, float dy)
{
        return y > 0.0f ? dy : 0.0f;
}

static inline MFL_HD float mfl_tanh_grad(float y, float dy)
{
        return dy * (1.0f - y * y);
}

static inline MFL_HD float mfl_sigmoid(float x)
{
        return 1.0f / (1.0f + expf(-x));
}

static inline MFL_HD float mfl_sigmoid_grad(float y, float dy)
{
        return dy * (y * (1.0f - y));
}

/* Element e of a dropout mask: the factor of x, 0 or 1 / (1 - rate). `key` is mfl_rng_dropout_key(client's
 * key, step, layer), e counts over the batch's rows in NCHW order. */
static inline MFL_HD float mfl_dropout_factor(uint32_t u, float rate)
{
        return mfl_u32_to_unit(u) >= rate ? 1.0f / (1.0f - rate) : 0.0f;
}

static inline MFL_HD float mfl_dropout_at(struct mfl_rng_key key, uint64_t e, float rate)
{
        struct mfl_philox block = mfl_rng_block(key, e / 4);
        return mfl_dropout_factor(block.v[e % 4], rate);
}

/* What augmentation does to one row of a batch: output pixel (i, j) shows pixel (i + dy, j + dx) of the
 * image, zero outside, after j was mirrored where flip is set. */
struct mfl_augment_choice {
        int dy, dx; /* in [-crop, crop] */
        bool flip;
};

/* step_key is mfl_rng_augment_key(the client's key, step); row counts within the batch. */
static inline MFL_HD struct mfl_augment_choice mfl_augment_pick(
        struct mfl_rng_key step_key, uint32_t row, const struct mfl_augment *augment)
{
        struct mfl_philox block = mfl_rng_block(step_key, row);
        uint32_t offsets = 2u * (uint32_t)augment->crop + 1u;
        struct mfl_augment_choice choice;
        choice.dy = (int)(block.v[0] % offsets) - augment->crop;
        choice.dx = (int)(block.v[1] % offsets) - augment->crop;
        choice.flip = augment->flip && block.v[2] >> 31;
        return choice;
}

/* The index within an h x w plane that output pixel (i, j) shows, or -1 where that is padding. */
static inline MFL_HD int mfl_augment_source(struct mfl_augment_choice choice, int i, int j, int h, int w)
{
        int y = i + choice.dy, x = (choice.flip ? w - 1 - j : j) + choice.dx;
        return y >= 0 && y < h && x >= 0 && x < w ? y * w + x : -1;
}

/* Softmax cross-entropy of one row of logits: returns log(sum exp(z - max)) - (z[label] - max), summed in
 * float from index 0 on; dz (NULL: not wanted) = (softmax - onehot) * scale; hit: the first largest logit is
 * the label. */
static inline MFL_HD float mfl_softmax_xent(
        const float *z, int classes, int label, float scale, float *dz, bool *ret_hit)
{
        int best = 0;
        for (int c = 1; c < classes; c++)
                best = z[c] > z[best] ? c : best;
        float max = z[best], sum = 0.0f;
        for (int c = 0; c < classes; c++)
                sum += expf(z[c] - max);
        *ret_hit = best == label;
        if (dz) {
                float inverse = 1.0f / sum;
                for (int c = 0; c < classes; c++)
                        dz[c] = (expf(z[c] - max) * inverse - (c == label ? 1.0f : 0.0f)) * scale;
        }
        return logf(sum) - (z[label] - max);
}

/* One parameter's step; m and p0 are only touched where momentum and prox_mu are not 0. */
static inline MFL_HD void mfl_sgd_update(
        const struct mfl_sgd *sgd, float *p, float *m, const float *p0, float g)
{
        if (sgd->weight_decay != 0.0f)
                g = g + sgd->weight_decay * *p;
        if (sgd->prox_mu != 0.0f)
                g = g + sgd->prox_mu * (*p - *p0);
        if (sgd->momentum != 0.0f) {
                *m = sgd->momentum * *m + g;
                g = sgd->nesterov ? g + sgd->momentum * *m : *m;
        }
        *p = *p - sgd->lr * g;
}

#endif
