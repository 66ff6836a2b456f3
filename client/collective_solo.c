/* SPDX-License-Identifier: Apache-2.0 */
/* The collective of a daemon alone: its own update is the node's sum. */
#include "client/collective.h"

#include <stdatomic.h>

struct solo {
        struct mfl_collective base;
        atomic_bool aborted;
};

static int solo_open(const struct mfl_collective_options *options, struct mfl_collective **ret_collective,
        struct mfl_error *err)
{
        if (options->n_ranks != 1 || options->rank != 0)
                return mfl_fail(err, MFL_INVALID, "collective solo: %u members, but it is for one alone",
                        options->n_ranks);
        struct solo *solo = mfl_calloc(1, sizeof(*solo));
        if (!solo)
                return mfl_fail_memory(err, sizeof(*solo), "a collective");
        solo->base.ops = &mfl_collective_solo;
        solo->base.n_ranks = 1;
        *ret_collective = &solo->base;
        return 0;
}

static int solo_add(struct mfl_collective *collective, struct mfl_collective_update *update, bool *ret_root,
        struct mfl_error *err)
{
        struct solo *solo = MFL_CONTAINER_OF(collective, struct solo, base);
        if (atomic_load(&solo->aborted))
                return mfl_fail(err, MFL_COLLECTIVE_BROKEN, "collective solo: aborted");
        *ret_root = true;
        return 0;
}

static void solo_abort(struct mfl_collective *collective)
{
        struct solo *solo = MFL_CONTAINER_OF(collective, struct solo, base);
        atomic_store(&solo->aborted, true);
}

static void solo_close(struct mfl_collective *collective)
{
        if (collective)
                free(MFL_CONTAINER_OF(collective, struct solo, base));
}

const struct mfl_collective_ops mfl_collective_solo = {
        .name = "solo",
        .open = solo_open,
        .add = solo_add,
        .abort = solo_abort,
        .close = solo_close,
};
