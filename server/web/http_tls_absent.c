/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces http_tls.c in a build without GnuTLS: a configuration that asks for TLS on the HTTP port is refused. */
#include <microhttpd.h>

#include "server/web/http_internal.h"

int mfl_http_tls_read(const struct mfl_tls_files *files, struct mfl_http_tls *before,
        struct mfl_http_tls **ret_tls, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "http_tls: this program was built without GnuTLS: set \"http_tls: off\", and put a reverse "
                "proxy before the port (docs/service.md)");
}

void mfl_http_tls_free(struct mfl_http_tls *tls)
{
}

void mfl_http_tls_options(struct mfl_http_tls *tls, struct MHD_OptionItem *ret_items)
{
        ret_items[0] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
}

bool mfl_http_visitor(
        struct mfl_http *http, struct MHD_Connection *connection, struct mfl_tls_identity *ret_visitor)
{
        return false;
}
