/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory, tensors and steps of the tests of kernels/cuda/ops/ops.h. */
#include "tests/unit/cuda/ops/ops_test.h"

#include <stdio.h>

#include "common/base/base.h"
#include "tests/emu/emu.h"

#define GUARD 256

static uint64_t seen; /* a hash of everything that was read back */

static void *allocate(size_t bytes)
{
        void *p = malloc(bytes ? bytes : 1);
        assert_non_null(p);
        return p;
}

struct ops_buffer ops_new(size_t bytes)
{
        struct ops_buffer b = {.bytes = bytes};
        unsigned char *host = allocate(bytes + 2 * GUARD);
        memset(host, 0xa5, bytes + 2 * GUARD);
        memset(host + GUARD, 0xff, bytes);
        OPS_OK(cudaMalloc((void **)&b.base, bytes + 2 * GUARD));
        OPS_OK(cudaMemcpy(b.base, host, bytes + 2 * GUARD, cudaMemcpyHostToDevice));
        b.at = b.base + GUARD;
        free(host);
        return b;
}

void ops_free(struct ops_buffer *b)
{
        OPS_OK(cudaFree(b->base));
        *b = (struct ops_buffer){0};
}

void ops_put(const struct ops_buffer *b, const void *from)
{
        OPS_OK(cudaMemcpy(b->at, from, b->bytes, cudaMemcpyHostToDevice));
}

void ops_get(const struct ops_buffer *b, void *to)
{
        unsigned char *host = allocate(b->bytes + 2 * GUARD);
        OPS_OK(cudaDeviceSynchronize());
        OPS_OK(cudaMemcpy(host, b->base, b->bytes + 2 * GUARD, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < GUARD; i++) {
                assert_int_equal(host[i], 0xa5);
                assert_int_equal(host[GUARD + b->bytes + i], 0xa5);
        }
        for (size_t i = 0; i < b->bytes; i++)
                seen = (seen ^ host[GUARD + i]) * 0x100000001b3u;
        memcpy(to, host + GUARD, b->bytes);
        free(host);
}

struct ops_buffer ops_new_from(const void *from, size_t bytes)
{
        struct ops_buffer b = ops_new(bytes);
        ops_put(&b, from);
        return b;
}

void ops_assert_untouched(const struct ops_buffer *b, size_t at, size_t bytes)
{
        unsigned char *host = allocate(b->bytes);
        ops_get(b, host);
        for (size_t i = at; i < at + bytes; i++)
                assert_int_equal(host[i], 0xff);
        free(host);
}

int64_t ops_count(const struct mfl_cuda_tensor *x)
{
        return (int64_t)x->groups * x->batch * x->h * x->w * x->c;
}

/* Element i of [..][c][h][w] as an index of [..][h][w][c]. */
static int64_t nhwc_of(const struct mfl_cuda_tensor *x, int64_t i)
{
        int64_t pixels = (int64_t)x->h * x->w, count = pixels * x->c, e = i % count;
        return i - e + e % pixels * x->c + e / pixels;
}

struct ops_buffer ops_tensor(const struct mfl_cuda_tensor *x)
{
        return ops_new((size_t)ops_count(x) * (size_t)mfl_cuda_type_bytes(x->type));
}

struct ops_buffer ops_tensor_from(const struct mfl_cuda_tensor *x, const float *nchw)
{
        struct ops_buffer b = ops_tensor(x);
        void *host = allocate(b.bytes);
        for (int64_t i = 0; i < ops_count(x); i++)
                mfl_store(host, nhwc_of(x, i), nchw[i], x->type);
        ops_put(&b, host);
        free(host);
        return b;
}

void ops_tensor_get(const struct ops_buffer *b, const struct mfl_cuda_tensor *x, float *nchw)
{
        void *host = allocate(b->bytes);
        ops_get(b, host);
        for (int64_t i = 0; i < ops_count(x); i++)
                nchw[i] = mfl_load(host, nhwc_of(x, i), x->type);
        free(host);
}

float ops_round(float v, enum mfl_cuda_type type)
{
        float at[1];
        mfl_store(at, 0, v, type);
        return mfl_load(at, 0, type);
}

float ops_rounding(enum mfl_cuda_type type)
{
        return type == MFL_CUDA_F32 ? 0x1p-24f : type == MFL_CUDA_BF16 ? 0x1p-8f : 0x1p-11f;
}

float *ops_uniform(int64_t n, enum mfl_cuda_type type, uint64_t seed)
{
        struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_TEST, 0, 0);
        float *v = allocate((size_t)n * sizeof *v);
        for (int64_t i = 0; i < n; i++)
                v[i] = ops_round(2 * mfl_u32_to_unit(mfl_rng_u32(&rng)) - 1, type);
        return v;
}

float *ops_whole(int64_t n, int limit, uint64_t seed)
{
        struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_TEST, 1, 0);
        float *v = allocate((size_t)n * sizeof *v);
        for (int64_t i = 0; i < n; i++)
                v[i] = (float)((int)mfl_rng_below(&rng, (uint32_t)(2 * limit + 1)) - limit);
        return v;
}

float *ops_zeros(int64_t n)
{
        float *v = allocate((size_t)n * sizeof *v);
        memset(v, 0, (size_t)n * sizeof *v);
        return v;
}

static struct mfl_rng_key *make_keys(int groups, uint32_t domain)
{
        struct mfl_rng_key *keys = allocate((size_t)groups * sizeof *keys);
        for (int g = 0; g < groups; g++)
                keys[g] = mfl_rng_derive(77, domain, (uint64_t)g, 3);
        return keys;
}

struct ops_steps ops_steps_new(int groups, int batch, const uint32_t *count, uint32_t n_samples)
{
        enum { STEPS = 3 };
        size_t n_groups = (size_t)groups, n_rows = n_groups * (size_t)batch, bytes = sizeof(uint32_t);
        struct mfl_rng rng = mfl_rng_new(5, MFL_RNG_TEST, 2, 0);
        struct ops_steps s = {0};
        uint32_t step = OPS_STEP, *all_index = allocate(n_rows * STEPS * bytes);
        uint32_t *all_count = allocate(n_groups * STEPS * bytes);
        s.index = allocate(n_rows * bytes);
        s.step_first = allocate(n_groups * bytes);
        s.count = allocate(n_groups * bytes);
        s.dropout = make_keys(groups, MFL_RNG_DROPOUT);
        s.augment = make_keys(groups, MFL_RNG_AUGMENT);
        memset(all_index, 0xff, n_rows * STEPS * bytes);
        memset(all_count, 0xff, n_groups * STEPS * bytes);
        for (int g = 0; g < groups; g++) {
                s.step_first[g] = 5 + (uint32_t)g;
                s.count[g] = all_count[g * STEPS + (int)OPS_STEP] = count[g];
                for (uint32_t r = 0; r < count[g]; r++)
                        all_index[(g * STEPS + (int)OPS_STEP) * batch + (int)r] =
                                s.index[g * batch + (int)r] = mfl_rng_below(&rng, n_samples);
        }
        s.buffers[0] = ops_new_from(&step, bytes);
        s.buffers[1] = ops_new_from(s.step_first, n_groups * bytes);
        s.buffers[2] = ops_new_from(all_index, n_rows * STEPS * bytes);
        s.buffers[3] = ops_new_from(all_count, n_groups * STEPS * bytes);
        s.buffers[4] = ops_new_from(s.dropout, n_groups * sizeof *s.dropout);
        s.buffers[5] = ops_new_from(s.augment, n_groups * sizeof *s.augment);
        s.on_device = (struct mfl_cuda_steps){(uint32_t *)s.buffers[0].at, (uint32_t *)s.buffers[1].at,
                (uint32_t *)s.buffers[2].at, (uint32_t *)s.buffers[3].at,
                (struct mfl_rng_key *)s.buffers[4].at, (struct mfl_rng_key *)s.buffers[5].at, STEPS,
                (uint32_t)batch};
        free(all_index);
        free(all_count);
        return s;
}

void ops_steps_free(struct ops_steps *s)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(s->buffers); i++)
                ops_free(&s->buffers[i]);
        free(s->index);
        free(s->step_first);
        free(s->count);
        free(s->dropout);
        free(s->augment);
}

const int ops_groups[3] = {1, 2, 5};

const uint32_t *ops_counts(int groups, int batch)
{
        static uint32_t count[5];
        uint32_t whole = (uint32_t)batch, part = whole > 1 ? whole - 1 : 1;
        const uint32_t all[3][5] = {{part}, {whole, 0}, {whole, 0, 1, part, whole}};
        memcpy(count, all[groups == 1 ? 0 : groups == 2 ? 1 : 2], sizeof count);
        return count;
}

void ops_clear_rows(const struct mfl_cuda_tensor *x, const uint32_t *count, float *values)
{
        int64_t row = (int64_t)x->h * x->w * x->c;
        for (int g = 0; g < x->groups; g++)
                for (int64_t i = count[g] * row; i < x->batch * row; i++)
                        values[g * x->batch * row + i] = 0.0f;
}

void ops_assert_equal(const float *got, const float *want, int64_t n, const char *what)
{
        for (int64_t i = 0; i < n; i++)
                if (got[i] != want[i] && !(isnan(got[i]) && isnan(want[i])))
                        fail_msg("%s: element %lld is %.9g, expected %.9g", what, (long long)i,
                                (double)got[i], (double)want[i]);
}

void ops_both_orders(void (*body)(void))
{
        uint64_t first = 0;
        for (int order = MFL_EMU_FORWARD; order <= MFL_EMU_REVERSE; order++) {
                mfl_emu_set_order((enum mfl_emu_order)order, 0);
                seen = 0xcbf29ce484222325u;
                body();
                if (order == MFL_EMU_FORWARD)
                        first = seen;
        }
        mfl_emu_set_order(MFL_EMU_FORWARD, 0);
        assert_true(first == seen);
}
