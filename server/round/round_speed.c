/* SPDX-License-Identifier: Apache-2.0 */
/* How long a client takes on a daemon, for dealing. */
#include "server/round/round_speed.h"

#include "server/round/round_left.h"
#include "server/round/round_share.h"

/* After this many rounds without a client, the measured cost counts for one half. */
#define AGE 32

static struct core_speed *speed_of(const struct core_daemon *daemon, const struct core_job *job, bool train)
{
        struct core_relation *relation = mfl_core_relation_find(daemon, job);
        return !relation ? NULL : train ? &relation->train : &relation->eval;
}

static uint32_t workers(const struct core_daemon *daemon)
{
        return MFL_MAX(daemon->info.workers, 1u);
}

/* ---- guessing ---- */

/* A daemon, to be sorted by kind; within a kind measured ones come first, by their cost for one worker. */
struct kin {
        const struct core_daemon *daemon;
        uint32_t position;
        double per_worker; /* 0: not measured */
};

static int compare_costs(const void *a, const void *b)
{
        const struct kin *x = a, *y = b;
        if ((x->per_worker > 0) != (y->per_worker > 0))
                return x->per_worker > 0 ? -1 : 1;
        if (x->per_worker != y->per_worker)
                return x->per_worker < y->per_worker ? -1 : 1;
        return (x->position > y->position) - (x->position < y->position);
}

static int compare_kinds(const struct kin *x, const struct kin *y)
{
        int r = strcmp(x->daemon->info.backend, y->daemon->info.backend);
        return r ? r : strcmp(x->daemon->info.device, y->daemon->info.device);
}

static int compare_kin(const void *a, const void *b)
{
        int r = compare_kinds(a, b);
        return r ? r : compare_costs(a, b);
}

static double median(const struct kin *v, uint32_t n)
{
        uint32_t known = 0;
        while (known < n && v[known].per_worker > 0)
                known++;
        return known ? v[(known - 1) / 2].per_worker : 0;
}

static int guess(struct core_daemon *const *daemons, uint32_t n, struct mfl_share *shares)
{
        struct kin *v = mfl_malloc(n * sizeof *v);
        if (!v)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++)
                v[i] = (struct kin){daemons[i], i, shares[i].cost * workers(daemons[i])};
        qsort(v, n, sizeof *v, compare_costs);
        double all = median(v, n);
        qsort(v, n, sizeof *v, compare_kin);
        for (uint32_t from = 0, to; from < n; from = to) {
                for (to = from + 1; to < n && compare_kinds(&v[from], &v[to]) == 0; to++)
                        ;
                double one = median(v + from, to - from);
                for (uint32_t i = from; i < to; i++)
                        if (!(v[i].per_worker > 0))
                                shares[v[i].position].cost = (one > 0 ? one : all) / workers(v[i].daemon);
        }
        free(v);
        return 0;
}

int mfl_round_costs(const struct mfl_core *core, const struct core_job *job,
        struct core_daemon *const *daemons, uint32_t n, bool begins, struct mfl_share *ret_shares)
{
        bool train = job->phase == PHASE_TRAIN;
        uint32_t n_known = 0;
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_share *share = &ret_shares[i];
                const struct core_relation *relation = mfl_core_relation_find(daemons[i], job);
                const struct core_speed *speed = speed_of(daemons[i], job, train);
                *share = (struct mfl_share){.probe = begins, .cost = 0};
                if (speed && speed->cost > 0) {
                        share->cost = speed->cost;
                        share->probe = false;
                        n_known++;
                } else if (!begins && (share->cost = mfl_round_cost(core, daemons[i], job)) > 0)
                        n_known++;
                if (relation && begins && train && relation->held_round == job->round) {
                        share->fixed = true;
                        share->n = relation->held_items;
                }
        }
        for (uint32_t i = 0; !n_known && i < n; i++)
                ret_shares[i].cost = 1.0 / workers(daemons[i]);
        if (n_known && n_known < n && guess(daemons, n, ret_shares))
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++) {
                const struct core_speed *speed = speed_of(daemons[i], job, train);
                if (speed)
                        ret_shares[i].cost *= AGE / (double)(AGE + speed->age);
        }
        return 0;
}

void mfl_round_age(const struct core_job *job, struct core_daemon *const *daemons, uint32_t n,
        const struct mfl_share *shares)
{
        for (uint32_t i = 0; i < n; i++) {
                bool train = job->phase == PHASE_TRAIN;
                struct core_relation *relation = mfl_core_relation_find(daemons[i], job);
                struct core_speed *speed = speed_of(daemons[i], job, train);
                if (!relation)
                        continue;
                speed->age = shares[i].n ? 0 : speed->age + 1;
                if (train)
                        relation->held_round = 0; /* another attempt has other clients */
        }
}
