/* SPDX-License-Identifier: Apache-2.0 */
/* The measures of an evaluation. */
#include "common/measure/measure.h"

#include <stdlib.h>

#include "common/base/fixed.h"

const struct mfl_measure_info mfl_measure_infos[MFL_MEASURES] = {
        [MFL_MEASURE_CLIENT_MEAN] = {"client_mean", "test/client_mean", "clients' mean"},
        [MFL_MEASURE_CLIENT_VARIANCE] = {"client_variance", "test/client_variance", "clients' variance"},
        [MFL_MEASURE_CLIENT_WORST] = {"client_worst", "test/client_worst", "clients' worst 10%"},
        [MFL_MEASURE_CLIENT_BEST] = {"client_best", "test/client_best", "clients' best 10%"},
        [MFL_MEASURE_CLIENT_LOW] = {"client_low", "test/client_low", "clients' low"},
        [MFL_MEASURE_CLIENT_HIGH] = {"client_high", "test/client_high", "clients' high"},
        [MFL_MEASURE_MACRO_F1] = {"macro_f1", "test/macro_f1", "macro F1"},
        [MFL_MEASURE_MAE] = {"mae", "test/mae", "MAE"},
        [MFL_MEASURE_RMSE] = {"rmse", "test/rmse", "RMSE"},
        [MFL_MEASURE_R2] = {"r2", "test/r2", "R2"},
        [MFL_MEASURE_STALENESS_MEAN] = {"staleness_mean", "round/staleness_mean", "staleness"},
        [MFL_MEASURE_STALENESS_MAX] = {"staleness_max", "round/staleness_max", "largest staleness"},
        [MFL_MEASURE_DROPPED] = {"dropped", "round/dropped", "dropped"},
        [MFL_MEASURE_EPSILON] = {"epsilon", "privacy/epsilon", "epsilon"},
        [MFL_MEASURE_BACKDOOR] = {"backdoor", "test/backdoor", "backdoor success"},
        [MFL_MEASURE_CLIP] = {"clip", "privacy/clip", "clip"},
};

/* ---- clients ---- */

__extension__ typedef __int128 wide;

/* a / b against c / d. */
static int compare_ratios(wide a, uint64_t b, wide c, uint64_t d)
{
        wide x = a * (wide)d, y = c * (wide)b;
        return (x > y) - (x < y);
}

/* Who has no samples comes last. order: of two that have some. */
static int compare(const struct mfl_client_score *a, const struct mfl_client_score *b, int order)
{
        if (!a->samples != !b->samples)
                return a->samples ? -1 : 1;
        return a->samples && order ? order : (a->client > b->client) - (a->client < b->client);
}

static int by_accuracy(const void *x, const void *y)
{
        const struct mfl_client_score *a = x, *b = y;
        return compare(a, b, compare_ratios((wide)a->correct, a->samples, (wide)b->correct, b->samples));
}

static int by_loss(const void *x, const void *y)
{
        const struct mfl_client_score *a = x, *b = y;
        return compare(a, b, compare_ratios(b->loss_sum, b->samples, a->loss_sum, a->samples));
}

static double score_of(const struct mfl_client_score *s, bool has_accuracy)
{
        double sum = has_accuracy ? (double)s->correct : mfl_fixed_loss_to_double(s->loss_sum);
        return sum / (double)s->samples;
}

static double mean_of(const struct mfl_client_score *v, uint32_t n, bool has_accuracy)
{
        double sum = 0;
        for (uint32_t i = 0; i < n; i++)
                sum += score_of(&v[i], has_accuracy);
        return sum / n;
}

static void fill_bins(const struct mfl_client_score *v, uint32_t n, bool has_accuracy, struct mfl_measures *m)
{
        double low = has_accuracy ? 0 : score_of(&v[n - 1], false),
               high = has_accuracy ? 1 : score_of(&v[0], false);
        mfl_measure_set(m, MFL_MEASURE_CLIENT_LOW, low);
        mfl_measure_set(m, MFL_MEASURE_CLIENT_HIGH, high);
        for (uint32_t i = 0; i < n; i++) {
                double share = high > low ? (score_of(&v[i], has_accuracy) - low) / (high - low) : 0;
                m->bins[MFL_MIN((uint32_t)(share * MFL_SCORE_BINS), MFL_SCORE_BINS - 1u)]++;
        }
}

void mfl_measure_clients(
        struct mfl_client_score *v, uint32_t n, bool has_accuracy, struct mfl_measures *measures)
{
        if (n)
                qsort(v, n, sizeof *v, has_accuracy ? by_accuracy : by_loss);
        while (n && !v[n - 1].samples)
                n--;
        measures->clients = n;
        if (!n)
                return;
        double mean = mean_of(v, n, has_accuracy), squares = 0;
        uint32_t tenth = (n + 9) / 10;
        for (uint32_t i = 0; i < n; i++) {
                double distance = score_of(&v[i], has_accuracy) - mean;
                squares += distance * distance;
        }
        mfl_measure_set(measures, MFL_MEASURE_CLIENT_MEAN, mean);
        mfl_measure_set(measures, MFL_MEASURE_CLIENT_VARIANCE, squares / n);
        mfl_measure_set(measures, MFL_MEASURE_CLIENT_WORST, mean_of(v, tenth, has_accuracy));
        mfl_measure_set(measures, MFL_MEASURE_CLIENT_BEST, mean_of(v + n - tenth, tenth, has_accuracy));
        fill_bins(v, n, has_accuracy, measures);
}

/* ---- metrics of plug-ins ---- */

bool mfl_metric_get(const struct mfl_metrics *metrics, uint32_t k, char ret_name[64], double *ret_value)
{
        const char *at = k < metrics->n ? metrics->names : NULL;
        for (uint32_t i = 0; i < k && at; i++)
                at = (at = strchr(at, ',')) ? at + 1 : NULL;
        if (!at || !*at)
                return false;
        mfl_snprintf(ret_name, 64, "%.*s", (int)strcspn(at, ","), at);
        *ret_value = metrics->v[k];
        return true;
}
