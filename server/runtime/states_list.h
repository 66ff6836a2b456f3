/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of clients' states by client, and of places in their file. The owner frees v. Any thread; -ENOMEM. */
#ifndef MFL_SERVER_RUNTIME_STATES_LIST_H
#define MFL_SERVER_RUNTIME_STATES_LIST_H

#include "server/store/store.h"

struct mfl_states_list {
        uint32_t n, room;
        struct mfl_store_state *v;
};
struct mfl_states_places {
        uint32_t n, room, *v;
};

/* Room for one more, so that the next mfl_states_set can't fail. */
int mfl_states_reserve_one(struct mfl_states_list *list, struct mfl_error *err);
/* Adds the client's row, or replaces it. */
int mfl_states_set(struct mfl_states_list *list, const struct mfl_store_state *row, struct mfl_error *err);
/* NULL: none. Valid until the list changes. */
const struct mfl_store_state *mfl_states_get(const struct mfl_states_list *list, uint64_t client);
int mfl_states_add_place(struct mfl_states_places *places, uint32_t place, struct mfl_error *err);

#endif
