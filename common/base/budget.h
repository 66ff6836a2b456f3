/* SPDX-License-Identifier: Apache-2.0 */
/* A memory budget: large buffers are charged before they are allocated. So a program's memory is known at its start,
 * and what does not fit is refused with the sizes, before the kernel has to kill the process. Any thread.
 */
#ifndef MFL_COMMON_BASE_BUDGET_H
#define MFL_COMMON_BASE_BUDGET_H

#include "common/base/base.h"

#include <stdatomic.h>

struct mfl_budget {
        uint64_t limit_bytes;
        _Atomic uint64_t used_bytes;
};

/* limit_bytes 0: no limit, only counting. */
void mfl_budget_init(struct mfl_budget *budget, uint64_t limit_bytes);
/* MFL_BUSY when it doesn't fit: "memory: 1.2 GiB for params of job 7: only 0.3 GiB of 4.0 GiB are free". */
int mfl_budget_reserve(
        struct mfl_budget *budget, uint64_t bytes, const char *what, struct mfl_error *err) MFL_MUST_CHECK;
/* Releases what was reserved. Releasing more than that is a programmer's error. */
void mfl_budget_release(struct mfl_budget *budget, uint64_t bytes);
uint64_t mfl_budget_used(const struct mfl_budget *budget);

/* How many bytes of memory this process may use: the machine's, or the limit of its cgroup (v2 or v1) or of one above,
 * when that is lower. Negative when /proc cannot be read. */
int mfl_memory_total(uint64_t *ret_bytes, struct mfl_error *err);

/* The same below another root than "/", for tests: it reads ROOT/proc/meminfo, ROOT/proc/self/cgroup and
 * ROOT/sys/fs/cgroup. */
int mfl_memory_read(const char *root, uint64_t *ret_bytes, struct mfl_error *err);

/* "1.2 GiB" into text, which has room for 16 bytes; returns text. */
char *mfl_format_bytes(uint64_t bytes, char text[16]);

#endif
