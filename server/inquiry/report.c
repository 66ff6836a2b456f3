/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of inquiries. */
#include "server/inquiry/report.h"

#include "common/base/bounded.h"
#include "proto/inquiry.h"
#include "proto/stats/stats_wire.h"
#include "server/models/models.h"

static void fill_site(const struct mfl_inquiry_part *part, bool alone, Mfl__InquirySite *site)
{
        mfl__inquiry_site__init(site);
        site->site = (char *)(uintptr_t)part->site;
        site->daemon = (char *)(uintptr_t)part->daemon;
        site->status = (Mfl__InquiryStatus)part->status;
        site->reason = (char *)(uintptr_t)part->reason;
        site->few = part->few;
        if (!alone)
                return;
        site->samples = part->samples;
        site->loss_sum = part->loss_sum;
        site->correct = part->correct;
}

/* A sum over one site would be that site's: then it is not told at all. */
static bool add_few(const struct mfl_inquiry_plan *plan, Mfl__InquirySite *few)
{
        uint32_t n = 0;
        mfl__inquiry_site__init(few);
        few->few = true;
        few->status = MFL__INQUIRY_STATUS__INQUIRY_ANSWERED;
        for (uint32_t i = 0; i < plan->n; i++) {
                if (!plan->parts[i].few)
                        continue;
                n++;
                few->samples += plan->parts[i].samples;
                few->loss_sum = mfl_fixed_loss_add(few->loss_sum, plan->parts[i].loss_sum);
                few->correct += plan->parts[i].correct;
        }
        return n > 1;
}

/* Through its bytes, so that the copy owns all that it points to. */
static int copy(const Mfl__InquiryReport *report, Mfl__InquiryReport **ret_report, struct mfl_error *err)
{
        size_t bytes = mfl__inquiry_report__get_packed_size(report);
        MFL_CLEANUP_FREE uint8_t *packed = mfl_malloc(bytes + 1);
        if (!packed)
                return mfl_fail_memory(err, bytes, "a report");
        mfl__inquiry_report__pack(report, packed);
        *ret_report = mfl__inquiry_report__unpack(NULL, bytes, packed);
        return *ret_report ? 0 : mfl_fail_memory(err, bytes, "a report");
}

int mfl_inquiry_report_new(
        const struct mfl_inquiry *q, Mfl__InquiryReport **ret_report, struct mfl_error *err)
{
        uint32_t n = q->plan.n;
        Mfl__InquiryReport report = MFL__INQUIRY_REPORT__INIT;
        Mfl__InquirySite few;
        MFL_CLEANUP_FREE Mfl__InquirySite *sites = mfl_calloc(n + 1, sizeof *sites);
        MFL_CLEANUP_FREE Mfl__InquirySite **pointers = mfl_calloc(n + 1, sizeof *pointers);
        static const uint8_t none[MFL_DIGEST_BYTES];
        if (!sites || !pointers)
                return mfl_fail_memory(err, n * sizeof *sites, "a report");
        for (uint32_t i = 0; i < n; i++) {
                fill_site(&q->plan.parts[i], !q->plan.parts[i].few, &sites[i]);
                sites[i].daemons = q->kind == MFL__INQUIRY_KIND__INQUIRY_JOB ? q->plan.parts[i].n_daemons : 0;
                pointers[i] = &sites[i];
        }
        report.kind = q->kind;
        report.time_ms = mfl_unix_ms();
        report.who = (char *)(uintptr_t)q->who;
        report.data = (char *)(uintptr_t)q->data;
        report.at = (char *)(uintptr_t)q->at;
        report.job = (char *)(uintptr_t)q->job;
        report.round = q->round;
        report.model = (char *)(uintptr_t)q->model;
        report.no_accuracy = q->no_accuracy;
        if (memcmp(q->digest, none, sizeof none) != 0)
                report.digest = (ProtobufCBinaryData){MFL_DIGEST_BYTES, (uint8_t *)(uintptr_t)q->digest};
        report.n_sites = n;
        report.sites = pointers;
        if (q->kind == MFL__INQUIRY_KIND__INQUIRY_EVALUATE && add_few(&q->plan, &few))
                report.few = &few;
        int r = q->stats.samples ? mfl_stats_to_wire(&q->stats, &report.stats, err) : 0;
        if (!r)
                r = copy(&report, ret_report, err);
        mfl_stats_wire_free(report.stats);
        return r;
}

void mfl_inquiry_report_free(Mfl__InquiryReport *report)
{
        if (report)
                mfl__inquiry_report__free_unpacked(report, NULL);
}

int mfl_inquiry_report_store(struct mfl_store *store, Mfl__InquiryReport *report, struct mfl_error *err)
{
        size_t bytes = mfl__inquiry_report__get_packed_size(report);
        MFL_CLEANUP_FREE uint8_t *packed = mfl_malloc(bytes + 1);
        if (!packed)
                return mfl_fail_memory(err, bytes, "a report");
        mfl__inquiry_report__pack(report, packed);
        /* A model that came with its question is no version, not even with the params of one: its job file makes another function of them. */
        static const uint8_t foreign[MFL_DIGEST_BYTES];
        const uint8_t *found_by = *report->job ? report->digest.data : foreign;
        const struct mfl_store_inquiry row = {.kind = (uint32_t)report->kind,
                .time_ms = report->time_ms,
                .digest = report->digest.len ? found_by : NULL,
                .body = packed,
                .bytes = bytes};
        return mfl_store_inquiry_add(store, &row, &report->number, err);
}
