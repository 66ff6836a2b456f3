/* SPDX-License-Identifier: Apache-2.0 */
/* Rows become kinds of rounds: those of one job with one sigma and rate, and all without sampling. */
#include "client/policy/cost.h"

#include <math.h>

#include "common/privacy/gaussian.h"
#include "common/privacy/loss.h"

/* Rows of one kind. */
struct kind {
        const struct mfl_ledger_row *first;
        uint32_t last_round; /* promised */
        uint64_t n;          /* rows */
        uint64_t again;      /* rows of a round that has others */
};

struct cost {
        const struct mfl_ledger_row *rows, *more;
        uint32_t n;
        const char *data;
        struct kind kinds[MFL_DP_PARTS_MAX];
        size_t n_kinds;
        bool full;
};

static bool is_promised(const struct mfl_ledger_row *row)
{
        return row->round;
}

static const struct mfl_ledger_row *row_at(const struct cost *cost, uint32_t i)
{
        return i < cost->n ? &cost->rows[i] : cost->more;
}

static uint32_t count_rows(const struct cost *cost)
{
        return cost->n + (cost->more != NULL);
}

static bool is_same_kind(const struct mfl_ledger_row *a, const struct mfl_ledger_row *b)
{
        return is_promised(a) == is_promised(b) && a->sigma == b->sigma && a->rate == b->rate &&
               !memcmp(a->job, b->job, sizeof a->job);
}

/* Whether an earlier row of the kind is of the same round. */
static bool is_again(const struct cost *cost, uint32_t i)
{
        const struct mfl_ledger_row *row = row_at(cost, i);
        for (uint32_t k = 0; k < i; k++) {
                const struct mfl_ledger_row *other = row_at(cost, k);
                if (other->round == row->round && is_same_kind(other, row) &&
                        !strcmp(other->data, cost->data))
                        return true;
        }
        return false;
}

static void count_row(struct cost *cost, uint32_t i)
{
        const struct mfl_ledger_row *row = row_at(cost, i);
        struct kind *kind = NULL;
        for (size_t k = 0; k < cost->n_kinds && !kind; k++)
                if (is_same_kind(cost->kinds[k].first, row))
                        kind = &cost->kinds[k];
        if (!kind) {
                cost->full |= cost->n_kinds == MFL_DP_PARTS_MAX;
                if (cost->full)
                        return;
                kind = &cost->kinds[cost->n_kinds++];
                *kind = (struct kind){.first = row};
        }
        kind->n++;
        if (is_promised(row) && row->round <= kind->last_round && is_again(cost, i)) /* a later one is new */
                kind->again++;
        kind->last_round = MFL_MAX(kind->last_round, row->round);
}

static uint64_t rounds_of(const struct kind *kind)
{
        return is_promised(kind->first) ? kind->last_round + kind->again : kind->n;
}

static void count(struct cost *cost)
{
        for (uint32_t i = 0; i < count_rows(cost); i++)
                if (!strcmp(row_at(cost, i)->data, cost->data))
                        count_row(cost, i);
}

int mfl_site_epsilon(const struct mfl_ledger_row *rows, uint32_t n, const struct mfl_ledger_row *more,
        const char *data, double delta, double *ret_epsilon, struct mfl_error *err)
{
        struct mfl_dp_rounds parts[MFL_DP_PARTS_MAX];
        struct cost *cost = mfl_calloc(1, sizeof *cost);
        size_t n_sampled = 0;
        double precision = 0;
        if (!cost)
                return mfl_fail_memory(err, sizeof *cost, "a site's budget");
        *cost = (struct cost){.rows = rows, .more = more, .n = n, .data = data};
        count(cost);
        for (size_t k = 0; k < cost->n_kinds; k++) {
                const struct mfl_ledger_row *row = cost->kinds[k].first;
                double times = (double)rounds_of(&cost->kinds[k]);
                if (row->rate == 1)
                        precision += times / (row->sigma * row->sigma);
                else
                        parts[n_sampled++] =
                                (struct mfl_dp_rounds){row->sigma, row->rate, rounds_of(&cost->kinds[k])};
        }
        bool full = cost->full || n_sampled == MFL_DP_PARTS_MAX;
        free(cost);
        if (full)
                return mfl_fail(err, MFL_INVALID,
                        "this site's ledger has more than %d jobs of data set %s, too many to add up",
                        MFL_DP_PARTS_MAX - 1, data);
        if (n_sampled && precision > 0)
                parts[n_sampled++] = (struct mfl_dp_rounds){1 / sqrt(precision), 1, 1};
        *ret_epsilon = n_sampled       ? mfl_dp_rdp_epsilon(parts, n_sampled, delta)
                       : precision > 0 ? mfl_dp_gaussian_epsilon(1 / sqrt(precision), delta)
                                       : 0;
        return 0;
}

uint64_t mfl_site_releases(const struct mfl_ledger_row *rows, uint32_t n, const char *data)
{
        struct cost *cost = mfl_calloc(1, sizeof *cost);
        uint64_t sum = 0;
        if (!cost)
                return n;
        *cost = (struct cost){.rows = rows, .n = n, .data = data};
        count(cost);
        for (size_t k = 0; k < cost->n_kinds; k++)
                sum += rounds_of(&cost->kinds[k]);
        free(cost);
        return sum;
}
