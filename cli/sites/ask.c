/* SPDX-License-Identifier: Apache-2.0 */
/* Asking sites, and who has not answered. */
#include "cli/pull/pull.h"
#include "cli/sites/sites.h"
#include "proto/version.h"
#include "proto/json/json_sites.h"

#define DEADLINE_S 60u

uint32_t mfl_sites_deadline(const struct mfl_cli *cli)
{
        return cli->options.deadline > 0 ? (uint32_t)cli->options.deadline : DEADLINE_S;
}

int mfl_sites_ask(
        struct mfl_client *client, Mfl__Inquire *inquire, Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        request.body_case = MFL__ENVELOPE__BODY_INQUIRE;
        request.inquire = inquire;
        int r = mfl_client_ask(client, &request, err);
        return r ? r : mfl_sites_answer(client, inquire->deadline_s, ret_answer, err);
}

int mfl_sites_answer(
        struct mfl_client *client, uint32_t deadline_s, Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        int r = mfl_client_next(client, 1000ull * deadline_s + MFL_CLIENT_TIMEOUT_MS, ret_answer, err);
        if (r || (*ret_answer)->body_case == MFL__ENVELOPE__BODY_INQUIRY_REPORT)
                return r;
        return mfl_fail(
                err, MFL_CLI_LOST, "the server has sent another answer than the one that was asked for");
}

int mfl_sites_ask_job(struct mfl_client *client, const char *text, const char *token,
        Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        Mfl__Inquire inquire = MFL__INQUIRE__INIT;
        inquire.kind = MFL__INQUIRY_KIND__INQUIRY_JOB;
        inquire.text = (char *)(uintptr_t)text;
        inquire.token = (char *)(uintptr_t)(token ? token : "");
        inquire.deadline_s = 1;
        *ret_answer = NULL;
        if (client->protocol < MFL_PROTOCOL_INQUIRIES)
                return 0;
        int r = mfl_sites_ask(client, &inquire, ret_answer, err);
        /* What the server says against the question is no reason against the job; a signal and a lost connection are. */
        bool said = r == MFL_INVALID || r == MFL_NOT_FOUND || r == MFL_CLI_CONFLICT || r == MFL_CLI_LIMIT;
        return said ? 0 : r;
}

void mfl_sites_tell_job(struct mfl_cli *cli, const Mfl__InquiryReport *report)
{
        for (size_t i = 0; i < report->n_sites; i++) {
                const Mfl__InquirySite *site = report->sites[i];
                if (site->status == MFL__INQUIRY_STATUS__INQUIRY_REFUSED)
                        mfl_cli_note(cli, "%s would refuse this job: %s", site->site, site->reason);
                else if (site->status == MFL__INQUIRY_STATUS__INQUIRY_ANSWERED && *site->reason)
                        mfl_cli_note(cli, "%s %s", site->site, site->reason);
                else if (site->status != MFL__INQUIRY_STATUS__INQUIRY_ANSWERED)
                        mfl_cli_note(
                                cli, "%s has not said within a second whether it takes this job", site->site);
        }
}

int mfl_sites_enough(const Mfl__InquiryReport *report, const struct mfl_job *job, struct mfl_error *err)
{
        bool local = job->data.partition == MFL_PARTITION_LOCAL;
        uint32_t need = mfl_job_daemons_least(job), all = 0, left = 0;
        for (size_t i = 0; i < report->n_sites; i++) {
                uint32_t n = local ? 1 : report->sites[i]->daemons;
                all += n;
                left += report->sites[i]->status == MFL__INQUIRY_STATUS__INQUIRY_REFUSED ? 0 : n;
        }
        if (left >= need || all < need)
                return 0;
        const char *who = local ? "sites" : "daemons", *later = "use --anyway if others come later";
        if (!left)
                return mfl_fail(err, MFL_INVALID,
                        "not submitted: no connected site with %s would take this job; %s", job->data.name,
                        later);
        return mfl_fail(err, MFL_INVALID,
                "not submitted: a round needs %u %s with %s, and only %u of the %u that are connected would "
                "take this job; %s",
                need, who, job->data.name, left, all, later);
}

int mfl_sites_model(struct mfl_client *client, const char *model, char *ret_job, int64_t *ret_round,
        struct mfl_error *err)
{
        *ret_job = '\0';
        *ret_round = MFL_PULL_LAST;
        if (!strchr(model, '@'))
                return mfl_client_resolve(client, model, ret_job, err);
        if (client->cli->options.round)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--round chooses a model of a job; '%.100s' is a registered model", model);
        return 0;
}

void mfl_sites_print_silent(const Mfl__InquiryReport *report)
{
        for (size_t i = 0; i < report->n_sites; i++) {
                const Mfl__InquirySite *site = report->sites[i];
                if (site->status != MFL__INQUIRY_STATUS__INQUIRY_ANSWERED)
                        fprintf(stderr, "mfl: %s %s%s%s\n", site->site, mfl_site_status(site),
                                *site->reason ? ": " : "",
                                *site->reason       ? site->reason
                                : site->status == 0 ? ": it did not answer in time (--deadline)"
                                                    : "");
        }
}
