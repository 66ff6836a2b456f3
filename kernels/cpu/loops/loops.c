/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the loops for this processor. */
#include "kernels/cpu/loops/loops.h"

/* $MFL_CPU_LOOPS names loops below the best, so that tests reach all of them on one machine. */
static bool is_wanted(const struct mfl_loops *loops)
{
        const char *name = getenv("MFL_CPU_LOOPS");
        return !name || !*name || !strcmp(name, loops->name);
}

const struct mfl_loops *mfl_loops_choose(void)
{
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                is_wanted(&mfl_loops_avx512))
                return &mfl_loops_avx512;
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && is_wanted(&mfl_loops_avx2))
                return &mfl_loops_avx2;
#endif
        return &mfl_loops_base;
}

void mfl_loops_bf16(const struct mfl_loops *loops, bool instructions, struct mfl_loops *ret_loops)
{
#if defined(__x86_64__)
        if (instructions && loops == &mfl_loops_avx512) {
                *ret_loops = *loops;
                ret_loops->products = mfl_products_avx512_bf16;
                return;
        }
#endif
        *ret_loops = mfl_loops_base; /* only for tests, so one version serves all processors */
        ret_loops->products = mfl_products_base_bf16;
}
