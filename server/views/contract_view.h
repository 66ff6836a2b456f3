/* SPDX-License-Identifier: Apache-2.0 */
/* What a job's model expects of its input, as a file of the model has it. */
#ifndef MFL_SERVER_VIEWS_CONTRACT_VIEW_H
#define MFL_SERVER_VIEWS_CONTRACT_VIEW_H

#include "server/store/store.h"

/* Disk worker. NULL: unknown. The caller frees it. */
int mfl_view_contract(struct mfl_store *store, const char *job, char **ret_text, struct mfl_error *err);

#endif
