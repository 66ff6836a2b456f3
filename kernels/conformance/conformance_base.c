/* SPDX-License-Identifier: Apache-2.0 */
/* What every part of the conformance program uses: options, numbers, memory, the reference, refusals. */
#include "kernels/conformance/conformance.h"

#include <math.h>
#include <stdio.h>

#include "kernels/host.h"

bool conf_quick, conf_smoke, conf_complete;

void mfl_conf_fill(float *v, size_t n, uint64_t seed, uint64_t which, bool ties)
{
        struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_TEST, which, 0);
        for (size_t i = 0; i < n; i++) {
                float u = mfl_u32_to_unit(mfl_rng_u32(&rng));
                v[i] = ties ? floorf(u * 4.0f) * 0.5f - 1.0f : u * 2.0f - 1.0f;
        }
}

void *mfl_conf_alloc(size_t bytes)
{
        void *p = mfl_alloc_aligned(bytes);
        mfl_assert(p);
        return p;
}

void mfl_conf_must(int rc, const struct mfl_error *err)
{
        if (!rc)
                return;
        fprintf(stderr, "mfl-conformance: %s\n", err->text);
        exit(1);
}

struct conf_backend mfl_conf_reference(void)
{
        struct conf_backend b = {.ops = &mfl_backend_reference, .label = "reference"};
        struct mfl_error err;
        mfl_conf_must(b.ops->device_open(&b.device, &err), &err);
        return b;
}

/* Stored bits of the mantissa, without the leading one. */
static int mantissa_bits(enum mfl_precision precision)
{
        static const int bits[MFL_PRECISION_COUNT_] = {23, 10, 7, 10};
        return bits[precision];
}

double mfl_conf_unit(enum mfl_precision precision)
{
        return ldexp(1, -mantissa_bits(precision) - 1);
}

void mfl_conf_round(float *v, size_t n, enum mfl_precision precision)
{
        for (size_t i = 0; i < n && precision != MFL_PRECISION_FP32; i++) {
                int exponent;
                double m = frexp((double)v[i], &exponent);
                /* fp16 has no normal numbers below 2^-14. */
                int lowest = precision == MFL_PRECISION_FP16 ? -13 : -125;
                int shift = mantissa_bits(precision) + 1 - MFL_MAX(0, lowest - exponent);
                v[i] = (float)ldexp(nearbyint(ldexp(m, shift)), exponent - shift);
        }
}

bool mfl_conf_refused(int rc, const struct mfl_error *err, const char *fmt, ...)
{
        char what[160];
        va_list ap;
        if (rc != MFL_INVALID) {
                mfl_conf_must(rc, err);
                return false;
        }
        va_start(ap, fmt);
        vsnprintf(what, sizeof what, fmt, ap);
        va_end(ap);
        if (conf_complete)
                mfl_conf_report(false, "%s: refused: %s", what, err->text);
        else
                mfl_conf_skip(what, err->text);
        return true;
}
