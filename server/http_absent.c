/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for http.c in a build without libmicrohttpd: there is no HTTP port, and whoever asks for one is
 * told why. */
#include "server/http.h"

const unsigned mfl_http_statuses[MFL_HTTP_STATUSES - 1] = {200, 304, 400, 403, 404, 405, 503};

int mfl_http_open(const struct mfl_http_options *options, struct mfl_http **ret_http, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "http: %s: this build has no HTTP (it was made without libmicrohttpd): say \"http: off\"",
                options->address);
}

const char *mfl_http_address(const struct mfl_http *http)
{
        return "";
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

void mfl_http_counts(struct mfl_http *http, uint64_t ret_counts[MFL_HTTP_STATUSES])
{
        memset(ret_counts, 0, MFL_HTTP_STATUSES * sizeof *ret_counts);
}

void mfl_http_close(struct mfl_http *http)
{
}
