/* SPDX-License-Identifier: Apache-2.0 */
/* A text that grows: pages and metrics are written into it. User text must go through the escape of its
 * format, which also makes it plain (common/base/plain.h): bytes that are not UTF-8, half a character at a
 * cut, and characters that steer a terminal or change the direction of text become U+FFFD.
 *
 * When memory runs out, `failed` is set and further calls do nothing, so that a page needs one check at its
 * end. One thread at a time.
 */
#ifndef MFL_SERVER_WEB_TEXT_H
#define MFL_SERVER_WEB_TEXT_H

#include "common/base/base.h"

/* A zeroed one is empty. The caller frees v; it is terminated unless it is NULL. */
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
/* The value of a Prometheus label, without its quotes. */
void mfl_text_label(struct mfl_text *text, const char *s);

#endif
