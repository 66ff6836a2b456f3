/* SPDX-License-Identifier: Apache-2.0 */
/* How people see a running job: text made from numbers (pure), and drawing in place on a terminal. */
#ifndef MFL_CLI_BASE_DISPLAY_H
#define MFL_CLI_BASE_DISPLAY_H

#include <stdio.h>

#include "common/base/base.h"

/* How text may look: columns of the terminal, UTF-8 or plain ASCII, colours or not. */
struct mfl_style {
        int columns;
        bool utf8, colour;
};

/* A bar of exactly `columns` columns, fraction in [0, 1]. UTF-8 has eighths of a column. Returns buf. */
const char *mfl_display_bar(double fraction, int columns, bool utf8, char *buf, size_t buf_bytes);
/* A curve of n values, or of the newest `columns` of them, scaled from the smallest to the largest. */
const char *mfl_display_curve(
        const double *values, size_t n, int columns, bool utf8, char *buf, size_t buf_bytes);
/* "1.5 GB", "0:42", "1:02:03" (seconds). buf has at least 24 bytes. */
const char *mfl_display_bytes(double bytes, char *buf, size_t buf_bytes);
const char *mfl_display_time(double seconds, char *buf, size_t buf_bytes);
/* The number of columns of text, without escape sequences and continuation bytes of UTF-8. */
int mfl_display_width(const char *text);

/* What the display shows. The caller owns the strings. */
struct mfl_display_job {
        const char *job, *name, *state, *phase, *reason, *notice;
        uint32_t round, rounds, in_round, attempt, clients_done, clients_total, daemons;
        double bytes_up, bytes_down;
        double trained;                /* the share of in_round's training that is done, 0..1 */
        double seconds, left;          /* left < 0: not known */
        const double *accuracy, *loss; /* one value per evaluated round, oldest first */
        size_t n_evaluated;
        bool no_accuracy, per_token; /* the loss has no accuracy; the loss is that of one token */
};
/* The lines of the display, each ended by '\n' and no wider than the style's columns. NULL when out of
 * memory; the caller frees. */
char *mfl_display_render(const struct mfl_display_job *job, const struct mfl_style *style);

/* lines, cut to the style's columns. NULL when out of memory; the caller frees. */
char *mfl_display_cut(const char *text, const struct mfl_style *style);

/* Drawing in place: a new drawing replaces the last one. The cursor is hidden from the first drawing until
 * mfl_screen_end, which is idempotent; exit() shows it again, too. */
struct mfl_screen {
        FILE *out;
        int lines;
        bool hidden;
};
void mfl_screen_draw(struct mfl_screen *screen, const char *text);
/* Removes the drawing, so that lines can be printed in its place. The next drawing appears below them. */
void mfl_screen_clear(struct mfl_screen *screen);
/* Ends drawing; the last drawing stays on the screen. */
void mfl_screen_end(struct mfl_screen *screen);
/* Width of the terminal on fd; 80 when not known. */
int mfl_screen_columns(int fd);
/* Its height; 24 when not known. */
int mfl_screen_rows(int fd);

#endif
