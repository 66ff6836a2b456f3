/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ranks of a mesh have together, as far as they are of one host: all of them read and write the same pages. */
#ifndef MFL_KERNELS_MESH_MESH_MEMORY_H
#define MFL_KERNELS_MESH_MESH_MEMORY_H

#include "kernels/mesh/mesh.h"

struct mfl_mesh_memory;

struct mfl_mesh_memory_options {
        struct mfl_mesh *mesh;
        /* A directory in memory, and a number that only ranks have who see that directory: they share. 0: this rank has
         * memory of its own. */
        const char *dir; /* NULL: MFL_MESH_SHM_DIR */
        uint64_t place;
        const char *prefix; /* of the file's name; NULL: MFL_MESH_SHM_PREFIX */
        uint64_t bytes;     /* the same at all ranks; not 0 */
        uint32_t deadline_ms;
        const atomic_bool *cancel; /* NULL: nobody cancels */
};

/* By all ranks of the mesh at the same time, between other operations. What the memory holds is not known: who it is of says who
 * fills it. The first rank of each place makes the file, locked as long as its process lives, and takes the name away when all have
 * mapped it: nothing is left behind, except by processes that die meanwhile, whose files mfl_mesh_shm_open removes.
 * MFL_INVALID: a rank has no room, or can't see the memory; the mesh is still whole. MFL_MESH_BROKEN; negative: no memory. */
int mfl_mesh_memory_open(const struct mfl_mesh_memory_options *options, struct mfl_mesh_memory **ret_memory,
        struct mfl_error *err);
/* The same of one rank's own, without others. */
int mfl_mesh_memory_new(uint64_t bytes, struct mfl_mesh_memory **ret_memory, struct mfl_error *err);
/* Others keep what they have mapped. NULL is fine. */
void mfl_mesh_memory_close(struct mfl_mesh_memory *memory);

void *mfl_mesh_memory_data(const struct mfl_mesh_memory *memory); /* on a page, or on a cache line */
/* How many ranks have it, and the first of them. */
uint32_t mfl_mesh_memory_ranks(const struct mfl_mesh_memory *memory, uint32_t *ret_first);
/* The most ranks that have any one of the mesh's memories: 1: nobody shares. */
uint32_t mfl_mesh_memory_most(const struct mfl_mesh_memory *memory);

#endif
