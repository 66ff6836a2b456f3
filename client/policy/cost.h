/* SPDX-License-Identifier: Apache-2.0 */
/* What rows of a site's ledger (client/policy/ledger.h) cost together. Pure but for memory; any thread. */
#ifndef MFL_CLIENT_POLICY_COST_H
#define MFL_CLIENT_POLICY_COST_H

#include "client/policy/ledger.h"

/* Of a data set's rows, and of one more that is not among them; NULL: of them alone. No row: 0. */
int mfl_site_epsilon(const struct mfl_ledger_row *rows, uint32_t n, const struct mfl_ledger_row *more,
        const char *data, double delta, double *ret_epsilon, struct mfl_error *err);
/* How many releases count. */
uint64_t mfl_site_releases(const struct mfl_ledger_row *rows, uint32_t n, const char *data);

#endif
