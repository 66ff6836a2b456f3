/* SPDX-License-Identifier: Apache-2.0 */
/* A metric as a plug-in: the mean F-beta of the classes (van Rijsbergen 1979).
 *
 *      F_c = (1 + b^2) both / ((1 + b^2) both + b^2 (labels - both) + (predictions - both))
 *
 * over the classes that are a label or a prediction. beta above 1 weighs recall more than precision; 1 is macro F1.
 *
 * Build: cc -shared -fPIC -O2 -ffp-contract=off -o f-beta.so f_beta.c
 * job: evaluation: {metrics: [{name: f-beta, settings: {beta: 2}}]} */
#include <math.h>
#include <mfl/metric.h>

enum { BETA };

static const struct mfl_plugin_number settings[] = {[BETA] = {"beta", 1, 0, 100}};

static double measure(const struct mfl_metric_call *call)
{
        double b2 = call->settings[BETA] * call->settings[BETA], sum = 0;
        uint32_t n = call->classes, seen = 0;
        for (uint32_t c = 0; c < n; c++) {
                uint64_t labels = 0, predictions = 0, both = call->confusion[(size_t)c * n + c];
                for (uint32_t k = 0; k < n; k++) {
                        labels += call->confusion[(size_t)c * n + k];
                        predictions += call->confusion[(size_t)k * n + c];
                }
                if (!labels && !predictions)
                        continue;
                double good = (1 + b2) * (double)both;
                sum += both ? good / (good + b2 * (double)(labels - both) + (double)(predictions - both)) : 0;
                seen++;
        }
        return seen ? sum / seen : (double)NAN;
}

const struct mfl_metric_plugin *mfl_metric_plugin(void)
{
        static const struct mfl_metric_plugin plugin = {.abi = MFL_METRIC_ABI,
                .name = "f-beta",
                .version = "1.0",
                .n_settings = sizeof settings / sizeof settings[0],
                .settings = settings,
                .answers = MFL_METRIC_LABELS,
                .measure = measure};
        return &plugin;
}
