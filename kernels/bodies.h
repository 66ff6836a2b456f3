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

static inline MFL_HD float mfl_relu6(float x)
{
        return x > 0.0f ? (x < 6.0f ? x : 6.0f) : 0.0f;
}

static inline MFL_HD float mfl_relu6_grad(float y, float dy)
{
        return y > 0.0f && y < 6.0f ? dy : 0.0f;
}

#define MFL_SQRT_HALF 0.70710678118654752440f
#define MFL_SQRT_2_OVER_PI 0.79788456080286535588f
#define MFL_1_OVER_SQRT_2PI 0.39894228040143267794f

static inline MFL_HD float mfl_gelu(float x)
{
        return 0.5f * x * (1.0f + erff(x * MFL_SQRT_HALF));
}

/* This and the next two from the input. */
static inline MFL_HD float mfl_gelu_grad(float x, float dy)
{
        float phi = 0.5f * (1.0f + erff(x * MFL_SQRT_HALF));
        return dy * (phi + x * MFL_1_OVER_SQRT_2PI * expf(-0.5f * x * x));
}

static inline MFL_HD float mfl_gelu_tanh(float x)
{
        return 0.5f * x * (1.0f + tanhf(MFL_SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)));
}

static inline MFL_HD float mfl_gelu_tanh_grad(float x, float dy)
{
        float t = tanhf(MFL_SQRT_2_OVER_PI * (x + 0.044715f * x * x * x));
        float inner = MFL_SQRT_2_OVER_PI * (1.0f + 3.0f * 0.044715f * x * x);
        return dy * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner);
}

static inline MFL_HD float mfl_silu(float x)
{
        return x * mfl_sigmoid(x);
}

static inline MFL_HD float mfl_silu_grad(float x, float dy)
{
        float s = mfl_sigmoid(x);
        return dy * (s * (1.0f + x * (1.0f - s)));
}

/* The slope is above 0, so that y > 0 says the same as x > 0; from either. */
static inline MFL_HD float mfl_leaky_relu(float x, float slope)
{
        return x > 0.0f ? x : slope * x;
}

static inline MFL_HD float mfl_leaky_relu_grad(float y, float dy, float slope)
{
        return y > 0.0f ? dy : slope * dy;
}

static inline MFL_HD float mfl_elu(float x, float alpha)
{
        return x > 0.0f ? x : alpha * expm1f(x);
}

/* From the output, and so the next one's. */
static inline MFL_HD float mfl_elu_grad(float y, float dy, float alpha)
{
        return y > 0.0f ? dy : dy * (y + alpha);
}

static inline MFL_HD float mfl_hardsigmoid(float x)
{
        return mfl_relu6(x + 3.0f) / 6.0f;
}

static inline MFL_HD float mfl_hardsigmoid_grad(float y, float dy)
{
        return y > 0.0f && y < 1.0f ? dy / 6.0f : 0.0f;
}

static inline MFL_HD float mfl_hardswish(float x)
{
        return x * mfl_relu6(x + 3.0f) / 6.0f;
}

/* This and the next from the input. */
static inline MFL_HD float mfl_hardswish_grad(float x, float dy)
{
        return x > -3.0f ? (x < 3.0f ? dy * (x / 3.0f + 0.5f) : dy) : 0.0f;
}

/* In the form that does not overflow. */
static inline MFL_HD float mfl_softplus(float x)
{
        return mfl_relu(x) + log1pf(expf(-fabsf(x)));
}

static inline MFL_HD float mfl_softplus_grad(float x, float dy)
{
        return dy * mfl_sigmoid(x);
}

/* The token that a float holds; a number outside takes the nearest inside. */
static inline MFL_HD int mfl_token(float x, int vocabulary)
{
        int t = x > 0.0f ? (x < (float)vocabulary ? (int)x : vocabulary - 1) : 0;
        return t < vocabulary ? t : vocabulary - 1;
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

/* What label smoothing does to a row's loss and gradient, both of the plain cross entropy: the target becomes
 * (1 - e) onehot + e / classes. `sum` is that of z - max over the classes, in float from index 0 on; log_sum
 * the logarithm of the sum of their exponentials. */
static inline MFL_HD float mfl_smooth_loss(float loss, float log_sum, float sum, int classes, float e)
{
        return (1.0f - e) * loss + e * (log_sum - sum / (float)classes);
}

static inline MFL_HD float mfl_smooth_grad(float dz, bool is_label, int classes, float e, float scale)
{
        return dz + (is_label ? e * scale : 0.0f) - e / (float)classes * scale;
}

/* Binary cross entropy of one logit with target t in [0, 1], in the form that does not overflow. */
static inline MFL_HD float mfl_binary_loss(float z, float t)
{
        return (z > 0.0f ? z : 0.0f) - z * t + logf(1.0f + expf(-fabsf(z)));
}

/* What a step of the optimizer needs besides the parameter: its learning rate, and of Adam 1 - beta^t. */
struct mfl_rate {
        float lr, correction1, correction2;
};

/* t: the step's number from 1 on; lr_scale: of the step. In double, rounded once: the same everywhere up to
 * the library's pow. */
static inline struct mfl_rate mfl_rate_of(const struct mfl_optimizer *opt, uint64_t t, float lr_scale)
{
        struct mfl_rate rate = {opt->lr * lr_scale, 1.0f, 1.0f};
        if (opt->kind == MFL_OPTIMIZER_ADAM || opt->kind == MFL_OPTIMIZER_ADAMW) {
                rate.correction1 = (float)(1.0 - pow((double)opt->beta1, (double)t));
                rate.correction2 = (float)(1.0 - pow((double)opt->beta2, (double)t));
        }
        return rate;
}

/* The factor that clips a gradient of that norm. */
static inline MFL_HD float mfl_clip_factor(float clip_norm, float norm)
{
        float factor = clip_norm / (norm + 1e-6f);
        return clip_norm > 0.0f && factor < 1.0f ? factor : 1.0f;
}

/* One parameter's step of any optimizer but SGD; m is Adam's, v Adam's and Adagrad's. */
static inline MFL_HD void mfl_adaptive_update(const struct mfl_optimizer *opt, const struct mfl_rate *rate,
        float *p, float *m, float *v, const float *p0, float g)
{
        if (opt->prox_mu != 0.0f)
                g = g + opt->prox_mu * (*p - *p0);
        if (opt->weight_decay != 0.0f && opt->kind == MFL_OPTIMIZER_ADAMW)
                *p = *p - rate->lr * opt->weight_decay * *p;
        else if (opt->weight_decay != 0.0f)
                g = g + opt->weight_decay * *p;
        if (opt->kind == MFL_OPTIMIZER_ADAGRAD) {
                *v = *v + g * g;
                *p = *p - rate->lr * g / (sqrtf(*v) + opt->eps);
                return;
        }
        *m = opt->beta1 * *m + (1.0f - opt->beta1) * g;
        *v = opt->beta2 * *v + (1.0f - opt->beta2) * (g * g);
        *p = *p - rate->lr / rate->correction1 * *m / (sqrtf(*v / rate->correction2) + opt->eps);
}

/* One parameter's step of SGD with that learning rate; m and p0 are only touched where momentum and prox_mu
 * are not 0. */
static inline MFL_HD void mfl_sgd_update(
        const struct mfl_optimizer *opt, float lr, float *p, float *m, const float *p0, float g)
{
        if (opt->weight_decay != 0.0f)
                g = g + opt->weight_decay * *p;
        if (opt->prox_mu != 0.0f)
                g = g + opt->prox_mu * (*p - *p0);
        if (opt->momentum != 0.0f) {
                *m = opt->momentum * *m + g;
                g = opt->nesterov ? g + opt->momentum * *m : *m;
        }
        *p = *p - lr * g;
}

#endif
