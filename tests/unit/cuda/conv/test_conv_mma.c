/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor-core convolutions on the emulated device, bit for bit against plain loops that follow the
 * contract in conv_mma.h literally: the emulated mma adds exact products in double in ascending order and
 * rounds once, so equality can be demanded. Every variant must match the same reference, so all variants are
 * equal. */
#include "tests/lib/test.h"

#include <stdio.h>

#include "kernels/cuda/conv/conv_mma.h"
#include "tests/emu/emu.h"

enum {
        GUARD = 64, /* bytes of 0xff before and after every array: NaN for any reader */
        GROUPS_MAX = 5,
};

struct array {
        unsigned char *all, *at;
        size_t bytes;
};

static struct array array_new(size_t bytes)
{
        struct array r = {.bytes = bytes};
        void *p;
        assert_int_equal(cudaMalloc(&p, bytes + 2 * GUARD), cudaSuccess);
        r.all = p;
        r.at = r.all + GUARD;
        memset(p, 0xff, bytes + 2 * GUARD); /* the emulated device's memory is the host's */
        return r;
}

static void array_free(struct array *a)
{
        for (size_t i = 0; i < GUARD; i++) {
                assert_int_equal(a->all[i], 0xff);
                assert_int_equal(a->at[a->bytes + i], 0xff);
        }
        cudaFree(a->all);
}

static uint32_t random_state = 1;
static float random_value(void)
{
        random_state = random_state * 1664525u + 1013904223u;
        return (float)((int32_t)random_state >> 8) * 0x1p-23f;
}

static void fill(struct array *a, enum mfl_cuda_type type)
{
        for (size_t i = 0; i < a->bytes / (size_t)mfl_cuda_type_bytes(type); i++)
                mfl_store(a->at, (int64_t)i, random_value(), type);
}

/* One problem with its tensors. Params of a group: `w_at` elements, w, one element, bias, the rest. */
struct problem {
        struct mfl_cuda_conv conv;
        enum mfl_cuda_pass pass;
        struct mfl_cuda_conv_args args;
        enum mfl_cuda_type type;
        int w_at, bias_at, params;
        int64_t image_in, image_out; /* elements of a group */
        struct array x, dy, w, floats, out, act_y, grads;
        bool has_bias;
        uint32_t counts[GROUPS_MAX], step;
};

static void problem_init(
        struct problem *p, const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int w_at)
{
        int n_w = conv->k * conv->r * conv->s * conv->c;
        *p = (struct problem){.conv = *conv, .pass = pass, .w_at = w_at, .has_bias = true};
        p->type = mfl_cuda_type_of(conv->precision);
        size_t bytes = (size_t)mfl_cuda_type_bytes(p->type), groups = (size_t)conv->groups;
        p->bias_at = w_at + n_w + 1;
        p->params = (p->bias_at + conv->k + 7) / 8 * 8 + (w_at % 2 ? 3 : 0);
        p->image_in = (int64_t)conv->n * conv->h * conv->w * conv->c;
        p->image_out = (int64_t)conv->n * conv->oh * conv->ow * conv->k;
        p->x = array_new(groups * (size_t)p->image_in * bytes);
        p->dy = array_new(groups * (size_t)p->image_out * bytes);
        p->w = array_new(groups * (size_t)p->params * bytes);
        p->floats = array_new(groups * (size_t)p->params * 4);
        p->act_y = array_new(groups * (size_t)p->image_in * bytes);
        p->grads = array_new(groups * (size_t)p->params * 4);
        p->out = array_new(groups * (size_t)(pass == MFL_CUDA_FORWARD ? p->image_out : p->image_in) * bytes);
        fill(&p->x, p->type);
        fill(&p->dy, p->type);
        fill(&p->w, p->type);
        fill(&p->floats, MFL_CUDA_F32);
        fill(&p->act_y, p->type);
        p->args.steps.batch = (uint32_t)conv->n;
}

static void problem_free(struct problem *p)
{
        struct array *all[] = {&p->x, &p->dy, &p->w, &p->floats, &p->act_y, &p->grads, &p->out};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
                array_free(all[i]);
}

/* Groups in `left_out` have no rows; others have one row less than the batch, and its dy is zero. */
static void problem_count(struct problem *p, uint32_t left_out)
{
        int64_t row = p->image_out / p->conv.n;
        for (int g = 0; g < p->conv.groups; g++) {
                p->counts[g] = left_out >> g & 1 ? 0 : (uint32_t)(p->conv.n > 1 ? p->conv.n - 1 : 1);
                for (int64_t i = p->counts[g] * row; i < p->image_out; i++)
                        mfl_store(p->dy.at, g * p->image_out + i, 0.0f, p->type);
        }
        p->args.steps.count = p->counts;
        p->args.steps.step = &p->step;
        p->args.steps.steps_max = 1;
}

static bool is_left_out(const struct problem *p, int g)
{
        return p->args.steps.count && p->counts[g] == 0;
}

/* Runs a variant into poisoned outputs. */
static void problem_run(struct problem *p, int variant)
{
        const struct mfl_cuda_conv_family *family = &mfl_cuda_conv_mma;
        uint64_t bytes = family->workspace(&p->conv, p->pass, variant);
        struct array workspace = array_new((size_t)bytes + 256);
        struct mfl_cuda_conv_args *a = &p->args;
        size_t element = (size_t)mfl_cuda_type_bytes(p->type);
        memset(p->grads.at, 0xff, p->grads.bytes);
        memset(p->out.at, 0xff, p->out.bytes);
        if (a->add)
                memcpy(p->out.at, p->x.at, p->out.bytes);
        bool forward = p->pass == MFL_CUDA_FORWARD, data = p->pass == MFL_CUDA_BACKWARD_DATA;
        a->x = data ? NULL : p->x.at;
        a->dy = forward ? NULL : p->dy.at;
        a->y = forward ? p->out.at : NULL;
        a->dx = data ? p->out.at : NULL;
        a->w = forward || data ? p->w.at + (size_t)p->w_at * element : NULL;
        a->bias = forward && p->has_bias ? (float *)p->floats.at + p->bias_at : NULL;
        a->dw = forward || data ? NULL : (float *)p->grads.at + p->w_at;
        a->db = forward || data || !p->has_bias ? NULL : (float *)p->grads.at + p->bias_at;
        a->w_stride = a->p_stride = (uint64_t)p->params;
        a->act_y = data && a->act != MFL_CUDA_ACT_NONE ? p->act_y.at : NULL;
        a->workspace = NULL;
        if (bytes) /* its end is exact, so that the guard follows directly */
                a->workspace = (void *)(((uintptr_t)workspace.all + 255) / 256 * 256);
        assert_int_equal(family->run(&p->conv, p->pass, variant, a, NULL), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        unsigned char *behind = (unsigned char *)a->workspace + bytes;
        while (bytes && behind < workspace.at + workspace.bytes)
                assert_int_equal(*behind++, 0xff);
        if (bytes) /* used up to here, and the guard before it is intact */
                memset(workspace.all, 0xff, GUARD);
        array_free(&workspace);
}

/* ---- the reference ---- */

struct matrices {
        int m, n, kk, segment, k_step;
        double *a, *b; /* [m][kk], [n][kk] */
};

static double operand(const struct problem *p, const struct array *tensor, int64_t at)
{
        float v = mfl_load(tensor->at, at, p->type);
        if (p->conv.precision == MFL_PRECISION_TF32)
                v = mfl_bits_to_float(mfl_to_tf32(v));
        return (double)v;
}

/* x at the place that output pixel (row, i, j) sees through tap (r, s, c). */
static double seen_x(const struct problem *p, int g, int pixel, int tap)
{
        const struct mfl_cuda_conv *v = &p->conv;
        int c = tap % v->c, s = tap / v->c % v->s, r = tap / v->c / v->s;
        int j = pixel % v->ow, i = pixel / v->ow % v->oh, row = pixel / v->ow / v->oh;
        int y = i * v->stride[0] - v->pad[0] + r * v->dilation[0];
        int x = j * v->stride[1] - v->pad[1] + s * v->dilation[1];
        if (y < 0 || y >= v->h || x < 0 || x >= v->w)
                return 0;
        return operand(p, &p->x, g * p->image_in + (((int64_t)row * v->h + y) * v->w + x) * v->c + c);
}

/* dy at the output pixel that saw input pixel (row, y, x) through tap (r, s), for channel k. */
static double seen_dy(const struct problem *p, int g, int pixel, int tap)
{
        const struct mfl_cuda_conv *v = &p->conv;
        int k = tap % v->k, s = tap / v->k % v->s, r = tap / v->k / v->s;
        int x = pixel % v->w, y = pixel / v->w % v->h, row = pixel / v->w / v->h;
        int i = y + v->pad[0] - r * v->dilation[0], j = x + v->pad[1] - s * v->dilation[1];
        if (i < 0 || j < 0 || i % v->stride[0] || j % v->stride[1])
                return 0;
        i /= v->stride[0];
        j /= v->stride[1];
        if (i >= v->oh || j >= v->ow)
                return 0;
        return operand(p, &p->dy, g * p->image_out + (((int64_t)row * v->oh + i) * v->ow + j) * v->k + k);
}

static double a_of(const struct problem *p, int g, int m, int kk)
{
        if (p->pass == MFL_CUDA_FORWARD)
                return seen_x(p, g, m, kk);
        if (p->pass == MFL_CUDA_BACKWARD_DATA)
                return seen_dy(p, g, m, kk);
        return operand(p, &p->dy, g * p->image_out + (int64_t)kk * p->conv.k + m);
}

static double b_of(const struct problem *p, int g, int kk, int n)
{
        int taps = p->conv.r * p->conv.s * p->conv.c;
        int64_t w = (int64_t)g * p->params + p->w_at;
        if (p->pass == MFL_CUDA_FORWARD)
                return operand(p, &p->w, w + (int64_t)n * taps + kk);
        if (p->pass == MFL_CUDA_BACKWARD_DATA)
                return operand(p, &p->w,
                        w + (int64_t)(kk % p->conv.k) * taps + (int64_t)(kk / p->conv.k) * p->conv.c + n);
        return seen_x(p, g, kk, n);
}

static void matrices_init(struct matrices *x, const struct problem *p, int g)
{
        const struct mfl_cuda_conv *v = &p->conv;
        int taps = v->r * v->s, in = v->n * v->h * v->w, out = v->n * v->oh * v->ow;
        bool forward = p->pass == MFL_CUDA_FORWARD, data = p->pass == MFL_CUDA_BACKWARD_DATA;
        x->m = forward ? out : data ? in : v->k;
        x->n = forward ? v->k : data ? v->c : taps * v->c;
        x->kk = forward ? taps * v->c : data ? taps * v->k : out;
        x->segment = (int)mfl_cuda_conv_mma.segment(v, p->pass);
        x->k_step = v->precision == MFL_PRECISION_TF32 ? 8 : 16;
        assert_true(x->segment > 0 && x->segment % MFL_MMA_BK == 0);
        x->a = mfl_malloc((size_t)x->m * (size_t)x->kk * sizeof *x->a);
        x->b = mfl_malloc((size_t)x->n * (size_t)x->kk * sizeof *x->b);
        for (int m = 0; m < x->m; m++)
                for (int kk = 0; kk < x->kk; kk++)
                        x->a[(int64_t)m * x->kk + kk] = a_of(p, g, m, kk);
        for (int n = 0; n < x->n; n++)
                for (int kk = 0; kk < x->kk; kk++)
                        x->b[(int64_t)n * x->kk + kk] = b_of(p, g, kk, n);
}

static float product(const struct matrices *x, int m, int n)
{
        const double *a = x->a + (int64_t)m * x->kk, *b = x->b + (int64_t)n * x->kk;
        float total = 0;
        for (int start = 0; start < x->kk; start += x->segment) {
                float acc = 0;
                for (int k = start; k < start + x->segment && k < x->kk; k += x->k_step) {
                        double sum = (double)acc;
                        for (int i = k; i < k + x->k_step && i < x->kk; i++)
                                sum += a[i] * b[i];
                        acc = (float)sum;
                }
                total = start ? total + acc : acc;
        }
        return total;
}

static float bias_gradient(const struct problem *p, const struct matrices *x, int g, int k)
{
        float total = 0;
        for (int start = 0; start < x->kk; start += x->segment) {
                float part[4] = {0};
                for (int kk = start; kk < start + x->segment && kk < x->kk; kk++)
                        part[kk % 4] +=
                                mfl_load(p->dy.at, g * p->image_out + (int64_t)kk * p->conv.k + k, p->type);
                float sum = (part[0] + part[1]) + (part[2] + part[3]);
                total = start ? total + sum : sum;
        }
        return total;
}

static float finished(const struct problem *p, int g, int m, int n, int width, float v)
{
        int64_t at = g * p->image_in + (int64_t)m * width + n;
        if (p->pass == MFL_CUDA_FORWARD) {
                v += p->has_bias ? ((const float *)p->floats.at)[(int64_t)g * p->params + p->bias_at + n]
                                 : 0.0f;
                return mfl_act(p->args.act, v);
        }
        if (p->args.add) /* problem_run copied x there */
                v = mfl_load(p->x.at, at, p->type) + v;
        return p->args.act ? mfl_act_grad(p->args.act, mfl_load(p->act_y.at, at, p->type), v) : v;
}

static bool is_poison(const unsigned char *at, size_t bytes)
{
        for (size_t i = 0; i < bytes; i++)
                if (at[i] != 0xff)
                        return false;
        return true;
}

/* What this group's outputs must be, as bytes; for the weight gradient all of the group's vector. */
static unsigned char *expected(const struct problem *p, int g, size_t *ret_bytes)
{
        struct matrices x;
        matrices_init(&x, p, g);
        bool weights = p->pass == MFL_CUDA_BACKWARD_WEIGHTS;
        enum mfl_cuda_type type = weights ? MFL_CUDA_F32 : p->type;
        int64_t n = weights ? p->params : (int64_t)x.m * x.n;
        *ret_bytes = (size_t)n * (size_t)mfl_cuda_type_bytes(type);
        unsigned char *want = mfl_malloc(*ret_bytes);
        memset(want, 0xff, *ret_bytes);
        for (int m = 0; m < x.m; m++)
                for (int column = 0; column < x.n; column++) {
                        float v = product(&x, m, column);
                        int64_t at = (int64_t)m * x.n + column;
                        if (weights)
                                mfl_store(want, p->w_at + at, v, type);
                        else
                                mfl_store(want, at, finished(p, g, m, column, x.n, v), type);
                }
        for (int k = 0; weights && p->has_bias && k < x.m; k++)
                mfl_store(want, p->bias_at + k, bias_gradient(p, &x, g, k), type);
        free(x.a);
        free(x.b);
        return want;
}

static void check(struct problem *p, unsigned char *const want[], size_t bytes, const char *what, int variant)
{
        const struct array *got = p->pass == MFL_CUDA_BACKWARD_WEIGHTS ? &p->grads : &p->out;
        for (int g = 0; g < p->conv.groups; g++) {
                const unsigned char *at = got->at + (size_t)g * bytes;
                if (is_left_out(p, g)) {
                        assert_true(p->args.add || is_poison(at, bytes));
                        continue;
                }
                if (!memcmp(at, want[g], bytes))
                        continue;
                size_t i = 0;
                while (at[i] == want[g][i])
                        i++;
                fail_msg(
                        "%s, precision %d, pass %d, variant %d (%s), group %d of %d: byte %zu of %zu differs",
                        what, (int)p->conv.precision, (int)p->pass, variant,
                        mfl_cuda_conv_mma.variant_name(&p->conv, p->pass, variant), g, p->conv.groups, i,
                        bytes);
        }
}

/* All variants, or the first whole and the first split one. */
static void check_variants(struct problem *p, const char *what, bool all)
{
        unsigned char *want[GROUPS_MAX];
        size_t bytes = 0;
        for (int g = 0; g < p->conv.groups; g++)
                want[g] = expected(p, g, &bytes);
        int n = mfl_cuda_conv_mma.variants(&p->conv, p->pass);
        assert_true(n >= 1);
        bool seen[2] = {false, false};
        for (int variant = 0; variant < n; variant++) {
                bool split = mfl_cuda_conv_mma.workspace(&p->conv, p->pass, variant) > 0;
                if (seen[split] && !all)
                        continue;
                seen[split] = true;
                problem_run(p, variant);
                check(p, want, bytes, what, variant);
        }
        for (int g = 0; g < p->conv.groups; g++)
                free(want[g]);
}

/* ---- cases ---- */

struct shape {
        const char *name;
        int n, h, w, c, k, r, s, stride[2], pad[2], dilation[2];
};

static const struct shape shapes[] = {
        {"3x3, 3 -> 5", 2, 7, 6, 3, 5, 3, 3, {1, 1}, {1, 1}, {1, 1}},
        {"5x5, 1 -> 32", 1, 6, 7, 1, 32, 5, 5, {1, 1}, {2, 2}, {1, 1}},
        {"3x3, 8 -> 16, stride 2", 2, 9, 8, 8, 16, 3, 3, {2, 2}, {1, 1}, {1, 1}},
        {"3x3, 32 -> 32", 2, 7, 7, 32, 32, 3, 3, {1, 1}, {0, 0}, {1, 1}},
        {"3x2, 6 -> 10, all odd", 3, 11, 10, 6, 10, 3, 2, {2, 3}, {1, 2}, {2, 1}},
        {"2x3, 7 -> 9, dilated", 2, 8, 9, 7, 9, 2, 3, {1, 1}, {0, 2}, {2, 3}},
        {"2x2, 4 -> 12, padding beyond the kernel", 2, 4, 5, 4, 12, 2, 2, {1, 2}, {3, 2}, {1, 1}},
        {"1x1, 16 -> 8, stride 3", 2, 7, 8, 16, 8, 1, 1, {3, 2}, {0, 0}, {1, 1}},
        {"1x5 on a line, 2 -> 3", 3, 1, 40, 2, 3, 1, 5, {1, 1}, {0, 2}, {1, 1}},
        {"1x1, 2 -> 3, many pixels", 5, 16, 15, 2, 3, 1, 1, {1, 1}, {0, 0}, {1, 1}},
        {"dense 1100 -> 10", 10, 1, 1, 1100, 10, 1, 1, {1, 1}, {0, 0}, {1, 1}},
        {"dense 24 -> 530", 4, 1, 1, 24, 530, 1, 1, {1, 1}, {0, 0}, {1, 1}},
        {"dense 67 -> 33, 35 rows", 35, 1, 1, 67, 33, 1, 1, {1, 1}, {0, 0}, {1, 1}},
        {"3x3, 64 -> 72, two segments", 1, 5, 5, 64, 72, 3, 3, {1, 1}, {1, 1}, {1, 1}},
        {"1x1, 136 -> 132, many tiles", 1, 12, 12, 136, 132, 1, 1, {1, 1}, {0, 0}, {1, 1}},
};
enum {
        N_SHAPES = sizeof shapes / sizeof *shapes,
};

static struct mfl_cuda_conv conv_of(const struct shape *s, enum mfl_precision precision, int groups)
{
        struct mfl_cuda_conv v = {.groups = groups,
                .n = s->n,
                .h = s->h,
                .w = s->w,
                .c = s->c,
                .k = s->k,
                .r = s->r,
                .s = s->s,
                .precision = precision};
        memcpy(v.stride, s->stride, sizeof v.stride);
        memcpy(v.pad, s->pad, sizeof v.pad);
        memcpy(v.dilation, s->dilation, sizeof v.dilation);
        v.oh = (s->h + 2 * s->pad[0] - s->dilation[0] * (s->r - 1) - 1) / s->stride[0] + 1;
        v.ow = (s->w + 2 * s->pad[1] - s->dilation[1] * (s->s - 1) - 1) / s->stride[1] + 1;
        return v;
}

static const enum mfl_precision precisions[] = {MFL_PRECISION_TF32, MFL_PRECISION_BF16, MFL_PRECISION_FP16};

/* Every variant of every shape, in tf32 and in the 16-bit types by turns; G, the weights' alignment, the
 * order of threads and the epilogue vary. */
static void test_shapes(enum mfl_cuda_pass pass)
{
        static const int groups[] = {2, 1, 5};
        for (int i = 0; i < 2 * N_SHAPES; i++) {
                const struct shape *s = &shapes[i % N_SHAPES];
                enum mfl_precision precision = precisions[i / N_SHAPES + (i >= N_SHAPES && i % 2)];
                int turn = i + i / N_SHAPES;
                struct mfl_cuda_conv conv = conv_of(s, precision, i % N_SHAPES < 9 ? groups[turn % 3] : 1);
                struct problem p;
                problem_init(&p, &conv, pass, turn % 2 ? 8 : 1);
                p.args.act = (enum mfl_cuda_act)(turn % 3 == 2 ? 0 : turn % 4);
                p.args.add = pass == MFL_CUDA_BACKWARD_DATA && turn % 2;
                p.has_bias = turn % 5 != 4;
                mfl_emu_set_order(turn % 2 ? MFL_EMU_REVERSE : MFL_EMU_FORWARD, 0);
                check_variants(&p, s->name, true);
                problem_free(&p);
        }
        mfl_emu_set_order(MFL_EMU_FORWARD, 0);
}

static void test_forward(void **state)
{
        test_shapes(MFL_CUDA_FORWARD);
}
static void test_backward_data(void **state)
{
        test_shapes(MFL_CUDA_BACKWARD_DATA);
}
static void test_backward_weights(void **state)
{
        test_shapes(MFL_CUDA_BACKWARD_WEIGHTS);
}

/* Every epilogue, four outputs at a time (8 -> 16) and one by one (7 -> 9), whole and split (64 -> 72). */
static void test_epilogues(void **state)
{
        static const int which[] = {2, 5, 13};
        for (int i = 0; i < 3 * 2 * 4 * 2; i++) {
                const struct shape *s = &shapes[which[i % 3]];
                enum mfl_cuda_pass pass = i / 3 % 2 ? MFL_CUDA_BACKWARD_DATA : MFL_CUDA_FORWARD;
                bool second = i >= 24;
                struct mfl_cuda_conv conv = conv_of(s, precisions[(i + i / 3 + second) % 3], 1);
                struct problem p;
                problem_init(&p, &conv, pass, 0);
                p.args.act = (enum mfl_cuda_act)(i / 6 % 4);
                p.args.add = pass == MFL_CUDA_BACKWARD_DATA && second;
                p.has_bias = second;
                check_variants(&p, s->name, false);
                problem_free(&p);
        }
}

/* Groups without rows keep their memory, in every launch of every pass; rows beyond count are computed. */
static void test_counts(void **state)
{
        static const int which[] = {3, 4, 9, 11};
        for (int i = 0; i < 4 * 3; i++) {
                const struct shape *s = &shapes[which[i % 4]];
                enum mfl_cuda_pass pass = (enum mfl_cuda_pass)(i / 4);
                struct mfl_cuda_conv conv = conv_of(s, precisions[i % 3], 5);
                struct problem p;
                problem_init(&p, &conv, pass, 0);
                problem_count(&p, 1u << 1 | 1u << 4);
                mfl_emu_set_order(MFL_EMU_RANDOM, (uint64_t)i);
                check_variants(&p, s->name, i % 4 == 3);
                problem_free(&p);
        }
        mfl_emu_set_order(MFL_EMU_FORWARD, 0);
}

/* The names and workspaces of the family's variants, and what it refuses. */
static void test_family(void **state)
{
        struct mfl_cuda_conv conv = conv_of(&shapes[13], MFL_PRECISION_TF32, 1);
        const struct mfl_cuda_conv_family *family = &mfl_cuda_conv_mma;
        int n = family->variants(&conv, MFL_CUDA_FORWARD), splits = 0;
        struct mfl_cuda_conv_args args = {0};
        for (int i = 0; i < n; i++) {
                uint64_t bytes = family->workspace(&conv, MFL_CUDA_FORWARD, i);
                const char *name = family->variant_name(&conv, MFL_CUDA_FORWARD, i);
                assert_int_equal(bytes > 0, strstr(name, " split") != NULL);
                assert_int_equal(bytes, bytes ? 2u * 25 * 72 * 4 : 0); /* segments, m, n, float */
                splits += bytes > 0;
                for (int j = 0; j < i; j++)
                        assert_string_not_equal(name, family->variant_name(&conv, MFL_CUDA_FORWARD, j));
                if (bytes)
                        assert_int_equal(
                                family->run(&conv, MFL_CUDA_FORWARD, i, &args, NULL), cudaErrorInvalidValue);
        }
        assert_int_equal(splits * 2, n);
        assert_int_equal(family->run(&conv, MFL_CUDA_FORWARD, n, &args, NULL), cudaErrorInvalidValue);
        assert_int_equal(family->run(&conv, MFL_CUDA_FORWARD, -1, &args, NULL), cudaErrorInvalidValue);
        conv.precision = MFL_PRECISION_FP32;
        assert_int_equal(family->variants(&conv, MFL_CUDA_FORWARD), 0);
        conv.precision = MFL_PRECISION_TF32;
        conv.n = 1 << 24; /* 2^31 elements and more */
        assert_int_equal(family->run(&conv, MFL_CUDA_FORWARD, 0, &args, NULL), cudaErrorInvalidValue);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_family),
                cmocka_unit_test(test_forward),
                cmocka_unit_test(test_backward_data),
                cmocka_unit_test(test_backward_weights),
                cmocka_unit_test(test_epilogues),
                cmocka_unit_test(test_counts),
        };
        return cmocka_run_group_tests_name("cuda/conv_mma", tests, NULL, NULL);
}
