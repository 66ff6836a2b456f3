/* SPDX-License-Identifier: Apache-2.0 */
/* Measures beside the loss and the accuracy, and what each site scores. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "cli/base/table.h"
#include "cli/view/views.h"
#include "proto/json/json.h"

/* Shown in a row of numbers; the others are for JSON, CSV and the histogram. */
static bool is_shown(enum mfl_measure kind)
{
        return kind != MFL_MEASURE_CLIENT_VARIANCE && kind != MFL_MEASURE_CLIENT_LOW &&
               kind != MFL_MEASURE_CLIENT_HIGH;
}

const char *mfl_view_measures(
        const struct mfl_measures *m, const char *separator, char *buf, size_t buf_bytes)
{
        size_t n = 0;
        buf[0] = '\0';
        for (int k = 0; k < MFL_MEASURES && n < buf_bytes; k++) {
                if (mfl_measure_known(m, (enum mfl_measure)k) && is_shown((enum mfl_measure)k))
                        n += (size_t)snprintf(buf + n, buf_bytes - n,
                                k >= MFL_MEASURE_STALENESS_MEAN ? "%s%s %.6g" : "%s%s %.4f", separator,
                                mfl_measure_infos[k].label, m->v[k]);
        }
        return buf;
}

const char *mfl_view_metrics(
        const struct mfl_metrics *metrics, const char *separator, char *buf, size_t buf_bytes)
{
        char name[64];
        double value;
        size_t n = 0;
        *buf = '\0';
        for (uint32_t k = 0; mfl_metric_get(metrics, k, name, &value) && n < buf_bytes; k++)
                if (isfinite(value))
                        n += (size_t)mfl_snprintf(
                                buf + n, buf_bytes - n, "%s%s %.4f", separator, name, value);
        return buf;
}

static void put_clients(FILE *f, const Mfl__RoundInfo *r, const struct mfl_measures *m)
{
        const char *what = r->no_accuracy ? "loss" : "accuracy";
        fprintf(f,
                "clients: round %u on %u clients: mean %s %.4f (%.4f by samples), variance %.6f, worst 10%% "
                "%.4f, "
                "best 10%% %.4f\n",
                r->round, m->clients, what, m->v[MFL_MEASURE_CLIENT_MEAN],
                r->no_accuracy ? r->loss : r->accuracy, m->v[MFL_MEASURE_CLIENT_VARIANCE],
                m->v[MFL_MEASURE_CLIENT_WORST], m->v[MFL_MEASURE_CLIENT_BEST]);
        fprintf(f, "clients by %s, from %.4g to %.4g:", what, m->v[MFL_MEASURE_CLIENT_LOW],
                m->v[MFL_MEASURE_CLIENT_HIGH]);
        for (int i = 0; i < MFL_SCORE_BINS; i++)
                fprintf(f, " %u", m->bins[i]);
        fputc('\n', f);
}

/* The sites' own rows; nothing for clients that have no names. */
static int put_sites(FILE *f, const Mfl__RoundScores *scores, bool no_accuracy, int columns)
{
        static const struct mfl_table_column columns_of[] = {
                {"SITE", false, 0}, {"SAMPLES", true, 0}, {"ACCURACY", true, 0}, {"LOSS", true, 0}};
        struct mfl_table table = {.columns = columns_of, .n_columns = MFL_ARRAY_SIZE(columns_of)};
        for (size_t i = 0; scores && i < scores->n_clients; i++) {
                const Mfl__ClientScore *c = scores->clients[i];
                char samples[24], accuracy[24] = "n/a", loss[24];
                if (!*c->site || !c->samples)
                        continue;
                snprintf(samples, sizeof samples, "%" PRIu64, c->samples);
                if (!no_accuracy)
                        snprintf(accuracy, sizeof accuracy, "%.4f", (double)c->correct / (double)c->samples);
                snprintf(loss, sizeof loss, "%.4f", (double)c->loss_sum * 0x1p-32 / (double)c->samples);
                mfl_table_add(&table, (const char *const[]){c->site, samples, accuracy, loss});
        }
        MFL_CLEANUP_FREE char *rows = table.n_rows ? mfl_table_render(&table, columns) : mfl_strdup("");
        mfl_table_deinit(&table);
        if (rows)
                fputs(rows, f);
        return rows ? 0 : -ENOMEM;
}

#define CONFUSION_SHOWN 20

/* A row per label, a column per prediction. */
static void put_confusion(FILE *f, const Mfl__RoundScores *scores)
{
        uint32_t n = scores->classes;
        int width = 1;
        if (n > CONFUSION_SHOWN) {
                fprintf(f, "confusion matrix: %u classes; mfl show --json prints it\n", n);
                return;
        }
        for (uint32_t i = 0; i < n * n; i++)
                width = MFL_MAX(width, snprintf(NULL, 0, "%" PRIu64, scores->confusion[i]));
        fputs("confusion matrix: a row for each class, a column for each prediction\n", f);
        for (uint32_t c = 0; c < n; c++) {
                fprintf(f, "%5u ", c);
                for (uint32_t p = 0; p < n; p++)
                        fprintf(f, " %*" PRIu64, width, scores->confusion[c * n + p]);
                fputc('\n', f);
        }
}

char *mfl_view_scores(const Mfl__JobDetail *detail, int columns)
{
        size_t i = detail->n_rounds, bytes = 0;
        char *text = NULL;
        while (i && !detail->rounds[i - 1]->evaluated)
                i--;
        struct mfl_measures m = i ? mfl_round_measures(detail->rounds[i - 1]) : (struct mfl_measures){0};
        if (!m.known)
                return mfl_strdup("");
        FILE *f = open_memstream(&text, &bytes);
        if (!f)
                return NULL;
        const Mfl__RoundInfo *r = detail->rounds[i - 1];
        const Mfl__RoundScores *scores = detail->scores;
        int failed = 0;
        if (scores && scores->round != r->round)
                scores = NULL;
        if (m.clients)
                put_clients(f, r, &m);
        if (m.clients)
                failed = put_sites(f, scores, r->no_accuracy, columns);
        for (int k = MFL_MEASURE_MACRO_F1; k < MFL_MEASURES; k++)
                if (mfl_measure_known(&m, (enum mfl_measure)k))
                        fprintf(f, "%s: round %u: %.6g\n", mfl_measure_infos[k].label, r->round, m.v[k]);
        char name[64];
        double value;
        struct mfl_metrics metrics = mfl_round_metrics(r);
        for (uint32_t k = 0; mfl_metric_get(&metrics, k, name, &value); k++)
                if (isfinite(value))
                        fprintf(f, "metric %s: round %u: %.6g\n", name, r->round, value);
        if (scores && scores->classes)
                put_confusion(f, scores);
        if (fclose(f) || failed) {
                free(text);
                return NULL;
        }
        return text;
}
