/* SPDX-License-Identifier: Apache-2.0 */
/* Training on the emulated device: what must not change a client's result changes no bit of it, in all
 * precisions; and results are near the reference's. */
#include "tests/unit/cuda/net/net_test.h"

#include <math.h>

static const enum mfl_precision precisions[] = {
        MFL_PRECISION_FP32, MFL_PRECISION_TF32, MFL_PRECISION_BF16, MFL_PRECISION_FP16};

static void train(struct net_case *c, struct net_run *run)
{
        net_train(&mfl_backend_module, c->device, c, run);
}

static void groups_do_not_matter(void **state)
{
        struct net_case c;
        net_case_init(&c, NET_RESIDUAL);
        for (size_t p = 0; p < MFL_ARRAY_SIZE(precisions); p++) {
                struct net_run three = net_run_of(precisions[p], NET_GROUPS, 0);
                train(&c, &three);
                for (uint32_t g = 0; g < NET_GROUPS; g += 2) {
                        struct net_run one = net_run_of(precisions[p], 1, g);
                        train(&c, &one);
                        net_assert_same(&c, &three, (int)g, &one, 0);
                        net_run_deinit(&one);
                }
                net_run_deinit(&three);
        }
        net_case_deinit(&c);
}

static void calls_do_not_matter(void **state)
{
        struct net_case c;
        net_case_init(&c, NET_RESIDUAL);
        struct net_run whole = net_run_of(MFL_PRECISION_FP16, 2, 0);
        train(&c, &whole);
        for (uint32_t chunk = 1; chunk < NET_STEPS; chunk += 3) {
                struct net_run split = net_run_of(MFL_PRECISION_FP16, 2, 0);
                split.chunk = chunk;
                train(&c, &split);
                net_assert_same(&c, &whole, 0, &split, 0);
                net_assert_same(&c, &whole, 1, &split, 1);
                net_run_deinit(&split);
        }
        net_run_deinit(&whole);
        net_case_deinit(&c);
}

static void streamed_equals_resident(void **state)
{
        struct net_case c;
        net_case_init(&c, NET_RESIDUAL);
        struct net_run resident = net_run_of(MFL_PRECISION_FP32, 2, 1);
        struct net_run streamed = resident;
        streamed.not_resident = true;
        resident.options.augment = streamed.options.augment = (struct mfl_augment){.crop = 1, .flip = true};
        train(&c, &resident);
        train(&c, &streamed);
        net_assert_same(&c, &resident, 0, &streamed, 0);
        net_assert_same(&c, &resident, 1, &streamed, 1);
        net_run_deinit(&resident);
        net_run_deinit(&streamed);
        net_case_deinit(&c);
}

#define LONG_STEPS 600

/* LONG_STEPS steps of one client in one call. */
static void train_long(struct net_case *c, bool resident, float *params, int64_t *ret_loss_sum)
{
        struct net_run run = net_run_of(MFL_PRECISION_FP32, 1, 0);
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        struct mfl_rng rng = mfl_rng_new(32, MFL_RNG_TEST, 0, 0);
        uint32_t index[LONG_STEPS * NET_BATCH], count[LONG_STEPS];
        struct mfl_group_steps steps = {.index = index, .count = count};
        for (uint32_t i = 0; i < LONG_STEPS * NET_BATCH; i++)
                index[i] = mfl_rng_below(&rng, NET_SAMPLES);
        for (uint32_t t = 0; t < LONG_STEPS; t++)
                count[t] = 1 + mfl_rng_below(&rng, NET_BATCH);
        run.options.streamed = !resident;
        assert_int_equal(mfl_backend_module.net_new(c->device, c->graph, &run.options, &net, NULL), 0);
        assert_int_equal(
                mfl_backend_module.data_new(c->device, &c->set, &c->set.train, resident, &data, NULL), 0);
        assert_int_equal(mfl_backend_set(&mfl_backend_module, net, c->graph, 0, c->first, NULL), 0);
        assert_int_equal(mfl_backend_module.step(net, data, &steps, LONG_STEPS, &run.opt, NULL), 0);
        assert_int_equal(mfl_backend_module.params_get(net, 0, 0, params, NULL), 0);
        *ret_loss_sum = steps.score.loss_sum;
        mfl_backend_module.data_free(data);
        mfl_backend_module.net_free(net);
}

/* Enough steps to use both halves of the staging area, and to use them again. */
static void halves_of_the_staging_area_take_turns(void **state)
{
        struct net_case c;
        int64_t resident_loss, streamed_loss;
        net_case_init(&c, NET_DENSE);
        size_t n = (size_t)c.graph->n;
        float *resident = mfl_malloc(n * sizeof *resident), *streamed = mfl_malloc(n * sizeof *streamed);
        assert_true(resident && streamed);
        train_long(&c, true, resident, &resident_loss);
        train_long(&c, false, streamed, &streamed_loss);
        assert_memory_equal(resident, streamed, n * sizeof *resident);
        assert_int_equal(resident_loss, streamed_loss);
        assert_memory_not_equal(resident, c.first, n * sizeof *resident);
        free(resident);
        free(streamed);
        net_case_deinit(&c);
}

static void a_shared_start_is_a_start(void **state)
{
        struct net_case c;
        net_case_init(&c, NET_RESIDUAL);
        size_t n = (size_t)c.graph->n;
        memcpy(c.first + n, c.first, n * sizeof(float));
        for (size_t p = 0; p < MFL_ARRAY_SIZE(precisions); p += 2) {
                struct net_run own = net_run_of(precisions[p], 2, 0), shared = own;
                shared.shared_start = true;
                train(&c, &own);
                train(&c, &shared);
                net_assert_same(&c, &own, 0, &shared, 0);
                net_assert_same(&c, &own, 1, &shared, 1);
                assert_memory_equal(own.sum, shared.sum, n * sizeof *own.sum);
                net_run_deinit(&own);
                net_run_deinit(&shared);
        }
        net_case_deinit(&c);
}

/* Largest difference over the largest move of training. */
static double distance(const struct net_case *c, const struct net_run *got, const struct net_run *want)
{
        double most = 0, moved = 0;
        for (size_t i = 0; i < NET_GROUPS * (size_t)c->graph->n; i++) {
                double d = fabs((double)got->params[i] - want->params[i]);
                most = isfinite(d) ? fmax(most, d) : INFINITY;
                moved = fmax(moved, fabs((double)want->params[i] - c->first[i]));
        }
        return most / moved;
}

/* Running statistics are among the params. fp32: the rounding of a few steps. The others round operands to 11
 * (tf32, fp16) or 8 (bf16) bits, so a gradient is off by some 2^-11 or 2^-8; a few steps of momentum, batch
 * norms over four rows and ReLUs near 0 multiply that by tens. */
static void training_is_near_the_reference(void **state)
{
        static const double bounds[] = {1e-5, 0.01, 0.3, 0.01};
        struct net_case c;
        struct mfl_device *device = NULL;
        net_case_init(&c, NET_RESIDUAL);
        assert_int_equal(mfl_backend_reference.device_open(&device, NULL), 0);
        struct net_run want = net_run_of(MFL_PRECISION_FP32, NET_GROUPS, 0);
        net_train(&mfl_backend_reference, device, &c, &want);
        for (size_t p = 0; p < MFL_ARRAY_SIZE(precisions); p++) {
                struct net_run got = net_run_of(precisions[p], NET_GROUPS, 0);
                train(&c, &got);
                double d = distance(&c, &got, &want);
                print_message("# precision %zu: %.2g\n", p, d);
                assert_true(d < bounds[p]);
                for (int g = 0; g < NET_GROUPS; g++)
                        assert_int_equal(got.n_samples[g], want.n_samples[g]);
                net_run_deinit(&got);
        }
        net_run_deinit(&want);
        mfl_backend_reference.device_close(device);
        net_case_deinit(&c);
}

static void sums_are_exact(void **state)
{
        struct net_case c;
        struct mfl_fixed fixed = {.scale_bits = 30, .delta_max = 1024, .weight_max = 64};
        net_case_init(&c, NET_RESIDUAL);
        size_t n = (size_t)c.graph->n;
        struct net_run run = net_run_of(MFL_PRECISION_BF16, NET_GROUPS, 0);
        train(&c, &run);
        int64_t *want = mfl_calloc(n, sizeof *want);
        assert_non_null(want);
        for (size_t g = 0; g < NET_GROUPS; g++)
                assert_int_equal(mfl_fixed_add_delta(
                                         &fixed, g + 1, run.params + g * n, c.first + g * n, n, want, NULL),
                        0);
        assert_memory_equal(run.sum, want, n * sizeof *want);
        free(want);
        net_run_deinit(&run);
        net_case_deinit(&c);
}

/* Gradients behind weights of 16 exceed half's range at the first loss scale, 2^16. Such a step changes only
 * the scale, which halves until they fit; the other group trains on undisturbed. */
static void an_overflow_is_left_out(void **state)
{
        struct net_case c;
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        net_case_init(&c, NET_DENSE);
        size_t n = (size_t)c.graph->n;
        float *got = mfl_malloc(n * sizeof *got), *other = mfl_malloc(n * sizeof *other);
        assert_true(got && other);
        const struct mfl_param *last = &c.graph->params[c.graph->layers[3].param_weight];
        for (uint64_t i = 0; i < last->count; i++)
                c.first[last->offset + i] = (i + i / 8) % 2 ? 16.0f : -16.0f;
        struct net_run run = net_run_of(MFL_PRECISION_FP16, 2, 0);
        const struct mfl_optimizer opt = {.lr = 0.001f};
        assert_int_equal(mfl_backend_module.net_new(c.device, c.graph, &run.options, &net, NULL), 0);
        assert_int_equal(mfl_backend_module.data_new(c.device, &c.set, &c.set.train, true, &data, NULL), 0);
        int changed_at = -1;
        for (int g = 0; g < 2; g++)
                assert_int_equal(
                        mfl_backend_set(&mfl_backend_module, net, c.graph, g, c.first + (size_t)g * n, NULL),
                        0);
        for (int t = 0; t < 12; t++) {
                uint32_t four = NET_BATCH;
                struct mfl_group_steps steps[2] = {
                        {.index = c.index[0], .count = &four}, {.index = c.index[1], .count = &four}};
                assert_int_equal(mfl_backend_module.step(net, data, steps, 1, &opt, NULL), 0);
                assert_int_equal(mfl_backend_module.params_get(net, 0, 0, got, NULL), 0);
                assert_int_equal(mfl_backend_module.params_get(net, 1, 0, other, NULL), 0);
                if (t == 0)
                        assert_memory_not_equal(other, c.first + n, n * sizeof *other);
                if (changed_at < 0 && memcmp(got, c.first, n * sizeof *got))
                        changed_at = t;
                for (size_t i = 0; i < n; i++)
                        assert_true(isfinite(got[i]) && isfinite(other[i]));
        }
        assert_in_range(changed_at, 1, 11);
        mfl_backend_module.data_free(data);
        mfl_backend_module.net_free(net);
        free(got);
        free(other);
        net_case_deinit(&c);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(groups_do_not_matter),
                cmocka_unit_test(calls_do_not_matter),
                cmocka_unit_test(streamed_equals_resident),
                cmocka_unit_test(halves_of_the_staging_area_take_turns),
                cmocka_unit_test(a_shared_start_is_a_start),
                cmocka_unit_test(training_is_near_the_reference),
                cmocka_unit_test(sums_are_exact),
                cmocka_unit_test(an_overflow_is_left_out),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
