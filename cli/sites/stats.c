/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl data stats NAME`: what the sites' training samples add up to.
 *
 * First sums; then a histogram over the range that they showed; then each quantile by histograms of the part that it lies in, until it is narrow, or until
 * sites keep counts to themselves. Every histogram is an inquiry of its own. */
#include <math.h>

#include "cli/base/json.h"
#include "cli/sites/quantile.h"
#include "cli/sites/sites.h"
#include "proto/json/json_sites.h"
#include "common/stats/stats.h"
#include "proto/inquiry.h"
#include "proto/stats/stats_wire.h"

#define BINS 64u
#define DEVIATIONS 8 /* of the range, where sites keep their extremes */

struct asking {
        struct mfl_cli *cli;
        struct mfl_client client;
        Mfl__Inquire inquire;
        Mfl__Envelope *first; /* the report of the sums */
        struct mfl_stats sums, bins;
        double *edges; /* of `bins` */
        struct mfl_quantile *quantiles;
};

static int ask_stats(struct asking *a, uint32_t bins, double *edges, Mfl__Envelope **ret_answer,
        struct mfl_stats *ret_stats, struct mfl_error *err)
{
        Mfl__Envelope *answer = NULL;
        a->inquire.bins = bins;
        a->inquire.edges = bins ? edges : NULL;
        a->inquire.n_edges = bins ? 2 * (size_t)a->sums.n_features : 0;
        int r = mfl_sites_ask(&a->client, &a->inquire, &answer, err);
        if (!r && !answer->inquiry_report->stats)
                r = mfl_fail(
                        err, MFL_CLI_FAILED, "no site has told statistics of data set %s", a->inquire.data);
        if (r == MFL_CLI_FAILED)
                mfl_sites_print_silent(answer->inquiry_report);
        if (!r)
                r = mfl_stats_from_wire(answer->inquiry_report->stats, ret_stats, err);
        if (!r && bins && (ret_stats->n_features != a->sums.n_features || ret_stats->n_bins != bins + 2)) {
                mfl_stats_deinit(ret_stats);
                r = mfl_fail(err, MFL_CLI_LOST, "the sites' histograms are not those that were asked for");
        }
        if (!r && ret_answer)
                *ret_answer = answer;
        else
                mfl_wire_free(answer);
        return r;
}

/* The range of a feature, in the units that histograms have. */
static void range_of(const struct mfl_stats *s, uint32_t f, double *ret_low, double *ret_high)
{
        const struct mfl_stats_feature *feature = &s->features[f];
        double mean = 0, std = 0, unit = mfl_stats_unit(s, feature);
        if (feature->count)
                mfl_stats_moments(s, feature, &mean, &std);
        *ret_low = feature->has_range ? (double)feature->least * unit : mean - DEVIATIONS * std;
        *ret_high = feature->has_range ? (double)feature->most * unit : mean + DEVIATIONS * std;
}

static uint32_t bins_wanted(const struct asking *a)
{
        uint32_t most = MFL_STATS_BINS_MAX / MFL_MAX(a->sums.n_features, 1u) - 2;
        return MFL_MIN(a->cli->options.bins > 0 ? (uint32_t)a->cli->options.bins : BINS, most);
}

static int ask_histogram(struct asking *a, struct mfl_error *err)
{
        uint32_t n = a->sums.n_features;
        a->edges = mfl_calloc(2 * (size_t)n + 1, sizeof *a->edges);
        if (!a->edges)
                return mfl_fail_memory(err, 2 * n * sizeof *a->edges, "a histogram");
        for (uint32_t f = 0; f < n; f++)
                range_of(&a->sums, f, &a->edges[f], &a->edges[n + f]);
        return n ? ask_stats(a, bins_wanted(a), a->edges, NULL, &a->bins, err) : 0;
}

/* One quantile of all features, from the histogram on. */
static int narrow(struct asking *a, uint32_t which, double *edges, struct mfl_error *err)
{
        uint32_t n = a->sums.n_features;
        for (;;) {
                bool more = false;
                struct mfl_stats part = {0};
                for (uint32_t f = 0; f < n; f++) {
                        const struct mfl_quantile *q = &a->quantiles[f * MFL_QUANTILES + which];
                        more |= !q->done;
                        edges[f] = q->low;
                        edges[n + f] = q->high;
                }
                if (!more)
                        return 0;
                int r = ask_stats(a, bins_wanted(a), edges, NULL, &part, err);
                for (uint32_t f = 0; f < n && !r; f++)
                        mfl_quantile_step(
                                &a->quantiles[f * MFL_QUANTILES + which], part.features[f].bins, part.n_bins);
                mfl_stats_deinit(&part);
                if (r)
                        return r;
        }
}

static int ask_quantiles(struct asking *a, struct mfl_error *err)
{
        uint32_t n = a->sums.n_features;
        MFL_CLEANUP_FREE double *edges = mfl_calloc(2 * (size_t)n + 1, sizeof *edges);
        a->quantiles = mfl_calloc((size_t)n * MFL_QUANTILES + 1, sizeof *a->quantiles);
        if (!edges || !a->quantiles)
                return mfl_fail_memory(err, n * sizeof *a->quantiles, "quantiles");
        for (uint32_t f = 0; f < n; f++)
                for (uint32_t k = 0; k < MFL_QUANTILES; k++) {
                        struct mfl_quantile *q = &a->quantiles[f * MFL_QUANTILES + k];
                        mfl_quantile_begin(q, mfl_quantile_shares[k], a->sums.features[f].count, a->edges[f],
                                a->edges[n + f]);
                        mfl_quantile_step(q, a->bins.features[f].bins, a->bins.n_bins);
                }
        for (uint32_t k = 0; k < MFL_QUANTILES; k++) {
                int r = n ? narrow(a, k, edges, err) : 0;
                if (r)
                        return r;
        }
        return 0;
}

/* ---- output ---- */

static json_t *number(bool known, double value)
{
        json_t *v = known ? json_real(value) : NULL;
        return v ? v : json_null();
}

static json_t *feature_json(const struct asking *a, uint32_t f)
{
        const struct mfl_stats_feature *feature = &a->sums.features[f], *histogram = &a->bins.features[f];
        double mean = 0, std = 0, unit = mfl_stats_unit(&a->sums, feature);
        json_t *bins = json_array(), *quantiles = json_object();
        if (feature->count)
                mfl_stats_moments(&a->sums, feature, &mean, &std);
        for (uint32_t b = 0; b < a->bins.n_bins; b++)
                json_array_append_new(bins, json_integer((json_int_t)histogram->bins[b]));
        for (uint32_t k = 0; k < MFL_QUANTILES; k++) {
                const struct mfl_quantile *q = &a->quantiles[f * MFL_QUANTILES + k];
                json_object_set_new(quantiles, mfl_quantile_names[k],
                        json_pack("{so so}", "value", number(q->known, (q->low + q->high) / 2), "within",
                                number(q->known, (q->high - q->low) / 2)));
        }
        return json_pack("{ss* sI sf sf sf sf so so so sf sf so}", "name",
                *feature->name ? feature->name : NULL, "count", (json_int_t)feature->count, "mean", mean,
                "std", std, "sum", mfl_wide_sum(&feature->sum) * unit, "squares",
                mfl_wide_squares(&feature->squares) * unit * unit, "least",
                number(feature->has_range, (double)feature->least * unit), "most",
                number(feature->has_range, (double)feature->most * unit), "quantiles", quantiles, "low",
                a->edges[f], "high", a->edges[a->sums.n_features + f], "bins", bins);
}

static int print_json(const struct asking *a, struct mfl_error *err)
{
        const Mfl__InquiryReport *report = a->first->inquiry_report;
        json_t *features = json_array(), *labels = json_array(), *sites = json_array();
        for (uint32_t f = 0; f < a->sums.n_features; f++)
                json_array_append_new(features, feature_json(a, f));
        for (uint32_t c = 0; c < a->sums.n_labels; c++)
                json_array_append_new(labels, json_integer((json_int_t)a->sums.labels[c]));
        for (size_t i = 0; i < report->n_sites; i++) {
                json_t *site = mfl_json_site(report->sites[i]);
                json_object_set_new(site, "samples", json_integer((json_int_t)report->sites[i]->samples));
                json_array_append_new(sites, site);
        }
        return mfl_json_print(stdout,
                json_pack("{ss sI so so sI so}", "data", a->inquire.data, "samples",
                        (json_int_t)a->sums.samples, "features", features, "labels", labels, "hidden",
                        (json_int_t)(a->sums.hidden + a->bins.hidden), "sites", sites),
                err);
}

static void print_cell(bool known, double value)
{
        if (known)
                printf(" %12.6g", value);
        else
                printf(" %12s", "-");
}

/* A search that small counts have stopped tells a part of the range, not a value. */
static void print_quantile(const struct mfl_quantile *q)
{
        double middle = (q->low + q->high) / 2, within = (q->high - q->low) / 2;
        char text[32];
        if (!q->known || within <= 1e-5 * q->width) {
                print_cell(q->known, middle);
                return;
        }
        snprintf(text, sizeof text, "%.5g+-%.2g", middle, within);
        printf(" %12s", text);
}

static void print_feature(const struct asking *a, uint32_t f)
{
        const struct mfl_stats_feature *feature = &a->sums.features[f];
        double mean = 0, std = 0, unit = mfl_stats_unit(&a->sums, feature);
        char name[24];
        if (feature->count)
                mfl_stats_moments(&a->sums, feature, &mean, &std);
        snprintf(name, sizeof name, "%u", f);
        printf("%-20.20s %12llu", *feature->name ? feature->name : name, (unsigned long long)feature->count);
        print_cell(feature->count > 0, mean);
        print_cell(feature->count > 0, std);
        print_cell(feature->has_range, (double)feature->least * unit);
        for (uint32_t k = 0; k < MFL_QUANTILES; k++)
                print_quantile(&a->quantiles[f * MFL_QUANTILES + k]);
        print_cell(feature->has_range, (double)feature->most * unit);
        putchar('\n');
}

static void print_bins(const struct asking *a)
{
        for (uint32_t f = 0; f < a->sums.n_features && a->cli->options.bins > 0; f++) {
                printf("\n%u: [%g, %g]:", f, a->edges[f], a->edges[a->sums.n_features + f]);
                for (uint32_t b = 0; b < a->bins.n_bins; b++)
                        printf(" %llu", (unsigned long long)a->bins.features[f].bins[b]);
                putchar('\n');
        }
}

static int print_people(const struct asking *a, struct mfl_error *err)
{
        const Mfl__InquiryReport *report = a->first->inquiry_report;
        uint32_t n = 0;
        for (size_t i = 0; i < report->n_sites; i++)
                n += report->sites[i]->status == MFL__INQUIRY_STATUS__INQUIRY_ANSWERED;
        printf("%s: %llu training samples at %u site%s\n", a->inquire.data,
                (unsigned long long)a->sums.samples, n, n == 1 ? "" : "s");
        if (a->sums.n_features)
                printf("%-20s %12s %12s %12s %12s %12s %12s %12s %12s\n", "FEATURE", "COUNT", "MEAN",
                        "DEVIATION", "LEAST", "25%", "MEDIAN", "75%", "MOST");
        for (uint32_t f = 0; f < a->sums.n_features; f++)
                print_feature(a, f);
        print_bins(a);
        for (uint32_t c = 0; c < a->sums.n_labels; c++)
                printf("%s%u: %llu", c ? ", " : "labels: ", c, (unsigned long long)a->sums.labels[c]);
        if (a->sums.n_labels)
                putchar('\n');
        if (a->sums.hidden || a->bins.hidden)
                printf("%u counts are 0 here because sites keep them: they are too small\n",
                        a->sums.hidden + a->bins.hidden);
        mfl_sites_print_silent(report);
        return mfl_cli_flush(err);
}

int mfl_cmd_stats(struct mfl_cli *cli)
{
        struct asking a = {.cli = cli, .client = {.cli = cli}, .inquire = MFL__INQUIRE__INIT};
        struct mfl_error err;
        a.inquire.kind = MFL__INQUIRY_KIND__INQUIRY_STATS;
        a.inquire.data = (char *)(uintptr_t)cli->argument[1];
        a.inquire.deadline_s = mfl_sites_deadline(cli);
        if (cli->options.at)
                a.inquire.at = (char *)(uintptr_t)cli->options.at;
        int r = mfl_client_open(&a.client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = ask_stats(&a, 0, NULL, &a.first, &a.sums, &err);
        if (!r)
                r = ask_histogram(&a, &err);
        if (!r)
                r = ask_quantiles(&a, &err);
        if (!r)
                r = cli->json ? print_json(&a, &err) : print_people(&a, &err);
        mfl_client_close(&a.client);
        mfl_wire_free(a.first);
        mfl_stats_deinit(&a.sums);
        mfl_stats_deinit(&a.bins);
        free(a.quantiles);
        free(a.edges);
        return mfl_cli_report(cli, r, &err);
}
