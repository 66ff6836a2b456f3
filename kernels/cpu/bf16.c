/* SPDX-License-Identifier: Apache-2.0 */
/* Which arithmetic a bf16 network gets on this processor. */
#include "kernels/cpu/bf16.h"

#include "kernels/backend.h"
#include "kernels/cpu/dnnl_compat.h"
#include "kernels/host.h"

static bool has_instructions(void)
{
#if defined(__x86_64__)
        return __builtin_cpu_supports("avx512bf16");
#else
        return false;
#endif
}

/* The library's instruction sets are sets of bits, each with those of the lesser ones. */
static bool library_reaches(dnnl_cpu_isa_t isa)
{
        return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)isa) == (unsigned)isa;
}

enum mfl_cpu_bf16 mfl_cpu_bf16_choose(void)
{
        const char *wanted = getenv("MFL_CPU_BF16");
        if (wanted && !strcmp(wanted, "rounded"))
                return MFL_CPU_BF16_ROUNDED;
        if (has_instructions() && library_reaches(dnnl_cpu_isa_avx512_core_bf16))
                return MFL_CPU_BF16_LIBRARY;
        return MFL_CPU_BF16_NONE;
}

const char *mfl_cpu_bf16_name(enum mfl_cpu_bf16 bf16)
{
        if (bf16 == MFL_CPU_BF16_LIBRARY)
                return library_reaches(dnnl_cpu_isa_avx512_core_amx) ? "amx_bf16" : "avx512_bf16";
        return bf16 == MFL_CPU_BF16_ROUNDED ? "rounded" : "";
}

int mfl_cpu_bf16_refuse(struct mfl_error *err)
{
        struct mfl_device_info info = {.name = ""};
        if (has_instructions())
                return mfl_fail(err, MFL_INVALID,
                        "precision bf16 needs oneDNN to use avx512_bf16 or amx_bf16, and something holds it "
                        "to "
                        "less: ONEDNN_MAX_CPU_ISA, DNNL_MAX_CPU_ISA, or the system");
        mfl_host_device_info(&info);
        return mfl_fail(err, MFL_INVALID,
                "precision bf16 needs the cuda backend or a processor with avx512_bf16 or amx_bf16: %s has "
                "neither",
                info.name);
}
