/* SPDX-License-Identifier: Apache-2.0 */
/* A moved job's rows: what must be true of each. See vet.h. */
#include "server/move/vet.h"

#include <math.h>
#include <stdio.h>

#include "common/measure/measure.h"
#include "common/model/graph.h"
#include "common/privacy/limits.h"

/* ?1: the job; ?2: its rounds; ?3: its data set; ?4, ?5: sigma and rate of its releases, 0: it makes none; ?6: its
 * name; ?7: the newest arithmetic. */
static const struct {
        const char *table, *condition;
} rules[] = {
        {"jobs", "name = ?6 AND arithmetic BETWEEN 1 AND ?7"},
        {"jobs", "has_initial = 0 OR (has_initial = 1 AND length(initial_sha256) = 32)"},
        {"jobs", "initial_sha256 IS NULL OR length(initial_sha256) = 32"},
        {"jobs", "length(data_name) < 64 AND data_name NOT GLOB '*[^ -~]*' AND data_name = trim(data_name)"},
        {"jobs", "length(data_from) < 64 AND data_from NOT GLOB '*[^ -~]*' AND data_from = trim(data_from)"},
        {"jobs", "length(CAST(owner AS BLOB)) < 64 AND length(CAST(text AS BLOB)) <= 262144"},
        {"jobs", "(data_name = '') = (data_rank = 0) AND data_rank BETWEEN 0 AND 4"},
        {"jobs", "coalesce(length(data_dims), 0) IN (0, 32) AND data_classes BETWEEN 0 AND 16777216"},
        {"jobs", "data_train BETWEEN 0 AND 4294967295 AND data_test BETWEEN 0 AND 4294967295"},
        {"jobs", "n_params BETWEEN 0 AND 17179869184 AND n_frozen BETWEEN 0 AND n_params"},
        {"jobs", "stop_after BETWEEN 0 AND 4294967295"},
        /* A private job brings what it has spent: it counts here, too. */
        {"jobs", "?4 = 0 OR (SELECT coalesce(max(releases), 0) FROM spent WHERE job = ?1) >= "
                 "max((SELECT count(*) FROM releases WHERE job = ?1), "
                 "(SELECT count(*) FROM rounds WHERE job = ?1 AND superseded = 0))"},
        {"rounds", "round BETWEEN 1 AND ?2 AND kept IN (0, 1) AND superseded IN (0, 1)"},
        {"rounds", "file = printf('round-%06d.safetensors', round) AND length(file_sha256) = 32"},
        {"rounds", "file_bytes >= 0 AND length(digest) = 32 AND length(CAST(choice AS BLOB)) < 384"},
        {"rounds", "frozen_file = '' OR (frozen_file = 'frozen.safetensors' AND length(frozen_sha256) = 32)"},
        {"round_nodes", "round BETWEEN 1 AND ?2 AND daemons BETWEEN 0 AND 4294967295"},
        {"round_nodes", "length(CAST(node AS BLOB)) BETWEEN 1 AND 127"},
        {"round_scores", "round BETWEEN 1 AND ?2"},
        {"releases", "round BETWEEN 1 AND ?2 AND length(digest) = 32 AND ?4 > 0"},
        {"spent", "data = ?3 AND sigma = ?4 AND rate = ?5 AND ?4 > 0 AND releases >= 1"},
        {"spent", "releases <= ?2 + (SELECT count(*) FROM releases WHERE job = ?1)"},
        {"client_states", "round BETWEEN 1 AND ?2 AND slot BETWEEN -1 AND 4294967294"},
        {"client_states", "crc BETWEEN 0 AND 4294967295"},
        {"client_states", "site_sha256 IS NULL OR length(site_sha256) = 32"},
        {"job_partitions", "length(daemon) < 64 AND daemon NOT GLOB '*[^ -~]*' AND daemon = trim(daemon)"},
        {"job_contracts", "length(CAST(body AS BLOB)) <= 524288"},
        {"arrivals", "version BETWEEN 1 AND ?2 AND length(body) % 12 = 0"},
        {"lines", "length(CAST(text AS BLOB)) <= 1024 AND time_ms >= 0"},
};

static const char *key_of(const char *table)
{
        return strcmp(table, "jobs") ? "job" : "id";
}

static int on_number(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

struct condition {
        char text[4000];
};

static int on_condition(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct condition *condition = user;
        return mfl_strcpy(condition->text, sizeof condition->text, mfl_db_text(row, 0))
                       ? 0
                       : mfl_fail(err, MFL_INVALID, "a table has too many columns");
}

static int refuse(const char *table, struct mfl_error *err)
{
        return mfl_fail(
                err, MFL_INVALID, "the job's rows: table %s has one that mfl-server does not write", table);
}

/* Every value has its column's type; numbers are finite. */
static int check_types(struct mfl_db *db, const char *id, const char *table, struct mfl_error *err)
{
        struct condition types = {""};
        char sql[sizeof types + 200];
        int64_t n = 0;
        int r = mfl_db_query(db, on_condition, &types, err,
                "SELECT group_concat('typeof(' || name || ') IN (''null'', ''' || lower(type) || ''')' || "
                "CASE "
                "type WHEN 'REAL' THEN ' AND coalesce(abs(' || name || '), 0) < 9e999' ELSE '' END, ' AND ') "
                "FROM pragma_table_info(?1)",
                "t", table);
        mfl_snprintf(sql, sizeof sql, "SELECT count(*) FROM %s WHERE %s = ?1 AND NOT (%s)", table,
                key_of(table), types.text);
        if (!r)
                r = mfl_db_query(db, on_number, &n, err, sql, "t", id);
        return r || !n ? r : refuse(table, err);
}

static int check_rule(
        struct mfl_db *db, const char *id, const struct mfl_job *spec, size_t i, struct mfl_error *err)
{
        const struct mfl_dp_rounds part = spec->privacy.kind
                                                  ? mfl_privacy_part(&spec->privacy, mfl_job_rate(spec), 1)
                                                  : (struct mfl_dp_rounds){0};
        char sql[600];
        int64_t n = 0;
        /* All values are named first, because one that is not would be an error. */
        mfl_snprintf(sql, sizeof sql,
                "WITH v AS (SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7) SELECT count(*) FROM %s WHERE %s = ?1 AND NOT "
                "coalesce((%s), 0)",
                rules[i].table, key_of(rules[i].table), rules[i].condition);
        int r = mfl_db_query(db, on_number, &n, err, sql, "titddti", id, (int64_t)spec->rounds,
                spec->data.name, part.sigma, part.rate, spec->name, (int64_t)MFL_ARITHMETIC_VERSION);
        return r || !n ? r : refuse(rules[i].table, err);
}

/* The shape of a sample, as daemons may report it (proto/wire_rules.c). */
static int on_shape(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        int64_t dim[MFL_SHAPE_RANK_MAX], count = 1;
        mfl_db_blob(row, 1, dim, sizeof dim);
        for (int64_t i = 0; i < mfl_db_int(row, 0); i++) {
                if (dim[i] < 1 || dim[i] > (1 << 28) || (count *= dim[i]) > (1 << 28))
                        return refuse("jobs", err);
        }
        return 0;
}

/* As server/store/store_rounds.c writes them: a head, and values, of which the known ones are finite. */
static int on_measures(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        double v[MFL_MEASURES];
        uint32_t known;
        const size_t head = (2 + MFL_SCORE_BINS) * sizeof known;
        const struct mfl_db_value blob = mfl_db_value(row, 0);
        const size_t n = blob.n < head ? SIZE_MAX : (blob.n - head) / sizeof *v;
        if (n > MFL_MEASURES || blob.n != head + n * sizeof *v)
                return refuse("rounds", err);
        memcpy(&known, blob.bytes, sizeof known);
        memcpy(v, (const char *)blob.bytes + head, n * sizeof *v);
        for (size_t i = 0; i < n; i++)
                if (known >> i & 1 && !isfinite(v[i]))
                        return refuse("rounds", err);
        return (uint64_t)known >> n ? refuse("rounds", err) : 0;
}

int mfl_rows_vet(struct mfl_db *db, const char *id, const struct mfl_job *spec, struct mfl_error *err)
{
        int r = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rules) && !r; i++) {
                if (!i || strcmp(rules[i - 1].table, rules[i].table))
                        r = check_types(db, id, rules[i].table, err);
                if (!r)
                        r = check_rule(db, id, spec, i, err);
        }
        if (!r)
                r = mfl_db_query(db, on_shape, NULL, err,
                        "SELECT data_rank, data_dims FROM jobs WHERE id = ?1", "t", id);
        if (!r)
                r = mfl_db_query(db, on_measures, NULL, err,
                        "SELECT measures FROM rounds WHERE job = ?1 AND measures NOT NULL", "t", id);
        return r;
}
