/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a network: steps of training, evaluation, and passes for the conformance program. */
#include <math.h>
#include <omp.h>

#include "kernels/cpu/pass.h"

static void read_u8(const struct mfl_net *net, const uint8_t *from, int64_t n_planes, int64_t plane,
        const float *scale, const float *shift, float *x)
{
        for (int64_t c = 0; c < n_planes; c++, from += plane, x += plane)
                net->device->loops->gather_u8(plane, from, scale[c], shift[c], x);
}

/* Copies samples into the first layer; the rows that a partial batch lacks are zero. key: the step's; NULL:
 * samples as they are. */
static void gather_rows(struct mfl_net *net, const struct mfl_device_data *data,
        const struct mfl_rng_key *key, const uint32_t *index, uint32_t first_row, uint32_t rows)
{
        struct mfl_shape image;
        float *x = mfl_cpu_act(net, 0);
        const uint8_t *samples = data->split->samples;
        const struct mfl_dataset *set = data->dataset;
        size_t missing = (size_t)net->options.batch - rows;
        memset(x + (int64_t)rows * data->count, 0, missing * (size_t)data->count * sizeof *x);
        if (key && mfl_host_augments(&net->options.augment) &&
                !mfl_host_image_shape(net->graph, data, &image, NULL)) {
                mfl_host_gather_augmented(
                        data, &image, &net->options.augment, *key, first_row, index, rows, x);
                return;
        }
        if (data->split->dtype != MFL_U8) {
                mfl_host_gather(data, index, rows, x);
                return;
        }
        for (uint32_t r = 0; r < rows; r++) {
                mfl_assert(index[r] < data->split->n);
                read_u8(net, samples + (int64_t)index[r] * data->count, data->n_planes, data->plane,
                        set->scale, set->shift, x + (int64_t)r * data->count);
        }
}

static void gather(struct mfl_net *net, const struct mfl_device_data *data, const struct mfl_rng_key *key,
        const uint32_t *index, uint32_t first_row, uint32_t rows)
{
        uint64_t start_ns = mfl_now_ns();
        gather_rows(net, data, key, index, first_row, rows);
        net->gather_ns += mfl_now_ns() - start_ns;
}

uint64_t mfl_cpu_gather_ns(struct mfl_net *net)
{
        return net->gather_ns;
}

/* mfl_label_loss of many classes, whose exponentials would otherwise take longer than the layers. */
static float loss_of_many(const void *user, const struct mfl_loss *loss, const float *z, int classes,
        int label, float scale, float *dz, bool *ret_hit)
{
        const struct mfl_loops *loops = user;
        float weight = loss->weights ? loss->weights[label] : 1.0f, factor;
        struct mfl_logits v = {classes, label, loss->smoothing, loss->weights ? scale * weight : scale};
        if (loss->weights && loss->smoothing > 0.0f)
                return mfl_label_loss(loss, z, classes, label, scale, dz, ret_hit);
        float value = loops->cross_entropy(&v, z, dz, ret_hit);
        if (loss->kind == MFL_LOSS_FOCAL) {
                value = mfl_focal_loss(value, loss->parameter, &factor);
                if (dz)
                        loops->scale(classes, factor, dz);
        }
        return loss->weights ? weight * value : value;
}

/* The loss of the last layer's output and, with `share`, its gradient, in the arena. Both pass through NCHW. */
static void take_loss(struct mfl_net *net, const struct mfl_device_data *data, const struct mfl_loss *loss,
        const uint32_t *index, uint32_t rows, const struct mfl_loss_share *share, struct mfl_score *score)
{
        int last = net->graph->n_layers - 1;
        const struct mfl_layout *l = &net->layers[last].layout;
        const float *z = mfl_cpu_act(net, last);
        float *dz = !share ? NULL : l->identity ? mfl_cpu_grad(net, last) : net->dlogits;
        if (!l->identity) {
                mfl_layout_to_plain(l, net->options.batch, z, net->logits);
                z = net->logits;
        }
        struct mfl_host_loss a = {
                data, net->graph, loss, index, rows, share, NULL, net->device->loops, net->options.tally};
        if (net->graph->classes >= MFL_CLASSES_MANY)
                a.row = loss_of_many;
        mfl_host_loss(&a, z, dz, score);
        if (!share)
                return;
        size_t missing = ((size_t)net->options.batch - rows) * (size_t)l->logical;
        memset(dz + (size_t)rows * (size_t)l->logical, 0, missing * sizeof *dz);
        if (!l->identity)
                mfl_layout_from_plain(l, net->options.batch, dz, mfl_cpu_grad(net, last));
}

static void add_correction(struct mfl_net *net, int group)
{
        const float *correction = net->correction + net->n_wide * (uint64_t)group;
        for (int t = 0; t < net->graph->n_params; t++) {
                uint64_t at = net->wide[t].at, end = at + net->wide[t].count;
                for (; mfl_cpu_is_trained(net->graph, t) && at < end; at++)
                        net->grads[at] += correction[at];
        }
}

/* FedProx's term as a part of the gradient. */
static void add_prox(struct mfl_net *net, int group, float mu)
{
        const float *params = net->params + net->n_wide * (uint64_t)group, *first = mfl_cpu_first(net, group);
        for (int t = 0; t < net->graph->n_params; t++) {
                uint64_t at = net->wide[t].at, end = at + net->wide[t].count;
                for (; mfl_cpu_is_trained(net->graph, t) && at < end; at++)
                        net->grads[at] += mu * (params[at] - first[at]);
        }
}

static bool is_taken(const struct mfl_graph *graph, int t, const struct mfl_optimizer *opt)
{
        return mfl_cpu_is_trained(graph, t) && !mfl_param_stays(&graph->params[t], opt->moves);
}

/* Takes the gradients of a whole step that could not be taken one by one, after clipping where asked. The
 * norm's sum has the tensors' order. */
static void take_grads(struct pass *pass, const struct mfl_optimizer *opt)
{
        struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        struct mfl_optimizer rest = *opt;
        double squares = 0;
        if (net->corrected && net->corrected[pass->group])
                add_correction(net, pass->group);
        if (mfl_optimizer_clips_prox(opt)) {
                add_prox(net, pass->group, opt->prox_mu);
                rest.prox_mu = 0;
        }
        for (int t = 0; opt->clip_norm > 0 && t < net->graph->n_params; t++)
                if (is_taken(net->graph, t, opt))
                        squares += loops->squares((int64_t)net->wide[t].count, net->grads + net->wide[t].at);
        float factor = mfl_clip_factor(opt->clip_norm, (float)sqrt(squares));
        pass->opt = &rest;
        pass->grads = net->grads;
        for (int t = 0; t < net->graph->n_params; t++) {
                if (!is_taken(net->graph, t, opt))
                        continue;
                if (factor != 1.0f)
                        loops->scale((int64_t)net->wide[t].count, factor, net->grads + net->wide[t].at);
                mfl_cpu_step_tensor(pass, t);
        }
        pass->opt = opt;
}

/* One batch of a step. Its share of the gradient is added to that of the batches before. Where the step has
 * only this batch and is neither clipped nor corrected, the optimizer takes the gradient at once. */
static int step_part(struct pass *pass, const struct mfl_device_data *data, struct mfl_group_steps *steps,
        const uint32_t *index, const struct mfl_loss_share *share)
{
        struct mfl_net *net = pass->net;
        uint32_t rows = (uint32_t)pass->rows;
        struct mfl_rng_key key = mfl_rng_augment_key(steps->augment, pass->step);
        pass->grads = pass->first_row ? net->part : net->grads;
        gather(net, data, &key, index, (uint32_t)pass->first_row, rows);
        int rc = mfl_cpu_run_forward(pass);
        if (rc)
                return rc;
        take_loss(net, data, &net->options.loss, index, rows, share, &steps->score);
        steps->n_samples += rows;
        rc = mfl_cpu_run_backward(pass);
        if (!rc && pass->first_row)
                net->device->loops->add(
                        (int64_t)net->n_wide, net->grads, net->part, false, net->grads, net->options.threads);
        return rc;
}

int mfl_cpu_run_grain(const struct pass *pass, const struct mfl_device_data *data,
        const struct mfl_grain *grain, struct mfl_score *score)
{
        struct mfl_net *net = pass->net;
        struct mfl_rng_key key = mfl_rng_augment_key(grain->augment, grain->step);
        int rc = mfl_cpu_check_step(net, data, pass->err);
        if (rc)
                return rc;
        omp_set_num_threads(net->options.threads);
        gather(net, data, &key, grain->index, grain->first_row, grain->rows);
        rc = mfl_cpu_run_forward(pass);
        if (rc)
                return rc;
        take_loss(net, data, &net->options.loss, grain->index, grain->rows, grain->share, score);
        return mfl_cpu_run_backward(pass);
}

static int step_group(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *steps,
        int group, uint32_t t, const struct mfl_optimizer *opt, struct mfl_error *err)
{
        uint32_t rows = steps->count[t], batch = (uint32_t)net->options.batch;
        uint32_t parts = (uint32_t)MFL_MAX(net->options.accumulate, 1);
        const uint32_t *index = steps->index + (size_t)t * batch * parts;
        bool at_once = parts == 1 && opt->clip_norm == 0 && opt->moves == MFL_MOVES_ALL &&
                       !(net->corrected && net->corrected[group]);
        struct pass pass = {.net = net,
                .group = group,
                .dropout = &steps->dropout,
                .running = true,
                .step = steps->step_first + t,
                .moves = opt->moves,
                .opt = at_once ? opt : NULL,
                .rate = mfl_rate_of(opt, (uint64_t)steps->step_first + t + 1,
                        steps->lr_scale ? steps->lr_scale[t] : 1.0f),
                .err = err};
        int rc = 0;
        mfl_assert(rows <= batch * parts);
        struct mfl_loss_share share =
                mfl_loss_share_of(data->dataset, data->split, &net->options.loss, index, rows);
        for (uint32_t first = 0; !rc && first < rows; first += batch) {
                pass.first_row = first;
                pass.rows = MFL_MIN(rows - first, batch);
                rc = step_part(&pass, data, steps, index + first, &share);
        }
        if (!rc && rows && !at_once)
                take_grads(&pass, opt);
        return rc;
}

int mfl_cpu_check_step(const struct mfl_net *net, const struct mfl_device_data *data, struct mfl_error *err)
{
        struct mfl_shape image;
        int rc = mfl_check_data(net->graph, &net->options.loss, data->dataset, err);
        mfl_assert(net->options.training);
        if (!rc && mfl_host_augments(&net->options.augment))
                rc = mfl_host_image_shape(net->graph, data, &image, err);
        return rc;
}

int mfl_cpu_step(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *groups,
        uint32_t n_steps, const struct mfl_optimizer *opt, struct mfl_error *err)
{
        int rc = mfl_cpu_check_step(net, data, err);
        mfl_assert(!net->options.worker && mfl_moments_hold(net->options.moments, opt));
        omp_set_num_threads(net->options.threads);
        /* All steps of one client come before the next client's, so that its params stay in the cache. */
        for (int g = 0; g < net->options.groups; g++)
                for (uint32_t t = 0; !rc && t < n_steps; t++)
                        rc = step_group(net, data, &groups[g], g, t, opt, err);
        return rc;
}

int mfl_cpu_eval(struct mfl_net *net, int group, const struct mfl_device_data *data, const uint32_t *index,
        uint32_t n, struct mfl_score *ret_score, struct mfl_error *err)
{
        struct pass pass = {.net = net, .group = group, .err = err};
        struct mfl_loss loss = mfl_loss_plain(&net->options.loss);
        struct mfl_score score = {.tally = ret_score->tally};
        int rc = mfl_check_data(net->graph, &loss, data->dataset, err);
        omp_set_num_threads(net->options.threads);
        for (uint32_t at = 0, rows; !rc && at < n; at += rows) {
                rows = MFL_MIN(n - at, (uint32_t)net->options.batch);
                gather(net, data, NULL, index + at, 0, rows);
                pass.rows = rows;
                rc = mfl_cpu_run_forward(&pass);
                if (!rc)
                        take_loss(net, data, &loss, index + at, rows, NULL, &score);
        }
        if (rc)
                return rc;
        *ret_score = score;
        return 0;
}

#define INFER_BYTES                                                                                          \
        (8 << 20) /* of a layer's input and output: part of the last cache, which other threads want, too */
#define INFER_REUSE 4 /* what the rows move, over what reading the params moves, at least */

/* Rows that go through all layers together. Where the largest layer's rows leave the cache before the next layer reads them, fewer rows at a time are
 * faster, as long as the params, which each time reads, are little beside them. The bits are the same. */
static uint32_t rows_at_once(const struct mfl_net *net, uint32_t n)
{
        const size_t params = (size_t)net->graph->n * sizeof(float);
        size_t largest = 1, all = 1;
        for (int i = 1; i < net->graph->n_layers; i++) {
                const int input = net->graph->layers[i].input;
                const int64_t in = input >= 0 ? net->layers[input].layout.count : 0;
                const size_t bytes = sizeof(float) * (size_t)(net->layers[i].layout.count + in);
                largest = MFL_MAX(largest, bytes);
                all += bytes;
        }
        const size_t most = MFL_MAX(MFL_MAX(INFER_BYTES / largest, INFER_REUSE * params / all), 1u);
        const uint32_t parts = (uint32_t)((n + most - 1) / most);
        return (n + parts - 1) / parts;
}

static int infer_rows(
        struct mfl_net *net, const struct mfl_rows *x, uint32_t n, float *y, struct mfl_error *err)
{
        struct pass pass = {.net = net, .rows = n, .err = err};
        int last = net->graph->n_layers - 1;
        int64_t count = x->n_planes * x->plane;
        net->rows = n;
        if (x->dtype != MFL_U8)
                mfl_host_read_rows(x, n, mfl_cpu_act(net, 0));
        for (int64_t r = 0; x->dtype == MFL_U8 && r < n; r++)
                read_u8(net, (const uint8_t *)x->samples + r * count, x->n_planes, x->plane, x->scale,
                        x->shift, mfl_cpu_act(net, 0) + r * count);
        int rc = mfl_cpu_run_forward(&pass);
        if (!rc)
                mfl_layout_to_plain(&net->layers[last].layout, n, mfl_cpu_act(net, last), y);
        return rc;
}

int mfl_cpu_infer(struct mfl_net *net, const struct mfl_rows *x, uint32_t n, float *y, struct mfl_error *err)
{
        const size_t bytes = (size_t)(x->n_planes * x->plane) * (x->dtype == MFL_U8 ? 1 : sizeof(float));
        const uint32_t step = rows_at_once(net, n);
        struct mfl_rows part = *x;
        int rc = 0;
        mfl_assert(net->options.infer && n <= (uint32_t)net->options.batch);
        omp_set_num_threads(net->options.threads);
        for (uint32_t at = 0, rows; !rc && at < n; at += rows) {
                rows = MFL_MIN(step, n - at);
                part.samples = (const char *)x->samples + at * bytes;
                rc = infer_rows(net, &part, rows, y, err);
                y += net->layers[net->graph->n_layers - 1].layout.logical * rows;
        }
        net->rows = net->options.batch;
        return rc;
}

/* Group g's forward over the samples kept in net->x. */
static int forward_kept(struct pass *pass)
{
        struct mfl_net *net = pass->net;
        size_t input = (size_t)mfl_cpu_floats(net, 0);
        pass->dropout = net->dropout ? &net->keys[pass->group] : NULL;
        pass->rows = net->options.batch;
        memcpy(mfl_cpu_act(net, 0), net->x + input * (size_t)pass->group, input * sizeof(float));
        return mfl_cpu_run_forward(pass);
}

int mfl_cpu_forward(struct mfl_net *net, const float *x, const struct mfl_rng_key *dropout, float *y,
        struct mfl_error *err)
{
        size_t groups = (size_t)net->options.groups;
        int last = net->graph->n_layers - 1, rc = 0;
        const struct mfl_layout *l = &net->layers[last].layout;
        omp_set_num_threads(net->options.threads);
        memcpy(net->x, x, (size_t)mfl_cpu_floats(net, 0) * groups * sizeof *x);
        net->dropout = dropout != NULL;
        if (dropout)
                memcpy(net->keys, dropout, groups * sizeof *dropout);
        for (int g = 0; !rc && g < net->options.groups; g++) {
                struct pass pass = {.net = net, .group = g, .running = true, .err = err};
                rc = forward_kept(&pass);
                mfl_layout_to_plain(l, net->options.batch, mfl_cpu_act(net, last), y);
                y += l->logical * net->options.batch;
        }
        return rc;
}

/* The arena holds one group at a time, so each group's forward is repeated here. */
int mfl_cpu_backward(struct mfl_net *net, const float *dy, float *dx, float *dparams, struct mfl_error *err)
{
        int last = net->graph->n_layers - 1, rc = 0;
        int64_t batch = net->options.batch;
        const struct mfl_layout *in = &net->layers[0].layout, *out = &net->layers[last].layout;
        mfl_assert(net->options.training && (!dx || net->options.input_grad));
        omp_set_num_threads(net->options.threads);
        for (int g = 0; !rc && g < net->options.groups; g++) {
                struct pass pass = {.net = net, .group = g, .grads = net->grads, .err = err};
                rc = forward_kept(&pass);
                mfl_layout_from_plain(
                        out, batch, dy + (int64_t)g * out->logical * batch, mfl_cpu_grad(net, last));
                if (!rc)
                        rc = mfl_cpu_run_backward(&pass);
                if (!rc && dx)
                        mfl_layout_to_plain(
                                in, batch, mfl_cpu_grad(net, 0), dx + (int64_t)g * in->logical * batch);
                float *flat = dparams + (uint64_t)g * net->graph->n;
                memset(flat, 0, (size_t)net->graph->n_frozen * sizeof *flat);
                if (!rc)
                        rc = mfl_cpu_params_to_flat(
                                net, MFL_CPU_WIDE, net->grads, flat + net->graph->n_frozen, err);
        }
        return rc;
}
