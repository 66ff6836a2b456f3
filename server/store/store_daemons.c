/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemons are drained. */
#include "server/store/store_internal.h"

int mfl_store_drain(struct mfl_store *store, const char *daemon, bool on, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_db_run(store->db, err,
                on ? "INSERT OR IGNORE INTO drained (daemon) VALUES (?1)"
                   : "DELETE FROM drained WHERE daemon = ?1",
                "t", daemon);
        return mfl_store_end(store, r, err);
}

static int on_name(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_names *names = user;
        void *v = mfl_realloc(names->v, (names->n + 1) * sizeof *names->v);
        if (!v)
                return mfl_fail_memory(err, (names->n + 1) * sizeof *names->v, "names of daemons");
        names->v = v;
        mfl_strcpy(names->v[names->n++], MFL_NAME_BYTES, mfl_db_text(row, 0));
        return 0;
}

int mfl_store_drained(struct mfl_store *store, struct mfl_store_names *ret_names, struct mfl_error *err)
{
        struct mfl_store_names names = {0};
        mfl_store_lock(store);
        int r = mfl_db_query(
                store->db, on_name, &names, err, "SELECT daemon FROM drained ORDER BY daemon", "");
        mfl_store_unlock(store);
        if (r)
                mfl_store_names_deinit(&names);
        else
                *ret_names = names;
        return r;
}

void mfl_store_names_deinit(struct mfl_store_names *names)
{
        free(names->v);
        *names = (struct mfl_store_names){0};
}
