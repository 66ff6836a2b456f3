/* SPDX-License-Identifier: Apache-2.0 */
/* Tables for people, made in memory. */
#include "cli/base/table.h"

#include <stdarg.h>
#include <stdio.h>

#include "cli/base/display.h"

#define GAP 2
#define INDENT 4
#define REMARK_COLUMNS_MIN 30

static struct mfl_table_row *new_row(struct mfl_table *table)
{
        if (!table->failed && table->n_rows == table->rows_room) {
                size_t room = table->rows_room ? 2 * table->rows_room : 16;
                struct mfl_table_row *rows = mfl_realloc(table->rows, room * sizeof *rows);
                table->failed = !rows;
                if (rows) {
                        table->rows = rows;
                        table->rows_room = room;
                }
        }
        if (table->failed)
                return NULL;
        struct mfl_table_row *row = &table->rows[table->n_rows++];
        *row = (struct mfl_table_row){.remarks = NULL};
        return row;
}

void mfl_table_add(struct mfl_table *table, const char *const *cells)
{
        mfl_assert(table->n_columns <= MFL_TABLE_COLUMNS_MAX);
        struct mfl_table_row *row = new_row(table);
        for (int c = 0; row && c < table->n_columns; c++) {
                if (!cells[c])
                        continue;
                row->cell[c] = mfl_strdup(cells[c]);
                table->failed = table->failed || !row->cell[c];
        }
}

void mfl_table_remark(struct mfl_table *table, const char *fmt, ...)
{
        char text[1024];
        va_list args;
        va_start(args, fmt);
        vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        if (table->failed)
                return;
        struct mfl_table_row *row = &table->rows[table->n_rows - 1];
        char *old = row->remarks;
        row->remarks = mfl_asprintf("%s%s\n", old ? old : "", text);
        table->failed = !row->remarks;
        free(old);
}

/* The widths of the columns; 0 for a column that is left out. */
static void measure(const struct mfl_table *table, int *width)
{
        for (int c = 0; c < table->n_columns; c++) {
                bool known = !table->n_rows;
                width[c] = mfl_display_width(table->columns[c].name);
                for (size_t r = 0; r < table->n_rows; r++) {
                        const char *text = table->rows[r].cell[c];
                        width[c] = MFL_MAX(width[c], text ? mfl_display_width(text) : 1);
                        known = known || (text && *text);
                }
                width[c] = known ? MFL_MAX(width[c], 1) : 0;
        }
}

static int sum(const int *width, int n)
{
        int s = -GAP;
        for (int c = 0; c < n; c++)
                s += width[c] ? width[c] + GAP : 0;
        return s;
}

static void leave_out(const struct mfl_table *table, int *width, int columns)
{
        while (sum(width, table->n_columns) > columns) {
                int at = -1, most = 0;
                for (int c = 0; c < table->n_columns; c++)
                        if (width[c] && table->columns[c].optional > most) {
                                most = table->columns[c].optional;
                                at = c;
                        }
                if (at < 0)
                        return;
                width[at] = 0;
        }
}

/* Blanks are printed only before text, so that no line ends in blanks. */
static void print_row(
        FILE *f, const struct mfl_table *table, const int *width, const struct mfl_table_row *row)
{
        int blanks = 0;
        for (int c = 0; c < table->n_columns; c++) {
                const char *text = row ? row->cell[c] ? row->cell[c] : "-" : table->columns[c].name;
                if (!width[c])
                        continue;
                int padding = width[c] - mfl_display_width(text);
                bool right = table->columns[c].right;
                if (*text)
                        fprintf(f, "%*s%s", blanks + (right ? padding : 0), "", text);
                blanks = (*text ? right ? 0 : padding : blanks + width[c]) + GAP;
        }
        fputc('\n', f);
}

/* One remark, broken at blanks. */
static void print_remark(FILE *f, const char *text, size_t bytes, int columns)
{
        int at = 0, limit = columns ? MFL_MAX(columns, REMARK_COLUMNS_MIN) : INT32_MAX;
        while (bytes) {
                size_t n = 0;
                int width = 0;
                while (n < bytes && text[n] != ' ')
                        width += ((uint8_t)text[n++] & 0xc0) != 0x80;
                if (at && at + 1 + width > limit) {
                        fputc('\n', f);
                        at = 0;
                }
                at += (at ? 1 : INDENT) + width;
                fprintf(f, "%*s%.*s", at == INDENT + width ? INDENT : 1, "", (int)n, text);
                n += n < bytes;
                text += n;
                bytes -= n;
        }
        fputc('\n', f);
}

char *mfl_table_render(const struct mfl_table *table, int columns)
{
        int width[MFL_TABLE_COLUMNS_MAX];
        char *text = NULL;
        size_t bytes;
        FILE *f = table->failed ? NULL : open_memstream(&text, &bytes);
        if (!f)
                return NULL;
        measure(table, width);
        if (columns)
                leave_out(table, width, columns);
        print_row(f, table, width, NULL);
        for (size_t r = 0; r < table->n_rows; r++) {
                print_row(f, table, width, &table->rows[r]);
                for (const char *at = table->rows[r].remarks; at && *at;) {
                        size_t n = strcspn(at, "\n");
                        print_remark(f, at, n, columns);
                        at += n + 1;
                }
        }
        if (!fclose(f))
                return text;
        free(text);
        return NULL;
}

void mfl_table_deinit(struct mfl_table *table)
{
        for (size_t r = 0; r < table->n_rows; r++) {
                for (int c = 0; c < table->n_columns; c++)
                        free(table->rows[r].cell[c]);
                free(table->rows[r].remarks);
        }
        free(table->rows);
        table->rows = NULL;
        table->n_rows = table->rows_room = 0;
}
