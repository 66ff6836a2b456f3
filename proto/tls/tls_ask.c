/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tls/tls_ask.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "proto/tls/tls_internal.h"

int mfl_tls_ask(
        int fd, const char *question, char *ret_answer, size_t n_max, size_t *ret_n, struct mfl_error *err)
{
        size_t n = 0, piece = 0;
        SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
        SSL *ssl = ctx ? SSL_new(ctx) : NULL;
        bool asked = ssl && SSL_set_fd(ssl, fd) == 1 && SSL_connect(ssl) == 1 &&
                     SSL_write_ex(ssl, question, strlen(question), &piece) == 1;
        while (asked && n < n_max && SSL_read_ex(ssl, ret_answer + n, n_max - n, &piece) == 1)
                n += piece;
        int r = n ? 0 : mfl_tls_fail(err, "TLS: ask a port");
        ERR_clear_error();
        SSL_free(ssl);
        SSL_CTX_free(ctx);
        if (!r)
                *ret_n = n;
        return r;
}
