/* SPDX-License-Identifier: Apache-2.0 */
/* Text that grows: pages, JSON and metrics are written into one. What comes from users goes in through an
 * escape of the format at hand, which also makes it valid UTF-8: bytes that are none, and the half of a
 * character at the end of a reason that was cut, become U+FFFD.
 *
 * Memory that runs out is remembered (failed) and everything after it does nothing, so that a page is
 * written without a check at each line and judged once at its end. One thread at a time.
 */
#ifndef MFL_SERVER_TEXT_H
#define MFL_SERVER_TEXT_H

#include "common/base.h"

/* A zeroed one is empty. v is the caller's to free; it is terminated when it is not NULL. */
struct mfl_text {
        char *v;
        size_t n, capacity;
        bool failed;
};

void mfl_text_deinit(struct mfl_text *text);
void mfl_text_bytes(struct mfl_text *text, const void *bytes, size_t n); /* as they are */
void mfl_text_put(struct mfl_text *text, const char *s);                 /* as it is */
void mfl_text_format(struct mfl_text *text, const char *fmt, ...) MFL_PRINTF(2, 3);

/* For HTML's text and quoted attributes. */
void mfl_text_html(struct mfl_text *text, const char *s);
/* A JSON string with its quotes; '<', '>' and '&' are written as \u00XX, so that it is safe in HTML too. */
void mfl_text_json(struct mfl_text *text, const char *s);
/* A JSON number; null for what JSON has no number for (NaN, infinities). */
void mfl_text_json_double(struct mfl_text *text, double value);
/* The value of a Prometheus label, without its quotes. */
void mfl_text_label(struct mfl_text *text, const char *s);

#endif
