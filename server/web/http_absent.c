/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces http.c in a build without libmicrohttpd: a configuration that asks for an HTTP port is refused. */
#include "server/web/http.h"

#include <unistd.h>

const unsigned mfl_http_statuses[MFL_HTTP_STATUSES - 1] = {200, 304, 400, 403, 404, 405, 503};

int mfl_http_open(const struct mfl_http_options *options, struct mfl_http **ret_http, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "http: %s: this program was built without libmicrohttpd and has no HTTP port: set \"http: "
                "off\"",
                options->address);
}

const char *mfl_http_address(const struct mfl_http *http)
{
        return "";
}

int mfl_http_renew(struct mfl_http *http, const struct mfl_tls_files *files, struct mfl_error *err)
{
        return 0;
}

bool mfl_http_is_loopback(const struct mfl_http *http)
{
        return true;
}

void mfl_http_beat(struct mfl_http *http, const char *unwell, const char *unready)
{
}

void mfl_http_answer(
        struct mfl_http *http, const char *path, unsigned status, const char *type, char *body, size_t n)
{
        free(body);
}

void mfl_http_acted(struct mfl_http *http, uint64_t id, const struct mfl_http_result *result)
{
        free(result->body);
        if (result->fd >= 0)
                close(result->fd);
}

void mfl_http_counts(struct mfl_http *http, uint64_t ret_counts[MFL_HTTP_STATUSES])
{
        memset(ret_counts, 0, MFL_HTTP_STATUSES * sizeof *ret_counts);
}

void mfl_http_close(struct mfl_http *http)
{
}
