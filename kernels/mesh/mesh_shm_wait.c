/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a shared-memory mesh wait for each other, and how a mesh breaks.
 *
 * Waiting: some microseconds of polling, then a futex on the word of the rank that this one needs first, never longer
 * than LOOK_NS at a time, after which it looks whether that rank lives. A rank that changes its segment adds to its
 * word, and wakes those who say in theirs that they sleep on it. */
#include "kernels/mesh/mesh_shm_internal.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 5000000u

static void wake(_Atomic uint32_t *word)
{
        syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void mfl_mesh_shm_tell(struct mfl_mesh_shm *mesh)
{
        struct mfl_mesh_segment *own = mfl_mesh_shm_own(mesh);
        atomic_fetch_add(
                &own->word, 1); /* before the look at `asleep`; the sleeper does it the other way round */
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++)
                if (atomic_load(&mesh->peer[r].segment->asleep) == mesh->base.rank + 1) {
                        wake(&own->word);
                        return;
                }
}

void mfl_mesh_shm_break(struct mfl_mesh_shm *mesh, uint32_t accused, const char *reason)
{
        struct mfl_mesh_segment *own = mfl_mesh_shm_own(mesh);
        if (atomic_exchange(&own->breaking, 1))
                return;
        mfl_strcpy(own->reason, sizeof(own->reason), reason);
        own->accused = accused;
        own->loss = mesh->base.loss;
        atomic_store(&own->broken, 1);
        atomic_fetch_add(&own->word, 1);
        for (uint32_t r = 0; r < mesh->base.n_ranks;
                r++) /* they sleep on anybody's word, and look around then */
                wake(&mesh->peer[r].segment->word);
}

int mfl_mesh_shm_is_broken(struct mfl_mesh_shm *mesh, struct mfl_error *err)
{
        for (uint32_t i = 0; i < mesh->base.n_ranks; i++) {
                /* The own one first. */
                uint32_t r = (mesh->base.rank + i) % mesh->base.n_ranks;
                const struct mfl_mesh_segment *segment = mesh->peer[r].segment;
                if (!atomic_load(&segment->broken))
                        continue;
                char reason[MFL_MESH_SHM_REASON_BYTES];
                snprintf(reason, sizeof(reason), "%.*s", (int)sizeof(reason) - 1, segment->reason);
                mesh->base.accused = segment->accused;
                mesh->base.loss = (enum mfl_mesh_loss)MFL_MIN(segment->loss, MFL_MESH_LOSS_COUNT_ - 1u);
                mfl_mesh_shm_break(mesh, segment->accused, reason);
                return mfl_fail(err, MFL_MESH_BROKEN, "the team's mesh is broken: %s", reason);
        }
        return 0;
}

bool mfl_mesh_shm_reached(
        struct mfl_mesh_shm *mesh, uint32_t rank, const _Atomic uint64_t *counter, uint64_t count)
{
        if (atomic_load_explicit(counter, memory_order_acquire) >= count)
                return true;
        if (mesh->blocked)
                return false;
        /* Who has left has counted all that it did before. So: left, the word, and the counter again. */
        struct mfl_mesh_segment *theirs = mesh->peer[rank].segment;
        bool left = atomic_load(&theirs->left);
        uint32_t word = atomic_load(&theirs->word);
        if (atomic_load_explicit(counter, memory_order_acquire) >= count)
                return true;
        mesh->blocked = true;
        mesh->blocker_left = left;
        mesh->word = word;
        atomic_store(&mesh->blocker, rank + 1);
        return false;
}

void mfl_mesh_shm_sleep(struct mfl_mesh_shm *mesh, uint64_t wait_ns)
{
        uint32_t rank = atomic_load(&mesh->blocker) - 1;
        struct mfl_mesh_segment *own = mfl_mesh_shm_own(mesh), *theirs = mesh->peer[rank].segment;
        wait_ns = MFL_MIN(wait_ns, LOOK_NS);
        struct timespec time = {.tv_nsec = (long)wait_ns};
        atomic_store(&own->asleep, rank + 1);
        syscall(SYS_futex, &theirs->word, FUTEX_WAIT, mesh->word, &time, NULL, 0);
        atomic_store(&own->asleep, 0);
}

/* For whom all wait, who may not be the one for whom this rank waits: the least far of all. One that waits for another
 * is further than that one, since nothing else keeps a rank from going on. */
uint32_t mfl_mesh_shm_last(struct mfl_mesh_shm *mesh)
{
        uint64_t least = UINT64_MAX;
        uint32_t last = 0;
        for (uint32_t r = 0; r < mesh->base.n_ranks; r++) {
                const struct mfl_mesh_segment *theirs = mesh->peer[r].segment;
                uint64_t sum = atomic_load(&theirs->published) + atomic_load(&theirs->reduced) +
                               atomic_load(&theirs->done);
                if (r != mesh->base.rank && sum < least) {
                        least = sum;
                        last = r;
                }
        }
        return last;
}
