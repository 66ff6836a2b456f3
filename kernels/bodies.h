/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of elementwise operators, written once: CPU loops and CUDA kernels call the same inline functions.
 *
 * All arithmetic is float, in the order written, without contraction. CPU and CUDA differ only in the last
 * bits of expf, logf and tanhf.
 */
#ifndef MFL_KERNELS_BODIES_H
#define MFL_KERNELS_BODIES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/rng.h"
#include "common/model/unary.h"
#include "kernels/backend.h"

#define UNARY_REAL float
#define UNARY_BODY static inline MFL_HD
#define UNARY_NAME(body) mfl_unary_##body
#define UNARY_C(number) number##f
#define UNARY_EXP expf
#define UNARY_EXPM1 expm1f
#define UNARY_LOG1P_OF_EXP(x) log1pf(expf(x))
#define UNARY_TANH tanhf
#define UNARY_ERF erff
#define UNARY_ABS fabsf
#define UNARY_LOG logf
#define UNARY_SQRT sqrtf
#define UNARY_POW powf
#define UNARY_SIN sinf
#define UNARY_COS cosf
#define UNARY_ATAN atanf
#define UNARY_FMOD fmodf
#define UNARY_FLOOR floorf
#define UNARY_RINT rintf
#define UNARY_GATE(v, x) ((v)*mfl_unary_sigmoid(x))
#include "common/model/unary_bodies.h"

/* What follows a body's arguments x, or v and dy, when the function has n parameters. */
#define MFL_UNARY_ARGS_0(a, b)
#define MFL_UNARY_ARGS_1(a, b) , a
#define MFL_UNARY_ARGS_2(a, b) , a, b

/* The token that a float holds. A number outside the vocabulary becomes the nearest token. */
static inline MFL_HD int mfl_token(float x, int vocabulary)
{
        int t = x > 0.0f ? (x < (float)vocabulary ? (int)x : vocabulary - 1) : 0;
        return t < vocabulary ? t : vocabulary - 1;
}

/* What a padding mask adds to the scores of a position; the lowest number of the smallest format keeps it finite. */
static inline MFL_HD float mfl_masked_at(float x, int padding)
{
        return x == (float)padding ? MFL_MASKED : 0.0f;
}

/* Element e of a dropout mask: the factor of x, 0 or 1 / (1 - rate). `key` is mfl_rng_dropout_key(client's
 * key, step, layer); e counts over the batch's rows in NCHW order. */
static inline MFL_HD float mfl_dropout_factor(uint32_t u, float rate)
{
        return mfl_u32_to_unit(u) >= rate ? 1.0f / (1.0f - rate) : 0.0f;
}

static inline MFL_HD float mfl_dropout_at(struct mfl_rng_key key, uint64_t e, float rate)
{
        struct mfl_philox block = mfl_rng_block(key, e / 4);
        /* Not v[e % 4]: a GPU cannot index registers and would put v into memory. */
        uint32_t even = e & 2 ? block.v[2] : block.v[0], odd = e & 2 ? block.v[3] : block.v[1];
        return mfl_dropout_factor(e & 1 ? odd : even, rate);
}

/* What augmentation does to one row of a batch: output pixel (i, j) shows pixel (i + dy, j + dx) of the
 * image, or zero outside it. With flip, j is mirrored first. */
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

/* The index within an h x w plane that output pixel (i, j) shows, or -1 for padding. */
static inline MFL_HD int mfl_augment_source(struct mfl_augment_choice choice, int i, int j, int h, int w)
{
        int y = i + choice.dy, x = (choice.flip ? w - 1 - j : j) + choice.dx;
        return y >= 0 && y < h && x >= 0 && x < w ? y * w + x : -1;
}

/* Softmax cross-entropy of one row of logits. Returns log(sum exp(z - max)) - (z[label] - max), summed in
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

/* What label smoothing does to a row's loss and gradient, given those of the plain cross entropy: the target
 * becomes (1 - e) onehot + e / classes. `sum` is the sum of z - max over the classes, in float from index 0
 * on; log_sum is the logarithm of the sum of their exponentials. */
static inline MFL_HD float mfl_smooth_loss(float loss, float log_sum, float sum, int classes, float e)
{
        return (1.0f - e) * loss + e * (log_sum - sum / (float)classes);
}

static inline MFL_HD float mfl_smooth_grad(float dz, bool is_label, int classes, float e, float scale)
{
        return dz + (is_label ? e * scale : 0.0f) - e / (float)classes * scale;
}

/* Cross entropy of smoothed labels with weights w, as PyTorch's: (1 - e) w[y] (-log p[y]) + e / classes *
 * sum over c of w[c] (-log p[c]). `plain` is -log p[y], `max` the largest logit, sum_w the sum of the weights,
 * and sum_wz that of w[c] (z[c] - max), both in float from class 0 on. */
static inline MFL_HD float mfl_smooth_weighted_loss(
        float plain, float log_sum, float own_weight, float sum_w, float sum_wz, int classes, float e)
{
        return (1.0f - e) * own_weight * plain + e / (float)classes * (sum_w * log_sum - sum_wz);
}

/* Its gradient by the logit of class c, with p[c]. */
static inline MFL_HD float mfl_smooth_weighted_grad(
        float p, bool is_label, float own_weight, float weight, float sum_w, int classes, float e)
{
        return (1.0f - e) * own_weight * (p - (is_label ? 1.0f : 0.0f)) +
               e / (float)classes * (p * sum_w - weight);
}

/* Focal loss (Lin et al. 2017, eq. 4, with softmax in place of the sigmoid): (1 - p)^gamma * plain, where plain is
 * -log p of the label. *ret_factor: what the cross entropy's gradient is multiplied by. */
static inline MFL_HD float mfl_focal_loss(float plain, float gamma, float *ret_factor)
{
        float q = -expm1f(-plain), p = 1.0f - q; /* 1 - p without cancellation */
        if (!(q > 0.0f)) {
                *ret_factor = gamma > 0.0f ? 0.0f : 1.0f;
                return gamma > 0.0f ? 0.0f : plain;
        }
        float power = powf(q, gamma);
        *ret_factor = power + gamma * p * (power / q) * plain;
        return power * plain;
}

/* The training loss of one row of logits with a label, before it is divided by what the step's rows share, and dz
 * (NULL: not wanted), its gradient times `scale`. hit as mfl_softmax_xent. */
static inline MFL_HD float mfl_label_loss(const struct mfl_loss *loss, const float *z, int classes, int label,
        float scale, float *dz, bool *ret_hit)
{
        const float *w = loss->weights;
        float own = w ? w[label] : 1.0f, e = loss->smoothing, max = z[0], sum = 0.0f, sum_w = 0.0f;
        float value = mfl_softmax_xent(z, classes, label, w ? scale * own : scale, dz, ret_hit), factor;
        if (loss->kind == MFL_LOSS_FOCAL) {
                value = mfl_focal_loss(value, loss->parameter, &factor);
                for (int c = 0; dz && c < classes; c++)
                        dz[c] *= factor;
                return w ? own * value : value;
        }
        if (!(e > 0.0f))
                return w ? own * value : value;
        for (int c = 1; c < classes; c++)
                max = z[c] > max ? z[c] : max;
        float log_sum = value + (z[label] - max);
        for (int c = 0; c < classes; c++) {
                sum += w ? w[c] * (z[c] - max) : z[c] - max;
                sum_w += w ? w[c] : 0.0f;
        }
        for (int c = 0; dz && c < classes; c++)
                dz[c] = !w ? mfl_smooth_grad(dz[c], c == label, classes, e, scale)
                           : mfl_smooth_weighted_grad(
                                     expf(z[c] - max - log_sum), c == label, own, w[c], sum_w, classes, e) *
                                        scale;
        return w ? mfl_smooth_weighted_loss(value, log_sum, own, sum_w, sum, classes, e)
                 : mfl_smooth_loss(value, log_sum, sum, classes, e);
}

/* Binary cross entropy of one logit with target t in [0, 1], in the form that does not overflow. */
static inline MFL_HD float mfl_binary_loss(float z, float t)
{
        return (z > 0.0f ? z : 0.0f) - z * t + logf(1.0f + expf(-fabsf(z)));
}

/* The same with the positive part weighted by w: -(w t log s(z) + (1 - t) log(1 - s(z))), as PyTorch's pos_weight. */
static inline MFL_HD float mfl_binary_weighted_loss(float z, float t, float w)
{
        return (1.0f - t) * z +
               (1.0f + (w - 1.0f) * t) * (logf(1.0f + expf(-fabsf(z))) + (z < 0.0f ? -z : 0.0f));
}

/* The loss of output z against a target t, and its gradient by z (*ret_grad); k is the target's number. With d = z - t:
 *   binary     see above, of a logit
 *   squared    d^2
 *   huber      |d| <= delta ? d^2 / 2 : delta (|d| - delta / 2)                                    (Huber 1964)
 *   smooth L1  huber with delta = beta, divided by beta                                       (Girshick 2015)
 *   L1         |d|; its gradient at 0 is 0, as in PyTorch */
static inline MFL_HD float mfl_target_loss(
        const struct mfl_loss *loss, int k, float z, float t, float *ret_grad)
{
        float d = z - t, size = fabsf(d), sign = (float)((d > 0.0f) - (d < 0.0f)), b = loss->parameter;
        switch (loss->kind) {
        case MFL_LOSS_BINARY:
                if (loss->weights) {
                        float w = loss->weights[loss->n_weights > 1 ? k : 0];
                        *ret_grad = (1.0f + (w - 1.0f) * t) * mfl_unary_sigmoid(z) - w * t;
                        return mfl_binary_weighted_loss(z, t, w);
                }
                *ret_grad = mfl_unary_sigmoid(z) - t;
                return mfl_binary_loss(z, t);
        case MFL_LOSS_HUBER:
                *ret_grad = size <= b ? d : b * sign;
                return size <= b ? 0.5f * d * d : b * (size - 0.5f * b);
        case MFL_LOSS_SMOOTH_L1:
                *ret_grad = size < b ? d / b : sign;
                return size < b ? 0.5f * d * d / b : size - 0.5f * b;
        case MFL_LOSS_L1:
                *ret_grad = sign;
                return size;
        default:
                *ret_grad = 2.0f * d;
                return d * d;
        }
}

/* Whether this label is scored. */
static inline MFL_HD bool mfl_is_scored(const struct mfl_loss *loss, int label)
{
        return label >= 0 && !(loss->has_ignored && label == loss->ignored);
}

/* Factor of the loss at a position: that of its head. n: positions of one head. */
static inline MFL_HD float mfl_head_weight(const struct mfl_loss *loss, int position, int n)
{
        return position < n ? 1.0f : loss->auxiliary_weights[position / n - 1];
}

/* What an optimizer's step needs besides the parameter: the learning rate and, for Adam, 1 - beta^t. */
struct mfl_rate {
        float lr, correction1, correction2;
};

/* t: the step's number from 1 on; lr_scale: the step's. Computed in double and rounded once, so that results
 * are the same everywhere except for the library's pow. */
static inline struct mfl_rate mfl_rate_of(const struct mfl_optimizer *opt, uint64_t t, float lr_scale)
{
        struct mfl_rate rate = {opt->lr * lr_scale, 1.0f, 1.0f};
        if (opt->kind == MFL_OPTIMIZER_ADAM || opt->kind == MFL_OPTIMIZER_ADAMW) {
                rate.correction1 = (float)(1.0 - pow((double)opt->beta1, (double)t));
                rate.correction2 = (float)(1.0 - pow((double)opt->beta2, (double)t));
        }
        return rate;
}

/* Running statistics take those of some rows. */
static inline MFL_HD void mfl_running_update(uint64_t n, float momentum, const float *of_rows, float *running)
{
        double share = (double)momentum;
        for (uint64_t i = 0; i < n; i++)
                running[i] = (float)((1 - share) * (double)running[i] + share * (double)of_rows[i]);
}

/* The factor that clips a gradient with this norm. */
static inline MFL_HD float mfl_clip_factor(float clip_norm, float norm)
{
        float factor = clip_norm / (norm + 1e-6f);
        return clip_norm > 0.0f && factor < 1.0f ? factor : 1.0f;
}

/* One parameter's step of any optimizer except SGD. m: for Adam; v: for Adam and Adagrad. */
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

/* The loss scale of fp16 (kernels/backend.h), a power of two, after a step. It stays far within what gradients allow. */
#define MFL_LOSS_SCALE_START 0x1p16f
#define MFL_LOSS_SCALE_MIN 0x1p-24f
#define MFL_LOSS_SCALE_MAX 0x1p24f
#define MFL_LOSS_SCALE_GOOD 2000u

static inline MFL_HD void mfl_loss_scale_next(float *scale, uint32_t *good_steps, bool overflow)
{
        if (overflow) {
                *scale = *scale > MFL_LOSS_SCALE_MIN ? *scale * 0.5f : *scale;
                *good_steps = 0;
        } else if (++*good_steps == MFL_LOSS_SCALE_GOOD) {
                *scale = *scale < MFL_LOSS_SCALE_MAX ? *scale * 2.0f : *scale;
                *good_steps = 0;
        }
}

/* One parameter's step of SGD with that learning rate. It touches m and p0 only where momentum and prox_mu
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

/* One parameter's step of any optimizer; NULL: what it does not use. */
static inline MFL_HD void mfl_optimizer_update(float *p, float *m, float *v, const float *p0,
        const struct mfl_optimizer *opt, const struct mfl_rate *rate, float g)
{
        if (opt->kind == MFL_OPTIMIZER_SGD)
                mfl_sgd_update(opt, rate->lr, p, m, p0, g);
        else
                mfl_adaptive_update(opt, rate, p, m, v, p0, g);
}

#endif
