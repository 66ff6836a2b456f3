/* SPDX-License-Identifier: Apache-2.0 */
/* The fp32 family of own convolutions on the emulated device: every variant of every pass gives exactly the
 * bits that conv.h promises, which a plain loop computes here. */
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/base.h"
#include "kernels/cuda/conv/conv.h"
#include "tests/emu/emu.h"

enum { GROUPS_MAX = 5, GUARD = 64, POISON = 0x7fb0a5a5, STEPS = 2 };

struct shape {
        const char *what;
        int n, h, w, c, k, r, s, stride[2], pad[2], dilation[2];
        enum mfl_cuda_act act;
        bool bias, add;
};

static const struct shape shapes[] = {
        {"one of everything", 1, 1, 1, 1, 1, 1, 1, {1, 1}, {0, 0}, {1, 1}, MFL_CUDA_ACT_NONE, false, false},
        {"first layer", 2, 9, 8, 1, 6, 5, 5, {1, 1}, {2, 2}, {1, 1}, MFL_CUDA_ACT_RELU, true, false},
        {"colours", 3, 7, 9, 3, 20, 3, 3, {1, 1}, {0, 0}, {1, 1}, MFL_CUDA_ACT_TANH, true, true},
        {"channels in sixteens", 2, 6, 7, 16, 32, 3, 3, {1, 1}, {1, 1}, {1, 1}, MFL_CUDA_ACT_RELU, true,
                true},
        {"six channels", 3, 7, 7, 6, 16, 5, 5, {1, 1}, {0, 0}, {1, 1}, MFL_CUDA_ACT_SIGMOID, true, false},
        {"stride", 2, 9, 8, 8, 12, 3, 3, {2, 2}, {1, 1}, {1, 1}, MFL_CUDA_ACT_RELU, false, true},
        {"uneven stride", 2, 11, 8, 5, 7, 4, 2, {3, 2}, {2, 0}, {1, 1}, MFL_CUDA_ACT_NONE, true, true},
        {"dilation", 2, 9, 10, 4, 5, 3, 3, {1, 1}, {2, 1}, {2, 3}, MFL_CUDA_ACT_RELU, true, false},
        {"dilation and stride", 1, 12, 11, 3, 4, 3, 2, {2, 3}, {3, 2}, {2, 2}, MFL_CUDA_ACT_TANH, true, true},
        {"padding wider than the filter", 1, 3, 2, 4, 4, 2, 2, {1, 1}, {3, 3}, {1, 1}, MFL_CUDA_ACT_RELU,
                true, false},
        {"1x1, stride 2", 2, 5, 5, 8, 9, 1, 1, {2, 2}, {0, 0}, {1, 1}, MFL_CUDA_ACT_NONE, false, false},
        {"dense", 10, 1, 1, 400, 21, 1, 1, {1, 1}, {0, 0}, {1, 1}, MFL_CUDA_ACT_RELU, true, false},
        {"dense, odd", 7, 1, 1, 301, 13, 1, 1, {1, 1}, {0, 0}, {1, 1}, MFL_CUDA_ACT_SIGMOID, true, true},
        {"dense, many rows", 140, 1, 1, 12, 10, 1, 1, {1, 1}, {0, 0}, {1, 1}, MFL_CUDA_ACT_NONE, true, true},
        {"dense, long", 3, 1, 1, 700, 4, 1, 1, {1, 1}, {0, 0}, {1, 1}, MFL_CUDA_ACT_RELU, true, false},
        {"many pixels", 4, 16, 17, 2, 3, 3, 3, {1, 1}, {1, 1}, {1, 1}, MFL_CUDA_ACT_RELU, true, false},
        {"many small images", 135, 2, 3, 2, 3, 2, 2, {1, 1}, {0, 0}, {1, 1}, MFL_CUDA_ACT_RELU, true, true},
        {"more segments than fit in a block", 4, 10, 14, 20, 20, 1, 5, {1, 1}, {0, 0}, {1, 1},
                MFL_CUDA_ACT_NONE, true, false},
        {"three rows, five taps", 1, 8, 9, 2, 33, 3, 5, {1, 1}, {1, 2}, {1, 1}, MFL_CUDA_ACT_NONE, true,
                true},
};

static uint32_t random_state;
static float random_float(void)
{
        random_state = random_state * 1664525u + 1013904223u;
        /* Exact zeros of both signs occur, and values whose products underflow. */
        uint32_t kind = random_state >> 27;
        if (kind == 0)
                return -0.0f;
        if (kind == 1)
                return (random_state >> 10 & 1u) ? 1e-30f : -1e-30f;
        return (float)(int32_t)(random_state >> 4 & 0xffffu) * 0x1p-15f - 1.0f;
}

/* A tensor between guard zones. */
struct tensor {
        float *memory, *at;
        size_t n;
};
static struct tensor tensor_new(size_t n)
{
        struct tensor t = {NULL, NULL, n};
        assert_int_equal(cudaMalloc((void **)&t.memory, (n + 2 * GUARD) * sizeof(float)), cudaSuccess);
        t.at = t.memory + GUARD;
        for (size_t i = 0; i < n + 2 * GUARD; i++)
                t.memory[i] = mfl_bits_to_float(POISON);
        return t;
}
static void tensor_fill(struct tensor *t)
{
        for (size_t i = 0; i < t->n; i++)
                t->at[i] = random_float();
}
static bool is_poison(float v)
{
        return mfl_float_to_bits(v) == POISON;
}
static void check_guards(const struct tensor *t)
{
        for (size_t i = 0; i < GUARD; i++) {
                assert_true(is_poison(t->memory[i]));
                assert_true(is_poison(t->at[t->n + i]));
        }
}

/* One problem with all its tensors, for GROUPS_MAX groups; the first G are used. */
struct problem {
        struct mfl_cuda_conv conv;
        const struct shape *shape;
        size_t x_group, y_group, w_group, p_stride;
        struct tensor x, dy, w, bias, act_y, old; /* old: the content of dx before */
        struct tensor want[MFL_CUDA_PASS_COUNT_], want_db;
        uint32_t count[GROUPS_MAX * STEPS], step;
};

static int tap_source(int out, int tap, int stride, int pad, int dilation)
{
        return out * stride - pad + tap * dilation;
}

/* a[i], or 0 where (y, x) lies outside. */
static float pixel(const float *a, int y, int x, int h, int w, int c, int channel)
{
        return y < 0 || y >= h || x < 0 || x >= w
                       ? 0.0f
                       : a[((size_t)y * (size_t)w + (size_t)x) * (size_t)c + (size_t)channel];
}

/* The sum so far, over whole segments and within one. */
struct chain {
        float total, sum;
        int64_t length, segment;
};
static void chain_add(struct chain *chain, float a, float b)
{
        chain->sum = fmaf(a, b, chain->sum);
        if (++chain->length % chain->segment == 0) {
                chain->total += chain->sum;
                chain->sum = 0.0f;
        }
}
static float chain_end(struct chain *chain)
{
        return chain->length % chain->segment ? chain->total + chain->sum : chain->total;
}

static float want_forward(const struct problem *p, int g, int n, int oh, int ow, int k)
{
        const struct mfl_cuda_conv *v = &p->conv;
        const float *x = p->x.at + (size_t)g * p->x_group + (size_t)n * p->x_group / (size_t)v->n;
        const float *w = p->w.at + (size_t)g * p->p_stride + (size_t)k * p->w_group / (size_t)v->k;
        struct chain chain = {0, 0, 0, mfl_cuda_conv_simt.segment(v, MFL_CUDA_FORWARD)};
        for (int r = 0; r < v->r; r++)
                for (int s = 0; s < v->s; s++)
                        for (int c = 0; c < v->c; c++)
                                chain_add(&chain,
                                        pixel(x, tap_source(oh, r, v->stride[0], v->pad[0], v->dilation[0]),
                                                tap_source(ow, s, v->stride[1], v->pad[1], v->dilation[1]),
                                                v->h, v->w, v->c, c),
                                        *w++);
        float y = chain_end(&chain);
        if (p->shape->bias)
                y = y + p->bias.at[(size_t)g * p->p_stride + (size_t)k];
        return mfl_act(p->shape->act, y);
}

/* The output pixel whose window has input pixel `in` at `tap`; -1: there is none. */
static int tap_target(int in, int tap, int stride, int pad, int dilation)
{
        int at = in + pad - tap * dilation;
        return at < 0 || at % stride ? -1 : at / stride;
}

static float want_data(const struct problem *p, int g, int n, int h, int w, int c)
{
        const struct mfl_cuda_conv *v = &p->conv;
        const float *dy = p->dy.at + (size_t)g * p->y_group + (size_t)n * p->y_group / (size_t)v->n;
        const float *weights = p->w.at + (size_t)g * p->p_stride;
        struct chain chain = {0, 0, 0, mfl_cuda_conv_simt.segment(v, MFL_CUDA_BACKWARD_DATA)};
        for (int r = 0; r < v->r; r++)
                for (int s = 0; s < v->s; s++)
                        for (int k = 0; k < v->k; k++)
                                chain_add(&chain,
                                        pixel(dy, tap_target(h, r, v->stride[0], v->pad[0], v->dilation[0]),
                                                tap_target(w, s, v->stride[1], v->pad[1], v->dilation[1]),
                                                v->oh, v->ow, v->k, k),
                                        weights[((k * v->r + r) * v->s + s) * v->c + c]);
        size_t i = (size_t)g * p->x_group + (size_t)(((n * v->h + h) * v->w + w) * v->c + c);
        float dx = chain_end(&chain);
        if (p->shape->add)
                dx = dx + p->old.at[i];
        return mfl_act_grad(p->shape->act, p->act_y.at[i], dx);
}

/* r < 0: the bias' gradient. */
static float want_weight(const struct problem *p, int g, int k, int r, int s, int c)
{
        const struct mfl_cuda_conv *v = &p->conv;
        const float *dy = p->dy.at + (size_t)g * p->y_group + (size_t)k;
        struct chain chain = {0, 0, 0, mfl_cuda_conv_simt.segment(v, MFL_CUDA_BACKWARD_WEIGHTS)};
        for (int n = 0; n < v->n; n++) {
                const float *x = p->x.at + (size_t)g * p->x_group + (size_t)n * p->x_group / (size_t)v->n;
                for (int oh = 0; oh < v->oh; oh++)
                        for (int ow = 0; ow < v->ow; ow++, dy += v->k)
                                chain_add(&chain, *dy,
                                        r < 0 ? 1.0f
                                              : pixel(x,
                                                        tap_source(oh, r, v->stride[0], v->pad[0],
                                                                v->dilation[0]),
                                                        tap_source(ow, s, v->stride[1], v->pad[1],
                                                                v->dilation[1]),
                                                        v->h, v->w, v->c, c));
        }
        return chain_end(&chain);
}

static void want_all(struct problem *p)
{
        const struct mfl_cuda_conv *v = &p->conv;
        for (int g = 0; g < GROUPS_MAX; g++) {
                float *y = p->want[MFL_CUDA_FORWARD].at + (size_t)g * p->y_group;
                for (int n = 0; n < v->n; n++)
                        for (int i = 0; i < v->oh * v->ow * v->k; i++)
                                *y++ = want_forward(p, g, n, i / v->k / v->ow, i / v->k % v->ow, i % v->k);
                float *dx = p->want[MFL_CUDA_BACKWARD_DATA].at + (size_t)g * p->x_group;
                for (int n = 0; n < v->n; n++)
                        for (int i = 0; i < v->h * v->w * v->c; i++)
                                *dx++ = want_data(p, g, n, i / v->c / v->w, i / v->c % v->w, i % v->c);
                float *dw = p->want[MFL_CUDA_BACKWARD_WEIGHTS].at + (size_t)g * p->p_stride;
                for (int k = 0; k < v->k; k++) {
                        for (int i = 0; i < v->r * v->s * v->c; i++)
                                *dw++ = want_weight(p, g, k, i / v->c / v->s, i / v->c % v->s, i % v->c);
                        p->want_db.at[(size_t)g * p->p_stride + (size_t)k] = want_weight(p, g, k, -1, 0, 0);
                }
        }
}

static int out_size(int in, int k, int stride, int pad, int dilation)
{
        return (in + 2 * pad - dilation * (k - 1) - 1) / stride + 1;
}

static void problem_init(struct problem *p, const struct shape *shape)
{
        memset(p, 0, sizeof *p);
        p->shape = shape;
        p->conv = (struct mfl_cuda_conv){.groups = GROUPS_MAX,
                .n = shape->n,
                .h = shape->h,
                .w = shape->w,
                .c = shape->c,
                .k = shape->k,
                .r = shape->r,
                .s = shape->s,
                .stride = {shape->stride[0], shape->stride[1]},
                .pad = {shape->pad[0], shape->pad[1]},
                .dilation = {shape->dilation[0], shape->dilation[1]},
                .precision = MFL_PRECISION_FP32};
        struct mfl_cuda_conv *v = &p->conv;
        v->oh = out_size(v->h, v->r, v->stride[0], v->pad[0], v->dilation[0]);
        v->ow = out_size(v->w, v->s, v->stride[1], v->pad[1], v->dilation[1]);
        p->x_group = (size_t)(v->n * v->h * v->w * v->c);
        p->y_group = (size_t)(v->n * v->oh * v->ow * v->k);
        p->w_group = (size_t)(v->k * v->r * v->s * v->c);
        /* Vectors of params with room to spare; every other shape rules out 16-byte accesses. */
        p->p_stride = (p->w_group + (size_t)v->k + 3) / 4 * 4 + 4 + (size_t)(shape - shapes) % 2;
        p->x = tensor_new(GROUPS_MAX * p->x_group);
        p->old = tensor_new(GROUPS_MAX * p->x_group);
        p->act_y = tensor_new(GROUPS_MAX * p->x_group);
        p->dy = tensor_new(GROUPS_MAX * p->y_group);
        p->w = tensor_new(GROUPS_MAX * p->p_stride);
        p->bias = tensor_new(GROUPS_MAX * p->p_stride);
        p->want[MFL_CUDA_FORWARD] = tensor_new(GROUPS_MAX * p->y_group);
        p->want[MFL_CUDA_BACKWARD_DATA] = tensor_new(GROUPS_MAX * p->x_group);
        p->want[MFL_CUDA_BACKWARD_WEIGHTS] = tensor_new(GROUPS_MAX * p->p_stride);
        p->want_db = tensor_new(GROUPS_MAX * p->p_stride);
        struct tensor *inputs[] = {&p->x, &p->old, &p->act_y, &p->dy, &p->w, &p->bias};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(inputs); i++)
                tensor_fill(inputs[i]);
        want_all(p);
        p->step = 1;
        for (int g = 0; g < GROUPS_MAX;
                g++) /* group 3 rests in this step; the others have all rows or fewer */
                p->count[g * STEPS + 1] = g == 3 ? 0 : (uint32_t)(g % 2 ? 1 : v->n);
}

static void problem_deinit(struct problem *p)
{
        struct tensor *all[] = {&p->x, &p->old, &p->act_y, &p->dy, &p->w, &p->bias, &p->want[0], &p->want[1],
                &p->want[2], &p->want_db};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                cudaFree(all[i]->memory);
}

/* Compares the bits of `got` with `want` in the first `used` of each group's `stride` elements; the rest
 * stays poison. */
static void check_groups(const struct problem *p, const char *what, const struct tensor *got,
        const struct tensor *want, const struct tensor *before, int groups, size_t stride, size_t used)
{
        for (int g = 0; g < groups; g++)
                for (size_t i = 0; i < stride; i++) {
                        size_t at = (size_t)g * stride + i;
                        float expected = p->count[g * STEPS + 1] == 0 || i >= used
                                                 ? (before ? before->at[at] : mfl_bits_to_float(POISON))
                                                 : want->at[at];
                        if (mfl_float_to_bits(got->at[at]) != mfl_float_to_bits(expected))
                                fail_msg("%s: %s: group %d of %d, element %zu: %a, not %a", p->shape->what,
                                        what, g, groups, i, (double)got->at[at], (double)expected);
                }
        check_guards(got);
}

static void run_variant(struct problem *p, enum mfl_cuda_pass pass, int variant, int groups)
{
        struct mfl_cuda_conv conv = p->conv;
        conv.groups = groups;
        bool weights = pass == MFL_CUDA_BACKWARD_WEIGHTS, data = pass == MFL_CUDA_BACKWARD_DATA;
        size_t stride = weights ? p->p_stride : data ? p->x_group : p->y_group;
        uint64_t bytes = mfl_cuda_conv_simt.workspace(&conv, pass, variant);
        struct tensor out = tensor_new((size_t)groups * stride),
                      db = tensor_new((size_t)groups * p->p_stride);
        struct tensor work = tensor_new(bytes / sizeof(float));
        bool wants_db = weights && groups != 2;
        if (data && p->shape->add)
                memcpy(out.at, p->old.at, out.n * sizeof(float));
        struct mfl_cuda_conv_args args = {.x = data ? NULL : p->x.at,
                .dy = pass == MFL_CUDA_FORWARD ? NULL : p->dy.at,
                .y = pass == MFL_CUDA_FORWARD ? out.at : NULL,
                .dx = data ? out.at : NULL,
                .w = p->w.at,
                .bias = p->shape->bias ? p->bias.at : NULL,
                .dw = weights ? out.at : NULL,
                .db = wants_db ? db.at : NULL,
                .w_stride = p->p_stride,
                .p_stride = p->p_stride,
                .act = p->shape->act,
                .act_y = data && p->shape->act ? p->act_y.at : NULL,
                .add = p->shape->add,
                .steps = {.step = &p->step, .count = p->count, .steps_max = STEPS, .batch = (uint32_t)conv.n},
                .workspace = bytes ? work.at : NULL};
        assert_int_equal(mfl_cuda_conv_simt.run(&conv, pass, variant, &args, NULL), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        const char *name = mfl_cuda_conv_simt.variant_name(&conv, pass, variant);
        check_groups(p, name, &out, &p->want[pass], data && p->shape->add ? &p->old : NULL, groups, stride,
                weights ? p->w_group : stride);
        check_groups(p, name, &db, &p->want_db, NULL, groups, p->p_stride, wants_db ? (size_t)conv.k : 0);
        check_guards(&work);
        cudaFree(out.memory);
        cudaFree(db.memory);
        cudaFree(work.memory);
}

static void test_pass(enum mfl_cuda_pass pass)
{
        static const int groups[] = {1, 2, 5};
        int n_runs = 0, n_cut = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(shapes); i++) {
                struct problem p;
                random_state = (uint32_t)i;
                problem_init(&p, &shapes[i]);
                int64_t reduction = pass == MFL_CUDA_BACKWARD_WEIGHTS
                                            ? (int64_t)p.conv.n * p.conv.oh * p.conv.ow
                                            : (int64_t)p.conv.r * p.conv.s *
                                                      (pass == MFL_CUDA_FORWARD ? p.conv.c : p.conv.k);
                n_cut += mfl_cuda_conv_simt.segment(&p.conv, pass) < reduction;
                for (size_t j = 0; j < MFL_ARRAY_SIZE(groups); j++) {
                        struct mfl_cuda_conv conv = p.conv;
                        conv.groups = groups[j];
                        int n = mfl_cuda_conv_simt.variants(&conv, pass);
                        assert_true(n >= 1);
                        mfl_emu_set_order(j == 0   ? MFL_EMU_FORWARD
                                          : j == 1 ? MFL_EMU_REVERSE
                                                   : MFL_EMU_RANDOM,
                                i);
                        for (int variant = 0; variant < n; variant++, n_runs++)
                                run_variant(&p, pass, variant, groups[j]);
                }
                problem_deinit(&p);
        }
        mfl_emu_set_order(MFL_EMU_FORWARD, 0);
        printf("# %d runs; the reduction is cut in %d of %zu shapes\n", n_runs, n_cut,
                MFL_ARRAY_SIZE(shapes));
        assert_true(n_cut >= 2);
}

static void test_forward(void **state)
{
        test_pass(MFL_CUDA_FORWARD);
}
static void test_data(void **state)
{
        test_pass(MFL_CUDA_BACKWARD_DATA);
}
static void test_weights(void **state)
{
        test_pass(MFL_CUDA_BACKWARD_WEIGHTS);
}

/* A problem for a large device: logs what is chosen for it, and checks that the choice has a name, a
 * workspace and a segment that do not depend on the number of clients. */
static void test_choices(void **state)
{
        static const struct mfl_cuda_conv convs[] = {
                {1, 10, 28, 28, 1, 28, 28, 6, 5, 5, {1, 1}, {2, 2}, {1, 1}, MFL_PRECISION_FP32},
                {1, 10, 14, 14, 6, 10, 10, 16, 5, 5, {1, 1}, {0, 0}, {1, 1}, MFL_PRECISION_FP32},
                {1, 10, 1, 1, 400, 1, 1, 120, 1, 1, {1, 1}, {0, 0}, {1, 1}, MFL_PRECISION_FP32},
                {1, 10, 1, 1, 84, 1, 1, 10, 1, 1, {1, 1}, {0, 0}, {1, 1}, MFL_PRECISION_FP32},
                {1, 10, 32, 32, 3, 30, 30, 32, 3, 3, {1, 1}, {0, 0}, {1, 1}, MFL_PRECISION_FP32},
                {1, 10, 30, 30, 32, 28, 28, 64, 3, 3, {1, 1}, {0, 0}, {1, 1}, MFL_PRECISION_FP32},
                {1, 10, 1, 1, 12544, 1, 1, 128, 1, 1, {1, 1}, {0, 0}, {1, 1}, MFL_PRECISION_FP32},
                {1, 32, 28, 28, 1, 28, 28, 32, 5, 5, {1, 1}, {2, 2}, {1, 1}, MFL_PRECISION_FP32},
                {1, 32, 14, 14, 32, 14, 14, 64, 5, 5, {1, 1}, {2, 2}, {1, 1}, MFL_PRECISION_FP32},
                {1, 32, 1, 1, 3136, 1, 1, 512, 1, 1, {1, 1}, {0, 0}, {1, 1}, MFL_PRECISION_FP32},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(convs); i++)
                for (int pass = 0; pass < MFL_CUDA_PASS_COUNT_; pass++) {
                        struct mfl_cuda_conv one = convs[i], many = convs[i];
                        enum mfl_cuda_pass p = (enum mfl_cuda_pass)pass;
                        many.groups = 256;
                        int64_t segment = mfl_cuda_conv_simt.segment(&one, p);
                        assert_int_equal(segment, mfl_cuda_conv_simt.segment(&many, p));
                        assert_int_equal(
                                mfl_cuda_conv_simt.variants(&one, p), mfl_cuda_conv_simt.variants(&many, p));
                        printf("# %d: %dx%d %d -> %d, pass %d, segment %lld: 1: %s; 256: %s\n", convs[i].n,
                                convs[i].h, convs[i].w, convs[i].c, convs[i].k, pass, (long long)segment,
                                mfl_cuda_conv_simt.variant_name(&one, p, 0),
                                mfl_cuda_conv_simt.variant_name(&many, p, 0));
                }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_forward),
                cmocka_unit_test(test_data),
                cmocka_unit_test(test_weights),
                cmocka_unit_test(test_choices),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
