/* SPDX-License-Identifier: Apache-2.0 */
/* The contracts of jobs' inputs. */
#include "server/store/store_internal.h"

int mfl_store_contract_put(struct mfl_store *store, const char *id, const char *text, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "INSERT OR REPLACE INTO job_contracts (job, body) VALUES (?1, ?2)", "tt", id, text);
        return mfl_store_end(store, r, err);
}

static int on_contract(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        char **text = user;
        *text = mfl_strdup(mfl_db_text(row, 0));
        return *text ? 0 : mfl_fail_memory(err, strlen(mfl_db_text(row, 0)), "a contract");
}

int mfl_store_contract_get(struct mfl_store *store, const char *id, char **ret_text, struct mfl_error *err)
{
        char *text = NULL;
        mfl_store_lock(store);
        int r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_query(store->db, on_contract, &text, err,
                        "SELECT body FROM job_contracts WHERE job = ?1", "t", id);
        mfl_store_unlock(store);
        if (!r)
                *ret_text = text;
        return r;
}
