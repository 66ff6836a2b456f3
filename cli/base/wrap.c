/* SPDX-License-Identifier: Apache-2.0 */
/* Text for terminals of 80 columns. */
#include "cli/base/wrap.h"

#include <stdbool.h>
#include <string.h>

#define HANG_MAX 40  /* a table's second column begins before it */
#define INDENT_MAX 4 /* of a table's row */
#define COMMAND "  mfl "
#define COMMAND_HANG 8

/* A line that is being printed: what is left of it, and where it goes on. */
struct line {
        const char *at; /* the words to come */
        size_t n;       /* bytes up to the line's end */
        size_t column;  /* of the first of them */
        size_t hang;    /* column at which later lines begin */
        bool command;
};

static size_t length(const char *text)
{
        return strcspn(text, "\n");
}

/* The second column of a table's row; the line's own beginning if it is none. */
static size_t hang_of(const char *text, size_t n)
{
        size_t indent = strspn(text, " ");
        for (size_t i = indent; i + 2 < n && i < HANG_MAX; i++)
                if (text[i] == ' ' && text[i + 1] == ' ') {
                        size_t column = i + strspn(text + i, " ");
                        return column < n && column <= HANG_MAX ? column : indent;
                }
        return indent;
}

static size_t limit_of(const struct line *line)
{
        return MFL_WRAP_COLUMNS - (line->command ? 2 : 0); /* " \" */
}

/* How many bytes of the rest fit into a line that begins at `column`; all of a word that is longer. A command breaks neither within
 * quotes nor within a comment, where a backslash does not join lines. */
static size_t fitting(const struct line *line, size_t column)
{
        if (column + line->n <= MFL_WRAP_COLUMNS)
                return line->n;
        size_t limit = limit_of(line), from = line->hang > line->column ? line->hang - line->column : 0,
               best = 0;
        bool quoted = false;
        for (size_t i = 0; i < line->n; i++) {
                quoted ^= line->command && line->at[i] == '\'';
                if (line->command && line->at[i] == '#' && !quoted && (!i || line->at[i - 1] == ' '))
                        break;
                if (i > from && !quoted && line->at[i] == ' ' && line->at[i - 1] != ' ' &&
                        (column + i <= limit || !best))
                        best = i;
        }
        return best ? best : line->n;
}

/* Where a table's row goes on if the next line says so: rows whose second column is not set off by two blanks, or begins with a brace. */
static size_t hang_below(const char *text, size_t n)
{
        size_t indent = strspn(text, " "), hang = hang_of(text, n);
        const char *next = text + n + (text[n] == '\n');
        size_t below = strspn(next, " ");
        bool row = indent && indent <= INDENT_MAX && below <= HANG_MAX && next[below] && next[below] != '\n';
        return row && (below == hang + 1 || (hang == indent && below > hang)) ? below : hang;
}

/* Whether the text after the line goes on where the line does. */
static bool goes_on(const struct line *line, const char *next)
{
        size_t n = length(next);
        return !line->command && n > line->hang && strspn(next, " ") == line->hang &&
               hang_of(next, n) == line->hang;
}

static void skip(struct line *line, size_t n)
{
        n = n < line->n ? n : line->n;
        line->at += n;
        line->n -= n;
}

/* Goes over to the next line if that goes on where this one does, and its first word has room behind `column`. */
static bool take_next(struct line *line, const char **next, size_t column)
{
        if (!goes_on(line, *next))
                return false;
        const char *words = *next + line->hang;
        size_t n = length(words), first = strcspn(words, " ");
        if (column + 1 + (first < n ? first : n) > MFL_WRAP_COLUMNS)
                return false;
        line->at = words;
        line->n = n;
        line->column = line->hang;
        *next = words + n + (words[n] == '\n');
        return true;
}

/* Prints a line that is too long, with what it takes in; returns where the text goes on. */
static const char *print_long(FILE *out, struct line line)
{
        const char *next = line.at + line.n + (line.at[line.n] == '\n');
        for (size_t column = line.column;;) {
                size_t n = fitting(&line, column);
                fwrite(line.at, 1, n, out);
                column += n;
                skip(&line, n);
                skip(&line, strspn(line.at, " "));
                if (line.n) {
                        fprintf(out, "%s\n%*s", line.command ? " \\" : "", (int)line.hang, "");
                        line.column = column = line.hang;
                } else if (take_next(&line, &next, column)) {
                        fputc(' ', out);
                        column++;
                } else {
                        break;
                }
        }
        fputc('\n', out);
        return next;
}

void mfl_wrap_print(FILE *out, const char *text)
{
        while (*text) {
                size_t n = length(text);
                if (n <= MFL_WRAP_COLUMNS) {
                        fprintf(out, "%.*s%s", (int)n, text, text[n] ? "\n" : "");
                        text += n + (text[n] == '\n');
                        continue;
                }
                struct line line = {.at = text,
                        .n = n,
                        .hang = hang_below(text, n),
                        .command = !strncmp(text, COMMAND, strlen(COMMAND))};
                if (line.command)
                        line.hang = COMMAND_HANG;
                text = print_long(out, line);
        }
}
