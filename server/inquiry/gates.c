/* SPDX-License-Identifier: Apache-2.0 */
/* What a version must show before it is promoted. */
#include "server/inquiry/gates.h"

uint32_t mfl_gates_sites(const Mfl__InquiryReport *report)
{
        uint32_t n = 0;
        for (size_t i = 0; i < report->n_sites; i++)
                n += report->sites[i]->status == MFL__INQUIRY_STATUS__INQUIRY_ANSWERED;
        return n;
}

static bool site_accuracy(const Mfl__InquirySite *site, double *ret_accuracy)
{
        if (site->status != MFL__INQUIRY_STATUS__INQUIRY_ANSWERED || !site->samples)
                return false;
        *ret_accuracy = (double)site->correct / (double)site->samples;
        return true;
}

bool mfl_gates_accuracy(const Mfl__InquiryReport *report, double *ret_accuracy)
{
        double samples = report->few ? (double)report->few->samples : 0,
               correct = report->few ? (double)report->few->correct : 0;
        for (size_t i = 0; i < report->n_sites; i++) {
                samples += (double)report->sites[i]->samples;
                correct += (double)report->sites[i]->correct;
        }
        if (samples > 0 && !report->no_accuracy)
                *ret_accuracy = correct / samples;
        return samples > 0 && !report->no_accuracy;
}

static const Mfl__InquirySite *find_site(const Mfl__InquiryReport *report, const char *name)
{
        for (size_t i = 0; i < report->n_sites; i++)
                if (!strcmp(report->sites[i]->site, name))
                        return report->sites[i];
        return NULL;
}

static const char *check_worse(
        double worse_max, const Mfl__InquiryReport *now, const Mfl__InquiryReport *before, char *reason)
{
        if (now->no_accuracy || before->no_accuracy) {
                mfl_strcpy(reason, MFL_REASON_BYTES,
                        "its loss knows no right and wrong, and the gate compares accuracies");
                return "worse";
        }
        if (strcmp(now->data, before->data) != 0) {
                mfl_snprintf(reason, MFL_REASON_BYTES,
                        "it is validated on data set %.100s, and the version before on %.100s", now->data,
                        before->data);
                return "worse";
        }
        for (size_t i = 0; i < before->n_sites; i++) {
                const Mfl__InquirySite *old = before->sites[i], *new = find_site(now, old->site);
                double was, is;
                if (!site_accuracy(old, &was))
                        continue;
                if (!new || !site_accuracy(new, &is)) {
                        mfl_snprintf(reason, MFL_REASON_BYTES,
                                "site %s has validated the version before, and not this one: run mfl "
                                "validate again",
                                old->site);
                        return "worse";
                }
                if (is < was - worse_max) {
                        mfl_snprintf(reason, MFL_REASON_BYTES,
                                "at site %s its accuracy is %.4f, and that of the version before is %.4f: "
                                "worse by more than %g",
                                old->site, is, was, worse_max);
                        return "worse";
                }
        }
        return NULL;
}

static const char *check_accuracy(double least, const Mfl__InquiryReport *now, char *reason)
{
        double accuracy;
        bool known = mfl_gates_accuracy(now, &accuracy);
        if (known && accuracy >= least)
                return NULL;
        if (known)
                mfl_snprintf(reason, MFL_REASON_BYTES, "its accuracy over all sites is %.4f, below %g",
                        accuracy, least);
        else
                mfl_snprintf(reason, MFL_REASON_BYTES,
                        "its validation tells no accuracy, and the gate wants %g", least);
        return "accuracy";
}

const char *mfl_gates_check(const Mfl__ModelGates *gates, const Mfl__InquiryReport *now, bool has_before,
        const Mfl__InquiryReport *before, char ret_reason[MFL_REASON_BYTES])
{
        bool wants_worse = gates->worse_max >= 0 && has_before;
        const char *gate = NULL;
        if (!now && (gates->accuracy > 0 || gates->sites || wants_worse)) {
                mfl_strcpy(ret_reason, MFL_REASON_BYTES, "no site has validated it: run mfl validate first");
                return "validated";
        }
        if (gates->sites && mfl_gates_sites(now) < gates->sites) {
                mfl_snprintf(ret_reason, MFL_REASON_BYTES,
                        "its newest validation is of %u site%s, and the gate wants %u", mfl_gates_sites(now),
                        mfl_gates_sites(now) == 1 ? "" : "s", gates->sites);
                return "sites";
        }
        if (gates->accuracy > 0)
                gate = check_accuracy(gates->accuracy, now, ret_reason);
        if (!gate && wants_worse && !before) {
                mfl_strcpy(ret_reason, MFL_REASON_BYTES,
                        "the version that it would replace was never validated: run mfl validate for it, "
                        "too");
                return "worse";
        }
        return !gate && wants_worse ? check_worse(gates->worse_max, now, before, ret_reason) : gate;
}
