/* SPDX-License-Identifier: Apache-2.0 */
/* An answer under construction: a text that grows, with room in front of it for the head, which is written last, when
 * the body's length is known. When memory runs out, `failed` is set and further calls do nothing. One thread at a time.
 */
#ifndef MFL_SERVE_HTTP_REPLY_H
#define MFL_SERVE_HTTP_REPLY_H

#include "common/base/base.h"

#define MFL_REPLY_HEAD_BYTES 640u

/* A zeroed one is empty. The body is v[MFL_REPLY_HEAD_BYTES .. n). */
struct mfl_reply {
        char *v;
        size_t n, room, begin;
        bool failed;
};

void mfl_reply_deinit(struct mfl_reply *reply);
/* Room for n more bytes: where they go, of which the caller fills a part and adds it to reply->n; NULL: failed. */
char *mfl_reply_reserve(struct mfl_reply *reply, size_t n);
void mfl_reply_bytes(struct mfl_reply *reply, const void *bytes, size_t n);
void mfl_reply_put(struct mfl_reply *reply, const char *text);
void mfl_reply_format(struct mfl_reply *reply, const char *fmt, ...) MFL_PRINTF(2, 3);
/* A JSON string with its quotes. What is not UTF-8, and characters that steer terminals, become '?'. */
void mfl_reply_string(struct mfl_reply *reply, const char *text);
/* A float as a JSON number that reads back as the same float; finite. */
void mfl_reply_float(struct mfl_reply *reply, float value);
size_t mfl_reply_body_bytes(const struct mfl_reply *reply);

struct mfl_reply_head {
        int status;
        const char *type;    /* of the body; NULL: none */
        const char *more;    /* further header lines, each with its CR LF; NULL: none */
        bool close, no_body; /* no_body: the length is told and the body left out (HEAD) */
        bool stay;           /* HTTP/1.0: "Connection: keep-alive", which its clients wait for */
        const char *date;    /* mfl_reply_date */
};
/* Writes the head in front; the answer is then v[begin .. n). False: it failed. */
bool mfl_reply_finish(struct mfl_reply *reply, const struct mfl_reply_head *head);
/* "Thu, 26 Nov 2026 17:36:12 GMT" */
#define MFL_REPLY_DATE_BYTES 32
void mfl_reply_date(int64_t unix_s, char date[MFL_REPLY_DATE_BYTES]);

#endif
