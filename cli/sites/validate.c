/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl validate MODEL...`: each model on the test samples of each site, one table; and `mfl predict MODEL --at SITE`. */
#include <inttypes.h>

#include "cli/base/json.h"
#include "cli/pull/pull.h"
#include "cli/sites/sites.h"
#include "proto/json/json_sites.h"

static int ask(struct mfl_client *client, Mfl__InquiryKind kind, const char *model,
        Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        struct mfl_cli *cli = client->cli;
        Mfl__Inquire inquire = MFL__INQUIRE__INIT;
        char job[MFL_JOB_ID_BYTES] = "";
        int64_t round = MFL_PULL_LAST;
        const bool file = kind == MFL__INQUIRY_KIND__INQUIRY_EVALUATE && mfl_sites_is_file(model);
        int r = file ? 0 : mfl_sites_model(client, model, job, &round, err);
        if (!r && *job)
                r = mfl_pull_round(cli->options.round, &round, err);
        if (!r && cli->options.n_data > 1)
                r = mfl_fail(err, MFL_CLI_USAGE, "--data: give one name of a data set of the sites");
        inquire.kind = kind;
        inquire.job = job;
        if (!*job && !file)
                inquire.model = (char *)(uintptr_t)model;
        inquire.round = round;
        inquire.deadline_s = mfl_sites_deadline(cli);
        if (cli->options.at)
                inquire.at = (char *)(uintptr_t)cli->options.at;
        if (cli->options.n_data)
                inquire.data = (char *)(uintptr_t)cli->options.data[0];
        if (r)
                return r;
        return file ? mfl_sites_ask_file(client, model, &inquire, ret_answer, err)
                    : mfl_sites_ask(client, &inquire, ret_answer, err);
}

/* ---- JSON ---- */

static int print_json(const struct mfl_sites_table *t, struct mfl_error *err)
{
        json_t *models = json_array();
        for (uint32_t k = 0; k < t->n; k++)
                json_array_append_new(models, mfl_json_report(t->names[k], t->reports[k]));
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
        if (!mfl_site_told(site))
                printf(" %10s %10s", site && site->few ? "few" : "-", "-");
        else if (report->no_accuracy)
                printf(" %10.4f %10s", mfl_site_loss(site), "-");
        else
                printf(" %10.4f %10.4f", mfl_site_loss(site), mfl_site_accuracy(site));
}

static void print_row(const struct mfl_sites_table *t, const char *name,
        const Mfl__InquirySite *(*find)(const struct mfl_sites_table *t, uint32_t k, const char *name))
{
        uint64_t samples = 0;
        for (uint32_t k = 0; k < t->n; k++) {
                const Mfl__InquirySite *site = find(t, k, name);
                samples = mfl_site_told(site) ? MFL_MAX(samples, site->samples) : samples;
        }
        printf("%-20.20s %9" PRIu64, name, samples);
        for (uint32_t k = 0; k < t->n; k++)
                print_scores(t->reports[k], find(t, k, name));
        putchar('\n');
}

static const Mfl__InquirySite *find_site(const struct mfl_sites_table *t, uint32_t k, const char *name)
{
        return site_of(t->reports[k], name);
}

static const Mfl__InquirySite *find_few(const struct mfl_sites_table *t, uint32_t k, const char *name)
{
        return t->reports[k]->few;
}

static const Mfl__InquirySite *find_all(const struct mfl_sites_table *t, uint32_t k, const char *name)
{
        static Mfl__InquirySite all;
        mfl_report_all(t->reports[k], &all);
        return &all;
}

static void print_sites(const struct mfl_sites_table *t)
{
        for (uint32_t k = 0; k < t->n; k++)
                for (size_t i = 0; i < t->reports[k]->n_sites; i++) {
                        const char *name = t->reports[k]->sites[i]->site;
                        bool before = false;
                        for (uint32_t j = 0; j < k; j++)
                                before |= find_site(t, j, name) != NULL;
                        if (!before)
                                print_row(t, name, find_site);
                }
}

static int print_people(const struct mfl_sites_table *t, struct mfl_error *err)
{
        bool few = false;
        for (uint32_t k = 0; k < t->n; k++) {
                const Mfl__InquiryReport *r = t->reports[k];
                few |= r->few != NULL;
                printf("%-3u %s", k + 1, *r->model ? r->model : t->names[k]);
                if (*r->job)
                        printf(": round %u of %s", r->round, r->job);
                putchar('\n');
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
                mfl_sites_print_silent(t->reports[k]);
        return mfl_cli_flush(err);
}

int mfl_sites_print(const struct mfl_cli *cli, const struct mfl_sites_table *t, struct mfl_error *err)
{
        return cli->json ? print_json(t, err) : print_people(t, err);
}

/* ---- commands ---- */

/* The first model that no site has answered for; NULL: there is none. */
static const char *unanswered(const struct mfl_sites_table *t)
{
        for (uint32_t k = 0; k < t->n; k++) {
                size_t i = 0;
                while (i < t->reports[k]->n_sites &&
                        t->reports[k]->sites[i]->status != MFL__INQUIRY_STATUS__INQUIRY_ANSWERED)
                        i++;
                if (i == t->reports[k]->n_sites)
                        return t->names[k];
        }
        return NULL;
}

int mfl_cmd_validate(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        Mfl__Envelope *answers[MFL_SITES_MODELS_MAX];
        struct mfl_sites_table t = {0};
        struct mfl_error err;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        while (!r && t.n < MFL_SITES_MODELS_MAX && cli->argument[t.n]) {
                t.names[t.n] = cli->argument[t.n];
                r = ask(&client, MFL__INQUIRY_KIND__INQUIRY_EVALUATE, cli->argument[t.n], &answers[t.n],
                        &err);
                if (!r)
                        t.reports[t.n] = answers[t.n]->inquiry_report;
                t.n += !r;
        }
        if (!r)
                r = mfl_sites_print(cli, &t, &err);
        const char *failed = r ? NULL : unanswered(&t);
        if (failed)
                r = mfl_fail(&err, MFL_CLI_FAILED, "no site has validated %.200s", failed);
        for (uint32_t k = 0; k < t.n; k++)
                mfl_wire_free(answers[k]);
        return mfl_cli_report(cli, r, &err);
}

static int print_predicted(struct mfl_cli *cli, const Mfl__InquiryReport *report, struct mfl_error *err)
{
        json_t *sites = json_array();
        for (size_t i = 0; i < report->n_sites; i++) {
                const Mfl__InquirySite *site = report->sites[i];
                json_t *object = mfl_json_site(site);
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

static bool looks_like_file(const char *text)
{
        const char *dot = strrchr(text, '.');
        return strchr(text, '/') ||
               (dot && (!strcmp(dot, ".safetensors") || !strcmp(dot, ".onnx") || !strcmp(dot, ".npz")));
}

int mfl_cmd_predict_at(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        struct mfl_error err;
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct mfl_sites_table t = {0};
        int r = 0;
        const struct mfl_cli_options *o = &cli->options;
        if (o->out || o->format || o->top >= 0 || o->probabilities || o->logits)
                r = mfl_fail(&err, MFL_CLI_USAGE,
                        "with --at, the answers stay at the site: leave out --output, --format, --top, "
                        "--probabilities and --logits");
        else if (o->backend || o->precision || o->threads >= 0)
                r = mfl_fail(&err, MFL_CLI_USAGE,
                        "with --at, the site's daemon computes, in fp32: leave out --backend, --precision "
                        "and --threads");
        else if (looks_like_file(cli->argument[0]))
                r = mfl_fail(&err, MFL_CLI_USAGE,
                        "with --at, the model is a job's or a registered one, which the site gets from the "
                        "server; "
                        "%.200s is a file. `mfl validate` takes files",
                        cli->argument[0]);
        if (!r)
                r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = ask(&client, MFL__INQUIRY_KIND__INQUIRY_PREDICT, cli->argument[0], &answer, &err);
        t.names[0] = cli->argument[0];
        t.n = !r;
        if (!r) {
                t.reports[0] = answer->inquiry_report;
                r = print_predicted(cli, t.reports[0], &err);
        }
        if (!r && unanswered(&t))
                r = mfl_fail(&err, MFL_CLI_FAILED, "no site has predicted");
        return mfl_cli_report(cli, r, &err);
}
