/* SPDX-License-Identifier: Apache-2.0 */
/* Whom an inquiry asks, and when it is over. Pure: no I/O, no clock.
 *
 * Data are asked about once: daemons whose data sets have one fingerprint hold the same samples, and form a part; any of them may answer
 * for it. A part whose daemon is lost is asked again, of that daemon or of another one of the part, until it has answered or time is up. */
#ifndef MFL_SERVER_INQUIRY_PLAN_H
#define MFL_SERVER_INQUIRY_PLAN_H

#include "proto/message.h"

/* A daemon that can be asked now. */
struct mfl_inquiry_daemon {
        char name[MFL_NAME_BYTES], site[MFL_NAME_BYTES]; /* site: its own name, if it says none */
        uint32_t conn, train_samples, test_samples;
        uint64_t fingerprint;
};

enum mfl_inquiry_status { /* the numbers are those of the wire */
        MFL_INQUIRY_WAITS = 0,
        MFL_INQUIRY_ANSWERED = 1,
        MFL_INQUIRY_REFUSED = 2,
        MFL_INQUIRY_FAILED = 3,
};
struct mfl_inquiry_part {
        char site[MFL_NAME_BYTES], daemon[MFL_NAME_BYTES]; /* daemon: that was asked last; "": none */
        uint64_t fingerprint;
        uint32_t conn, train_samples, test_samples; /* conn: of the daemon that is asked; 0: none */
        uint32_t n_daemons;                         /* that hold it */
        enum mfl_inquiry_status status;
        char reason[MFL_REASON_BYTES];
        uint64_t samples, correct;
        int64_t loss_sum;
        bool few;
};
struct mfl_inquiry_plan {
        uint32_t n;
        struct mfl_inquiry_part *parts; /* by site, then by fingerprint */
        uint64_t until_ms;
};

/* Whether PATTERN ("": any) with '*' and '?' matches the daemon's name or its site. */
bool mfl_inquiry_matches(const char *pattern, const struct mfl_inquiry_daemon *daemon);
/* daemons: those that match. -ENOMEM. */
int mfl_inquiry_plan_init(struct mfl_inquiry_plan *plan, const struct mfl_inquiry_daemon *daemons, uint32_t n,
        uint64_t until_ms);
void mfl_inquiry_plan_deinit(struct mfl_inquiry_plan *plan);
/* The daemon to ask for a part, which becomes the one that is asked; NULL: it has been asked, is answered, or nobody is there. */
const struct mfl_inquiry_daemon *mfl_inquiry_next(
        struct mfl_inquiry_plan *plan, uint32_t part, const struct mfl_inquiry_daemon *daemons, uint32_t n);
/* The part that this connection is asked for; NULL: none. */
struct mfl_inquiry_part *mfl_inquiry_asked(const struct mfl_inquiry_plan *plan, uint32_t conn);
bool mfl_inquiry_over(const struct mfl_inquiry_plan *plan, uint64_t now_ms);

#endif
