/* SPDX-License-Identifier: Apache-2.0 */
/* A filter as a plug-in: no tensor of a client's change is longer than a norm.
 *
 *      d_t <- d_t min(1, norm / |d_t|)     for each tensor t that is trained; running statistics stay as they are
 *
 * Build: cc -shared -fPIC -O2 -ffp-contract=off -o layer-clip.so layer_clip.c -lm
 * client.yaml: filters: [{name: layer-clip, settings: {norm: 0.5}}] */
#include <math.h>
#include <mfl/filter.h>

enum { NORM };

static const struct mfl_plugin_number settings[] = {[NORM] = {"norm", 1, 1e-6, 1e6}};

static double length(const float *v, size_t n)
{
        double sum = 0;
        for (size_t i = 0; i < n; i++)
                sum += (double)v[i] * v[i];
        return sqrt(sum);
}

static int apply(const struct mfl_filter_call *call)
{
        for (uint32_t t = 0; t < call->n_tensors; t++) {
                const struct mfl_filter_tensor *tensor = &call->tensors[t];
                float *v = call->delta + tensor->first;
                double long_is = length(v, tensor->count);
                if (tensor->statistics || long_is <= call->settings[NORM])
                        continue;
                for (size_t i = 0; i < tensor->count; i++)
                        v[i] = (float)(v[i] * (call->settings[NORM] / long_is));
        }
        return 0;
}

const struct mfl_filter_plugin *mfl_filter_plugin(void)
{
        static const struct mfl_filter_plugin plugin = {.abi = MFL_FILTER_ABI,
                .name = "layer-clip",
                .version = "1.0",
                .n_settings = sizeof settings / sizeof settings[0],
                .settings = settings,
                .apply = apply};
        return &plugin;
}
