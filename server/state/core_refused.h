/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons that were turned away, kept for a while: a waiting job can say why it lacks them. */
#ifndef MFL_SERVER_STATE_CORE_REFUSED_H
#define MFL_SERVER_STATE_CORE_REFUSED_H

#include "server/state/event.h"

struct mfl_core;

struct core_refused {
        char name[MFL_NAME_BYTES];
        uint64_t instance;
        enum mfl_refusal why;
        uint64_t at_ms;
        uint32_t n_data_sets;
        uint64_t data_sets[MFL_DATA_SETS_MAX]; /* mfl_core_name_key of each */
};

void mfl_core_refused_add(struct mfl_core *core, const struct mfl_daemon_info *info, enum mfl_refusal why);
/* The daemon has come in. */
void mfl_core_refused_forget(struct mfl_core *core, const char *name);
/* NULL: no daemon of that name was turned away. */
struct core_refused *mfl_core_refused_find(const struct mfl_core *core, const char *name);
/* This very process was sent away because it reported something impossible. */
bool mfl_core_refused_liar(const struct mfl_core *core, const struct mfl_daemon_info *info);
/* It offered a data set with that key not long ago. */
bool mfl_core_refused_offers(
        const struct mfl_core *core, const struct core_refused *refused, uint64_t data_set);

#endif
