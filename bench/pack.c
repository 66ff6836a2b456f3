/* SPDX-License-Identifier: Apache-2.0 */
/* Packing and unpacking of updates (common/codec/pack.h), and rounding to a grid: bench_pack. Random numbers of so many bits, four million
 * of them in chunks of a megabyte as daemons send them; medians of nine. */
#include <stdio.h>

#include "common/base/rng.h"
#include "common/codec/grid.h"
#include "common/codec/pack.h"

#define N ((size_t)1 << 22)
#define CHUNK ((size_t)1 << 20)
#define TIMES 9

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

static double median(double *v)
{
        qsort(v, TIMES, sizeof *v, compare);
        return v[TIMES / 2];
}

static void row(unsigned bits, int64_t *v, uint8_t *out, uint8_t *back)
{
        double pack[TIMES], unpack[TIMES];
        size_t bytes = N * sizeof *v, packed = 0;
        struct mfl_error err;
        struct mfl_rng rng = mfl_rng_new(1, MFL_RNG_TEST, bits, 0);
        for (size_t i = 0; i < N; i++)
                v[i] = (int64_t)mfl_rng_u64(&rng) >> (64 - bits);
        for (int t = 0; t < TIMES; t++) {
                uint64_t packing = 0, unpacking = 0;
                packed = 0;
                for (size_t at = 0; at < bytes; at += CHUNK) {
                        uint64_t start = mfl_now_ns();
                        size_t length = mfl_pack(false, (const uint8_t *)v + at, CHUNK, out);
                        packing += mfl_now_ns() - start;
                        packed += length ? length : CHUNK;
                        if (!length)
                                continue;
                        memcpy(back + (CHUNK - length), out, length);
                        start = mfl_now_ns();
                        mfl_assert(!mfl_unpack(false, back, CHUNK, length, &err));
                        unpacking += mfl_now_ns() - start;
                }
                pack[t] = (double)packing / (double)N;
                unpack[t] = (double)unpacking / (double)N;
        }
        printf("%4u  %9.3f  %8.2f  %10.2f\n", bits, (double)packed / (double)bytes, median(pack),
                median(unpack));
}

int main(void)
{
        int64_t *v = mfl_malloc(N * sizeof *v);
        uint8_t *out = mfl_malloc(mfl_pack_room(CHUNK)), *back = mfl_malloc(CHUNK);
        mfl_assert(v && out && back);
        printf("bits  of 64 bits  pack ns  unpack ns   (an element)\n");
        for (unsigned bits = 8; bits <= 56; bits += 8)
                row(bits, v, out, back);
        free(v);
        free(out);
        free(back);
        return 0;
}
