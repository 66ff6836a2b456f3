/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for a link's params: shared with the node if there is a share, otherwise private. */
#include "client/link/link_internal.h"

static int new_private(uint64_t bytes, struct link_store *store, struct mfl_error *err)
{
        store->data = mfl_alloc_aligned(bytes);
        return store->data ? 0 : mfl_fail_memory(err, bytes, "params");
}

int mfl_link_store_new(struct mfl_link *link, uint64_t n, struct link_store *ret_store,
        struct mfl_error *ret_no_room, struct mfl_error *err)
{
        struct mfl_budget *budget = link->options.budget;
        struct link_store store = {.n = n, .budget = budget};
        uint64_t bytes = n * sizeof(float);
        int r = budget ? mfl_budget_reserve(budget, bytes, "params", err) : 0;
        if (r)
                return r;
        r = MFL_INVALID;
        if (link->options.share && bytes)
                r = mfl_share_buffer_new(link->options.share, bytes, &store.buffer, ret_no_room);
        if (!r)
                store.data = mfl_share_buffer_data(store.buffer);
        else
                r = new_private(bytes, &store, err);
        if (r) {
                if (budget)
                        mfl_budget_release(budget, bytes);
                return r;
        }
        *ret_store = store;
        return 0;
}

void mfl_link_store_free(struct link_store *store)
{
        if (store->budget)
                mfl_budget_release(store->budget, store->n * sizeof(float));
        if (store->view)
                mfl_share_view_close(store->view);
        else if (store->buffer)
                mfl_share_buffer_free(store->buffer);
        else
                free(store->data);
        *store = (struct link_store){0};
}

bool mfl_link_store_reuse(struct link_store *store, uint64_t n)
{
        if (!store->data || store->n != n || store->view)
                return false;
        if (!store->buffer)
                return true;
        mfl_share_withdraw(store->buffer);
        return mfl_share_idle(store->buffer);
}
