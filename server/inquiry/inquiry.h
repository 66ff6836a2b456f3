/* SPDX-License-Identifier: Apache-2.0 */
/* Inquiries (mfl.proto, INQUIRIES): questions to sites about their data, beside all jobs.
 *
 *     operator or job --- mfl_inquiry_start ---> plan --- Inquiry ---> daemons
 *                                                  ^                      |
 *                    InquiryModel, InquiryAnswer --+----------------------+
 *     the report <--- disk worker: its row <--- all parts have answered, or the deadline
 *
 * Ways to fail: no daemon has the data set; too many inquiries; the disk. An inquiry does not survive the server's end: who asked has to
 * ask again, and a job that needs it does. Loop thread only. */
#ifndef MFL_SERVER_INQUIRY_INQUIRY_H
#define MFL_SERVER_INQUIRY_INQUIRY_H

#include "common/stats/stats.h"
#include "proto/wire.h"
#include "server/inquiry/plan.h"
#include "server/runtime/runtime.h"
#include "server/session/session.h"
#include "server/store/store.h"

#define MFL_INQUIRIES_MAX 16 /* at a time */

struct mfl_inquiry;

struct mfl_inquiries {
        struct mfl_loop *loop;
        struct mfl_store *store;
        struct mfl_sessions *sessions;
        /* Private. */
        struct mfl_inquiry *first;
        uint32_t n;
        uint64_t last;
};

/* What is asked. Copied. */
struct mfl_inquiry_question {
        Mfl__InquiryKind kind;
        const char *data, *at, *who, *model; /* model: "NAME@version", or "" */
        const char *job;                     /* whose round it is, or that needs the answer; "" */
        const char *where;                   /* JOB: its selection.where */
        uint32_t round;
        uint64_t within_ms;
        /* EVALUATE, PREDICT; JOB: text alone. params: a reference of the inquiry's own from here on. */
        const char *text;
        struct mfl_params *params;
        uint64_t n_frozen;
        uint8_t digest[MFL_DIGEST_BYTES];
        bool foreign; /* EVALUATE: the model is none of this server's: sites may refuse it */
        bool no_accuracy;
        uint32_t scored; /* EVALUATE: predictions of a sample, at most; 0: not known */
        /* STATS */
        uint32_t bins, n_edges;
        const double *edges;
};
/* Called once, when its report is stored (of JOB: made), unless the server ends before. report: valid during the call. stats: of STATS. */
typedef void mfl_inquiry_done(void *user, const Mfl__InquiryReport *report, const struct mfl_stats *stats);

/* MFL_NOT_FOUND: no daemon that matches has the data set; MFL_BUSY: too many inquiries; -ENOMEM. done is called only after success. */
int mfl_inquiry_start(struct mfl_inquiries *inquiries, const struct mfl_inquiry_question *question,
        mfl_inquiry_done *done, void *user, struct mfl_error *err);
/* How many sites with a data set of that name there are now, as a job with partition local counts them; equal data at two sites are two. */
uint32_t mfl_inquiry_sites(const struct mfl_inquiries *inquiries, const char *data);
/* A few times a second: asks again, and ends what is late. */
void mfl_inquiries_beat(struct mfl_inquiries *inquiries);
/* Of a daemon. MFL_INVALID: it says what can't be true. */
int mfl_inquiry_model_get(
        struct mfl_inquiries *inquiries, struct mfl_session *session, const Mfl__InquiryModelGet *get);
int mfl_inquiry_take(struct mfl_inquiries *inquiries, struct mfl_session *session,
        const Mfl__InquiryAnswer *answer, struct mfl_error *err);
void mfl_inquiries_close(struct mfl_inquiries *inquiries); /* before the loop's end; nobody is told */

#endif
