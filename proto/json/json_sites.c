/* SPDX-License-Identifier: Apache-2.0 */
/* Registered models as JSON. */
#include "proto/json/json_sites.h"

#include <stdio.h>

#include "common/base/digest.h"

static void write_digest(const ProtobufCBinaryData *digest, char ret_hex[MFL_SHA256_HEX_BYTES])
{
        *ret_hex = '\0';
        if (digest->len == MFL_SHA256_BYTES)
                mfl_hex(digest->data, MFL_SHA256_BYTES, ret_hex);
}

json_t *mfl_json_version(const Mfl__ModelVersion *v)
{
        char digest[MFL_SHA256_HEX_BYTES];
        json_t *aliases = json_array();
        for (size_t i = 0; i < v->n_aliases; i++)
                json_array_append_new(aliases, json_string(v->aliases[i]));
        write_digest(&v->digest, digest);
        return json_pack("{ss sI ss sI ss ss sI so so so sI}", "name", v->name, "version",
                (json_int_t)v->version, "job", v->job, "round", (json_int_t)v->round, "digest", digest, "who",
                v->who, "time_ms", (json_int_t)v->time_ms, "aliases", aliases, "accuracy",
                mfl_json_number(v->evaluated, v->accuracy), "loss", mfl_json_number(v->evaluated, v->loss),
                "validated", (json_int_t)v->validated);
}

/* ---- reports ---- */

const char *mfl_site_status(const Mfl__InquirySite *site)
{
        switch (site->status) {
        case MFL__INQUIRY_STATUS__INQUIRY_ANSWERED:
                return "answered";
        case MFL__INQUIRY_STATUS__INQUIRY_REFUSED:
                return "refused";
        case MFL__INQUIRY_STATUS__INQUIRY_FAILED:
                return "failed";
        default:
                return "silent";
        }
}

bool mfl_site_told(const Mfl__InquirySite *site)
{
        return site && site->status == MFL__INQUIRY_STATUS__INQUIRY_ANSWERED && site->samples;
}

double mfl_site_loss(const Mfl__InquirySite *site)
{
        return (double)site->loss_sum / 0x1p32 / (double)site->samples;
}

double mfl_site_accuracy(const Mfl__InquirySite *site)
{
        return (double)site->correct / (double)site->samples;
}

void mfl_report_all(const Mfl__InquiryReport *report, Mfl__InquirySite *ret_all)
{
        mfl__inquiry_site__init(ret_all);
        ret_all->status = MFL__INQUIRY_STATUS__INQUIRY_ANSWERED;
        for (size_t i = 0; i <= report->n_sites; i++) {
                const Mfl__InquirySite *site = i < report->n_sites ? report->sites[i] : report->few;
                if (!mfl_site_told(site))
                        continue;
                ret_all->samples += site->samples;
                ret_all->loss_sum += site->loss_sum;
                ret_all->correct += site->correct;
        }
}

json_t *mfl_json_site(const Mfl__InquirySite *site)
{
        return json_pack("{ss ss ss ss}", "site", site->site, "daemon", site->daemon, "status",
                mfl_site_status(site), "reason", site->reason);
}

static json_t *add_scores(const Mfl__InquiryReport *report, const Mfl__InquirySite *site, json_t *object)
{
        const bool known = mfl_site_told(site);
        json_object_set_new(object, "samples", json_integer(known ? (json_int_t)site->samples : 0));
        json_object_set_new(object, "loss", mfl_json_number(known, known ? mfl_site_loss(site) : 0));
        json_object_set_new(object, "accuracy",
                mfl_json_number(known && !report->no_accuracy, known ? mfl_site_accuracy(site) : 0));
        return object;
}

json_t *mfl_json_report(const char *name, const Mfl__InquiryReport *report)
{
        char digest[MFL_SHA256_HEX_BYTES];
        json_t *sites = json_array();
        Mfl__InquirySite all;
        mfl_report_all(report, &all);
        write_digest(&report->digest, digest);
        for (size_t i = 0; i < report->n_sites; i++) {
                json_t *site = add_scores(report, report->sites[i], mfl_json_site(report->sites[i]));
                json_object_set_new(site, "few", json_boolean(report->sites[i]->few));
                json_array_append_new(sites, site);
        }
        return json_pack("{ss so sI ss ss so so so sI sI ss}", "model", *report->model ? report->model : name,
                "job", mfl_json_text(report->job), "round", (json_int_t)report->round, "digest", digest,
                "data", report->data, "sites", sites, "few",
                report->few ? add_scores(report, report->few, json_object()) : json_null(), "all",
                add_scores(report, &all, json_object()), "number", (json_int_t)report->number, "time_ms",
                (json_int_t)report->time_ms, "who", report->who);
}

/* ---- who serves ---- */

json_t *mfl_json_serving(const Mfl__Serving *s)
{
        return json_pack("{ss ss so sI so sI sI so so ss ss ss sI}", "name", s->name, "model", s->follows,
                "job", mfl_json_text(s->job), "round", (json_int_t)s->round, "version",
                mfl_json_text(s->version), "requests", (json_int_t)s->requests, "failed",
                (json_int_t)s->failed, "p50_us",
                s->p50_us ? json_integer((json_int_t)s->p50_us) : json_null(), "p99_us",
                s->p99_us ? json_integer((json_int_t)s->p99_us) : json_null(), "host", s->host, "who", s->who,
                "address", s->address, "time_ms", (json_int_t)s->time_ms);
}
