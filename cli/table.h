/* SPDX-License-Identifier: Apache-2.0 */
/* Tables for people: columns as wide as what is in them, the less important ones left out where a terminal is
 * too narrow, and remarks below rows. */
#ifndef MFL_CLI_TABLE_H
#define MFL_CLI_TABLE_H

#include "common/base.h"

#define MFL_TABLE_COLUMNS_MAX 16

struct mfl_table_column {
        const char *name;
        bool right;   /* aligned */
        int optional; /* 0: always there; else the column with the largest number goes first */
};

struct mfl_table_row {
        char *cell[MFL_TABLE_COLUMNS_MAX]; /* NULL: not known */
        char *remarks;                     /* lines; NULL: none */
};

/* Zeroed but for columns and n_columns; all text is copied. When memory runs out the rest is ignored and the
 * rendering is NULL. */
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
/* Lines, each ended by '\n'; remarks are indented and wrapped. A column in which no row has anything is left
 * out. columns: of the terminal; 0: no limit. NULL: out of memory; the caller frees. */
char *mfl_table_render(const struct mfl_table *table, int columns);
void mfl_table_deinit(struct mfl_table *table);

#endif
