/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise loops; part of loops_body.h. The compiler makes them vectors.
 *
 * exp and tanh are polynomials, since a library call for each element takes longer than the layers around it.
 * The coefficients were fitted with numpy at Chebyshev points; errors stay below 3e-7 relative.
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

/* exp(x) - 1 without cancellation near 0. */
INLINE float expm1_poly(float x)
{
        float scale, e = exp_parts(x, &scale);
        return e * scale + (scale - 1.0f);
}

/* log(1 + u) for u in [0, 1]: 2 artanh(u / (u + 2)), whose series ends where float does. */
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

/* erf by its odd polynomial below 0.9, else 1 - exp(q(x)), q being fitted to log(erfc) up to 4, from where on
 * erf is 1 in float; errors below 1.2e-7. */
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

INLINE float gelu_at(float x)
{
        return 0.5f * x * (1.0f + erf_poly(x * MFL_SQRT_HALF));
}

INLINE float gelu_grad_at(float x, float dy)
{
        float phi = 0.5f * (1.0f + erf_poly(x * MFL_SQRT_HALF));
        return dy * (phi + x * MFL_1_OVER_SQRT_2PI * exp_poly(-0.5f * x * x));
}

INLINE float gelu_tanh_at(float x)
{
        return 0.5f * x * (1.0f + tanh_poly(MFL_SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)));
}

INLINE float gelu_tanh_grad_at(float x, float dy)
{
        float t = tanh_poly(MFL_SQRT_2_OVER_PI * (x + 0.044715f * x * x * x));
        float inner = MFL_SQRT_2_OVER_PI * (1.0f + 3.0f * 0.044715f * x * x);
        return dy * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner);
}

INLINE float silu_at(float x)
{
        return x / (1.0f + exp_poly(-x));
}

INLINE float silu_grad_at(float x, float dy)
{
        float s = 1.0f / (1.0f + exp_poly(-x));
        return dy * (s * (1.0f + x * (1.0f - s)));
}

INLINE float elu_at(float x, float alpha)
{
        return x > 0.0f ? x : alpha * expm1_poly(x);
}

INLINE float softplus_at(float x)
{
        return mfl_relu(x) + log1p_series(exp_poly(-fabsf(x)));
}

#define EACH(expression)                                                                                     \
        for (int64_t i = begin; i < end; i++)                                                                \
        expression

static void activation_range(
        const struct mfl_layer *layer, const float *x, float *y, int64_t begin, int64_t end)
{
        const float alpha = layer->alpha;
        switch (layer->op) {
        case MFL_OP_RELU6:
                EACH(y[i] = mfl_relu6(x[i]));
                break;
        case MFL_OP_LEAKY_RELU:
                EACH(y[i] = mfl_leaky_relu(x[i], alpha));
                break;
        case MFL_OP_ELU:
                EACH(y[i] = elu_at(x[i], alpha));
                break;
        case MFL_OP_HARDSIGMOID:
                EACH(y[i] = mfl_hardsigmoid(x[i]));
                break;
        case MFL_OP_HARDSWISH:
                EACH(y[i] = mfl_hardswish(x[i]));
                break;
        case MFL_OP_SOFTPLUS:
                EACH(y[i] = softplus_at(x[i]));
                break;
        case MFL_OP_SILU:
                EACH(y[i] = silu_at(x[i]));
                break;
        default:
                if (layer->approximate)
                        EACH(y[i] = gelu_tanh_at(x[i]));
                else
                        EACH(y[i] = gelu_at(x[i]));
        }
}

static void activation(const struct mfl_layer *layer, int64_t n, const float *x, float *y, int threads)
{
        DIVIDE(threads, n, activation_range(layer, x, y, begin, end));
}

static void activation_grad_range(
        const struct mfl_layer *layer, const float *v, const float *dy, float *dx, int64_t begin, int64_t end)
{
        const float alpha = layer->alpha;
        switch (layer->op) {
        case MFL_OP_RELU6:
                EACH(dx[i] = mfl_relu6_grad(v[i], dy[i]));
                break;
        case MFL_OP_LEAKY_RELU:
                EACH(dx[i] = mfl_leaky_relu_grad(v[i], dy[i], alpha));
                break;
        case MFL_OP_ELU:
                EACH(dx[i] = mfl_elu_grad(v[i], dy[i], alpha));
                break;
        case MFL_OP_HARDSIGMOID:
                EACH(dx[i] = mfl_hardsigmoid_grad(v[i], dy[i]));
                break;
        case MFL_OP_HARDSWISH:
                EACH(dx[i] = mfl_hardswish_grad(v[i], dy[i]));
                break;
        case MFL_OP_SOFTPLUS:
                EACH(dx[i] = dy[i] / (1.0f + exp_poly(-v[i])));
                break;
        case MFL_OP_SILU:
                EACH(dx[i] = silu_grad_at(v[i], dy[i]));
                break;
        default:
                if (layer->approximate)
                        EACH(dx[i] = gelu_tanh_grad_at(v[i], dy[i]));
                else
                        EACH(dx[i] = gelu_grad_at(v[i], dy[i]));
        }
}

static void activation_grad(
        const struct mfl_layer *layer, int64_t n, const float *v, const float *dy, float *dx, int threads)
{
        DIVIDE(threads, n, activation_grad_range(layer, v, dy, dx, begin, end));
}

static void relu_range(const float *x, float *y, int64_t begin, int64_t end)
{
        for (int64_t i = begin; i < end; i++)
                y[i] = mfl_relu(x[i]);
}

static void relu(int64_t n, const float *x, float *y, int threads)
{
        DIVIDE(threads, n, relu_range(x, y, begin, end));
}

static void relu_grad_range(const float *y, const float *dy, float *dx, int64_t begin, int64_t end)
{
        for (int64_t i = begin; i < end; i++)
                dx[i] = mfl_relu_grad(y[i], dy[i]);
}

static void relu_grad(int64_t n, const float *y, const float *dy, float *dx, int threads)
{
        DIVIDE(threads, n, relu_grad_range(y, dy, dx, begin, end));
}

static void tanh_range(const float *x, float *y, int64_t begin, int64_t end)
{
        for (int64_t i = begin; i < end; i++)
                y[i] = tanh_poly(x[i]);
}

static void tanh_vector(int64_t n, const float *x, float *y, int threads)
{
        DIVIDE(threads, n, tanh_range(x, y, begin, end));
}

static void tanh_grad_range(const float *y, const float *dy, float *dx, int64_t begin, int64_t end)
{
        for (int64_t i = begin; i < end; i++)
                dx[i] = mfl_tanh_grad(y[i], dy[i]);
}

static void tanh_grad(int64_t n, const float *y, const float *dy, float *dx, int threads)
{
        DIVIDE(threads, n, tanh_grad_range(y, dy, dx, begin, end));
}

static void sigmoid_range(const float *x, float *y, int64_t begin, int64_t end)
{
        for (int64_t i = begin; i < end; i++)
                y[i] = 1.0f / (1.0f + exp_poly(-x[i]));
}

static void sigmoid(int64_t n, const float *x, float *y, int threads)
{
        DIVIDE(threads, n, sigmoid_range(x, y, begin, end));
}

static void sigmoid_grad_range(const float *y, const float *dy, float *dx, int64_t begin, int64_t end)
{
        for (int64_t i = begin; i < end; i++)
                dx[i] = mfl_sigmoid_grad(y[i], dy[i]);
}

static void sigmoid_grad(int64_t n, const float *y, const float *dy, float *dx, int threads)
{
        DIVIDE(threads, n, sigmoid_grad_range(y, dy, dx, begin, end));
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

/* mfl_philox4x32 of consecutive blocks side by side, word by word, which the compiler makes vectors. */
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
