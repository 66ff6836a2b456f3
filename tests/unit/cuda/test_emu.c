/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated device itself: what it computes, and that it finds what it is there to find. */
#include "tests/lib/test.h"

#include <stdio.h>

#include "common/base.h"
#include "tests/emu/emu.h"
#include "tests/unit/cuda/emu_kernels.h"

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

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_add),
                cmocka_unit_test(test_sum),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
