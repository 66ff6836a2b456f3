/* SPDX-License-Identifier: Apache-2.0 */
/* Which arithmetic a bf16 network gets on this processor. */
#include "kernels/cpu/base/bf16.h"

#include "kernels/backend.h"
#include "kernels/cpu/base/dnnl_compat.h"
#include "kernels/host.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool has_instructions(void)
{
#if defined(__x86_64__)
        return __builtin_cpu_supports("avx512bf16");
#else
        return false;
#endif
}

/* Some hypervisors report AMX, but no tile palette (CPUID 1DH: 0 palettes). oneDNN then configures its tiles
 * by palette 0, and the first tile instruction is illegal, in every AMX convolution of any shape. Where CPUID
 * is intercepted and repaired, the same convolutions run and pass conformance.
 * Source: https://github.com/uxlfoundation/oneDNN/pull/5801 */
static bool lacks_tile_palette(void)
{
#if defined(__x86_64__)
        const unsigned amx_tile = 1u << 24;
        unsigned a = 0, b = 0, c = 0, d = 0;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & amx_tile))
                return false;
        return !__get_cpuid_count(0x1d, 0, &a, &b, &c, &d) || a == 0;
#else
        return false;
#endif
}

/* The user already holds oneDNN to an instruction set below AMX. */
static bool is_held_below_amx(void)
{
        static const char *const sets[] = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE",
                "AVX512_CORE_VNNI", "AVX512_CORE_BF16"};
        const char *held = getenv("ONEDNN_MAX_CPU_ISA");
        if (!held)
                held = getenv("DNNL_MAX_CPU_ISA");
        for (size_t i = 0; held && i < MFL_ARRAY_SIZE(sets); i++)
                if (!strcasecmp(held, sets[i]))
                        return true;
        return false;
}

void mfl_cpu_bf16_avoid_broken_amx(void)
{
        /* It fails after oneDNN's first use: an earlier device of this process has then made the call. */
        if (lacks_tile_palette() && !is_held_below_amx())
                (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
}

/* The library's instruction sets are sets of bits; each contains those of the lesser ones. */
static bool library_reaches(dnnl_cpu_isa_t isa)
{
        return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)isa) == (unsigned)isa;
}

/* Whether this process may use tiles; asks the kernel for them, which it gives to a process once and for all of its threads.
 * Source: Documentation/arch/x86/xstate.rst of Linux. */
static bool has_tiles(void)
{
#if defined(__x86_64__)
        const unsigned bits = 1u << 24 | 1u << 22; /* tiles, and their products of bfloat16 */
        const long ask = 0x1023, tile_data = 18;
        unsigned a = 0, b = 0, c = 0, d = 0;
        if (!has_instructions() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & bits) != bits)
                return false;
        return !lacks_tile_palette() && !is_held_below_amx() && syscall(SYS_arch_prctl, ask, tile_data) == 0;
#else
        return false;
#endif
}

enum mfl_cpu_bf16 mfl_cpu_bf16_choose(void)
{
        const char *wanted = getenv("MFL_CPU_BF16");
        wanted = wanted ? wanted : "";
        if (!strcmp(wanted, "rounded"))
                return MFL_CPU_BF16_ROUNDED;
        if (!strcmp(wanted, "tiles"))
                return MFL_CPU_BF16_AS_TILES;
        if (strcmp(wanted, "library") != 0 && has_tiles())
                return MFL_CPU_BF16_TILES;
        if (has_instructions() && library_reaches(dnnl_cpu_isa_avx512_core_bf16))
                return MFL_CPU_BF16_LIBRARY;
        return MFL_CPU_BF16_NONE;
}

const char *mfl_cpu_bf16_name(enum mfl_cpu_bf16 bf16)
{
        static const char *const names[] = {[MFL_CPU_BF16_NONE] = "",
                [MFL_CPU_BF16_LIBRARY] = "avx512_bf16",
                [MFL_CPU_BF16_TILES] = "amx_bf16",
                [MFL_CPU_BF16_AS_TILES] = "as tiles",
                [MFL_CPU_BF16_ROUNDED] = "rounded"};
        return names[bf16];
}

int mfl_cpu_bf16_refuse(struct mfl_error *err)
{
        struct mfl_device_info info = {.name = ""};
        if (has_instructions())
                return mfl_fail(err, MFL_INVALID,
                        "precision bf16 needs oneDNN to use avx512_bf16 or amx_bf16, but ONEDNN_MAX_CPU_ISA, "
                        "DNNL_MAX_CPU_ISA or the system limits it to less");
        mfl_host_device_info(&info);
        return mfl_fail(err, MFL_INVALID,
                "precision bf16 needs the cuda backend or a processor with avx512_bf16 or amx_bf16: %s has "
                "neither",
                info.name);
}
