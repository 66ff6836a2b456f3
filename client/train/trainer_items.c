/* SPDX-License-Identifier: Apache-2.0 */
/* Which items of a training have begun, and which were given back. Workers begin items in the run's order;
 * the server gets them back from the end of the task's order, down to the last item that has begun. Both are
 * in one number, so that neither waits for the other. */
#include "client/train/trainer_internal.h"

static uint32_t bound(uint64_t items)
{
        return (uint32_t)items;
}

static uint32_t n_returned(uint64_t items)
{
        return (uint32_t)(items >> 32);
}

uint32_t mfl_train_recall(struct mfl_train_control *control, uint32_t n_items, uint32_t keep)
{
        uint64_t seen = atomic_load(&control->items);
        for (;;) {
                uint32_t has = n_items - n_returned(seen), least = MFL_MAX(MFL_MAX(keep, bound(seen)), 1u);
                if (least >= has)
                        return has;
                uint64_t want = (uint64_t)(n_items - least) << 32 | bound(seen);
                if (atomic_compare_exchange_weak(&control->items, &seen, want))
                        return least;
        }
}

uint32_t mfl_trainer_items(const struct trainer_run *run)
{
        return run->request->task->n_items - n_returned(atomic_load(&run->request->control->items));
}

bool mfl_trainer_item_waits(const struct trainer_run *run)
{
        uint32_t next = atomic_load(&run->next);
        return next < run->clients.n && run->clients.v[next].item < mfl_trainer_items(run);
}

/* Not if it was given back. */
static bool begin(struct trainer_run *run, uint32_t item)
{
        _Atomic uint64_t *items = &run->request->control->items;
        uint64_t seen = atomic_load(items), want;
        do {
                if (item >= run->request->task->n_items - n_returned(seen))
                        return false;
                want = (seen & ~(uint64_t)UINT32_MAX) | MFL_MAX(bound(seen), item + 1);
        } while (!atomic_compare_exchange_weak(items, &seen, want));
        return true;
}

bool mfl_trainer_item_begin(struct trainer_run *run, uint32_t *ret_item)
{
        for (;;) {
                uint32_t next = atomic_fetch_add(&run->next, 1);
                if (next >= run->clients.n)
                        return false;
                if (begin(run, run->clients.v[next].item)) {
                        *ret_item = run->clients.v[next].item;
                        return true;
                }
        }
}
