/* SPDX-License-Identifier: Apache-2.0 */
/* Writes help, man pages and Markdown from the same texts. */
#include "common/base/page.h"

#include <ctype.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ITEM_COLUMN 24 /* where an item's text starts in help */
#define MAN_COLUMNS 80 /* of a man page's source */
#define PAGE_DATE "2026-11-21"

void mfl_page_open(struct mfl_page *page, FILE *out, enum mfl_page_form form, int width)
{
        struct winsize size = {0};
        if (!width && isatty(fileno(out)) && !ioctl(fileno(out), TIOCGWINSZ, &size))
                width = MFL_MIN(MFL_MAX((int)size.ws_col, 80), 100);
        *page = (struct mfl_page){.out = out, .form = form, .width = width ? width : 100, .depth = 2};
}

/* ---- words ---- */

static bool is_code(const char *word, size_t n)
{
        if (n >= 3 && (!strncmp(word, "--", 2) || (*word == '$' && isalpha((unsigned char)word[1])) ||
                              !strncmp(word, "~/", 2) || (*word == '/' && isalpha((unsigned char)word[1]))))
                return true;
        return n >= 3 && memchr(word + 1, '_', n - 2) && memchr(word, '=', n) == NULL;
}

static void put_man(FILE *out, const char *text, size_t n)
{
        for (size_t i = 0; i < n; i++)
                switch (text[i]) {
                case '\\':
                        fputs("\\e", out);
                        break;
                case '-':
                        fputs("\\-", out);
                        break;
                case '\'':
                        fputs("\\(aq", out);
                        break;
                case '~':
                        fputs("\\(ti", out);
                        break;
                case '^':
                        fputs("\\(ha", out);
                        break;
                case '`':
                        fputs("\\(ga", out);
                        break;
                default:
                        fputc(text[i], out);
                }
}

static void put_markdown(FILE *out, const char *text, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                if (strchr("<>*[]|`\\", text[i]))
                        fputc('\\', out);
                fputc(text[i], out);
        }
}

/* A word without its surroundings: brackets, quotes and punctuation are not code. */
static void put_word(struct mfl_page *page, const char *word, size_t n)
{
        size_t head = strspn(word, "(\"'"), tail = 0;
        head = MFL_MIN(head, n);
        while (tail < n - head && strchr(",.;:)\"'?", word[n - tail - 1]))
                tail++;
        bool code = is_code(word + head, n - head - tail);
        void (*put)(FILE *, const char *, size_t) = page->form == MFL_PAGE_MAN ? put_man : put_markdown;
        if (!page->column && page->form == MFL_PAGE_MAN && *word == '.')
                fputs("\\&", page->out);
        put(page->out, word, head);
        if (code && page->form == MFL_PAGE_MARKDOWN)
                fprintf(page->out, "`%.*s`", (int)(n - head - tail), word + head);
        else if (code)
                fputs("\\fB", page->out);
        if (!code || page->form == MFL_PAGE_MAN)
                put(page->out, word + head, n - head - tail);
        if (code && page->form == MFL_PAGE_MAN)
                fputs("\\fR", page->out);
        put(page->out, word + n - tail, tail);
}

static void end_line(struct mfl_page *page)
{
        fputc('\n', page->out);
        page->column = 0;
}

static void pad(struct mfl_page *page, int column)
{
        if (page->column < column)
                fprintf(page->out, "%*s", column - page->column, "");
        page->column = MFL_MAX(page->column, column);
}

static int indent_of(const struct mfl_page *page)
{
        return page->form == MFL_PAGE_PLAIN && page->listed ? ITEM_COLUMN : 0;
}

static int width_of(const struct mfl_page *page)
{
        return page->form == MFL_PAGE_PLAIN ? page->width : page->form == MFL_PAGE_MAN ? MAN_COLUMNS : 120;
}

static void put_line(struct mfl_page *page, const char *line, size_t n)
{
        int indent = indent_of(page);
        const char *end = line + n;
        pad(page, indent);
        while (line < end) {
                size_t blanks = strspn(line, " ");
                line += blanks;
                if (line >= end)
                        break;
                size_t word = MFL_MIN(strcspn(line, " \n"), (size_t)(end - line));
                if (page->column > indent && page->column + 1 + (int)word > width_of(page)) {
                        end_line(page);
                        pad(page, indent);
                } else if (page->column > indent) {
                        fputc(' ', page->out);
                        page->column++;
                }
                if (page->form == MFL_PAGE_PLAIN)
                        fwrite(line, 1, word, page->out);
                else
                        put_word(page, line, word);
                page->column += (int)word;
                line += word;
        }
        end_line(page);
}

/* ---- blocks ---- */

static void open_verbatim(struct mfl_page *page)
{
        if (page->form == MFL_PAGE_MAN)
                fputs(page->listed ? ".RS 0\n.nf\n" : ".PP\n.nf\n", page->out);
        else if (page->form == MFL_PAGE_MARKDOWN)
                fputs("\n```text\n", page->out);
}

static void close_verbatim(struct mfl_page *page)
{
        if (page->form == MFL_PAGE_MAN)
                fputs(page->listed ? ".fi\n.RE\n" : ".fi\n.PP\n", page->out);
        else if (page->form == MFL_PAGE_MARKDOWN)
                fputs("```\n", page->out);
}

static void put_verbatim(struct mfl_page *page, const char *line, size_t n)
{
        pad(page, indent_of(page));
        if (page->form == MFL_PAGE_MAN) {
                if (n && *line == '.')
                        fputs("\\&", page->out);
                put_man(page->out, line, n);
        } else {
                fwrite(line, 1, n, page->out);
        }
        end_line(page);
}

void mfl_page_text(struct mfl_page *page, const char *text)
{
        static const char *const breaks[] = {"", ".br\n", "\n"}, *const blanks[] = {"\n", ".PP\n", "\n"};
        bool verbatim = false, line_before = false;
        if (page->form == MFL_PAGE_MARKDOWN && *text != ' ')
                fputc('\n', page->out);
        for (size_t n; *text; text += n + (text[n] == '\n')) {
                n = strcspn(text, "\n");
                bool keep = *text == ' ';
                if (keep != verbatim) {
                        keep ? open_verbatim(page) : close_verbatim(page);
                        line_before = false;
                }
                verbatim = keep;
                if (keep) {
                        put_verbatim(page, text, n);
                } else if (!n) {
                        fputs(page->form == MFL_PAGE_MAN && page->listed ? ".IP\n" : blanks[page->form],
                                page->out);
                        line_before = false;
                } else {
                        if (line_before && !page->joined)
                                fputs(breaks[page->form], page->out);
                        put_line(page, text, n);
                        line_before = true;
                }
        }
        if (verbatim)
                close_verbatim(page);
}

void mfl_page_verbatim(struct mfl_page *page, const char *text)
{
        open_verbatim(page);
        for (size_t n; *text; text += n + (text[n] == '\n')) {
                n = strcspn(text, "\n");
                put_verbatim(page, text, n);
        }
        close_verbatim(page);
}

/* ---- structure ---- */

void mfl_page_title(struct mfl_page *page, const char *name, const char *section, const char *summary)
{
        if (page->form != MFL_PAGE_MAN)
                return;
        fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n.TH ", page->out);
        for (const char *c = name; *c; c++)
                fputc(toupper((unsigned char)*c), page->out);
        fprintf(page->out, " %s %s \"mfl " MFL_VERSION "\" \"Federated learning\"\n.nh\n.ad l\n.SH NAME\n",
                section, PAGE_DATE);
        put_man(page->out, name, strlen(name));
        fputs(" \\- ", page->out);
        put_man(page->out, summary, strlen(summary));
        fputc('\n', page->out);
}

static void put_heading(struct mfl_page *page, const char *title, int depth)
{
        page->listed = false;
        page->parted = depth;
        if (page->form == MFL_PAGE_PLAIN) {
                fprintf(page->out, "\n%s:\n", title);
        } else if (page->form == MFL_PAGE_MAN) {
                fputs(depth ? ".SS " : ".SH ", page->out);
                put_man(page->out, title, strlen(title));
                fputc('\n', page->out);
        } else {
                fprintf(page->out, "\n%.*s %s\n", page->depth + depth, "######", title);
        }
}

void mfl_page_section(struct mfl_page *page, const char *title)
{
        put_heading(page, title, 0);
}

void mfl_page_subsection(struct mfl_page *page, const char *title)
{
        put_heading(page, title, 1);
}

void mfl_page_item(struct mfl_page *page, const char *term)
{
        size_t n = strcspn(term, " ");
        page->listed = true;
        page->column = 0;
        if (page->form == MFL_PAGE_PLAIN) {
                page->column = fprintf(page->out, "  %s", term);
                if (page->column > ITEM_COLUMN - 2)
                        end_line(page);
                return;
        }
        if (page->form == MFL_PAGE_MARKDOWN) {
                fprintf(page->out, "\n%.*s `%s`\n", page->depth + 1 + page->parted, "######", term);
                return;
        }
        fputs(".TP\n\\fB", page->out);
        put_man(page->out, term, n);
        fputs("\\fR", page->out);
        if (term[n]) {
                fputs(" \\fI", page->out);
                put_man(page->out, term + n + 1, strlen(term + n + 1));
                fputs("\\fR", page->out);
        }
        fputc('\n', page->out);
}

void mfl_page_items_end(struct mfl_page *page)
{
        if (page->form == MFL_PAGE_MAN && page->listed)
                fputs(".PP\n", page->out);
        page->listed = false;
}
