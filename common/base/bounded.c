/* SPDX-License-Identifier: Apache-2.0 */
/* An allocator with a bound. */
#include "common/base/bounded.h"

/* Before each block: its size. Aligned as malloc's results are. */
struct prefix {
        _Alignas(max_align_t) size_t size;
};

void *mfl_bounded_alloc(void *bounded, size_t size)
{
        struct mfl_bounded *b = bounded;
        if (size > b->left || b->left - size < sizeof(struct prefix)) {
                b->spent = true;
                return NULL;
        }
        struct prefix *p = mfl_malloc(sizeof *p + size);
        if (!p) {
                b->out_of_memory = true;
                return NULL;
        }
        b->left -= sizeof *p + size;
        p->size = size;
        return p + 1;
}

void mfl_bounded_free(void *bounded, void *p)
{
        struct mfl_bounded *b = bounded;
        struct prefix *prefix = p ? (struct prefix *)p - 1 : NULL;
        if (b && prefix)
                b->left += sizeof *prefix + prefix->size;
        free(prefix);
}

size_t mfl_bounded_size(const void *p)
{
        return ((const struct prefix *)p - 1)->size;
}
