/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrent part of LSTM and GRU alone on the emulated device: both forms, and groups alone or together,
 * have the same bits; groups that rest are unchanged. The conformance program checks values. */
#include "tests/unit/cuda/ops/ops_test.h"

#include <math.h>

#include "kernels/cuda/ops/ops_recurrent.h"

#define GROUPS 3

struct recurrent_case {
        int hidden, batch, positions;
        enum mfl_cell kind;
        enum mfl_precision precision;
        bool last_cell;
};

/* Tensors of GROUPS groups; the last three are computed. */
enum tensor { WEIGHT, BIAS, DOUT, GATES, SECOND, OUT, TENSORS };

struct problem {
        struct recurrent_case k;
        int64_t each[TENSORS]; /* bytes of a group */
        void *values[TENSORS];
};

static void *convert(const float *v, int64_t n, enum mfl_cuda_type type)
{
        char *to = malloc((size_t)n * 4);
        assert_non_null(to);
        for (int64_t i = 0; i < n; i++)
                mfl_store(to, i, v[i], type);
        return to;
}

static struct problem problem_of(const struct recurrent_case *k)
{
        struct problem p = {.k = *k};
        enum mfl_cuda_type low = mfl_cuda_type_of(k->precision);
        int64_t gates = mfl_cell_gates(k->kind), places = (int64_t)k->batch * k->positions, n = k->hidden;
        /* Weights and biases have one stride. */
        int64_t counts[TENSORS] = {gates * n * n, gates * n * n, places * n, places * gates * n,
                places * (k->kind == MFL_CELL_GRU ? 3 : 1) * n, places * n};
        for (int t = 0; t < TENSORS; t++) {
                enum mfl_cuda_type type =
                        t == BIAS || (t == SECOND && k->kind == MFL_CELL_LSTM) ? MFL_CUDA_F32 : low;
                float *v = ops_uniform(GROUPS * counts[t], type, 7 + (uint64_t)t);
                for (int64_t i = 0; t == WEIGHT && i < GROUPS * counts[t]; i++)
                        v[i] *= 0.125f; /* so that gates are not all 0 or 1 */
                p.values[t] = convert(v, GROUPS * counts[t], type);
                p.each[t] = counts[t] * mfl_cuda_type_bytes(type);
                free(v);
        }
        return p;
}

static void problem_free(struct problem *p)
{
        for (int t = 0; t < TENSORS; t++)
                free(p->values[t]);
}

/* The results of forward, then of backward: GATES, SECOND and OUT of `groups` groups from `first` on. */
static unsigned char *run(const struct problem *p, bool whole, int first, int groups, size_t *ret_bytes)
{
        const struct recurrent_case *k = &p->k;
        struct ops_buffer b[TENSORS];
        uint64_t work = mfl_cuda_recurrent_workspace(groups, k->batch, k->hidden, k->kind, k->precision);
        struct ops_buffer workspace = ops_new((size_t)work);
        size_t at = 0;
        for (int t = 0; t < TENSORS; t++)
                b[t] = ops_new_from((char *)p->values[t] + first * p->each[t], (size_t)(groups * p->each[t]));
        struct mfl_cuda_recurrent a = {.groups = groups,
                .batch = k->batch,
                .positions = k->positions,
                .hidden = k->hidden,
                .kind = k->kind,
                .last_cell = k->last_cell,
                .whole = whole,
                .precision = k->precision,
                .weight = b[WEIGHT].at,
                .bias = k->hidden % 2 ? (float *)(void *)b[BIAS].at : NULL,
                .stride = (uint64_t)mfl_cell_gates(k->kind) * (uint64_t)(k->hidden * k->hidden),
                .gates = b[GATES].at,
                .hidden_gates = k->kind == MFL_CELL_GRU ? b[SECOND].at : b[GATES].at,
                .cell = k->kind == MFL_CELL_LSTM ? (float *)(void *)b[SECOND].at : NULL,
                .out = b[OUT].at,
                .dout = b[DOUT].at,
                .workspace = workspace.at,
                .steps = {.batch = (uint32_t)k->batch}};
        size_t bytes = (size_t)(groups * (p->each[GATES] + p->each[SECOND] + p->each[OUT]));
        unsigned char *got = malloc(2 * bytes);
        assert_non_null(got);
        for (int backward = 0; backward < 2; backward++) {
                OPS_OK(backward ? mfl_cuda_recurrent_backward(&a, NULL)
                                : mfl_cuda_recurrent_forward(&a, NULL));
                for (int t = GATES; t < TENSORS; t++) {
                        ops_get(&b[t], got + at);
                        at += b[t].bytes;
                }
        }
        for (int t = 0; t < TENSORS; t++)
                ops_free(&b[t]);
        ops_free(&workspace);
        *ret_bytes = 2 * bytes;
        return got;
}

static void assert_same(
        const struct problem *p, const unsigned char *got, const unsigned char *want, size_t bytes)
{
        static const char *const names[] = {"lstm", "gru", "rnn", "rnn of relu"};
        for (size_t i = 0; i < bytes; i++)
                if (got[i] != want[i])
                        fail_msg("%s of %d units, batch %d, %d positions, precision %d: byte %zu of %zu "
                                 "differs",
                                names[p->k.kind], p->k.hidden, p->k.batch, p->k.positions,
                                (int)p->k.precision, i, bytes);
}

/* Forward's results are numbers in +-1, cells' in +-positions, and not all the same. */
static void assert_outputs(const struct problem *p, const unsigned char *got)
{
        enum mfl_cuda_type type = mfl_cuda_type_of(p->k.precision);
        const unsigned char *out = got + p->each[GATES] + p->each[SECOND];
        int64_t n = p->each[OUT] / mfl_cuda_type_bytes(type);
        float least = 1.0f, most = -1.0f, bound = p->k.last_cell ? (float)p->k.positions : 1.0f;
        for (int64_t i = 0; i < n; i++) {
                float v = mfl_load(out, i, type);
                assert_true(v >= -bound && v <= bound);
                least = fminf(least, v);
                most = fmaxf(most, v);
        }
        assert_true(n == 1 || most > least + 0.1f);
}

OPS_TEST(forms_have_the_same_bits)
{
        static const struct recurrent_case cases[] = {
                {1, 1, 1, MFL_CELL_LSTM, MFL_PRECISION_FP32},
                {5, 3, 3, MFL_CELL_GRU, MFL_PRECISION_FP32},
                {33, 17, 2, MFL_CELL_LSTM, MFL_PRECISION_FP32},
                {64, 3, 3, MFL_CELL_LSTM, MFL_PRECISION_TF32},
                {33, 17, 3, MFL_CELL_GRU, MFL_PRECISION_TF32},
                {8, 16, 2, MFL_CELL_LSTM, MFL_PRECISION_BF16},
                {96, 3, 2, MFL_CELL_LSTM, MFL_PRECISION_BF16},
                {41, 17, 3, MFL_CELL_GRU, MFL_PRECISION_FP16},
                {64, 1, 2, MFL_CELL_LSTM, MFL_PRECISION_FP16},
                {33, 17, 3, MFL_CELL_TANH, MFL_PRECISION_FP32},
                {64, 3, 3, MFL_CELL_TANH, MFL_PRECISION_TF32},
                {72, 5, 2, MFL_CELL_TANH, MFL_PRECISION_BF16},
                {33, 17, 3, MFL_CELL_LSTM, MFL_PRECISION_FP32, .last_cell = true},
                {9, 3, 2, MFL_CELL_LSTM, MFL_PRECISION_FP16, .last_cell = true},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct problem p = problem_of(&cases[i]);
                size_t bytes, again;
                unsigned char *step = run(&p, false, 0, 1, &bytes), *whole = run(&p, true, 0, 1, &again);
                assert_int_equal(bytes, again);
                assert_outputs(&p, step);
                assert_same(&p, whole, step, bytes);
                free(step);
                free(whole);
                problem_free(&p);
        }
}

/* Group 1 alone, and among others. */
OPS_TEST(groups_do_not_matter)
{
        static const struct recurrent_case cases[] = {
                {100, 3, 2, MFL_CELL_LSTM, MFL_PRECISION_FP32},
                {72, 17, 2, MFL_CELL_GRU, MFL_PRECISION_TF32},
                {9, 2, 3, MFL_CELL_LSTM, MFL_PRECISION_BF16},
                {100, 3, 3, MFL_CELL_LSTM, MFL_PRECISION_FP32, .last_cell = true},
                {100, 3, 3, MFL_CELL_RELU, MFL_PRECISION_FP32},
                {130, 3, 2, MFL_CELL_GRU, MFL_PRECISION_FP16},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct problem p = problem_of(&cases[i]);
                size_t bytes, all_bytes, at = 0, all_at = 0;
                unsigned char *alone = run(&p, false, 1, 1, &bytes),
                              *all = run(&p, false, 0, GROUPS, &all_bytes);
                assert_int_equal(all_bytes, GROUPS * bytes);
                for (int backward = 0; backward < 2; backward++) {
                        for (int t = GATES; t < TENSORS; t++) {
                                size_t each = (size_t)p.each[t];
                                assert_same(&p, all + all_at + each, alone + at, each);
                                at += each;
                                all_at += GROUPS * each;
                        }
                }
                free(alone);
                free(all);
                problem_free(&p);
        }
}

/* Step and whole form leave the memory of a group without rows unchanged. */
OPS_TEST(groups_may_rest)
{
        const uint32_t count[GROUPS] = {2, 0, 1};
        const size_t places = 2 * 2, hidden = 9, gate_bytes = places * 4 * hidden * 4,
                     bytes = places * hidden * 4;
        for (int whole = 0; whole < 2; whole++) {
                struct ops_steps s = ops_steps_new(GROUPS, 2, count, 1);
                float *w = ops_uniform(GROUPS * 4 * 81, MFL_CUDA_F32, 1), *x = ops_zeros(GROUPS * 4 * 36);
                struct ops_buffer weight = ops_new_from(w, GROUPS * 4 * 81 * 4);
                struct ops_buffer gates = ops_new_from(x, GROUPS * gate_bytes),
                                  cell = ops_new(GROUPS * bytes);
                struct ops_buffer out = ops_new(GROUPS * bytes), dout = ops_new_from(x, GROUPS * bytes);
                struct ops_buffer workspace = ops_new((size_t)mfl_cuda_recurrent_workspace(
                        GROUPS, 2, 9, MFL_CELL_LSTM, MFL_PRECISION_FP32));
                struct mfl_cuda_recurrent a = {.groups = GROUPS,
                        .batch = 2,
                        .positions = 2,
                        .hidden = 9,
                        .kind = MFL_CELL_LSTM,
                        .whole = whole,
                        .weight = weight.at,
                        .stride = 4 * 81,
                        .gates = gates.at,
                        .hidden_gates = gates.at,
                        .cell = (float *)(void *)cell.at,
                        .out = out.at,
                        .dout = dout.at,
                        .workspace = workspace.at,
                        .steps = s.on_device};
                OPS_OK(mfl_cuda_recurrent_forward(&a, NULL));
                OPS_OK(mfl_cuda_recurrent_backward(&a, NULL));
                ops_assert_untouched(&out, bytes, bytes);
                ops_assert_untouched(&cell, bytes, bytes);
                /* Gates of zero: i o tanh(i g) of g = 0. */
                float *got = ops_zeros(GROUPS * (int64_t)places * (int64_t)hidden);
                ops_get(&out, got);
                for (size_t i = 0; i < places * hidden; i++) {
                        assert_true(got[i] == 0.0f);
                        assert_true(got[2 * places * hidden + i] == 0.0f);
                }
                struct ops_buffer *all[] = {&weight, &gates, &cell, &out, &dout, &workspace};
                for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                        ops_free(all[i]);
                free(w);
                free(x);
                free(got);
                ops_steps_free(&s);
        }
}

/* Requests the form of one launch where it does not fit. */
OPS_TEST(forms_are_a_rule)
{
        struct mfl_cuda_recurrent a = {
                .groups = 1, .batch = 1, .positions = 1, .hidden = 256, .kind = MFL_CELL_LSTM, .whole = true};
        assert_int_equal(mfl_cuda_recurrent_forward(&a, NULL), cudaErrorInvalidValue);
        assert_true(mfl_cuda_recurrent_is_whole(64, MFL_CELL_LSTM, MFL_PRECISION_FP32, false));
        assert_true(mfl_cuda_recurrent_is_whole(64, MFL_CELL_LSTM, MFL_PRECISION_TF32, true));
        assert_true(mfl_cuda_recurrent_is_whole(96, MFL_CELL_LSTM, MFL_PRECISION_BF16, false));
        assert_true(mfl_cuda_recurrent_is_whole(96, MFL_CELL_LSTM, MFL_PRECISION_BF16, true));
        assert_false(mfl_cuda_recurrent_is_whole(80, MFL_CELL_LSTM, MFL_PRECISION_TF32, false));
        assert_false(mfl_cuda_recurrent_is_whole(97, MFL_CELL_LSTM, MFL_PRECISION_BF16, false));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(forms_have_the_same_bits),
                cmocka_unit_test(groups_do_not_matter),
                cmocka_unit_test(groups_may_rest),
                cmocka_unit_test(forms_are_a_rule),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
