/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of models: versions, and aliases that remember where they pointed. */
#include "server/models/models.h"
#include "server/store/store_internal.h"

static int on_number(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

static int on_version(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_versions *list = user;
        struct mfl_store_version *grown = mfl_realloc(list->v, (list->n + 1) * sizeof *grown);
        if (!grown)
                return mfl_fail_memory(err, (list->n + 1) * sizeof *grown, "the versions of models");
        list->v = grown;
        struct mfl_store_version *v = &list->v[list->n++];
        *v = (struct mfl_store_version){.version = (uint32_t)mfl_db_int(row, 1),
                .round = (uint32_t)mfl_db_int(row, 3),
                .time_ms = (uint64_t)mfl_db_int(row, 6)};
        mfl_strcpy(v->name, sizeof v->name, mfl_db_text(row, 0));
        mfl_strcpy(v->job, sizeof v->job, mfl_db_text(row, 2));
        mfl_db_blob(row, 4, v->digest, sizeof v->digest);
        mfl_strcpy(v->who, sizeof v->who, mfl_db_text(row, 5));
        return 0;
}
#define VERSION_COLUMNS "name, version, job, round, digest, who, time_ms"

void mfl_store_versions_deinit(struct mfl_store_versions *versions)
{
        free(versions->v);
        *versions = (struct mfl_store_versions){0};
}

int mfl_store_version_list(struct mfl_store *store, const char *name, struct mfl_store_versions *ret_versions,
        struct mfl_error *err)
{
        struct mfl_store_versions list = {0};
        mfl_store_lock(store);
        int r = mfl_db_query(store->db, on_version, &list, err,
                "SELECT " VERSION_COLUMNS
                " FROM model_versions WHERE ?1 = '' OR name = ?1 ORDER BY name, version",
                "t", name);
        mfl_store_unlock(store);
        if (r)
                mfl_store_versions_deinit(&list);
        else
                *ret_versions = list;
        return r;
}

/* Within a transaction. */
static int add_version(struct mfl_store *store, const char *name, const struct mfl_store_round *round,
        const char *job, const char *who, uint32_t *ret_version, struct mfl_error *err)
{
        int64_t version = 0;
        int r = mfl_db_query(store->db, on_number, &version, err,
                "SELECT version FROM model_versions WHERE name = ?1 AND job = ?2 AND round = ?3", "tti", name,
                job, (int64_t)round->record.round);
        if (r)
                return r;
        if (version) {
                *ret_version = (uint32_t)version;
                return mfl_fail(err, MFL_EXISTS, "round %u of %s is %s@%u already", round->record.round, job,
                        name, (uint32_t)version);
        }
        r = mfl_db_query(store->db, on_number, &version, err, "SELECT last FROM model_names WHERE name = ?1",
                "t", name);
        version++;
        if (!r)
                r = mfl_db_run(store->db, err,
                        "INSERT OR REPLACE INTO model_names (name, last) VALUES (?1, ?2)", "ti", name,
                        version);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "INSERT INTO model_versions (" VERSION_COLUMNS
                        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                        "titibti", name, version, job, (int64_t)round->record.round,
                        (const void *)round->record.digest, (size_t)MFL_DIGEST_BYTES, who,
                        (int64_t)mfl_store_unix_ms());
        *ret_version = (uint32_t)version;
        return r;
}

/* The number of the round, and whether it is kept, are read again within the transaction: retention may have come between. */
int mfl_store_version_add(struct mfl_store *store, const char *name, const char *job, int64_t round,
        const char *who, uint32_t *ret_version, struct mfl_error *err)
{
        struct mfl_store_round row;
        int64_t kept = 0;
        int r = mfl_store_round_get(store, job, round, round < 0, &row, err);
        if (!r)
                r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_db_query(store->db, on_number, &kept, err,
                "SELECT count(*) FROM rounds WHERE job = ?1 AND round = ?2 AND kept = 1 AND superseded = 0",
                "ti", job, (int64_t)row.record.round);
        if (!r && !kept)
                r = mfl_fail(err, MFL_BUSY,
                        "%s: the model of round %u is no longer kept (checkpoints.keep); `mfl models %s` "
                        "lists those that are",
                        job, row.record.round, job);
        if (!r)
                r = add_version(store, name, &row, job, who, ret_version, err);
        return mfl_store_end(store, r, err);
}

static int check_version(struct mfl_store *store, const char *name, uint32_t version, struct mfl_error *err)
{
        int64_t n = 0;
        int r = mfl_db_query(store->db, on_number, &n, err,
                "SELECT count(*) FROM model_versions WHERE name = ?1 AND version = ?2", "ti", name,
                (int64_t)version);
        return !r && !n ? mfl_fail(err, MFL_NOT_FOUND, "there is no model %s@%u; `mfl model list` lists them",
                                  name, version)
                        : r;
}

/* Where aliases point: the newest row of each. */
#define POINTS "SELECT name, alias, version, max(n) FROM model_aliases"

static int on_alias(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_aliases *list = user;
        struct mfl_store_alias *grown = mfl_realloc(list->v, (list->n + 1) * sizeof *grown);
        if (!grown)
                return mfl_fail_memory(err, (list->n + 1) * sizeof *grown, "the aliases of models");
        list->v = grown;
        struct mfl_store_alias *a = &list->v[list->n++];
        mfl_strcpy(a->name, sizeof a->name, mfl_db_text(row, 0));
        mfl_strcpy(a->alias, sizeof a->alias, mfl_db_text(row, 1));
        a->version = (uint32_t)mfl_db_int(row, 2);
        return 0;
}

void mfl_store_aliases_deinit(struct mfl_store_aliases *aliases)
{
        free(aliases->v);
        *aliases = (struct mfl_store_aliases){0};
}

int mfl_store_alias_list(
        struct mfl_store *store, struct mfl_store_aliases *ret_aliases, struct mfl_error *err)
{
        struct mfl_store_aliases list = {0};
        mfl_store_lock(store);
        int r = mfl_db_query(
                store->db, on_alias, &list, err, POINTS " GROUP BY name, alias ORDER BY name, alias", "");
        mfl_store_unlock(store);
        if (r)
                mfl_store_aliases_deinit(&list);
        else
                *ret_aliases = list;
        return r;
}

/* Within a transaction; 0: there is no such alias. */
static int points_at(struct mfl_store *store, const char *name, const char *alias, uint32_t *ret_version,
        struct mfl_error *err)
{
        int64_t version = 0;
        int r = mfl_db_query(store->db, on_number, &version, err,
                "SELECT version FROM model_aliases WHERE name = ?1 AND alias = ?2 ORDER BY n DESC LIMIT 1",
                "tt", name, alias);
        *ret_version = (uint32_t)version;
        return r;
}

int mfl_store_version_remove(
        struct mfl_store *store, const char *name, uint32_t version, struct mfl_error *err)
{
        struct mfl_store_aliases list = {0};
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = check_version(store, name, version, err);
        if (!r)
                r = mfl_db_query(
                        store->db, on_alias, &list, err, POINTS " WHERE name = ?1 GROUP BY alias", "t", name);
        for (uint32_t i = 0; i < list.n && !r; i++)
                if (list.v[i].version == version)
                        r = mfl_fail(err, MFL_BUSY,
                                "%s@%s points at version %u: point it elsewhere, or remove the alias first",
                                name, list.v[i].alias, version);
        mfl_store_aliases_deinit(&list);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM model_aliases WHERE name = ?1 AND version = ?2",
                        "ti", name, (int64_t)version);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM model_versions WHERE name = ?1 AND version = ?2",
                        "ti", name, (int64_t)version);
        return mfl_store_end(store, r, err);
}

int mfl_store_alias_set(struct mfl_store *store, const char *name, const char *alias, uint32_t version,
        const char *who, struct mfl_error *err)
{
        uint32_t now = 0;
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = check_version(store, name, version, err);
        if (!r)
                r = points_at(store, name, alias, &now, err);
        if (!r && now != version)
                r = mfl_db_run(store->db, err,
                        "INSERT INTO model_aliases (name, alias, version, who, time_ms) VALUES (?1, ?2, ?3, "
                        "?4, ?5)",
                        "ttiti", name, alias, (int64_t)version, who, (int64_t)mfl_store_unix_ms());
        return mfl_store_end(store, r, err);
}

int mfl_store_alias_back(struct mfl_store *store, const char *name, const char *alias, uint32_t *ret_version,
        struct mfl_error *err)
{
        uint32_t now = 0, before = 0;
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = points_at(store, name, alias, &now, err);
        if (!r && !now)
                r = mfl_fail(err, MFL_NOT_FOUND, "there is no model %s@%s; `mfl model list` lists them", name,
                        alias);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "DELETE FROM model_aliases WHERE n = (SELECT max(n) FROM model_aliases WHERE name = "
                        "?1 AND alias = ?2)",
                        "tt", name, alias);
        if (!r)
                r = points_at(store, name, alias, &before, err);
        if (!r && !before)
                r = mfl_fail(err, MFL_NOT_FOUND,
                        "%s@%s has pointed at version %u only: there is nothing before it", name, alias, now);
        *ret_version = before;
        return mfl_store_end(store, r, err);
}

int mfl_store_alias_remove(
        struct mfl_store *store, const char *name, const char *alias, struct mfl_error *err)
{
        uint32_t now = 0;
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = points_at(store, name, alias, &now, err);
        if (!r && !now)
                r = mfl_fail(err, MFL_NOT_FOUND, "there is no model %s@%s; `mfl model list` lists them", name,
                        alias);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM model_aliases WHERE name = ?1 AND alias = ?2",
                        "tt", name, alias);
        return mfl_store_end(store, r, err);
}

/* ---- by text ---- */

static int find_version(struct mfl_store *store, const char *name, const char *which,
        struct mfl_store_versions *list, struct mfl_error *err)
{
        int64_t version = 0;
        bool number = which && *which && which[strspn(which, "0123456789")] == '\0';
        int r = 0;
        if (number)
                version = (int64_t)strtoul(which, NULL, 10);
        else if (which)
                r = mfl_db_query(store->db, on_number, &version, err,
                        "SELECT version FROM model_aliases WHERE name = ?1 AND alias = ?2 ORDER BY n DESC "
                        "LIMIT 1",
                        "tt", name, which);
        else
                r = mfl_db_query(store->db, on_number, &version, err,
                        "SELECT coalesce(max(version), 0) FROM model_versions WHERE name = ?1", "t", name);
        if (r)
                return r;
        return mfl_db_query(store->db, on_version, list, err,
                "SELECT " VERSION_COLUMNS " FROM model_versions WHERE name = ?1 AND version = ?2", "ti", name,
                version);
}

int mfl_store_version_find(struct mfl_store *store, const char *model, struct mfl_store_version *ret_version,
        struct mfl_error *err)
{
        struct mfl_store_versions list = {0};
        char name[2 * MFL_NAME_BYTES + 1];
        mfl_strcpy(name, sizeof name, model);
        char *at = strchr(name, '@');
        if (at)
                *at++ = '\0';
        mfl_store_lock(store);
        int r = find_version(store, name, at, &list, err);
        mfl_store_unlock(store);
        if (!r && !list.n)
                r = mfl_fail(
                        err, MFL_NOT_FOUND, "there is no model '%s'; `mfl model list` lists them", model);
        if (!r)
                *ret_version = list.v[0];
        mfl_store_versions_deinit(&list);
        return r;
}
