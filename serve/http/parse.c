/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP/1.1 requests out of a stream of bytes. The parser stops after each request (on_complete pauses it), so that the
 * caller decides when the next pipelined one is read. */
#include "serve/http/parse.h"

#include <strings.h>

#define OWN_FIRST_BYTES 4096u

static int bad(struct mfl_http_parser *p, int status, const char *error)
{
        if (!p->status) {
                p->status = status;
                p->error = error;
        }
        return -1;
}

static struct mfl_http_parser *ours(http_parser *core)
{
        return core->data;
}

/* ---- head ---- */

static int on_begin(http_parser *core)
{
        ours(core)->in_head = true;
        return 0;
}

static int on_url(http_parser *core, const char *at, size_t n)
{
        struct mfl_http_parser *p = ours(core);
        if (n > sizeof p->url - p->url_bytes)
                return bad(p, 414, "the path is too long");
        memcpy(p->url + p->url_bytes, at, n);
        p->url_bytes += n;
        return 0;
}

static bool is(const struct mfl_http_parser *p, const char *name)
{
        return strlen(name) == p->name_bytes && !strncasecmp(p->name, name, p->name_bytes);
}

static bool whole_number(const char *text, uint64_t *ret)
{
        uint64_t v = 0;
        size_t n = strlen(text);
        for (size_t i = 0; i < n; i++) {
                if (text[i] < '0' || text[i] > '9')
                        return false;
                v = v * 10 + (uint64_t)(text[i] - '0');
        }
        *ret = v;
        return n > 0 && n <= 18;
}

/* One header is complete. The value is terminated; http-parser has removed the space before it, not the one behind. */
static void take_header(struct mfl_http_parser *p)
{
        struct mfl_http_request *q = &p->request;
        while (p->value_bytes &&
                (p->value[p->value_bytes - 1] == ' ' || p->value[p->value_bytes - 1] == '\t'))
                p->value_bytes--;
        p->value[p->value_bytes] = '\0';
        const bool whole = !p->long_value && !memchr(p->value, 0, p->value_bytes);
        if (is(p, "host")) {
                p->bad_host |= p->has_host;
                p->has_host = true;
        } else if (is(p, "transfer-encoding"))
                p->bad_coding |= strcasecmp(p->value, "chunked") != 0;
        else if (is(p, "inference-header-content-length")) {
                uint64_t n = 0;
                p->bad_json_bytes |= q->has_json_bytes || !whole || !whole_number(p->value, &n);
                q->has_json_bytes = true;
                q->json_bytes = n;
        } else if (is(p, "authorization") && whole && !strncasecmp(p->value, "bearer ", 7))
                mfl_strcpy(q->bearer, sizeof q->bearer, p->value + 7);
        else if (is(p, "origin"))
                q->from_page = true;
        else if (is(p, "content-encoding"))
                q->encoded |= strcasecmp(p->value, "identity") != 0;
        else if (is(p, "mfl-key"))
                p->bad_key |= !whole || *q->key || !mfl_strcpy(q->key, sizeof q->key, p->value);
        else if (is(p, "expect")) {
                if (strcasecmp(p->value, "100-continue"))
                        bad(p, 417, "the only expectation that is known is 100-continue");
                else
                        p->continues = p->core.http_minor > 0; /* RFC 9110, section 10.1.1 */
        }
}

/* Fields behind a chunked body are not headers (RFC 9110, section 6.5.1). */
static void end_header(struct mfl_http_parser *p)
{
        if (p->in_head && p->name_bytes && p->name_bytes <= sizeof p->name)
                take_header(p);
        p->name_bytes = p->value_bytes = 0;
        p->value_began = p->long_value = false;
}

static int on_field(http_parser *core, const char *at, size_t n)
{
        struct mfl_http_parser *p = ours(core);
        if (p->value_began)
                end_header(p);
        if (p->name_bytes + n <= sizeof p->name) {
                memcpy(p->name + p->name_bytes, at, n);
                p->name_bytes += n;
        } else {
                p->name_bytes = sizeof p->name + 1; /* none of those that we know */
        }
        return 0;
}

static int on_value(http_parser *core, const char *at, size_t n)
{
        struct mfl_http_parser *p = ours(core);
        p->value_began = true;
        const size_t taken = MFL_MIN(n, sizeof p->value - 1 - p->value_bytes);
        p->long_value |= taken < n;
        memcpy(p->value + p->value_bytes, at, taken);
        p->value_bytes += taken;
        return p->status ? -1 : 0;
}

static int digit_of(char c)
{
        return c >= '0' && c <= '9'   ? c - '0'
               : c >= 'a' && c <= 'f' ? c - 'a' + 10
               : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                      : -1;
}

static int decode_path(struct mfl_http_parser *p, const char *at, size_t n)
{
        size_t k = 0;
        for (size_t i = 0; i < n; i++) {
                int c = (unsigned char)at[i];
                if (c == '%') {
                        const int high = i + 2 < n ? digit_of(at[i + 1]) : -1;
                        const int low = i + 2 < n ? digit_of(at[i + 2]) : -1;
                        if (high < 0 || low < 0)
                                return bad(p, 400, "the path has a '%' without two hexadecimal digits");
                        c = high * 16 + low;
                        i += 2;
                }
                if (c <= ' ' || c >= 0x7f)
                        return bad(p, 400, "the path has a character that is not printable ASCII");
                if (k + 1 == sizeof p->request.path)
                        return bad(p, 414, "the path is too long");
                p->request.path[k++] = (char)c;
        }
        p->request.path[k] = '\0';
        return 0;
}

static int take_url(struct mfl_http_parser *p)
{
        struct http_parser_url url;
        http_parser_url_init(&url);
        if (p->core.method == HTTP_CONNECT)
                return bad(p, 405, "this is no proxy");
        if (http_parser_parse_url(p->url, p->url_bytes, 0, &url) || !(url.field_set & (1 << UF_PATH)))
                return p->core.method == HTTP_OPTIONS ? 0 : bad(p, 400, "the request's target is no path");
        return decode_path(p, p->url + url.field_data[UF_PATH].off, url.field_data[UF_PATH].len);
}

static enum mfl_http_method method_of(unsigned method)
{
        return method == HTTP_GET    ? MFL_HTTP_GET
               : method == HTTP_HEAD ? MFL_HTTP_HEAD
               : method == HTTP_POST ? MFL_HTTP_POST
                                     : MFL_HTTP_OTHER;
}

static int on_head(http_parser *core)
{
        struct mfl_http_parser *p = ours(core);
        end_header(p);
        if (p->status || take_url(p))
                return -1;
        if (core->http_major != 1 || core->http_minor > 1)
                return bad(p, 505, "only HTTP/1.0 and HTTP/1.1 are spoken");
        if (core->http_minor == 1 && !p->has_host)
                return bad(p, 400, "HTTP/1.1 requires the header Host");
        if (p->bad_host)
                return bad(p, 400, "the header Host is there twice");
        if (p->bad_coding)
                return bad(p, 501, "the only Transfer-Encoding that is known is chunked");
        if (p->bad_json_bytes)
                return bad(p, 400, "Inference-Header-Content-Length is not one number of bytes");
        if (p->bad_key)
                return bad(p, 400, "Mfl-Key is given twice, or longer than 127 characters");
        const bool counted = !(core->flags & F_CHUNKED) && core->content_length != UINT64_MAX;
        if (counted && core->content_length > p->limits->body_bytes_max)
                return bad(p, 413, "the body is larger than body_max");
        core->upgrade = 0; /* offers of another protocol are not taken up (RFC 9110, section 7.8) */
        p->request.method = method_of(core->method);
        p->request.old = core->http_minor == 0;
        p->in_head = false;
        p->in_body = true;
        return 0;
}

/* ---- body ---- */

static int make_room(struct mfl_http_parser *p, size_t n)
{
        size_t room = p->own_room ? p->own_room : OWN_FIRST_BYTES;
        while (room < p->own_bytes + n)
                room *= 2;
        const uint64_t more = room - p->own_room;
        if (!more)
                return 0;
        if (p->limits->budget && *p->limits->budget < more)
                return bad(p, 503, "bodies of other requests take all of the memory for them; try again");
        char *grown = mfl_realloc(p->own, room);
        if (!grown)
                return bad(p, 503, "out of memory for the body; try again");
        if (p->limits->budget)
                *p->limits->budget -= more;
        p->own = grown;
        p->own_room = room;
        return 0;
}

static int on_body(http_parser *core, const char *at, size_t n)
{
        struct mfl_http_parser *p = ours(core);
        struct mfl_http_request *q = &p->request;
        if (n > p->limits->body_bytes_max - p->own_bytes)
                return bad(p, 413, "the body is larger than body_max");
        /* http-parser has already counted these bytes down. */
        if (!p->own_bytes && !(core->flags & F_CHUNKED) && core->content_length == 0) {
                q->body = at;
                q->body_bytes = n;
                p->lent = true;
                return 0;
        }
        if (make_room(p, n))
                return -1;
        memcpy(p->own + p->own_bytes, at, n);
        p->own_bytes += n;
        return 0;
}

/* A chunk says how long it is before it comes. */
static int on_chunk(http_parser *core)
{
        struct mfl_http_parser *p = ours(core);
        return core->content_length > p->limits->body_bytes_max - p->own_bytes
                       ? bad(p, 413, "the body is larger than body_max")
                       : 0;
}

static int on_complete(http_parser *core)
{
        struct mfl_http_parser *p = ours(core);
        if (!p->lent) {
                p->request.body = p->own_bytes ? p->own : "";
                p->request.body_bytes = p->own_bytes;
        }
        p->request.keep_alive = http_should_keep_alive(core);
        p->in_body = false;
        http_parser_pause(core, 1);
        return 0;
}

static const http_parser_settings settings = {
        .on_message_begin = on_begin,
        .on_url = on_url,
        .on_header_field = on_field,
        .on_header_value = on_value,
        .on_headers_complete = on_head,
        .on_body = on_body,
        .on_chunk_header = on_chunk,
        .on_message_complete = on_complete,
};

/* ---- the whole ---- */

void mfl_http_set_head_max(uint32_t bytes)
{
        http_parser_set_max_header_size(bytes);
}

static void forget_body(struct mfl_http_parser *p)
{
        if (p->limits->budget)
                *p->limits->budget += p->own_room;
        free(p->own);
        p->own = NULL;
        p->own_bytes = p->own_room = 0;
        p->lent = false;
}

void mfl_http_parser_init(struct mfl_http_parser *p, const struct mfl_http_limits *limits)
{
        memset(p, 0, sizeof *p);
        p->limits = limits;
        http_parser_init(&p->core, HTTP_REQUEST);
        p->core.data = p;
}

void mfl_http_parser_deinit(struct mfl_http_parser *p)
{
        forget_body(p);
}

void mfl_http_parser_next(struct mfl_http_parser *p)
{
        forget_body(p);
        p->request.path[0] = p->request.bearer[0] = p->request.key[0] = '\0';
        p->request.json_bytes = p->request.body_bytes = 0;
        p->request.has_json_bytes = p->request.encoded = p->request.from_page = p->request.old = false;
        p->request.body = NULL;
        p->url_bytes = p->name_bytes = p->value_bytes = 0;
        p->has_host = p->continues = false; /* the bad ones ended the connection */
}

static int describe(struct mfl_http_parser *p, enum http_errno why)
{
        if (why == HPE_HEADER_OVERFLOW)
                bad(p, 431, "the request's head, or a chunk's, is larger than head_max");
        else if (why == HPE_INVALID_VERSION)
                bad(p, 505, "only HTTP/1.0 and HTTP/1.1 are spoken");
        else if (why == HPE_INVALID_METHOD)
                bad(p, 400, "this begins with no method of HTTP (HTTPS to a port without TLS?)");
        else
                bad(p, 400, http_errno_description(why));
        return MFL_HTTP_BAD;
}

int mfl_http_parse(struct mfl_http_parser *p, const char *bytes, size_t n, size_t *ret_used)
{
        if (HTTP_PARSER_ERRNO(&p->core) == HPE_PAUSED)
                http_parser_pause(&p->core, 0);
        if (p->status)
                return MFL_HTTP_BAD;
        const size_t used = http_parser_execute(&p->core, &settings, bytes, n);
        const enum http_errno why = HTTP_PARSER_ERRNO(&p->core);
        *ret_used = used;
        if (why == HPE_PAUSED)
                return MFL_HTTP_REQUEST;
        if (why != HPE_OK || p->status || used < n)
                return describe(p, why);
        return 0;
}
