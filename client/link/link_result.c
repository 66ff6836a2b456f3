/* SPDX-License-Identifier: Apache-2.0 */
/* Results of trainings: each stays until the agent drops it and no upload or combine reads it. */
#include "client/link/link_internal.h"

struct link_result *mfl_link_result_add(struct mfl_link *link, uint64_t task, struct mfl_train_result *result)
{
        struct link_result *entry = mfl_calloc(1, sizeof(*entry));
        if (!entry)
                return NULL;
        entry->task = task;
        entry->result = result;
        entry->next = link->results;
        link->results = entry;
        return entry;
}

void mfl_link_result_unref(struct mfl_link *link, struct link_result *result)
{
        mfl_assert(result->refs > 0);
        result->refs--;
        if (!result->dead || result->refs)
                return;
        link->options.ops->result_free(link->options.compute, result->result);
        free(result->masked);
        free(result);
}

static void kill_result(struct mfl_link *link, struct link_result **at)
{
        struct link_result *result = *at;
        *at = result->next;
        result->dead = true;
        result->refs++;
        mfl_link_result_unref(link, result);
}

void mfl_link_result_free(struct mfl_link *link, uint64_t task)
{
        for (struct link_result **at = &link->results; *at; at = &(*at)->next) {
                if ((*at)->task == task) {
                        kill_result(link, at);
                        return;
                }
        }
}

void mfl_link_results_free_all(struct mfl_link *link)
{
        while (link->results)
                kill_result(link, &link->results);
}

struct link_result *mfl_link_result_find(struct mfl_link *link, uint64_t task)
{
        for (struct link_result *result = link->results; result; result = result->next) {
                if (result->task == task)
                        return result;
        }
        return NULL;
}
