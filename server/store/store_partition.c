/* SPDX-License-Identifier: Apache-2.0 */
/* What daemons report of the data of jobs: how they are divided over the clients, and what the model's input is. */
#include "server/store/store_internal.h"

int mfl_store_partition_put(struct mfl_store *store, const char *id, const char *daemon, const void *body,
        size_t bytes, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_store_check_job(store, id, err);
        if (!r && !*daemon)
                r = mfl_db_run(store->db, err,
                        "INSERT OR REPLACE INTO job_partitions (job, daemon, body) VALUES (?1, ?2, ?3)",
                        "ttb", id, daemon, body, bytes);
        else if (!r)
                r = mfl_db_run(store->db, err,
                        "INSERT OR REPLACE INTO job_partitions (job, daemon, body) SELECT ?1, ?2, ?3 "
                        "WHERE (SELECT count(*) FROM job_partitions WHERE job = ?1 AND daemon <> ?2) < ?4",
                        "ttbi", id, daemon, body, bytes, (int64_t)MFL_STORE_SITES_MAX);
        return mfl_store_end(store, r, err);
}

static int on_partition(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_partitions *list = user;
        /* Rows come one by one, thousands at most; the room doubles at powers of two. */
        if (!(list->n & (list->n - 1))) {
                void *v = mfl_realloc(list->v, (list->n ? 2 * (size_t)list->n : 1) * sizeof *list->v);
                if (!v)
                        return mfl_fail_memory(err, list->n * sizeof *list->v, "a job's partition");
                list->v = v;
        }
        struct mfl_store_partition *p = &list->v[list->n];
        *p = (struct mfl_store_partition){.bytes = mfl_db_bytes(row, 1)};
        mfl_strcpy(p->daemon, sizeof p->daemon, mfl_db_text(row, 0));
        p->body = mfl_malloc(p->bytes);
        if (!p->body)
                return mfl_fail_memory(err, p->bytes, "a job's partition");
        mfl_db_blob(row, 1, p->body, p->bytes);
        list->n++;
        return 0;
}

int mfl_store_partition_list(struct mfl_store *store, const char *id,
        struct mfl_store_partitions *ret_partitions, struct mfl_error *err)
{
        struct mfl_store_partitions list = {0};
        mfl_store_lock(store);
        int r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_query(store->db, on_partition, &list, err,
                        "SELECT daemon, body FROM job_partitions WHERE job = ?1 ORDER BY daemon", "t", id);
        mfl_store_unlock(store);
        if (r)
                mfl_store_partitions_deinit(&list);
        else
                *ret_partitions = list;
        return r;
}

void mfl_store_partitions_deinit(struct mfl_store_partitions *partitions)
{
        for (uint32_t i = 0; i < partitions->n; i++)
                free(partitions->v[i].body);
        free(partitions->v);
        *partitions = (struct mfl_store_partitions){0};
}

/* ---- contracts ---- */

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
