/* SPDX-License-Identifier: Apache-2.0 */
/* Secret streams and the discrete Gaussian, with fixed keys: known words, moments, the exact probabilities, and that threads and ranges do
 * not matter. The limits are five standard deviations or more of what each number has by chance; keys are fixed, so that a test passes
 * always or never. */
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/privacy/matrix.h"
#include "common/privacy/noise.h"

#define DRAWS 1000000

static struct mfl_secret key_of(uint8_t first)
{
        struct mfl_secret secret;
        for (int i = 0; i < MFL_SECRET_BYTES; i++)
                secret.key[i] = (uint8_t)(first + i);
        return secret;
}

/* head -c 16 /dev/zero | openssl enc -aes-256-ctr -K 000102..1f -iv 0000000000000003 0000000000000000 */
static void words_are_aes(void **state)
{
        static const uint8_t want[16] = {0x6c, 0xbd, 0x3e, 0x89, 0x37, 0x64, 0xa2, 0x5f, 0x6f, 0x4e, 0xb6,
                0x18, 0x98, 0x58, 0x2b, 0x9b};
        struct mfl_secret secret = key_of(0);
        struct mfl_secret_stream stream;
        assert_int_equal(mfl_secret_stream_open(&stream, &secret, NULL), 0);
        mfl_secret_stream_seek(&stream, 3);
        for (int i = 0; i < 4; i++)
                assert_int_equal(mfl_secret_u32(&stream), want[4 * i] | want[4 * i + 1] << 8 |
                                                                  want[4 * i + 2] << 16 |
                                                                  (uint32_t)want[4 * i + 3] << 24);
        uint32_t fifth = mfl_secret_u32(&stream);
        for (int i = 0; i < 5000; i++)
                mfl_secret_u32(&stream); /* past a refill */
        mfl_secret_stream_seek(&stream, 3);
        for (int i = 0; i < 4; i++)
                mfl_secret_u32(&stream);
        assert_int_equal(mfl_secret_u32(&stream), fifth);
        mfl_secret_stream_close(&stream);
}

static void derived_keys_differ(void **state)
{
        struct mfl_secret secret = key_of(0), a, b;
        uint8_t digest[MFL_SHA256_BYTES] = {1};
        static const struct {
                const char *what, *job;
                uint64_t number;
                bool digest;
        } of[] = {{"noise", "j-000001", 1, false}, {"noise", "j-000001", 2, false},
                {"noise", "j-000002", 1, false}, {"select", "j-000001", 1, false},
                {"noise", "j-000001", 1, true}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(of); i++)
                for (size_t k = 0; k < MFL_ARRAY_SIZE(of); k++) {
                        assert_int_equal(mfl_secret_derive(&secret, of[i].what, of[i].job, of[i].number,
                                                 of[i].digest ? digest : NULL, &a, NULL),
                                0);
                        assert_int_equal(mfl_secret_derive(&secret, of[k].what, of[k].job, of[k].number,
                                                 of[k].digest ? digest : NULL, &b, NULL),
                                0);
                        assert_int_equal(!memcmp(a.key, b.key, sizeof a.key), i == k);
                }
}

static void a_key_is_made_once(void **state)
{
        char dir[] = "/tmp/test_noise.XXXXXX", path[64];
        struct mfl_secret a, b;
        struct mfl_error err;
        struct stat st;
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof path, "%s/noise.key", dir);
        assert_int_equal(mfl_secret_open(path, &a, &err), 0);
        assert_int_equal(mfl_secret_open(path, &b, &err), 0);
        assert_memory_equal(a.key, b.key, sizeof a.key);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        assert_int_equal(st.st_size, MFL_SECRET_BYTES);
        assert_int_equal(chmod(path, 0640), 0);
        assert_int_equal(mfl_secret_open(path, &b, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "others may read this key"));
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(truncate(path, 31), 0);
        assert_int_equal(mfl_secret_open(path, &b, &err), MFL_INVALID);
        unlink(path);
        assert_int_equal(mfl_secret_open(path, &b, &err), 0);
        assert_memory_not_equal(a.key, b.key, sizeof a.key);
        unlink(path);
        rmdir(dir);
}

/* ---- the distribution ---- */

static int64_t *draw(const struct mfl_noise *noise, size_t n)
{
        struct mfl_secret secret = key_of((uint8_t)noise->a);
        int64_t *v = calloc(n, sizeof *v);
        assert_non_null(v);
        assert_int_equal(mfl_noise_add(noise, &secret, n, 2, v, NULL), 0);
        return v;
}

static void check_moments(const struct mfl_noise *noise, const int64_t *v, size_t n, double variance)
{
        double sum = 0, squares = 0, fourth = 0, lag[3] = {0};
        for (size_t i = 0; i < n; i++) {
                double x = (double)v[i];
                sum += x;
                squares += x * x;
                fourth += x * x * x * x;
                for (size_t k = 1; k <= 3 && i >= k; k++)
                        lag[k - 1] += x * (double)v[i - k];
        }
        double count = (double)n, found = squares / count;
        assert_true(fabs(sum / count) < 5 * sqrt(variance / count));
        assert_true(fabs(found / variance - 1) < 5 * sqrt(2 / count));
        if (noise->a / noise->b >= 1000) /* kurtosis of the Gaussian is 3, with a deviation of sqrt(24 / n) */
                assert_true(fabs(fourth / count / (found * found) - 3) < 5 * sqrt(24 / count));
        for (int k = 0; k < 3; k++)
                assert_true(fabs(lag[k] / squares) < 5 / sqrt(count));
}

/* Bins of `width` numbers; the outermost take the rest. Chi-square of bins that expect 20 and more, against its mean and deviation. */
static void check_bins(double sigma, const int64_t *v, size_t n, int64_t width)
{
        enum { BINS = 401, MIDDLE = 200 };
        static double expected[BINS], seen[BINS];
        double total = 0, chi = 0, variance = 0;
        int freedom = -1;
        memset(expected, 0, sizeof expected);
        memset(seen, 0, sizeof seen);
        int64_t most = (int64_t)(12 * sigma) + 12;
        for (int64_t x = -most; x <= most; x++) {
                double p = exp(-(double)x * (double)x / (2 * sigma * sigma));
                int64_t bin = (x + MIDDLE * width + width / 2) / width;
                assert_true(bin >= 0 && bin < BINS);
                expected[bin] += p;
                total += p;
                variance += p * (double)x * (double)x;
        }
        for (size_t i = 0; i < n; i++) {
                int64_t bin = (v[i] + MIDDLE * width + width / 2) / width;
                assert_true(bin >= 0 && bin < BINS);
                seen[bin]++;
        }
        double rest_expected = 0, rest_seen = 0;
        for (int b = 0; b < BINS; b++) {
                double want = expected[b] / total * (double)n;
                if (want < 20) {
                        rest_expected += want;
                        rest_seen += seen[b];
                        continue;
                }
                chi += (seen[b] - want) * (seen[b] - want) / want;
                freedom++;
        }
        chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        freedom++;
        assert_true(freedom > 5);
        if (fabs(chi - freedom) > 5 * sqrt(2.0 * freedom))
                fail_msg("sigma %g: chi-square %.1f of %d degrees of freedom", sigma, chi, freedom);
        struct mfl_noise noise = {.a = (uint64_t)(10 * sigma), .b = 10};
        check_moments(&noise, v, n, variance / total);
}

static void probabilities_are_exact(void **state)
{
        static const struct {
                struct mfl_noise noise;
                int64_t width;
        } of[] = {{{1, 1}, 1}, {{37, 10}, 1}, {{1000, 1}, 75}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(of); i++) {
                int64_t *v = draw(&of[i].noise, DRAWS);
                check_bins((double)of[i].noise.a / (double)of[i].noise.b, v, DRAWS, of[i].width);
                free(v);
        }
}

static void the_widest_noise_fits(void **state)
{
        struct mfl_noise noise = {.a = MFL_NOISE_SIGMA_MAX, .b = 1},
                         fine = {.a = 16 * MFL_NOISE_SIGMA_MAX, .b = 16};
        for (int k = 0; k < 2; k++) {
                int64_t *v = draw(k ? &fine : &noise, DRAWS / 4);
                check_moments(&noise, v, DRAWS / 4, 0x1p48);
                free(v);
        }
}

static struct mfl_matrix *matrix_of(enum mfl_privacy_mechanism mechanism, uint32_t rounds, uint32_t b)
{
        struct mfl_matrix *matrix;
        assert_int_equal(mfl_matrix_new(mechanism, rounds, b, &matrix, NULL), 0);
        return matrix;
}

static int compare_doubles(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

/* Sums of bisr's noise over 1 to T rounds are normal, with the deviation that its coefficients say (Kolmogorov-Smirnov: 2.2 / sqrt(n)
 * is exceeded with probability 1.3e-4), and those of T rounds have far less of it than independent noise. */
static void correlated_noise_is_normal(void **state)
{
        enum { T = 24, B = 6, N = 20000 };
        const struct mfl_noise noise = {.a = 100000, .b = 1};
        struct mfl_matrix *matrix = matrix_of(MFL_MECHANISM_BISR, T, B);
        struct mfl_secret secret[T], terms[T];
        static int64_t sums[N];
        static double sorted[N];
        for (int t = 0; t < T; t++)
                secret[t] = key_of((uint8_t)(100 + t));
        double prefix[T], sum = 0, variance = 0;
        for (uint32_t t = 0; t < T; t++) {
                uint32_t n = MFL_MIN(t + 1, matrix->n);
                for (uint32_t j = 0; j < n; j++)
                        terms[j] = secret[t - j];
                assert_int_equal(
                        mfl_noise_add_weighted(&noise, terms, matrix->v, n, N, t % 2 + 1, sums, NULL), 0);
                sum += t < matrix->n ? matrix->v[t] : 0;
                prefix[t] = sum;
                variance += prefix[t] * prefix[t];
                double sigma = (double)noise.a * sqrt(variance), most = 0;
                for (int i = 0; i < N; i++)
                        sorted[i] = (double)sums[i] / sigma;
                qsort(sorted, N, sizeof *sorted, compare_doubles);
                for (int i = 0; i < N; i++) {
                        double normal = erfc(-sorted[i] / sqrt(2)) / 2;
                        most = fmax(most, fmax(normal - (double)i / N, (i + 1.0) / N - normal));
                }
                assert_true(most * sqrt(N) < 2.2);
        }
        assert_true(variance < T / 2.5);
        free(matrix);
        /* one draw with factor 1 is that of mfl_noise_add */
        static int64_t one[N], same[N];
        const double factor = 1;
        assert_int_equal(mfl_noise_add(&noise, secret, N, 1, one, NULL), 0);
        assert_int_equal(mfl_noise_add_weighted(&noise, secret, &factor, 1, N, 2, same, NULL), 0);
        assert_memory_equal(one, same, sizeof one);
}

/* RMS error of prefix sums times sensitivity, by dense matrices in numpy (tests/e2e/test_privacy.py): bsr with p = b, bisr with its best p. */
static void correlated_noise_has_the_published_error(void **state)
{
        static const struct {
                uint32_t rounds, b, bands;
                double bsr, bisr;
        } of[] = {{100, 10, 6, 9.610999, 10.016726}, {200, 20, 12, 10.356054, 10.723720},
                {200, 50, 22, 5.441594, 5.662117}};
        struct mfl_matrix *m;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(of); i++) {
                m = matrix_of(MFL_MECHANISM_BSR, of[i].rounds, of[i].b);
                assert_true(fabs(m->error * m->sensitivity - of[i].bsr) < 2e-6);
                assert_int_equal(m->bands, of[i].b);
                free(m);
                m = matrix_of(MFL_MECHANISM_BISR, of[i].rounds, of[i].b);
                assert_true(fabs(m->error * m->sensitivity - of[i].bisr) < 2e-6);
                assert_int_equal(m->bands, of[i].bands);
                free(m);
        }
        m = matrix_of(MFL_MECHANISM_BISR, 7, 1); /* everybody in each round: nothing to win but little */
        assert_true(m->sensitivity >= sqrt(7));
        free(m);
        m = matrix_of(MFL_MECHANISM_BSR, 1, 5);
        assert_true(m->n == 1 && m->v[0] == 1 && fabs(m->sensitivity - 1) < 1e-9);
        free(m);
        m = matrix_of(MFL_MECHANISM_BISR, MFL_MATRIX_ROUNDS_MAX, 100);
        assert_true(m->bands > 1 && isfinite(m->error));
        free(m);
}

static void neither_threads_nor_sums_matter(void **state)
{
        enum { N = 50 * MFL_NOISE_PART + 17 };
        struct mfl_noise noise = {.a = 5000, .b = 1};
        struct mfl_secret secret = key_of(9), other = key_of(10);
        static int64_t one[N], four[N], start[N], less[N], changed[N];
        for (int64_t i = 0; i < N; i++)
                start[i] = i * 1000003 - 77;
        memcpy(four, start, sizeof four);
        assert_int_equal(mfl_noise_add(&noise, &secret, N, 1, one, NULL), 0);
        assert_int_equal(mfl_noise_add(&noise, &secret, N, 4, four, NULL), 0);
        assert_int_equal(mfl_noise_add(&noise, &secret, N - 1000, 3, less, NULL), 0);
        assert_int_equal(mfl_noise_add(&noise, &other, N, 1, changed, NULL), 0);
        size_t same = 0;
        for (size_t i = 0; i < N; i++) {
                assert_int_equal(four[i] - start[i], one[i]);
                if (i < N - 1000)
                        assert_int_equal(less[i], one[i]);
                same += changed[i] == one[i];
        }
        assert_true(same < N / 1000);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(words_are_aes),
                cmocka_unit_test(derived_keys_differ),
                cmocka_unit_test(a_key_is_made_once),
                cmocka_unit_test(probabilities_are_exact),
                cmocka_unit_test(the_widest_noise_fits),
                cmocka_unit_test(neither_threads_nor_sums_matter),
                cmocka_unit_test(correlated_noise_is_normal),
                cmocka_unit_test(correlated_noise_has_the_published_error),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
