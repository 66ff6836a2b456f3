/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the site's noise (client/noise/site.h) with the site's key and ledger in policy.dir. */
#ifndef MFL_CLIENT_SERVICE_PRIVATE_H
#define MFL_CLIENT_SERVICE_PRIVATE_H

#include "client/policy/gate.h"
#include "client/noise/site.h"

struct mfl_client_private {
        struct mfl_site_privacy site; /* the trainer's */
        struct mfl_secret secret;
        struct mfl_ledger *ledger;
};

/* Opens the key DIR/NAME.noise.key, or makes one. Blocks; before the first task. The gate outlives it. MFL_INVALID: not a key. */
int mfl_client_private_open(
        struct mfl_client_private *private, const char *name, struct mfl_gate *gate, struct mfl_error *err);

#endif
