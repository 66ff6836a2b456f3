/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl model reports`: validations that the server keeps; and `mfl model serving`: who serves what. */
#include <inttypes.h>
#include <time.h>

#include "cli/base/json.h"
#include "cli/sites/sites.h"
#include "proto/json/json_sites.h"

static void print_date(uint64_t time_ms)
{
        const time_t t = (time_t)(time_ms / 1000);
        char date[32] = "-";
        struct tm tm;
        if (localtime_r(&t, &tm))
                strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
        printf("%-16s", date);
}

/* ---- reports ---- */

/* The newest validations; digest NULL: of all models. Free the answer with mfl_wire_free. */
static int list(struct mfl_client *client, const ProtobufCBinaryData *digest, uint32_t count,
        Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        Mfl__ListInquiries body = MFL__LIST_INQUIRIES__INIT;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        body.kind = MFL__INQUIRY_KIND__INQUIRY_EVALUATE;
        body.count = count;
        if (digest)
                body.digest = *digest;
        request.body_case = MFL__ENVELOPE__BODY_LIST_INQUIRIES;
        request.list_inquiries = &body;
        return mfl_client_call(client, &request, MFL__ENVELOPE__BODY_INQUIRY_LIST, ret_answer, err);
}

static void print_report(const Mfl__InquiryReport *report)
{
        uint32_t n = 0;
        uint64_t samples = 0, correct = 0;
        char round[96];
        for (size_t i = 0; i <= report->n_sites; i++) {
                const Mfl__InquirySite *site = i < report->n_sites ? report->sites[i] : report->few;
                n += site && site != report->few && site->status == MFL__INQUIRY_STATUS__INQUIRY_ANSWERED;
                samples += site ? site->samples : 0;
                correct += site ? site->correct : 0;
        }
        snprintf(round, sizeof round, *report->job ? "%s round %u" : "(a file)", report->job, report->round);
        printf("%6" PRIu64 " ", report->number);
        print_date(report->time_ms);
        printf(" %-24.24s %-22.22s %5u %9" PRIu64, *report->model ? report->model : "-", round, n, samples);
        if (samples && !report->no_accuracy)
                printf(" %9.4f", (double)correct / (double)samples);
        else
                printf(" %9s", "-");
        printf("  %s\n", report->who);
}

static int newest(struct mfl_client *client, struct mfl_error *err)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        int r = list(client, NULL, 0, &answer, err);
        if (r)
                return r;
        const Mfl__InquiryList *all = answer->inquiry_list;
        if (client->cli->json) {
                json_t *reports = json_array();
                for (size_t i = 0; i < all->n_reports; i++)
                        json_array_append_new(reports, mfl_json_report("", all->reports[i]));
                return mfl_json_print(stdout, json_pack("{so}", "reports", reports), err);
        }
        printf("%6s %-16s %-24s %-22s %5s %9s %9s  %s\n", "REPORT", "DATE", "MODEL", "OF", "SITES", "SAMPLES",
                "ACCURACY", "WHO");
        for (size_t i = 0; i < all->n_reports; i++)
                print_report(all->reports[i]);
        return mfl_cli_flush(err);
}

static bool is_wanted(const Mfl__ModelVersion *version, const char *which)
{
        char number[16];
        snprintf(number, sizeof number, "%u", version->version);
        if (!which || !strcmp(which, number))
                return true;
        for (size_t i = 0; i < version->n_aliases; i++)
                if (!strcmp(version->aliases[i], which))
                        return true;
        return false;
}

/* The newest validation of each version, the newest versions last; those that fit into a table. */
static int of_versions(struct mfl_client *client, const Mfl__Registry *registry, const char *which,
        struct mfl_sites_table *t, Mfl__Envelope **answers, struct mfl_error *err)
{
        int r = 0;
        for (size_t i = registry->n_versions; i-- > 0 && !r && t->n < MFL_SITES_MODELS_MAX;) {
                const Mfl__ModelVersion *version = registry->versions[i];
                if (!is_wanted(version, which))
                        continue;
                r = list(client, &version->digest, 1, &answers[t->n], err);
                if (r || !answers[t->n]->inquiry_list->n_reports) {
                        if (!r)
                                mfl_wire_free(answers[t->n]);
                        continue;
                }
                t->names[t->n] = version->name;
                t->reports[t->n] = answers[t->n]->inquiry_list->reports[0];
                t->n++;
        }
        for (uint32_t i = 0; i < t->n / 2; i++) { /* answers stay in their order: they are only freed */
                const uint32_t k = t->n - 1 - i;
                const Mfl__InquiryReport *report = t->reports[i];
                t->reports[i] = t->reports[k];
                t->reports[k] = report;
        }
        return r;
}

int mfl_sites_reports(struct mfl_client *client, struct mfl_error *err)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct mfl_cli *cli = client->cli;
        const char *model = cli->argument[1], *at = model ? strchr(model, '@') : NULL;
        Mfl__Envelope *answers[MFL_SITES_MODELS_MAX];
        struct mfl_sites_table t = {0};
        Mfl__ListRegistry body = MFL__LIST_REGISTRY__INIT;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        char name[MFL_NAME_BYTES];
        if (!model)
                return newest(client, err);
        mfl_snprintf(name, sizeof name, "%.*s", at ? (int)(at - model) : 63, model);
        body.name = name;
        request.body_case = MFL__ENVELOPE__BODY_LIST_REGISTRY;
        request.list_registry = &body;
        int r = mfl_client_call(client, &request, MFL__ENVELOPE__BODY_REGISTRY, &answer, err);
        if (!r)
                r = of_versions(client, answer->registry, at ? at + 1 : NULL, &t, answers, err);
        if (!r && !t.n)
                r = mfl_fail(err, MFL_NOT_FOUND,
                        "there is no validation of '%.100s'; 'mfl validate' makes one, and 'mfl model list' "
                        "lists models",
                        model);
        if (!r)
                r = mfl_sites_print(cli, &t, err);
        for (uint32_t k = 0; k < t.n; k++)
                mfl_wire_free(answers[k]);
        return r;
}

/* ---- serving ---- */

static void print_serving(const Mfl__Serving *s)
{
        char round[96];
        snprintf(round, sizeof round, *s->job ? "%s round %u" : "-", s->job, s->round);
        printf("%-16.16s %-20.20s %-16.16s %-24.24s %-22.22s %10" PRIu64 " %6" PRIu64, s->who, s->host,
                s->name, s->follows, round, s->requests, s->failed);
        if (s->p50_us)
                printf(" %9.2f %9.2f\n", (double)s->p50_us / 1000, (double)s->p99_us / 1000);
        else
                printf(" %9s %9s\n", "-", "-");
}

int mfl_sites_serving(struct mfl_client *client, struct mfl_error *err)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        Mfl__ListServing body = MFL__LIST_SERVING__INIT;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        request.body_case = MFL__ENVELOPE__BODY_LIST_SERVING;
        request.list_serving = &body;
        int r = mfl_client_call(client, &request, MFL__ENVELOPE__BODY_SERVING_LIST, &answer, err);
        if (r)
                return r;
        const Mfl__ServingList *all = answer->serving_list;
        if (client->cli->json) {
                json_t *serving = json_array();
                for (size_t i = 0; i < all->n_serving; i++)
                        json_array_append_new(serving, mfl_json_serving(all->serving[i]));
                return mfl_json_print(stdout, json_pack("{so}", "serving", serving), err);
        }
        printf("%-16s %-20s %-16s %-24s %-22s %10s %6s %9s %9s\n", "WHO", "HOST", "NAME", "FOLLOWS", "SERVES",
                "REQUESTS", "FAILED", "P50 MS", "P99 MS");
        for (size_t i = 0; i < all->n_serving; i++)
                print_serving(all->serving[i]);
        return mfl_cli_flush(err);
}
