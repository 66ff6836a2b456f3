/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl privacy`: what rounds with noise cost, and which noise a budget needs. Asks no server, but for its ledger (cmd_ledger.c). */
#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "cli/base/json.h"
#include "cli/commands/commands.h"
#include "common/privacy/accountant.h"
#include "common/privacy/gaussian.h"
#include "common/privacy/matrix.h"

#define LIST_MAX 64

/* "1" or "1,2.5,4". */
static int read_list(
        const char *option, const char *text, double list[LIST_MAX], size_t *ret_n, struct mfl_error *err)
{
        size_t n = 0;
        for (const char *at = text; at; n++) {
                char *end;
                errno = 0;
                double v = n < LIST_MAX ? strtod(at, &end) : 0;
                if (n == LIST_MAX)
                        return mfl_fail(err, MFL_CLI_USAGE, "--%s: more than %d numbers", option, LIST_MAX);
                if (end == at || (*end && *end != ',') || errno || !isfinite(v))
                        return mfl_fail(err, MFL_CLI_USAGE,
                                "--%s: '%.100s' is not a number, nor a list like 1,2.5", option, text);
                list[n] = v;
                at = *end ? end + 1 : NULL;
        }
        *ret_n = n;
        return 0;
}

struct question {
        struct mfl_dp_rounds v[LIST_MAX];
        size_t n;
        double delta, budget; /* budget: 0: not asked */
        enum mfl_privacy_mechanism mechanism;
        uint32_t separation; /* with correlated noise */
        struct mfl_matrix *matrix;
};

static int whole(double v, uint64_t *ret_v, struct mfl_error *err)
{
        if (!(v >= 1 && v <= 1e9 && v == floor(v)))
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--rounds: expected a whole number from 1 to 1000000000, got %g", v);
        *ret_v = (uint64_t)v;
        return 0;
}

/* Correlated noise: all rounds are one, without sampling. */
static int read_matrix(const struct mfl_cli_options *o, struct question *q, struct mfl_error *err)
{
        double list[LIST_MAX];
        size_t n = 0;
        for (q->mechanism = MFL_MECHANISM_GAUSSIAN; mfl_privacy_mechanism_names[q->mechanism]; q->mechanism++)
                if (!strcmp(o->mechanism, mfl_privacy_mechanism_names[q->mechanism]))
                        break;
        if (!mfl_privacy_mechanism_names[q->mechanism])
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--mechanism: expected gaussian, bisr or bsr, got '%.100s'", o->mechanism);
        if (q->mechanism == MFL_MECHANISM_GAUSSIAN)
                return o->separation ? mfl_fail(err, MFL_CLI_USAGE, "--separation: only with bisr and bsr")
                                     : 0;
        if (o->q)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--q: correlated noise counts on turns, not on sampling; give --separation");
        if (!o->separation)
                return mfl_fail(err, MFL_CLI_USAGE, "--separation is missing; see 'mfl privacy --help'");
        int r = read_list("separation", o->separation, list, &n, err);
        if (!r &&
                (n != 1 || !(list[0] >= 1 && list[0] <= MFL_MATRIX_ROUNDS_MAX && list[0] == floor(list[0]))))
                r = mfl_fail(err, MFL_CLI_USAGE, "--separation: expected a whole number from 1 to %u",
                        MFL_MATRIX_ROUNDS_MAX);
        if (!r)
                q->separation = (uint32_t)list[0];
        return r;
}

static int make_matrix(struct question *q, struct mfl_error *err)
{
        if (!q->separation)
                return 0;
        if (q->n > 1 || q->v[0].rounds > MFL_MATRIX_ROUNDS_MAX)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--rounds: correlated noise takes one number, from 1 to %u", MFL_MATRIX_ROUNDS_MAX);
        return mfl_matrix_new(q->mechanism, (uint32_t)q->v[0].rounds, q->separation, &q->matrix, err);
}

static int read_question(const struct mfl_cli_options *o, struct question *q, struct mfl_error *err)
{
        struct {
                const char *name, *text;
                double list[LIST_MAX];
                size_t n;
        } of[] = {{.name = "sigma", .text = o->calibrate ? "1" : o->sigma},
                {.name = "q", .text = q->separation ? "1" : o->q}, {.name = "rounds", .text = o->rounds},
                {.name = "delta", .text = o->delta},
                {.name = "calibrate", .text = o->calibrate ? o->calibrate : "0"}};
        if (o->sigma && o->calibrate)
                return mfl_fail(err, MFL_CLI_USAGE, "--sigma and --calibrate: give the noise, or ask for it");
        q->n = 1;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(of); i++) {
                if (!of[i].text)
                        return mfl_fail(
                                err, MFL_CLI_USAGE, "--%s is missing; see 'mfl privacy --help'", of[i].name);
                int r = read_list(of[i].name, of[i].text, of[i].list, &of[i].n, err);
                if (r)
                        return r;
                if (of[i].n > 1 && (i > 2 || o->calibrate))
                        return mfl_fail(err, MFL_CLI_USAGE, "--%s: one number is expected here", of[i].name);
                if (of[i].n > 1 && q->n > 1 && of[i].n != q->n)
                        return mfl_fail(err, MFL_CLI_USAGE, "--%s: %zu numbers, where another list has %zu",
                                of[i].name, of[i].n, q->n);
                q->n = MFL_MAX(q->n, of[i].n);
        }
        q->delta = of[3].list[0];
        q->budget = of[4].list[0];
        if (o->calibrate && q->budget <= 0)
                return mfl_fail(err, MFL_CLI_USAGE, "--calibrate: expected an epsilon above 0");
        for (size_t i = 0; i < q->n; i++) {
                q->v[i].sigma = of[0].list[of[0].n > 1 ? i : 0];
                q->v[i].rate = of[1].list[of[1].n > 1 ? i : 0];
                int r = whole(of[2].list[of[2].n > 1 ? i : 0], &q->v[i].rounds, err);
                if (r)
                        return r;
        }
        return 0;
}

static json_t *number(double v)
{
        return isfinite(v) ? json_real(v) : json_null();
}

static void print_matrix(const struct question *q, double epsilon)
{
        const struct mfl_matrix *m = q->matrix;
        printf("%" PRIu64
               " rounds, turns of a client at least %u apart, noise %.6g times the sensitivity of them all\n"
               "  epsilon      %.6g\n  delta        %g\n"
               "  bands        %u\n  sensitivity  %.6g  (the noise of a round has its factor, too)\n"
               "  error        %.6g  (of sums over rounds, times the sensitivity: %.6g)\n",
                q->v[0].rounds, q->separation, q->v[0].sigma, epsilon, q->delta, m->bands, m->sensitivity,
                m->error, m->error * m->sensitivity);
}

static json_t *matrix_json(const struct question *q, double epsilon)
{
        const struct mfl_matrix *m = q->matrix;
        return json_pack("{so ss so so sI sf sf}", "epsilon", number(epsilon), "mechanism",
                mfl_privacy_mechanism_names[q->mechanism], "sigma", json_real(q->v[0].sigma), "delta",
                json_real(q->delta), "bands", (json_int_t)m->bands, "sensitivity", m->sensitivity, "error",
                m->error);
}

static void print_answer(const struct question *q, const struct mfl_dp_cost *cost)
{
        for (size_t i = 0; i < q->n; i++)
                printf("%" PRIu64
                       " round%s, each client in one with probability %g, noise %.6g times the sensitivity\n",
                        q->v[i].rounds, q->v[i].rounds == 1 ? "" : "s", q->v[i].rate, q->v[i].sigma);
        printf("  epsilon      %.6g\n  delta        %g\n  epsilon RDP  %.6g  (an upper bound, as a check)\n",
                cost->epsilon, q->delta, cost->epsilon_rdp);
}

static int answer_matrix(struct mfl_cli *cli, struct question *q, struct mfl_error *err)
{
        if (!(q->delta > 0 && q->delta < 1) || !(q->v[0].sigma > 0))
                return mfl_fail(err, MFL_CLI_USAGE, "expected --sigma above 0, and --delta between 0 and 1");
        if (q->budget > 0)
                q->v[0].sigma = mfl_dp_gaussian_sigma(q->budget, q->delta);
        double epsilon = mfl_dp_gaussian_epsilon(q->v[0].sigma, q->delta);
        if (cli->json)
                return mfl_json_print(stdout, matrix_json(q, epsilon), err);
        print_matrix(q, epsilon);
        return 0;
}

int mfl_cmd_privacy(struct mfl_cli *cli)
{
        struct question q = {.n = 0};
        struct mfl_dp_cost cost = {0};
        struct mfl_error err;
        if (cli->argument[0] && !strcmp(cli->argument[0], "ledger"))
                return mfl_cmd_ledger(cli);
        if (cli->argument[0])
                return mfl_cli_report(cli,
                        mfl_fail(&err, MFL_CLI_USAGE,
                                "expected 'mfl privacy ledger', or --sigma and the like"),
                        &err);
        int r = cli->options.mechanism ? read_matrix(&cli->options, &q, &err)
                : cli->options.separation
                        ? mfl_fail(&err, MFL_CLI_USAGE, "--separation: only with --mechanism bisr or bsr")
                        : 0;
        if (!r)
                r = read_question(&cli->options, &q, &err);
        if (!r)
                r = make_matrix(&q, &err);
        if (q.matrix) {
                r = answer_matrix(cli, &q, &err);
                free(q.matrix);
                return mfl_cli_report(cli, r, &err);
        }
        if (!r && q.budget > 0)
                r = mfl_dp_sigma(q.budget, q.v[0].rate, q.v[0].rounds, q.delta, &q.v[0].sigma, &err);
        if (!r)
                r = mfl_dp_epsilon(q.v, q.n, q.delta, &cost, &err);
        if (!r && cli->json)
                r = mfl_json_print(stdout,
                        json_pack("{so so so so}", "epsilon", number(cost.epsilon), "epsilon_rdp",
                                number(cost.epsilon_rdp), "sigma",
                                q.n == 1 ? json_real(q.v[0].sigma) : json_null(), "delta",
                                json_real(q.delta)),
                        &err);
        else if (!r)
                print_answer(&q, &cost);
        return mfl_cli_report(cli, r, &err);
}
