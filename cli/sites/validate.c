/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl validate MODEL...`: each model on the test samples of each site, one table; and `mfl predict MODEL --at SITE`. */
#include <inttypes.h>

#include "cli/base/json.h"
#include "cli/pull/pull.h"
#include "cli/sites/sites.h"

struct table {
        uint32_t n; /* models */
        const char *const *names;
        Mfl__Envelope *answers[MFL_CLI_POSITIONAL_MAX];
};

static const Mfl__InquiryReport *report_of(const struct table *t, uint32_t k)
{
        return t->answers[k]->inquiry_report;
}

static int ask(struct mfl_client *client, Mfl__InquiryKind kind, const char *model,
        Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        struct mfl_cli *cli = client->cli;
        Mfl__Inquire inquire = MFL__INQUIRE__INIT;
        char job[MFL_JOB_ID_BYTES];
        int64_t round;
        int r = mfl_sites_model(client, model, job, &round, err);
        if (!r && *job)
                r = mfl_pull_round(cli->options.round, &round, err);
        if (!r && cli->options.n_data > 1)
                r = mfl_fail(err, MFL_CLI_USAGE, "--data: give one name of a data set of the sites");
        inquire.kind = kind;
        inquire.job = job;
        if (!*job)
                inquire.model = (char *)(uintptr_t)model;
        inquire.round = round;
        inquire.deadline_s = mfl_sites_deadline(cli);
        if (cli->options.at)
                inquire.at = (char *)(uintptr_t)cli->options.at;
        if (cli->options.n_data)
                inquire.data = (char *)(uintptr_t)cli->options.data[0];
        return r ? r : mfl_sites_ask(client, &inquire, ret_answer, err);
}

/* ---- numbers ---- */

static bool told(const Mfl__InquirySite *site)
{
        return site && site->status == MFL__INQUIRY_STATUS__INQUIRY_ANSWERED && site->samples;
}

static double loss_of(const Mfl__InquirySite *site)
{
        return (double)site->loss_sum / 0x1p32 / (double)site->samples;
}

static double accuracy_of(const Mfl__InquirySite *site)
{
        return (double)site->correct / (double)site->samples;
}

/* Of all that were told. */
static void add_all(const Mfl__InquiryReport *report, Mfl__InquirySite *ret_all)
{
        mfl__inquiry_site__init(ret_all);
        ret_all->status = MFL__INQUIRY_STATUS__INQUIRY_ANSWERED;
        for (size_t i = 0; i <= report->n_sites; i++) {
                const Mfl__InquirySite *site = i < report->n_sites ? report->sites[i] : report->few;
                if (!told(site))
                        continue;
                ret_all->samples += site->samples;
                ret_all->loss_sum += site->loss_sum;
                ret_all->correct += site->correct;
        }
}

/* ---- JSON ---- */

static json_t *scores_json(const Mfl__InquiryReport *report, const Mfl__InquirySite *site, json_t *object)
{
        bool known = told(site);
        json_object_set_new(object, "samples", json_integer(known ? (json_int_t)site->samples : 0));
        json_object_set_new(object, "loss", known ? json_real(loss_of(site)) : json_null());
        json_object_set_new(object, "accuracy",
                known && !report->no_accuracy ? json_real(accuracy_of(site)) : json_null());
        return object;
}

static json_t *report_json(const char *name, const Mfl__InquiryReport *report)
{
        char digest[65] = "";
        json_t *sites = json_array();
        Mfl__InquirySite all;
        add_all(report, &all);
        for (size_t i = 0; i < report->digest.len && i < 32; i++)
                snprintf(digest + 2 * i, 3, "%02x", report->digest.data[i]);
        for (size_t i = 0; i < report->n_sites; i++) {
                json_t *site = scores_json(report, report->sites[i], mfl_sites_site_json(report->sites[i]));
                json_object_set_new(site, "few", json_boolean(report->sites[i]->few));
                json_array_append_new(sites, site);
        }
        return json_pack("{ss ss* sI ss ss so so so}", "model", *report->model ? report->model : name, "job",
                *report->job ? report->job : NULL, "round", (json_int_t)report->round, "digest", digest,
                "data", report->data, "sites", sites, "few",
                report->few ? scores_json(report, report->few, json_object()) : json_null(), "all",
                scores_json(report, &all, json_object()));
}

static int print_json(const struct table *t, struct mfl_error *err)
{
        json_t *models = json_array();
        for (uint32_t k = 0; k < t->n; k++)
                json_array_append_new(models, report_json(t->names[k], report_of(t, k)));
        return mfl_json_print(stdout, json_pack("{so}", "models", models), err);
}

/* ---- people ---- */

static const Mfl__InquirySite *site_of(const Mfl__InquiryReport *report, const char *name)
{
        for (size_t i = 0; i < report->n_sites; i++)
                if (!strcmp(report->sites[i]->site, name))
                        return report->sites[i];
        return NULL;
}

static void print_scores(const Mfl__InquiryReport *report, const Mfl__InquirySite *site)
{
        if (!told(site))
                printf(" %10s %10s", site && site->few ? "few" : "-", "-");
        else if (report->no_accuracy)
                printf(" %10.4f %10s", loss_of(site), "-");
        else
                printf(" %10.4f %10.4f", loss_of(site), accuracy_of(site));
}

static void print_row(const struct table *t, const char *name,
        const Mfl__InquirySite *(*find)(const struct table *t, uint32_t k, const char *name))
{
        uint64_t samples = 0;
        for (uint32_t k = 0; k < t->n; k++) {
                const Mfl__InquirySite *site = find(t, k, name);
                samples = told(site) ? MFL_MAX(samples, site->samples) : samples;
        }
        printf("%-20.20s %9" PRIu64, name, samples);
        for (uint32_t k = 0; k < t->n; k++)
                print_scores(report_of(t, k), find(t, k, name));
        putchar('\n');
}

static const Mfl__InquirySite *find_site(const struct table *t, uint32_t k, const char *name)
{
        return site_of(report_of(t, k), name);
}

static const Mfl__InquirySite *find_few(const struct table *t, uint32_t k, const char *name)
{
        return report_of(t, k)->few;
}

static const Mfl__InquirySite *find_all(const struct table *t, uint32_t k, const char *name)
{
        static Mfl__InquirySite all;
        add_all(report_of(t, k), &all);
        return &all;
}

static void print_sites(const struct table *t)
{
        for (uint32_t k = 0; k < t->n; k++)
                for (size_t i = 0; i < report_of(t, k)->n_sites; i++) {
                        const char *name = report_of(t, k)->sites[i]->site;
                        bool before = false;
                        for (uint32_t j = 0; j < k; j++)
                                before |= find_site(t, j, name) != NULL;
                        if (!before)
                                print_row(t, name, find_site);
                }
}

static int print_people(const struct table *t, struct mfl_error *err)
{
        bool few = false;
        for (uint32_t k = 0; k < t->n; k++) {
                const Mfl__InquiryReport *r = report_of(t, k);
                few |= r->few != NULL;
                printf("%-3u %s: round %u of %s\n", k + 1, *r->model ? r->model : t->names[k], r->round,
                        r->job);
        }
        printf("\n%-20s %9s", "SITE", "SAMPLES");
        for (uint32_t k = 0; k < t->n; k++) {
                char loss[16], accuracy[16];
                snprintf(loss, sizeof loss, "LOSS %u", k + 1);
                snprintf(accuracy, sizeof accuracy, "ACC. %u", k + 1);
                printf(" %10s %10s", t->n > 1 ? loss : "LOSS", t->n > 1 ? accuracy : "ACCURACY");
        }
        putchar('\n');
        print_sites(t);
        if (few)
                print_row(t, "sites with few", find_few);
        print_row(t, "all", find_all);
        for (uint32_t k = 0; k < t->n; k++)
                mfl_sites_print_silent(report_of(t, k));
        return mfl_cli_flush(err);
}

/* ---- commands ---- */

static uint32_t answered(const struct table *t)
{
        uint32_t n = 0;
        for (uint32_t k = 0; k < t->n; k++)
                for (size_t i = 0; i < report_of(t, k)->n_sites; i++)
                        n += report_of(t, k)->sites[i]->status == MFL__INQUIRY_STATUS__INQUIRY_ANSWERED;
        return n;
}

int mfl_cmd_validate(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        struct table t = {.names = cli->argument};
        struct mfl_error err;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        while (!r && t.n < MFL_CLI_POSITIONAL_MAX && cli->argument[t.n]) {
                r = ask(&client, MFL__INQUIRY_KIND__INQUIRY_EVALUATE, cli->argument[t.n], &t.answers[t.n],
                        &err);
                t.n += !r;
        }
        if (!r)
                r = cli->json ? print_json(&t, &err) : print_people(&t, &err);
        if (!r && !answered(&t))
                r = mfl_fail(&err, MFL_CLI_FAILED, "no site has validated it");
        for (uint32_t k = 0; k < t.n; k++)
                mfl_wire_free(t.answers[k]);
        return mfl_cli_report(cli, r, &err);
}

static int print_predicted(struct mfl_cli *cli, const Mfl__InquiryReport *report, struct mfl_error *err)
{
        json_t *sites = json_array();
        for (size_t i = 0; i < report->n_sites; i++) {
                const Mfl__InquirySite *site = report->sites[i];
                json_t *object = mfl_sites_site_json(site);
                json_object_set_new(object, "rows", json_integer((json_int_t)site->samples));
                json_array_append_new(sites, object);
                if (!cli->json && site->status == MFL__INQUIRY_STATUS__INQUIRY_ANSWERED)
                        printf("%s: %" PRIu64 " answers of %s, kept there by daemon %s\n", site->site,
                                site->samples, report->data, site->daemon);
        }
        if (cli->json)
                return mfl_json_print(stdout, json_pack("{so}", "sites", sites), err);
        json_decref(sites);
        mfl_sites_print_silent(report);
        return mfl_cli_flush(err);
}

int mfl_cmd_predict_at(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        struct mfl_error err;
        struct table t = {0};
        int r = 0;
        if (cli->options.out || cli->options.format)
                r = mfl_fail(&err, MFL_CLI_USAGE,
                        "with --at, the answers stay at the site: leave out --output and --format");
        if (!r)
                r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = ask(&client, MFL__INQUIRY_KIND__INQUIRY_PREDICT, cli->argument[0], &t.answers[0], &err);
        t.n = !r;
        if (!r)
                r = print_predicted(cli, report_of(&t, 0), &err);
        if (!r && !answered(&t))
                r = mfl_fail(&err, MFL_CLI_FAILED, "no site has predicted");
        mfl_wire_free(t.answers[0]);
        return mfl_cli_report(cli, r, &err);
}
