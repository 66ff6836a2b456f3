/* SPDX-License-Identifier: Apache-2.0 */
/* What daemons offer, for those who judge a job before it is added. */
#ifndef MFL_SERVER_CORE_CORE_OFFER_H
#define MFL_SERVER_CORE_CORE_OFFER_H

#include "server/core/core.h"

/* Whether a connected daemon offers a data set, a program or a filter of that name; and how many are connected. */
bool mfl_core_offers(const struct mfl_core *core, const char *name, uint32_t *ret_connected);

/* What the connected daemons that a job wants (selection.where) say of its data set; NULL if none has it, or if shapes or classes differ
 * between them. The core's, until its next step. */
const struct mfl_data_info *mfl_core_offered(const struct mfl_core *core, const struct mfl_job *spec);

#endif
