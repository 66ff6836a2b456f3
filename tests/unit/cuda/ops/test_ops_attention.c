/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by tiles, and products on tensor cores, alone on the emulated device: against the reference,
 * whole numbers exactly; nothing is written for groups that rest, or beyond a tensor's end. */
#include "tests/unit/cuda/ops/ops_test.h"

#include <math.h>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/ops/ops_sequence.h"
#include "kernels/reference/sequence.h"

#define GROUPS 5
#define BATCH 2

static struct ops_buffer typed(const float *v, int64_t n, enum mfl_cuda_type type)
{
        void *host = malloc((size_t)n * 4);
        assert_non_null(host);
        for (int64_t i = 0; i < n; i++)
                mfl_store(host, i, v[i], type);
        struct ops_buffer b = ops_new_from(host, (size_t)(n * mfl_cuda_type_bytes(type)));
        free(host);
        return b;
}

/* All groups that count are within `bound` of the largest number of `want`; the others' memory is unchanged,
 * `before` (NULL: poison). */
static void compare(const struct ops_steps *s, struct ops_buffer *b, enum mfl_cuda_type type,
        const float *want, const float *before, int64_t each, double bound, const char *what)
{
        void *got = malloc((size_t)(GROUPS * each) * 4);
        size_t bytes = (size_t)(each * mfl_cuda_type_bytes(type));
        double most = 1e-30;
        assert_non_null(got);
        ops_get(b, got);
        for (int64_t i = 0; i < GROUPS * each; i++)
                most = fmax(most, s->count[i / each] ? fabs((double)want[i]) : 0);
        for (int64_t i = 0; i < GROUPS * each; i++) {
                double x = (double)mfl_load(got, i, type);
                if (s->count[i / each] ? !(fabs(x - (double)want[i]) <= bound * most)
                                       : before && x != (double)before[i])
                        fail_msg("%s: element %d: %g, not %g", what, (int)i, x, (double)want[i]);
        }
        for (int g = 0; g < GROUPS && !before; g++)
                if (!s->count[g])
                        ops_assert_untouched(b, (size_t)g * bytes, bytes);
        free(got);
        ops_free(b);
}

/* ---- attention ---- */

struct attention_case {
        int positions, heads, size;
        bool causal;
        float rate;
        enum mfl_precision precision;
};

struct attention {
        const struct attention_case *c;
        struct ops_steps s;
        int64_t in, out; /* of a group */
        float *x, *dy, *old, *y, *dx;
};

/* y and dx as the reference computes them; dx is added to `old`. */
static void expect(struct attention *t)
{
        const struct attention_case *c = t->c;
        float *kept = ops_zeros((int64_t)BATCH * c->heads * c->positions * c->positions + c->positions);
        memcpy(t->dx, t->old, (size_t)(GROUPS * t->in) * sizeof(float));
        for (int g = 0; g < GROUPS; g++) {
                struct mfl_rng_key key =
                        mfl_rng_dropout_key(t->s.dropout[g], t->s.step_first[g] + OPS_STEP, 7);
                struct mfl_ref_attention v = {.rows = BATCH,
                        .positions = c->positions,
                        .width = (int64_t)c->heads * c->size,
                        .heads = c->heads,
                        .causal = c->causal,
                        .rate = c->rate,
                        .dropout = c->rate > 0 ? &key : NULL};
                mfl_ref_attention_forward(&v, t->x + g * t->in, kept, t->y + g * t->out);
                mfl_ref_attention_backward(
                        &v, t->x + g * t->in, kept, t->dy + g * t->out, true, t->dx + g * t->in);
        }
        free(kept);
}

static void run_attention(struct attention *t)
{
        const struct attention_case *c = t->c;
        enum mfl_cuda_type type = mfl_cuda_type_of(c->precision);
        int64_t kept = (int64_t)BATCH * c->heads * MFL_FLASH_KEPT * c->positions;
        double bound = type == MFL_CUDA_BF16 ? 0x1p-5 : c->precision == MFL_PRECISION_FP32 ? 1e-5 : 0x1p-8;
        struct ops_buffer in = typed(t->x, GROUPS * t->in, type), dout = typed(t->dy, GROUPS * t->out, type);
        struct ops_buffer din = typed(t->old, GROUPS * t->in, type);
        struct ops_buffer out = ops_new((size_t)(GROUPS * t->out * mfl_cuda_type_bytes(type)));
        struct ops_buffer rows = ops_new((size_t)(GROUPS * kept) * sizeof(float));
        struct mfl_cuda_flash a = {.groups = GROUPS,
                .batch = BATCH,
                .heads = c->heads,
                .positions = c->positions,
                .size = c->size,
                .precision = c->precision,
                .causal = c->causal,
                .training = true,
                .rate = c->rate,
                .layer = 7,
                .in = in.at,
                .out = out.at,
                .kept = (float *)(void *)rows.at,
                .dout = dout.at,
                .din = din.at,
                .add = true,
                .steps = t->s.on_device};
        OPS_OK(mfl_cuda_flash_forward(&a, NULL));
        OPS_OK(mfl_cuda_flash_backward(&a, NULL));
        compare(&t->s, &out, type, t->y, NULL, t->out, bound, "y");
        compare(&t->s, &din, type, t->dx, t->old, t->in, bound, "dx");
        ops_free(&in);
        ops_free(&dout);
        ops_free(&rows);
}

static void try_attention(const struct attention_case *c)
{
        enum mfl_cuda_type type = mfl_cuda_type_of(c->precision);
        struct attention t = {.c = c, .s = ops_steps_new(GROUPS, BATCH, ops_counts(GROUPS, BATCH), 1)};
        t.out = (int64_t)BATCH * c->positions * c->heads * c->size;
        t.in = 3 * t.out;
        t.x = ops_uniform(GROUPS * t.in, type, 1);
        t.dy = ops_uniform(GROUPS * t.out, type, 2);
        t.old = ops_uniform(GROUPS * t.in, type, 3);
        t.y = ops_zeros(GROUPS * t.out);
        t.dx = ops_zeros(GROUPS * t.in);
        expect(&t);
        run_attention(&t);
        float *all[] = {t.x, t.dy, t.old, t.y, t.dx};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                free(all[i]);
        ops_steps_free(&t.s);
}

/* Copies of 16, 4 and 2 bytes; one block per head and several; pairs written at once and single ones. */
OPS_TEST(attention_is_the_reference_s)
{
        static const struct attention_case cases[] = {
                {3, 2, 8, false, 0, MFL_PRECISION_FP32},
                {67, 1, 3, true, 0.25f, MFL_PRECISION_FP32},
                {81, 1, 65, true, 0, MFL_PRECISION_FP32},
                {150, 1, 8, true, 0, MFL_PRECISION_FP32},
                {19, 3, 6, false, 0.5f, MFL_PRECISION_TF32},
                {80, 1, 36, true, 0, MFL_PRECISION_TF32},
                {33, 1, 100, false, 0, MFL_PRECISION_TF32},
                {66, 2, 16, true, 0, MFL_PRECISION_BF16},
                {17, 2, 6, false, 0.25f, MFL_PRECISION_BF16},
                {70, 1, 128, true, 0, MFL_PRECISION_BF16},
                {5, 3, 7, true, 0, MFL_PRECISION_FP16},
                {140, 1, 40, false, 0, MFL_PRECISION_FP16},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                try_attention(&cases[i]);
}

/* Scores up to 2^20, some of them equal: equal shares, and no other weights. */
OPS_TEST(large_scores_do_not_overflow)
{
        enum { T = 70, SIZE = 4, IN = T * 3 * SIZE, OUT = T * SIZE };
        uint32_t all[1] = {1};
        struct ops_steps s = ops_steps_new(1, 1, all, 1);
        float *x = ops_zeros(IN), *y = ops_zeros(OUT);
        for (int i = 0; i < T; i++) {
                for (int c = 0; c < SIZE; c++) {
                        x[(i * 3 + 0) * SIZE + c] = i % 2 ? 1024.0f : -1024.0f;
                        x[(i * 3 + 1) * SIZE + c] = i % 35 == 1 ? 512.0f : i % 35 == 20 ? -512.0f : (float)i;
                        x[(i * 3 + 2) * SIZE + c] = (float)i;
                }
        }
        struct ops_buffer in = ops_new_from(x, IN * sizeof(float)), out = ops_new(OUT * sizeof(float));
        struct mfl_cuda_flash a = {.groups = 1,
                .batch = 1,
                .heads = 1,
                .positions = T,
                .size = SIZE,
                .in = in.at,
                .out = out.at,
                .steps = s.on_device};
        OPS_OK(mfl_cuda_flash_forward(&a, NULL));
        ops_get(&out, y);
        for (int i = 0; i < OUT; i++)
                if (y[i] != (i / SIZE % 2 ? (1 + 36) / 2.0f : (20 + 55) / 2.0f))
                        fail_msg("query %d: %g", i / SIZE, (double)y[i]);
        ops_free(&in);
        ops_free(&out);
        free(x);
        free(y);
        ops_steps_free(&s);
}

OPS_TEST(heads_that_are_too_large_are_refused)
{
        struct mfl_cuda_flash a = {.groups = 1, .batch = 1, .heads = 1, .positions = 4, .size = 129};
        assert_int_equal(mfl_cuda_flash_forward(&a, NULL), cudaErrorInvalidValue);
        a.size = 0;
        assert_int_equal(mfl_cuda_flash_forward(&a, NULL), cudaErrorInvalidValue);
}

/* ---- products ---- */

struct product {
        int m, n, k, outer, inner;
        bool a_turned, b_turned;
        int step, lead; /* step: between neighbours of a line of a; lead: elements after each line */
        enum mfl_precision precision;
};

/* Element (i, j) of a pair's matrix. */
static float at(const struct mfl_cuda_matrix *x, const float *v, int g, int pair, int inner, int i, int j)
{
        return v[g * x->group + pair / inner * x->outer + pair % inner * x->inner + i * x->row +
                 j * x->column];
}

static struct mfl_cuda_matrix matrix(const struct product *c, int rows, int columns, bool turned, int step)
{
        int64_t line = ((turned ? rows : columns) + c->lead) * (int64_t)step,
                each = line * (turned ? columns : rows);
        return (struct mfl_cuda_matrix){.group = each * c->outer * c->inner,
                .outer = each * c->inner,
                .inner = each,
                .row = turned ? step : line,
                .column = turned ? line : step,
                .type = mfl_cuda_type_of(c->precision)};
}

static void try_product(const struct product *c)
{
        enum mfl_cuda_type type = mfl_cuda_type_of(c->precision);
        struct ops_steps s = ops_steps_new(GROUPS, BATCH, ops_counts(GROUPS, BATCH), 1);
        struct mfl_cuda_matmul v = {.precision = c->precision,
                .groups = GROUPS,
                .outer = c->outer,
                .inner = c->inner,
                .m = c->m,
                .n = c->n,
                .k = c->k,
                .a = matrix(c, c->m, c->k, c->a_turned, c->step),
                .b = matrix(c, c->k, c->n, c->b_turned, 1),
                .c = matrix(c, c->m, c->n, false, 1),
                .alpha = 0.5f,
                .add = true,
                .steps = s.on_device};
        float *a = ops_whole(GROUPS * v.a.group, 1, 1), *b = ops_whole(GROUPS * v.b.group, 1, 2);
        float *old = ops_whole(GROUPS * v.c.group, 3, 3), *want = ops_whole(GROUPS * v.c.group, 3, 3);
        for (int g = 0; g < GROUPS; g++)
                for (int p = 0; p < c->outer * c->inner; p++)
                        for (int i = 0; i < c->m; i++)
                                for (int j = 0; j < c->n; j++) {
                                        int64_t to = g * v.c.group + p * v.c.inner + i * v.c.row + j;
                                        float sum = 0;
                                        for (int k = 0; k < c->k; k++)
                                                sum += at(&v.a, a, g, p, c->inner, i, k) *
                                                       at(&v.b, b, g, p, c->inner, k, j);
                                        want[to] = old[to] + 0.5f * sum;
                                }
        struct ops_buffer ba = typed(a, GROUPS * v.a.group, type), bb = typed(b, GROUPS * v.b.group, type);
        struct ops_buffer bc = typed(old, GROUPS * v.c.group, type);
        v.a.p = ba.at;
        v.b.p = bb.at;
        v.c.p = bc.at;
        OPS_OK(mfl_cuda_matmul(&v, NULL));
        compare(&s, &bc, type, want, old, v.c.group, 0, "product");
        ops_free(&ba);
        ops_free(&bb);
        float *all[] = {a, b, old, want};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                free(all[i]);
        ops_steps_free(&s);
}

/* Every layout, in copies of 16 bytes and of single elements, with both tiles. */
OPS_TEST(products_of_whole_numbers_are_exact)
{
        static const struct product cases[] = {
                {40, 48, 64, 2, 1, false, false, 1, 0, MFL_PRECISION_TF32},
                {33, 65, 37, 1, 1, true, true, 1, 0, MFL_PRECISION_TF32},
                {72, 40, 16, 1, 2, true, false, 3, 0, MFL_PRECISION_BF16},
                {33, 33, 33, 1, 1, false, true, 1, 7, MFL_PRECISION_BF16},
                {64, 72, 40, 1, 1, true, true, 1, 0, MFL_PRECISION_FP16},
                {5, 3, 67, 1, 2, false, true, 1, 5, MFL_PRECISION_FP16},
                {11, 11, 8, 2, 2, true, false, 1, 5, MFL_PRECISION_BF16},
                {66, 34, 35, 1, 1, false, false, 1, 0, MFL_PRECISION_FP32},
                {66, 70, 16, 1, 1, true, true, 3, 1, MFL_PRECISION_FP32},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                try_product(&cases[i]);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(attention_is_the_reference_s),
                cmocka_unit_test(large_scores_do_not_overflow),
                cmocka_unit_test(heads_that_are_too_large_are_refused),
                cmocka_unit_test(products_of_whole_numbers_are_exact),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
