/* SPDX-License-Identifier: Apache-2.0 */
/* The watched device finds planted races, finds none where there are none, in any order of threads; and
 * counts what requests cost. */
#include "tests/lib/test.h"

#include <stdio.h>

#include "tests/emu/emu.h"
#include "tests/emu/watch.h"
#include "tests/unit/cuda/emu/watch_kernels.h"

enum { WORDS = 4096 };

static void *device_words(void)
{
        void *p;
        assert_int_equal(cudaMalloc(&p, WORDS * sizeof(uint32_t)), cudaSuccess);
        assert_int_equal(cudaMemset(p, 0, WORDS * sizeof(uint32_t)), cudaSuccess);
        return p;
}

static int races_of(enum race_case what, uint32_t blocks)
{
        struct race a = {what, device_words(), device_words(), device_words()};
        mfl_emu_races_reset(true);
        assert_int_equal(race_run(&a, blocks, NULL), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        cudaFree(a.in);
        cudaFree(a.out);
        cudaFree(a.sum);
        return mfl_emu_races();
}

static void expect_race(enum race_case what, uint32_t blocks, const char *text)
{
        if (!races_of(what, blocks))
                fail_msg("case %d: no race was found", (int)what);
        if (!strstr(mfl_emu_last_race(), text) || !strstr(mfl_emu_last_race(), "race_kernel"))
                fail_msg("case %d: \"%s\" does not say \"%s\"", (int)what, mfl_emu_last_race(), text);
}

static void test_races(void **state)
{
        for (int order = MFL_EMU_FORWARD; order <= MFL_EMU_RANDOM; order++) {
                mfl_emu_set_order((enum mfl_emu_order)order, 5);
                expect_race(RACE_NO_SYNC, 1, "shared memory, byte ");
                expect_race(RACE_SYNC_WARP_ONLY, 1, "shared memory, byte ");
                expect_race(RACE_NO_SYNC_WARP, 1, "shared memory, byte ");
                expect_race(RACE_SHUFFLE_ONLY, 1, "shared memory, byte ");
                expect_race(RACE_WRITE_AFTER_READ, 1, ": write by thread ");
                expect_race(RACE_SAME_VALUE, 1, "before it a write by thread ");
                expect_race(RACE_BLOCKS, 2, "of another block");
                expect_race(RACE_BLOCKS_READ, 2, "of another block");
                expect_race(RACE_ATOMIC_PLAIN, 2, "atomic by thread ");
                expect_race(RACE_BYTE, 1, "global memory at 0x");
                expect_race(RACE_COPY, 1, "shared memory, byte ");
                expect_race(RACE_LDMATRIX, 1, "shared memory, byte ");
        }
        mfl_emu_set_order(MFL_EMU_FORWARD, 0);
        /* Where binutils are installed, as wherever gcc is: both places with their lines. */
        expect_race(RACE_NO_SYNC, 1, "watch_kernels.cu:");
}

static void test_no_races(void **state)
{
        for (int order = MFL_EMU_FORWARD; order <= MFL_EMU_RANDOM; order++) {
                mfl_emu_set_order((enum mfl_emu_order)order, 5);
                for (uint32_t blocks = 1; blocks <= 3; blocks += 2) {
                        assert_int_equal(races_of(RACE_ATOMICS_FINE, blocks), 0);
                        assert_int_equal(races_of(RACE_BYTES_FINE, blocks), 0);
                }
                if (races_of(RACE_NONE, 1))
                        fail_msg("%s", mfl_emu_last_race());
        }
        /* A launch is ordered after the launch before. */
        struct race a = {RACE_BLOCKS, device_words(), device_words(), NULL};
        for (int i = 0; i < 2; i++)
                assert_int_equal(race_run(&a, 1, NULL), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        assert_int_equal(mfl_emu_races(), 0);
        cudaFree(a.in);
        cudaFree(a.out);
        mfl_emu_set_order(MFL_EMU_FORWARD, 0);
}

static struct mfl_emu_counts count(
        bool vectors, uint32_t shared_stride, uint32_t global_stride, uint32_t global_first)
{
        struct request a = {device_words(), device_words(), shared_stride, global_stride, global_first};
        const char *name = vectors ? "request_vectors_kernel" : "request_words_kernel";
        struct mfl_emu_counts before = mfl_emu_counts_of(name), after;
        assert_int_equal(vectors ? request_vectors(&a, NULL) : request_words(&a, NULL), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        after = mfl_emu_counts_of(name);
        cudaFree((void *)(uintptr_t)a.in);
        cudaFree(a.out);
        return (struct mfl_emu_counts){.launches = after.launches - before.launches,
                .shared_requests = after.shared_requests - before.shared_requests,
                .passes = after.passes - before.passes,
                .passes_ideal = after.passes_ideal - before.passes_ideal,
                .global_requests = after.global_requests - before.global_requests,
                .sectors = after.sectors - before.sectors,
                .sectors_ideal = after.sectors_ideal - before.sectors_ideal};
}

static void test_counts(void **state)
{
        static const struct {
                bool vectors;
                uint32_t shared_stride, global_stride, global_first;
                unsigned passes, passes_ideal, sectors,
                        sectors_ideal; /* of the reads; words are written to 4 sectors */
        } cases[] = {
                {false, 1, 1, 0, 1, 1, 4, 4},
                {false, 0, 0, 0, 1, 1, 1, 1}, /* all read one word */
                {false, 2, 2, 0, 2, 1, 8, 4},
                {false, 32, 8, 0, 32, 1, 32, 4},
                {false, 33, 1, 1, 1, 1, 5, 4}, /* a row of padding; a row that begins within a sector */
                {true, 4, 1, 0, 4, 4, 16, 16},
                {true, 32, 1, 0, 32, 4, 16, 16},
                {true, 36, 1, 0, 4, 4, 16, 16},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_emu_counts c = count(cases[i].vectors, cases[i].shared_stride,
                        cases[i].global_stride, cases[i].global_first);
                unsigned written = cases[i].vectors ? 0 : 4;
                assert_int_equal(c.launches, 1);
                assert_int_equal(c.shared_requests, 1);
                assert_int_equal(c.passes, cases[i].passes);
                assert_int_equal(c.passes_ideal, cases[i].passes_ideal);
                assert_int_equal(c.global_requests, cases[i].vectors ? 1 : 2);
                assert_int_equal(c.sectors, cases[i].sectors + written);
                assert_int_equal(c.sectors_ideal, cases[i].sectors_ideal + written);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_races),
                cmocka_unit_test(test_no_races),
                cmocka_unit_test(test_counts),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
