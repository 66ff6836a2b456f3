/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of inquiries: rows that go only when there are too many. */
#include "server/models/models.h"
#include "server/store/store_internal.h"

int mfl_store_inquiry_add(struct mfl_store *store, const struct mfl_store_inquiry *inquiry, uint64_t *ret_n,
        struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_db_run(store->db, err,
                "INSERT INTO inquiries (kind, time_ms, digest, body) VALUES (?1, ?2, ?3, ?4)", "iibb",
                (int64_t)inquiry->kind, (int64_t)inquiry->time_ms, (const void *)inquiry->digest,
                inquiry->digest ? (size_t)MFL_DIGEST_BYTES : (size_t)0, (const void *)inquiry->body,
                inquiry->bytes);
        int64_t n = mfl_db_last_id(store->db);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "DELETE FROM inquiries WHERE kind = ?1 AND n <= (SELECT n FROM inquiries WHERE kind "
                        "= ?1 ORDER BY n DESC LIMIT 1 OFFSET ?2)",
                        "ii", (int64_t)inquiry->kind,
                        (int64_t)(inquiry->digest ? MFL_STORE_INQUIRIES_MAX : MFL_STORE_STATS_MAX));
        r = mfl_store_end(store, r, err);
        if (!r)
                *ret_n = (uint64_t)n;
        return r;
}

static int on_inquiry(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_inquiries *list = user;
        struct mfl_store_inquiry *grown = mfl_realloc(list->v, (list->n + 1) * sizeof *grown);
        if (!grown)
                return mfl_fail_memory(err, (list->n + 1) * sizeof *grown, "reports");
        list->v = grown;
        struct mfl_store_inquiry *q = &list->v[list->n];
        *q = (struct mfl_store_inquiry){.n = (uint64_t)mfl_db_int(row, 0),
                .kind = (uint32_t)mfl_db_int(row, 1),
                .time_ms = (uint64_t)mfl_db_int(row, 2),
                .bytes = mfl_db_bytes(row, 3)};
        q->body = mfl_malloc(q->bytes + 1);
        if (!q->body)
                return mfl_fail_memory(err, q->bytes, "a report");
        mfl_db_blob(row, 3, q->body, q->bytes);
        list->n++;
        return 0;
}

int mfl_store_inquiry_list(struct mfl_store *store, uint32_t kind, const uint8_t *digest, uint32_t limit,
        struct mfl_store_inquiries *ret_inquiries, struct mfl_error *err)
{
        struct mfl_store_inquiries list = {0};
        mfl_store_lock(store);
        int r = mfl_db_query(store->db, on_inquiry, &list, err,
                "SELECT n, kind, time_ms, body FROM inquiries WHERE (?1 = 0 OR kind = ?1) AND (?2 = 0 OR "
                "digest = ?3) ORDER BY n "
                "DESC LIMIT ?4",
                "iibi", (int64_t)kind, (int64_t)(digest != NULL), (const void *)digest,
                digest ? (size_t)MFL_DIGEST_BYTES : (size_t)0, (int64_t)limit);
        mfl_store_unlock(store);
        if (r)
                mfl_store_inquiries_deinit(&list);
        else
                *ret_inquiries = list;
        return r;
}

void mfl_store_inquiries_deinit(struct mfl_store_inquiries *inquiries)
{
        for (uint32_t i = 0; i < inquiries->n; i++)
                free(inquiries->v[i].body);
        free(inquiries->v);
        *inquiries = (struct mfl_store_inquiries){0};
}
