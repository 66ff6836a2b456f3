/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of cuBLASLt on the emulated library: products, biases at their stride, and the algorithms that may be
 * used. */
#include "tests/lib/test.h"
#include "kernels/cuda/base/blas.h"

#include <string.h>

#include "tests/unit/cuda/conv/conv_test.h"
#include "tests/emu/emu.h"

static struct mfl_blas *blas;

static int open_blas(void **state)
{
        return mfl_blas_open(&blas, NULL);
}

static int close_blas(void **state)
{
        mfl_blas_close(blas);
        blas = NULL;
        return 0;
}

static struct mfl_cuda_conv dense(enum mfl_precision precision, int groups, int n, int c, int k)
{
        return conv_test_problem(precision, groups, n, 1, 1, c, k, 1, 1, 1);
}

static int make(const struct mfl_cuda_conv *conv, struct mfl_blas_want want, struct mfl_blas_plan **ret_plan,
        struct mfl_error *err)
{
        *ret_plan = NULL;
        return mfl_blas_plan_new(blas, conv, &want, ret_plan, err);
}

static void assert_algorithm(const struct mfl_cuda_conv *conv, struct mfl_blas_want want, int id)
{
        struct mfl_blas_plan *plan;
        struct mfl_error err = {""};
        int r = make(conv, want, &plan, &err);
        assert_int_equal(r, id < 0 ? MFL_NOT_FOUND : 0);
        if (id < 0)
                assert_true(strncmp(err.text, "cuBLASLt: ", 10) == 0);
        else
                assert_int_equal(mfl_blas_plan_algorithm(plan), id);
        mfl_blas_plan_free(plan);
}

/* tests/emu/cublaslt.c: 1 TF32, 2 too much workspace, 3 sums in place, 4 refuses, 5 sums in half, 6 and 7
 * fit. */
static void test_filters(void **state)
{
        struct mfl_cuda_conv conv = dense(MFL_PRECISION_FP32, 2, 4, 8, 12);
        assert_algorithm(&conv, (struct mfl_blas_want){.rank = 0}, 6);
        assert_algorithm(&conv, (struct mfl_blas_want){.rank = 1, .bias = true, .relu = true}, 7);
        assert_algorithm(&conv, (struct mfl_blas_want){.rank = 2}, -1);
        conv.precision = MFL_PRECISION_TF32;
        assert_algorithm(&conv, (struct mfl_blas_want){.rank = 0}, 1);
        assert_algorithm(&conv, (struct mfl_blas_want){.rank = 1}, 6);
        conv.precision = MFL_PRECISION_FP16;
        assert_algorithm(&conv, (struct mfl_blas_want){.rank = 0}, 6);
        assert_algorithm(&conv, (struct mfl_blas_want){.bias = true}, -1);
}

static void test_can(void **state)
{
        struct mfl_cuda_conv conv = dense(MFL_PRECISION_FP32, 2, 4, 8, 12);
        assert_true(mfl_blas_can(&conv));
        conv = conv_test_problem(MFL_PRECISION_FP32, 1, 2, 5, 5, 8, 8, 1, 1, 1);
        assert_true(mfl_blas_can(&conv));
        conv = conv_test_problem(MFL_PRECISION_FP32, 1, 2, 5, 5, 8, 8, 1, 1, 2);
        assert_false(mfl_blas_can(&conv));
        conv = conv_test_problem(MFL_PRECISION_FP32, 1, 2, 5, 5, 8, 8, 3, 3, 1);
        assert_false(mfl_blas_can(&conv));
}

static void run_one(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, bool bias, bool relu)
{
        struct mfl_blas_plan *plan;
        struct mfl_error err;
        struct conv_test test;
        bool forward = pass == MFL_CUDA_FORWARD, weights = pass == MFL_CUDA_BACKWARD_WEIGHTS;
        assert_int_equal(
                make(conv, (struct mfl_blas_want){.pass = pass, .bias = bias, .relu = relu}, &plan, &err), 0);
        conv_test_open(&test, conv, pass, bias, relu ? MFL_CUDA_ACT_RELU : MFL_CUDA_ACT_NONE, false);
        void *workspace = NULL;
        assert_int_equal(cudaMalloc(&workspace, mfl_blas_plan_workspace(plan) + 1), cudaSuccess);
        void *out = forward ? test.args.y : weights ? (void *)test.args.dw : test.args.dx;
        assert_int_equal(mfl_blas_plan_run(plan, forward ? test.args.x : test.args.dy,
                                 weights ? test.args.x : test.args.w, test.args.bias, out, test.stride,
                                 test.stride, workspace, NULL, &err),
                0);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        assert_true(conv_test_error(&test) < conv_test_bound(conv, pass, false));
        conv_test_close(&test);
        mfl_blas_plan_free(plan);
        assert_int_equal(cudaFree(workspace), cudaSuccess);
}

static void test_numbers(void **state)
{
        for (int p = 0; p < MFL_PRECISION_COUNT_; p++) {
                struct mfl_cuda_conv shapes[] = {dense((enum mfl_precision)p, 1, 8, 16, 24),
                        dense((enum mfl_precision)p, 3, 5, 40, 8), dense((enum mfl_precision)p, 4, 8, 7, 13),
                        conv_test_problem((enum mfl_precision)p, 2, 2, 4, 5, 8, 16, 1, 1, 1)};
                for (size_t i = 0; i < MFL_ARRAY_SIZE(shapes); i++) {
                        for (int pass = 0; pass < MFL_CUDA_PASS_COUNT_; pass++)
                                run_one(&shapes[i], (enum mfl_cuda_pass)pass, false, false);
                        run_one(&shapes[i], MFL_CUDA_FORWARD, false, true);
                        if (p <= MFL_PRECISION_TF32) {
                                run_one(&shapes[i], MFL_CUDA_FORWARD, true, true);
                                run_one(&shapes[i], MFL_CUDA_FORWARD, true, false);
                        }
                }
        }
}

static void test_failures(void **state)
{
        static const char *const calls[] = {"cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutSetAttribute",
                "cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute",
                "cublasLtMatmulPreferenceCreate", "cublasLtMatmulAlgoGetHeuristic", "malloc"};
        struct mfl_cuda_conv conv = dense(MFL_PRECISION_FP32, 2, 4, 8, 12);
        for (size_t c = 0; c < MFL_ARRAY_SIZE(calls); c++) {
                bool memory = !strcmp(calls[c], "malloc"), done = false;
                for (long n = 1; !done; n++) {
                        struct mfl_blas_plan *plan;
                        struct mfl_error err = {""};
                        if (memory)
                                mfl_alloc_fail_at(n - 1);
                        else
                                mfl_emu_fail_at(calls[c], n);
                        int r = make(&conv, (struct mfl_blas_want){.bias = true}, &plan, &err);
                        done = memory ? !mfl_alloc_failed() : !mfl_emu_failed();
                        mfl_emu_fail_at(calls[c], 0);
                        mfl_alloc_fail_at(-1);
                        assert_int_equal(r == 0, done);
                        assert_true(r == 0 || *err.text);
                        mfl_blas_plan_free(plan);
                }
        }
}

static void test_open(void **state)
{
        struct mfl_blas *none = NULL;
        struct mfl_error err;
        mfl_emu_fail_at("cublasLtCreate", 1);
        assert_int_equal(mfl_blas_open(&none, &err), -EIO);
        assert_null(none);
        assert_non_null(strstr(err.text, "cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED (1)"));
        mfl_blas_close(NULL);
        mfl_blas_plan_free(NULL);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_filters, open_blas, close_blas),
                cmocka_unit_test(test_can),
                cmocka_unit_test_setup_teardown(test_numbers, open_blas, close_blas),
                cmocka_unit_test_setup_teardown(test_failures, open_blas, close_blas),
                cmocka_unit_test(test_open),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
