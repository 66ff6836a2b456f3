/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous jobs in virtual time: who trains when, and from which version of the params. A version is what a committed round
 * has made; version 0 are the initial params. Up to C clients train at once (mfl_job_concurrency). Version v is made of the
 * first B updates to arrive (mfl_job_buffer) since version v - 1 was made:
 *
 *      time stands at t, and the newest version is v - 1
 *      arrivals   who is done by t arrives, in the order of (end, client). The B-th ends this: v is made at t
 *      starts     free places are filled with clients that neither train nor are in the buffer, and are on at t; they start
 *                 from v - 1. They are drawn uniformly from the stream (seed, MFL_RNG_SELECT, v, 2^32 * draw), draw counting
 *                 the draws for v from 0; nothing is drawn if all of them find a place
 *      then t becomes the next time at which a client is done, or, with places left free, comes on
 *
 * An update whose client started from version u has the staleness v - 1 - u. Where that is above `staleness_max`, or the client
 * goes off or exceeds limits.virtual_deadline before it is done, its place becomes free and the update is dropped: nobody
 * trains it. (Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: "Federated Learning with Buffered Asynchronous
 * Aggregation", AISTATS 2022, algorithm 1; Xie, Koyejo, Gupta: "Asynchronous Federated Optimization", 2019, has B = 1.)
 *
 * Real time (time: real) has no t. Version v is made of the first B updates to arrive since version v - 1 was made, in an order that
 * is recorded (struct mfl_arrival). When v - 1 is made, free places are filled, drawn from the same stream with draw 0; who came in
 * has left its place, and who is too stale for v leaves it. Made again from the record, a version's places hold those whose
 * arrival is still to come.
 *
 * What is under way when a version is made is a table of C + 1 rows, which is stored with the version. Pure, except for
 * allocation; any thread.
 */
#ifndef MFL_COMMON_COHORT_CALENDAR_H
#define MFL_COMMON_COHORT_CALENDAR_H

#include "common/cohort/cohort.h"

union mfl_calendar_row {
        struct {
                uint64_t client; /* 1 + its number; 0: a free place */
                uint64_t start_us, end_us;
                uint32_t base; /* the version that it started from */
                uint32_t lost; /* it will not be done */
        };
        uint64_t now_us; /* of row 0 */
        int64_t word[4];
};

/* One update of a version that was made in real time, and the version that its client had started from. */
struct mfl_arrival {
        uint64_t client;
        uint32_t version, base;
};

/* C + 1; 0: the job is not asynchronous. */
uint32_t mfl_calendar_rows(const struct mfl_job *job);
/* Before version 1. NULL: out of memory. The caller frees it. */
union mfl_calendar_row *mfl_calendar_new(const struct mfl_job *job);
/* Makes version ask->round: its cohort, with the clients' bases, and what is under way then. rows and ret_rows may not be the
 * same. MFL_INVALID: the buffer never fills, or the rows are impossible. -ENOMEM. */
int mfl_calendar_advance(const struct mfl_cohort_ask *ask, const union mfl_calendar_row *rows,
        union mfl_calendar_row *ret_rows, struct mfl_cohort *ret_cohort, struct mfl_error *err);
/* Real time: fills the places for version ask->round, whose clients' numbers are below ask->population, or among n_sites sites,
 * ascending, where `sites` is given. *ret_dropped: who was too stale. -ENOMEM. */
int mfl_calendar_fill(const struct mfl_cohort_ask *ask, const union mfl_calendar_row *rows,
        const uint64_t *sites, uint32_t n_sites, union mfl_calendar_row *ret_rows, uint32_t *ret_dropped);
/* The same from a record: n arrivals of version ask->round and later ones, ascending by version. MFL_INVALID: it is impossible. */
int mfl_calendar_refill(const struct mfl_cohort_ask *ask, const struct mfl_arrival *arrival, uint32_t n,
        union mfl_calendar_row *ret_rows, struct mfl_error *err);
/* Whether such an arrival of version `version` can be true. */
bool mfl_calendar_arrival_valid(const struct mfl_job *job, const struct mfl_arrival *arrival);
/* The oldest version that somebody under way has started from; `newest` if nobody has an older one. */
uint32_t mfl_calendar_oldest(const struct mfl_job *job, const union mfl_calendar_row *rows, uint32_t newest);
/* Whether rows that were stored with a version can be true of it. */
bool mfl_calendar_valid(const struct mfl_job *job, const union mfl_calendar_row *rows, uint32_t newest);

#endif
