/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of convolutions: every way gives the right numbers, choices are as promised, and libraries that err
 * are detected. */
#include "tests/lib/test.h"
#include "kernels/cuda/conv/conv_plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "tests/unit/cuda/conv/conv_test.h"
#include "kernels/cuda/conv/conv_plan_internal.h"
#include "kernels/cuda/conv/conv_plan_kernels.h"
#include "tests/emu/emu.h"

static struct mfl_cuda_context context;
static char dir[64], log_text[8192];
static int n_errors; /* lines of the log */

static void on_line(void *user, enum mfl_log_level level, const char *text)
{
        n_errors += level == MFL_LOG_ERROR;
        size_t n = strlen(log_text);
        snprintf(log_text + n, sizeof log_text - n, "%s\n", text);
}

static void forget_log(void)
{
        n_errors = 0;
        *log_text = 0;
}

static int setup(void **state)
{
        struct mfl_error err;
        struct mfl_tuner *tuner;
        strcpy(dir, "/tmp/mfl-test-plan-XXXXXX");
        assert_non_null(mkdtemp(dir));
        setenv("MFL_CACHE_DIR", dir, 1);
        assert_int_equal(mfl_tuner_new("emulated", &tuner, &err), 0);
        assert_int_equal(mfl_cuda_context_init(&context, 0, tuner, &err), 0);
        mfl_conv_library_flops[0] = mfl_conv_library_flops[1] = 0x1p13;
        forget_log();
        mfl_log_set_sink(on_line, NULL);
        return 0;
}

static int teardown(void **state)
{
        struct mfl_tuner *tuner = context.tuner;
        char command[128];
        mfl_cuda_context_deinit(&context);
        mfl_tuner_free(tuner);
        mfl_log_set_sink(NULL, NULL);
        mfl_emu_set_order(MFL_EMU_FORWARD, 0);
        snprintf(command, sizeof command, "rm -rf %s", dir);
        assert_int_equal(mfl_emu_memory_used(), 0);
        return system(command);
}

/* What each pass may have to do besides the products. */
static const struct mfl_cuda_conv_use uses[] = {
        {.pass = MFL_CUDA_FORWARD},
        {.pass = MFL_CUDA_FORWARD, .bias = true, .act = MFL_CUDA_ACT_RELU},
        {.pass = MFL_CUDA_FORWARD, .bias = true, .act = MFL_CUDA_ACT_TANH},
        {.pass = MFL_CUDA_FORWARD, .act = MFL_CUDA_ACT_RELU},
        {.pass = MFL_CUDA_FORWARD, .act = MFL_CUDA_ACT_SIGMOID},
        {.pass = MFL_CUDA_BACKWARD_DATA},
        {.pass = MFL_CUDA_BACKWARD_DATA, .act = MFL_CUDA_ACT_RELU, .add = true},
        {.pass = MFL_CUDA_BACKWARD_DATA, .add = true},
        {.pass = MFL_CUDA_BACKWARD_WEIGHTS},
        {.pass = MFL_CUDA_BACKWARD_WEIGHTS, .bias = true},
};
static struct mfl_cuda_conv convolution(enum mfl_precision precision, int groups)
{
        return conv_test_problem(precision, groups, 2, 3, 4, 8, 8, 3, 3, 1);
}
static struct mfl_cuda_conv dense(enum mfl_precision precision, int groups)
{
        return conv_test_problem(precision, groups, 8, 1, 1, 32, 24, 1, 1, 1);
}

static void *workspace_of(const struct mfl_cuda_conv_plan *plan)
{
        void *workspace = NULL;
        assert_int_equal(cudaMalloc(&workspace, mfl_cuda_conv_plan_workspace(plan) + 1), cudaSuccess);
        return workspace;
}

/* Runs the plan and checks the numbers. */
static void check_numbers(struct mfl_cuda_conv_plan *plan)
{
        struct conv_test test;
        struct mfl_error err = {""};
        const struct mfl_cuda_conv_use *use = &plan->use;
        bool low = plan->dnn && !mfl_dnn_plan_dw_float(plan->dnn);
        conv_test_open(&test, &plan->conv, use->pass, use->bias, use->act, use->add);
        test.args.workspace = workspace_of(plan);
        assert_int_equal(mfl_cuda_conv_plan_run(plan, &test.args, &err), 0);
        assert_int_equal(cudaStreamSynchronize(context.stream), cudaSuccess);
        double error = conv_test_error(&test), bound = conv_test_bound(&plan->conv, use->pass, low);
        if (!(error < bound))
                fail_msg("%s: error %g, bound %g", mfl_cuda_conv_plan_name(plan), error, bound);
        if (use->pass == MFL_CUDA_BACKWARD_WEIGHTS && use->bias)
                assert_true(conv_test_db_error(&test) < 1e-6);
        assert_int_equal(cudaFree(test.args.workspace), cudaSuccess);
        conv_test_close(&test);
}

static void check_way(const struct mfl_cuda_conv *conv, struct mfl_cuda_conv_use use, enum mfl_conv_way way)
{
        struct mfl_cuda_conv_plan *plan = NULL;
        struct mfl_error err = {""};
        assert_int_equal(mfl_conv_way_new(&context, conv, &use, way, 0, &plan, &err), 0);
        for (int branches = 1; branches <= (mfl_conv_way_is_looped(way) ? 4 : 1); branches *= 2) {
                mfl_conv_way_lay_out(plan, branches);
                int r = mfl_conv_trial_verify(plan, &err);
                if (r)
                        fail_msg("%d: %s", r, err.text);
                assert_true(plan->workspace <= mfl_cuda_conv_plan_workspace_max(conv, &use));
                check_numbers(plan);
        }
        mfl_cuda_conv_plan_free(plan);
}

/* Every way, of every pass and precision, in several orders of streams. */
static void test_ways(void **state)
{
        for (int p = 0; p < MFL_PRECISION_COUNT_; p++) {
                struct mfl_cuda_conv conv = convolution((enum mfl_precision)p, 3),
                                     layer = dense((enum mfl_precision)p, 3);
                for (size_t u = 0; u < MFL_ARRAY_SIZE(uses); u++) {
                        struct mfl_cuda_conv_use use = uses[u];
                        use.fast = true;
                        mfl_emu_set_order((enum mfl_emu_order)(u % 3), u);
                        check_way(&conv, use, MFL_CONV_GROUPED);
                        check_way(&layer, use, MFL_CONV_BATCHED);
                        use.fast = false;
                        check_way(&conv, use, MFL_CONV_DNN);
                        check_way(&layer, use, MFL_CONV_BLAS_LOOP);
                        check_way(&layer, use, MFL_CONV_OWN);
                }
        }
}

/* 18 weights: a client's weights in 16 bits are no multiple of 16 bytes, in the library's memory either. */
static void test_odd_weights(void **state)
{
        for (int p = 0; p < MFL_PRECISION_COUNT_; p++) {
                struct mfl_cuda_conv conv =
                        conv_test_problem((enum mfl_precision)p, 3, 8, 3, 4, 1, 2, 3, 3, 1);
                for (size_t u = 0; u < MFL_ARRAY_SIZE(uses); u++) {
                        struct mfl_cuda_conv_use use = uses[u];
                        use.fast = true;
                        check_way(&conv, use, MFL_CONV_DNN);
                        check_way(&conv, use, MFL_CONV_GROUPED);
                }
        }
}

static struct mfl_cuda_conv_plan *make_plan(
        const struct mfl_cuda_conv *conv, struct mfl_cuda_conv_use use, bool fast)
{
        struct mfl_cuda_conv_plan *plan = NULL;
        struct mfl_error err = {""};
        use.fast = fast;
        int r = mfl_cuda_conv_plan_new(&context, conv, &use, &plan, &err);
        if (r)
                fail_msg("%d: %s", r, err.text);
        return plan;
}

static void test_plans(void **state)
{
        for (int p = 0; p < MFL_PRECISION_COUNT_; p++) {
                struct mfl_cuda_conv convs[] = {
                        convolution((enum mfl_precision)p, 2), dense((enum mfl_precision)p, 2)};
                for (size_t i = 0; i < MFL_ARRAY_SIZE(convs); i++) {
                        for (int fast = 0; fast < 2; fast++) {
                                const struct mfl_cuda_conv_use *use =
                                        &uses[(i + (size_t)p * 2 + (size_t)fast * 3) % 8];
                                struct mfl_cuda_conv_plan *plan = make_plan(&convs[i], *use, fast);
                                check_numbers(plan);
                                if (!fast)
                                        assert_int_equal(
                                                plan->way, i == 0 ? MFL_CONV_DNN : MFL_CONV_BLAS_LOOP);
                                mfl_cuda_conv_plan_free(plan);
                        }
                }
        }
        assert_int_equal(n_errors, 0);
}

/* Deterministic plans: a client's bits are the same alone and among others, whatever was measured. */
static void test_same_bits(void **state)
{
        for (int library = 0; library < 2; library++) {
                mfl_conv_library_flops[0] = library ? 0x1p13 : 0x1p40;
                for (size_t u = 0; u < MFL_ARRAY_SIZE(uses); u++) {
                        void *bits[2];
                        uint64_t bytes[2];
                        for (int i = 0; i < 2; i++) {
                                struct mfl_cuda_conv conv = convolution(MFL_PRECISION_FP32, i ? 3 : 1);
                                struct mfl_cuda_conv_plan *plan = make_plan(&conv, uses[u], false);
                                struct conv_test test;
                                struct mfl_error err;
                                assert_int_equal(plan->way, library ? MFL_CONV_DNN : MFL_CONV_OWN);
                                conv_test_open(
                                        &test, &conv, uses[u].pass, uses[u].bias, uses[u].act, uses[u].add);
                                test.args.workspace = workspace_of(plan);
                                assert_int_equal(mfl_cuda_conv_plan_run(plan, &test.args, &err), 0);
                                assert_int_equal(cudaStreamSynchronize(context.stream), cudaSuccess);
                                bits[i] = conv_test_result(&test, 0, &bytes[i]);
                                assert_int_equal(cudaFree(test.args.workspace), cudaSuccess);
                                conv_test_close(&test);
                                mfl_cuda_conv_plan_free(plan);
                        }
                        assert_int_equal(bytes[0], bytes[1]);
                        assert_memory_equal(bits[0], bits[1], bytes[0]);
                        free(bits[0]);
                        free(bits[1]);
                }
        }
}

/* The rule does not depend on the number of clients, and has its limits. */
static void test_rule(void **state)
{
        mfl_conv_library_flops[0] = 0x1p30;
        mfl_conv_library_flops[1] = 0x1p32;
        struct mfl_cuda_conv conv = conv_test_problem(MFL_PRECISION_FP32, 1, 32, 32, 32, 64, 64, 3, 3, 1);
        for (conv.groups = 1; conv.groups < 100; conv.groups += 33)
                assert_true(mfl_cuda_conv_uses_library(&conv, MFL_CUDA_FORWARD)); /* 2.4e9 */
        conv.precision = MFL_PRECISION_BF16;
        assert_false(mfl_cuda_conv_uses_library(&conv, MFL_CUDA_FORWARD));
        conv = conv_test_problem(MFL_PRECISION_FP32, 1, 32, 14, 14, 32, 64, 5, 5, 1);
        assert_false(mfl_cuda_conv_uses_library(&conv, MFL_CUDA_FORWARD)); /* 6.4e8 */
        conv = conv_test_problem(MFL_PRECISION_FP32, 1, 32, 224, 224, 3, 64, 7, 7, 2);
        assert_false(mfl_cuda_conv_uses_library(&conv, MFL_CUDA_FORWARD)); /* three channels */
        conv = conv_test_problem(MFL_PRECISION_FP32, 1, 32, 1, 1, 25088, 4096, 1, 1, 1);
        assert_true(mfl_cuda_conv_uses_library(&conv, MFL_CUDA_BACKWARD_DATA));
        conv = conv_test_problem(MFL_PRECISION_FP32, 1, 32, 64, 1, 512, 2048, 1, 1, 1);
        assert_true(mfl_cuda_conv_uses_library(&conv, MFL_CUDA_BACKWARD_WEIGHTS));
        conv.pad[0] = 1; /* the first 64 of the 66 outputs, as for LSTM: no library has this convolution */
        assert_false(mfl_cuda_conv_uses_library(&conv, MFL_CUDA_BACKWARD_WEIGHTS));
}

/* A library that errs: fast plans work without it; deterministic plans return an error. */
static void test_wrong_library(void **state)
{
        static const struct {
                const char *variable, *value;
                bool dense;
                enum mfl_precision precision;
        } wrongs[] = {{"MFL_EMU_CUDNN_WRONG", "1", false, MFL_PRECISION_FP32},
                {"MFL_EMU_CUDNN_WRONG", "1", false, MFL_PRECISION_FP16},
                {"MFL_EMU_CUDNN_WRONG", "bf16", false, MFL_PRECISION_FP32},
                {"MFL_EMU_CUDNN_WRONG", "bf16", false, MFL_PRECISION_TF32},
                {"MFL_EMU_CUBLASLT_WRONG", "1", true, MFL_PRECISION_FP32},
                {"MFL_EMU_CUBLASLT_WRONG", "1", true, MFL_PRECISION_BF16}};
        struct mfl_tuner *tuner = context.tuner;
        context.tuner = NULL; /* always measured */
        for (size_t i = 0; i < MFL_ARRAY_SIZE(wrongs); i++) {
                for (size_t u = i % 2; u < MFL_ARRAY_SIZE(uses); u += 2) {
                        struct mfl_cuda_conv conv = wrongs[i].dense ? dense(wrongs[i].precision, 2)
                                                                    : convolution(wrongs[i].precision, 2);
                        for (int fast = 0; fast <= (u / 2 == i % 4); fast++) {
                                forget_log();
                                setenv(wrongs[i].variable, wrongs[i].value, 1);
                                struct mfl_cuda_conv_plan *plan = make_plan(&conv, uses[u], fast);
                                unsetenv(wrongs[i].variable);
                                /* a dense layer can go to the other library, in a fast plan */
                                assert_true(
                                        plan->way == MFL_CONV_OWN || (fast && wrongs[i].dense && plan->dnn));
                                assert_int_equal(n_errors, fast ? 0 : 1);
                                assert_non_null(strstr(log_text, "differs from this backend's own kernel"));
                                mfl_cuda_conv_plan_free(plan);
                        }
                }
        }
        context.tuner = tuner;
        /* The bias' batch stride matters where clients share a call. */
        struct mfl_cuda_conv conv = dense(MFL_PRECISION_FP32, 3);
        struct mfl_cuda_conv_plan *plan = NULL;
        struct mfl_cuda_conv_use use = uses[1];
        struct mfl_error err;
        use.fast = true;
        assert_int_equal(mfl_conv_way_new(&context, &conv, &use, MFL_CONV_BATCHED, 0, &plan, &err), 0);
        setenv("MFL_EMU_CUBLASLT_WRONG", "bias", 1);
        assert_int_equal(mfl_conv_trial_verify(plan, &err), MFL_INVALID);
        unsetenv("MFL_EMU_CUBLASLT_WRONG");
        assert_int_equal(mfl_conv_trial_verify(plan, &err), 0);
        mfl_cuda_conv_plan_free(plan);
}

/* Replaces what the tuner knows about its only problem. */
static void rewrite_choice(const char *choice)
{
        char command[512];
        mfl_tuner_save(context.tuner);
        mfl_tuner_free(context.tuner);
        snprintf(command, sizeof command,
                "sed -i 's/^\\(conv [^\\t]*\\)\\t[^\\t]*\\t/\\1\\t%s\\t/' %s/tune-*.txt", choice, dir);
        assert_int_equal(system(command), 0);
        assert_int_equal(mfl_tuner_new("emulated", &context.tuner, NULL), 0);
}

static void test_remembers(void **state)
{
        struct mfl_cuda_conv conv = convolution(MFL_PRECISION_FP32, 4);
        mfl_cuda_conv_plan_free(make_plan(&conv, uses[1], true));
        rewrite_choice("dnn 1 2");
        struct mfl_cuda_conv_plan *plan = make_plan(&conv, uses[1], true);
        assert_int_equal(plan->way, MFL_CONV_DNN);
        assert_int_equal(plan->index, 1);
        assert_int_equal(plan->branches, 2);
        assert_non_null(strstr(mfl_cuda_conv_plan_name(plan), "cuDNN engine "));
        assert_non_null(strstr(mfl_cuda_conv_plan_name(plan), ", 2 branches"));
        mfl_cuda_conv_plan_free(plan);
        static const char *const nonsense[] = {"own no such kernel", "dnn 1 16", "grouped 0 2", "dnn 1 2 3"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(nonsense); i++) {
                rewrite_choice(nonsense[i]);
                plan = make_plan(&conv, uses[1], true); /* it is measured again */
                check_numbers(plan);
                mfl_cuda_conv_plan_free(plan);
        }
}

/* A library's way is verified once per shape: the second plan runs nothing for that, but a plan of another
 * shape does. */
static void test_verified_once(void **state)
{
        struct mfl_cuda_conv conv = convolution(MFL_PRECISION_FP32, 1);
        struct mfl_error err;
        for (int i = 0; i < 3; i++) {
                struct mfl_cuda_conv_plan *plan = NULL;
                conv.n += i == 2; /* another shape */
                mfl_emu_fail_at("cudnnBackendExecute", 1);
                int r = mfl_cuda_conv_plan_new(&context, &conv, &uses[0], &plan, &err);
                bool ran = mfl_emu_failed();
                mfl_emu_fail_at("cudnnBackendExecute", 0);
                mfl_cuda_conv_plan_free(plan);
                assert_int_equal(ran, i != 1);
                assert_int_equal(r < 0, i != 1);
                plan = make_plan(&conv, uses[0], false); /* what failed is not known to be right */
                assert_int_equal(plan->way, MFL_CONV_DNN);
                mfl_cuda_conv_plan_free(plan);
        }
}

/* A tuning file must not change the bits of deterministic plans. */
static void test_file_and_bits(void **state)
{
        struct mfl_cuda_conv conv = convolution(MFL_PRECISION_FP32, 4);
        struct mfl_cuda_conv_plan *plan = make_plan(&conv, uses[0], false);
        char own[64];
        assert_int_equal(plan->way, MFL_CONV_DNN);
        mfl_cuda_conv_plan_free(plan);
        snprintf(own, sizeof own, "own %s", mfl_cuda_conv_variant_name(&conv, MFL_CUDA_FORWARD, 0));
        const char *const choices[] = {own, "dnn 1 1", "grouped 0 1"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(choices); i++) {
                rewrite_choice(choices[i]);
                plan = make_plan(&conv, uses[0], false);
                assert_int_equal(plan->way, MFL_CONV_DNN);
                assert_int_equal(plan->index, 0);
                mfl_cuda_conv_plan_free(plan);
        }
        rewrite_choice("dnn 0 2");
        plan = make_plan(&conv, uses[0], false);
        assert_int_equal(plan->branches, 2);
        mfl_cuda_conv_plan_free(plan);
}

/* A plan's run may be captured and replayed. */
static void test_capture(void **state)
{
        for (int w = MFL_CONV_OWN; w < MFL_CONV_WAY_COUNT_; w++) {
                bool blas = w == MFL_CONV_BLAS_LOOP || w == MFL_CONV_BATCHED;
                struct mfl_cuda_conv conv =
                        blas ? dense(MFL_PRECISION_FP32, 4) : convolution(MFL_PRECISION_FP32, 4);
                struct mfl_cuda_conv_plan *plan = NULL;
                struct mfl_cuda_conv_use use = uses[4];
                struct conv_test test;
                struct mfl_error err;
                cudaGraph_t graph;
                cudaGraphExec_t replay;
                use.fast = w >= MFL_CONV_GROUPED;
                assert_int_equal(
                        mfl_conv_way_new(&context, &conv, &use, (enum mfl_conv_way)w, 0, &plan, &err), 0);
                if (mfl_conv_way_is_looped(plan->way))
                        mfl_conv_way_lay_out(plan, 4);
                conv_test_open(&test, &conv, use.pass, use.bias, use.act, use.add);
                test.args.workspace = workspace_of(plan);
                assert_int_equal(cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal),
                        cudaSuccess);
                assert_int_equal(mfl_cuda_conv_plan_run(plan, &test.args, &err), 0);
                assert_int_equal(cudaStreamEndCapture(context.stream, &graph), cudaSuccess);
                assert_int_equal(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
                for (int i = 0; i < 2; i++) {
                        conv_test_reset(&test);
                        assert_int_equal(cudaGraphLaunch(replay, context.stream), cudaSuccess);
                        assert_int_equal(cudaStreamSynchronize(context.stream), cudaSuccess);
                        assert_true(conv_test_error(&test) < conv_test_bound(&conv, use.pass, false));
                }
                assert_int_equal(cudaGraphExecDestroy(replay), cudaSuccess);
                assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
                assert_int_equal(cudaFree(test.args.workspace), cudaSuccess);
                conv_test_close(&test);
                mfl_cuda_conv_plan_free(plan);
        }
}

/* A device without room for trials: deterministic plans fail rather than change bits; fast ones stay own. */
static void test_no_memory(void **state)
{
        struct mfl_cuda_conv conv = convolution(MFL_PRECISION_FP32, 2);
        struct mfl_cuda_conv_plan *plan = NULL;
        struct mfl_cuda_conv_use use = uses[1];
        struct mfl_error err;
        mfl_emu_set_memory(4096);
        assert_int_equal(mfl_cuda_conv_plan_new(&context, &conv, &use, &plan, &err), -ENOMEM);
        assert_non_null(strstr(err.text, "bytes wanted"));
        plan = make_plan(&conv, use, true);
        assert_int_equal(plan->way, MFL_CONV_OWN);
        mfl_emu_set_memory((uint64_t)8 << 30);
        mfl_cuda_conv_plan_free(plan);
}

/* Calls fail in turn. The result is an error or a plan, and no memory leaks that the device still knows. */
static void test_failures(void **state)
{
        static const char *const calls[] = {"cudaMalloc", "cudaMemsetAsync", "cudaMemcpyAsync",
                "cudaEventCreate", "cudaEventRecord", "cudaEventSynchronize", "cudaEventElapsedTime",
                "cudaStreamWaitEvent", "cudaStreamSynchronize", "cudnnBackendExecute", "malloc"};
        struct mfl_tuner *tuner = context.tuner;
        mfl_log_set_sink(NULL, NULL);
        for (size_t c = 0; c < MFL_ARRAY_SIZE(calls); c++) {
                bool memory = !strcmp(calls[c], "malloc"), done = false;
                for (long n = 1; !done; n += 1 + n / 4) {
                        struct mfl_cuda_conv conv =
                                conv_test_problem(MFL_PRECISION_FP32, 2, 2, 4, 4, 8, 16, 1, 1, 2);
                        struct mfl_cuda_conv_plan *plan = NULL;
                        struct mfl_cuda_conv_use use = uses[(size_t)n % MFL_ARRAY_SIZE(uses)];
                        struct mfl_error err = {""};
                        context.tuner = NULL; /* always measured */
                        if (memory)
                                mfl_alloc_fail_at(n - 1);
                        else
                                mfl_emu_fail_at(calls[c], n);
                        int r = mfl_cuda_conv_plan_new(&context, &conv, &use, &plan, &err);
                        done = memory ? !mfl_alloc_failed() : !mfl_emu_failed();
                        mfl_alloc_fail_at(-1);
                        mfl_emu_fail_at(calls[c], 0);
                        context.tuner = tuner;
                        assert_true(r <= 0);
                        assert_true(r == 0 || *err.text);
                        assert_int_equal(r == 0, plan != NULL);
                        mfl_cuda_conv_plan_free(plan);
                        if (cudaGetLastError()) { /* the context is lost, with its memory */
                                mfl_cuda_context_deinit(&context);
                                assert_int_equal(cudaDeviceReset(), cudaSuccess);
                                assert_int_equal(mfl_cuda_context_init(&context, 0, tuner, &err), 0);
                        }
                        if (mfl_emu_memory_used())
                                fail_msg("%s %ld: %d %s", calls[c], n, r, err.text);
                }
        }
}

/* The sums of a comparison are exact here; a NaN and an infinity are counted and spoil nothing else. */
static void test_compare(void **state)
{
        enum { N = 5000 };
        float *a = NULL, *b = NULL;
        struct mfl_cuda_compare_part *parts = NULL;
        double error2 = 0.0, reference2 = 0.0;
        float error_max = 0.0f;
        unsigned n_bad = 0;
        assert_int_equal(cudaMalloc((void **)&a, N * sizeof *a), cudaSuccess);
        assert_int_equal(cudaMalloc((void **)&b, N * sizeof *b), cudaSuccess);
        assert_int_equal(cudaMalloc((void **)&parts, MFL_CUDA_COMPARE_PARTS * sizeof *parts), cudaSuccess);
        float host[N];
        for (int i = 0; i < N; i++)
                host[i] = 2.0f;
        assert_int_equal(cudaMemcpy(a, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
        host[17] = 2.5f;
        host[4999] = 1.0f;
        host[1024] = NAN;
        host[2047] = -INFINITY;
        assert_int_equal(cudaMemcpy(b, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
        struct mfl_cuda_compare compare = {a, b, MFL_CUDA_F32, N, parts};
        assert_int_equal(mfl_cuda_compare(&compare, NULL), cudaSuccess);
        struct mfl_cuda_compare_part got[MFL_CUDA_COMPARE_PARTS];
        assert_int_equal(cudaMemcpy(got, parts, sizeof got, cudaMemcpyDeviceToHost), cudaSuccess);
        assert_int_equal(mfl_cuda_compare_parts(N), 5);
        assert_int_equal(mfl_cuda_compare_parts((int64_t)1 << 40), MFL_CUDA_COMPARE_PARTS);
        for (int i = 0; i < mfl_cuda_compare_parts(N); i++) {
                error2 += got[i].error2;
                reference2 += got[i].reference2;
                error_max = fmaxf(error_max, got[i].error_max);
                n_bad += got[i].n_bad;
        }
        assert_true(error2 == 1.25 && reference2 == 4.0 * (N - 2) && error_max == 1.0f);
        assert_int_equal(n_bad, 2);
        assert_int_equal(cudaFree(a), cudaSuccess);
        assert_int_equal(cudaFree(b), cudaSuccess);
        assert_int_equal(cudaFree(parts), cudaSuccess);
}

/* Copies of rows, by elements and by 16 bytes: side by side and apart again gives the same; strides are kept.
 */
static void test_copy(void **state)
{
        enum { GROUPS = 3, ROWS = 5, MOST = 8, N = GROUPS * ROWS * MOST };
        for (int columns = 3; columns <= MOST; columns += 5) {
                uint16_t host[N], got[N];
                char *memory = NULL;
                int n = GROUPS * ROWS * columns;
                assert_int_equal(cudaMalloc((void **)&memory, 2 * sizeof host), cudaSuccess);
                for (int i = 0; i < n; i++)
                        host[i] = (uint16_t)(0x3f80 + i); /* bfloat16s, copied as they are */
                assert_int_equal(cudaMemcpy(memory, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
                struct mfl_cuda_copy_rows rows = {memory, memory + sizeof host, MFL_CUDA_BF16, MFL_CUDA_BF16,
                        GROUPS, ROWS, columns, ROWS * columns, columns, columns, GROUPS * columns};
                assert_int_equal(mfl_cuda_copy_rows(&rows, NULL), cudaSuccess);
                assert_int_equal(cudaMemcpy(got, memory + sizeof host, sizeof got, cudaMemcpyDeviceToHost),
                        cudaSuccess);
                for (int i = 0; i < n; i++) {
                        int j = i % columns, g = i / columns % GROUPS, r = i / columns / GROUPS;
                        assert_int_equal(got[i], host[(g * ROWS + r) * columns + j]);
                }
                assert_int_equal(cudaFree(memory), cudaSuccess);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_compare, setup, teardown),
                cmocka_unit_test_setup_teardown(test_copy, setup, teardown),
                cmocka_unit_test_setup_teardown(test_ways, setup, teardown),
                cmocka_unit_test_setup_teardown(test_odd_weights, setup, teardown),
                cmocka_unit_test_setup_teardown(test_plans, setup, teardown),
                cmocka_unit_test_setup_teardown(test_same_bits, setup, teardown),
                cmocka_unit_test_setup_teardown(test_rule, setup, teardown),
                cmocka_unit_test_setup_teardown(test_wrong_library, setup, teardown),
                cmocka_unit_test_setup_teardown(test_remembers, setup, teardown),
                cmocka_unit_test_setup_teardown(test_verified_once, setup, teardown),
                cmocka_unit_test_setup_teardown(test_file_and_bits, setup, teardown),
                cmocka_unit_test_setup_teardown(test_capture, setup, teardown),
                cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
                cmocka_unit_test_setup_teardown(test_failures, setup, teardown),
        };
        mfl_log_init("test", MFL_LOG_WARN);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
