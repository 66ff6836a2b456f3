/* SPDX-License-Identifier: Apache-2.0 */
/* Rows in the order of a number. */
#include <stdlib.h>

#include "server/robust/rule.h"

static int compare(const void *a, const void *b)
{
        const struct mfl_ranked *x = a, *y = b;
        if (x->key != y->key)
                return x->key < y->key ? -1 : 1;
        return (x->row > y->row) - (x->row < y->row);
}

void mfl_rank(struct mfl_ranked *v, uint32_t n)
{
        qsort(v, n, sizeof *v, compare);
}

double mfl_ranked_median(const struct mfl_ranked *v, uint32_t n)
{
        return n % 2 ? v[n / 2].key : (v[n / 2 - 1].key + v[n / 2].key) / 2;
}
