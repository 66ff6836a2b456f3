/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a job against a data set with the functions that the daemons and the server call. */
#include "cli/job/data_check.h"
#include "common/method/method.h"

#include "common/partition/partition.h"
#include "kernels/check.h"

static int check_partition(const struct mfl_job *job, const struct mfl_dataset *d,
        struct mfl_data_facts *facts, struct mfl_error *err)
{
        struct mfl_partition *p;
        int r = mfl_partition_dataset(job, d, &p, err);
        if (r)
                return r;
        facts->clients = p->n_clients;
        facts->samples_min = UINT32_MAX;
        for (uint32_t k = 0; k < p->n_clients; k++) {
                uint32_t n = p->start[k + 1] - p->start[k];
                facts->samples_min = MFL_MIN(facts->samples_min, n);
                facts->samples_max = MFL_MAX(facts->samples_max, n);
        }
        mfl_partition_free(p);
        return 0;
}

int mfl_data_check(const struct mfl_job *job, const float *initial, const struct mfl_dataset_config *config,
        struct mfl_graph **ret_graph, struct mfl_data_facts *ret_facts, struct mfl_error *err)
{
        struct mfl_dataset *d = NULL;
        struct mfl_graph *graph = NULL;
        struct mfl_fixed fixed;
        int r = mfl_dataset_load(config, &d, err);
        if (r)
                return r;
        struct mfl_data_facts facts = {.shape = d->shape,
                .train = d->train.n,
                .test = d->test.n,
                .classes = d->classes,
                .n_targets = d->n_targets,
                .vocabulary = d->vocabulary};
        mfl_strcpy(facts.note, sizeof facts.note, d->note);
        r = mfl_job_has_program(job) ? mfl_job_graph(job, &d->shape, d->classes, &graph, err)
                                     : mfl_check_job(job, d, &graph, err);
        const struct mfl_model_numbers numbers = {.by_layers = initial};
        if (!r && !mfl_job_has_program(job))
                r = mfl_check_codes(graph, initial ? &numbers : NULL, d, err);
        if (!r)
                r = check_partition(job, d, &facts, err);
        if (!r)
                r = mfl_job_fixed(job, d->train.n, job->data.clients, &fixed, err);
        mfl_dataset_free(d);
        if (r) {
                mfl_graph_free(graph);
                return r;
        }
        *ret_graph = graph;
        *ret_facts = facts;
        return 0;
}
