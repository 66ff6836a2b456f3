/* SPDX-License-Identifier: Apache-2.0 */
/* Training and evaluation: tables to the device, replays, sums back.
 *
 * Happy path of a call: it lays out indices, counts and keys in pinned memory and copies them to the device,
 * replays captured steps, and waits for the sums. A call with more steps than the tables hold does so several
 * times. Ways to fail: data that does not fit the model (MFL_INVALID), the device (negative).
 */
#include "kernels/check.h"
#include "kernels/cuda/net/net.h"

int mfl_cuda_check_data_of(
        const struct mfl_net *net, const struct mfl_device_data *data, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->model.graph;
        const struct mfl_dataset *set = data->dataset;
        const struct mfl_cuda_tensor *in = &net->model.layers[0].x;
        const struct mfl_cuda_tensor *logits = &net->model.layers[graph->n_layers - 1].x;
        int rc = mfl_check_data(graph, &net->model.options.loss, set, err);
        if (rc)
                return rc;
        if (logits->h * logits->w > 1)
                return mfl_fail(err, MFL_INVALID,
                        "model %s: the cuda backend can't train or evaluate a model that ends in a "
                        "flattened image; let a dense layer or a global pool end it",
                        graph->name);
        if (in->h * in->w > 1 && in->c > MFL_CHANNELS_MAX)
                return mfl_fail(err, MFL_INVALID, "model %s: images have at most %d channels", graph->name,
                        MFL_CHANNELS_MAX);
        if (!data->memory && !net->model.options.streamed)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s is not on the device and the network has no room to stream it",
                        set->name);
        return 0;
}

/* What the batches of one step share, and how its rows are divided among them. */
static void fill_step(struct mfl_net *net, size_t at, uint32_t rows, struct mfl_loss_share share,
        const struct mfl_rate *rate)
{
        const struct mfl_cuda_control *control = &net->model.control;
        uint32_t batch = (uint32_t)net->model.options.batch;
        for (uint32_t part = 0; part < net->model.accumulate; part++, at++) {
                uint32_t first = part * batch, left = rows > first ? rows - first : 0;
                ((uint32_t *)mfl_cuda_pinned(net, control->count))[at] = MFL_MIN(left, batch);
                ((struct mfl_loss_share *)mfl_cuda_pinned(net, control->share))[at] = share;
                ((struct mfl_rate *)mfl_cuda_pinned(net, control->rates))[at] = *rate;
        }
}

/* Puts group g's next n steps into the pinned tables. Rows beyond count are not the caller's: they are copied
 * only where they lie between rows that are. */
static void fill_group(struct mfl_net *net, const struct mfl_device_data *data, uint32_t g,
        const struct mfl_group_steps *steps, uint32_t done, uint32_t n, const struct mfl_optimizer *opt)
{
        const struct mfl_cuda_control *control = &net->model.control;
        uint32_t whole = net->model.accumulate, steps_max = net->model.steps_max;
        uint32_t batch = (uint32_t)net->model.options.batch, end = 0;
        uint32_t *index = (uint32_t *)mfl_cuda_pinned(net, control->index) + (size_t)g * steps_max * batch;
        const uint32_t *from = steps->index + (size_t)done * batch * whole;
        for (uint32_t t = 0; t < n; t++) {
                uint32_t rows = steps->count[done + t], most = 0;
                const uint32_t *own = from + (size_t)t * batch * whole;
                struct mfl_rate rate = mfl_rate_of(opt, (uint64_t)steps->step_first + done + t + 1,
                        steps->lr_scale ? steps->lr_scale[done + t] : 1.0f);
                mfl_assert(rows <= batch * whole);
                for (uint32_t r = 0; r < rows; r++)
                        most = MFL_MAX(most, own[r]);
                mfl_assert(rows == 0 || most < data->split->n);
                fill_step(net, (size_t)g * steps_max + (size_t)t * whole, rows,
                        mfl_loss_share_of(data->dataset, data->split, &net->model.options.loss, own, rows),
                        &rate);
                end = rows ? t * batch * whole + rows : end;
        }
        if (end)
                memcpy(index, from, end * sizeof *index);
        ((uint32_t *)mfl_cuda_pinned(net, control->step_first))[g] = steps->step_first + done;
        ((struct mfl_rng_key *)mfl_cuda_pinned(net, control->dropout))[g] = steps->dropout;
        ((struct mfl_rng_key *)mfl_cuda_pinned(net, control->augment))[g] = steps->augment;
}

int mfl_cuda_run_tables(const struct mfl_cuda_work *work, uint32_t first, uint32_t n, struct mfl_error *err)
{
        struct mfl_net *net = work->net;
        int rc = mfl_cuda_control_send(net, first, err);
        if (!rc && work->data->memory)
                rc = mfl_cuda_tables_send(net, first, n, net->main.stream, err);
        if (!rc)
                rc = work->data->memory ? mfl_cuda_replay(work, n, err)
                                        : mfl_cuda_stream_run(work, first, n, err);
        return rc ? rc : mfl_cuda_control_receive(net, err);
}

/* Adds the sums of the n steps from `done` on. */
static void add_sums(const struct mfl_net *net, struct mfl_group_steps *groups, uint32_t done, uint32_t n)
{
        const struct mfl_cuda_control *control = &net->model.control;
        const int64_t *loss_sum = mfl_cuda_pinned(net, control->loss_sum);
        const uint64_t *n_correct = mfl_cuda_pinned(net, control->n_correct);
        const uint64_t *n_scored = mfl_cuda_pinned(net, control->n_scored);
        for (int g = 0; g < net->model.options.groups; g++) {
                groups[g].score.loss_sum += loss_sum[g];
                groups[g].score.n_correct += n_correct[g];
                groups[g].score.n_scored += n_scored[g];
                for (uint32_t t = done; t < done + n; t++)
                        groups[g].n_samples += groups[g].count[t];
        }
}

int mfl_cuda_step(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *groups,
        uint32_t n_steps, const struct mfl_optimizer *opt, struct mfl_error *err)
{
        const struct mfl_cuda_work work = {.net = net, .data = data, .opt = opt};
        mfl_assert(net->model.options.training && n_steps <= MFL_STEPS_MAX);
        mfl_assert(mfl_moments_hold(net->model.options.moments, opt));
        int rc = mfl_cuda_check_data_of(net, data, err);
        net->last_data = rc ? NULL : data;
        net->last_opt = *opt;
        if (!rc)
                rc = mfl_cuda_enter(net, err);
        for (uint32_t done = 0, n; !rc && done < n_steps; done += n) {
                n = MFL_MIN(n_steps - done, net->model.steps_max / net->model.accumulate);
                for (int g = 0; g < net->model.options.groups; g++)
                        fill_group(net, data, (uint32_t)g, &groups[g], done, n, opt);
                rc = mfl_cuda_run_tables(&work, 0, n * net->model.accumulate, err);
                if (!rc)
                        add_sums(net, groups, done, n);
        }
        return rc;
}

/* Divides the batches of one group's evaluation among all groups' places, in the pinned tables. Returns the
 * number of steps; reduces *n by the rows it took. */
static uint32_t deal_batches(
        struct mfl_net *net, const struct mfl_device_data *data, const uint32_t **index, uint32_t *n)
{
        const struct mfl_cuda_control *control = &net->model.control;
        uint32_t batch = (uint32_t)net->model.options.batch, groups = (uint32_t)net->model.options.groups;
        uint32_t steps_max = net->model.steps_max, t;
        uint32_t *count = mfl_cuda_pinned(net, control->count), *to = mfl_cuda_pinned(net, control->index);
        for (t = 0; t < steps_max && *n; t++)
                for (uint32_t g = 0; g < groups; g++) {
                        uint32_t rows = MFL_MIN(*n, batch);
                        size_t at = (size_t)g * steps_max + t;
                        count[at] = rows;
                        for (uint32_t r = 0; r < rows; r++) {
                                mfl_assert((*index)[r] < data->split->n);
                                to[at * batch + r] = (*index)[r];
                        }
                        *index += rows;
                        *n -= rows;
                }
        return t;
}

/* Copies the group's params to where eval reads them. */
static int choose_group(struct mfl_net *net, int group, struct mfl_error *err)
{
        uint64_t stride = net->model.stride, element = (uint64_t)mfl_cuda_type_bytes(net->model.type);
        const char *low = mfl_cuda_at(net, MFL_CUDA_LOW);
        if (net->model.options.groups == 1)
                return 0;
        int rc = mfl_cuda_check(
                cudaMemcpyAsync(mfl_cuda_at(net, MFL_CUDA_EVAL),
                        (float *)mfl_cuda_at(net, MFL_CUDA_PARAMS) + stride * (uint64_t)group,
                        (size_t)stride * sizeof(float), cudaMemcpyDeviceToDevice, net->main.stream),
                "copy a group's params", err);
        if (!rc && low)
                rc = mfl_cuda_check(
                        cudaMemcpyAsync(mfl_cuda_at(net, MFL_CUDA_EVAL_LOW),
                                low + stride * element * (uint64_t)group, (size_t)(stride * element),
                                cudaMemcpyDeviceToDevice, net->main.stream),
                        "copy a group's params", err);
        return rc;
}

int mfl_cuda_eval(struct mfl_net *net, int group, const struct mfl_device_data *data, const uint32_t *index,
        uint32_t n, struct mfl_score *ret_score, struct mfl_error *err)
{
        const struct mfl_cuda_control *control = &net->model.control;
        const struct mfl_cuda_work work = {.net = net, .data = data};
        struct mfl_score score = {.tally = ret_score->tally};
        uint32_t n_tally = mfl_tally_size(net->model.options.tally, (uint32_t)net->model.graph->classes);
        mfl_assert(group >= 0 && group < net->model.options.groups);
        int rc = mfl_cuda_check_data_of(net, data, err);
        if (!rc)
                rc = mfl_cuda_enter(net, err);
        if (!rc)
                rc = choose_group(net, group, err);
        while (!rc && n) {
                rc = mfl_cuda_run_tables(&work, 0, deal_batches(net, data, &index, &n), err);
                const uint64_t *tally = mfl_cuda_pinned(net, control->tally);
                for (uint32_t i = 0; !rc && score.tally && i < n_tally; i++)
                        score.tally[i] += tally[i];
                for (int g = 0; !rc && g < net->model.options.groups; g++) {
                        score.loss_sum += ((int64_t *)mfl_cuda_pinned(net, control->loss_sum))[g];
                        score.n_correct += ((uint64_t *)mfl_cuda_pinned(net, control->n_correct))[g];
                        score.n_scored += ((uint64_t *)mfl_cuda_pinned(net, control->n_scored))[g];
                }
        }
        if (rc)
                return rc;
        *ret_score = score;
        return 0;
}
