/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl privacy`: what rounds with noise cost, and which noise a budget needs. Asks no server, but for its ledger (cmd_ledger.c). */
#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "cli/base/json.h"
#include "cli/commands/commands.h"
#include "common/privacy/accountant.h"

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
};

static int whole(double v, uint64_t *ret_v, struct mfl_error *err)
{
        if (!(v >= 1 && v <= 1e9 && v == floor(v)))
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--rounds: expected a whole number from 1 to 1000000000, got %g", v);
        *ret_v = (uint64_t)v;
        return 0;
}

static int read_question(const struct mfl_cli_options *o, struct question *q, struct mfl_error *err)
{
        struct {
                const char *name, *text;
                double list[LIST_MAX];
                size_t n;
        } of[] = {{.name = "sigma", .text = o->calibrate ? "1" : o->sigma}, {.name = "q", .text = o->q},
                {.name = "rounds", .text = o->rounds}, {.name = "delta", .text = o->delta},
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

static void print_answer(const struct question *q, const struct mfl_dp_cost *cost)
{
        for (size_t i = 0; i < q->n; i++)
                printf("%" PRIu64
                       " round%s, each client in one with probability %g, noise %.6g times the sensitivity\n",
                        q->v[i].rounds, q->v[i].rounds == 1 ? "" : "s", q->v[i].rate, q->v[i].sigma);
        printf("  epsilon      %.6g\n  delta        %g\n  epsilon RDP  %.6g  (an upper bound, as a check)\n",
                cost->epsilon, q->delta, cost->epsilon_rdp);
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
        int r = read_question(&cli->options, &q, &err);
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
