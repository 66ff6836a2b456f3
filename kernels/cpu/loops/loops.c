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

void mfl_loops_bf16(const struct mfl_loops *loops, enum mfl_cpu_bf16 bf16, struct mfl_loops *ret_loops)
{
#if defined(__x86_64__)
        if (loops == &mfl_loops_avx512 && (bf16 == MFL_CPU_BF16_LIBRARY || bf16 == MFL_CPU_BF16_TILES)) {
                *ret_loops = *loops;
                ret_loops->products =
                        bf16 == MFL_CPU_BF16_TILES ? mfl_products_amx_bf16 : mfl_products_avx512_bf16;
                return;
        }
#endif
        bool as_tiles = bf16 == MFL_CPU_BF16_TILES || bf16 == MFL_CPU_BF16_AS_TILES;
        *ret_loops = mfl_loops_base; /* only for tests, so one version serves all processors */
        ret_loops->products = as_tiles ? mfl_products_base_tile : mfl_products_base_bf16;
}
