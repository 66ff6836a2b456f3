/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C and SHA-256 against published values, whole and in pieces. */
#include "tests/lib/test.h"
#include "common/base/crc32c.h"
#include "common/base/digest.h"

static void crc_gives_the_published_numbers(void **state)
{
        /* RFC 3720, appendix B.4. */
        uint8_t zeros[32] = {0}, ones[32], up[32];
        memset(ones, 0xff, sizeof ones);
        for (int i = 0; i < 32; i++)
                up[i] = (uint8_t)i;
        assert_int_equal(mfl_crc32c(0, "123456789", 9), 0xE3069283u);
        assert_int_equal(mfl_crc32c(0, zeros, 32), 0x8A9136AAu);
        assert_int_equal(mfl_crc32c(0, ones, 32), 0x62A8AB43u);
        assert_int_equal(mfl_crc32c(0, up, 32), 0x46DD794Eu);
        assert_int_equal(mfl_crc32c(0, NULL, 0), 0);
}

static void crc_continues(void **state)
{
        for (size_t cut = 0; cut <= 9; cut++)
                assert_int_equal(
                        mfl_crc32c(mfl_crc32c(0, "123456789", cut), &"123456789"[cut], 9 - cut), 0xE3069283u);
        /* At every alignment the same. */
        uint8_t buffer[512 + 16];
        for (size_t shift = 0; shift < 16; shift++) {
                for (size_t i = 0; i < 512; i++)
                        buffer[shift + i] = (uint8_t)(i * 31);
                uint32_t bytewise = 0;
                for (size_t i = 0; i < 512; i++)
                        bytewise = mfl_crc32c(bytewise, &buffer[shift + i], 1);
                assert_int_equal(mfl_crc32c(0, buffer + shift, 512), bytewise);
        }
}

static void sha256_gives_the_published_numbers(void **state)
{
        /* FIPS 180-2, appendix B. */
        uint8_t digest[MFL_SHA256_BYTES];
        char hex[MFL_SHA256_HEX_BYTES];
        assert_int_equal(mfl_sha256("abc", 3, digest, NULL), 0);
        mfl_hex(digest, sizeof digest, hex);
        assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_int_equal(mfl_sha256_number(digest), 0xeacf018fbf1678bau);
        assert_int_equal(mfl_sha256(NULL, 0, digest, NULL), 0);
        mfl_hex(digest, sizeof digest, hex);
        assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static void sha256_in_pieces(void **state)
{
        const char *text = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        struct mfl_sha256 sha;
        uint8_t digest[MFL_SHA256_BYTES];
        char hex[MFL_SHA256_HEX_BYTES];
        assert_int_equal(mfl_sha256_init(&sha, NULL), 0);
        for (size_t i = 0; text[i]; i += 7)
                assert_int_equal(mfl_sha256_update(&sha, text + i, 7, NULL), 0);
        assert_int_equal(mfl_sha256_update(&sha, NULL, 0, NULL), 0);
        assert_int_equal(mfl_sha256_final(&sha, digest, NULL), 0);
        mfl_sha256_deinit(&sha);
        mfl_sha256_deinit(&sha);
        mfl_hex(digest, sizeof digest, hex);
        assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(crc_gives_the_published_numbers),
                cmocka_unit_test(crc_continues),
                cmocka_unit_test(sha256_gives_the_published_numbers),
                cmocka_unit_test(sha256_in_pieces),
        };
        return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
