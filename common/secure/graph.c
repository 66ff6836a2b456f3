/* SPDX-License-Identifier: Apache-2.0 */
/* Degrees from hypergeometric tails, and rings from hashes. */
#include "common/secure/graph.h"

#include <math.h>

#include "common/base/digest.h"
#include "common/exact/exact.h"
#include "common/secure/shamir.h"

#define SECURITY_BITS 41 /* each of the two events of 2^-40 */
#define TRIES_BITS 80    /* sets of keys that a server may look through */
#define FAILURE_BITS 20
#define SMALL 1e-9 /* shares are decimal fractions */

/* log n! for all n that occur. */
struct factorials {
        double log[MFL_SECURE_MEMBERS_MAX + 1];
};

static void find_factorials(struct factorials *f, uint32_t n)
{
        f->log[0] = 0;
        for (uint32_t i = 1; i <= n; i++)
                f->log[i] = f->log[i - 1] + mfl_exact_log(i);
}

static double log_choose(const struct factorials *f, uint32_t n, uint32_t k)
{
        return f->log[n] - f->log[k] - f->log[n - k];
}

/* Of k drawn from n without replacement, exactly x are among the marked ones. */
static double probability(const struct factorials *f, uint32_t n, uint32_t marked, uint32_t k, uint32_t x)
{
        if (x > marked || x > k || k - x > n - marked)
                return 0;
        double log = log_choose(f, marked, x) + log_choose(f, n - marked, k - x) - log_choose(f, n, k);
        return mfl_exact_exp(MFL_MIN(log, 0.0));
}

static double at_least(const struct factorials *f, uint32_t n, uint32_t marked, uint32_t k, uint32_t x)
{
        double sum = 0;
        for (uint32_t i = k + 1; i-- > x;) /* the small ones first */
                sum += probability(f, n, marked, k, i);
        return sum;
}

static double below(const struct factorials *f, uint32_t n, uint32_t marked, uint32_t k, uint32_t x)
{
        double sum = 0;
        for (uint32_t i = 0; i < x && i <= k; i++)
                sum += probability(f, n, marked, k, i);
        return sum;
}

/* To cut a Harary graph, k/2 members in a row must be gone at two places of the ring: n (n - k - 1) / 2 pairs of places. */
static bool stays_connected(const struct factorials *f, uint32_t n, uint32_t gone, uint32_t k)
{
        if (k > gone)
                return true;
        double log = mfl_exact_log(n) + mfl_exact_log(n - k - 1) - mfl_exact_log(2) +
                     log_choose(f, n - k, gone - k) - log_choose(f, n, gone);
        return log < -SECURITY_BITS * mfl_exact_log(2);
}

/* 0: no threshold is good enough. One of the n looks at its k neighbours among the others. */
static uint32_t threshold(const struct factorials *f, uint32_t n, uint32_t bad, uint32_t lost, uint32_t k)
{
        double security = ldexp(1.0, -SECURITY_BITS - TRIES_BITS) / n,
               failure = ldexp(1.0, -FAILURE_BITS) / n;
        uint32_t t = (k + MFL_SECURE_LEAST) / 2 + 1; /* at least one bad neighbour */
        if (!stays_connected(f, n, MFL_MIN(bad + lost, n), k))
                return 0;
        while (t <= k && at_least(f, n - 1, bad, k, 2 * t - k - MFL_SECURE_LEAST) > security)
                t++;
        return t <= k && below(f, n - 1, n - 1 - lost, k, t) <= failure ? t : 0;
}

/* Each with each: bad members are fewer than 2t - n. 0: too many are lost then. */
static uint32_t threshold_of_all(uint32_t n, uint32_t bad, uint32_t lost)
{
        uint32_t t = MFL_MAX(2 * n / 3 + 1, (n + bad) / 2 + 1);
        return n <= MFL_SECURE_COMPLETE ? MFL_MIN(t, n) : t + lost <= n ? t : 0;
}

static bool find_sparse(uint32_t n, uint32_t bad, uint32_t lost, uint32_t *ret_k, uint32_t *ret_t)
{
        struct factorials f;
        find_factorials(&f, n);
        for (uint32_t k = 2; k < n - 1 && k < MFL_SHAMIR_SHARES_MAX; k += 2) {
                uint32_t t = threshold(&f, n, bad, lost, k);
                if (!t)
                        continue;
                *ret_k = k;
                *ret_t = t;
                return true;
        }
        return false;
}

int mfl_secure_degree(const struct mfl_secure_spec *spec, uint32_t n, uint32_t *ret_k, uint32_t *ret_t,
        struct mfl_error *err)
{
        if (n < MFL_SECURE_LEAST)
                return mfl_fail(err, MFL_INVALID,
                        "a secure sum needs at least %u participants, and there are %u", MFL_SECURE_LEAST, n);
        if (n > MFL_SECURE_MEMBERS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "a secure sum has at most %u participants, and there are %u", MFL_SECURE_MEMBERS_MAX,
                        n);
        uint32_t bad = (uint32_t)floor(spec->bad * n + SMALL), lost = (uint32_t)floor(spec->lost * n + SMALL);
        if (n > MFL_SECURE_COMPLETE && find_sparse(n, bad, lost, ret_k, ret_t))
                return 0;
        uint32_t t = n <= MFL_SHAMIR_SHARES_MAX ? threshold_of_all(n, bad, lost) : 0;
        if (t) {
                *ret_k = n - 1;
                *ret_t = t;
                return 0;
        }
        return mfl_fail(err, MFL_INVALID,
                "no graph of %u participants stands %g%% of bad and %g%% of lost ones: lower secure_sum.bad "
                "or "
                "secure_sum.lost",
                n, spec->bad * 100, spec->lost * 100);
}

/* ---- the ring ---- */

struct ticket {
        uint8_t digest[MFL_SHA256_BYTES];
        uint32_t member;
};

static int compare_tickets(const void *a, const void *b)
{
        return memcmp(a, b, MFL_SHA256_BYTES);
}

int mfl_secure_graph_make(const struct mfl_secure_spec *spec, uint32_t n,
        const uint8_t transcript[MFL_SECURE_KEY_BYTES], struct mfl_secure_graph *ret_graph,
        struct mfl_error *err)
{
        struct mfl_secure_graph *graph = ret_graph;
        int r = mfl_secure_degree(spec, n, &graph->k, &graph->t, err);
        if (r)
                return r;
        graph->n = n;
        MFL_CLEANUP_FREE struct ticket *tickets = mfl_calloc(n, sizeof *tickets);
        if (!tickets)
                return mfl_fail_memory(err, n * sizeof *tickets, "a ring");
        for (uint32_t i = 0; i < n && !r; i++) {
                uint8_t text[MFL_SECURE_KEY_BYTES + 8] = "";
                memcpy(text, "ring", 4);
                memcpy(text + 4, transcript, MFL_SECURE_KEY_BYTES);
                for (int b = 0; b < 4; b++)
                        text[MFL_SECURE_KEY_BYTES + 4 + b] = (uint8_t)(i >> 8 * b);
                tickets[i].member = i;
                r = mfl_sha256(text, sizeof text, tickets[i].digest, err);
        }
        if (r)
                return r;
        qsort(tickets, n, sizeof *tickets, compare_tickets);
        for (uint32_t p = 0; p < n; p++) {
                graph->order[p] = (uint16_t)tickets[p].member;
                graph->place[tickets[p].member] = (uint16_t)p;
        }
        return 0;
}

bool mfl_secure_are_neighbours(const struct mfl_secure_graph *graph, uint32_t a, uint32_t b)
{
        mfl_assert(a < graph->n && b < graph->n && a != b);
        uint32_t distance = (graph->place[b] + graph->n - graph->place[a]) % graph->n;
        return graph->k == graph->n - 1 || MFL_MIN(distance, graph->n - distance) <= graph->k / 2;
}

/* Its place on the ring, beginning with the owner. */
uint32_t mfl_secure_share_number(const struct mfl_secure_graph *graph, uint32_t owner, uint32_t holder)
{
        if (owner == holder)
                return 1;
        if (!mfl_secure_are_neighbours(graph, owner, holder))
                return 0;
        uint32_t distance = (graph->place[holder] + graph->n - graph->place[owner]) % graph->n;
        if (graph->k == graph->n - 1 || distance <= graph->k / 2)
                return 1 + distance;
        return 1 + graph->k / 2 + (graph->n - distance);
}
