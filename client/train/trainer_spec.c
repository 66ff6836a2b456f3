/* SPDX-License-Identifier: Apache-2.0 */
/* What a job file means for local training: its optimizer, its data set; and what the server is told of the job's population. */
#include "client/train/trainer_internal.h"
#include "common/contract/contract.h"
#include "common/stats/scaled.h"
#include "kernels/check.h"

struct mfl_optimizer mfl_trainer_task_optimizer(const struct mfl_job *spec, const struct mfl_task *task)
{
        struct mfl_optimizer opt = mfl_optimizer_of_job(spec);
        if (spec->aggregation.strategy == MFL_STRATEGY_FEDPROX && spec->aggregation.mu_adaptive)
                opt.prox_mu = (float)task->method[0];
        if (mfl_method_get(spec)->rate)
                opt.lr = (float)((double)opt.lr * mfl_method_get(spec)->rate(spec));
        return opt;
}

/* What a model of this data expects. */
static int tell_contract(const struct trainer_job *job, Mfl__Partition *population, struct mfl_error *err)
{
        struct mfl_contract *contract;
        char *text = NULL;
        int r = mfl_contract_of_dataset(
                job->data->dataset, job->spec->privacy.kind != MFL_PRIVACY_NONE, &contract, err);
        if (r)
                return r;
        contract->loss = job->spec->training.loss;
        contract->has_loss = true;
        r = mfl_contract_text(contract, &text, err);
        mfl_contract_free(contract);
        if (r)
                mfl_population_free(population);
        else
                population->contract = text;
        return r;
}

int mfl_trainer_find_data(struct mfl_trainer *trainer, const struct mfl_job *spec,
        const struct mfl_task *task, struct trainer_data **ret_data, struct mfl_error *err)
{
        const char *name = mfl_job_data_for(spec, trainer->name, trainer->site);
        for (uint32_t i = 0; i < trainer->n_data; i++) {
                struct trainer_data *data = &trainer->data[i];
                if (strcmp(data->dataset->name, name))
                        continue;
                /* Populations are cut alike only from the same samples; with `local`, each daemon has its
                 * own. */
                if (spec->data.partition != MFL_PARTITION_LOCAL && task->fingerprint &&
                        task->fingerprint != data->fingerprint)
                        return mfl_fail(err, MFL_INVALID,
                                "data set %s differs from the job's: fingerprint %016llx, expected %016llx",
                                spec->data.name, (unsigned long long)data->fingerprint,
                                (unsigned long long)task->fingerprint);
                *ret_data = data;
                return 0;
        }
        return mfl_fail(err, MFL_INVALID, "data set %s is not in this daemon's configuration", name);
}

int mfl_trainer_tell_population(struct mfl_trainer *trainer, const struct mfl_train_request *request,
        struct trainer_job *job, struct mfl_error *err)
{
        const struct mfl_dataset *dataset = job->data->dataset;
        /* A mix of classes needs one class per sample: not tokens or float targets. */
        bool classed = dataset->n_targets == 0 && mfl_dataset_labels_per_sample(dataset) == 1;
        Mfl__Partition *population;
        int r = mfl_population_new(job->id, job->spec, job->partition, classed ? dataset->train.labels : NULL,
                dataset->classes, trainer->local_item, &population, err);
        if (!r)
                r = tell_contract(job, population, err);
        if (!r && trainer->plugins &&
                !(population->plugins = mfl_filters_text(trainer->filters, trainer->plugins, job->spec))) {
                population->plugins = (char *)protobuf_c_empty_string;
                mfl_population_free(population);
                r = mfl_fail_memory(err, strlen(trainer->plugins), "the names of plug-ins");
        }
        if (!r)
                mfl_population_free(atomic_exchange(request->population, population));
        return r;
}

int mfl_trainer_scale(struct mfl_trainer *trainer, struct trainer_job *job, struct mfl_error *err)
{
        const struct mfl_normalise_spec *normalise = &job->spec->data.normalise;
        struct mfl_dataset *scaled;
        if (normalise->kind == MFL_NORMALISE_SITE)
                return 0;
        if (normalise->kind == MFL_NORMALISE_FEDERATED)
                return mfl_fail(err, MFL_INVALID,
                        "data.normalise: federated: the server has not measured the mean and deviation");
        uint64_t bytes = mfl_dataset_scaled_bytes(job->data->dataset);
        int r = mfl_trainer_memory_reserve(&trainer->memory, bytes, "scaled rows of a table", err);
        if (r)
                return r;
        job->population_bytes += bytes;
        r = mfl_dataset_scaled(
                job->data->dataset, normalise->n, normalise->mean, normalise->std, &scaled, err);
        if (r)
                return r;
        job->scaled = (struct trainer_data){.dataset = scaled, .fingerprint = job->data->fingerprint};
        job->data = &job->scaled;
        return 0;
}

void mfl_trainer_scale_free(struct mfl_trainer *trainer, struct trainer_job *job)
{
        if (job->scaled.train)
                trainer->ops->data_free(job->scaled.train);
        if (job->scaled.test)
                trainer->ops->data_free(job->scaled.test);
        mfl_trainer_memory_release(&trainer->device_memory, job->scaled.device_bytes);
        mfl_dataset_scaled_free((struct mfl_dataset *)(uintptr_t)job->scaled.dataset);
}

int mfl_trainer_check_codes(
        const struct mfl_train_request *request, struct trainer_job *job, struct mfl_error *err)
{
        const struct mfl_model_numbers numbers = {.frozen = request->frozen, .moving = request->params};
        int r = job->checked_codes || mfl_job_has_program(job->spec)
                        ? 0
                        : mfl_check_codes(job->graph, &numbers, job->data->dataset, err);
        job->checked_codes = !r;
        return r;
}
