/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of cuDNN on the emulated library: they compute what was asked for, with an allowed engine. */
#include "tests/lib/test.h"
#include "kernels/cuda/base/dnn.h"

#include <stdio.h>
#include <string.h>

#include "tests/unit/cuda/conv/conv_test.h"
#include "tests/emu/emu.h"

static struct mfl_dnn *dnn;

static int open_dnn(void **state)
{
        return mfl_dnn_open(&dnn, NULL);
}

static int close_dnn(void **state)
{
        mfl_dnn_close(dnn);
        dnn = NULL;
        return 0;
}

static int make(const struct mfl_cuda_conv *conv, struct mfl_dnn_want want, struct mfl_dnn_plan **ret_plan,
        struct mfl_error *err)
{
        *ret_plan = NULL;
        return mfl_dnn_plan_new(dnn, conv, &want, ret_plan, err);
}

static void assert_engine(const struct mfl_cuda_conv *conv, struct mfl_dnn_want want, int engine)
{
        struct mfl_dnn_plan *plan;
        struct mfl_error err = {""};
        int r = make(conv, want, &plan, &err);
        if (engine < 0) {
                assert_int_equal(r, MFL_NOT_FOUND);
                assert_true(strncmp(err.text, "cuDNN: ", 7) == 0);
                return;
        }
        assert_int_equal(r, 0);
        assert_int_equal(mfl_dnn_plan_engine(plan), engine);
        mfl_dnn_plan_free(plan);
}

/* tests/emu/cudnn.c: 1 bf16 operands, 2 not deterministic, 3 too much workspace, 4 refuses, 5 Winograd, 6
 * TF32, 7 for 16-bit tensors, 8 float, 9 fallback that fuses nothing. */
static void test_filters(void **state)
{
        struct mfl_cuda_conv conv = conv_test_problem(MFL_PRECISION_FP32, 1, 2, 5, 5, 8, 8, 3, 3, 1);
        assert_engine(&conv, (struct mfl_dnn_want){.deterministic = true}, 8);
        assert_engine(&conv, (struct mfl_dnn_want){.deterministic = true, .rank = 1}, 9);
        assert_engine(&conv, (struct mfl_dnn_want){.deterministic = true, .rank = 2}, -1);
        assert_engine(&conv, (struct mfl_dnn_want){.deterministic = false}, 2);
        assert_engine(&conv, (struct mfl_dnn_want){.deterministic = false, .rank = 1}, 8);
        assert_engine(&conv, (struct mfl_dnn_want){.deterministic = true, .bias = true, .relu = true}, 8);
        assert_engine(&conv, (struct mfl_dnn_want){.deterministic = true, .bias = true, .rank = 1}, -1);
        assert_engine(&conv, (struct mfl_dnn_want){.deterministic = true, .relu = true}, -1);
        conv.precision = MFL_PRECISION_TF32;
        assert_engine(&conv, (struct mfl_dnn_want){.deterministic = true}, 6);
        assert_engine(&conv, (struct mfl_dnn_want){.deterministic = true, .rank = 1}, 8);
        for (conv.precision = MFL_PRECISION_BF16; conv.precision <= MFL_PRECISION_FP16; conv.precision++) {
                assert_engine(&conv, (struct mfl_dnn_want){.deterministic = true}, 7);
                assert_engine(&conv, (struct mfl_dnn_want){.deterministic = true, .bias = true}, -1);
                assert_engine(&conv,
                        (struct mfl_dnn_want){.deterministic = true, .pass = MFL_CUDA_BACKWARD_WEIGHTS}, 7);
                assert_engine(&conv,
                        (struct mfl_dnn_want){
                                .deterministic = true, .pass = MFL_CUDA_BACKWARD_WEIGHTS, .rank = 1},
                        9);
        }
}

/* Backward weights of 16-bit tensors have the tensors' type. */
static void run_one(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, bool bias, bool relu)
{
        struct mfl_dnn_plan *plan;
        struct mfl_error err;
        struct conv_test test;
        struct mfl_dnn_want want = {.pass = pass, .bias = bias, .relu = relu, .deterministic = true};
        assert_int_equal(make(conv, want, &plan, &err), 0);
        bool weights = pass == MFL_CUDA_BACKWARD_WEIGHTS, low = weights && !mfl_dnn_plan_dw_float(plan);
        assert_int_equal(low, weights && mfl_cuda_type_of(conv->precision) != MFL_CUDA_F32);
        if (low) {
                mfl_dnn_plan_free(plan);
                return; /* test_conv_plan checks its numbers */
        }
        conv_test_open(&test, conv, pass, bias, relu ? MFL_CUDA_ACT_RELU : MFL_CUDA_ACT_NONE, false);
        void *workspace = NULL;
        assert_int_equal(cudaMalloc(&workspace, mfl_dnn_plan_workspace(plan) + 1), cudaSuccess);
        const void *first = pass == MFL_CUDA_FORWARD ? test.args.x : test.args.dy,
                   *second = weights ? test.args.x : test.args.w;
        void *out = pass == MFL_CUDA_FORWARD ? test.args.y : weights ? (void *)test.args.dw : test.args.dx;
        assert_int_equal(
                mfl_dnn_plan_run(plan, first, second, test.args.bias, out, workspace, NULL, &err), 0);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        assert_true(conv_test_error(&test) < conv_test_bound(conv, pass, false));
        conv_test_close(&test);
        mfl_dnn_plan_free(plan);
        assert_int_equal(cudaFree(workspace), cudaSuccess);
}

static void test_numbers(void **state)
{
        for (int precision = 0; precision < MFL_PRECISION_COUNT_; precision++) {
                struct mfl_cuda_conv shapes[] = {
                        conv_test_problem((enum mfl_precision)precision, 1, 2, 6, 5, 8, 4, 3, 3, 1),
                        conv_test_problem((enum mfl_precision)precision, 1, 3, 7, 8, 3, 8, 5, 3, 2),
                        conv_test_problem((enum mfl_precision)precision, 1, 1, 9, 9, 4, 8, 1, 1, 2),
                        conv_test_problem((enum mfl_precision)precision, 1, 2, 9, 8, 4, 4, 3, 3, 1)};
                shapes[3].dilation[0] = 2; /* so one row less on each side */
                shapes[3].oh -= 2;
                for (size_t i = 0; i < MFL_ARRAY_SIZE(shapes); i++) {
                        for (int pass = 0; pass < MFL_CUDA_PASS_COUNT_; pass++)
                                run_one(&shapes[i], (enum mfl_cuda_pass)pass, false, false);
                        if (precision <= MFL_PRECISION_TF32) {
                                run_one(&shapes[i], MFL_CUDA_FORWARD, true, true);
                                run_one(&shapes[i], MFL_CUDA_FORWARD, true, false);
                        }
                }
        }
}

/* Each call of the library, and each allocation, fails in turn: an error or a plan, and no leak. */
static void test_failures(void **state)
{
        static const char *const calls[] = {"cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute",
                "cudnnBackendFinalize", "cudnnBackendGetAttribute", "malloc"};
        struct mfl_cuda_conv conv = conv_test_problem(MFL_PRECISION_FP32, 1, 2, 5, 5, 8, 8, 3, 3, 1);
        for (size_t c = 0; c < MFL_ARRAY_SIZE(calls); c++) {
                bool memory = !strcmp(calls[c], "malloc"), done = false;
                for (long n = 1; !done; n++) {
                        struct mfl_dnn_plan *plan;
                        struct mfl_error err = {""};
                        if (memory)
                                mfl_alloc_fail_at(n - 1);
                        else
                                mfl_emu_fail_at(calls[c], n);
                        int r = make(&conv, (struct mfl_dnn_want){.bias = true}, &plan, &err);
                        done = memory ? !mfl_alloc_failed() : !mfl_emu_failed();
                        mfl_emu_fail_at(calls[c], 0);
                        mfl_alloc_fail_at(-1);
                        assert_true(r == 0 || *err.text);
                        assert_int_equal(r == -ENOMEM, memory && !done);
                        mfl_dnn_plan_free(plan);
                }
        }
}

static void test_run_failures(void **state)
{
        struct mfl_cuda_conv conv = conv_test_problem(MFL_PRECISION_FP32, 1, 2, 5, 5, 8, 8, 3, 3, 1);
        struct mfl_dnn_plan *plan;
        struct mfl_error err = {""};
        struct conv_test test;
        assert_int_equal(make(&conv, (struct mfl_dnn_want){.deterministic = true}, &plan, &err), 0);
        conv_test_open(&test, &conv, MFL_CUDA_FORWARD, false, MFL_CUDA_ACT_NONE, false);
        mfl_emu_fail_at("cudnnBackendExecute", 1);
        void *workspace = NULL;
        assert_int_equal(cudaMalloc(&workspace, mfl_dnn_plan_workspace(plan)), cudaSuccess);
        assert_int_equal(
                mfl_dnn_plan_run(plan, test.args.x, test.args.w, NULL, test.args.y, workspace, NULL, &err),
                -EIO);
        assert_non_null(strstr(err.text, "cudnnBackendExecute"));
        /* The emulated library uses the workspace that it reported. */
        assert_int_equal(
                mfl_dnn_plan_run(plan, test.args.x, test.args.w, NULL, test.args.y, NULL, NULL, &err), -EIO);
        assert_non_null(strstr(err.text, "workspace"));
        assert_int_equal(cudaFree(workspace), cudaSuccess);
        conv_test_close(&test);
        mfl_dnn_plan_free(plan);
}

static void test_open(void **state)
{
        struct mfl_dnn *none = NULL;
        struct mfl_error err;
        assert_string_equal(mfl_dnn_version(), "9.19.0");
        mfl_emu_fail_at("cudnnCreate", 1);
        assert_int_equal(mfl_dnn_open(&none, &err), -EIO);
        assert_null(none);
        assert_non_null(strstr(err.text, "cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED (1001)"));
        mfl_alloc_fail_at(0);
        assert_int_equal(mfl_dnn_open(&none, &err), -ENOMEM);
        mfl_alloc_fail_at(-1);
        mfl_dnn_close(NULL);
        mfl_dnn_plan_free(NULL);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_filters, open_dnn, close_dnn),
                cmocka_unit_test_setup_teardown(test_numbers, open_dnn, close_dnn),
                cmocka_unit_test_setup_teardown(test_failures, open_dnn, close_dnn),
                cmocka_unit_test_setup_teardown(test_run_failures, open_dnn, close_dnn),
                cmocka_unit_test(test_open),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
