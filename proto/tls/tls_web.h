/* SPDX-License-Identifier: Apache-2.0 */
/* TLS for HTTP: the server shows its certificate, and a client needs none unless a CA says which ones are taken. Apart
 * from that, as proto/tls/tls.h. */
#ifndef MFL_PROTO_TLS_TLS_WEB_H
#define MFL_PROTO_TLS_TLS_WEB_H

#include "proto/tls/tls.h"

/* files->ca NULL or "": clients show no certificate, and mfl_tls_peer is empty. Otherwise as mfl_tls_context_new. */
int mfl_tls_context_new_web(
        const struct mfl_tls_files *files, struct mfl_tls_context **ret_context, struct mfl_error *err);

#endif
