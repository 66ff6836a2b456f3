/* SPDX-License-Identifier: Apache-2.0 */
#include "client/service/private.h"

static int charge(void *user, const struct mfl_site_release *release, struct mfl_error *err)
{
        struct mfl_client_private *private = user;
        struct mfl_ledger_row row = {.sigma = release->sigma, .rate = 1};
        if (!mfl_ledger_name(&row, release->data))
                return mfl_fail(
                        err, MFL_INVALID, "the data set's name has other characters than A-Za-z0-9._-:");
        memcpy(row.name, release->name, sizeof row.name);
        return mfl_ledger_charge(private->ledger, &row, err);
}

int mfl_client_private_open(
        struct mfl_client_private *private, const char *name, struct mfl_gate *gate, struct mfl_error *err)
{
        const struct mfl_policy *policy = mfl_gate_policy(gate);
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s.noise.key", policy->dir, name);
        if (!path)
                return mfl_fail_memory(err, strlen(policy->dir), "a path");
        int r = mfl_secret_open(path, &private->secret, err);
        if (r)
                return r;
        private->ledger = mfl_gate_ledger(gate);
        private->site = (struct mfl_site_privacy){.rule = policy->rule,
                .withholds = mfl_policy_withholds(policy),
                .secret = &private->secret,
                .charge = charge,
                .user = private};
        return 0;
}
