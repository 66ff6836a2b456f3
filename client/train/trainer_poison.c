/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated attacks on data (common/job/robust.h): copies of a job's splits in which the training samples of bad clients
 * have other labels or a backdoor's patch, and all test samples have the patch.
 *   - made with the job, on the host; on the device when a task first needs them;
 *   - in rounds before `from` everybody trains on the samples as they are.
 * Fails without memory for the copies. */
#include "client/train/trainer_poison.h"

#define PATCH 3 /* pixels, in the last rows and columns */

struct trainer_poison {
        uint64_t bytes, device_bytes; /* reserved */
        struct mfl_split train, test; /* of test.n 0: there is none */
        struct mfl_device_data *device_train, *device_test;
};

static int copy_split(const struct mfl_dataset *dataset, const struct mfl_split *from, struct mfl_split *to)
{
        size_t sample = (size_t)mfl_shape_count(&dataset->shape) * mfl_dtype_bytes(from->dtype);
        *to = *from;
        to->samples = mfl_malloc(sample * from->n + 1);
        to->labels = mfl_malloc(from->n * sizeof *to->labels + 1);
        if (!to->samples || !to->labels)
                return -ENOMEM;
        memcpy(to->samples, from->samples, sample * from->n);
        memcpy(to->labels, from->labels, from->n * sizeof *to->labels);
        return 0;
}

static uint64_t split_bytes(const struct mfl_dataset *dataset, const struct mfl_split *split)
{
        return split->n * ((uint64_t)mfl_shape_count(&dataset->shape) * mfl_dtype_bytes(split->dtype) +
                                  sizeof *split->labels);
}

/* The brightest value there is. */
static float brightest(const struct mfl_dataset *dataset)
{
        const struct mfl_split *split = &dataset->train;
        size_t n = split->n * (size_t)mfl_shape_count(&dataset->shape);
        float most = 0;
        for (size_t i = 0; i < n && split->dtype == MFL_F32; i++)
                most = MFL_MAX(most, ((const float *)split->samples)[i]);
        return most;
}

static void patch(const struct mfl_dataset *dataset, float bright, struct mfl_split *split, uint32_t i)
{
        size_t c = (size_t)dataset->shape.dim[0], h = (size_t)dataset->shape.dim[1],
               w = (size_t)dataset->shape.dim[2];
        for (size_t k = 0; k < c * PATCH * PATCH; k++) {
                size_t y = h - PATCH + k / PATCH % PATCH, x = w - PATCH + k % PATCH;
                size_t at = ((size_t)i * c + k / (PATCH * PATCH)) * h * w + y * w + x;
                if (split->dtype == MFL_U8)
                        ((uint8_t *)split->samples)[at] = 255;
                else
                        ((float *)split->samples)[at] = bright;
        }
}

/* A drawn share of the client's samples. */
static int poison_samples(const struct trainer_job *job, uint32_t client, const uint32_t *samples, uint32_t n,
        float bright, struct mfl_split *train)
{
        const struct mfl_simulation *sim = &job->spec->simulation;
        uint32_t *order = mfl_malloc(n * sizeof *order + 1), some = (uint32_t)(sim->poison * n + 0.5);
        if (!order)
                return -ENOMEM;
        memcpy(order, samples, n * sizeof *order);
        struct mfl_rng rng = mfl_rng_new(job->spec->seed, MFL_RNG_POISON, client, 0);
        mfl_rng_shuffle(&rng, order, n);
        for (uint32_t i = 0; i < some; i++) {
                patch(job->data->dataset, bright, train, order[i]);
                train->labels[order[i]] = (int32_t)sim->target;
        }
        free(order);
        return 0;
}

static int poison_clients(const struct mfl_trainer *trainer, const struct trainer_job *job, const bool *bad,
        struct mfl_split *train, struct mfl_error *err)
{
        const struct mfl_simulation *sim = &job->spec->simulation;
        float bright = brightest(job->data->dataset);
        int r = 0;
        for (uint32_t k = 0; k < job->spec->data.clients && !r; k++) {
                const uint32_t *samples;
                uint32_t n = 0;
                if (!bad[k])
                        continue;
                r = mfl_trainer_job_client(trainer, job, k, &samples, &n, err);
                if (!r && sim->attack == MFL_ATTACK_BACKDOOR)
                        r = poison_samples(job, k, samples, n, bright, train);
                for (uint32_t i = 0; i < n && !r && sim->attack == MFL_ATTACK_LABEL_FLIP; i++) {
                        int32_t *label = &train->labels[samples[i]];
                        *label = mfl_attack_label(sim, *label, job->data->dataset->classes);
                }
        }
        return r;
}

/* The label of each is the backdoor's. */
static int poison_test(const struct trainer_job *job, struct mfl_split *test)
{
        const struct mfl_dataset *dataset = job->data->dataset;
        float bright = brightest(dataset);
        int r = copy_split(dataset, &dataset->test, test);
        for (uint32_t i = 0; i < test->n && !r; i++) {
                patch(dataset, bright, test, i);
                test->labels[i] = (int32_t)job->spec->simulation.target;
        }
        return r;
}

int mfl_trainer_poison_new(struct mfl_trainer *trainer, struct trainer_job *job, struct mfl_error *err)
{
        const struct mfl_dataset *dataset = job->data->dataset;
        const struct mfl_simulation *sim = &job->spec->simulation;
        bool *bad = NULL, backdoor = sim->attack == MFL_ATTACK_BACKDOOR;
        if (!mfl_attack_is_on_data(sim))
                return 0;
        uint64_t bytes = split_bytes(dataset, &dataset->train);
        bytes += backdoor ? split_bytes(dataset, &dataset->test) : 0;
        int r = mfl_trainer_memory_reserve(&trainer->memory, bytes, "samples of a simulated attack", err);
        if (r)
                return r;
        job->poison = mfl_calloc(1, sizeof *job->poison);
        if (!job->poison)
                mfl_trainer_memory_release(&trainer->memory, bytes);
        else
                job->poison->bytes = bytes;
        r = job->poison ? mfl_simulation_draw(job->spec, &bad) : -ENOMEM;
        if (!r)
                r = copy_split(dataset, &dataset->train, &job->poison->train);
        if (!r)
                r = poison_clients(trainer, job, bad, &job->poison->train, err);
        if (!r && backdoor)
                r = poison_test(job, &job->poison->test);
        free(bad);
        return r == -ENOMEM ? mfl_fail_memory(err, bytes, "samples of a simulated attack") : r;
}

static int to_device(struct mfl_trainer *trainer, struct trainer_job *job, const struct mfl_split *split,
        bool streamed, struct mfl_device_data **at, struct mfl_error *err)
{
        const struct mfl_dataset *dataset = job->data->dataset;
        uint64_t bytes = trainer->ops->data_bytes && !streamed ? trainer->ops->data_bytes(dataset, split) : 0;
        if (*at || !split->n)
                return 0;
        int r = bytes ? mfl_trainer_memory_reserve(
                                &trainer->device_memory, bytes, "samples of a simulated attack", err)
                      : 0;
        if (!r)
                r = trainer->ops->data_new(trainer->device, dataset, split, !streamed, at, err);
        if (*at)
                job->poison->device_bytes += bytes;
        else if (r && bytes)
                mfl_trainer_memory_release(&trainer->device_memory, bytes);
        return r;
}

int mfl_trainer_poison_prepare(
        struct mfl_trainer *trainer, struct trainer_job *job, enum mfl_task_kind kind, struct mfl_error *err)
{
        struct trainer_poison *poison = job->poison;
        if (!poison)
                return 0;
        return kind == MFL_TASK_EVAL ? to_device(trainer, job, &poison->test, job->data->test_streamed,
                                               &poison->device_test, err)
                                     : to_device(trainer, job, &poison->train, job->data->train_streamed,
                                               &poison->device_train, err);
}

void mfl_trainer_poison_free(struct mfl_trainer *trainer, struct trainer_job *job)
{
        struct trainer_poison *poison = job->poison;
        if (!poison)
                return;
        if (poison->device_train)
                trainer->ops->data_free(poison->device_train);
        if (poison->device_test)
                trainer->ops->data_free(poison->device_test);
        mfl_trainer_memory_release(&trainer->device_memory, poison->device_bytes);
        mfl_trainer_memory_release(&trainer->memory, poison->bytes);
        free(poison->train.samples);
        free(poison->train.labels);
        free(poison->test.samples);
        free(poison->test.labels);
        free(poison);
        job->poison = NULL;
}

static bool is_on(const struct trainer_run *run)
{
        return run->job->poison && run->request->task->round >= run->job->spec->simulation.from;
}

const struct mfl_device_data *mfl_trainer_train_data(const struct trainer_run *run)
{
        return is_on(run) ? run->job->poison->device_train : run->job->data->train;
}

const struct mfl_split *mfl_trainer_train_split(const struct trainer_run *run)
{
        return is_on(run) ? &run->job->poison->train : &run->job->data->dataset->train;
}

int mfl_trainer_backdoor_count(struct trainer_run *run, struct trainer_slot *slot, const uint32_t *samples,
        uint32_t n, uint64_t tally[2], struct mfl_error *err)
{
        const struct trainer_job *job = run->job;
        const int32_t *labels = job->data->dataset->test.labels;
        struct mfl_score score = {0};
        uint32_t *others = mfl_malloc(n * sizeof *others + 1), n_others = 0;
        if (!others)
                return mfl_fail_memory(err, n * sizeof *others, "an evaluation");
        for (uint32_t i = 0; i < n; i++)
                if (labels[samples[i]] >= 0 && (uint32_t)labels[samples[i]] != job->spec->simulation.target)
                        others[n_others++] = samples[i];
        int r = n_others ? run->trainer->ops->eval(
                                   slot->eval, 0, job->poison->device_test, others, n_others, &score, err)
                         : 0;
        free(others);
        tally[0] += score.n_scored;
        tally[1] += score.n_correct;
        return r;
}
