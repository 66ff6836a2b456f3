/* SPDX-License-Identifier: Apache-2.0 */
/* Claims: numbers that daemons report, checked against what is known.
 *
 * Weight and metrics of an update are checked against its clients' samples, and an evaluation against the
 * size of its shards. The samples of clients follow from the partition (iid), from the Hello (local), or from
 * what daemons tell (core_vote.h). The job says how often each sample is trained on, and how many predictions
 * it has. A prediction is right or wrong once, and its loss is at most 2^20 (common/base/fixed.h). A daemon
 * that reports something impossible is accused (ACCUSE) and expelled for good; its clients go to other
 * daemons. An update waits until its clients' samples are known. If one counts and later proves false, the
 * round begins again with the same clients.
 */
#ifndef MFL_SERVER_WORK_CORE_CLAIMS_H
#define MFL_SERVER_WORK_CORE_CLAIMS_H

#include "server/state/state.h"

/* The first three return what is impossible, as text; NULL: nothing is known to be. The task must be the
 * daemon's own. */
const char *mfl_core_claim_update(const struct core_task *task, const struct core_daemon *daemon,
        const struct mfl_announce *announce, char text[MFL_REASON_BYTES]);
const char *mfl_core_claim_score(const struct core_task *task, const struct core_daemon *daemon,
        const struct mfl_eval_item *item, char text[MFL_REASON_BYTES]);
/* The tally of an evaluated shard: job->n_tally numbers. */
const char *mfl_core_claim_tally(const struct core_job *job, const struct mfl_eval_item *item,
        const uint64_t *tally, char text[MFL_REASON_BYTES]);
const char *mfl_core_claim_progress(const struct core_task *task, const struct core_daemon *daemon,
        uint64_t samples, int64_t loss_sum, char text[MFL_REASON_BYTES]);
/* Whether an update's weight can be checked. Until then no update gets a slot. */
bool mfl_core_claims_known(const struct core_job *job);
/* More is known now: checks every update of the round again. */
void mfl_core_claims_check(struct mfl_core *core, struct core_job *job);

#endif
