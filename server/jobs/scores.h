/* SPDX-License-Identifier: Apache-2.0 */
/* What the clients of evaluations have scored, as bytes that the store keeps with the round. */
#ifndef MFL_SERVER_JOBS_SCORES_H
#define MFL_SERVER_JOBS_SCORES_H

#include "proto/wire.h"
#include "server/jobs/job.h"

/* Packs them; the caller frees the bytes. -ENOMEM. */
int mfl_job_scores_pack(
        const struct mfl_round_scores *scores, void **ret_bytes, size_t *ret_n, struct mfl_error *err);
/* The newest ones of a job, read from the store on the disk worker. *ret_scores NULL: there are none. Codes of store.h.
 * Free them with mfl_job_scores_free, which accepts NULL. */
int mfl_job_scores_read(
        struct mfl_store *store, const char *id, Mfl__RoundScores **ret_scores, struct mfl_error *err);
void mfl_job_scores_free(Mfl__RoundScores *scores);

#endif
