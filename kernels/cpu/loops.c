/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the loops for this processor. */
#include "kernels/cpu/loops.h"

const struct mfl_loops *mfl_loops_choose(void)
{
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
                return &mfl_loops_avx512;
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
                return &mfl_loops_avx2;
#endif
        return &mfl_loops_base;
}
