/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of clients' states by client, and of places in their file. */
#include "server/runtime/states_list.h"

/* Where the client is, or belongs. */
static uint32_t find(const struct mfl_states_list *list, uint64_t client, bool *ret_there)
{
        uint32_t low = 0, high = list->n;
        while (low < high) {
                uint32_t middle = low + (high - low) / 2;
                if (list->v[middle].client < client)
                        low = middle + 1;
                else
                        high = middle;
        }
        *ret_there = low < list->n && list->v[low].client == client;
        return low;
}

int mfl_states_reserve_one(struct mfl_states_list *list, struct mfl_error *err)
{
        uint32_t room = list->room ? 2 * list->room : 64;
        if (list->n < list->room)
                return 0;
        struct mfl_store_state *grown = mfl_realloc(list->v, room * sizeof *grown);
        if (!grown)
                return mfl_fail_memory(err, room * sizeof *grown, "clients' states");
        list->v = grown;
        list->room = room;
        return 0;
}

int mfl_states_set(struct mfl_states_list *list, const struct mfl_store_state *row, struct mfl_error *err)
{
        bool there;
        uint32_t i = find(list, row->client, &there);
        int r = there ? 0 : mfl_states_reserve_one(list, err);
        if (r)
                return r;
        if (!there) {
                memmove(list->v + i + 1, list->v + i, (list->n - i) * sizeof *list->v);
                list->n++;
        }
        list->v[i] = *row;
        return 0;
}

const struct mfl_store_state *mfl_states_get(const struct mfl_states_list *list, uint64_t client)
{
        bool there;
        uint32_t i = find(list, client, &there);
        return there ? &list->v[i] : NULL;
}

int mfl_states_add_place(struct mfl_states_places *places, uint32_t place, struct mfl_error *err)
{
        if (places->n == places->room) {
                uint32_t room = places->room ? 2 * places->room : 64;
                uint32_t *grown = mfl_realloc(places->v, room * sizeof *grown);
                if (!grown)
                        return mfl_fail_memory(err, room * sizeof *grown, "places of clients' states");
                places->v = grown;
                places->room = room;
        }
        places->v[places->n++] = place;
        return 0;
}
