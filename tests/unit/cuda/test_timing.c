/* SPDX-License-Identifier: Apache-2.0 */
/* Timing by the device's clock: how much is launched, which buffers are used, and that timing changes
 * nothing. */
#include "kernels/cuda/base/timing.h"

#include "kernels/cuda/conv/conv_plan_internal.h"
#include "tests/emu/emu.h"
#include "tests/unit/cuda/conv/conv_test.h"
#include "tests/unit/cuda/net/net_test.h"

static void test_sets(void **state)
{
        uint64_t mib = 1 << 20, most = MFL_TIMING_LAUNCHES * MFL_TIMING_GRAPHS;
        assert_int_equal(
                mfl_cuda_timing_sets(10 * mib, 50 * mib, 1000 * mib), 10); /* together twice the cache */
        assert_int_equal(mfl_cuda_timing_sets(200 * mib, 50 * mib, 1000 * mib), 1);
        assert_int_equal(mfl_cuda_timing_sets(10 * mib, 50 * mib, 30 * mib), 3); /* there is no more room */
        assert_int_equal(mfl_cuda_timing_sets(10 * mib, 50 * mib, 0), 1);
        assert_int_equal(mfl_cuda_timing_sets(1, 50 * mib, 1000 * mib), most);
        assert_int_equal(mfl_cuda_timing_sets(0, 0, 0), 1);
}

/* A way costs about 3 ms, or six runs where one takes longer; every set has its turn where time allows. */
static void test_amount(void **state)
{
        for (double ns = 100; ns < 3e7; ns *= 3) {
                for (int sets = 1; sets <= 160; sets += 53) {
                        struct mfl_cuda_timing t = mfl_cuda_timing_of(ns, sets);
                        assert_true(t.launches >= 1 && t.launches <= MFL_TIMING_LAUNCHES);
                        assert_true(t.samples >= 1 && t.samples <= MFL_TIMING_SAMPLES);
                        assert_true(
                                t.graphs >= 1 && t.graphs <= t.samples + 1 && t.graphs <= MFL_TIMING_GRAPHS);
                        assert_true(t.launches == 1 || t.launches * ns <= 5e5);
                        assert_true(t.samples == 1 || t.samples * t.launches * ns <= 3e6);
                        assert_true(t.graphs == 1 || (t.graphs - 1) * t.launches < sets);
                }
        }
        struct mfl_cuda_timing t = mfl_cuda_timing_of(5000, 1);
        assert_int_equal(t.launches, MFL_TIMING_LAUNCHES);
        assert_int_equal(t.samples, MFL_TIMING_SAMPLES);
        assert_int_equal(t.graphs, 1);
        assert_int_equal(mfl_cuda_timing_of(5000, 30).graphs, 2);
}

struct counted {
        cudaStream_t stream;
        int captured[64], ran[64], n;
        int fail_at; /* -1: never */
};
struct one {
        struct counted *counted;
        int i;
};

static void note_run(void *args)
{
        struct one *one = args;
        one->counted->ran[one->i]++;
}

static int note_launch(void *user, int i, struct mfl_error *err)
{
        struct counted *c = user;
        struct one one = {c, i};
        c->captured[i]++;
        c->n++;
        if (i == c->fail_at)
                return mfl_fail(err, MFL_INVALID, "launch %d fails", i);
        assert_int_equal(mfl_emu_enqueue(c->stream, "counted", note_run, &one, sizeof one), cudaSuccess);
        return 0;
}

static void test_launches(void **state)
{
        struct counted c = {.fail_at = -1};
        struct mfl_cuda_timing t = {.launches = 3, .graphs = 2, .samples = 5};
        struct mfl_error err = {""};
        double ns = -1;
        assert_int_equal(cudaStreamCreate(&c.stream), cudaSuccess);
        assert_int_equal(mfl_cuda_time(&t, c.stream, note_launch, &c, &ns, &err), 0);
        assert_true(ns >= 0);
        assert_int_equal(c.n, 6);
        for (int i = 0; i < 6; i++) {
                assert_int_equal(c.captured[i], 1);
                assert_int_equal(c.ran[i], 3); /* one to warm up and five samples, by two graphs in turn */
        }
        /* A launch that fails ends the capture; the stream can be used again. */
        c = (struct counted){.stream = c.stream, .fail_at = 4};
        assert_int_equal(mfl_cuda_time(&t, c.stream, note_launch, &c, &ns, &err), MFL_INVALID);
        assert_string_equal(err.text, "launch 4 fails");
        assert_int_equal(c.ran[0], 0);
        c = (struct counted){.stream = c.stream, .fail_at = -1};
        assert_int_equal(mfl_cuda_time(&t, c.stream, note_launch, &c, &ns, &err), 0);
        assert_int_equal(cudaStreamDestroy(c.stream), cudaSuccess);
}

/* ---- ways of a convolution ---- */

static void *fetch(const void *device, size_t bytes)
{
        void *host = mfl_malloc(bytes);
        assert_non_null(host);
        assert_int_equal(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
        return host;
}

/* On a device as fast as the emulated one claims to be with this clock, a way is timed on several sets of
 * buffers, which hold the same operands and get the same results. */
static void test_rotation(void **state)
{
        struct mfl_cuda_context context;
        struct mfl_error err = {""};
        struct mfl_cuda_conv conv = conv_test_problem(MFL_PRECISION_FP32, 2, 3, 6, 6, 8, 16, 3, 3, 1);
        struct mfl_cuda_conv_use use = {.pass = MFL_CUDA_FORWARD, .bias = true, .act = MFL_CUDA_ACT_RELU};
        struct mfl_cuda_conv_plan *plan = NULL;
        struct mfl_conv_trial *trial = NULL;
        size_t bytes = (size_t)(2 * mfl_conv_sizes(&conv, MFL_CUDA_FORWARD).y * sizeof(float));
        assert_int_equal(mfl_cuda_context_init(&context, 0, NULL, &err), 0);
        uint64_t before = mfl_emu_memory_used();
        mfl_emu_set_slowness(1e-3);
        assert_int_equal(mfl_conv_way_new(&context, &conv, &use, MFL_CONV_OWN, 0, &plan, &err), 0);
        assert_int_equal(mfl_conv_trial_new(&context, &conv, &use, &trial, &err), 0);
        assert_int_equal(mfl_conv_trial_time(trial, plan, &err), 0);
        mfl_emu_set_slowness(1000);
        assert_true(plan->ns > 0);
        struct mfl_cuda_conv_args first = mfl_conv_trial_args(trial, 0);
        float *want = fetch(first.y, bytes);
        for (int k = 1; k < 20; k++) { /* those of the first graph */
                struct mfl_cuda_conv_args args = mfl_conv_trial_args(trial, k);
                assert_true(args.x && args.w && args.bias && args.y && !args.dx && !args.dw);
                assert_true(args.x != first.x && args.y != first.y);
                float *got = fetch(args.y, bytes);
                assert_memory_equal(want, got, bytes);
                free(got);
        }
        free(want);
        mfl_conv_trial_free(trial);
        mfl_cuda_conv_plan_free(plan);
        assert_int_equal(mfl_emu_memory_used(), before);
        mfl_cuda_context_deinit(&context);
}

/* ---- networks ---- */

struct local {
        struct mfl_net *net;
        struct mfl_device_data *data;
        struct mfl_group_steps steps[2];
};

static void open_local(struct net_case *c, struct local *l, const struct mfl_net_options *options)
{
        *l = (struct local){.net = NULL};
        for (uint32_t g = 0; g < 2; g++)
                l->steps[g] = (struct mfl_group_steps){.index = c->index[g], .count = c->count[g]};
        assert_int_equal(mfl_backend_module.net_new(c->device, c->graph, options, &l->net, NULL), 0);
        assert_int_equal(
                mfl_backend_module.data_new(c->device, &c->set, &c->set.train, true, &l->data, NULL), 0);
        for (int g = 0; g < 2; g++)
                assert_int_equal(
                        mfl_backend_set(&mfl_backend_module, l->net, c->graph, g, c->first, NULL), 0);
}

static void close_local(struct local *l)
{
        mfl_backend_module.data_free(l->data);
        mfl_backend_module.net_free(l->net);
}

static float *params_of(struct net_case *c, struct local *l)
{
        float *params = mfl_malloc((size_t)c->graph->n * sizeof *params);
        assert_non_null(params);
        assert_int_equal(mfl_backend_module.params_get(l->net, 1, 0, params, NULL), 0);
        return params;
}

/* Training with timing in between gives the bits of training without. */
static void test_net(void **state)
{
        struct net_case c;
        struct mfl_error err = {""};
        net_case_init(&c, NET_RESIDUAL);
        struct net_run run = net_run_of(MFL_PRECISION_FP16, 2, 0);
        float *params[2];
        for (int timed = 0; timed < 2; timed++) {
                struct local l;
                double ns[3] = {-1, -1, -1};
                open_local(&c, &l, &run.options);
                if (timed)
                        assert_int_equal(
                                mfl_backend_module.time(l.net, MFL_TIMED_STEP, &ns[2], &err), MFL_INVALID);
                for (int call = 0; call < 2; call++) {
                        assert_int_equal(
                                mfl_backend_module.step(l.net, l.data, l.steps, NET_STEPS, &run.opt, &err),
                                0);
                        uint64_t before = mfl_emu_memory_used();
                        for (int what = 0; timed && what < 3; what++) {
                                assert_int_equal(
                                        mfl_backend_module.time(l.net, (enum mfl_timed)what, &ns[what], &err),
                                        0);
                                assert_true(ns[what] > 0);
                        }
                        assert_int_equal(mfl_emu_memory_used(), before);
                }
                params[timed] = params_of(&c, &l);
                close_local(&l);
        }
        assert_memory_equal(params[0], params[1], (size_t)c.graph->n * sizeof(float));
        free(params[0]);
        free(params[1]);
        net_case_deinit(&c);
}

/* Each call of CUDA in turn fails once: an error, and no memory leaks where the device stays intact. */
static void test_failures(void **state)
{
        struct net_case c;
        struct local l;
        net_case_init(&c, NET_DENSE);
        struct net_run run = net_run_of(MFL_PRECISION_FP32, 2, 0);
        long n = 1;
        for (bool struck = true; struck; n++) {
                struct mfl_error err = {""};
                double ns = -1;
                open_local(&c, &l, &run.options);
                assert_int_equal(mfl_backend_module.step(l.net, l.data, l.steps, 1, &run.opt, &err), 0);
                uint64_t before = mfl_emu_memory_used();
                mfl_emu_fail_at("*", n);
                int rc = mfl_backend_module.time(l.net, MFL_TIMED_STEP, &ns, &err);
                struck = mfl_emu_failed();
                mfl_emu_fail_at("*", 0);
                assert_true(struck || rc == 0);
                if (rc)
                        assert_true(ns == -1);
                bool broken = cudaDeviceSynchronize() != cudaSuccess;
                if (!broken)
                        assert_int_equal(mfl_emu_memory_used(), before);
                close_local(&l);
                if (broken)
                        assert_int_equal(cudaDeviceReset(), cudaSuccess);
        }
        assert_true(n > 20);
        net_case_deinit(&c);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_sets),
                cmocka_unit_test(test_amount),
                cmocka_unit_test(test_launches),
                cmocka_unit_test(test_rotation),
                cmocka_unit_test(test_net),
                cmocka_unit_test(test_failures),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
