/* SPDX-License-Identifier: Apache-2.0 */
/* An inquiry, and the report that it ends with. Private to this room. */
#ifndef MFL_SERVER_INQUIRY_REPORT_H
#define MFL_SERVER_INQUIRY_REPORT_H

#include "server/inquiry/inquiry.h"

struct mfl_inquiry {
        struct mfl_inquiries *all;
        struct mfl_inquiry_plan plan;
        uint64_t number;
        Mfl__InquiryKind kind;
        char data[MFL_NAME_BYTES], at[MFL_NAME_BYTES], who[MFL_NAME_BYTES], model[2 * MFL_NAME_BYTES];
        char job[MFL_JOB_ID_BYTES], where[MFL_WHERE_BYTES];
        uint32_t round, bins, n_edges;
        char *text;
        struct mfl_params *params; /* NULL: none, or it is over */
        uint64_t n_frozen;
        bool foreign;
        uint8_t digest[MFL_DIGEST_BYTES];
        bool no_accuracy;
        uint32_t scored;
        double *edges;
        struct mfl_stats stats; /* of all that have answered */
        mfl_inquiry_done *done;
        void *user;
        struct mfl_work work;
        Mfl__InquiryReport *report;
        int status;
        struct mfl_error err;
        struct mfl_inquiry *next;
};

/* Sites with few samples are added up, and not told by themselves. On the heap, by itself alone. */
int mfl_inquiry_report_new(
        const struct mfl_inquiry *q, Mfl__InquiryReport **ret_report, struct mfl_error *err);
void mfl_inquiry_report_free(Mfl__InquiryReport *report); /* NULL is fine */
/* On the disk worker: its row; sets its number. */
int mfl_inquiry_report_store(struct mfl_store *store, Mfl__InquiryReport *report, struct mfl_error *err);

#endif
