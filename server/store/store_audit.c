/* SPDX-License-Identifier: Apache-2.0 */
/* Who changed what, or tried to: rows that go only when there are too many. */
#include "server/store/store_internal.h"

int mfl_store_audit_add(struct mfl_store *store, const struct mfl_store_audit *e, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_db_run(store->db, err,
                "INSERT INTO audit (time_ms, who, address, action, object, result, text) "
                "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                "itttttt", (int64_t)mfl_store_unix_ms(), e->who, e->address, e->action, e->object, e->result,
                e->text);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM audit WHERE n <= ?1", "i",
                        mfl_db_last_id(store->db) - MFL_STORE_AUDIT_MAX);
        return mfl_store_end(store, r, err);
}

/* Texts come from peers and may be cut anywhere: they must leave as UTF-8, without control characters. */
static void copy_clean(char *dst, size_t dst_bytes, const char *src)
{
        mfl_strcpy(dst, dst_bytes, src);
        for (char *c = dst; *c; c++)
                if ((uint8_t)*c < ' ' || (uint8_t)*c >= 0x7f)
                        *c = '?';
}

static int on_entry(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_audits *list = user;
        struct mfl_store_audit *e = &list->v[list->n++]; /* room for the requested number */
        e->seq = (uint64_t)mfl_db_int(row, 0);
        e->time_ms = (uint64_t)mfl_db_int(row, 1);
        copy_clean(e->who, sizeof e->who, mfl_db_text(row, 2));
        copy_clean(e->address, sizeof e->address, mfl_db_text(row, 3));
        copy_clean(e->action, sizeof e->action, mfl_db_text(row, 4));
        copy_clean(e->object, sizeof e->object, mfl_db_text(row, 5));
        copy_clean(e->result, sizeof e->result, mfl_db_text(row, 6));
        copy_clean(e->text, sizeof e->text, mfl_db_text(row, 7));
        return 0;
}

int mfl_store_audit_list(
        struct mfl_store *store, uint32_t limit, struct mfl_store_audits *ret_audits, struct mfl_error *err)
{
        struct mfl_store_audits list = {.v = mfl_calloc(limit, sizeof *list.v)};
        if (!list.v)
                return mfl_fail_memory(err, limit * sizeof *list.v, "the audit");
        mfl_store_lock(store);
        int r = mfl_db_query(store->db, on_entry, &list, err,
                "SELECT * FROM (SELECT n, time_ms, who, address, action, object, result, text FROM audit "
                "ORDER BY n DESC LIMIT ?1) ORDER BY n",
                "i", (int64_t)limit);
        mfl_store_unlock(store);
        if (r)
                free(list.v);
        else
                *ret_audits = list;
        return r;
}
