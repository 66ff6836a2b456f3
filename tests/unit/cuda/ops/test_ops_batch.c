/* SPDX-License-Identifier: Apache-2.0 */
/* Batches on the emulated device: gathering with augmentation, layouts, the step counter; all exact. */
#include "tests/unit/cuda/ops/ops_test.h"

#include <stdio.h>

#define SAMPLES 11u

struct gather_case {
        int batch, c, h, w, n_planes;
        bool u8;
        struct mfl_augment augment;
};

/* The augmented image as backend.h says it: padded, a window of it, mirrored. */
static float padded_pixel(const float *plane, int h, int w, int crop, int y, int x)
{
        y -= crop;
        x -= crop;
        return y >= 0 && y < h && x >= 0 && x < w ? plane[y * w + x] : 0.0f;
}

static void want_row(const struct gather_case *t, const float *sample, struct mfl_rng_key key, uint32_t row,
        const float *scale, const float *shift, float *to)
{
        struct mfl_philox block = mfl_rng_block(key, row);
        uint32_t offsets = 2 * (uint32_t)t->augment.crop + 1;
        int y0 = (int)(block.v[0] % offsets), x0 = (int)(block.v[1] % offsets);
        bool flip = t->augment.flip && block.v[2] >> 31;
        bool image = t->h * t->w > 1;
        int count = t->c * t->h * t->w;
        for (int e = 0; e < count; e++) {
                int plane = e / (t->h * t->w), i = e / t->w % t->h, j = e % t->w;
                int s = e / (count / t->n_planes);
                float v = sample[e];
                if (image)
                        v = padded_pixel(sample + plane * t->h * t->w, t->h, t->w, t->augment.crop, i + y0,
                                (flip ? t->w - 1 - j : j) + x0);
                to[e] = v * scale[s] + shift[s];
        }
}

static void check_gather(const struct gather_case *t, int groups, enum mfl_cuda_type type)
{
        struct mfl_cuda_tensor x = {groups, t->batch, t->h, t->w, t->c, type};
        int count = t->c * t->h * t->w, n = (int)SAMPLES * count;
        struct ops_steps steps = ops_steps_new(groups, t->batch, ops_counts(groups, t->batch), SAMPLES);
        float *samples = ops_whole(n, 127, 3), *want = ops_zeros(ops_count(&x)),
              *got = ops_zeros(ops_count(&x));
        uint8_t *bytes = malloc((size_t)n);
        int32_t labels[SAMPLES], *got_labels = malloc((size_t)(groups * t->batch) * sizeof *got_labels);
        for (int i = 0; i < n; i++) {
                bytes[i] = (uint8_t)(samples[i] + 127);
                samples[i] = t->u8 ? (float)bytes[i] : samples[i];
        }
        for (uint32_t i = 0; i < SAMPLES; i++)
                labels[i] = (int32_t)(7 * i + 1);
        struct ops_buffer data =
                t->u8 ? ops_new_from(bytes, (size_t)n) : ops_new_from(samples, (size_t)n * sizeof(float));
        struct ops_buffer data_labels = ops_new_from(labels, sizeof labels), to = ops_tensor(&x);
        struct ops_buffer to_labels = ops_new((size_t)(groups * t->batch) * sizeof(int32_t));
        struct mfl_cuda_gather a = {.x = x,
                .to = to.at,
                .labels = (int32_t *)to_labels.at,
                .samples = data.at,
                .sample_labels = (int32_t *)data_labels.at,
                .u8 = t->u8,
                .n_planes = t->n_planes,
                .augment = t->augment,
                .steps = steps.on_device};
        for (int c = 0; c < MFL_CHANNELS_MAX; c++) {
                a.scale[c] = 0.25f + 0.1f * (float)c;
                a.shift[c] = -0.5f + 0.3f * (float)c;
        }
        OPS_OK(mfl_cuda_gather(&a, NULL));
        ops_tensor_get(&to, &x, got);
        ops_get(&to_labels, got_labels);
        size_t row_bytes = (size_t)count * (size_t)mfl_cuda_type_bytes(type);
        for (int g = 0; g < groups; g++) {
                struct mfl_rng_key key =
                        mfl_rng_augment_key(steps.augment[g], steps.step_first[g] + OPS_STEP);
                if (steps.count[g] == 0) {
                        ops_assert_untouched(
                                &to, (size_t)(g * t->batch) * row_bytes, (size_t)t->batch * row_bytes);
                        ops_assert_untouched(&to_labels, (size_t)(g * t->batch) * 4, (size_t)t->batch * 4);
                        continue;
                }
                for (int r = 0; r < t->batch; r++) {
                        int slot = g * t->batch + r;
                        bool counts = (uint32_t)r < steps.count[g];
                        uint32_t i = steps.index[slot];
                        if (counts)
                                want_row(t, samples + (int)i * count, key, (uint32_t)r, a.scale, a.shift,
                                        want + slot * count);
                        for (int e = 0; e < count; e++)
                                want[slot * count + e] = ops_round(want[slot * count + e], type);
                        ops_assert_equal(got + slot * count, want + slot * count, count, "gathered");
                        assert_int_equal(got_labels[slot], counts ? labels[i] : 0);
                }
        }
        ops_free(&data);
        ops_free(&data_labels);
        ops_free(&to);
        ops_free(&to_labels);
        ops_steps_free(&steps);
        free(samples);
        free(bytes);
        free(want);
        free(got);
        free(got_labels);
}

OPS_TEST(gathers_and_augments)
{
        static const struct gather_case cases[] = {
                {3, 1, 28, 28, 1, true, {0, false}}, /* four tiles, packs */
                {5, 3, 9, 7, 3, true, {2, true}},    /* odd sizes */
                {4, 3, 8, 8, 3, false, {4, true}},   /* packs */
                {2, 16, 5, 20, 16, true, {0, true}}, /* all channels */
                {3, 1, 1, 1, 1, false, {0, false}},  /* one value */
                {3, 301, 1, 1, 1, true, {0, false}}, /* a vector */
                {3, 48, 1, 1, 3, true, {0, false}},  /* an image that is read as a vector */
                {3, 3, 4, 5, 1, false, {0, false}},  /* a vector that is read as an image */
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                for (int g = 0; g < 3; g++)
                        for (int type = MFL_CUDA_F32; type <= MFL_CUDA_F16; type++)
                                check_gather(&cases[i], ops_groups[g], (enum mfl_cuda_type)type);
}

/* The draw covers every offset and both mirrorings, and nothing else. */
static void augmentation_covers_its_range(void **state)
{
        struct mfl_augment augment = {2, true};
        struct mfl_rng_key key = mfl_rng_derive(1, MFL_RNG_AUGMENT, 2, 3);
        bool seen[5][5][2] = {0};
        for (uint32_t r = 0; r < 2000; r++) {
                struct mfl_augment_choice choice = mfl_augment_pick(key, r, &augment);
                assert_in_range(choice.dy + 2, 0, 4);
                assert_in_range(choice.dx + 2, 0, 4);
                seen[choice.dy + 2][choice.dx + 2][choice.flip] = true;
        }
        for (int i = 0; i < 50; i++)
                assert_true((&seen[0][0][0])[i]);
}

OPS_TEST(layouts_are_inverse)
{
        for (int type = MFL_CUDA_F32; type <= MFL_CUDA_F16; type++) {
                struct mfl_cuda_tensor x = {2, 3, 5, 4, 7, (enum mfl_cuda_type)type};
                int64_t n = ops_count(&x);
                float *want = ops_uniform(n, x.type, 9), *got = ops_zeros(n);
                struct ops_buffer plain = ops_new_from(want, (size_t)n * sizeof(float)), to = ops_tensor(&x);
                struct ops_buffer back = ops_new((size_t)n * sizeof(float));
                struct mfl_cuda_layout a = {x, to.at, (float *)plain.at, false};
                OPS_OK(mfl_cuda_layout(&a, NULL));
                ops_tensor_get(&to, &x, got);
                ops_assert_equal(got, want, n, "nhwc");
                a.nchw = (float *)back.at;
                a.to_nchw = true;
                OPS_OK(mfl_cuda_layout(&a, NULL));
                ops_get(&back, got);
                ops_assert_equal(got, want, n, "nchw");
                ops_free(&plain);
                ops_free(&to);
                ops_free(&back);
                free(want);
                free(got);
        }
}

OPS_TEST(steps_count_up)
{
        uint32_t step = 41;
        struct ops_buffer b = ops_new_from(&step, sizeof step);
        OPS_OK(mfl_cuda_next_step((uint32_t *)b.at, NULL));
        ops_get(&b, &step);
        assert_int_equal(step, 42);
        ops_free(&b);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(gathers_and_augments),
                cmocka_unit_test(augmentation_covers_its_range),
                cmocka_unit_test(layouts_are_inverse),
                cmocka_unit_test(steps_count_up),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
