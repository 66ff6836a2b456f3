/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of rows and of the schema. See store_sums.h. */
#include "server/store/store_sums.h"

#include <stdio.h>

#include "server/store/store.h"

#define SQL_BYTES 4096
#define SCHEMA_SUM                                                                                           \
        "(SELECT row_sum(group_concat(type || ' ' || name || ' ' || tbl_name || ' ' || coalesce(sql, ''), "  \
        "char(10))) FROM (SELECT * FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%' "                   \
        "ORDER BY type, name))"

/* key: identifies a row for people; match: selects the row of a trigger. */
static const struct table {
        const char *name, *key, *match;
        bool decides;
} tables[] = {
        {"meta", "key", "key = NEW.key", true},
        {"jobs", "coalesce(id, n)", "n = NEW.n", true},
        {"rounds", "job || ', round ' || round", "job = NEW.job AND round = NEW.round", true},
        {"tokens", "operator || ', ' || token", "operator = NEW.operator AND token = NEW.token", true},
        {"deleted", "job", "job = NEW.job", true},
        {"drained", "daemon", "daemon = NEW.daemon", true},
        {"daemon_rules", "pattern", "pattern = NEW.pattern AND verdict = NEW.verdict", true},
        {"job_partitions", "job || ' ' || daemon", "job = NEW.job AND daemon = NEW.daemon", false},
        {"job_contracts", "job", "job = NEW.job", false},
        {"round_nodes", "job || ', round ' || round || ', node ' || node",
                "job = NEW.job AND round = NEW.round AND node = NEW.node", false},
        {"round_scores", "job || ', round ' || round", "job = NEW.job AND round = NEW.round", false},
        {"arrivals", "job || ', version ' || version", "job = NEW.job AND version = NEW.version", true},
        {"releases", "job || ', round ' || round",
                "job = NEW.job AND round = NEW.round AND digest = NEW.digest", true},
        {"spent", "data || ', ' || job", "data = NEW.data AND job = NEW.job", true},
        {"client_states", "job || ', client ' || client", "job = NEW.job AND client = NEW.client", false},
        {"model_names", "name", "name = NEW.name", true},
        {"model_versions", "name || '@' || version", "name = NEW.name AND version = NEW.version", true},
        {"model_aliases", "n", "n = NEW.n", true},
        {"inquiries", "n", "n = NEW.n", false},
        {"state_files", "job", "job = NEW.job", false},
        {"moves", "token", "token = NEW.token", true},
        {"audit", "n", "n = NEW.n", false},
        {"lines", "seq", "seq = NEW.seq", false},
};

/* All columns except the sum, separated by commas; "": there is no such table. */
struct columns {
        char text[1024];
};

static int on_column(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct columns *columns = user;
        size_t n = strlen(columns->text);
        if (strcmp(mfl_db_text(row, 0), "sum") != 0)
                snprintf(columns->text + n, sizeof columns->text - n, "%s%s", n ? ", " : "",
                        mfl_db_text(row, 0));
        return 0;
}

static int read_columns(
        struct mfl_db *db, const struct table *table, struct columns *ret_columns, struct mfl_error *err)
{
        struct columns columns = {""};
        int r = mfl_db_query(db, on_column, &columns, err,
                "SELECT name FROM pragma_table_info(?1) ORDER BY cid", "t", table->name);
        if (!r && strlen(columns.text) + 1 == sizeof columns.text)
                r = mfl_fail(err, -EIO, "the table %s has other columns", table->name);
        if (!r)
                *ret_columns = columns;
        return r;
}

static int watch_table(struct mfl_db *db, const struct table *table, struct mfl_error *err)
{
        struct columns columns;
        char sql[SQL_BYTES];
        int r = read_columns(db, table, &columns, err);
        if (r)
                return r;
        snprintf(sql, sizeof sql,
                "CREATE TEMP TRIGGER sum_new_%s AFTER INSERT ON main.%s BEGIN "
                "UPDATE %s SET sum = row_sum('%s', %s) WHERE %s; END; "
                "CREATE TEMP TRIGGER sum_%s AFTER UPDATE OF %s ON main.%s BEGIN "
                "UPDATE %s SET sum = row_sum('%s', %s) WHERE %s; END",
                table->name, table->name, table->name, table->name, columns.text, table->match, table->name,
                columns.text, table->name, table->name, table->name, columns.text, table->match);
        return mfl_db_exec(db, sql, err);
}

int mfl_store_sums_watch(struct mfl_db *db, struct mfl_error *err)
{
        int r = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(tables) && !r; i++)
                r = watch_table(db, &tables[i], err);
        return r;
}

int mfl_store_sums_seal_schema(struct mfl_db *db, struct mfl_error *err)
{
        return mfl_db_run(db, err,
                "INSERT OR REPLACE INTO meta (key, value) VALUES ('schema_sum', " SCHEMA_SUM ")", "");
}

int mfl_store_sums_seal(struct mfl_db *db, struct mfl_error *err)
{
        int r = mfl_store_sums_seal_schema(db, err);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(tables) && !r; i++) {
                struct columns columns;
                char sql[SQL_BYTES];
                r = read_columns(db, &tables[i], &columns, err);
                if (r)
                        break;
                snprintf(sql, sizeof sql, "UPDATE %s SET sum = row_sum('%s', %s)", tables[i].name,
                        tables[i].name, columns.text);
                r = mfl_db_exec(db, sql, err);
        }
        return r;
}

/* ---- comparison ---- */

struct finding {
        mfl_store_on_row *on_row;
        void *user;
        const struct table *table;
};

static int on_damaged(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct finding *finding = user;
        const struct mfl_store_damaged_row damaged = {
                finding->table->name, mfl_db_text(row, 0), finding->table->decides};
        return finding->on_row(finding->user, &damaged, err);
}

static int check_table(struct mfl_db *db, const struct table *table, mfl_store_on_row *on_row, void *user,
        struct mfl_error *err)
{
        struct finding finding = {on_row, user, table};
        struct columns columns;
        char sql[SQL_BYTES];
        int r = read_columns(db, table, &columns, err);
        if (r || !columns.text[0]) /* a table of an earlier schema; the schema's sum finds a missing one */
                return r;
        snprintf(sql, sizeof sql, "SELECT %s FROM %s WHERE sum IS NOT row_sum('%s', %s)", table->key,
                table->name, table->name, columns.text);
        return mfl_db_query(db, on_damaged, &finding, err, sql, "");
}

int mfl_store_sums_check(struct mfl_db *db, mfl_store_on_row *on_row, void *user, struct mfl_error *err)
{
        struct finding finding = {on_row, user, &(const struct table){"the schema", "", "", true}};
        int r = mfl_db_query(db, on_damaged, &finding, err,
                "SELECT '' WHERE " SCHEMA_SUM " IS NOT (SELECT value FROM meta WHERE key = 'schema_sum')",
                "");
        for (size_t i = 0; i < MFL_ARRAY_SIZE(tables) && !r; i++)
                r = check_table(db, &tables[i], on_row, user, err);
        return r;
}

static int on_one(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(bool *)user = true;
        return 0;
}

int mfl_store_sums_check_job(struct mfl_db *db, const char *id, struct mfl_error *err)
{
        struct columns columns;
        char sql[SQL_BYTES];
        bool damaged = false;
        int r = read_columns(db, &tables[1], &columns, err);
        if (r)
                return r;
        snprintf(sql, sizeof sql, "SELECT 1 FROM jobs WHERE id = ?1 AND sum IS NOT row_sum('jobs', %s)",
                columns.text);
        r = mfl_db_query(db, on_one, &damaged, err, sql, "t", id);
        return r || !damaged ? r
                             : mfl_fail(err, MFL_STORE_DAMAGED,
                                       "job %s: its row in the database is damaged: mfl-server --check-state "
                                       "tells more",
                                       id);
}

/* ---- repair ---- */

int mfl_store_sums_drop_damaged(struct mfl_db *db, struct mfl_error *err)
{
        int r = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(tables) && !r; i++) {
                struct columns columns;
                char sql[SQL_BYTES];
                const bool is_job = !strcmp(tables[i].name, "jobs");
                r = read_columns(db, &tables[i], &columns, err);
                if (r)
                        break;
                /* An unfinished job fails; a finished job keeps its models. */
                snprintf(sql, sizeof sql, "%s %s WHERE sum IS NOT row_sum('%s', %s)",
                        is_job ? "UPDATE jobs SET reason = 'its row in the database was damaged: its text "
                                 "may "
                                 "not be what was submitted', state = CASE WHEN state IN (3, 5) THEN state "
                                 "ELSE 4 END"
                               : "DELETE FROM",
                        is_job ? "" : tables[i].name, tables[i].name, columns.text);
                r = mfl_db_exec(db, sql, err);
        }
        return r;
}
