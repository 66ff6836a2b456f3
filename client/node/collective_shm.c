/* SPDX-License-Identifier: Apache-2.0 */
/* The collective of daemons that share memory: the leader reads the others' sums and adds them to its own.
 *
 * - members other than the leader do nothing;
 * - the leader maps what every other member has published for the group (client/node/share.h);
 * - its threads add everything into the leader's memory, slice by slice (collective_shm_add.c).
 * Fails by: a member whose sum is missing or has the wrong size; cancelled; too late. All of these are
 * MFL_COLLECTIVE_BROKEN. A stopped member is no failure: its memory can still be read. */
#include "client/node/collective_shm_add.h"

#include <inttypes.h>

#include "client/node/collective.h"

struct shm {
        struct mfl_collective base;
        struct mfl_share *share;
        struct mfl_adder *adder;
        struct mfl_share_view *views[MFL_GROUP_MAX]; /* by rank; during combine */
};

static void close_views(struct shm *shm)
{
        for (uint32_t rank = 0; rank < MFL_GROUP_MAX; rank++) {
                mfl_share_view_close(shm->views[rank]);
                shm->views[rank] = NULL;
        }
}

static int open_view(struct shm *shm, const struct mfl_combine *combine, uint32_t rank, struct mfl_error *err)
{
        const struct mfl_group *group = combine->group;
        uint8_t key[MFL_SHARE_KEY_BYTES];
        struct mfl_error why = {""};
        mfl_collective_key(group->group, key);
        int r = mfl_share_view_open(
                shm->share, group->members[rank], key, combine->n * sizeof(int64_t), &shm->views[rank], &why);
        if (r < 0)
                return mfl_fail(err, r, "%s", why.text);
        if (r)
                return mfl_fail(
                        err, MFL_COLLECTIVE_BROKEN, "the sum of another daemon of the group: %s", why.text);
        return 0;
}

/* The order came from the server, and the limits of the protocol were checked; here is checked what must fit
 * together. */
static int check_order(const struct mfl_combine *combine, struct mfl_error *err)
{
        const struct mfl_group *group = combine->group;
        uint64_t members = group->n_members >= 64 ? UINT64_MAX : ((uint64_t)1 << group->n_members) - 1;
        mfl_assert(combine->own && combine->out && combine->control);
        if (group->n_members < 1 || group->n_members > MFL_GROUP_MAX || (combine->ranks & ~members) ||
                group->rank >= group->n_members || !(combine->ranks >> group->rank & 1))
                return mfl_fail(
                        err, MFL_COLLECTIVE_BROKEN, "the order to add a group's sums does not fit the group");
        if (combine->n < 1 || combine->n > INT64_MAX / sizeof(int64_t))
                return mfl_fail(
                        err, MFL_COLLECTIVE_BROKEN, "a group's sums have %" PRIu64 " elements", combine->n);
        return 0;
}

static int add(struct shm *shm, const struct mfl_combine *combine, uint64_t end_ms, struct mfl_error *err)
{
        const struct mfl_group *group = combine->group;
        struct mfl_addition addition = {.threads = group->workers,
                .n = combine->n,
                .out = combine->out,
                .end_ms = end_ms,
                .control = combine->control};
        for (uint32_t rank = 0; rank < group->n_members; rank++) {
                if (!(combine->ranks >> rank & 1))
                        continue;
                if (rank != group->rank) {
                        int r = open_view(shm, combine, rank, err);
                        if (r)
                                return r;
                }
                addition.in[addition.k++] =
                        rank == group->rank ? combine->own : mfl_share_view_data(shm->views[rank]);
        }
        switch (mfl_adder_run(shm->adder, &addition)) {
        case MFL_ADDER_DONE:
                return 0;
        case MFL_ADDER_CANCELLED:
                return mfl_fail(err, MFL_COLLECTIVE_BROKEN, "adding the group's sums was cancelled");
        case MFL_ADDER_LATE:
                break;
        }
        return mfl_fail(err, MFL_COLLECTIVE_BROKEN,
                "only %" PRIu64 " of %" PRIu64 " elements of the group's sum were added in %u ms",
                atomic_load(&combine->control->ready), combine->n, combine->deadline_ms);
}

static int shm_combine(
        struct mfl_collective *collective, const struct mfl_combine *combine, struct mfl_error *err)
{
        struct shm *shm = MFL_CONTAINER_OF(collective, struct shm, base);
        uint64_t end_ms = mfl_now_ms() + combine->deadline_ms;
        if (combine->group->rank != combine->leader)
                return 0;
        int r = check_order(combine, err);
        if (!r)
                r = add(shm, combine, end_ms, err);
        close_views(shm);
        return r;
}

static void shm_close(struct mfl_collective *collective)
{
        struct shm *shm = MFL_CONTAINER_OF(collective, struct shm, base);
        mfl_adder_free(shm->adder);
        free(shm);
}

static const struct mfl_collective_ops shm_ops = {
        .name = "shm",
        .kind = MFL_COLLECTIVE_SHM,
        .combine = shm_combine,
        .close = shm_close,
};

int mfl_collective_shm_new(struct mfl_share *share, uint32_t threads, struct mfl_collective **ret_collective,
        struct mfl_error *err)
{
        struct shm *shm = mfl_calloc(1, sizeof(*shm));
        if (!shm)
                return mfl_fail_memory(err, sizeof(*shm), "a collective");
        shm->base.ops = &shm_ops;
        shm->share = share;
        int r = mfl_adder_new(threads, &shm->adder, err);
        if (r) {
                free(shm);
                return r;
        }
        *ret_collective = &shm->base;
        return 0;
}
