/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table from 64-bit keys to pointers. */
#include "server/state/core_map.h"

/* splitmix64's finisher (Steele, Lea, Flood 2014): task numbers and connections are consecutive. */
static uint32_t slot_of(const struct core_map *map, uint64_t key)
{
        key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
        key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
        return (uint32_t)(key ^ (key >> 31)) & (map->capacity - 1);
}

static uint32_t find(const struct core_map *map, uint64_t key)
{
        uint32_t i = slot_of(map, key);
        while (map->values[i] && map->keys[i] != key)
                i = (i + 1) & (map->capacity - 1);
        return i;
}

void *mfl_core_map_get(const struct core_map *map, uint64_t key)
{
        return map->capacity ? map->values[find(map, key)] : NULL;
}

static int grow(struct core_map *map)
{
        struct core_map bigger = {.capacity = map->capacity ? map->capacity * 2 : 16};
        bigger.keys = mfl_calloc(bigger.capacity, sizeof *bigger.keys);
        bigger.values = mfl_calloc(bigger.capacity, sizeof *bigger.values);
        if (!bigger.keys || !bigger.values) {
                mfl_core_map_deinit(&bigger);
                return -ENOMEM;
        }
        for (uint32_t i = 0; i < map->capacity; i++) {
                if (!map->values[i])
                        continue;
                uint32_t to = find(&bigger, map->keys[i]);
                bigger.keys[to] = map->keys[i];
                bigger.values[to] = map->values[i];
        }
        bigger.n = map->n;
        mfl_core_map_deinit(map);
        *map = bigger;
        return 0;
}

int mfl_core_map_put(struct core_map *map, uint64_t key, void *value)
{
        mfl_assert(value);
        if ((map->n + 1) * 4 > map->capacity * 3) {
                int r = grow(map);
                if (r)
                        return r;
        }
        uint32_t i = find(map, key);
        map->n += !map->values[i];
        map->keys[i] = key;
        map->values[i] = value;
        return 0;
}

/* Entries after the hole move back if their probe sequence passes over it (Knuth 6.4, algorithm R). */
void mfl_core_map_remove(struct core_map *map, uint64_t key)
{
        if (!map->capacity)
                return;
        uint32_t mask = map->capacity - 1, hole = find(map, key);
        if (!map->values[hole])
                return;
        map->n--;
        for (uint32_t i = (hole + 1) & mask; map->values[i]; i = (i + 1) & mask) {
                uint32_t home = slot_of(map, map->keys[i]);
                if (((i - home) & mask) < ((i - hole) & mask))
                        continue;
                map->keys[hole] = map->keys[i];
                map->values[hole] = map->values[i];
                hole = i;
        }
        map->values[hole] = NULL;
}

void mfl_core_map_deinit(struct core_map *map)
{
        free(map->keys);
        free(map->values);
        *map = (struct core_map){0};
}
