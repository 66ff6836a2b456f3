/* SPDX-License-Identifier: Apache-2.0 */
/* What a job's model expects of its input. */
#include "server/views/contract_view.h"

#include "common/contract/contract.h"

/* Which of several equal sites told first is nobody's business, and would make two files of one model differ. */
int mfl_view_contract(struct mfl_store *store, const char *job, char **ret_text, struct mfl_error *err)
{
        struct mfl_contract *contract = NULL;
        char *text = NULL;
        int r = mfl_store_contract_get(store, job, &text, err);
        if (!r && text)
                r = mfl_contract_parse(text, job, &contract, err);
        if (!r && contract && !contract->n_sites) {
                contract->from[0] = '\0';
                free(text);
                text = NULL;
                r = mfl_contract_text(contract, &text, err);
        }
        mfl_contract_free(contract);
        if (r)
                free(text);
        else
                *ret_text = text;
        return r;
}
