/* SPDX-License-Identifier: Apache-2.0 */
/* debug.deltas: each client's change as it came to the server, for people (mfl pull --deltas), in the file deltas.f32 of the job's
 * directory, from the first round on until the job's limit is reached. A record is
 *
 *      u32 round, u32 0, u64 client, u64 weight, u64 n, then n floats; little-endian
 *
 * Rounds follow each other; what a round that is begun again has written goes. The file is no part of a commit: after a crash the newest
 * rounds may be missing from it, and it never holds up a job.
 *
 * THREADS. open, round, add, close: the worker of sums. Reading: any thread, of rounds that are committed. */
#ifndef MFL_SERVER_RUNTIME_CHANGES_H
#define MFL_SERVER_RUNTIME_CHANGES_H

#include "common/base/base.h"

struct mfl_changes;

/* round: of the newest committed one; what is behind it is cut off. Negative: the file can't be opened. */
int mfl_changes_open(const char *path, uint64_t bytes_max, uint32_t round, uint64_t n,
        struct mfl_changes **ret_changes, struct mfl_error *err);
void mfl_changes_close(struct mfl_changes *changes); /* NULL is fine */
void mfl_changes_round(struct mfl_changes *changes, uint32_t round);
/* A disk without room costs the record; the log says so once. */
void mfl_changes_add(struct mfl_changes *changes, uint64_t client, uint64_t weight, const float *delta);

#define MFL_CHANGES_CLIENTS_MAX 4096u /* of a round; others are not kept */

/* The clients of a round, by their numbers, and where their floats are. The caller frees v. MFL_NOT_FOUND: none is kept of that round; the text says of which
 * rounds they are. */
struct mfl_change {
        uint64_t client, weight, offset, n;
};
int mfl_changes_list(
        const char *path, uint32_t round, struct mfl_change **ret_v, uint32_t *ret_n, struct mfl_error *err);
int mfl_changes_read(const char *path, const struct mfl_change *change, float *to, struct mfl_error *err);

#endif
