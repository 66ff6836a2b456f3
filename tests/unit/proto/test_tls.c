/* SPDX-License-Identifier: Apache-2.0 */
/* TLS in memory: contexts from broken files, handshakes that must fail and why, what a certificate says. */
#include <openssl/pem.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/proto/certs.h"

static struct certs certs;
static bool inside_openssl; /* its allocations can be made to fail */

static void *ssl_malloc(size_t n, const char *file, int line)
{
        return inside_openssl ? mfl_malloc(n) : malloc(n);
}

static void *ssl_realloc(void *p, size_t n, const char *file, int line)
{
        return inside_openssl ? mfl_realloc(p, n) : realloc(p, n);
}

static void ssl_free(void *p, const char *file, int line)
{
        free(p);
}

static int setup(void **state)
{
        certs_init(&certs);
        static const struct certs_spec specs[] = {
                {.file = "server", .cn = "server", .san = "DNS:localhost,IP:127.0.0.1,IP:::1", .to_days = 30},
                {.file = "d1", .cn = "d1", .ou = {"daemon"}, .to_days = 30},
                {.file = "many", .cn = "ann", .ou = {"operator", "people", "admin"}, .to_days = 30},
                {.file = "twice", .cn = "ann", .cn2 = "root", .ou = {"viewer"}, .to_days = 30},
                {.file = "odd", .cn = "a\nb", .to_days = 30},
                {.file = "foreign", .ca = 1, .cn = "d1", .ou = {"daemon"}, .to_days = 30},
                {.file = "expired", .cn = "d1", .from_days = -10, .to_days = -2},
                {.file = "early", .cn = "d1", .from_days = 5, .to_days = 30},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(specs); i++)
                certs_issue(&certs, &specs[i]);
        certs_revoke(&certs, "d1", "crl", 5);
        certs_revoke(&certs, "many", "stale", -1);
        return 0;
}

static int teardown(void **state)
{
        certs_deinit(&certs);
        return 0;
}

/* ---- contexts ---- */

static struct mfl_tls_context *context(int ca, const char *file, const char *crl, bool server)
{
        struct certs_files f;
        struct mfl_tls_context *c;
        struct mfl_error err;
        if (mfl_tls_context_new(certs_files(&certs, ca, file, crl, &f), server, &c, &err))
                fail_msg("%s", err.text);
        return c;
}

static void expect_refused(const struct mfl_tls_files *files, const char *first, const char *second)
{
        struct mfl_tls_context *c;
        struct mfl_error err;
        assert_int_equal(mfl_tls_context_new(files, true, &c, &err), MFL_INVALID);
        if (!strstr(err.text, first) || !strstr(err.text, second))
                fail_msg("\"%s\" lacks \"%s\" or \"%s\"", err.text, first, second);
}

static void write_text(const char *path, const char *text)
{
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
        chmod(path, 0600);
}

static void broken_files_are_named(void **state)
{
        struct certs_files f;
        char other[128], junk[128];
        snprintf(junk, sizeof junk, "%s/junk", certs.dir);
        write_text(junk, "nothing of use\n");
        struct mfl_tls_files *files = (struct mfl_tls_files *)certs_files(&certs, 0, "server", NULL, &f);
        snprintf(other, sizeof other, "%s/d1.key", certs.dir);
        struct mfl_tls_files t = *files;
        t.key = other;
        expect_refused(&t, "d1.key", "does not belong to");
        t = *files, t.cert = "/nonexistent/x.pem";
        expect_refused(&t, "certificate /nonexistent/x.pem", "no such file");
        t = *files, t.cert = junk;
        expect_refused(&t, "certificate", "not PEM");
        t = *files, t.key = junk;
        expect_refused(&t, "key", "not PEM");
        t = *files, t.ca = junk;
        expect_refused(&t, "CA", "not PEM");
        t = *files, t.crl = junk;
        expect_refused(&t, "revocation list", "not PEM");
        t = *files, t.crl = "/nonexistent/crl";
        expect_refused(&t, "revocation list /nonexistent/crl", "no such file");
        write_text(junk, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        t = *files, t.cert = junk;
        expect_refused(&t, "certificate", junk);
        expect_refused(certs_files(&certs, 0, "expired", NULL, &f), "expired.pem", "expired on");
        expect_refused(certs_files(&certs, 0, "early", NULL, &f), "early.pem", "not valid before");
}

static void a_key_for_everybody_is_refused(void **state)
{
        struct certs_files f;
        const struct mfl_tls_files *files = certs_files(&certs, 0, "server", NULL, &f);
        struct mfl_tls_context *c;
        chmod(f.key, 0644);
        expect_refused(files, "every user", "chmod 600");
        chmod(f.key, 0640); /* a group of services is fine */
        assert_int_equal(mfl_tls_context_new(files, true, &c, NULL), 0);
        mfl_tls_context_unref(c);
        chmod(f.key, 0600);
}

static void a_key_with_a_passphrase_is_told(void **state)
{
        struct certs_files f;
        const struct mfl_tls_files *files = certs_files(&certs, 0, "server", NULL, &f);
        struct mfl_tls_files t = *files;
        char path[128];
        snprintf(path, sizeof path, "%s/locked.key", certs.dir);
        EVP_PKEY *key = EVP_EC_gen("P-256");
        FILE *file = fopen(path, "w");
        assert_int_equal(PEM_write_PrivateKey(
                                 file, key, EVP_aes_128_cbc(), (const unsigned char *)"pass", 4, NULL, NULL),
                1);
        fclose(file);
        chmod(path, 0600);
        EVP_PKEY_free(key);
        t.key = path;
        expect_refused(&t, "locked.key", "protected by a passphrase");
}

static void a_directory_of_cas_is_read(void **state)
{
        struct certs_files f;
        struct mfl_tls_context *c;
        struct mfl_tls_files t = *certs_files(&certs, 0, "server", NULL, &f);
        t.ca = certs.dir; /* all .pem files, those of both CAs among them */
        char crl[128];
        struct mfl_error err;
        snprintf(crl, sizeof crl, "%s/crl.pem", certs.dir);
        int r = mfl_tls_context_new(&t, true, &c, &err);
        if (r)
                fail_msg("%s", err.text);
        mfl_tls_context_unref(c);
        t.ca = "/tmp/mfl-no-such-directory";
        expect_refused(&t, "CA /tmp/mfl-no-such-directory", "no such file");
}

static void failing_allocations_leak_nothing(void **state)
{
        struct certs_files f;
        const struct mfl_tls_files *files = certs_files(&certs, 0, "server", "crl", &f);
        bool struck = true;
        for (long n = 0; struck; n++) {
                struct mfl_tls_context *c = NULL;
                struct mfl_tls *tls = NULL;
                struct mfl_error err = {{0}};
                mfl_alloc_fail_at(n);
                int r = mfl_tls_context_new(files, false, &c, &err);
                if (!r)
                        r = mfl_tls_new(c, "localhost", &tls, &err);
                if (!r) {
                        r = mfl_tls_handshake(tls, &err);
                        r = r == MFL_TLS_MORE ? 0 : r;
                }
                struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                mfl_tls_free(tls);
                mfl_tls_context_unref(c);
                assert_true(n < 100);
        }
}

/* OpenSSL's own allocations fail, too, one in eleven of them: it may cope, or say what it likes. */
static void openssl_without_memory_fails_in_good_order(void **state)
{
        struct certs_files f;
        const struct mfl_tls_files *files = certs_files(&certs, 0, "server", "crl", &f);
        bool struck = true;
        long n = 0;
        for (inside_openssl = true; struck; n += 11) {
                struct mfl_tls_context *c = NULL;
                struct mfl_tls *tls = NULL;
                struct mfl_error err = {{0}};
                mfl_alloc_fail_at(n);
                int r = mfl_tls_context_new(files, false, &c, &err);
                if (!r)
                        r = mfl_tls_new(c, "localhost", &tls, &err);
                if (!r)
                        r = mfl_tls_handshake(tls, &err);
                struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_true(r == MFL_TLS_MORE || (struck && (r == -ENOMEM || r == MFL_INVALID)));
                assert_true(r == MFL_TLS_MORE || *err.text);
                mfl_tls_free(tls);
                mfl_tls_context_unref(c);
                assert_true(n < 100000);
        }
        inside_openssl = false;
        assert_true(n > 100);
}

/* ---- what a certificate says ---- */

static void subjects_are_read(void **state)
{
        static const struct {
                const char *file, *name, *roles;
        } rows[] = {{"d1", "d1", "daemon"}, {"many", "ann", "operator, admin"}, {"twice", "", "viewer"},
                {"odd", "", "no role"}, {"server", "server", "no role"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                struct mfl_tls_context *c = context(0, rows[i].file, NULL, false);
                const struct mfl_tls_identity *id = mfl_tls_context_identity(c);
                char text[64];
                assert_string_equal(id->name, rows[i].name);
                assert_string_equal(mfl_tls_roles_text(id->roles, text, sizeof text), rows[i].roles);
                assert_int_equal(strlen(id->fingerprint), 64);
                assert_true(*id->serial && id->not_after_unix > 1700000000);
                mfl_tls_context_unref(c);
        }
}

/* ---- handshakes ---- */

struct pair {
        struct mfl_tls *server, *client;
        int server_result, client_result;
        struct mfl_error server_error, client_error;
};

static void move(struct mfl_tls *from, struct mfl_tls *to)
{
        struct mfl_tls_out *out = mfl_tls_output(from);
        static uint8_t wire[65536];
        assert_true(out->n <= sizeof wire);
        memcpy(wire, out->data, out->n);
        mfl_tls_feed(to, wire, out->n);
        out->n = 0;
}

/* Each side as long as it wants more; a client that is done reads once, to hear of a late refusal. */
static void shake(struct pair *p)
{
        p->server_result = p->client_result = MFL_TLS_MORE;
        for (int i = 0; i < 4; i++) {
                uint8_t byte;
                size_t n;
                if (p->client_result == MFL_TLS_MORE)
                        p->client_result = mfl_tls_handshake(p->client, &p->client_error);
                else if (!p->client_result &&
                         mfl_tls_read(p->client, &byte, 1, &n, &p->client_error) == MFL_INVALID)
                        p->client_result = MFL_INVALID;
                move(p->client, p->server);
                if (p->server_result == MFL_TLS_MORE)
                        p->server_result = mfl_tls_handshake(p->server, &p->server_error);
                move(p->server, p->client);
        }
}

static void meet(
        struct pair *p, struct mfl_tls_context *server, struct mfl_tls_context *client, const char *host)
{
        memset(p, 0, sizeof *p);
        assert_int_equal(mfl_tls_new(server, NULL, &p->server, NULL), 0);
        assert_int_equal(mfl_tls_new(client, host, &p->client, NULL), 0);
        mfl_tls_context_unref(server);
        mfl_tls_context_unref(client);
        shake(p);
}

static void part(struct pair *p)
{
        mfl_tls_free(p->server);
        mfl_tls_free(p->client);
}

static void both_know_each_other(void **state)
{
        static const char *const hosts[] = {"localhost", "127.0.0.1", "::1"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(hosts); i++) {
                struct pair p;
                char text[32];
                size_t n;
                meet(&p, context(0, "server", NULL, true), context(0, "d1", NULL, false), hosts[i]);
                assert_int_equal(p.server_result, 0);
                assert_int_equal(p.client_result, 0);
                assert_string_equal(mfl_tls_peer(p.server)->name, "d1");
                assert_int_equal(mfl_tls_peer(p.server)->roles, MFL_TLS_ROLE_DAEMON);
                assert_string_equal(mfl_tls_peer(p.client)->name, "server");
                assert_int_equal(mfl_tls_write(p.client, "hello", 5, NULL), 0);
                assert_true(mfl_tls_output(p.client)->n <= 5 + MFL_TLS_OVERHEAD_BYTES);
                move(p.client, p.server);
                assert_int_equal(mfl_tls_read(p.server, text, 3, &n, NULL), 0);
                assert_int_equal(n, 3);
                assert_int_equal(mfl_tls_read(p.server, text + 3, 9, &n, NULL), 0);
                assert_memory_equal(text, "hello", 5);
                assert_int_equal(mfl_tls_read(p.server, text, 9, &n, NULL), MFL_TLS_MORE);
                mfl_tls_finish(p.client);
                move(p.client, p.server);
                assert_int_equal(mfl_tls_read(p.server, text, 9, &n, NULL), MFL_TLS_END);
                part(&p);
        }
}

/* The n-th record of a side, of one byte; returns how long it is. */
static size_t seal_byte(struct mfl_tls *from, struct mfl_tls *to, uint8_t byte)
{
        uint8_t back;
        size_t n, sealed;
        assert_int_equal(mfl_tls_write(from, &byte, 1, NULL), 0);
        sealed = mfl_tls_output(from)->n;
        move(from, to);
        assert_int_equal(mfl_tls_read(to, &back, 1, &n, NULL), 0);
        assert_int_equal(n, 1);
        assert_int_equal(back, byte);
        assert_int_equal(mfl_tls_read(to, &back, 1, &n, NULL), MFL_TLS_MORE);
        return sealed;
}

/* Each side for itself: three records with one key, then the next is preceded by a KeyUpdate (RFC 8446,
 * section 4.6.3: 5 bytes, in a record with 5 bytes of header, 1 of type and 16 of tag). */
static void keys_are_renewed(void **state)
{
        struct mfl_tls_context *server = context(0, "server", NULL, true),
                               *client = context(0, "d1", NULL, false);
        struct pair p;
        mfl_tls_context_rekey(server, 3);
        mfl_tls_context_rekey(client, 3);
        meet(&p, server, client, "localhost");
        assert_int_equal(p.server_result, 0);
        assert_int_equal(p.client_result, 0);
        for (int i = 0; i < 20; i++) {
                size_t want = 5 + 1 + 1 + 16 + (i && i % 3 == 0 ? 27 : 0);
                assert_int_equal(seal_byte(p.client, p.server, (uint8_t)i), want);
                if (i < 10)
                        assert_int_equal(seal_byte(p.server, p.client, (uint8_t)i), want);
                assert_int_equal(mfl_tls_output(p.server)->n, 0); /* it is not asked to answer */
        }
        part(&p);
}

static void expect(const struct pair *p, const char *server_says, const char *client_says)
{
        assert_int_equal(p->server_result, MFL_INVALID);
        assert_int_equal(p->client_result, MFL_INVALID);
        if (!strstr(p->server_error.text, server_says))
                fail_msg("server: \"%s\" lacks \"%s\"", p->server_error.text, server_says);
        if (!strstr(p->client_error.text, client_says))
                fail_msg("client: \"%s\" lacks \"%s\"", p->client_error.text, client_says);
}

static void refusals_are_told_on_both_sides(void **state)
{
        struct pair p;
        meet(&p, context(0, "server", NULL, true), context(0, "foreign", NULL, false), "localhost");
        expect(&p, "CN = d1 is refused: unable to get local issuer", "does not know the CA");
        part(&p);
        meet(&p, context(0, "server", "crl", true), context(0, "d1", NULL, false), "localhost");
        expect(&p, "CN = d1 is refused: certificate revoked", "it is revoked");
        part(&p);
        meet(&p, context(0, "server", "stale", true), context(0, "d1", NULL, false), "localhost");
        expect(&p, "CRL has expired", "refuses our certificate");
        part(&p);
        meet(&p, context(0, "server", NULL, true), context(0, "d1", NULL, false), "example.org");
        expect(&p, "refuses our certificate", "is not for 'example.org'");
        part(&p);
        meet(&p, context(0, "server", NULL, true), context(0, "d1", NULL, false), "127.0.0.2");
        expect(&p, "refuses our certificate", "is not for '127.0.0.2'");
        part(&p);
        meet(&p, context(0, "server", NULL, true), context(1, "d1", NULL, false), "localhost");
        expect(&p, "does not know the CA", "CN = server is refused");
        part(&p);
        meet(&p, context(0, "d1", NULL, true), context(0, "many", NULL, false), "d1");
        expect(&p, "refuses our certificate", "is not for 'd1'"); /* CN does not count as a host's name */
        part(&p);
}

/* A list of revoked certificates without this one changes nothing. */
static void a_crl_lets_the_others_in(void **state)
{
        struct pair p;
        meet(&p, context(0, "server", "crl", true), context(0, "many", NULL, false), "localhost");
        assert_int_equal(p.server_result, 0);
        assert_int_equal(p.client_result, 0);
        part(&p);
}

static void strangers_are_named(void **state)
{
        static const struct {
                const char *bytes;
                int result;
                const char *text;
        } rows[] = {{"MFL1....", MFL_TLS_PLAIN, "without TLS"}, {"GET / HTTP/1.1\r\n", MFL_INVALID, "HTTP"},
                {"SSH-2.0", MFL_INVALID, "first byte is 53"}, {"\x16\x03\x01", MFL_TLS_MORE, ""},
                {"\x16\x03\x01\xff\xff.........", MFL_INVALID, "handshake failed"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                struct mfl_tls_context *c = context(0, "server", NULL, true);
                struct mfl_tls *tls;
                struct mfl_error err = {{0}};
                assert_int_equal(mfl_tls_new(c, NULL, &tls, NULL), 0);
                mfl_tls_feed(tls, rows[i].bytes, strlen(rows[i].bytes));
                assert_int_equal(mfl_tls_handshake(tls, &err), rows[i].result);
                if (!strstr(err.text, rows[i].text))
                        fail_msg("\"%s\" lacks \"%s\"", err.text, rows[i].text);
                mfl_tls_free(tls);
                mfl_tls_context_unref(c);
        }
}

/* Each byte of a handshake changed, one at a time: it fails or it works, and nothing else happens. */
static void damaged_handshakes_fail(void **state)
{
        static uint8_t hello[4096];
        struct mfl_tls_context *server = context(0, "server", NULL, true),
                               *client = context(0, "d1", NULL, false);
        struct mfl_tls *tls;
        assert_int_equal(mfl_tls_new(client, "localhost", &tls, NULL), 0);
        assert_int_equal(mfl_tls_handshake(tls, NULL), MFL_TLS_MORE);
        size_t n = mfl_tls_output(tls)->n;
        assert_true(n < sizeof hello);
        memcpy(hello, mfl_tls_output(tls)->data, n);
        mfl_tls_free(tls);
        for (size_t i = 0; i < n; i++) {
                struct mfl_error err;
                hello[i] ^= 0x41;
                assert_int_equal(mfl_tls_new(server, NULL, &tls, NULL), 0);
                mfl_tls_feed(tls, hello, n);
                int r = mfl_tls_handshake(tls, &err);
                assert_true(r == MFL_TLS_MORE || r == MFL_INVALID || r == MFL_TLS_PLAIN);
                mfl_tls_free(tls);
                hello[i] ^= 0x41;
        }
        mfl_tls_context_unref(server);
        mfl_tls_context_unref(client);
}

static void a_damaged_record_ends_it(void **state)
{
        struct pair p;
        char text[16];
        size_t n;
        struct mfl_error err;
        meet(&p, context(0, "server", NULL, true), context(0, "d1", NULL, false), "localhost");
        assert_int_equal(mfl_tls_write(p.client, "hello", 5, NULL), 0);
        mfl_tls_output(p.client)->data[7] ^= 1;
        move(p.client, p.server);
        assert_int_equal(mfl_tls_read(p.server, text, sizeof text, &n, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "a record is damaged"));
        part(&p);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(broken_files_are_named),
                cmocka_unit_test(a_key_for_everybody_is_refused),
                cmocka_unit_test(a_key_with_a_passphrase_is_told),
                cmocka_unit_test(a_directory_of_cas_is_read),
                cmocka_unit_test(failing_allocations_leak_nothing),
                cmocka_unit_test(openssl_without_memory_fails_in_good_order),
                cmocka_unit_test(subjects_are_read),
                cmocka_unit_test(both_know_each_other),
                cmocka_unit_test(keys_are_renewed),
                cmocka_unit_test(refusals_are_told_on_both_sides),
                cmocka_unit_test(a_crl_lets_the_others_in),
                cmocka_unit_test(strangers_are_named),
                cmocka_unit_test(damaged_handshakes_fail),
                cmocka_unit_test(a_damaged_record_ends_it),
        };
        if (!CRYPTO_set_mem_functions(ssl_malloc, ssl_realloc, ssl_free))
                return 1;
        return cmocka_run_group_tests_name("tls", tests, setup, teardown);
}
