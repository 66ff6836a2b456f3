/* SPDX-License-Identifier: Apache-2.0 */
/* Primitives of secure sums: published vectors, shares, degrees, and the key schedule, whose vectors an independent program made
 * (Python with the package cryptography 48: X25519, HKDF, AES-CTR, AES-GCM and hashlib, from the text of schedule.h). */
#include "common/base/rng.h"
#include "common/secure/ring.h"
#include "common/secure/schedule.h"
#include "common/secure/shamir.h"
#include <math.h>
#include "tests/lib/test.h"

static void from_hex(const char *hex, uint8_t *ret, size_t n)
{
        assert_int_equal(strlen(hex), 2 * n);
        for (size_t i = 0; i < n; i++) {
                const char byte[3] = {hex[2 * i], hex[2 * i + 1], 0};
                ret[i] = (uint8_t)strtoul(byte, NULL, 16);
        }
}

static void expect_hex(const uint8_t *bytes, size_t n, const char *hex)
{
        char text[257];
        assert_true(2 * n < sizeof text);
        mfl_hex(bytes, n, text);
        assert_string_equal(text, hex);
}

/* RFC 7748, 6.1: Bob's side. */
static void test_agree(void **state)
{
        struct mfl_secure_key bob, alice, public, secret;
        struct mfl_error err;
        (void)state;
        from_hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb", bob.v, 32);
        from_hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a", alice.v, 32);
        assert_int_equal(mfl_secure_public(&bob, &public, NULL), 0);
        expect_hex(public.v, 32, "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
        assert_int_equal(mfl_secure_agree(&bob, &alice, &secret, NULL), 0);
        expect_hex(secret.v, 32, "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
        memset(&alice, 0, sizeof alice);
        assert_int_equal(mfl_secure_agree(&bob, &alice, &secret, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "low order"));
}

/* ---- shares ---- */

static void test_shares(void **state)
{
        (void)state;
        for (uint32_t t = 1; t <= 30; t += 7) {
                struct mfl_secure_key secret, share[255], joined;
                uint8_t random[30 * 32], x[30], number = 7;
                struct mfl_secure_key picked[30];
                assert_int_equal(mfl_secure_random(&secret, sizeof secret, NULL), 0);
                assert_int_equal(mfl_secure_random(random, sizeof random, NULL), 0);
                for (uint32_t i = 0; i < 255; i++)
                        mfl_shamir_share(&secret, t, random, (uint8_t)(i + 1), &share[i]);
                for (uint32_t i = 0; i < t; i++) { /* 8 * 37 mod 255 and so on: all different */
                        number = (uint8_t)((number + 37) % 255);
                        x[i] = (uint8_t)(number + 1);
                        picked[i] = share[number];
                }
                mfl_shamir_join(t, x, picked, &joined);
                assert_memory_equal(&joined, &secret, sizeof secret);
                if (t == 1)
                        continue;
                mfl_shamir_join(t - 1, x, picked, &joined);
                assert_memory_not_equal(&joined, &secret, sizeof secret);
                picked[0].v[31] ^= 1;
                mfl_shamir_join(t, x, picked, &joined);
                assert_memory_not_equal(&joined, &secret, sizeof secret);
        }
}

/* The field's multiplication, FIPS 197, 4.2: {57} * {83} = {c1}. The share at x of secret s with the coefficient c is s + c x. */
static void test_field(void **state)
{
        struct mfl_secure_key secret = {{0}}, share;
        uint8_t random[32];
        (void)state;
        memset(random, 0x57, sizeof random);
        mfl_shamir_share(&secret, 2, random, 0x83, &share);
        assert_int_equal(share.v[0], 0xc1);
        secret.v[0] = 0xff;
        mfl_shamir_share(&secret, 2, random, 0x13, &share); /* {57} * {13} = {fe} */
        assert_int_equal(share.v[0], 0xfe ^ 0xff);
}

/* ---- degrees ---- */

static void test_degrees(void **state)
{
        static const struct {
                uint32_t n;
                double bad, lost;
                uint32_t k, t;
        } rows[] = {{3, .1, .1, 2, 3}, {5, .1, .1, 4, 4}, {20, .1, .1, 19, 14}, {20, .5, .1, 19, 16},
                {50, .1, .1, 20, 15}, {100, .1, .1, 34, 24}, {200, .1, .1, 58, 41}, {500, .1, .1, 112, 83},
                {1000, .1, .1, 146, 109}, {100, .05, .1, 30, 20}, {1000, .05, .1, 112, 80},
                {500, .1, .05, 86, 69}, {200, .2, .2, 120, 82}, {50, .1, .3, 40, 25}, {30, .3, .3, 29, 21}};
        struct mfl_secure_graph graph;
        struct mfl_error err;
        uint32_t k, t;
        (void)state;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                const struct mfl_secure_spec spec = {64, rows[i].bad, rows[i].lost};
                assert_int_equal(mfl_secure_degree(&spec, rows[i].n, &k, &t, NULL), 0);
                assert_int_equal(k, rows[i].k);
                assert_int_equal(t, rows[i].t);
        }
        const struct mfl_secure_spec spec = {64, .1, .1}, hopeless = {64, .5, .5};
        assert_int_equal(mfl_secure_degree(&spec, 2, &k, &t, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "at least 3 participants"));
        assert_int_equal(mfl_secure_degree(&hopeless, 100, &k, &t, &err), MFL_INVALID);
        for (uint32_t n = 3; n < 60;
                n++) { /* each has k neighbours, who hold shares with different numbers */
                uint8_t transcript[32] = {(uint8_t)n};
                assert_int_equal(mfl_secure_graph_make(&spec, n, transcript, &graph, NULL), 0);
                for (uint32_t a = 0; a < n; a++) {
                        bool seen[256] = {true};
                        uint32_t degree = 0;
                        for (uint32_t b = 0; b < n; b++) {
                                uint32_t x = mfl_secure_share_number(&graph, a, b);
                                if (a != b)
                                        assert_int_equal(x > 0, mfl_secure_are_neighbours(&graph, b, a));
                                assert_true(x <= graph.k + 1 && (!x || !seen[x]));
                                seen[x] = true;
                                degree += a != b && x;
                        }
                        assert_int_equal(degree, graph.k);
                }
        }
}

/* ---- the schedule ---- */

struct vector {
        struct mfl_secure_key channel[4], mask[4]; /* private, 1 to 3 */
        uint8_t context[32], transcript[32];
        struct mfl_secure_msg peers;
        struct mfl_secure_graph graph;
        int order[3];
};

static int place_of(const uint8_t first) /* of a member, by the first byte of its channel key */
{
        static const uint8_t bytes[] = {0xce, 0x5d, 0xa4};
        for (int i = 0; i < 3; i++)
                if (bytes[i] == first)
                        return i;
        fail();
        return -1;
}

static void make_vector(struct vector *v)
{
        uint8_t params[32], blob[3][256], signature[64];
        uint32_t n[3] = {0};
        const struct mfl_secure_spec spec = {64, .1, .1};
        *v = (struct vector){.peers = {.step = MFL_SECURE_PEERS}};
        for (int i = 0; i < 32; i++)
                params[i] = (uint8_t)i;
        assert_int_equal(mfl_secure_context("j-000001", 7, params, "a job", v->context, NULL), 0);
        for (int i = 1; i <= 3; i++) {
                const char chain[] = {'c', 'h', 'a', 'i', 'n', (char)('0' + i)};
                struct mfl_secure_keys keys = {.signature = signature,
                        .n_signature = 60 + (uint32_t)i,
                        .who = {(uint64_t)i, 0x0102030405060708, UINT64_MAX - (uint64_t)i, 0},
                        .chain = (const uint8_t *)chain,
                        .n_chain = 6};
                memset(signature, 0xa0 + i, sizeof signature);
                memset(&v->channel[i], i, sizeof v->channel[i]);
                memset(&v->mask[i], 16 + i, sizeof v->mask[i]);
                assert_int_equal(mfl_secure_public(&v->channel[i], &keys.channel, NULL), 0);
                assert_int_equal(mfl_secure_public(&v->mask[i], &keys.mask, NULL), 0);
                int at = place_of(keys.channel.v[0]);
                v->order[at] = i;
                n[at] = mfl_secure_keys_write(&keys, blob[at]);
        }
        for (uint32_t i = 0; i < 3; i++)
                assert_int_equal(mfl_secure_msg_add(&v->peers, i, blob[i], n[i]), 0);
        assert_int_equal(mfl_secure_transcript(&spec, &v->peers, &v->graph, v->transcript, NULL), 0);
}

static void test_schedule(void **state)
{
        struct vector v;
        struct mfl_secure_key key, seed, public[3];
        struct mfl_secure_keys keys;
        struct mfl_secure_set set = {{5}};
        uint8_t statement[MFL_SECURE_SET_STATEMENT], digest[32];
        uint64_t words[5001] = {0};
        (void)state;
        make_vector(&v);
        expect_hex(v.context, 32, "ba4223deb4ba68642f30ba30f41cea0fb798921b40f6315d0e791b0d1d08a9e1");
        expect_hex(v.transcript, 32, "f75044b40419f4745731fb1ba6c6feaf306d307897d2fc8e46ac97ff0b11607d");
        for (uint32_t i = 0; i < 3; i++) {
                const struct mfl_secure_part *part = &v.peers.parts[i];
                assert_int_equal(mfl_secure_keys_read(v.peers.bytes + part->at, part->n, &keys, NULL), 0);
                public[i] = keys.channel;
                if (i)
                        continue;
                mfl_secure_keys_statement(v.context, &keys, statement);
                assert_int_equal(mfl_sha256(statement, MFL_SECURE_KEYS_STATEMENT, digest, NULL), 0);
                expect_hex(digest, 32, "a6622c81ed30ec9b8fc61ba2b28d54ce0a195cb470457bf848ee0bc6f8a877d0");
        }
        assert_int_equal(
                mfl_secure_share_key(&v.channel[v.order[0]], &public[1], v.transcript, 0, 1, &key, NULL), 0);
        expect_hex(key.v, 32, "427a49f70733784c7d2d9b81086de121ea69c37bce62e14c27bf482b17493c5a");
        uint8_t sealed[26];
        char plain[11] = "";
        assert_int_equal(mfl_secure_seal(&key, "two shares", 10, sealed, NULL), 0);
        expect_hex(sealed, sizeof sealed, "6c1055d2257940c2a7fca775cca64ca3fe0b04b029c25a725b76");
        assert_int_equal(mfl_secure_unseal(&key, sealed, sizeof sealed, plain, NULL), 0);
        assert_string_equal(plain, "two shares");
        sealed[3] ^= 1;
        assert_int_equal(mfl_secure_unseal(&key, sealed, sizeof sealed, plain, NULL), MFL_INVALID);
        struct mfl_secure_key mask_0;
        assert_int_equal(mfl_secure_public(&v.mask[v.order[0]], &mask_0, NULL), 0);
        assert_int_equal(
                mfl_secure_pair_mask(&v.mask[v.order[2]], &mask_0, v.transcript, 2, 0, &key, NULL), 0);
        expect_hex(key.v, 32, "cdf4953bf4940b991733b3a07bca4a10dc903bcdff2afa10176ee8cc80b938f1");
        assert_int_equal(mfl_secure_mask(&key, false, 0, words, 5001, NULL), 0);
        assert_true(words[0] == 0x16e32e1fdf92f021 && words[1] == 0x4c07f7c4c8cc78ff &&
                    words[5000] == 0x289ffb0e25dda64c);
        assert_int_equal(
                mfl_secure_mask(&key, true, 0, words, 3000, NULL), 0); /* in pieces, an odd one among them */
        assert_int_equal(mfl_secure_mask(&key, true, 3000, words + 3000, 1, NULL), 0);
        assert_int_equal(mfl_secure_mask(&key, true, 3001, words + 3001, 2000, NULL), 0);
        for (int i = 0; i < 5001; i++)
                assert_true(!words[i]);
        for (int i = 0; i < 32; i++)
                seed.v[i] = (uint8_t)(100 + i);
        assert_int_equal(mfl_secure_self_mask(&seed, v.transcript, 1, &key, NULL), 0);
        expect_hex(key.v, 32, "d2365e52f46125079cb50e5f914bc5adff55b42426f984ae4acd8518408d9535");
        uint32_t n = mfl_secure_set_statement(v.transcript, &set, 3, statement);
        assert_int_equal(mfl_sha256(statement, n, digest, NULL), 0);
        expect_hex(digest, 32, "8051d230d9d1adb635bc9255405762b6f9e8861f32af7352ed8118b30d3d4f7b");
        mfl_secure_msg_deinit(&v.peers);
}

/* ---- narrow rings ---- */

#define N_PARTS 4 /* on a grid, a finer grid than the sum's units, statistics, and one that did not move */
#define PART 50

struct ring_bed {
        struct mfl_param params[N_PARTS];
        struct mfl_graph graph;
        int32_t exponent[N_PARTS];
        struct mfl_fixed fixed;
};

static void make_bed(struct ring_bed *bed, int bits, uint64_t weight_max)
{
        memset(bed, 0, sizeof *bed);
        bed->graph.params = bed->params;
        bed->graph.n_params = N_PARTS;
        bed->graph.n = bed->graph.n_moving = N_PARTS * PART;
        for (int t = 0; t < N_PARTS; t++)
                bed->params[t] = (struct mfl_param){
                        .offset = (uint64_t)t * PART, .count = PART, .moves = true, .trained = t != 2};
        assert_int_equal(mfl_fixed_choose(1.0f, weight_max, &bed->fixed, NULL), 0);
        const int32_t exponent[N_PARTS] = {-bits, -bed->fixed.scale_bits - 3, -bits, MFL_GRID_EXACT};
        memcpy(bed->exponent, exponent, sizeof exponent);
}

/* The exact sum of clients with deltas on the grid; each has the largest or the smallest number of its bits now and then. */
static void add_client(
        const struct ring_bed *bed, struct mfl_rng *rng, int bits, uint64_t weight, int64_t *update)
{
        float delta[N_PARTS * PART];
        double most = ldexp(1, bits - 1) - 1;
        for (int i = 0; i < N_PARTS * PART; i++) {
                uint32_t x = mfl_rng_u32(rng);
                double k = x % 7 == 0 ? most : x % 7 == 1 ? -most : (double)(int32_t)x * 0x1p-31 * most;
                int32_t e = bed->exponent[i / PART];
                delta[i] = e == MFL_GRID_EXACT || i / PART == 2 ? (float)(k / (2 * most))
                                                                : (float)ldexp(trunc(k), e);
        }
        assert_int_equal(mfl_fixed_add_f32(&bed->fixed, weight, delta, N_PARTS * PART, update, NULL), 0);
}

/* What is added is noise modulo the ring; only the sum of all has no mask. */
static void test_ring(void **state)
{
        (void)state;
        static const uint32_t rings[] = {32, 48};
        for (int c = 0; c < 2; c++) {
                struct ring_bed bed;
                struct mfl_secure_ring ring;
                struct mfl_error err;
                enum { N = N_PARTS * PART, CLIENTS = 16 };
                int bits = rings[c] == 32 ? 16 : 24;
                uint64_t weight = ((uint64_t)1 << (rings[c] - (uint32_t)bits)) / CLIENTS, sum[N] = {0},
                         mask[N];
                int64_t plain[N] = {0};
                struct mfl_rng rng = mfl_rng_new(3, MFL_RNG_SELECT, rings[c], 0);
                make_bed(&bed, bits, weight * CLIENTS);
                assert_int_equal(mfl_secure_ring_fits(rings[c], (uint32_t)bits, weight * CLIENTS, NULL), 0);
                assert_int_equal(mfl_secure_ring_make(rings[c], (uint32_t)bits, &bed.graph, &bed.fixed,
                                         bed.exponent, &ring, NULL),
                        0);
                for (int k = 0; k < CLIENTS; k++) {
                        int64_t update[N] = {0};
                        add_client(&bed, &rng, bits, weight, update);
                        for (int i = 0; i < N; i++)
                                plain[i] += update[i];
                        assert_int_equal(mfl_secure_ring_fold(&ring, update, N, &err), 0);
                        for (int i = 0; i < N; i++) {
                                uint64_t word = (uint64_t)mfl_rng_u32(&rng) << 32 | mfl_rng_u32(&rng);
                                /* client 2 j subtracts what client 2 j + 1 adds */
                                mask[i] = k % 2 ? mask[i] : word;
                                update[i] = (int64_t)((uint64_t)update[i] + (k % 2 ? mask[i] : -mask[i]));
                        }
                        mfl_secure_ring_cut(&ring, 0, (uint64_t *)update, N);
                        for (int i = 0; i < N; i++) {
                                bool narrow = i / PART < 2;
                                assert_true(!narrow || (update[i] < (int64_t)1 << (rings[c] - 1) &&
                                                               update[i] >= -((int64_t)1 << (rings[c] - 1))));
                                sum[i] += (uint64_t)update[i];
                        }
                }
                uint64_t spoilt[N];
                memcpy(spoilt, sum, sizeof sum);
                /* in pieces that end within parts */
                assert_int_equal(
                        mfl_secure_ring_unfold(&ring, 0, weight * CLIENTS, (int64_t *)sum, 77, NULL), 0);
                assert_int_equal(mfl_secure_ring_unfold(
                                         &ring, 77, weight * CLIENTS, (int64_t *)sum + 77, N - 77, NULL),
                        0);
                assert_memory_equal(sum, plain, sizeof plain);
                spoilt[5] =
                        ((uint64_t)1 << (rings[c] - 1)) - 1; /* more than half of that weight can add up to */
                assert_int_equal(
                        mfl_secure_ring_unfold(&ring, 0, weight * CLIENTS / 2, (int64_t *)spoilt, N, &err),
                        MFL_INVALID);
                assert_non_null(strstr(err.text, "element 5 is "));
                plain[7]++; /* not on the grid */
                assert_int_equal(mfl_secure_ring_fold(&ring, plain, N, &err), MFL_INVALID);
                mfl_secure_ring_deinit(&ring);
        }
}

static void test_ring_fits(void **state)
{
        static const struct {
                uint32_t bits, grid;
                uint64_t weight;
                const char *why; /* NULL: it fits */
        } rows[] = {{64, 0, UINT64_MAX, NULL}, {32, 16, 65536, NULL}, {32, 8, 1 << 24, NULL},
                {32, 32, 1, NULL},
                {32, 16, 65537,
                        "takes 33 bits with its sign; write compression: {up: {bits: 8}}, or secure_sum: "
                        "{bits: 48}"},
                {32, 32, 2, "write compression: {up: {bits: 16}}, or secure_sum: {bits: 48}"},
                {48, 48, 100,
                        "takes 55 bits with its sign; write compression: {up: {bits: 32}}, or secure_sum: "
                        "{bits: 64}"},
                {32, 8, (uint64_t)1 << 36, "write weighting: uniform, or secure_sum: {bits: 48}"}};
        (void)state;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                struct mfl_error err = {{0}};
                int r = mfl_secure_ring_fits(rows[i].bits, rows[i].grid, rows[i].weight, &err);
                assert_int_equal(r, rows[i].why ? MFL_INVALID : 0);
                if (rows[i].why && !strstr(err.text, rows[i].why))
                        fail_msg("row %zu: %s", i, err.text);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_agree),
                cmocka_unit_test(test_shares),
                cmocka_unit_test(test_field),
                cmocka_unit_test(test_degrees),
                cmocka_unit_test(test_schedule),
                cmocka_unit_test(test_ring),
                cmocka_unit_test(test_ring_fits),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
