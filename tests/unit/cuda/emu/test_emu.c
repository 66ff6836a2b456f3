/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated device itself: its results, and that it finds what it should find. */
#include "tests/lib/test.h"

#include <stdio.h>

#include "common/base/base.h"
#include "tests/emu/emu.h"
#include "tests/unit/cuda/emu/emu_kernels.h"

static void *device(size_t bytes)
{
        void *p;
        assert_int_equal(cudaMalloc(&p, bytes), cudaSuccess);
        return p;
}

static void test_add(void **state)
{
        enum { N = 1000 };
        float host[N], *x = device(sizeof host), *y = device(sizeof host);
        for (int i = 0; i < N; i++)
                host[i] = (float)i;
        assert_int_equal(cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
        struct emu_add a = {x, y, 0.5f, N};
        assert_int_equal(emu_add(&a, NULL), cudaSuccess);
        assert_int_equal(cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
        for (int i = 0; i < N; i++)
                assert_true(host[i] == (float)i + 0.5f);
        cudaFree(x);
        cudaFree(y);
}

static void test_sum(void **state)
{
        enum { BLOCKS = 5, N = 256 * BLOCKS };
        uint32_t host[N], sums[BLOCKS], *x = device(sizeof host), *to = device(sizeof sums);
        for (uint32_t i = 0; i < N; i++)
                host[i] = i * i;
        assert_int_equal(cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
        for (int order = MFL_EMU_FORWARD; order <= MFL_EMU_RANDOM; order++) {
                struct emu_sum a = {x, to, 12};
                mfl_emu_set_order((enum mfl_emu_order)order, 7);
                uint64_t start = mfl_now_ns();
                assert_int_equal(emu_sum(&a, BLOCKS, NULL), cudaSuccess);
                assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
                uint64_t ns = (mfl_now_ns() - start) / BLOCKS;
                printf("# order %d: a block of 256 threads with 108 barriers takes %llu us\n", order,
                        (unsigned long long)ns / 1000);
                assert_int_equal(cudaMemcpy(sums, to, sizeof sums, cudaMemcpyDeviceToHost), cudaSuccess);
                for (uint32_t b = 0; b < BLOCKS; b++) {
                        uint32_t want = 0;
                        for (uint32_t i = 0; i < 256; i++)
                                want += host[256 * b + i];
                        assert_int_equal(sums[b], want);
                }
        }
        mfl_emu_set_order(MFL_EMU_FORWARD, 0);
        cudaFree(x);
        cudaFree(to);
}

/* ---- tensor cores ---- */

/* Every element is different, and all are exact in the type and in the sums. */
static void check_mma(enum mfl_precision precision, int k)
{
        float a[16 * 16], b[16 * 8], c[16 * 8], d[16 * 8];
        for (int i = 0; i < 16 * k; i++)
                a[i] = (float)(i - 100); /* below 256: 8 bits are enough for bf16 */
        for (int i = 0; i < 8 * k; i++)
                b[i] = (float)(i - 50);
        for (int i = 0; i < 16 * 8; i++)
                c[i] = (float)(1000 * i);
        float *da = device(sizeof a), *db = device(sizeof b), *dc = device(sizeof c), *dd = device(sizeof d);
        assert_int_equal(cudaMemcpy(da, a, sizeof a, cudaMemcpyHostToDevice), cudaSuccess);
        assert_int_equal(cudaMemcpy(db, b, sizeof b, cudaMemcpyHostToDevice), cudaSuccess);
        assert_int_equal(cudaMemcpy(dc, c, sizeof c, cudaMemcpyHostToDevice), cudaSuccess);
        struct emu_mma m = {precision, da, db, dc, dd};
        assert_int_equal(emu_mma(&m, NULL), cudaSuccess);
        assert_int_equal(cudaMemcpy(d, dd, sizeof d, cudaMemcpyDeviceToHost), cudaSuccess);
        for (int row = 0; row < 16; row++)
                for (int col = 0; col < 8; col++) {
                        float want = c[row * 8 + col];
                        for (int i = 0; i < k; i++)
                                want += a[row * k + i] * b[i * 8 + col];
                        assert_true(d[row * 8 + col] == want);
                }
        cudaFree(da);
        cudaFree(db);
        cudaFree(dc);
        cudaFree(dd);
}

static void test_mma(void **state)
{
        check_mma(MFL_PRECISION_TF32, 8);
        check_mma(MFL_PRECISION_BF16, 16);
        check_mma(MFL_PRECISION_FP16, 16);
}

static void test_tf32(void **state)
{
        static const struct {
                uint32_t from, to;
        } cases[] = {
                {0x3f800000u, 0x3f800000u},
                {0x3f800fffu, 0x3f800000u}, /* below the middle */
                {0x3f801000u, 0x3f802000u}, /* a tie goes away from zero, */
                {0xbf801000u, 0xbf802000u}, /* on both sides, */
                {0x3f803000u, 0x3f804000u}, /* and not to even */
                {0x7f7fffffu, 0x7f800000u},
                {0x7f800000u, 0x7f800000u},
                {0x00000fffu, 0x00000000u},
                {0x80001000u, 0x80002000u},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                assert_int_equal(mfl_to_tf32(mfl_bits_to_float(cases[i].from)), cases[i].to);
        assert_true(isnan(mfl_bits_to_float(mfl_to_tf32(mfl_bits_to_float(0x7f800001u)))));
}

static void test_ldmatrix(void **state)
{
        uint16_t in[4][8][8];
        uint32_t out[32][4];
        for (int i = 0; i < 4 * 8 * 8; i++)
                in[i / 64][i / 8 % 8][i % 8] = (uint16_t)(1000 + i);
        void *din = device(sizeof in), *dout = device(sizeof out);
        assert_int_equal(cudaMemcpy(din, in, sizeof in, cudaMemcpyHostToDevice), cudaSuccess);
        for (int transposed = 0; transposed < 2; transposed++) {
                struct emu_ldmatrix a = {din, dout, transposed};
                assert_int_equal(emu_ldmatrix(&a, NULL), cudaSuccess);
                assert_int_equal(cudaMemcpy(out, dout, sizeof out, cudaMemcpyDeviceToHost), cudaSuccess);
                for (int lane = 0; lane < 32; lane++)
                        for (int i = 0; i < 4; i++)
                                for (int half = 0; half < 2; half++) {
                                        int row = lane / 4, col = lane % 4 * 2 + half;
                                        uint16_t want = transposed ? in[i][col][row] : in[i][row][col];
                                        assert_int_equal(out[lane][i] >> 16 * half & 0xffff, want);
                                }
        }
        cudaFree(din);
        cudaFree(dout);
}

/* ---- what it finds ---- */

enum { TRY_MAX = 512 };

/* Runs a case; out[TRY_MAX]. */
static cudaError_t try_case(enum emu_case what, uint32_t threads, size_t shared, uint32_t *ret_out)
{
        uint32_t in[8 * TRY_MAX], *din = device(sizeof in), *dout = device(TRY_MAX * sizeof in[0]);
        for (uint32_t i = 0; i < 8 * TRY_MAX; i++)
                in[i] = i + 1;
        assert_int_equal(cudaMemcpy(din, in, sizeof in, cudaMemcpyHostToDevice), cudaSuccess);
        struct emu_try a = {what, din, dout};
        cudaError_t status = emu_try(&a, threads, shared, NULL);
        if (!status)
                status = cudaDeviceSynchronize();
        if (!status)
                status = cudaMemcpy(ret_out, dout, threads * sizeof in[0], cudaMemcpyDeviceToHost);
        cudaFree(din);
        cudaFree(dout);
        if (status)
                cudaDeviceReset();
        return status;
}

static void expect_fault(enum emu_case what, uint32_t threads, const char *text)
{
        uint32_t out[TRY_MAX];
        mfl_emu_set_trap(true);
        assert_int_equal(try_case(what, threads, 32 * threads, out), cudaErrorLaunchFailure);
        mfl_emu_set_trap(false);
        if (!strstr(mfl_emu_last_fault(), text))
                fail_msg("\"%s\" does not say \"%s\"", mfl_emu_last_fault(), text);
        /* Afterwards the device works again. */
        assert_int_equal(try_case(EMU_RIGHT, threads, 32 * threads, out), cudaSuccess);
        assert_int_equal(out[0], 9);
}

static void test_faults(void **state)
{
        for (int order = MFL_EMU_FORWARD; order <= MFL_EMU_RANDOM; order++) {
                mfl_emu_set_order((enum mfl_emu_order)order, 3);
                expect_fault(EMU_EXIT_BEFORE_SYNC, 64, "1 have left the kernel; thread 0 waits at");
                expect_fault(EMU_TWO_BARRIERS, 64, "a barrier while other threads wait at that of");
                expect_fault(EMU_LANE_MISSING, 64, "31 in warp collectives");
                expect_fault(EMU_LANE_MISSING, 48, "mfl_shfl_xor in a warp of 16 threads");
                expect_fault(EMU_DIVERGENT_KINDS, 32, "while other lanes wait in");
                expect_fault(EMU_MISALIGNED, 32, "mfl_copy_16 of misaligned addresses");
                expect_fault(EMU_COPY_OVERWRITTEN, 32, "the source of this mfl_cp_async changed");
                expect_fault(EMU_COPY_MISALIGNED, 32, "mfl_cp_async_16 of misaligned");
        }
        mfl_emu_set_order(MFL_EMU_FORWARD, 0);
#if !defined(__SANITIZE_ADDRESS__)
        expect_fault(EMU_BEYOND_SHARED, 32, "a write 0 bytes behind the 1024 of dynamic shared memory");
#endif
}

/* A missing barrier gives poison only in the order that runs the reader first. */
static void test_missing_barrier(void **state)
{
        uint32_t out[TRY_MAX];
        for (int reverse = 0; reverse < 2; reverse++) {
                mfl_emu_set_order(reverse ? MFL_EMU_REVERSE : MFL_EMU_FORWARD, 0);
                assert_int_equal(try_case(EMU_NO_BARRIER, 64, 2048, out), cudaSuccess);
                assert_int_equal(out[10], reverse ? 8 * 11 + 1 : UINT32_MAX);
                assert_int_equal(try_case(EMU_NO_BARRIER_LEFT, 64, 2048, out), cudaSuccess);
                assert_int_equal(out[10], reverse ? UINT32_MAX : 8 * 9 + 1);
                assert_int_equal(try_case(EMU_RIGHT, 64, 2048, out), cudaSuccess);
                for (uint32_t t = 0; t < 64; t++)
                        assert_int_equal(out[t], 8 * ((t + 1) % 64) + 1);
        }
        mfl_emu_set_order(MFL_EMU_FORWARD, 0);
        assert_int_equal(try_case(EMU_STALE_SHARED, 32, 1024, out), cudaSuccess);
        assert_int_equal(out[31], UINT32_MAX);
}

/* Seven words of a row and a zero, or poison where a wait is missing. */
static void test_async_copies(void **state)
{
        uint32_t out[TRY_MAX];
        assert_int_equal(try_case(EMU_COPY, 32, 1024, out), cudaSuccess);
        for (uint32_t t = 0; t < 32; t++)
                assert_int_equal(out[t], 7 * 8 * t + 28);
        static const enum emu_case bad[] = {EMU_COPY_NO_WAIT, EMU_COPY_NO_COMMIT};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++) {
                assert_int_equal(try_case(bad[i], 32, 1024, out), cudaSuccess);
                assert_int_equal(out[5], 8 * UINT32_MAX);
        }
        assert_int_equal(try_case(EMU_COPY_TOO_FEW, 32, 1024, out), cudaSuccess);
        assert_int_equal(out[5], 4 * 40 + 10 + 4 * UINT32_MAX); /* the first half came */
}

static void test_launch_limits(void **state)
{
        uint32_t out[TRY_MAX];
        assert_int_equal(try_case(EMU_RIGHT, 513, 4096, out), cudaErrorLaunchOutOfResources);
        assert_int_equal(try_case(EMU_RIGHT, 1025, 4096, out), cudaErrorInvalidConfiguration);
        assert_int_equal(try_case(EMU_RIGHT, 0, 4096, out), cudaErrorInvalidConfiguration);
        assert_int_equal(try_case(EMU_RIGHT, 32, (48 << 10) + 16, out), cudaErrorInvalidValue);
        assert_int_equal(try_case(EMU_RIGHT, 32, 48 << 10, out), cudaSuccess);
        struct emu_add none = {NULL, NULL, 0.0f, 0};
        assert_int_equal(emu_add(&none, NULL), cudaErrorInvalidConfiguration);
        assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
        assert_int_equal(cudaGetLastError(), cudaSuccess);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_add),
                cmocka_unit_test(test_sum),
                cmocka_unit_test(test_mma),
                cmocka_unit_test(test_tf32),
                cmocka_unit_test(test_ldmatrix),
                cmocka_unit_test(test_faults),
                cmocka_unit_test(test_missing_barrier),
                cmocka_unit_test(test_async_copies),
                cmocka_unit_test(test_launch_limits),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
