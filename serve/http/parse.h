/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP/1.1 requests out of a stream of bytes: incremental, pipelined, bounded; without sockets or clock. The syntax is
 * http-parser's (RFC 7230), the limits and the choice of headers are ours.
 *
 *     while (n) {
 *             r = mfl_http_parse(parser, bytes, n, &used);          bytes += used, n -= used
 *             r == 0: all bytes are consumed, the request goes on
 *             r == MFL_HTTP_REQUEST: parser->request is whole; use it, then mfl_http_parser_next
 *             r == MFL_HTTP_BAD: answer parser->status with parser->error, then close: what follows can't be trusted
 *     }
 *
 * A body that lies in one piece in the caller's bytes is lent, not copied: request.body is valid until
 * mfl_http_parser_next, or until those bytes change. Memory for other bodies grows as bytes come, never by what a header
 * claims, and counts against the budget that connections share. One thread at a time.
 */
#ifndef MFL_SERVE_HTTP_PARSE_H
#define MFL_SERVE_HTTP_PARSE_H

#include <http_parser.h>

#include "common/base/base.h"

enum {
        MFL_HTTP_REQUEST = 16,
        MFL_HTTP_BAD = 17,
};

struct mfl_http_limits {
        uint32_t head_bytes_max; /* request line and headers; one limit for the whole process */
        uint64_t body_bytes_max;
        uint64_t *budget; /* bytes that bodies of all connections may still take; NULL: no limit */
};

enum mfl_http_method {
        MFL_HTTP_GET,
        MFL_HTTP_HEAD,
        MFL_HTTP_POST,
        MFL_HTTP_OTHER,
};

struct mfl_http_request {
        enum mfl_http_method method;
        char path[512];      /* decoded, printable ASCII, without the query; begins with '/' */
        char bearer[256];    /* of "Authorization: Bearer ..."; "" if there is none */
        char key[128];       /* of "Mfl-Key", which chooses between versions (serve/batch/canary.h) */
        uint64_t json_bytes; /* of Inference-Header-Content-Length */
        bool has_json_bytes;
        bool encoded;    /* Content-Encoding is something other than identity */
        bool from_page;  /* a page of the web asks: there is an Origin */
        bool keep_alive; /* the connection stays open after the answer */
        bool old;        /* HTTP/1.0 */
        const char *body;
        size_t body_bytes;
};

struct mfl_http_parser {
        struct mfl_http_request request;
        bool in_head, in_body; /* something of a request has come: its head, its body */
        bool continues;        /* the client waits for "100 Continue"; the caller clears it */
        int status;            /* after MFL_HTTP_BAD */
        const char *error;
        /* Private. */
        http_parser core;
        const struct mfl_http_limits *limits;
        char url[1024], name[40], value[300];
        size_t url_bytes, name_bytes, value_bytes;
        bool value_began, long_value, has_host, bad_host, bad_coding, bad_json_bytes, bad_key;
        char *own; /* a body that came in pieces */
        size_t own_bytes, own_room;
        bool lent;
};

/* Of the whole process: how long a head may be. */
void mfl_http_set_head_max(uint32_t bytes);
void mfl_http_parser_init(struct mfl_http_parser *parser, const struct mfl_http_limits *limits);
void mfl_http_parser_deinit(struct mfl_http_parser *parser);
int mfl_http_parse(struct mfl_http_parser *parser, const char *bytes, size_t n, size_t *ret_used);
/* Forgets the request that was whole. */
void mfl_http_parser_next(struct mfl_http_parser *parser);

#endif
