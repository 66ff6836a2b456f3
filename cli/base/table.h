/* SPDX-License-Identifier: Apache-2.0 */
/* Tables for people: each column is as wide as its contents, narrow terminals lose the less important
 * columns, and rows can have remarks below them. */
#ifndef MFL_CLI_BASE_TABLE_H
#define MFL_CLI_BASE_TABLE_H

#include "common/base/base.h"

#define MFL_TABLE_COLUMNS_MAX 16

struct mfl_table_column {
        const char *name;
        bool right;   /* aligned */
        int optional; /* 0: always shown; otherwise the column with the largest number is left out first */
};

struct mfl_table_row {
        char *cell[MFL_TABLE_COLUMNS_MAX]; /* NULL: not known */
        char *remarks;                     /* lines; NULL: none */
};

/* Zero it and set columns and n_columns. All text is copied. When memory runs out, the rest is ignored and
 * the rendering is NULL. */
struct mfl_table {
        const struct mfl_table_column *columns;
        int n_columns;
        size_t n_rows, rows_room;
        struct mfl_table_row *rows;
        bool failed;
};

/* A new row of n_columns cells. */
void mfl_table_add(struct mfl_table *table, const char *const *cells);
/* A line below the last row. */
void mfl_table_remark(struct mfl_table *table, const char *fmt, ...) MFL_PRINTF(2, 3);
/* Returns lines, each ended by '\n'; remarks are indented and wrapped. A column that is empty in every row is
 * left out. columns: the width of the terminal; 0: no limit. NULL: out of memory; the caller frees. */
char *mfl_table_render(const struct mfl_table *table, int columns);
void mfl_table_deinit(struct mfl_table *table);

#endif
