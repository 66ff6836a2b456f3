/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of losses against their formulas in double, and their gradients against differences of the formulas. */
#include "tests/lib/test.h"

#include <math.h>

#include "kernels/bodies.h"
#include "kernels/check.h"

#define CLASSES 7

/* log p of each class. */
static void log_softmax(const double *z, double *log_p)
{
        double max = z[0], sum = 0;
        for (int c = 1; c < CLASSES; c++)
                max = fmax(max, z[c]);
        for (int c = 0; c < CLASSES; c++)
                sum += exp(z[c] - max);
        for (int c = 0; c < CLASSES; c++)
                log_p[c] = z[c] - max - log(sum);
}

/* torch.nn.CrossEntropyLoss with reduction="none", and focal loss (Lin et al. 2017, eq. 5, by softmax). */
static double want_label(const struct mfl_loss *loss, const double *z, int label)
{
        double log_p[CLASSES], smooth = 0, e = (double)loss->smoothing;
        log_softmax(z, log_p);
        double own = loss->weights ? (double)loss->weights[label] : 1;
        if (loss->kind == MFL_LOSS_FOCAL)
                return -own * pow(1 - exp(log_p[label]), (double)loss->parameter) * log_p[label];
        for (int c = 0; c < CLASSES; c++)
                smooth -= (loss->weights ? (double)loss->weights[c] : 1) * log_p[c];
        return -(1 - e) * own * log_p[label] + e / CLASSES * smooth;
}

static double want_target(const struct mfl_loss *loss, int k, double z, double t)
{
        double d = z - t, b = (double)loss->parameter, w = loss->weights ? (double)loss->weights[k] : 1;
        double s = 1 / (1 + exp(-z));
        switch (loss->kind) {
        case MFL_LOSS_BINARY:
                return -(w * t * log(s) + (1 - t) * log(1 - s));
        case MFL_LOSS_HUBER:
                return fabs(d) <= b ? d * d / 2 : b * (fabs(d) - b / 2);
        case MFL_LOSS_SMOOTH_L1:
                return fabs(d) < b ? d * d / 2 / b : fabs(d) - b / 2;
        case MFL_LOSS_L1:
                return fabs(d);
        default:
                return d * d;
        }
}

static const float weights[CLASSES] = {0.5f, 2, 0, 1, 1.5f, 3, 0.25f};

static void check_label(const struct mfl_loss *loss, uint64_t seed)
{
        struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_TEST, 0, 0);
        float z[CLASSES], dz[CLASSES], scale = 0.5f;
        double wide[CLASSES];
        bool hit;
        int label = (int)mfl_rng_below(&rng, CLASSES), best = 0;
        for (int c = 0; c < CLASSES; c++) {
                z[c] = ((float)mfl_rng_below(&rng, 4000) - 2000.0f) / 500.0f;
                wide[c] = (double)z[c];
                best = z[c] > z[best] ? c : best;
        }
        double want = want_label(loss, wide, label), h = 1e-5;
        double got = (double)mfl_label_loss(loss, z, CLASSES, label, scale, dz, &hit);
        assert_true(fabs(got - want) <= 2e-6 * (1 + fabs(want)));
        assert_true(hit == (best == label));
        for (int c = 0; c < CLASSES; c++) {
                double at = wide[c];
                wide[c] = at + h;
                double up = want_label(loss, wide, label);
                wide[c] = at - h;
                double slope = (up - want_label(loss, wide, label)) / (2 * h) * (double)scale;
                wide[c] = at;
                assert_true(fabs((double)dz[c] - slope) <= 3e-6);
        }
        assert_true((float)got == mfl_label_loss(loss, z, CLASSES, label, scale, NULL, &hit));
}

static void losses_of_labels_are_their_formulas(void **state)
{
        static const struct mfl_loss losses[] = {{.kind = MFL_LOSS_CROSS_ENTROPY}, {.smoothing = 0.3f},
                {.weights = weights, .n_weights = CLASSES},
                {.weights = weights, .n_weights = CLASSES, .smoothing = 0.3f}, {.kind = MFL_LOSS_FOCAL},
                {.kind = MFL_LOSS_FOCAL, .parameter = 0.5f}, {.kind = MFL_LOSS_FOCAL, .parameter = 2},
                {.kind = MFL_LOSS_FOCAL, .parameter = 3, .weights = weights, .n_weights = CLASSES}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(losses); i++)
                for (uint64_t seed = 0; seed < 200; seed++)
                        check_label(&losses[i], seed);
}

/* A label that is certain, or almost impossible: no overflow, no NaN. */
static void focal_is_finite_at_its_ends(void **state)
{
        static const float gammas[] = {0, 0.5f, 1, 2, 5};
        for (size_t g = 0; g < MFL_ARRAY_SIZE(gammas); g++)
                for (int label = 0; label < 2; label++) {
                        struct mfl_loss loss = {.kind = MFL_LOSS_FOCAL, .parameter = gammas[g]};
                        float z[2] = {200, 0}, dz[2];
                        bool hit;
                        float value = mfl_label_loss(&loss, z, 2, label, 1, dz, &hit);
                        assert_true(isfinite(value) && isfinite(dz[0]) && isfinite(dz[1]));
                        assert_true(
                                label ? value == 200 && dz[0] == 1 && dz[1] == -1 : value == 0 && dz[0] == 0);
                }
}

static void losses_of_targets_are_their_formulas(void **state)
{
        static const struct mfl_loss losses[] = {{.kind = MFL_LOSS_BINARY},
                {.kind = MFL_LOSS_BINARY, .weights = weights, .n_weights = CLASSES},
                {.kind = MFL_LOSS_SQUARED}, {.kind = MFL_LOSS_HUBER, .parameter = 0.7f},
                {.kind = MFL_LOSS_SMOOTH_L1, .parameter = 0.4f}, {.kind = MFL_LOSS_L1}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(losses); i++)
                for (int k = 0; k < CLASSES; k++)
                        for (float z = -3.05f; z < 3; z += 0.1f)
                                for (int t = 0; t < 2; t++) {
                                        double h = 1e-5, at = (double)z;
                                        float grad,
                                                value = mfl_target_loss(&losses[i], k, z, (float)t, &grad);
                                        double want = want_target(&losses[i], k, at, t);
                                        double slope = (want_target(&losses[i], k, at + h, t) -
                                                               want_target(&losses[i], k, at - h, t)) /
                                                       (2 * h);
                                        assert_true(fabs((double)value - want) <= 2e-6 * (1 + want));
                                        assert_true(fabs((double)grad - slope) <= 2e-5);
                                }
}

static void a_step_shares_the_sum_of_its_weights(void **state)
{
        int32_t labels[6] = {0, 1, -1, 2, 5, 3};
        uint32_t index[3] = {0, 2, 1};
        struct mfl_dataset set = {
                .classes = CLASSES, .labels_per_sample = 2, .train = {.n = 3, .labels = labels}};
        struct mfl_loss loss = {.weights = weights, .n_weights = CLASSES, .has_ignored = true, .ignored = 3};
        /* scored: 0, 1, 5, 2 */
        struct mfl_loss_share share = mfl_loss_share_of(&set, &set.train, &loss, index, 3);
        assert_true(share.scale == (float)(1 / 5.5) && share.ratio == (float)(4 / 5.5));
        share = mfl_loss_share_of(&set, &set.train, &loss, index + 2, 1); /* label 2: weight 0 */
        assert_true(share.scale == 0 && share.ratio == 0);
        loss.weights = NULL;
        share = mfl_loss_share_of(&set, &set.train, &loss, index, 3);
        assert_true(share.scale == 0.25f && share.ratio == 1);
        loss = (struct mfl_loss){.kind = MFL_LOSS_FOCAL, .weights = weights, .n_weights = CLASSES};
        share = mfl_loss_share_of(&set, &set.train, &loss, index, 2);
        assert_true(share.scale == 0.25f && share.ratio == 1);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(losses_of_labels_are_their_formulas),
                cmocka_unit_test(focal_is_finite_at_its_ends),
                cmocka_unit_test(losses_of_targets_are_their_formulas),
                cmocka_unit_test(a_step_shares_the_sum_of_its_weights),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
