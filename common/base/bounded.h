/* SPDX-License-Identifier: Apache-2.0 */
/* An allocator with a bound, for parsers without one of their own: protobuf-c turns 10 MiB of empty messages into 440
 * MiB. Its functions fit ProtobufCAllocator, with a struct mfl_bounded as their data. One thread at a time.
 */
#ifndef MFL_COMMON_BASE_BOUNDED_H
#define MFL_COMMON_BASE_BOUNDED_H

#include "common/base/base.h"

struct mfl_bounded {
        uint64_t left;      /* bytes that may still be allocated at a time, each block's prefix included */
        bool spent;         /* something was refused because of the bound */
        bool out_of_memory; /* something was refused because there is no memory */
};

/* NULL when the bound is reached or memory is out. Aligned as malloc's results are. */
void *mfl_bounded_alloc(void *bounded, size_t size);
/* Frees the block and returns its size to the bound, which limits what exists at one time. With bounded NULL (the
 * bound is gone already) it only frees. p may be NULL. */
void mfl_bounded_free(void *bounded, void *p);
/* The size that the block was requested with. */
size_t mfl_bounded_size(const void *p);

#endif
