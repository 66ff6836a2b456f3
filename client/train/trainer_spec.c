/* SPDX-License-Identifier: Apache-2.0 */
/* What a job file means for local training, optimizers; and what the server is told of the job's population. */
#include "client/train/trainer_internal.h"
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
                mfl_population_free(atomic_exchange(request->population, population));
        return r;
}
