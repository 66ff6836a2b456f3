/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table from 64-bit keys to pointers: open addressing, linear probing, no tombstones. */
#ifndef MFL_SERVER_STATE_CORE_MAP_H
#define MFL_SERVER_STATE_CORE_MAP_H

#include "common/base/base.h"

struct core_map {
        uint64_t *keys;
        void **values; /* NULL: the place is free */
        uint32_t n, capacity;
};

void *mfl_core_map_get(const struct core_map *map, uint64_t key);      /* NULL: no such key */
int mfl_core_map_put(struct core_map *map, uint64_t key, void *value); /* replaces; -ENOMEM */
void mfl_core_map_remove(struct core_map *map, uint64_t key);
void mfl_core_map_deinit(struct core_map *map);

#endif
