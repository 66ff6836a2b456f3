/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of job files: keys and limits from the parser's tables, text from examples/reference.yaml. */
#include <ctype.h>

#include "cli/commands/manual.h"
#include "common/job/job_goes.h"
#include "common/job/job_model.h"

#define TEXT_BYTES 2048
#define DEPTH_MAX 8

/* ---- the reference file ---- */

struct key_line {
        int indent;
        const char *key;
        size_t key_bytes;
        const char *comment; /* NULL: none */
        size_t comment_bytes;
        int comment_column;
};

/* "  alpha: 0.5   # text" and "  # shards: 2   # text"; false for other lines. */
static bool read_key_line(const char *line, size_t n, struct key_line *ret)
{
        size_t at = 0, start;
        while (at < n && line[at] == ' ')
                at++;
        ret->indent = (int)at;
        if (at + 1 < n && line[at] == '#' && line[at + 1] == ' ')
                at += 2;
        start = at;
        while (at < n &&
                (islower((unsigned char)line[at]) || isdigit((unsigned char)line[at]) || line[at] == '_'))
                at++;
        if (at == start || at >= n || line[at] != ':' || (at + 1 < n && line[at + 1] != ' '))
                return false;
        ret->key = line + start;
        ret->key_bytes = at - start;
        ret->comment = NULL;
        for (; at + 1 < n; at++)
                if (line[at] == ' ' && line[at + 1] == '#') {
                        ret->comment_column = (int)at + 1;
                        at += 2 + (at + 2 < n && line[at + 2] == ' ');
                        ret->comment = line + at;
                        ret->comment_bytes = n - at;
                        break;
                }
        return true;
}

static void append(char *text, size_t bytes, const char *part, size_t n)
{
        size_t len = strlen(text);
        mfl_snprintf(text + len, bytes - len, "%s%.*s", *text ? " " : "", (int)n, part);
}

/* The comment behind a key, and the lines below it whose '#' is in the same column. */
static void read_comment(const struct key_line *k, const char *next, char *text, size_t bytes)
{
        *text = 0;
        if (!k->comment)
                return;
        append(text, bytes, k->comment, k->comment_bytes);
        while (*next) {
                size_t n = strcspn(next, "\n"), blanks = strspn(next, " ");
                if ((int)blanks != k->comment_column || next[blanks] != '#')
                        break;
                blanks += 1 + strspn(next + blanks + 1, " ");
                append(text, bytes, next + blanks, n - blanks);
                next += n + (next[n] == '\n');
        }
}

/* The comment of a key such as "training.lr" in the reference file; false if the file does not have the key.
 */
static bool find_comment(const char *reference, const char *path, char *text, size_t bytes)
{
        char at[DEPTH_MAX][64];
        int indents[DEPTH_MAX], depth = 0;
        for (const char *line = reference; *line;) {
                size_t n = strcspn(line, "\n");
                const char *next = line + n + (line[n] == '\n');
                struct key_line k;
                if (read_key_line(line, n, &k)) {
                        while (depth && indents[depth - 1] >= k.indent)
                                depth--;
                        if (depth == DEPTH_MAX)
                                return false;
                        indents[depth] = k.indent;
                        mfl_snprintf(at[depth], sizeof at[depth], "%s%s%.*s", depth ? at[depth - 1] : "",
                                depth ? "." : "", (int)k.key_bytes, k.key);
                        if (!strcmp(at[depth++], path)) {
                                read_comment(&k, next, text, bytes);
                                return true;
                        }
                }
                line = next;
        }
        return false;
}

/* ---- the page ---- */

static void print_key(struct mfl_page *page, const struct mfl_yaml_field *f, const char *path)
{
        char text[TEXT_BYTES], want[240];
        if (!find_comment(mfl_job_reference, path, text, sizeof text))
                *text = 0;
        size_t n = strlen(text);
        if (f->required && !strstr(text, "required"))
                mfl_snprintf(text + n, sizeof text - n, "%srequired", *text ? "; " : "");
        if (f->kind != MFL_YAML_CALL && f->kind != MFL_YAML_STRING && f->kind != MFL_YAML_FIELDS) {
                mfl_yaml_describe(f, want, sizeof want);
                n = strlen(text);
                mfl_snprintf(text + n, sizeof text - n, "%sTakes %s.", n ? "\n\n" : "", want);
        }
        mfl_page_item(page, path);
        mfl_page_text(page, text);
}

static void print_fields(struct mfl_page *page, const struct mfl_yaml_field *fields, const char *above)
{
        char path[128];
        for (const struct mfl_yaml_field *f = fields; f->key; f++) {
                bool is_model = !*above && !strcmp(f->key, "model");
                mfl_snprintf(path, sizeof path, "%s%s%s", above, *above ? "." : "", f->key);
                print_key(page, f, path);
                if (is_model || f->fields)
                        print_fields(page, is_model ? mfl_job_model_tables[0] : f->fields, path);
        }
}

static void print_goes(struct mfl_page *page, enum mfl_page_form form)
{
        char text[600];
        mfl_page_section(page, form == MFL_PAGE_MAN ? "COMBINATIONS" : "What does not go together");
        mfl_page_text(page, "'mfl check' refuses these combinations, each with the reason.");
        for (size_t i = 0; i < mfl_job_goes_count(); i++) {
                const struct mfl_job_goes *goes = mfl_job_goes_at(i);
                mfl_snprintf(text, sizeof text, "'%s' and '%s': %s.", goes->one, goes->other, goes->why);
                mfl_page_text(page, text);
        }
}

void mfl_manual_print_reference(FILE *out)
{
        fputs(mfl_job_reference, out);
        fputs("\n# What does not go together ('mfl check' says why):\n", out);
        for (size_t i = 0; i < mfl_job_goes_count(); i++)
                fprintf(out, "#   %-28s %s\n", mfl_job_goes_at(i)->one, mfl_job_goes_at(i)->other);
}

void mfl_manual_print_job(FILE *out, enum mfl_page_form form)
{
        struct mfl_page page;
        mfl_page_open(&page, out, form, 0);
        mfl_page_title(&page, "mfl-job", "5", "job files of mfl");
        mfl_page_section(&page, form == MFL_PAGE_MAN ? "DESCRIPTION" : "Job files");
        mfl_page_text(&page,
                "A job file says what to train, on which data, how to aggregate, and when to "
                "stop. It is YAML, at most "
                "256 KiB, without aliases, anchors and tags. 'mfl check' reads it without a server. Errors "
                "name the line, and for a mistyped key the most likely right one. 'mfl "
                "help job' prints the file "
                "at the end of this page.");
        mfl_page_section(&page, form == MFL_PAGE_MAN ? "KEYS" : "Keys of a job");
        print_fields(&page, mfl_job_tables[0], "");
        mfl_page_items_end(&page);
        print_goes(&page, form);
        mfl_page_section(&page, form == MFL_PAGE_MAN ? "EXAMPLE" : "A job with every key");
        mfl_page_verbatim(&page, mfl_job_reference);
        if (form == MFL_PAGE_MAN) {
                mfl_page_section(&page, "SEE ALSO");
                mfl_page_text(&page, "mfl(1), mfl-server(8), mfl-client(8)");
        }
}
