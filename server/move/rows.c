/* SPDX-License-Identifier: Apache-2.0 */
/* A job's rows as a file. See rows.h. */
#include "server/move/rows.h"

#include <stdio.h>

#include "common/base/fs.h"
#include "common/base/plain.h"
#include "server/store/store_internal.h"

#define MAGIC "mflrows1"
#define COLUMNS_MAX 64
#define BUFFER_BYTES (64u << 10)
#define FILE_MAX ((size_t)2 << 30)
#define TEXT_MAX ((size_t)1 << 20)

/* In the order of their references. key: the column with the job's number. Columns that the new database sets itself are not taken. */
static const struct table {
        const char *name, *key, *own;
} tables[] = {
        {"jobs", "id", " n token created_ms finished_ms archived_ms state reason "},
        {"rounds", "job", " "},
        {"round_nodes", "job", " "},
        {"round_scores", "job", " "},
        {"releases", "job", " "},
        {"spent", "job", " "},
        {"client_states", "job", " "},
        {"job_partitions", "job", " "},
        {"job_contracts", "job", " "},
        {"arrivals", "job", " "},
        {"lines", "job", " seq "},
};

static bool is_own(const struct table *table, const char *column)
{
        char word[96];
        snprintf(word, sizeof word, " %s ", column);
        return !strcmp(column, "sum") || strstr(table->own, word) != NULL;
}

/* ---- writing ---- */

struct writer {
        struct mfl_fs_file file;
        uint8_t buffer[BUFFER_BYTES];
        size_t n;
        const struct table *table;
        bool begun; /* the table's head is written */
};

static int flush(struct writer *w, struct mfl_error *err)
{
        int r = w->n ? mfl_fs_write(&w->file, w->buffer, w->n, err) : 0;
        w->n = 0;
        return r;
}

static int put(struct writer *w, const void *bytes, size_t n, struct mfl_error *err)
{
        if (w->n + n > sizeof w->buffer) {
                int r = flush(w, err);
                if (r || n > sizeof w->buffer)
                        return r ? r : mfl_fs_write(&w->file, bytes, n, err);
        }
        memcpy(w->buffer + w->n, bytes, n);
        w->n += n;
        return 0;
}

static int put_number(struct writer *w, uint64_t number, size_t bytes, struct mfl_error *err)
{
        uint8_t b[8];
        for (size_t i = 0; i < bytes; i++)
                b[i] = (uint8_t)(number >> 8 * i);
        return put(w, b, bytes, err);
}

static int put_name(struct writer *w, const char *name, struct mfl_error *err)
{
        int r = put_number(w, strlen(name), 2, err);
        return r ? r : put(w, name, strlen(name), err);
}

static int put_value(struct writer *w, const struct mfl_db_value *v, struct mfl_error *err)
{
        uint64_t bits = (uint64_t)v->integer;
        if (v->kind == MFL_DB_REAL)
                memcpy(&bits, &v->real, sizeof bits);
        int r = put_number(w, (uint64_t)v->kind, 1, err);
        if (r || v->kind == MFL_DB_NULL)
                return r;
        if (v->kind == MFL_DB_INT || v->kind == MFL_DB_REAL)
                return put_number(w, bits, 8, err);
        r = put_number(w, v->n, 4, err);
        return r ? r : put(w, v->n ? v->bytes : "", v->n, err);
}

static int put_head(struct writer *w, struct mfl_db_row *row, struct mfl_error *err)
{
        int n = mfl_db_columns(row);
        int r = put(w, "T", 1, err);
        if (!r)
                r = put_name(w, w->table->name, err);
        if (!r)
                r = put_number(w, (uint64_t)n, 2, err);
        for (int i = 0; i < n && !r; i++)
                r = put_name(w, mfl_db_column(row, i), err);
        return r;
}

static int on_row(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct writer *w = user;
        int r = w->begun ? 0 : put_head(w, row, err);
        w->begun = true;
        if (!r)
                r = put(w, "R", 1, err);
        for (int i = 0; i < mfl_db_columns(row) && !r; i++) {
                struct mfl_db_value v = mfl_db_value(row, i);
                r = put_value(w, &v, err);
        }
        return r;
}

static int write_tables(struct mfl_db *db, const char *id, struct writer *w, struct mfl_error *err)
{
        char sql[200];
        int r = put(w, MAGIC, 8, err);
        if (!r)
                r = put_number(w, (uint64_t)mfl_store_schema_newest(), 4, err);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(tables) && !r; i++) {
                w->table = &tables[i];
                w->begun = false;
                snprintf(sql, sizeof sql, "SELECT * FROM %s WHERE %s = ?1%s", tables[i].name, tables[i].key,
                        strcmp(tables[i].name, "lines") ? "" : " ORDER BY seq");
                r = mfl_db_query(db, on_row, w, err, sql, "t", id);
        }
        if (!r)
                r = put(w, "E", 1, err);
        return r ? r : flush(w, err);
}

int mfl_rows_write(struct mfl_db *db, const char *id, const char *path, struct mfl_error *err)
{
        struct writer *w = mfl_calloc(1, sizeof *w);
        if (!w)
                return mfl_fail_memory(err, sizeof *w, "a job's rows");
        int r = mfl_fs_begin(&w->file, path, err);
        if (!r)
                r = write_tables(db, id, w, err);
        if (!r)
                r = mfl_fs_commit(&w->file, err);
        mfl_fs_abort(&w->file);
        free(w);
        return r;
}

/* ---- reading ---- */

struct reader {
        struct mfl_db *db;
        const uint8_t *at, *end;
        const struct mfl_rows_new *new;
        const struct table *table;
        int n_columns, n_taken, key, owner;
        bool taken[COLUMNS_MAX];
        bool has_job;
        char known[2000]; /* " id name state ": the columns of the database's table */
        char sql[4000];
};

static int bad(struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID, "the job's rows: not what mfl-server writes");
}

static bool get_number(struct reader *in, size_t bytes, uint64_t *ret_number)
{
        *ret_number = 0;
        if ((size_t)(in->end - in->at) < bytes)
                return false;
        for (size_t i = 0; i < bytes; i++)
                *ret_number |= (uint64_t)in->at[i] << 8 * i;
        in->at += bytes;
        return true;
}

static bool get_name(struct reader *in, char ret_name[64])
{
        uint64_t n;
        if (!get_number(in, 2, &n) || n >= 64 || (size_t)(in->end - in->at) < n)
                return false;
        memcpy(ret_name, in->at, n);
        ret_name[n] = 0;
        in->at += n;
        return strspn(ret_name, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

/* What ends up on terminals and pages (common/base/plain.h). */
static bool is_text(const char *bytes, size_t n)
{
        MFL_CLEANUP_FREE char *text = n < TEXT_MAX ? mfl_malloc(n + 1) : NULL;
        uint32_t code;
        if (!text)
                return false;
        memcpy(text, bytes, n);
        text[n] = 0;
        return strlen(text) == n && !mfl_plain_find(text, true, &code);
}

static bool get_value(struct reader *in, struct mfl_db_value *ret_v)
{
        uint64_t kind, n;
        *ret_v = (struct mfl_db_value){.kind = MFL_DB_NULL};
        if (!get_number(in, 1, &kind) || kind >= MFL_DB_KINDS_)
                return false;
        ret_v->kind = (enum mfl_db_kind)kind;
        if (kind == MFL_DB_NULL)
                return true;
        if (kind == MFL_DB_INT || kind == MFL_DB_REAL) {
                if (!get_number(in, 8, &n))
                        return false;
                ret_v->integer = (int64_t)n;
                memcpy(&ret_v->real, &n, sizeof n);
                return true;
        }
        if (!get_number(in, 4, &n) || (size_t)(in->end - in->at) < n)
                return false;
        ret_v->bytes = in->at;
        ret_v->n = n;
        in->at += n;
        return kind != MFL_DB_TEXT || is_text(ret_v->bytes, n);
}

static int on_column(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct reader *in = user;
        size_t n = strlen(in->known);
        snprintf(in->known + n, sizeof in->known - n, "%s ", mfl_db_text(row, 0));
        return 0;
}

static int take_column(struct reader *in, int i, const char *name, struct mfl_error *err)
{
        char word[96];
        snprintf(word, sizeof word, " %s ", name);
        in->taken[i] = !is_own(in->table, name);
        if (!in->taken[i])
                return 0;
        if (!strstr(in->known, word))
                return mfl_fail(err, MFL_INVALID,
                        "the job's rows: table %s has a column %s, which this release "
                        "does not know",
                        in->table->name, name);
        size_t n = strlen(in->sql);
        snprintf(in->sql + n, sizeof in->sql - n, "%s%s", in->n_taken ? ", " : "", name);
        in->key = strcmp(name, in->table->key) ? in->key : i;
        in->owner = strcmp(name, "owner") ? in->owner : i;
        in->n_taken++;
        return 0;
}

/* What the database sets itself: columns and numbers of the values after the row's own. */
static const char *own_columns(const struct reader *in)
{
        return !strcmp(in->table->name, "jobs")    ? ", n, created_ms, finished_ms, state, reason"
               : !strcmp(in->table->name, "lines") ? ", seq"
                                                   : "";
}

static int read_table(struct reader *in, struct mfl_error *err)
{
        char name[64];
        uint64_t n;
        in->table = NULL;
        if (!get_name(in, name) || !get_number(in, 2, &n) || n > COLUMNS_MAX)
                return bad(err);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(tables); i++)
                if (!strcmp(tables[i].name, name))
                        in->table = &tables[i];
        if (!in->table)
                return mfl_fail(
                        err, MFL_INVALID, "the job's rows: this release does not know table %s", name);
        in->n_columns = (int)n;
        in->n_taken = 0;
        in->key = in->owner = -1;
        strcpy(in->known, " ");
        snprintf(in->sql, sizeof in->sql, "INSERT INTO %s (", in->table->name);
        int r = mfl_db_query(in->db, on_column, in, err, "SELECT name FROM pragma_table_info(?1)", "t", name);
        for (int i = 0; i < in->n_columns && !r; i++)
                r = get_name(in, name) ? take_column(in, i, name, err) : bad(err);
        if (!r && in->key < 0)
                r = bad(err);
        if (r)
                return r;
        size_t length = strlen(in->sql);
        length +=
                (size_t)snprintf(in->sql + length, sizeof in->sql - length, "%s) VALUES (", own_columns(in));
        int values = in->n_taken;
        for (const char *c = own_columns(in); (c = strchr(c, ',')); c++)
                values++;
        for (int i = 1; i <= values; i++)
                length += (size_t)snprintf(
                        in->sql + length, sizeof in->sql - length, "%s?%d", i > 1 ? ", " : "", i);
        snprintf(in->sql + length, sizeof in->sql - length, ")");
        return 0;
}

static int read_row(struct reader *in, struct mfl_error *err)
{
        struct mfl_db_value v[COLUMNS_MAX + 8], one;
        const struct mfl_rows_new *new = in->new;
        int n = 0;
        const bool is_job = in->table && !strcmp(in->table->name, "jobs");
        if (!in->table || (is_job && in->has_job) || (!is_job && !in->has_job))
                return bad(err);
        for (int i = 0; i < in->n_columns; i++) {
                if (!get_value(in, &one))
                        return bad(err);
                if (i == in->key)
                        one = (struct mfl_db_value){
                                .kind = MFL_DB_TEXT, .bytes = new->id, .n = strlen(new->id)};
                if (is_job && i == in->owner && *new->owner)
                        one = (struct mfl_db_value){
                                .kind = MFL_DB_TEXT, .bytes = new->owner, .n = strlen(new->owner)};
                if (in->taken[i])
                        v[n++] = one;
        }
        if (is_job) {
                v[n++] = (struct mfl_db_value){.kind = MFL_DB_INT, .integer = new->n};
                v[n++] = (struct mfl_db_value){.kind = MFL_DB_INT, .integer = new->now_ms};
                v[n++] = (struct mfl_db_value){.kind = MFL_DB_INT, .integer = 0};
                v[n++] = (struct mfl_db_value){.kind = MFL_DB_INT, .integer = new->state};
                v[n++] = (struct mfl_db_value){.kind = MFL_DB_TEXT, .n = 0};
                in->has_job = true;
        } else if (!strcmp(in->table->name, "lines")) {
                v[n++] = (struct mfl_db_value){.kind = MFL_DB_INT, .integer = (int64_t) new->line(new->user)};
        }
        int r = mfl_db_run_values(in->db, in->sql, v, n, err);
        return r == MFL_INVALID ? mfl_fail(err, r, "the job's rows: table %s does not take one of them",
                                          in->table->name)
                                : r;
}

static int read_all(struct reader *in, struct mfl_error *err)
{
        uint64_t schema, tag;
        if (in->end - in->at < 8 || memcmp(in->at, MAGIC, 8) != 0)
                return bad(err);
        in->at += 8;
        if (!get_number(in, 4, &schema))
                return bad(err);
        if (schema != (uint64_t)mfl_store_schema_newest())
                return mfl_fail(err, MFL_INVALID,
                        "the job comes from a server of another release (schema %llu, here %d): upgrade the "
                        "older "
                        "of the two",
                        (unsigned long long)schema, mfl_store_schema_newest());
        for (int r = 0; !r;) {
                if (!get_number(in, 1, &tag))
                        return bad(err);
                if (tag == 'E')
                        return in->at == in->end && in->has_job ? 0 : bad(err);
                r = tag == 'T' ? read_table(in, err) : tag == 'R' ? read_row(in, err) : bad(err);
                if (r)
                        return r;
        }
        return 0;
}

int mfl_rows_read(struct mfl_db *db, const char *path, const struct mfl_rows_new *new, struct mfl_error *err)
{
        char *bytes = NULL;
        size_t n;
        struct reader *in = mfl_calloc(1, sizeof *in);
        if (!in)
                return mfl_fail_memory(err, sizeof *in, "a job's rows");
        int r = mfl_fs_read(path, FILE_MAX, &bytes, &n, err);
        if (!r) {
                in->db = db;
                in->at = (const uint8_t *)bytes;
                in->end = in->at + n;
                in->new = new;
                r = read_all(in, err);
        }
        free(bytes);
        free(in);
        return r;
}
