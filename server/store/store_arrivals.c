/* SPDX-License-Identifier: Apache-2.0 */
/* What a job takes over from another one: rounds with a checkpoint, or the record of arrivals; that record; and what keeps the other one: a
 * version of a model that is one of its rounds (server/models/models.h), or a move to another server (server/move/move.h).
 *
 * An asynchronous job in real time has a row for each version: which updates made it, in the order in which they came. Numbers are
 * little-endian: 8 bytes of the client, 4 of the version that it started from. */
#include <string.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "common/cohort/calendar.h"
#include "server/store/store_internal.h"

#define ARRIVAL_BYTES 12u

static void put_number(uint8_t *to, uint64_t x, int bytes)
{
        for (int i = 0; i < bytes; i++)
                to[i] = (uint8_t)(x >> 8 * i);
}

static uint64_t get_number(const uint8_t *from, int bytes)
{
        uint64_t x = 0;
        for (int i = 0; i < bytes; i++)
                x |= (uint64_t)from[i] << 8 * i;
        return x;
}

int mfl_store_arrivals_put(struct mfl_store *store, const char *id, uint32_t version,
        const struct mfl_arrival *v, uint32_t n, struct mfl_error *err)
{
        MFL_CLEANUP_FREE uint8_t *body = mfl_malloc((size_t)n * ARRIVAL_BYTES);
        if (!body)
                return mfl_fail_memory(err, (size_t)n * ARRIVAL_BYTES, "a record of arrivals");
        for (uint32_t i = 0; i < n; i++) {
                put_number(body + (size_t)i * ARRIVAL_BYTES, v[i].client, 8);
                put_number(body + (size_t)i * ARRIVAL_BYTES + 8, v[i].base, 4);
        }
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "INSERT OR REPLACE INTO arrivals (job, version, body) VALUES (?1, ?2, ?3)", "tib", id,
                        (int64_t)version, (const void *)body, (size_t)n * ARRIVAL_BYTES);
        return mfl_store_end(store, r, err);
}

struct reader {
        struct mfl_arrival *v;
        uint32_t n;
};

static int on_version(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct reader *reader = user;
        size_t bytes = mfl_db_bytes(row, 1);
        uint32_t n = (uint32_t)(bytes / ARRIVAL_BYTES), version = (uint32_t)mfl_db_int(row, 0);
        MFL_CLEANUP_FREE uint8_t *body = mfl_malloc(MFL_MAX(bytes, (size_t)1));
        struct mfl_arrival *v = mfl_realloc(reader->v, MFL_MAX(reader->n + n, 1u) * sizeof *v);
        if (v)
                reader->v = v;
        if (!body || !v)
                return mfl_fail_memory(err, bytes, "a record of arrivals");
        mfl_db_blob(row, 1, body, bytes);
        for (uint32_t i = 0; i < n; i++) {
                const uint8_t *from = body + (size_t)i * ARRIVAL_BYTES;
                reader->v[reader->n++] = (struct mfl_arrival){.client = get_number(from, 8),
                        .version = version,
                        .base = (uint32_t)get_number(from + 8, 4)};
        }
        return 0;
}

int mfl_store_arrivals_get(struct mfl_store *store, const char *id, uint32_t after,
        struct mfl_arrival **ret_v, uint32_t *ret_n, struct mfl_error *err)
{
        struct reader reader = {0};
        mfl_store_lock(store);
        int r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_query(store->db, on_version, &reader, err,
                        "SELECT version, body FROM arrivals WHERE job = ?1 AND version > ?2 ORDER BY version",
                        "ti", id, (int64_t)after);
        mfl_store_unlock(store);
        if (r) {
                free(reader.v);
                return r;
        }
        *ret_v = reader.v;
        *ret_n = reader.n;
        return 0;
}

int mfl_store_replay(
        struct mfl_store *store, const char *from, const char *to, uint32_t rounds, struct mfl_error *err)
{
        int r = mfl_db_run(store->db, err,
                "INSERT INTO arrivals (job, version, body) SELECT ?1, version, body FROM arrivals WHERE job "
                "= "
                "?2 AND version <= ?3",
                "tti", to, from, (int64_t)rounds);
        return r ? r
                 : mfl_db_run(store->db, err, "UPDATE jobs SET stop_after = ?1 WHERE id = ?2", "it",
                           (int64_t)rounds, to);
}

/* ---- a job that begins where another one was ---- */

static int link_file(struct mfl_store *store, const char *from, const char *to,
        const struct mfl_store_file *file, struct mfl_error *err)
{
        char old_path[MFL_STORE_PATH_BYTES], new_path[MFL_STORE_PATH_BYTES];
        if (!*file->name)
                return 0;
        mfl_store_path(store, from, file->name, old_path);
        mfl_store_path(store, to, file->name, new_path);
        unlink(new_path);
        if (link(old_path, new_path))
                return mfl_store_code(mfl_fail_errno(err, "link %s to %s", old_path, new_path));
        return mfl_store_give(store, new_path, file->sha256, file->bytes, err);
}

int mfl_store_rewind(struct mfl_store *store, const char *from, const char *to,
        const struct mfl_store_round *at, struct mfl_error *err)
{
        char folder[MFL_STORE_PATH_BYTES];
        int r = mfl_db_run(store->db, err,
                "INSERT INTO rounds (job, " MFL_STORE_ROUND_COLUMNS ") SELECT ?1, " MFL_STORE_ROUND_COLUMNS
                " FROM rounds WHERE job = ?2 AND round <= ?3 AND superseded = 0",
                "tti", to, from, (int64_t)at->record.round);
        if (!r)
                r = mfl_db_run(store->db, err, "UPDATE rounds SET kept = (round = ?2) WHERE job = ?1", "ti",
                        to, (int64_t)at->record.round);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "UPDATE jobs SET (data_name, data_rank, data_dims, data_classes, data_train, "
                        "data_test, data_fingerprint, data_meaning, data_from, n_params, n_frozen, "
                        "arithmetic) = (SELECT data_name, data_rank, data_dims, data_classes, data_train, "
                        "data_test, data_fingerprint, data_meaning, data_from, n_params, n_frozen, "
                        "arithmetic FROM jobs WHERE id = ?2) WHERE id = ?1",
                        "tt", to, from);
        if (!r)
                r = link_file(store, from, to, &at->file, err);
        if (!r)
                r = link_file(store, from, to, &at->frozen, err);
        return r ? r : mfl_store_code(mfl_fs_sync_dir(mfl_store_path(store, to, "", folder), err));
}

/* ---- what keeps a job that has ended ---- */

static int on_registered(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        return mfl_fail(err, MFL_BUSY, "job %s has the registered model %s@%lld: remove that version first",
                (const char *)user, mfl_db_text(row, 0), (long long)mfl_db_int(row, 1));
}

static int check_unregistered(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        return mfl_db_query(store->db, on_registered, (void *)(uintptr_t)id, err,
                "SELECT name, version FROM model_versions WHERE job = ?1 ORDER BY name, version LIMIT 1", "t",
                id);
}

static int on_moving(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        const char *id = user, *to = mfl_db_text(row, 0);
        return mfl_fail(err, MFL_BUSY,
                "job %s is on its way to %s: finish that first (mfl move %s --to %s, or the same with "
                "--back)",
                id, to, id, to);
}

static int check_stays(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        return mfl_db_query(store->db, on_moving, (void *)(uintptr_t)id, err,
                "SELECT peer FROM moves WHERE job = ?1 AND outward = 1 AND there = ''", "t", id);
}

int mfl_store_check_removable(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        int r = check_unregistered(store, id, err);
        return r ? r : check_stays(store, id, err);
}
