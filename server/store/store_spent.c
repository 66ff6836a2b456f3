/* SPDX-License-Identifier: Apache-2.0 */
/* What jobs have released of each data set, also jobs that are deleted. */
#include "server/store/store_internal.h"

int mfl_store_spend(struct mfl_store *store, const struct mfl_store_spent *spent, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_db_run(store->db, err,
                "INSERT INTO spent (data, job, sigma, rate, releases) VALUES (?1, ?2, ?3, ?4, ?5) "
                "ON CONFLICT (data, job) DO UPDATE SET releases = max(releases, excluded.releases)",
                "ttddi", spent->data, spent->job, spent->sigma, spent->rate, (int64_t)spent->releases);
        return mfl_store_end(store, r, err);
}

static int on_spent(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_spents *list = user;
        if (list->n == list->room) {
                uint32_t room = list->room ? 2 * list->room : 16;
                struct mfl_store_spent *v = mfl_realloc(list->v, room * sizeof *v);
                if (!v)
                        return mfl_fail_memory(err, room * sizeof *v, "a ledger");
                list->v = v;
                list->room = room;
        }
        struct mfl_store_spent *spent = &list->v[list->n];
        bool fits = mfl_strcpy(spent->data, sizeof spent->data, mfl_db_text(row, 0)) &&
                    mfl_strcpy(spent->job, sizeof spent->job, mfl_db_text(row, 1));
        spent->sigma = mfl_db_double(row, 2);
        spent->rate = mfl_db_double(row, 3);
        spent->releases = (uint64_t)mfl_db_int(row, 4);
        if (!fits || !(spent->sigma > 0) || !(spent->rate > 0 && spent->rate <= 1) || !spent->releases)
                return mfl_fail(err, -EIO, "a row of spent privacy is not one");
        list->n++;
        return 0;
}

int mfl_store_spent_list(
        struct mfl_store *store, const char *data, struct mfl_store_spents *ret_list, struct mfl_error *err)
{
        struct mfl_store_spents list = {0};
        mfl_store_lock(store);
        int r = mfl_db_query(store->db, on_spent, &list, err,
                "SELECT data, job, sigma, rate, releases FROM spent WHERE data = ?1 OR ?1 = '' "
                "ORDER BY data, job",
                "t", data);
        mfl_store_unlock(store);
        if (r)
                free(list.v);
        else
                *ret_list = list;
        return r;
}

void mfl_store_spents_deinit(struct mfl_store_spents *list)
{
        free(list->v);
        *list = (struct mfl_store_spents){0};
}
