/* SPDX-License-Identifier: Apache-2.0 */
/* Writes rounds as CSV or JSON lines. */
#include "cli/pull/export.h"

static void put_text(FILE *out, const char *s)
{
        if (!s[strcspn(s, ",\"\r\n")]) {
                fputs(s, out);
                return;
        }
        fputc('"', out);
        for (; *s; s++) {
                if (*s == '"')
                        fputc('"', out);
                fputc(*s, out);
        }
        fputc('"', out);
}

static void put_members(FILE *out, const json_t *object)
{
        const char *name, *blank = "";
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)object, name, value)
        {
                fprintf(out, "%s%s=", blank, name);
                if (!json_is_null(value))
                        json_dumpf(value, out, JSON_ENCODE_ANY);
                blank = " ";
        }
}

static void put_value(FILE *out, const json_t *value)
{
        if (json_is_string(value))
                put_text(out, json_string_value(value));
        else if (json_is_real(value))
                fputs(mfl_double_text(json_real_value(value), (char[MFL_DOUBLE_BYTES]){0}), out);
        else if (json_is_array(value)) /* of numbers, with blanks between them */
                for (size_t i = 0; i < json_array_size(value); i++) {
                        if (i)
                                fputc(' ', out);
                        json_dumpf(json_array_get(value, i), out, JSON_ENCODE_ANY);
                }
        else if (json_is_object(value)) /* "f-beta=0.83 kappa=0.7" */
                put_members(out, value);
        else if (value && !json_is_null(value))
                json_dumpf(value, out, JSON_ENCODE_ANY);
}

/* The columns are the keys of mfl_json_round, in its order. */
static void put_row(FILE *out, json_t *row, bool names)
{
        const char *name, *comma = "";
        json_t *value;
        json_object_foreach(row, name, value)
        {
                fputs(comma, out);
                comma = ",";
                if (names)
                        fputs(name, out);
                else
                        put_value(out, value);
        }
        fputs("\r\n", out);
}

static int check(struct mfl_rows *rows, struct mfl_error *err)
{
        if (rows->out == stdout)
                return mfl_cli_flush(err);
        return ferror(rows->out) ? mfl_fail_memory(err, rows->text_bytes, "the rounds of a job") : 0;
}

static int put_columns(struct mfl_rows *rows, struct mfl_error *err)
{
        static const Mfl__RoundInfo none = MFL__ROUND_INFO__INIT;
        json_t *row = mfl_json_round(&none);
        if (!row)
                return mfl_fail_memory(err, 0, "a round");
        put_row(rows->out, row, true);
        json_decref(row);
        return check(rows, err);
}

int mfl_rows_open(struct mfl_rows *rows, const char *path, bool csv, struct mfl_error *err)
{
        *rows = (struct mfl_rows){.csv = csv, .file = {.fd = -1}};
        if (!strcmp(path, "-")) {
                rows->out = stdout;
        } else {
                int r = mfl_fs_begin(&rows->file, path, err);
                if (r)
                        return r;
                rows->out = open_memstream(&rows->text, &rows->text_bytes);
                if (!rows->out) {
                        mfl_fs_abort(&rows->file);
                        return mfl_fail_memory(err, 0, "the rounds of a job");
                }
        }
        return csv ? put_columns(rows, err) : 0;
}

int mfl_rows_add(struct mfl_rows *rows, const Mfl__RoundInfo *round, struct mfl_error *err)
{
        json_t *row = mfl_json_round(round);
        if (!row)
                return mfl_fail_memory(err, 0, "a round");
        if (!rows->csv) {
                json_dumpf(row, rows->out, JSON_COMPACT);
                fputc('\n', rows->out);
        }
        if (rows->csv)
                put_row(rows->out, row, false);
        json_decref(row);
        return check(rows, err);
}

int mfl_rows_finish(struct mfl_rows *rows, struct mfl_error *err)
{
        int r = check(rows, err);
        if (r || rows->out == stdout)
                return r;
        int failed = fclose(rows->out);
        rows->out = NULL;
        r = failed ? mfl_fail_memory(err, rows->text_bytes, "the rounds of a job")
                   : mfl_fs_write(&rows->file, rows->text, rows->text_bytes, err);
        if (!r)
                return mfl_fs_commit(&rows->file, err);
        mfl_fs_abort(&rows->file);
        return r;
}

void mfl_rows_deinit(struct mfl_rows *rows)
{
        if (rows->out && rows->out != stdout) {
                fclose(rows->out);
                mfl_fs_abort(&rows->file);
        }
        rows->out = NULL;
        free(rows->text);
        rows->text = NULL;
}
