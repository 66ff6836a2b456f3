/* SPDX-License-Identifier: Apache-2.0 */
/* An allocator with a bound, for parsers that have none of their own: protobuf-c makes 440 MiB of 10 MiB of
 * empty messages. Its functions are what ProtobufCAllocator wants, with a struct mfl_bounded as their data.
 * One thread at a time.
 */
#ifndef MFL_COMMON_BOUNDED_H
#define MFL_COMMON_BOUNDED_H

#include "common/base.h"

struct mfl_bounded {
        uint64_t left;      /* bytes that may still be allocated at a time, each block's prefix included */
        bool spent;         /* something was refused because of the bound */
        bool out_of_memory; /* something was refused because there is no memory */
};

/* NULL where the bound or the memory ends. Aligned as malloc's results are. */
void *mfl_bounded_alloc(void *bounded, size_t size);
/* Gives back what it took: the bound is on what is there at a time. Without a bound (NULL), when that is gone
 * already, it only frees. p may be NULL. */
void mfl_bounded_free(void *bounded, void *p);
/* The size that a block was asked for with. */
size_t mfl_bounded_size(const void *p);

#endif
