/* SPDX-License-Identifier: Apache-2.0 */
/* A mesh of processes of one host, over shared memory: each rank writes its own segment only, and reads the others'. */
#ifndef MFL_KERNELS_MESH_MESH_SHM_H
#define MFL_KERNELS_MESH_MESH_SHM_H

#include "kernels/mesh/mesh.h"

#define MFL_MESH_SHM_DIR "/dev/shm"
#define MFL_MESH_SHM_PREFIX "mfl-mesh-"
#define MFL_MESH_SHM_BYTES ((uint64_t)2 << 20)
#define MFL_MESH_SHM_BYTES_MIN ((uint64_t)64 << 10)
#define MFL_MESH_SHM_BYTES_MAX ((uint64_t)1 << 30)

struct mfl_mesh_shm_options {
        const char *
                dir; /* a directory in memory; NULL: MFL_MESH_SHM_DIR. The same at all ranks, like all below */
        const char *prefix; /* of the segments' names; NULL: MFL_MESH_SHM_PREFIX */
        uint64_t team;
        uint32_t epoch;
        uint32_t rank, n_ranks;
        uint64_t bytes;            /* of a segment's ring, in steps of 64 KiB; 0: MFL_MESH_SHM_BYTES */
        uint32_t deadline_ms;      /* for all ranks to appear */
        const atomic_bool *cancel; /* NULL: nobody cancels */
        uint32_t *accused; /* after MFL_MESH_BROKEN: as in struct mfl_mesh, like loss; NULL: not wanted */
        enum mfl_mesh_loss *loss;
};

/* Blocks until all ranks of (team, epoch) have opened their mesh, at most deadline_ms. Segments have names only until
 * then: of a mesh that is open nothing is left behind, however its processes end. What was left by processes that died
 * before, is removed by the next who opens one with that directory and prefix.
 *
 * A rank whose process dies breaks the mesh within some milliseconds; one that is stopped breaks it when the caller's
 * deadline is over, and finds it broken when it wakes. Both are named in the text. MFL_MESH_BROKEN: not all ranks came,
 * the text names those who did not, or it was cancelled. MFL_INVALID: the directory can't be used, has no room, or
 * another process is this rank already. Negative: memory, file handles. */
int mfl_mesh_shm_open(
        const struct mfl_mesh_shm_options *options, struct mfl_mesh **ret_mesh, struct mfl_error *err);

/* Memory of a rank: its own segment, with a ring of `ring_bytes` (0: MFL_MESH_SHM_BYTES). */
uint64_t mfl_mesh_shm_bytes(uint64_t ring_bytes);

#endif
