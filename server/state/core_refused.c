/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons that were turned away. */
#include "server/state/state.h"

/* This many are remembered, for this long after their last try. */
#define REFUSED_MAX 256
#define REFUSED_KEPT_MS 600000

struct core_refused *mfl_core_refused_find(const struct mfl_core *core, const char *name)
{
        for (uint32_t i = 0; i < core->n_refused; i++)
                if (strcmp(core->refused[i].name, name) == 0)
                        return &core->refused[i];
        return NULL;
}

/* If the list is full, the oldest entry makes room. */
static struct core_refused *new_refused(struct mfl_core *core)
{
        if (core->n_refused == REFUSED_MAX) {
                struct core_refused *oldest = core->refused;
                for (uint32_t i = 1; i < core->n_refused; i++)
                        if (core->refused[i].at_ms < oldest->at_ms)
                                oldest = &core->refused[i];
                return oldest;
        }
        struct core_refused *v = mfl_realloc(core->refused, (core->n_refused + 1) * sizeof *v);
        if (!v) {
                core->error = -ENOMEM;
                return NULL;
        }
        core->refused = v;
        return &v[core->n_refused++];
}

void mfl_core_refused_add(struct mfl_core *core, const struct mfl_daemon_info *info, enum mfl_refusal why)
{
        struct core_refused *refused = mfl_core_refused_find(core, info->name);
        if (!refused)
                refused = new_refused(core);
        if (!refused)
                return;
        *refused = (struct core_refused){.why = why,
                .at_ms = core->now_ms,
                .instance = info->instance,
                .n_data_sets = MFL_MIN(info->n_data_sets, MFL_DATA_SETS_MAX)};
        mfl_strcpy(refused->name, sizeof refused->name, info->name);
        for (uint32_t i = 0; i < refused->n_data_sets; i++)
                refused->data_sets[i] = mfl_core_name_key(info->data_sets[i].name);
        core->sched_dirty = true;
}

void mfl_core_refused_forget(struct mfl_core *core, const char *name)
{
        struct core_refused *refused = mfl_core_refused_find(core, name);
        if (refused)
                *refused = core->refused[--core->n_refused];
}

bool mfl_core_refused_liar(const struct mfl_core *core, const struct mfl_daemon_info *info)
{
        const struct core_refused *refused = mfl_core_refused_find(core, info->name);
        return refused && refused->why == MFL_REFUSAL_LIE && refused->instance == info->instance &&
               core->now_ms - refused->at_ms < REFUSED_KEPT_MS;
}

bool mfl_core_refused_offers(
        const struct mfl_core *core, const struct core_refused *refused, uint64_t data_set)
{
        if (core->now_ms - refused->at_ms > REFUSED_KEPT_MS)
                return false;
        for (uint32_t i = 0; i < refused->n_data_sets; i++)
                if (refused->data_sets[i] == data_set)
                        return true;
        return false;
}
