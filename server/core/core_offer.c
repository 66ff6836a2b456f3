/* SPDX-License-Identifier: Apache-2.0 */
#include "server/core/core_offer.h"

#include "server/state/state.h"

bool mfl_core_offers(const struct mfl_core *core, const char *name, uint32_t *ret_connected)
{
        bool offered = false;
        *ret_connected = 0;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                *ret_connected += daemon->conn != 0;
                offered |= daemon->conn && mfl_core_fit_offer(daemon, name);
        }
        return offered;
}

const struct mfl_data_info *mfl_core_offered(const struct mfl_core *core, const struct mfl_job *spec)
{
        const struct mfl_data_info *found = NULL;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                const char *name = mfl_job_data_for(spec, daemon->info.name, daemon->info.site);
                const struct mfl_data_info *one =
                        daemon->conn && mfl_core_fit_where(&daemon->info, spec->selection.where)
                                ? mfl_core_fit_offer(daemon, name)
                                : NULL;
                if (one && found &&
                        (!mfl_shape_equal(&one->shape, &found->shape) || one->classes != found->classes))
                        return NULL;
                if (one)
                        found = one;
        }
        return found;
}
