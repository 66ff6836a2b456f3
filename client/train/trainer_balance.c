/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a task's clients are trained, and the number of lanes: chosen so that lanes end
 * together, and no lane only waits. Pure. */
#include "client/train/trainer_internal.h"

#define SIMULATED_MAX ((uint64_t)1 << 22) /* clients times lanes: about 10 ms */

static int longer_first(const void *a, const void *b)
{
        const struct trainer_client *x = a, *y = b;
        if (x->steps != y->steps)
                return x->steps > y->steps ? -1 : 1;
        return x->item < y->item ? -1 : x->item > y->item;
}

void mfl_trainer_clients_sort(struct trainer_clients *clients)
{
        qsort(clients->v, clients->n, sizeof(*clients->v), longer_first);
}

/* The step at which the last client ends with this many lanes. end: room for `lanes`. */
static uint64_t makespan(const struct trainer_clients *clients, uint64_t lanes, uint64_t *end)
{
        uint64_t last = 0;
        memset(end, 0, lanes * sizeof(*end));
        for (uint32_t i = 0; i < clients->n; i++) {
                uint64_t first = 0;
                for (uint64_t k = 1; k < lanes; k++)
                        first = end[k] < end[first] ? k : first;
                end[first] += clients->v[i].steps;
                last = MFL_MAX(last, end[first]);
        }
        return last;
}

uint32_t mfl_trainer_balance(const struct trainer_clients *clients, uint32_t workers, uint32_t most)
{
        uint64_t lanes = (uint64_t)workers * most, total = 0;
        if (most <= 1 || clients->n * lanes > SIMULATED_MAX)
                return most;
        MFL_CLEANUP_FREE uint64_t *end = mfl_malloc(lanes * sizeof(*end));
        if (!end) /* all lanes are as fast, though not as cheap */
                return most;
        for (uint32_t i = 0; i < clients->n; i++)
                total += clients->v[i].steps;
        uint64_t best = makespan(clients, lanes, end);
        if (!best)
                return 1;
        /* Fewer lanes can't hold all steps in that time. */
        uint64_t each = (uint64_t)workers * best, n = MFL_MAX((total + each - 1) / each, 1);
        while (n < most && makespan(clients, workers * n, end) > best)
                n++;
        return (uint32_t)n;
}
