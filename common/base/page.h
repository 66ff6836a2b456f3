/* SPDX-License-Identifier: Apache-2.0 */
/* One text, three forms: help on a terminal, a man page (man(7) of groff and mandoc), and Markdown.
 *
 * Texts are ASCII. They are wrapped; '\n' ends a line, an empty line ends a paragraph, and lines that start
 * with a blank are kept as they are. Words such as --name, $NAME, a_b, /path and ~/path are set as code where the
 * form has a style for it.
 *
 * One thread. The caller checks the stream for errors of writing.
 */
#ifndef MFL_COMMON_BASE_PAGE_H
#define MFL_COMMON_BASE_PAGE_H

#include <stdio.h>

#include "common/base/base.h"

enum mfl_page_form {
        MFL_PAGE_PLAIN,
        MFL_PAGE_MAN,
        MFL_PAGE_MARKDOWN,
};

struct mfl_page {
        FILE *out; /* borrowed */
        enum mfl_page_form form;
        int width;   /* PLAIN: columns */
        int column;  /* PLAIN: where the next character goes */
        int depth;   /* MARKDOWN: '#' of a section */
        bool joined; /* lines that are not kept as they are join into one paragraph; false: '\n' ends a line */
        bool parted; /* within a part of a section */
        bool listed; /* within an item */
};

/* width 0: the width of the terminal, 80 to 100 columns; 100 when out is not a terminal. */
void mfl_page_open(struct mfl_page *page, FILE *out, enum mfl_page_form form, int width);
/* MAN: the head of the page, with NAME; other forms: nothing. name "mfl-server", section "8". */
void mfl_page_title(struct mfl_page *page, const char *name, const char *section, const char *summary);
void mfl_page_section(struct mfl_page *page, const char *title);
void mfl_page_subsection(struct mfl_page *page, const char *title);
void mfl_page_text(struct mfl_page *page, const char *text);
/* Begins an item such as "--listen HOST:PORT": what follows the first blank is a placeholder. The item's text
 * follows, up to the next item. */
void mfl_page_item(struct mfl_page *page, const char *term);
void mfl_page_items_end(struct mfl_page *page);
/* Kept as it is, and not wrapped. */
void mfl_page_verbatim(struct mfl_page *page, const char *text);

#endif
