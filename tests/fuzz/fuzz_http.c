/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes HTTP requests: the first byte says in pieces of which size the rest arrives. Whatever the pieces, the same requests
 * come out. */
#include "serve/http/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t budget = 1 << 20;
static const struct mfl_http_limits limits = {
        .head_bytes_max = 2048, .body_bytes_max = 5000, .budget = &budget};

struct seen {
        uint32_t n, hash;
        int status;
};

static uint32_t mix(uint32_t hash, const void *bytes, size_t n)
{
        for (size_t i = 0; i < n; i++)
                hash = (hash ^ ((const uint8_t *)bytes)[i]) * 16777619u;
        return hash;
}

static struct seen feed(const uint8_t *data, size_t size, size_t step)
{
        struct mfl_http_parser *p = malloc(sizeof *p);
        struct seen seen = {0};
        mfl_assert(p);
        mfl_http_set_head_max(limits.head_bytes_max);
        mfl_http_parser_init(p, &limits);
        for (size_t at = 0; at < size;) {
                const size_t n = MFL_MIN(step, size - at);
                size_t used = 0;
                char *own = malloc(n);
                mfl_assert(own);
                memcpy(own, data + at, n);
                const int r = mfl_http_parse(p, own, n, &used);
                mfl_assert(r == MFL_HTTP_BAD || (used <= n && (r || used == n)));
                if (r == MFL_HTTP_REQUEST) {
                        const struct mfl_http_request *q = &p->request;
                        mfl_assert(q->body_bytes <= limits.body_bytes_max);
                        seen.n++;
                        seen.hash = mix(mix(seen.hash, q->path, strlen(q->path)), q->body, q->body_bytes);
                        mfl_http_parser_next(p);
                }
                free(own);
                if (r == MFL_HTTP_BAD) {
                        mfl_assert(p->status >= 400 && p->status < 600 && p->error);
                        seen.status = p->status;
                        break;
                }
                at += used;
        }
        mfl_http_parser_deinit(p);
        free(p);
        mfl_assert(budget == 1 << 20);
        return seen;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        if (size < 2)
                return 0;
        const struct seen whole = feed(data + 1, size - 1, size),
                          pieces = feed(data + 1, size - 1, 1u + data[0]);
        mfl_assert(whole.n == pieces.n && whole.hash == pieces.hash && !whole.status == !pieces.status);
        return 0;
}
