/* SPDX-License-Identifier: Apache-2.0 */
/* The loss on the emulated device: the bits of mfl_softmax_xent, row by row, with the same C library; with
 * more than 64 classes the bits of the order that ops_loss.cu fixes. */
#include "tests/unit/cuda/ops/ops_test.h"

#include "common/base/fixed.h"

struct sums {
        int64_t loss;
        uint64_t correct, samples;
};

struct run {
        struct mfl_cuda_tensor z;
        struct ops_steps steps;
        float *logits;
        int32_t *labels;
        struct mfl_cuda_scale *scale; /* NULL: none */
        float smoothing;
};

#define FEW 64
#define LANES 256

/* As 256 threads and a tree add. */
static float sum_in_order(const float *z, int classes, float max, bool plain)
{
        float part[LANES] = {0};
        for (int c = 0; c < classes; c++)
                part[c % LANES] += plain ? z[c] - max : expf(z[c] - max);
        for (int s = LANES / 2; s > 0; s /= 2)
                for (int t = 0; t < s; t++)
                        part[t] += part[t + s];
        return part[0];
}

static float want_row(const float *z, int classes, int label, float e, float scale, float *dz, bool *ret_hit)
{
        float loss = mfl_softmax_xent(z, classes, label, scale, dz, ret_hit), max = z[0], log_sum, shifts = 0;
        for (int c = 1; c < classes; c++)
                max = z[c] > max ? z[c] : max;
        log_sum = loss + (z[label] - max);
        for (int c = 0; c < classes; c++)
                shifts += z[c] - max;
        if (classes > FEW) {
                float sum = sum_in_order(z, classes, max, false), inverse = 1.0f / sum;
                shifts = sum_in_order(z, classes, max, true);
                loss = logf(sum) - (z[label] - max);
                log_sum = loss + (z[label] - max);
                for (int c = 0; c < classes; c++)
                        dz[c] = (expf(z[c] - max) * inverse - (c == label ? 1.0f : 0.0f)) * scale;
        }
        for (int c = 0; c < classes && e > 0; c++)
                dz[c] = mfl_smooth_grad(dz[c], c == label, classes, e, scale);
        return e > 0 ? mfl_smooth_loss(loss, log_sum, shifts, classes, e) : loss;
}

/* Rows beyond count have zeros, groups that do not count keep what they have. */
static void want_group(const struct run *t, int g, float *dz, struct sums *sums)
{
        uint32_t rows = t->steps.count[g];
        int classes = t->z.c;
        float scale = 1.0f / (float)rows * (t->scale ? t->scale[g].scale : 1.0f);
        for (uint32_t r = 0; r < rows; r++) {
                int64_t row = (int64_t)g * t->z.batch + r;
                bool hit;
                float *to = dz + row * classes;
                float loss = want_row(
                        t->logits + row * classes, classes, t->labels[row], t->smoothing, scale, to, &hit);
                sums[g].loss += mfl_fixed_loss(loss);
                sums[g].correct += hit;
                sums[g].samples++;
                for (int c = 0; c < classes; c++)
                        to[c] = ops_round(to[c], t->z.type);
        }
}

static void check_sums(const struct run *t, const struct ops_buffer *loss, const struct ops_buffer *correct,
        const struct ops_buffer *samples, const struct sums *want)
{
        int64_t got_loss[5];
        uint64_t got_correct[5], got_samples[5];
        ops_get(loss, got_loss);
        ops_get(correct, got_correct);
        ops_get(samples, got_samples);
        for (int g = 0; g < t->z.groups; g++) {
                assert_true(got_loss[g] == 1000 + want[g].loss);
                assert_int_equal(got_correct[g], 20 + want[g].correct);
                assert_int_equal(got_samples[g], 30 + want[g].samples);
        }
}

static void run_loss(struct run *t, bool gradient)
{
        int64_t n = ops_count(&t->z), each = n / t->z.groups;
        size_t groups = (size_t)t->z.groups, rows = groups * (size_t)t->z.batch;
        int64_t loss[5] = {1000, 1000, 1000, 1000, 1000};
        uint64_t correct[5] = {20, 20, 20, 20, 20}, samples[5] = {30, 30, 30, 30, 30};
        float *want = ops_zeros(n), *got = ops_zeros(n);
        struct sums sums[5] = {0};
        struct ops_buffer logits = ops_tensor_from(&t->z, t->logits), dz = ops_tensor(&t->z);
        struct ops_buffer labels = ops_new_from(t->labels, rows * sizeof(int32_t));
        struct ops_buffer b_loss = ops_new_from(loss, groups * 8),
                          b_correct = ops_new_from(correct, groups * 8);
        struct ops_buffer b_samples = ops_new_from(samples, groups * 8);
        struct ops_buffer scale =
                t->scale ? ops_new_from(t->scale, groups * sizeof *t->scale) : ops_new(groups);
        struct mfl_cuda_loss a = {.z = t->z,
                .loss = {.smoothing = t->smoothing},
                .logits = logits.at,
                .dz = gradient ? dz.at : NULL,
                .labels = (int32_t *)labels.at,
                .scale = t->scale ? (struct mfl_cuda_scale *)(void *)scale.at : NULL,
                .loss_sum = (int64_t *)b_loss.at,
                .n_correct = (uint64_t *)b_correct.at,
                .n_scored = (uint64_t *)b_samples.at,
                .steps = t->steps.on_device};
        OPS_OK(mfl_cuda_loss(&a, NULL));
        ops_tensor_get(&dz, &t->z, got);
        for (int g = 0; g < t->z.groups; g++) {
                size_t bytes = (size_t)each * (size_t)mfl_cuda_type_bytes(t->z.type);
                want_group(t, g, want, sums);
                if (t->steps.count[g] > 0 && gradient)
                        ops_assert_equal(got + g * each, want + g * each, each, "dz");
                else
                        ops_assert_untouched(&dz, (size_t)g * bytes, bytes);
        }
        check_sums(t, &b_loss, &b_correct, &b_samples, sums);
        struct ops_buffer *all[] = {&logits, &dz, &labels, &b_loss, &b_correct, &b_samples, &scale};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                ops_free(all[i]);
        free(want);
        free(got);
}

static void try_loss(int classes, int batch, int groups, enum mfl_cuda_type type, int turn)
{
        struct run t = {.z = {groups, batch, 1, 1, classes, type}};
        struct mfl_cuda_scale scale[5];
        int64_t n = ops_count(&t.z), rows = (int64_t)groups * batch;
        struct mfl_rng rng = mfl_rng_new(4, MFL_RNG_TEST, 9, (uint64_t)turn);
        t.steps = ops_steps_new(groups, batch, ops_counts(groups, batch), 1);
        /* Few distinct values, so that the largest one often occurs twice: the first must win. */
        t.logits = turn % 2 ? ops_whole(n, 3, (uint64_t)turn) : ops_uniform(n, type, (uint64_t)turn);
        t.labels = malloc((size_t)rows * sizeof *t.labels);
        for (int64_t r = 0; r < rows; r++)
                t.labels[r] = (int32_t)mfl_rng_below(&rng, (uint32_t)classes);
        for (int g = 0; g < 5; g++)
                scale[g] = (struct mfl_cuda_scale){.scale = (float)(16 << g)};
        t.scale = turn % 3 == 0 ? scale : NULL;
        t.smoothing = turn % 5 == 1 ? 0.1f : 0;
        run_loss(&t, turn % 4 != 3);
        ops_steps_free(&t.steps);
        free(t.logits);
        free(t.labels);
}

OPS_TEST(losses_have_the_bits_that_are_fixed)
{
        static const int sizes[][2] = {{10, 10}, {1, 3}, {2, 33}, {64, 70}, {65, 3}, {257, 4}, {2500, 2}};
        int turn = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(sizes); i++)
                for (int g = 0; g < 3; g++)
                        for (int type = MFL_CUDA_F32; type <= MFL_CUDA_F16; type++)
                                try_loss(sizes[i][0], sizes[i][1], ops_groups[g], (enum mfl_cuda_type)type,
                                        turn++);
}

/* A network that has diverged: the loss is clamped, and other rows and groups are unaffected. */
OPS_TEST(a_loss_that_is_not_a_number_is_clamped)
{
        for (int classes = 10; classes <= 100; classes += 90) {
                struct run t = {.z = {2, 2, 1, 1, classes, MFL_CUDA_F32}};
                uint32_t count[2] = {2, 2};
                int32_t labels[4] = {1, 1, 1, 1};
                struct sums sums[5] = {0};
                t.steps = ops_steps_new(2, 2, count, 1);
                t.logits = ops_uniform(ops_count(&t.z), MFL_CUDA_F32, 1);
                t.labels = labels;
                t.logits[2 * classes] = NAN;
                run_loss(&t, true);
                float *dz = ops_zeros(ops_count(&t.z));
                want_group(&t, 1, dz, sums);
                assert_true(sums[1].loss > (int64_t)1 << 52);
                ops_steps_free(&t.steps);
                free(t.logits);
                free(dz);
        }
}

/* ---- the other losses, beside the text that the CPU's backends have ---- */

#define ROWS 5
#define CLASSES_MAX 100

struct kind {
        struct mfl_loss loss;
        bool weighted;
};

static const struct kind kinds[] = {
        {{.kind = MFL_LOSS_CROSS_ENTROPY}, true},
        {{.kind = MFL_LOSS_CROSS_ENTROPY, .smoothing = 0.2f}, true},
        {{.kind = MFL_LOSS_CROSS_ENTROPY, .has_ignored = true, .ignored = 1}, false},
        {{.kind = MFL_LOSS_FOCAL, .parameter = 2}, true},
        {{.kind = MFL_LOSS_CROSS_ENTROPY, .n_auxiliary = 1, .auxiliary_weights = {0.4f}}, false},
};

/* One group of ROWS rows, of which the last does not count; two predictions each where there is an auxiliary output. */
static void try_kind(const struct kind *kind, int classes, int turn, enum mfl_tally tally_kind)
{
        uint32_t n_tally = mfl_tally_size(tally_kind, (uint32_t)classes);
        struct mfl_loss loss = kind->loss;
        int positions = 1 + loss.n_auxiliary, n = ROWS * positions * classes;
        struct mfl_cuda_tensor t = {1, ROWS * positions, 1, 1, classes, MFL_CUDA_F32};
        struct mfl_loss_share share = {0.3f, 1.7f}, shares[3] = {[OPS_STEP] = share}; /* of three steps */
        struct ops_steps steps = ops_steps_new(1, ROWS, (uint32_t[]){ROWS - 1}, 1);
        float *z = ops_uniform(n, MFL_CUDA_F32, (uint64_t)turn), *got = ops_zeros(n), weights[CLASSES_MAX];
        int32_t labels[ROWS] = {0, 1, classes - 1, -1, 0};
        static uint64_t zero[CLASSES_MAX * CLASSES_MAX], counts[CLASSES_MAX * CLASSES_MAX],
                tally[CLASSES_MAX * CLASSES_MAX];
        int64_t sum = 0, got_sum;
        uint64_t correct = 0, scored = 0, got_correct, got_scored;
        memset(counts, 0, sizeof counts);
        for (int c = 0; c < classes; c++)
                weights[c] = 0.25f * (float)(1 + c % 4);
        struct ops_buffer b[] = {ops_tensor_from(&t, z), ops_tensor(&t), ops_new_from(labels, sizeof labels),
                ops_new_from(weights, sizeof weights), ops_new_from(zero, sizeof zero), ops_new_from(zero, 8),
                ops_new_from(zero, 8), ops_new_from(zero, 8), ops_new_from(shares, sizeof shares)};
        loss.n_weights = kind->weighted ? classes : 0;
        loss.weights = kind->weighted ? (float *)(void *)b[3].at : NULL;
        struct mfl_cuda_loss a = {.z = t,
                .positions = positions,
                .loss = loss,
                .share = (struct mfl_loss_share *)(void *)b[8].at,
                .logits = b[0].at,
                .dz = b[1].at,
                .labels = (int32_t *)(void *)b[2].at,
                .tally_kind = tally_kind,
                .tally = (uint64_t *)(void *)b[4].at,
                .loss_sum = (int64_t *)(void *)b[5].at,
                .n_correct = (uint64_t *)(void *)b[6].at,
                .n_scored = (uint64_t *)(void *)b[7].at,
                .steps = steps.on_device};
        OPS_OK(mfl_cuda_loss(&a, NULL));
        ops_tensor_get(&b[1], &t, got);
        ops_get(&b[4], tally);
        ops_get(&b[5], &got_sum);
        ops_get(&b[6], &got_correct);
        ops_get(&b[7], &got_scored);
        loss.weights = kind->weighted ? weights : NULL;
        for (int i = 0; i < ROWS * positions; i++) {
                float dz[CLASSES_MAX] = {0}, *own = z + (ptrdiff_t)i * classes;
                int label = labels[i / positions], best = 0;
                float head = mfl_head_weight(&loss, i % positions, 1);
                bool hit = false, main = i % positions == 0, counted = i / positions < ROWS - 1;
                if (counted && mfl_is_scored(&loss, label)) {
                        float value =
                                mfl_label_loss(&loss, own, classes, label, share.scale * head, dz, &hit);
                        sum += mfl_fixed_loss(value * share.ratio * head);
                        correct += main && hit;
                        scored += main;
                        for (int c = 1; c < classes; c++)
                                best = own[c] > own[best] ? c : best;
                        if (main)
                                mfl_tally_label(tally_kind, counts, (uint32_t)classes, (uint32_t)label,
                                        (uint32_t)best);
                }
                for (int c = 0; c < classes; c++)
                        assert_float_equal(got[i * classes + c], dz[c], 2e-6f);
        }
        assert_float_equal(mfl_fixed_loss_to_double(got_sum), mfl_fixed_loss_to_double(sum), 1e-5);
        assert_true(got_correct == correct && got_scored == scored && scored > 0);
        assert_memory_equal(tally, counts, n_tally * sizeof *counts);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(b); i++)
                ops_free(&b[i]);
        ops_steps_free(&steps);
        free(z);
        free(got);
}

OPS_TEST(weights_focal_ignored_and_auxiliary_outputs)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(kinds); i++) {
                try_kind(&kinds[i], 10, (int)i, MFL_TALLY_CLASSES);
                try_kind(&kinds[i], 10, (int)i, MFL_TALLY_CONFUSION);
                try_kind(&kinds[i], CLASSES_MAX, (int)i + 20, MFL_TALLY_CLASSES);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(losses_have_the_bits_that_are_fixed),
                cmocka_unit_test(a_loss_that_is_not_a_number_is_clamped),
                cmocka_unit_test(weights_focal_ignored_and_auxiliary_outputs),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
