/* SPDX-License-Identifier: Apache-2.0 */
/* The single updates of a round in a memory-mapped file, for strategies that cannot work on sums (DESIGN
 * section 6). Row k holds one client's delta; a row's range is looked at for all clients at once, and its
 * pages are given back after that, so resident memory stays small whatever the file's size is. The file
 * (DIR/spill-JOB) is unlinked as soon as it is open: no crash leaves it behind.
 *
 * One thread at a time; range and release: any number beside each other. Errors: MFL_INVALID with both sizes when the file system is too small for the whole
 * file (its blocks are allocated at once, so that a full disk cannot kill the process later by SIGBUS);
 * MFL_STORE_FULL when it is large enough and has no room now; MFL_STORE_AGAIN; -errno.
 */
#ifndef MFL_SERVER_RUNTIME_SPILL_H
#define MFL_SERVER_RUNTIME_SPILL_H

#include "common/base/base.h"

struct mfl_spill;

int mfl_spill_new(const char *dir, const char *job, uint32_t rows_max, uint64_t n,
        struct mfl_spill **ret_spill, struct mfl_error *err);
void mfl_spill_free(struct mfl_spill *spill);
void mfl_spill_clear(struct mfl_spill *spill);
uint32_t mfl_spill_rows(const struct mfl_spill *spill);
/* Stores item's delta; a second time replaces the first. MFL_INVALID when all rows are taken. */
int mfl_spill_put(
        struct mfl_spill *spill, uint64_t item, uint64_t weight, const float *delta, struct mfl_error *err);
/* A row of zeros for item, which has none; valid as those of mfl_spill_range. MFL_INVALID when all rows are taken. */
int mfl_spill_zero(struct mfl_spill *spill, uint64_t item, float **ret_row, struct mfl_error *err);
/* Of row i, in the order of items. */
uint64_t mfl_spill_item(const struct mfl_spill *spill, uint32_t i);
uint64_t mfl_spill_weight(const struct mfl_spill *spill, uint32_t i);
/* All elements of row i, to be written. Valid as those of mfl_spill_range. */
float *mfl_spill_row(struct mfl_spill *spill, uint32_t i);
/* Takes row i out; those above it move down. */
void mfl_spill_drop(struct mfl_spill *spill, uint32_t i);
/* Pointers to elements [begin, ...) of each row, ordered by item: rows has room for mfl_spill_rows. Valid
 * until put, clear or free. */
void mfl_spill_range(struct mfl_spill *spill, uint64_t begin, const float **rows);
/* Gives back the pages of [begin, begin + count) of all rows (contents stay in the file). */
void mfl_spill_release(struct mfl_spill *spill, uint64_t begin, uint64_t count);
/* The same of these rows alone. */
void mfl_spill_release_rows(
        struct mfl_spill *spill, const uint32_t *rows, uint32_t n, uint64_t begin, uint64_t count);

#endif
