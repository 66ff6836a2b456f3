/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a task's clients are trained, and the number of lanes: chosen so that lanes end
 * together, and no lane only waits; and whether those of another task will do. Pure. */
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

/* What the job says is kept; what is chosen here is chosen for this task. */
uint32_t mfl_trainer_lanes(
        const struct trainer_job *job, const struct trainer_clients *clients, uint32_t workers, uint32_t most)
{
        return job->spec->training.fuse ? most : mfl_trainer_balance(clients, workers, most);
}

/* A network made for a task of few clients is too narrow for many, and one that was balanced for its task may
 * be too narrow for another: it is made anew with all lanes that pay, so that this happens once. */
bool mfl_trainer_outgrown(struct trainer_job *job, const struct trainer_clients *clients, uint32_t workers)
{
        const struct trainer_slot *slot = &job->slots[0];
        uint32_t wanted = (clients->n + workers - 1) / workers;
        if (!slot->train)
                return false;
        if (slot->n_fit == slot->n_wanted && wanted > slot->n_wanted)
                return true;
        uint32_t most = MFL_MIN(slot->n_fit, MFL_MAX(wanted, 1u));
        if (slot->n_lanes >= slot->n_fit || mfl_trainer_lanes(job, clients, workers, most) <= slot->n_lanes)
                return false;
        job->wide = true;
        return true;
}
