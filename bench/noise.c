/* SPDX-License-Identifier: Apache-2.0 */
/* Noise of an update of 1.66 million parameters, as fedavg-cnn has, on one thread: bench_noise. The server's (kind central) is added to a sum;
 * bisr adds up the noise of 20 rounds; a site's (kind local) also shortens the change and rounds it to its grid. Processor time, medians of five. */
#include <stdio.h>
#include <time.h>

#include "common/base/rng.h"
#include "common/method/local_noise.h"
#include "common/privacy/noise.h"

#define N ((size_t)1663370)
#define TIMES 5

static double seconds(void)
{
        struct timespec t;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

static double median(double *v)
{
        qsort(v, TIMES, sizeof *v, compare);
        return v[TIMES / 2];
}

int main(void)
{
        const struct mfl_noise noise = {.a = MFL_NOISE_SIGMA_MAX, .b = 1};
        const struct mfl_local_rule rule = {0.5, 8};
        const struct mfl_secret secret = {{1}};
        int64_t *q = calloc(N, sizeof *q);
        float *delta = calloc(N, sizeof *delta);
        enum { BANDS = 20 };
        double central[TIMES], local[TIMES], bisr[TIMES], factor[BANDS];
        struct mfl_secret terms[BANDS];
        for (int j = 0; j < BANDS; j++) {
                factor[j] = j ? factor[j - 1] * (2.0 * j - 3) / (2.0 * j) : 1;
                terms[j] = (struct mfl_secret){{(uint8_t)(10 + j)}};
        }
        struct mfl_error err;
        if (!q || !delta)
                return 1;
        for (int t = 0; t < TIMES; t++) {
                struct mfl_rng rng = mfl_rng_new(1, MFL_RNG_TEST, 0, 0);
                double norm2 = 0, start = seconds();
                if (mfl_noise_add(&noise, &secret, N, 1, q, &err))
                        return 1;
                central[t] = seconds() - start;
                start = seconds();
                if (mfl_noise_add_weighted(&noise, terms, factor, BANDS, N, 1, q, &err))
                        return 1;
                bisr[t] = seconds() - start;
                for (size_t i = 0; i < N; i++) {
                        delta[i] = (float)mfl_rng_unit(&rng) - 0.5f;
                        norm2 += (double)delta[i] * (double)delta[i];
                }
                start = seconds();
                mfl_local_shorten(&rule, delta, norm2, N, q);
                if (mfl_local_noise(&rule, &secret, 1, 65536, N, q, delta, &err))
                        return 1;
                local[t] = seconds() - start;
        }
        printf("%zu elements: central %.3f s, with mechanism bisr of %d bands %.3f s, local %.3f s of "
               "processor "
               "time\n",
                N, median(central), (int)BANDS, median(bisr), median(local));
        free(q);
        free(delta);
        return 0;
}
