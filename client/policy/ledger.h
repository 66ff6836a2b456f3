/* SPDX-License-Identifier: Apache-2.0 */
/* The site's own account of what its data have told, over jobs, servers and restarts: policy.dir/ledger, mode 0600, one line per
 * release, which only grows. All daemons whose policies have one `dir` share it; a lock on the file keeps them apart.
 *
 * Two kinds of releases:
 *   own       this daemon's noise is in what leaves (client/noise/site.h). Each line is one release of the Gaussian mechanism
 *   promised  the server says that it adds noise (privacy: {kind: central}). All rounds of a job up to the latest that
 *             the daemon worked for count, since whoever was not drawn is hidden by that; and a round again for each other params
 *             with which it was trained again. This trusts the server's word
 *
 * What they cost together: exact without sampling (common/privacy/gaussian.h), and otherwise by Renyi's divergence, an upper bound that takes
 * no time to speak of (mfl_dp_rdp_epsilon).
 *
 * Any thread. Blocks for a durable write of some hundred bytes. */
#ifndef MFL_CLIENT_POLICY_LEDGER_H
#define MFL_CLIENT_POLICY_LEDGER_H

#include "common/base/base.h"
#include "common/base/digest.h"
#include "proto/message.h"

struct mfl_ledger;

struct mfl_ledger_row {
        char data[MFL_NAME_BYTES];
        double sigma;                   /* noise / sensitivity */
        double rate;                    /* of clients in a round; 1: no sampling, or own noise */
        uint32_t round;                 /* promised: the job's; own: 0 */
        uint8_t job[MFL_SHA256_BYTES];  /* promised: of the job; own: zeros */
        uint8_t name[MFL_SHA256_BYTES]; /* equal names are one release */
};

struct mfl_ledger_limit {
        double epsilon, delta; /* epsilon 0: rows are written, and nothing is refused */
};

/* The row's data set; of a program's own data, what mfl_job_program_offer says. "" is "-". False: it is not a name that a line can have. */
bool mfl_ledger_name(struct mfl_ledger_row *row, const char *data);

/* MFL_INVALID for a file that can't be read as a ledger; negative for one that can't be opened. */
int mfl_ledger_open(const char *dir, const struct mfl_ledger_limit *limit, struct mfl_ledger **ret_ledger,
        struct mfl_error *err);
void mfl_ledger_close(struct mfl_ledger *ledger); /* NULL is fine */

/* Writes the row down, unless its name is there already. MFL_INVALID: with it the data set's epsilon would pass the limit, or it
 * can't be written; then there is no row, and nothing may be released. */
int mfl_ledger_charge(struct mfl_ledger *ledger, const struct mfl_ledger_row *row, struct mfl_error *err);
/* The same without the writing, for a row whose name (and, of own noise, value) does not exist yet. */
int mfl_ledger_check(struct mfl_ledger *ledger, const struct mfl_ledger_row *row, struct mfl_error *err);
/* One line for each data set: "scans: 12 releases, epsilon 3.41 of 8 at delta 1e-05". On the heap. */
int mfl_ledger_text(struct mfl_ledger *ledger, char **ret_text, struct mfl_error *err);

#endif
