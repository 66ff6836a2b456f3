/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures by certificates' keys: whose are taken, and what is wrong with the others. */
#include <stdio.h>

#include "proto/tls/tls_sign.h"
#include "tests/unit/proto/certs.h"

static struct certs certs;

static int setup(void **state)
{
        static const struct certs_spec specs[] = {
                {.file = "d1", .cn = "d1", .ou = {"daemon"}, .to_days = 30},
                {.file = "d2", .cn = "d2", .ou = {"daemon"}, .to_days = 30},
                {.file = "ann", .cn = "ann", .ou = {"operator"}, .to_days = 30},
                {.file = "foreign", .ca = 1, .cn = "d1", .ou = {"daemon"}, .to_days = 30},
        };
        certs_init(&certs);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(specs); i++)
                certs_issue(&certs, &specs[i]);
        certs_revoke(&certs, "d2", "crl", 5);
        return 0;
}

static int teardown(void **state)
{
        certs_deinit(&certs);
        return 0;
}

static struct mfl_tls_signer *signer(int ca, const char *file, const char *crl)
{
        struct certs_files f;
        struct mfl_tls_signer *s;
        struct mfl_error err;
        if (mfl_tls_signer_new(certs_files(&certs, ca, file, crl, &f), &s, &err))
                fail_msg("%s", err.text);
        return s;
}

/* `by` signs, d1 checks. words: of the refusal; NULL: it is taken. */
static void expect(int ca, const char *by, const char *crl, bool change, const char *words)
{
        struct mfl_tls_signer *from = signer(ca, by, NULL), *to = signer(0, "d1", crl);
        struct mfl_tls_identity identity;
        struct mfl_error err = {{0}};
        uint8_t signature[512], data[3] = {1, 2, 3};
        uint32_t n = 0, n_chain;
        const uint8_t *chain = mfl_tls_signer_chain(from, &n_chain);
        assert_int_equal(mfl_tls_sign(from, data, sizeof data, signature, sizeof signature, &n, &err), 0);
        data[1] ^= change;
        int r = mfl_tls_verify(to, chain, n_chain, data, sizeof data, signature, n, &identity, &err);
        if (!words) {
                assert_int_equal(r, 0);
                assert_string_equal(identity.name, by);
                assert_int_equal(strlen(identity.fingerprint), 64);
        } else {
                assert_int_equal(r, MFL_INVALID);
                if (!strstr(err.text, words))
                        fail_msg("expected '%s' in: %s", words, err.text);
        }
        mfl_tls_signer_free(from);
        mfl_tls_signer_free(to);
}

static void test_who_is_taken(void **state)
{
        expect(0, "d1", NULL, false, NULL);
        expect(0, "d2", NULL, false, NULL);
        expect(0, "d2", NULL, true, "has not signed that");
        expect(0, "d2", "crl", false, "revoked");
        expect(0, "ann", NULL, false, "is not a daemon's");
        expect(1, "foreign", NULL, false, "is refused");
}

static void test_garbage(void **state)
{
        struct mfl_tls_signer *s = signer(0, "d1", NULL);
        struct mfl_tls_identity identity;
        struct mfl_error err;
        uint32_t n;
        const uint8_t *chain = mfl_tls_signer_chain(s, &n);
        static const uint8_t junk[64] = {0x30, 0x82, 0xff, 0xff, 1};
        assert_int_equal(
                mfl_tls_verify(s, junk, sizeof junk, "x", 1, junk, 64, &identity, &err), MFL_INVALID);
        assert_int_equal(mfl_tls_verify(s, chain, n - 1, "x", 1, junk, 64, &identity, &err), MFL_INVALID);
        assert_int_equal(mfl_tls_verify(s, chain, n, "x", 1, junk, 64, &identity, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "has not signed that"));
        mfl_tls_signer_free(s);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_who_is_taken), cmocka_unit_test(test_garbage)};
        return cmocka_run_group_tests(tests, setup, teardown);
}
