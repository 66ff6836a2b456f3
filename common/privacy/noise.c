/* SPDX-License-Identifier: Apache-2.0 */
/* The discrete Gaussian: Bernoulli variables with rational and exponential probabilities, the discrete Laplace distribution, and
 * rejection. */
#include "common/privacy/noise.h"

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/fixed.h"

#define THREADS_MAX 16u
#define GEOMETRIC_MAX 127u

__extension__ typedef unsigned __int128 wide;

/* Uniform in [0, n), n > 0: the bits that n - 1 has, until they are below n. */
static uint32_t below(struct mfl_secret_stream *stream, uint32_t n)
{
        uint32_t mask = n == 1 ? 0 : UINT32_MAX >> __builtin_clz(n - 1), v;
        do
                v = mfl_secret_u32(stream) & mask;
        while (v >= n);
        return v;
}

static uint64_t draw64(struct mfl_secret_stream *stream)
{
        uint64_t low = mfl_secret_u32(stream);
        return low | (uint64_t)mfl_secret_u32(stream) << 32;
}

/* True with probability n / d, for n <= d. */
static bool ratio(struct mfl_secret_stream *stream, wide n, wide d)
{
        uint64_t high = (uint64_t)((d - 1) >> 64), low = (uint64_t)(d - 1);
        uint64_t mask_high = high ? UINT64_MAX >> __builtin_clzll(high) : 0,
                 mask_low = high  ? UINT64_MAX
                            : low ? UINT64_MAX >> __builtin_clzll(low)
                                  : 0;
        wide v;
        do {
                v = draw64(stream) & mask_low;
                if (high)
                        v |= (wide)(draw64(stream) & mask_high) << 64;
        } while (v >= d);
        return v < n;
}

/* True with probability exp(-n / d), for n <= d: algorithm 1. Of chance n / (d k) are both of chance n / d and of chance 1 / k. */
static bool decays_below_one(struct mfl_secret_stream *stream, wide n, wide d)
{
        uint32_t k = 1;
        while (ratio(stream, n, d) && !below(stream, k))
                k++;
        return k % 2 == 1;
}

static bool decays_one(struct mfl_secret_stream *stream)
{
        uint32_t k = 1;
        while (!below(stream, k))
                k++;
        return k % 2 == 1;
}

static bool decays(struct mfl_secret_stream *stream, wide n, wide d)
{
        for (; n > d; n -= d)
                if (!decays_one(stream))
                        return false;
        return decays_below_one(stream, n, d);
}

/* |Y| of the discrete Laplace distribution with scale t, and its sign: algorithm 2. False: the geometric part is too large. */
static bool draw_laplace(struct mfl_secret_stream *stream, uint32_t t, uint64_t *ret_size, bool *ret_negative)
{
        for (;;) {
                uint32_t u = below(stream, t), v = 0;
                if (!decays_below_one(stream, u, t))
                        continue;
                while (v <= GEOMETRIC_MAX && decays_one(stream))
                        v++;
                if (v > GEOMETRIC_MAX)
                        return false;
                *ret_negative = mfl_secret_u32(stream) & 1;
                *ret_size = u + (uint64_t)t * v;
                if (*ret_size || !*ret_negative)
                        return true;
        }
}

/* Algorithm 3. With sigma = a / b, the exponent (|y| - sigma^2 / t)^2 / (2 sigma^2) is (|y| t b^2 - a^2)^2 / (2 a^2 b^2 t^2): |y| is
 * below 2^7 t, t at most 2^24 + 1, a at most 2^28 and b at most 16, so that the upper number is below 2^127 and the lower one
 * below 2^115. */
int64_t mfl_noise_draw(const struct mfl_noise *noise, struct mfl_secret_stream *stream)
{
        uint64_t a = noise->a, b = noise->b, t = a / b + 1, size;
        mfl_assert(a && b >= 1 && b <= 16 && a <= b * MFL_NOISE_SIGMA_MAX);
        wide d = 2 * (wide)(a * a) * (b * b) * (t * t);
        for (;;) {
                bool negative;
                if (!draw_laplace(stream, (uint32_t)t, &size, &negative))
                        continue;
                uint64_t x = size * t * (b * b), off = x > a * a ? x - a * a : a * a - x;
                if (decays(stream, (wide)off * off, d))
                        return negative ? -(int64_t)size : (int64_t)size;
        }
}

struct task {
        const struct mfl_noise *noise;
        const struct mfl_secret *secrets;
        const double *factors; /* NULL: one secret, whose noise is added as it is */
        uint32_t n_terms;
        uint64_t n;
        int64_t *sums;
        _Atomic uint64_t next; /* part */
        _Atomic int status;
};

static void add_part(const struct task *task, struct mfl_secret_stream *streams, uint64_t part)
{
        double weighted[MFL_NOISE_PART] = {0};
        uint64_t from = part * MFL_NOISE_PART, n = MFL_MIN(task->n - from, (uint64_t)MFL_NOISE_PART);
        int64_t *sums = task->sums + from;
        for (uint32_t j = 0; j < task->n_terms; j++) {
                mfl_secret_stream_seek(&streams[j], part);
                for (uint64_t e = 0; e < n; e++) {
                        int64_t drawn = mfl_noise_draw(task->noise, &streams[j]);
                        if (task->factors)
                                weighted[e] += task->factors[j] * (double)drawn;
                        else
                                sums[e] += drawn;
                }
        }
        for (uint64_t e = 0; e < n && task->factors; e++)
                sums[e] += (int64_t)mfl_fixed_round(weighted[e]);
}

static void *run(void *user)
{
        struct task *task = user;
        struct mfl_secret_stream *streams = mfl_calloc(task->n_terms, sizeof *streams);
        int r = streams ? 0 : -ENOMEM;
        for (uint32_t j = 0; j < task->n_terms && !r; j++)
                r = mfl_secret_stream_open(&streams[j], &task->secrets[j], NULL);
        while (!r) {
                uint64_t part = atomic_fetch_add(&task->next, 1);
                if (part * MFL_NOISE_PART >= task->n)
                        break;
                add_part(task, streams, part);
        }
        if (r)
                atomic_store(&task->status, r);
        for (uint32_t j = 0; j < task->n_terms && streams; j++)
                mfl_secret_stream_close(&streams[j]);
        free(streams);
        return NULL;
}

static int add(struct task *task, uint32_t threads, struct mfl_error *err)
{
        pthread_t started[THREADS_MAX];
        uint32_t n_started = 0;
        threads =
                (uint32_t)MFL_MIN((uint64_t)MFL_MIN(threads, THREADS_MAX), task->n / MFL_NOISE_PART / 8 + 1);
        while (n_started + 1 < threads && !pthread_create(&started[n_started], NULL, run, task))
                n_started++;
        run(task);
        for (uint32_t i = 0; i < n_started; i++)
                pthread_join(started[i], NULL);
        return task->status ? mfl_fail(err, task->status, "noise: OpenSSL has failed") : 0;
}

int mfl_noise_add(const struct mfl_noise *noise, const struct mfl_secret *secret, uint64_t n,
        uint32_t threads, int64_t *sums, struct mfl_error *err)
{
        struct task task = {.noise = noise, .secrets = secret, .n_terms = 1, .n = n, .sums = sums};
        return add(&task, threads, err);
}

int mfl_noise_add_weighted(const struct mfl_noise *noise, const struct mfl_secret *secrets,
        const double *factors, uint32_t n_terms, uint64_t n, uint32_t threads, int64_t *sums,
        struct mfl_error *err)
{
        struct task task = {.noise = noise,
                .secrets = secrets,
                .factors = factors,
                .n_terms = n_terms,
                .n = n,
                .sums = sums};
        return add(&task, threads, err);
}
