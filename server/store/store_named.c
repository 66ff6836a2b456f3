/* SPDX-License-Identifier: Apache-2.0 */
/* What the rows of a database say about the state directory: numbers, and the files that must exist. */
#include "server/store/store_backup.h"

#include <stdio.h>
#include <unistd.h>

#include "server/store/store_internal.h"

static int on_number(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

static int on_software(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_summary *summary = user;
        mfl_strcpy(summary->software, sizeof summary->software, mfl_db_text(row, 0));
        return 0;
}

/* Names become paths, and the database may be damaged. */
static bool is_plain(const char *name)
{
        return *name && *name != '.' && !strchr(name, '/');
}

static int on_named(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_inventory *inventory = user;
        struct mfl_store_named named = {.round = (uint32_t)mfl_db_int(row, 1), .fd = -1};
        bool fits = mfl_strcpy(named.job, sizeof named.job, mfl_db_text(row, 0)) &&
                    mfl_strcpy(named.file.name, sizeof named.file.name, mfl_db_text(row, 2));
        if (!fits || !is_plain(named.job) || !is_plain(named.file.name))
                return mfl_fail(err, -EIO, "a row names the file \"%.60s\" of job \"%.30s\"",
                        mfl_db_text(row, 2), mfl_db_text(row, 0));
        named.file.bytes = (uint64_t)mfl_db_int(row, 3);
        mfl_db_blob(row, 4, named.file.sha256, sizeof named.file.sha256);
        named.digest_unknown = !mfl_db_bytes(row, 4);
        if (inventory->n == inventory->room) {
                uint32_t room = inventory->room ? 2 * inventory->room : 16;
                struct mfl_store_named *grown = mfl_realloc(inventory->v, room * sizeof *grown);
                if (!grown)
                        return mfl_fail_memory(err, room * sizeof *grown, "the list of files");
                inventory->v = grown;
                inventory->room = room;
        }
        inventory->v[inventory->n++] = named;
        return 0;
}

void mfl_store_inventory_deinit(struct mfl_store_inventory *inventory)
{
        for (uint32_t i = 0; i < inventory->n; i++)
                if (inventory->v[i].fd >= 0)
                        close(inventory->v[i].fd);
        free(inventory->v);
        *inventory = (struct mfl_store_inventory){0};
}

static int read_schema(
        struct mfl_db *db, const char *state_dir, struct mfl_store_summary *summary, struct mfl_error *err)
{
        int64_t version = 0;
        int r = mfl_db_query(db, on_number, &version, err, "PRAGMA user_version", "");
        if (r)
                return r;
        mfl_strcpy(summary->software, sizeof summary->software, "an unknown version");
        if (version > 0)
                r = mfl_db_query(
                        db, on_software, summary, err, "SELECT value FROM meta WHERE key = 'software'", "");
        if (r)
                return r;
        if (version > mfl_store_schema_newest())
                return mfl_fail(err, MFL_STORE_NEWER,
                        "state directory %s has schema %lld, written by %s; this is mfl-server %s, which "
                        "knows up to %d: use the newer one",
                        state_dir, (long long)version, summary->software, MFL_VERSION,
                        mfl_store_schema_newest());
        if (version < 1)
                return mfl_fail(err, -EIO, "database %s/mfl.db: schema %lld, expected 1 to %d", state_dir,
                        (long long)version, mfl_store_schema_newest());
        summary->schema = (uint32_t)version;
        return 0;
}

#define NAMED_BY_ROUNDS                                                                                      \
        "SELECT job, round, file, file_bytes, file_sha256 FROM rounds WHERE kept = 1 AND superseded = 0 "    \
        "UNION ALL SELECT id, 0, 'initial.f32', 4 * n_params, "

static int read_rows(struct mfl_db *db, struct mfl_store_inventory *inventory,
        struct mfl_store_summary *summary, struct mfl_error *err)
{
        int64_t jobs = 0, unfinished = 0, rounds = 0;
        int r = mfl_db_query(db, on_number, &jobs, err, "SELECT count(*) FROM jobs", "");
        if (!r)
                r = mfl_db_query(db, on_number, &unfinished, err,
                        "SELECT count(*) FROM jobs WHERE state IN (?1, ?2)", "ii", (int64_t)MFL_JOB_WAITING,
                        (int64_t)MFL_JOB_RUNNING);
        if (!r)
                r = mfl_db_query(
                        db, on_number, &rounds, err, "SELECT count(*) FROM rounds WHERE superseded = 0", "");
        if (!r)
                r = mfl_db_query(db, on_named, inventory, err,
                        summary->schema < MFL_STORE_SCHEMA_SUMS
                                ? NAMED_BY_ROUNDS "NULL FROM jobs WHERE has_initial ORDER BY 1, 2"
                                : NAMED_BY_ROUNDS "initial_sha256 FROM jobs WHERE has_initial ORDER BY 1, 2",
                        "");
        if (!r && summary->schema >= MFL_STORE_SCHEMA_FROZEN) /* once, for the newest round that names it */
                r = mfl_db_query(db, on_named, inventory, err,
                        "SELECT job, max(round), frozen_file, frozen_bytes, frozen_sha256 FROM rounds WHERE "
                        "kept = 1 AND superseded = 0 AND frozen_file <> '' GROUP BY job, frozen_file",
                        "");
        summary->jobs = (uint64_t)jobs;
        summary->jobs_unfinished = (uint64_t)unfinished;
        summary->rounds = (uint64_t)rounds;
        return r;
}

int mfl_store_inventory_read(struct mfl_db *db, const char *state_dir,
        struct mfl_store_inventory *ret_inventory, struct mfl_store_summary *ret_summary,
        struct mfl_error *err)
{
        struct mfl_store_inventory inventory = {0};
        struct mfl_store_summary summary = {0};
        int r = read_schema(db, state_dir, &summary, err);
        if (!r)
                r = read_rows(db, &inventory, &summary, err);
        if (r) {
                mfl_store_inventory_deinit(&inventory);
                return r == -EIO ? MFL_STORE_DAMAGED : r;
        }
        *ret_inventory = inventory;
        *ret_summary = summary;
        return 0;
}

const char *mfl_store_named_path(
        const char *state_dir, const struct mfl_store_named *named, char buf[MFL_STORE_PATH_BYTES])
{
        snprintf(buf, MFL_STORE_PATH_BYTES, "%.3900s/jobs/%s/%s", state_dir, named->job, named->file.name);
        return buf;
}

const char *mfl_store_named_fault(
        const struct mfl_store_named *named, uint64_t bytes, const uint8_t sha256[32])
{
        if (!named->round) { /* its size is known once the job has been prepared */
                if (!bytes || bytes % 4 || (named->file.bytes && bytes != named->file.bytes))
                        return "its size does not fit the model";
                return named->digest_unknown || !memcmp(sha256, named->file.sha256, 32)
                               ? NULL
                               : "its SHA-256 differs from the submitted params";
        }
        if (bytes != named->file.bytes)
                return "its size differs from the committed one";
        return memcmp(sha256, named->file.sha256, 32) ? "its SHA-256 is not the one that was committed"
                                                      : NULL;
}
