/* SPDX-License-Identifier: Apache-2.0 */
/* A strategy as a plug-in: each param moves by a fixed step in the direction of the averaged change, as Lion does with gradients
 * (Chen et al.: "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2, without weight decay):
 *
 *      c <- beta1 m + (1 - beta1) d,   w <- w + lr sign(c),   m <- beta2 m + (1 - beta2) d,   m = 0 at first
 *
 * Build: cc -shared -fPIC -O2 -ffp-contract=off -o sign-momentum.so sign_momentum.c
 * Job: aggregation: {strategy: plugin, plugin: {name: sign-momentum, settings: {lr: 0.001}}} */
#include <mfl/strategy.h>

enum { LR, BETA1, BETA2 };

static const struct mfl_plugin_number settings[] = {
        [LR] = {"lr", 0.001, 0, 1},
        [BETA1] = {"beta1", 0.9, 0, 1},
        [BETA2] = {"beta2", 0.99, 0, 1},
};

static void apply(const struct mfl_strategy_call *call)
{
        double lr = call->settings[LR], beta1 = call->settings[BETA1], beta2 = call->settings[BETA2];
        for (size_t e = 0; e < call->count; e++) {
                double m = call->state[0][e], d = call->delta[e], c = beta1 * m + (1 - beta1) * d;
                double sign = (c > 0) - (c < 0);
                call->params_out[e] = (float)(call->params_in[e] + lr * sign);
                call->state[0][e] = (float)(beta2 * m + (1 - beta2) * d);
        }
}

const struct mfl_strategy_plugin *mfl_strategy_plugin(void)
{
        static const struct mfl_strategy_plugin plugin = {
                .abi = MFL_STRATEGY_ABI,
                .name = "sign-momentum",
                .version = "1.0",
                .n_settings = sizeof settings / sizeof settings[0],
                .settings = settings,
                .n_state = 1,
                .state_name = {"momentum"},
                .apply = apply,
        };
        return &plugin;
}
