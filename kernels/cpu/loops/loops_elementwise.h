/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise loops; part of loops_body.h. The compiler turns them into vectors.
 *
 * exp and tanh are polynomials: a library call for each element takes longer than the layers around it. The
 * coefficients were fitted with numpy at Chebyshev points; errors stay below 3e-7 relative.
 */

/* exp(x) = 2^n exp(r), r = x - n ln 2 in two parts (Cody and Waite), exp(r) = 1 + r + r^2 q(r): returns
 * exp(r) - 1, and 2^n. */
INLINE float exp_parts(float x, float *ret_scale)
{
        x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
        float rounded = x * 1.44269504f + 0x1.8p23f;
        uint32_t bits;
        memcpy(&bits, &rounded, sizeof bits);
        float n = rounded - 0x1.8p23f;
        float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
        float q = 0.0013933641603216529f;
        q = q * r + 0.008363175205886364f;
        q = q * r + 0.04166646674275398f;
        q = q * r + 0.16666576266288757f;
        q = q * r + 0.5f;
        bits = (bits + 127u) << 23;
        memcpy(ret_scale, &bits, sizeof *ret_scale);
        return q * r * r + r;
}

INLINE float exp_poly(float x)
{
        float scale, e = exp_parts(x, &scale);
        return (e + 1.0f) * scale;
}

/* The operator exp: beyond float's smallest and largest numbers it is 0 and infinity, as a layer may compare with. */
INLINE float exp_whole(float x)
{
        float part = x < -87.0f || x > 88.0f ? 0.5f : 1.0f, e = exp_poly(x * part);
        return part == 1.0f ? e : e * e;
}

/* Of a softmax: exactly 0 where a mask hid the number (MFL_MASKED), instead of the smallest that exp_poly gives, which
 * products would carry on as denormals. */
INLINE float exp_unmasked(float x)
{
        return x < -1e4f ? 0.0f : exp_poly(x);
}

/* exp(x) - 1 without cancellation near 0. */
INLINE float expm1_poly(float x)
{
        float scale, e = exp_parts(x, &scale);
        return e * scale + (scale - 1.0f);
}

/* log(1 + u) for u in [0, 1]: 2 artanh(u / (u + 2)), whose series ends where float's precision does. */
INLINE float log1p_series(float u)
{
        float s = u / (u + 2.0f), t = s * s;
        float p = 1.0f / 13.0f;
        p = p * t + 1.0f / 11.0f;
        p = p * t + 1.0f / 9.0f;
        p = p * t + 1.0f / 7.0f;
        p = p * t + 1.0f / 5.0f;
        p = p * t + 1.0f / 3.0f;
        return 2.0f * (p * t * s + s);
}

/* Odd polynomial near 0, where 1 - 2 / (exp(2x) + 1) would cancel. */
INLINE float tanh_poly(float x)
{
        float size = fabsf(x), u = x * x;
        float p = 0.0022956032771617174f;
        p = p * u - 0.00834672525525093f;
        p = p * u + 0.02176986075937748f;
        p = p * u - 0.05395938828587532f;
        p = p * u + 0.13333304226398468f;
        p = p * u - 0.3333333432674408f;
        float near = x + x * u * p;
        float far = copysignf(1.0f - 2.0f / (exp_poly(2.0f * size) + 1.0f), x);
        return size < 0.625f ? near : far;
}

/* erf: an odd polynomial below 0.9, else 1 - exp(q(x)), where q is fitted to log(erfc) up to 4; from there on
 * erf is 1 in float. Errors are below 1.2e-7. */
INLINE float erf_poly(float x)
{
        float size = fabsf(x), u = x * x, a = size < 4.0f ? size : 4.0f;
        float p = 8.534120570402592e-05f;
        p = p * u - 0.0008180781151168048f;
        p = p * u + 0.00520433159545064f;
        p = p * u - 0.026860708370804787f;
        p = p * u + 0.11283718794584274f;
        p = p * u - 0.37612634897232056f;
        p = p * u + 1.128379225730896f;
        float q = 1.6102403606055304e-06f;
        q = q * a - 4.551277379505336e-05f;
        q = q * a + 0.0005920927505940199f;
        q = q * a - 0.004736950621008873f;
        q = q * a + 0.026355121284723282f;
        q = q * a - 0.10996080189943314f;
        q = q * a - 0.6319562196731567f;
        q = q * a - 1.130155086517334f;
        q = q * a + 0.0003002688172273338f;
        float far = copysignf(1.0f - exp_poly(q), x);
        return size < 0.9f ? x * p : far;
}

/* log(x) = n ln 2 + log(m), m = x / 2^n in [sqrt(1/2), sqrt(2)): 2 artanh((m - 1) / (m + 1)). */
INLINE float log_poly(float x)
{
        uint32_t bits, of_m;
        float m, n;
        bool small = x < 0x1p-126f;
        float scaled = small ? x * 0x1p23f : x;
        memcpy(&bits, &scaled, sizeof bits);
        bits -= 0x3f3504f3u; /* sqrt(1/2) */
        n = (float)((int32_t)bits >> 23) - (small ? 23.0f : 0.0f);
        of_m = (bits & 0x7fffffu) + 0x3f3504f3u;
        memcpy(&m, &of_m, sizeof m);
        float s = (m - 1.0f) / (m + 1.0f), t = s * s;
        float p = 1.0f / 9.0f;
        p = p * t + 1.0f / 7.0f;
        p = p * t + 1.0f / 5.0f;
        p = p * t + 1.0f / 3.0f;
        float y = n * 0.693359375f + (n * -2.12194440e-4f + 2.0f * (p * t * s + s));
        y = x > 0x1.fffffep127f ? x : y;
        return x > 0.0f ? y : x == 0.0f ? -INFINITY : NAN;
}

/* atan(x) = pi / 4 + atan((x - 1) / (x + 1)) = pi / 2 - atan(1 / x): an odd polynomial up to tan(pi / 8) (Moshier, Cephes). */
INLINE float atan_poly(float x)
{
        float a = fabsf(x);
        bool far = a > 2.414213562373095f, middle = a > 0.4142135623730950f;
        float above = far ? -1.0f : middle ? a - 1.0f : a, below = far ? a : middle ? a + 1.0f : 1.0f;
        float angle = far ? 1.5707963267948966f : middle ? 0.7853981633974483f : 0.0f;
        float t = above / below, u = t * t;
        float p = 8.05374449538e-2f;
        p = p * u - 1.38776856032e-1f;
        p = p * u + 1.99777106478e-1f;
        p = p * u - 3.33329491539e-1f;
        return copysignf(angle + (p * u * t + t), x);
}

/* log(1 + exp(x)) for x <= 0. */
INLINE float log1p_of_exp(float x)
{
        return log1p_series(exp_poly(x));
}

#define UNARY_REAL float
#define UNARY_BODY INLINE
#define UNARY_NAME(body) body##_at
#define UNARY_C(number) number##f
#define UNARY_EXP exp_poly
#define UNARY_EXP_WHOLE exp_whole
#define UNARY_EXPM1 expm1_poly
#define UNARY_LOG1P_OF_EXP log1p_of_exp
#define UNARY_TANH tanh_poly
#define UNARY_ERF erf_poly
#define UNARY_ABS fabsf
#define UNARY_LOG log_poly
#define UNARY_SQRT sqrtf
#define UNARY_POW powf /* this, sine and cosine: the library's */
#define UNARY_SIN sinf
#define UNARY_COS cosf
#define UNARY_ATAN atan_poly
#define UNARY_FMOD fmodf /* exact */
#define UNARY_FLOOR floorf
#define UNARY_RINT rintf
#define UNARY_GATE(v, x) ((v) / (1.0f + exp_poly(-(x))))
#include "common/model/unary_bodies.h"

/* Vectors alone: n is a multiple of LANES. The compiler contracts products and sums of a loop's scalar rest in another way, where a
 * function branches, so that an element's bits would depend on where its range ends. */
NOINLINE static void curve_lanes(enum mfl_curve which, float a, float b, const float *x, float *y, int64_t n)
{
        switch (which) {
#define UNARY(symbol, body, stem, reads, n_params, ...)                                                      \
        case MFL_CURVE_##symbol:                                                                             \
                INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] =                                           \
                        body##_at(x[i] MFL_UNARY_ARGS_##n_params(a, b));                                     \
                break;
#define UNARY_VARIANT(symbol, variant, body, ...)                                                            \
        case MFL_CURVE_##variant:                                                                            \
                INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = body##_at(x[i]);                          \
                break;
#include "common/model/unary.def"
        case MFL_CURVE_COUNT_:
                mfl_assert(false);
        }
}

static void curve_range(enum mfl_curve which, float a, float b, const float *x, float *y, int64_t n)
{
        int64_t rest = n % LANES, whole = n - rest;
        float last[LANES] = {0};
        volatile int64_t lanes = LANES; /* not a constant, or the loop would be no loop */
        curve_lanes(which, a, b, x, y, whole);
        if (!rest)
                return;
        memcpy(last, x + whole, (size_t)rest * sizeof *last);
        curve_lanes(which, a, b, last, last, lanes);
        memcpy(y + whole, last, (size_t)rest * sizeof *last);
}

static void curve(enum mfl_curve which, float a, float b, int64_t n, const float *x, float *y, int threads)
{
        DIVIDE(threads, n, curve_range(which, a, b, x + begin, y + begin, end - begin));
}

NOINLINE static void curve_grad_lanes(
        enum mfl_curve which, float a, float b, const float *v, const float *dy, float *dx, int64_t n)
{
        switch (which) {
#define UNARY(symbol, body, stem, reads, n_params, ...)                                                      \
        case MFL_CURVE_##symbol:                                                                             \
                INDEPENDENT for (int64_t i = 0; i < n; i++) dx[i] =                                          \
                        body##_grad_at(v[i], dy[i] MFL_UNARY_ARGS_##n_params(a, b));                         \
                break;
#define UNARY_VARIANT(symbol, variant, body, ...)                                                            \
        case MFL_CURVE_##variant:                                                                            \
                INDEPENDENT for (int64_t i = 0; i < n; i++) dx[i] = body##_grad_at(v[i], dy[i]);             \
                break;
#include "common/model/unary.def"
        case MFL_CURVE_COUNT_:
                mfl_assert(false);
        }
}

static void curve_grad_range(
        enum mfl_curve which, float a, float b, const float *v, const float *dy, float *dx, int64_t n)
{
        int64_t rest = n % LANES, whole = n - rest;
        float last_v[LANES] = {0}, last_dy[LANES] = {0};
        volatile int64_t lanes = LANES;
        curve_grad_lanes(which, a, b, v, dy, dx, whole);
        if (!rest)
                return;
        memcpy(last_v, v + whole, (size_t)rest * sizeof *last_v);
        memcpy(last_dy, dy + whole, (size_t)rest * sizeof *last_dy);
        curve_grad_lanes(which, a, b, last_v, last_dy, last_dy, lanes);
        memcpy(dx + whole, last_dy, (size_t)rest * sizeof *last_dy);
}

static void curve_grad(enum mfl_curve which, float a, float b, int64_t n, const float *v, const float *dy,
        float *dx, int threads)
{
        DIVIDE(threads, n, curve_grad_range(which, a, b, v + begin, dy + begin, dx + begin, end - begin));
}

static void multiply_range(const float *x, const float *factor, float *y, int64_t begin, int64_t end)
{
        for (int64_t i = begin; i < end; i++)
                y[i] = x[i] * factor[i];
}

static void multiply(int64_t n, const float *x, const float *factor, float *y, int threads)
{
        DIVIDE(threads, n, multiply_range(x, factor, y, begin, end));
}

/* mfl_philox4x32 of consecutive blocks side by side, word by word; the compiler turns it into vectors. */
#define PHILOX_BLOCKS 64

static void philox_blocks(struct mfl_rng_key key, uint64_t first, uint32_t u[4][PHILOX_BLOCKS])
{
        uint32_t k0 = key.k[0], k1 = key.k[1];
        for (int b = 0; b < PHILOX_BLOCKS; b++) {
                u[0][b] = (uint32_t)(first + (uint64_t)b);
                u[1][b] = (uint32_t)((first + (uint64_t)b) >> 32);
                u[2][b] = key.hi[0];
                u[3][b] = key.hi[1];
        }
        for (int i = 0; i < 10; i++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
                for (int b = 0; b < PHILOX_BLOCKS; b++) {
                        uint32_t high0 = (uint32_t)((uint64_t)0xD2511F53u * u[0][b] >> 32);
                        uint32_t high1 = (uint32_t)((uint64_t)0xCD9E8D57u * u[2][b] >> 32);
                        uint32_t low0 = 0xD2511F53u * u[0][b], low1 = 0xCD9E8D57u * u[2][b];
                        u[0][b] = high1 ^ u[1][b] ^ k0;
                        u[1][b] = low1;
                        u[2][b] = high0 ^ u[3][b] ^ k1;
                        u[3][b] = low0;
                }
}

static void dropout(struct mfl_rng_key key, uint64_t first, int64_t n, float rate, float *factor)
{
        uint32_t u[4][PHILOX_BLOCKS];
        float part[4 * PHILOX_BLOCKS], kept = mfl_dropout_factor(UINT32_MAX, rate);
        for (int64_t i = 0; i < n; i += 4 * PHILOX_BLOCKS) {
                int64_t stop = MFL_MIN(n - i, 4 * PHILOX_BLOCKS);
                philox_blocks(key, (first + (uint64_t)i) / 4, u);
                for (int b = 0; b < PHILOX_BLOCKS; b++)
                        for (int j = 0; j < 4; j++)
                                part[4 * b + j] = mfl_u32_to_unit(u[j][b]) >= rate ? kept : 0.0f;
                memcpy(factor + i, part, (size_t)stop * sizeof *part);
        }
}

static void gather_u8(int64_t n, const uint8_t *restrict src, float scale, float shift, float *restrict x)
{
        for (int64_t i = 0; i < n; i++)
                x[i] = (float)src[i] * scale + shift;
}
