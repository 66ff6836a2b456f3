/* SPDX-License-Identifier: Apache-2.0 */
#include "server/jobs/spent.h"

#include "common/privacy/spend.h"

struct parts {
        struct mfl_dp_rounds v[MFL_DP_PARTS_MAX];
        size_t n;
        bool full;
};

static void add_part(struct parts *parts, struct mfl_dp_rounds part)
{
        for (size_t i = 0; i < parts->n; i++)
                if (parts->v[i].sigma == part.sigma && parts->v[i].rate == part.rate) {
                        parts->v[i].rounds += part.rounds;
                        return;
                }
        parts->full |= parts->n == MFL_DP_PARTS_MAX;
        if (!parts->full)
                parts->v[parts->n++] = part;
}

static struct mfl_dp_rounds own_part(const struct mfl_spent_ask *ask, uint64_t releases)
{
        return mfl_privacy_part(&ask->spec->privacy, mfl_job_rate(ask->spec), releases);
}

static int sum(const struct mfl_spent_ask *ask, uint64_t releases, double delta, double *ret_epsilon,
        struct mfl_error *err)
{
        struct mfl_store_spents list = {0};
        struct parts *parts = mfl_calloc(1, sizeof *parts);
        if (!parts)
                return mfl_fail_memory(err, sizeof *parts, "a ledger");
        int r = ask->known ? 0 : mfl_store_spent_list(ask->store, ask->spec->data.name, &list, err);
        const struct mfl_store_spents *rows = ask->known ? ask->known : &list;
        for (uint32_t i = 0; i < rows->n; i++) {
                const struct mfl_store_spent *row = &rows->v[i];
                if (!strcmp(row->data, ask->spec->data.name) && strcmp(row->job, ask->job) != 0)
                        add_part(parts, (struct mfl_dp_rounds){row->sigma, row->rate, row->releases});
        }
        if (releases)
                add_part(parts, own_part(ask, releases));
        if (!r && parts->full)
                r = mfl_fail(err, MFL_INVALID,
                        "privacy_limits: more than %d kinds of jobs have used data set %s", MFL_DP_PARTS_MAX,
                        ask->spec->data.name);
        if (!r)
                r = mfl_privacy_sum(parts->v, parts->n, delta, ret_epsilon, err);
        mfl_store_spents_deinit(&list);
        free(parts);
        return r;
}

int mfl_spent_check(const struct mfl_spent_ask *ask, uint64_t releases, struct mfl_error *err)
{
        const struct mfl_privacy_limit *limit = mfl_privacy_limits_find(ask->limits, ask->spec->data.name);
        double with = 0, without = 0;
        if (!limit)
                return 0;
        int r = sum(ask, releases, limit->delta, &with, err);
        if (r || with <= limit->epsilon)
                return r;
        r = sum(ask, 0, limit->delta, &without, err);
        return r ? r
                 : mfl_fail(err, MFL_INVALID,
                           "data set %s: other jobs have spent epsilon %.4g, and %llu round%s of this one "
                           "would "
                           "bring it to %.4g at delta %g, more than the server's privacy_limits allow, %g "
                           "(mfl privacy ledger)",
                           limit->data, without, (unsigned long long)releases, releases == 1 ? "" : "s", with,
                           limit->delta, limit->epsilon);
}

int mfl_spent_check_plan(const struct mfl_spent_ask *ask, struct mfl_error *err)
{
        const struct mfl_privacy_limit *limit = mfl_privacy_limits_find(ask->limits, ask->spec->data.name);
        const struct mfl_privacy_spec *privacy = &ask->spec->privacy;
        uint64_t releases = ask->spec->rounds;
        if (!limit)
                return 0;
        if (!privacy->kind)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: the server's privacy_limits bound what jobs tell of it, and this job "
                        "has no "
                        "noise: add privacy",
                        limit->data);
        int r = mfl_spent_check(ask, releases, err);
        if (r != MFL_INVALID)
                return r;
        r = mfl_privacy_releases(privacy, mfl_job_rate(ask->spec), ask->spec->rounds, &releases, err);
        return r ? r : mfl_spent_check(ask, MFL_MAX(releases, (uint64_t)1), err);
}

int mfl_spent_add(const struct mfl_spent_ask *ask, uint64_t releases, struct mfl_error *err)
{
        const struct mfl_dp_rounds part = own_part(ask, releases);
        struct mfl_store_spent spent = {.sigma = part.sigma, .rate = part.rate, .releases = part.rounds};
        mfl_strcpy(spent.data, sizeof spent.data, ask->spec->data.name);
        mfl_strcpy(spent.job, sizeof spent.job, ask->job);
        return mfl_store_spend(ask->store, &spent, err);
}
