/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of the HTTP port: libmicrohttpd's, which is GnuTLS's.
 *
 *   - certificate and key are read from files, and given to each handshake;
 *   - visitors are asked for a certificate; the handshake proves that they have its key, and proto/tls whether it counts.
 * Fails: files that can't be read, or do not belong together. */
#include "server/web/http_internal.h"

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <microhttpd.h>

#include "common/base/fs.h"
#include "proto/tls/tls_sign.h"

#define PEM_MAX ((size_t)1 << 20)
#define CHAIN_MAX 8u
#define CHAIN_BYTES_MAX 32768u
#define PEOPLE (MFL_TLS_ROLE_VIEWER | MFL_TLS_ROLE_OPERATOR | MFL_TLS_ROLE_ADMIN)

struct mfl_http_tls {
        struct mfl_http_tls *before;
        gnutls_pcert_st chain[CHAIN_MAX];
        unsigned n_chain;
        gnutls_privkey_t key;
        char *trust; /* PEM: which CAs' certificates visitors are asked for; NULL: of any CA */
        bool told;   /* HTTP thread: GnuTLS has them */
        struct mfl_tls_signer *judge;
};

/* libmicrohttpd's callback has no argument of ours. A process has one HTTP port. */
static _Atomic(struct mfl_http_tls *) newest;

static int fail(struct mfl_error *err, const char *path, int code)
{
        return code == GNUTLS_E_MEMORY_ERROR
                       ? mfl_fail_memory(err, PEM_MAX, "certificates")
                       : mfl_fail(err, MFL_INVALID, "http_tls: %s: %s", path, gnutls_strerror(code));
}

static int read_pem(const char *path, char **ret_text, gnutls_datum_t *ret_datum, struct mfl_error *err)
{
        size_t n;
        int r = mfl_fs_read(path, PEM_MAX, ret_text, &n, err);
        if (!r)
                *ret_datum = (gnutls_datum_t){.data = (unsigned char *)*ret_text, .size = (unsigned)n};
        return r < 0 && r != -ENOMEM ? MFL_INVALID : r;
}

static int read_own(const struct mfl_tls_files *files, struct mfl_http_tls *tls, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *cert = NULL, *key = NULL;
        gnutls_datum_t datum;
        int code, r = read_pem(files->cert, &cert, &datum, err);
        if (r)
                return r;
        tls->n_chain = CHAIN_MAX;
        code = gnutls_pcert_list_import_x509_raw(tls->chain, &tls->n_chain, &datum, GNUTLS_X509_FMT_PEM, 0);
        if (code < 0) {
                tls->n_chain = 0;
                return fail(err, files->cert, code);
        }
        r = read_pem(files->key, &key, &datum, err);
        if (r)
                return r;
        code = gnutls_privkey_init(&tls->key);
        if (!code)
                code = gnutls_privkey_import_x509_raw(tls->key, &datum, GNUTLS_X509_FMT_PEM, NULL, 0);
        return code ? fail(err, files->key, code) : 0;
}

int mfl_http_tls_read(const struct mfl_tls_files *files, struct mfl_http_tls *before,
        struct mfl_http_tls **ret_tls, struct mfl_error *err)
{
        struct mfl_http_tls *tls = mfl_calloc(1, sizeof *tls);
        size_t n;
        if (!tls)
                return mfl_fail_memory(err, sizeof *tls, "certificates");
        int r = mfl_tls_signer_new(
                files, &tls->judge, err); /* also checks that the key is the certificate's */
        if (!r)
                r = read_own(files, tls, err);
        if (!r && mfl_fs_read(files->ca, PEM_MAX, &tls->trust, &n, err))
                tls->trust = NULL; /* a directory: browsers then offer all certificates that they have */
        if (r) {
                mfl_http_tls_free(tls);
                return r;
        }
        tls->before = before;
        atomic_store(&newest, tls);
        *ret_tls = tls;
        return 0;
}

void mfl_http_tls_free(struct mfl_http_tls *tls)
{
        while (tls) {
                struct mfl_http_tls *before = tls->before;
                for (unsigned i = 0; i < tls->n_chain; i++)
                        gnutls_pcert_deinit(&tls->chain[i]);
                if (tls->key)
                        gnutls_privkey_deinit(tls->key);
                mfl_tls_signer_free(tls->judge);
                free(tls->trust);
                free(tls);
                tls = before;
        }
}

/* libmicrohttpd reads them once, and GnuTLS only ever adds: browsers may also offer certificates of a CA that was replaced, and those do not
 * count. */
static void tell_trust(gnutls_session_t session, struct mfl_http_tls *tls)
{
        gnutls_certificate_credentials_t ours;
        if (tls->told || !tls->trust ||
                gnutls_credentials_get(session, GNUTLS_CRD_CERTIFICATE, (void **)&ours))
                return;
        const gnutls_datum_t pem = {
                .data = (unsigned char *)tls->trust, .size = (unsigned)strlen(tls->trust)};
        gnutls_certificate_set_x509_trust_mem(ours, &pem, GNUTLS_X509_FMT_PEM);
        tls->told = true;
}

/* HTTP thread, in each handshake. */
static int choose(gnutls_session_t session, const gnutls_datum_t *ca_names, int n_names,
        const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **ret_chain,
        unsigned *ret_n, gnutls_privkey_t *ret_key)
{
        struct mfl_http_tls *tls = atomic_load(&newest);
        gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUEST);
        tell_trust(session, tls);
        *ret_chain = tls->chain;
        *ret_n = tls->n_chain;
        *ret_key = tls->key;
        return 0;
}

void mfl_http_tls_options(struct mfl_http_tls *tls, struct MHD_OptionItem *ret_items)
{
        static char versions[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3";
        size_t n = 0;
        if (tls) {
                ret_items[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0, versions};
                ret_items[n++] =
                        (struct MHD_OptionItem){MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(uintptr_t)choose};
        }
        ret_items[n] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
}

bool mfl_http_visitor(
        struct mfl_http *http, struct MHD_Connection *connection, struct mfl_tls_identity *ret_visitor)
{
        const union MHD_ConnectionInfo *info =
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
        unsigned n = 0;
        const gnutls_datum_t *chain =
                info && info->tls_session ? gnutls_certificate_get_peers(info->tls_session, &n) : NULL;
        uint8_t der[CHAIN_BYTES_MAX];
        uint32_t at = 0;
        struct mfl_error err;
        for (unsigned i = 0; chain && i < n; i++) {
                if (chain[i].size > sizeof der - at)
                        return false;
                memcpy(der + at, chain[i].data, chain[i].size);
                at += chain[i].size;
        }
        return at && !mfl_tls_check(atomic_load(&newest)->judge, der, at, ret_visitor, &err) &&
               ret_visitor->roles & PEOPLE && *ret_visitor->name;
}
