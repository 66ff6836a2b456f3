/* SPDX-License-Identifier: Apache-2.0 */
/* Writes rounds as CSV or JSON lines. */
#include "cli/pull/export.h"

/* In the order of mfl_json_round, which has the measures and the last two after these; a test compares the two. */
static const char *const own_columns[] = {"round", "accuracy", "loss", "train_loss", "train_accuracy",
        "samples", "clients", "clients_rejected", "weight", "bytes_up", "bytes_down", "seconds", "digest",
        "attempt", "daemons", "committed_unix_ms", "kept", "bytes_up_alone", "bytes_down_alone", "mean_iou",
        "virtual_start", "virtual_end", "clamped", "states_lost", "choice"};

static const char *const last_columns[] = {"clients_evaluated", "client_bins"};
#define N_OWN MFL_ARRAY_SIZE(own_columns)
#define N_COLUMNS (N_OWN + MFL_MEASURES + MFL_ARRAY_SIZE(last_columns))

static const char *column(size_t i)
{
        if (i < N_OWN)
                return own_columns[i];
        return i < N_OWN + MFL_MEASURES ? mfl_measure_infos[i - N_OWN].name
                                        : last_columns[i - N_OWN - MFL_MEASURES];
}

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
        else if (value && !json_is_null(value))
                json_dumpf(value, out, JSON_ENCODE_ANY);
}

static int check(struct mfl_rows *rows, struct mfl_error *err)
{
        if (rows->out == stdout)
                return mfl_cli_flush(err);
        return ferror(rows->out) ? mfl_fail_memory(err, rows->text_bytes, "the rounds of a job") : 0;
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
        for (size_t i = 0; csv && i < N_COLUMNS; i++)
                fprintf(rows->out, "%s%s", i ? "," : "", column(i));
        if (csv)
                fputs("\r\n", rows->out);
        return check(rows, err);
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
        for (size_t i = 0; rows->csv && i < N_COLUMNS; i++) {
                if (i)
                        fputc(',', rows->out);
                put_value(rows->out, json_object_get(row, column(i)));
        }
        if (rows->csv)
                fputs("\r\n", rows->out);
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
