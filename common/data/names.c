/* SPDX-License-Identifier: Apache-2.0 */
/* Names of owners and classes: sorted, without duplicates, found by binary search. */
#include "common/data/sources.h"

static int compare_spans(const void *a, const void *b)
{
        const struct mfl_span *x = a, *y = b;
        int order = memcmp(x->s, y->s, MFL_MIN(x->n, y->n));
        return order ? order : (x->n > y->n) - (x->n < y->n);
}

int mfl_names_new(const struct mfl_span *texts, size_t n, char ***ret_names, uint32_t *ret_n_names,
        struct mfl_error *err)
{
        MFL_CLEANUP_FREE struct mfl_span *sorted = mfl_calloc(MFL_MAX(n, 1), sizeof *sorted);
        size_t n_names = 0, bytes = 0;
        if (!sorted)
                return mfl_fail_memory(err, n * sizeof *sorted, "names");
        if (n) {
                memcpy(sorted, texts, n * sizeof *sorted);
                qsort(sorted, n, sizeof *sorted, compare_spans);
        }
        for (size_t i = 0; i < n; i++) {
                if (n_names && !compare_spans(&sorted[n_names - 1], &sorted[i]))
                        continue;
                sorted[n_names++] = sorted[i];
                bytes += sorted[i].n + 1;
        }
        char **names = mfl_malloc(MFL_MAX(n_names * sizeof *names + bytes, 1));
        if (!names)
                return mfl_fail_memory(err, n_names * sizeof *names + bytes, "names");
        char *at = (char *)(names + n_names);
        for (size_t i = 0; i < n_names; i++) {
                names[i] = at;
                memcpy(at, sorted[i].s, sorted[i].n);
                at += sorted[i].n;
                *at++ = '\0';
        }
        *ret_names = names;
        *ret_n_names = (uint32_t)n_names;
        return 0;
}

uint32_t mfl_names_find(char *const *names, uint32_t n_names, struct mfl_span text)
{
        uint32_t low = 0, high = n_names;
        while (low < high) {
                uint32_t mid = low + (high - low) / 2;
                struct mfl_span name = {names[mid], strlen(names[mid])};
                int order = compare_spans(&text, &name);
                if (!order)
                        return mid;
                if (order < 0)
                        high = mid;
                else
                        low = mid + 1;
        }
        return UINT32_MAX;
}
