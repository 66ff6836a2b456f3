/* SPDX-License-Identifier: Apache-2.0 */
/* A round's decision: the steps before the rule, the rule or what takes its place when rows are few, and what both make of
 * the rows as they came. */
#include <math.h>
#include <stdlib.h>

#include "server/robust/rule.h"

/* The rows that the rule sees. */
struct seen {
        uint32_t n, n_in;
        bool guess;
        double *a, *g; /* a NULL: the rows as they came */
};

static const struct mfl_robust_rule *rule_for(
        const struct mfl_job *job, uint32_t n, bool guess, struct mfl_choice *choice, struct mfl_error *err)
{
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        const struct mfl_robust_rule *rule = mfl_robust_get(job->aggregation.strategy);
        uint32_t least = mfl_robust_rows_least(job);
        if (!rule)
                return &mfl_rule_mean;
        bool rootless = rule->wants_root && !guess;
        if (n >= least && !rootless)
                return rule;
        choice->few = n;
        if (spec->on_few == MFL_ON_FEW_MEAN)
                return &mfl_rule_mean;
        if (spec->on_few == MFL_ON_FEW_MEDIAN)
                return &mfl_rule_median;
        if (rootless)
                mfl_fail(err, MFL_INVALID,
                        "%s: the round has no update of the root; aggregation.on_few can say mean or median",
                        mfl_strategy_name(job->aggregation.strategy));
        else
                mfl_fail(err, MFL_INVALID,
                        "%s with f: %u needs %u rows, and the round has %u; aggregation.on_few can say mean "
                        "or "
                        "median",
                        mfl_strategy_name(job->aggregation.strategy), spec->f, least, n);
        return NULL;
}

static int alloc_ruling(uint32_t n, struct mfl_ruling *ruling)
{
        *ruling = (struct mfl_ruling){
                .weight = mfl_calloc(n, sizeof(double)), .score = mfl_calloc(n, sizeof(double))};
        for (uint32_t i = 0; ruling->score && i < n; i++)
                ruling->score[i] = NAN;
        return ruling->weight && ruling->score ? 0 : -ENOMEM;
}

static double part(const struct seen *seen, uint32_t row, uint32_t column)
{
        return seen->a ? seen->a[(size_t)row * seen->n_in + column] : row == column;
}

/* The weighted sum of what the rule saw, as a weighted sum of the rows as they came. */
static int take_sum(const struct seen *seen, const struct mfl_ruling *ruling, struct mfl_choice *choice)
{
        choice->n_out = 1;
        choice->a = mfl_calloc(seen->n_in, sizeof *choice->a);
        if (!choice->a)
                return -ENOMEM;
        for (uint32_t j = 0; j < choice->n_rows; j++)
                for (uint32_t i = 0; i < seen->n; i++)
                        choice->a[j] += ruling->weight[i] * part(seen, i, j);
        if (seen->guess)
                choice->a[choice->n_rows] = ruling->weight[seen->n];
        return 0;
}

/* The rows that the rule wants per element: those it saw, without those that it left out. */
static int take_rows(const struct seen *seen, const struct mfl_ruling *ruling, struct mfl_choice *choice)
{
        for (uint32_t i = 0; i < seen->n; i++)
                choice->n_out += ruling->weight[i] != 0;
        if (!seen->a && choice->n_out == seen->n)
                return 0;
        choice->a = mfl_calloc((size_t)choice->n_out * seen->n_in, sizeof *choice->a);
        if (!choice->a)
                return -ENOMEM;
        double *a = choice->a;
        for (uint32_t i = 0; i < seen->n; i++) {
                for (uint32_t j = 0; j < choice->n_rows && ruling->weight[i] != 0; j++)
                        a[j] = part(seen, i, j);
                a += ruling->weight[i] != 0 ? seen->n_in : 0;
        }
        return 0;
}

/* Running statistics have no zero to be shortened to: rows of A with sum 1, the guess left out unless it is all there is.
 * plain: the weights of clients instead, which no clip of updates changes; NULL: none. */
static int take_means(struct mfl_choice *choice, const double *plain)
{
        if (!choice->a)
                return 0;
        size_t count = (size_t)choice->n_out * choice->n_in;
        choice->a_means = mfl_calloc(count, sizeof *choice->a_means);
        if (!choice->a_means)
                return -ENOMEM;
        for (uint32_t i = 0; i < choice->n_out; i++) {
                const double *a = choice->a + (size_t)i * choice->n_in;
                double *means = choice->a_means + (size_t)i * choice->n_in, sum = 0;
                for (uint32_t j = 0; j < choice->n_rows; j++)
                        sum += a[j];
                for (uint32_t j = 0; j < choice->n_rows; j++)
                        means[j] = plain                           ? plain[j]
                                   : sum > 0                       ? a[j] / sum
                                   : choice->n_in > choice->n_rows ? 0
                                                                   : 1.0 / choice->n_rows;
                if (choice->n_in > choice->n_rows && !(sum > 0))
                        means[choice->n_rows] = 1;
        }
        return 0;
}

static void find_shares(struct mfl_choice *choice)
{
        for (uint32_t j = 0; j < choice->n_rows; j++) {
                double sum = 0;
                for (uint32_t i = 0; i < choice->n_out; i++)
                        sum += choice->a_means ? choice->a_means[(size_t)i * choice->n_in + j] : i == j;
                choice->share[j] = sum / choice->n_out;
                choice->n_used += choice->share[j] > 0;
        }
}

/* Of each row from the mean of the rows by their shares. */
static void find_distances(const double *g, struct mfl_choice *choice)
{
        uint32_t n = choice->n_rows, stride = choice->n_in;
        double norm2 = 0;
        for (uint32_t i = 0; i < n; i++) {
                double with = 0;
                for (uint32_t j = 0; j < n; j++)
                        with += choice->share[j] * g[(size_t)i * stride + j];
                choice->distance[i] = g[(size_t)i * stride + i] - 2 * with;
                norm2 += choice->share[i] * with;
        }
        for (uint32_t i = 0; i < n; i++) {
                double d2 = choice->distance[i] + norm2;
                choice->distance[i] = d2 > 0 ? sqrt(d2) : 0;
        }
}

static int take(const struct seen *seen, const struct mfl_ruling *ruling, const double *g, bool plain,
        struct mfl_choice *choice)
{
        choice->column = ruling->column;
        choice->cut = ruling->cut;
        choice->share = mfl_calloc(choice->n_rows, sizeof(double));
        choice->score = mfl_calloc(choice->n_rows, sizeof(double));
        choice->distance = mfl_calloc(choice->n_rows, sizeof(double));
        if (!choice->share || !choice->score || !choice->distance)
                return -ENOMEM;
        int r = ruling->column == MFL_COLUMN_SUM ? take_sum(seen, ruling, choice)
                                                 : take_rows(seen, ruling, choice);
        if (!r)
                r = take_means(choice, plain ? ruling->weight : NULL);
        if (r)
                return r;
        find_shares(choice);
        for (uint32_t i = 0; i < choice->n_rows; i++) {
                choice->score[i] = seen->n == choice->n_rows ? ruling->score[i] : (double)NAN;
                choice->distance[i] = NAN;
        }
        if (g)
                find_distances(g, choice);
        return 0;
}

static int see(const struct mfl_job *job, uint32_t round, const double *g, struct seen *seen)
{
        size_t count = (size_t)seen->n_in * seen->n_in;
        if (!g)
                return 0;
        mfl_assert(seen->n_in <= MFL_ROBUST_ROWS_MAX + 1);
        seen->g = mfl_malloc(count * sizeof *g);
        if (!seen->g)
                return -ENOMEM;
        memcpy(seen->g, g, count * sizeof *g);
        int r = 0;
        for (uint32_t i = 0; i < job->aggregation.robust.n_before && !r; i++)
                r = mfl_before_apply(job, i, round, seen->guess, &seen->n, &seen->a, &seen->g, seen->n_in);
        return r;
}

static void weigh(const double *weight, uint32_t n, struct mfl_ruling *ruling)
{
        double sum = 0;
        for (uint32_t i = 0; i < n; i++)
                sum += weight[i];
        for (uint32_t i = 0; i < n; i++)
                ruling->weight[i] = weight[i] / sum;
}

/* The rows as they came (facts), or after `before` (seen). */
static struct mfl_rows rows_of(const struct mfl_facts *shape, const double *facts, const struct seen *seen)
{
        struct mfl_rows rows = {
                .m = seen->n, .stride = seen->n + seen->guess, .g = seen->g, .guess = seen->guess};
        size_t square = (size_t)shape->m * shape->m;
        if (!facts)
                return rows;
        rows.n_samples = shape->n_samples;
        rows.sample = shape->n_samples ? facts + square : NULL;
        rows.sign = shape->signs ? facts + square * (1 + (size_t)shape->n_samples) : NULL;
        return rows;
}

int mfl_robust_decide(const struct mfl_job *job, uint32_t round, uint32_t n_rows, bool guess,
        const double *facts, const double *weight, struct mfl_choice *ret_choice, struct mfl_error *err)
{
        struct seen seen = {.n = n_rows, .n_in = n_rows + guess, .guess = guess};
        struct mfl_choice choice = {.n_rows = n_rows, .n_in = n_rows + guess};
        struct mfl_ruling ruling = {0};
        const struct mfl_facts shape = mfl_facts_of(job, seen.n_in, 0, round);
        mfl_assert(n_rows);
        const struct mfl_robust_rule *rule =
                rule_for(job, mfl_robust_rows_after(&job->aggregation.robust, n_rows), guess, &choice, err);
        int r = !rule ? MFL_INVALID : choice.few ? 0 : see(job, round, facts, &seen);
        if (!r)
                r = alloc_ruling(seen.n + guess, &ruling);
        if (!r) {
                const struct mfl_rows rows = rows_of(&shape, facts, &seen);
                r = rule->decide(&rows, &job->aggregation.robust, &ruling);
        }
        if (!r && rule == &mfl_rule_mean && weight && !choice.few)
                weigh(weight, n_rows, &ruling);
        if (!r)
                r = take(&seen, &ruling, facts, weight != NULL, &choice);
        choice.noise = ruling.noise;
        choice.noise_key = mfl_rng_derive(job->seed, MFL_RNG_FLAME, round, 0);
        free(seen.a);
        free(seen.g);
        free(ruling.weight);
        free(ruling.score);
        if (r) {
                mfl_choice_deinit(&choice);
                return r == -ENOMEM ? mfl_fail_memory(err, n_rows * sizeof(double), "a robust rule") : r;
        }
        *ret_choice = choice;
        return 0;
}

void mfl_choice_deinit(struct mfl_choice *choice)
{
        free(choice->a);
        free(choice->a_means);
        free(choice->share);
        free(choice->score);
        free(choice->distance);
        *choice = (struct mfl_choice){0};
}
