/* SPDX-License-Identifier: Apache-2.0 */
/* What bench_aggregate's two files share: the floors that the server's path is compared with. Rates are GB
 * (10^9 bytes) of update a second. Bench code: whatever goes wrong ends the program. */
#ifndef MFL_BENCH_AGGREGATE_H
#define MFL_BENCH_AGGREGATE_H

#include "common/base/base.h"

void bench_check(bool ok, const char *what);
/* 64-byte aligned, every page written. */
void *bench_touched(size_t bytes);

/* One process writes the update `uploads` times, another reads it into one vector of that size, `chunk` bytes
 * to a call. */
double bench_floor_tcp(size_t bytes, size_t chunk, int uploads);

/* Additions of an update that is in memory already, without any check of it. */
struct bench_adds {
        double exact; /* int64 += rounded float, or int64 += int64 */
        double plain; /* double += float, or double += double */
};
struct bench_adds bench_floor_adds(size_t n, bool f32, int uploads);

#endif
