/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies against formulas written down here once more, in plain doubles. */
#include "tests/unit/server/fixture.h"

#include <math.h>

#define COUNT 257
#define ROUNDS 5

/* What the papers say, one element; m and v are float between rounds, as in a checkpoint. */
static double expected(const struct mfl_job *job, double x, double d, float *m, float *v)
{
        double eta = (double)job->aggregation.server_lr, b1 = (double)job->aggregation.beta1;
        double b2 = (double)job->aggregation.beta2, tau = (double)job->aggregation.tau;
        double new_m = b1 * (double)*m + (1 - b1) * d, new_v = 0;
        switch (job->aggregation.strategy) {
        case MFL_STRATEGY_FEDAVGM:
                new_m = (double)job->aggregation.momentum * (double)*m + d;
                *m = (float)new_m;
                if (job->aggregation.nesterov)
                        return x + eta * (d + (double)job->aggregation.momentum * new_m);
                return x + eta * new_m;
        case MFL_STRATEGY_FEDADAGRAD:
                new_v = (double)*v + d * d;
                break;
        case MFL_STRATEGY_FEDADAM:
                new_v = b2 * (double)*v + (1 - b2) * d * d;
                break;
        case MFL_STRATEGY_FEDYOGI:
                if ((double)*v > d * d)
                        new_v = (double)*v - (1 - b2) * d * d;
                else if ((double)*v < d * d)
                        new_v = (double)*v + (1 - b2) * d * d;
                else
                        new_v = (double)*v;
                break;
        default:
                return x + eta * d;
        }
        *m = (float)new_m;
        *v = (float)new_v;
        return x + eta * new_m / (sqrt(new_v) + tau);
}

static void check_strategy(enum mfl_strategy_kind kind, bool nesterov)
{
        struct mfl_job job = {.aggregation = {.strategy = kind,
                                      .server_lr = 0.25f,
                                      .momentum = 0.9f,
                                      .nesterov = nesterov,
                                      .beta1 = 0.8f,
                                      .beta2 = 0.95f,
                                      .tau = 0.01f}};
        const struct mfl_strategy_ops *ops = mfl_strategy_get(kind);
        assert_int_equal(ops->kind, kind);
        float x[COUNT], next[COUNT], s0[COUNT], s1[COUNT], m[COUNT], v[COUNT];
        double d[COUNT];
        float *state[] = {s0, s1};
        for (int e = 0; e < COUNT; e++) {
                x[e] = fixture_delta(1, 0, (uint64_t)e);
                m[e] = 0;
                v[e] = 0.01f * 0.01f;
                for (int i = 0; i < ops->n_state; i++)
                        state[i][e] = ops->state_initial(&job, i);
        }
        for (uint64_t r = 0; r < ROUNDS; r++) {
                struct mfl_error err;
                for (int e = 0; e < COUNT; e++)
                        d[e] = e == 0 ? 0.0 : (double)fixture_delta(2, r, (uint64_t)e) * (e % 3 ? 1.0 : 1e-3);
                assert_int_equal(mfl_strategy_apply(ops, &job, &(struct mfl_strategy_round){1, 1}, NULL, 0,
                                         COUNT, x, d, state, next, &err),
                        0);
                for (int e = 0; e < COUNT; e++) {
                        double want = expected(&job, (double)x[e], d[e], &m[e], &v[e]);
                        /* The two ways to write a formula differ by some double roundings: at most one float
                         * step. */
                        assert_true(fabs((double)next[e] - want) <= fabs(want) * 0x1p-23 + 1e-12);
                        if (ops->n_state > 0)
                                assert_true(fabsf(s0[e] - m[e]) <= fabsf(m[e]) * 0x1p-22f);
                        if (ops->n_state > 1)
                                assert_true(fabsf(s1[e] - v[e]) <= fabsf(v[e]) * 0x1p-22f);
                        m[e] = ops->n_state > 0 ? s0[e] : 0;
                        v[e] = ops->n_state > 1 ? s1[e] : 0;
                }
                memcpy(x, next, sizeof x);
        }
}

static void strategies_follow_their_equations(void **state)
{
        check_strategy(MFL_STRATEGY_FEDAVG, false);
        check_strategy(MFL_STRATEGY_FEDPROX, false);
        check_strategy(MFL_STRATEGY_FEDAVGM, false);
        check_strategy(MFL_STRATEGY_FEDAVGM, true);
        check_strategy(MFL_STRATEGY_FEDADAGRAD, false);
        check_strategy(MFL_STRATEGY_FEDADAM, false);
        check_strategy(MFL_STRATEGY_FEDYOGI, false);
        check_strategy(MFL_STRATEGY_MEDIAN, false);
}

/* flwr.serverapp.strategy.FedAdam, round 3: v from 0, and eta sqrt(1 - b2^4) / (1 - b1^4). FedYogi: v from 0 alone. */
static void flowers_variant_by_hand(void **state)
{
        struct mfl_job job = {.aggregation = {.strategy = MFL_STRATEGY_FEDADAM,
                                      .variant = MFL_VARIANT_FLOWER,
                                      .server_lr = 1.0f,
                                      .beta1 = 0.5f,
                                      .beta2 = 0.75f,
                                      .tau = 0.25f}};
        float x = 1.0f, next, m = 0.0f, v = mfl_strategy_fedadam.state_initial(&job, 1);
        float *states[] = {&m, &v};
        double d = 2.0;
        assert_true(v == 0.0f);
        assert_int_equal(mfl_strategy_apply(&mfl_strategy_fedadam, &job, &(struct mfl_strategy_round){3, 1},
                                 NULL, 0, 1, &x, &d, states, &next, NULL),
                0);
        double eta = sqrt(1 - 0.75 * 0.75 * 0.75 * 0.75) / (1 - 0.0625);
        assert_true(m == 1.0f && v == 1.0f && fabs((double)next - (1.0 + eta * 1.0 / 1.25)) < 1e-6);
        m = v = 0;
        assert_int_equal(mfl_strategy_apply(&mfl_strategy_fedyogi, &job, &(struct mfl_strategy_round){3, 1},
                                 NULL, 0, 1, &x, &d, states, &next, NULL),
                0);
        assert_true(m == 1.0f && v == 1.0f && fabs((double)next - (1.0 + 1.0 / 1.25)) < 1e-6);
}

/* First step of FedAdam by hand: m = 0.1 * 2 = 0.2, v = 0.99 * 0.25 + 0.01 * 4 = 0.2875, tau 0.5. */
static void fedadam_takes_the_step_computed_by_hand(void **state)
{
        struct mfl_job job = {.aggregation = {.strategy = MFL_STRATEGY_FEDADAM,
                                      .server_lr = 1.0f,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.99f,
                                      .tau = 0.5f}};
        float x = 1.0f, next, m = 0.0f, v = mfl_strategy_fedadam.state_initial(&job, 1);
        float *states[] = {&m, &v};
        double d = 2.0;
        assert_true(v == 0.25f);
        assert_int_equal(mfl_strategy_apply(&mfl_strategy_fedadam, &job, &(struct mfl_strategy_round){1, 1},
                                 NULL, 0, 1, &x, &d, states, &next, NULL),
                0);
        assert_true(fabs((double)next - (1.0 + 0.2 / (sqrt(0.2875) + 0.5))) < 1e-6); /* float settings */
}

static void results_that_are_not_finite_are_refused(void **state)
{
        struct mfl_job job = {.aggregation = {.server_lr = 1.0f}};
        struct mfl_error err = {{0}};
        float x[] = {0.0f, 3e38f}, next[2];
        double d[] = {0.0, 3e38};
        assert_int_equal(mfl_strategy_apply(&mfl_strategy_fedavg, &job, &(struct mfl_strategy_round){1, 1},
                                 NULL, 100, 2, x, d, NULL, next, &err),
                MFL_INVALID);
        assert_non_null(strstr(err.text, "parameter 101"));
        /* FedAdagrad's variance overflows while the param itself stays finite. */
        float m = 0, v = 0, one = 1;
        float *states[] = {&m, &v};
        double large = 1e30;
        assert_int_equal(
                mfl_strategy_apply(&mfl_strategy_fedadagrad, &job, &(struct mfl_strategy_round){1, 1}, NULL,
                        0, 1, &one, &large, states, next, &err),
                MFL_INVALID);
}

/* Each range of a graph with batch norms, from and to odd places, against the whole vector treated as
 * trained: trained params and their state have its bits, running statistics are the plain mean and keep their
 * state. */
static void check_untrained(enum mfl_strategy_kind kind)
{
        struct mfl_job job = {.aggregation = {.strategy = kind,
                                      .server_lr = 0.25f,
                                      .momentum = 0.9f,
                                      .beta1 = 0.8f,
                                      .beta2 = 0.95f,
                                      .tau = 0.01f}};
        const struct mfl_strategy_ops *ops = mfl_strategy_get(kind);
        struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .input = -1, .out = {1, {7}}},
                {.op = MFL_OP_BATCHNORM, .input = 0}, {.op = MFL_OP_BATCHNORM, .input = 1},
                {.op = MFL_OP_DENSE, .input = 2, .out_channels = 5}, {.op = MFL_OP_BATCHNORM, .input = 3}};
        struct mfl_graph *graph = NULL;
        assert_int_equal(mfl_graph_build("m", layers, 5, 5, &graph, NULL), 0);
        enum { N = 28 + 28 + 35 + 20 };
        assert_int_equal(graph->n, N);
        float x[N], all[N], some[N], state[2][2][N];
        double d[N], told[N];
        for (int e = 0; e < N; e++) {
                x[e] = fixture_delta(1, 0, (uint64_t)e);
                d[e] = (double)fixture_delta(2, 0, (uint64_t)e);
                told[e] = (double)fixture_delta(3, 0, (uint64_t)e);
                for (int i = 0; i < ops->n_state; i++)
                        state[0][i][e] = state[1][i][e] = ops->state_initial(&job, i);
        }
        float *whole[] = {state[0][0], state[0][1]};
        assert_int_equal(mfl_strategy_apply(ops, &job, &(struct mfl_strategy_round){2, 1, told}, NULL, 0, N,
                                 x, d, whole, all, NULL),
                0);
        for (size_t at = 0, step = 1; at < N; at += step, step += 3) {
                size_t count = MFL_MIN(step, N - at);
                float *part[] = {state[1][0] + at, state[1][1] + at};
                assert_int_equal(mfl_strategy_apply(ops, &job, &(struct mfl_strategy_round){2, 1, told + at},
                                         graph, at, count, x + at, d + at, part, some + at, NULL),
                        0);
        }
        for (int t = 0; t < graph->n_params; t++) {
                const struct mfl_param *p = &graph->params[t];
                for (uint64_t e = p->offset; e < p->offset + p->count; e++) {
                        float plain = (float)((double)x[e] + d[e]);
                        assert_true(some[e] == (p->trained ? all[e] : plain));
                        for (int i = 0; i < ops->n_state; i++)
                                assert_true(state[1][i][e] ==
                                            (p->trained ? state[0][i][e] : ops->state_initial(&job, i)));
                }
        }
        mfl_graph_free(graph);
}

static void running_statistics_take_the_plain_mean(void **state)
{
        check_untrained(MFL_STRATEGY_FEDAVG);
        check_untrained(MFL_STRATEGY_FEDAVGM);
        check_untrained(MFL_STRATEGY_FEDADAGRAD);
        check_untrained(MFL_STRATEGY_FEDADAM);
        check_untrained(MFL_STRATEGY_FEDYOGI);
        check_untrained(MFL_STRATEGY_MEDIAN);
        check_untrained(MFL_STRATEGY_MIMELITE);
        check_untrained(MFL_STRATEGY_MIME);
}

/* beta is 3/4. Of Mime, a gradient waits for the even round. */
static void mime_follows_the_told_gradient(void **state)
{
        struct mfl_job job = {.aggregation = {.server_lr = 0.5f, .momentum = 0.75f}};
        const double d = 2, told = 8;
        const float x = 1;
        float s = 4, c = 0, next = 0, *const vectors[] = {&s, &c};
        const struct mfl_strategy_round first = {.number = 1, .step = 1, .told = &told}, second = {2, 1, &d};
        mfl_strategy_mimelite.apply(&job, &first, 1, &x, &d, vectors, &next);
        assert_true(next == 2 && s == 5);
        mfl_strategy_mime.apply(&job, &first, 1, &x, &d, vectors, &next);
        assert_true(next == 1 && s == 5 && c == 8);
        mfl_strategy_mime.apply(&job, &second, 1, &x, &d, vectors, &next);
        assert_true(next == 2 && s == 5.75f && c == 8);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(strategies_follow_their_equations),
                cmocka_unit_test(fedadam_takes_the_step_computed_by_hand),
                cmocka_unit_test(flowers_variant_by_hand),
                cmocka_unit_test(results_that_are_not_finite_are_refused),
                cmocka_unit_test(running_statistics_take_the_plain_mean),
                cmocka_unit_test(mime_follows_the_told_gradient),
        };
        return cmocka_run_group_tests_name("server_strategy", tests, NULL, NULL);
}
