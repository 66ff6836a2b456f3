/* SPDX-License-Identifier: Apache-2.0 */
/* A step as launches, captured as a CUDA graph and replayed.
 *
 * Kernel nodes of one captured step of training, one client, deterministic. They were counted on the emulated
 * device, with the first variant of every own kernel; a call of cuDNN is one node there (a device may have
 * more):
 *
 *                            fp32   tf32   bf16
 *     lenet5      batch 10     23     24     24
 *     pfl-cnn     batch 10     24     24     24
 *     fedavg-cnn  batch 32     22     22     22
 *     resnet20    batch 32    184    190    190
 *     resnet18    batch 32    158    166    167
 *     char-lstm   batch 10    345    346    346
 *
 * More clients add none, except where a library is called for each of them: 48 of resnet18's passes in fp32,
 * so 302 nodes with four clients.
 */
#include "kernels/cuda/net/net.h"

cudaError_t mfl_cuda_launch_gather(
        const struct mfl_cuda_run *pass, const struct mfl_device_data *data, bool u8)
{
        struct mfl_net *net = pass->net;
        struct mfl_cuda_gather a = {.x = net->model.layers[0].x,
                .to = mfl_cuda_act_at(net, 0),
                .labels = mfl_cuda_at(net, MFL_CUDA_LABELS),
                .u8 = u8,
                .tokens = net->model.graph->vocabulary > 0,
                .answers = net->model.answers,
                .n_planes = 1,
                .steps = pass->steps};
        if (pass->training)
                a.augment = net->model.options.augment;
        if (data) {
                a.samples = data->memory ? data->samples : mfl_cuda_at(net, MFL_CUDA_STAGE);
                a.sample_labels = data->memory ? data->labels : mfl_cuda_at(net, MFL_CUDA_STAGE_LABELS);
                a.n_planes = data->n_planes;
                memcpy(a.scale, data->dataset->scale, sizeof a.scale);
                memcpy(a.shift, data->dataset->shift, sizeof a.shift);
        }
        /* Models of other images cannot be stepped (mfl_cuda_step), only run on plain tensors. */
        if (a.x.h * a.x.w > 1 && a.x.c > MFL_CHANNELS_MAX)
                return cudaSuccess;
        return mfl_cuda_gather(&a, net->main.stream);
}

static int launch_loss(const struct mfl_cuda_run *pass, bool gradient)
{
        struct mfl_net *net = pass->net;
        const struct mfl_cuda_control *control = &net->model.control;
        int last = net->model.graph->n_layers - 1, positions = net->model.graph->positions;
        struct mfl_cuda_loss a = {.z = net->model.layers[last].x,
                .positions = positions,
                .loss = gradient ? net->model.options.loss : mfl_loss_plain(&net->model.options.loss),
                .share = gradient ? mfl_cuda_control_at(net, control->share) : NULL,
                .logits = mfl_cuda_act_at(net, last),
                .dz = gradient ? mfl_cuda_grad_at(net, last) : NULL,
                .labels = mfl_cuda_at(net, MFL_CUDA_LABELS),
                .scale = gradient ? mfl_cuda_at(net, MFL_CUDA_SCALE) : NULL,
                .loss_sum = mfl_cuda_control_at(net, control->loss_sum),
                .n_correct = mfl_cuda_control_at(net, control->n_correct),
                .n_scored = mfl_cuda_control_at(net, control->n_scored),
                .steps = pass->steps};
        if (a.z.h * a.z.w > 1) /* cannot be trained or evaluated, see mfl_cuda_step */
                return 0;
        a.z.batch *= positions;
        a.z.c /= positions;
        if (gradient)
                a.loss.weights = mfl_cuda_at(net, MFL_CUDA_CLASS_WEIGHTS);
        else if (net->model.options.tally) {
                a.tally_kind = net->model.options.tally;
                a.tally = mfl_cuda_control_at(net, control->tally);
        }
        return mfl_cuda_check(mfl_cuda_loss(&a, net->main.stream), "loss", pass->err);
}

/* Adds the batch's gradients to those of its step, where the step has several batches. */
static int accumulate(const struct mfl_cuda_run *pass, struct mfl_error *err)
{
        struct mfl_net *net = pass->net;
        struct mfl_cuda_accumulate a = {.groups = net->model.options.groups,
                .n = net->model.n_trained,
                .stride = net->model.stride,
                .grads = mfl_cuda_at(net, MFL_CUDA_GRADS),
                .sum = mfl_cuda_at(net, MFL_CUDA_GRADS_SUM),
                .steps = pass->steps};
        return a.sum ? mfl_cuda_check(mfl_cuda_accumulate(&a, net->main.stream), "add gradients", err) : 0;
}

/* ---- what a step moves ---- */

/* The next piece of the params that are trained, from *at on, that the step moves, or with !moved that it does not; false: none. Tensors
 * lie in the order of the graph, with zeros between them, which stay zeros. */
static bool next_part(
        const struct mfl_cuda_model *model, enum mfl_moves moves, bool moved, uint64_t *at, uint64_t *ret_end)
{
        uint64_t begin = model->n_trained, end = begin;
        for (int p = 0; p < model->graph->n_params; p++) {
                uint64_t first = model->at[p];
                if (first < *at || first >= model->n_trained || mfl_cuda_stays(model, p, moves) == moved)
                        continue;
                if (first < begin) {
                        begin = first;
                        end = first + model->graph->params[p].count;
                }
        }
        *at = begin;
        *ret_end = end;
        return begin < end;
}

static float *behind(const float *v, uint64_t at)
{
        return v ? (float *)(uintptr_t)v + at : NULL;
}

typedef cudaError_t launch_fn(const struct mfl_cuda_sgd_args *a, cudaStream_t stream);

/* Launches for what the step moves, piece by piece. */
static int launch_moved(const struct mfl_cuda_run *pass, const struct mfl_cuda_sgd_args *a, launch_fn *launch,
        const char *what, struct mfl_error *err)
{
        cudaStream_t stream = pass->net->main.stream;
        uint64_t end, bytes = (uint64_t)mfl_cuda_type_bytes(a->low_type);
        int rc = 0;
        if (a->opt.moves == MFL_MOVES_ALL)
                return mfl_cuda_check(launch(a, stream), what, err);
        for (uint64_t at = 0; !rc && next_part(&pass->net->model, a->opt.moves, true, &at, &end); at = end) {
                struct mfl_cuda_sgd_args part = *a;
                part.n = end - at;
                part.params = behind(a->params, at);
                part.momentum = behind(a->momentum, at);
                part.second = behind(a->second, at);
                part.first = behind(a->first, at);
                part.grads = behind(a->grads, at);
                part.correction = behind(a->correction, at);
                part.low = a->low ? (char *)a->low + at * bytes : NULL;
                rc = mfl_cuda_check(launch(&part, stream), what, err);
        }
        return rc;
}

/* What stays is no part of the norm. */
static int clear_others(
        const struct mfl_cuda_run *pass, const struct mfl_cuda_sgd_args *a, struct mfl_error *err)
{
        uint64_t end;
        int rc = 0;
        for (uint64_t at = 0; a->opt.moves != MFL_MOVES_ALL && !rc &&
                              next_part(&pass->net->model, a->opt.moves, false, &at, &end);
                at = end)
                for (int g = 0; g < a->groups && !rc; g++)
                        rc = mfl_cuda_check(
                                cudaMemsetAsync(behind(a->grads, at + (uint64_t)g * a->stride), 0,
                                        (size_t)(end - at) * sizeof(float), pass->net->main.stream),
                                "clear gradients", err);
        return rc;
}

int mfl_cuda_launch_update(
        const struct mfl_cuda_run *pass, const struct mfl_optimizer *opt, struct mfl_error *err)
{
        struct mfl_net *net = pass->net;
        const float *sum = mfl_cuda_at(net, MFL_CUDA_GRADS_SUM);
        float *first = mfl_cuda_at(net, MFL_CUDA_FIRST);
        struct mfl_cuda_sgd_args a = {.groups = net->model.options.groups,
                .n = net->model.n_trained,
                .n_norm = net->model.n_trained,
                .stride = net->model.stride,
                .params = mfl_cuda_at(net, MFL_CUDA_PARAMS),
                .momentum = mfl_cuda_at(net, MFL_CUDA_MOMENTUM),
                .first = first ? first : mfl_cuda_at(net, MFL_CUDA_BASE),
                .first_stride = first ? net->model.stride : 0,
                .grads = sum ? sum : mfl_cuda_at(net, MFL_CUDA_GRADS),
                .second = mfl_cuda_at(net, MFL_CUDA_SECOND),
                .correction = mfl_cuda_at(net, MFL_CUDA_CORRECTION),
                .rates = mfl_cuda_control_at(net, net->model.control.rates),
                .norms = mfl_cuda_at(net, MFL_CUDA_NORMS),
                .low = mfl_cuda_at(net, MFL_CUDA_LOW),
                .low_type = net->model.type,
                .opt = *opt,
                .scale = mfl_cuda_at(net, MFL_CUDA_SCALE),
                .steps = pass->steps};
        cudaStream_t stream = net->main.stream;
        if (a.n == 0)
                return 0;
        int rc = accumulate(pass, err);
        if (!rc && a.scale)
                rc = launch_moved(pass, &a, mfl_cuda_check_grads, "check gradients", err);
        if (!rc && a.correction)
                rc = launch_moved(pass, &a, mfl_cuda_add_correction, "add corrections", err);
        if (!rc && mfl_optimizer_clips_prox(opt)) {
                rc = launch_moved(pass, &a, mfl_cuda_add_prox, "add the proximal term", err);
                a.opt.prox_mu = 0;
        }
        if (!rc && opt->clip_norm > 0.0f)
                rc = clear_others(pass, &a, err);
        if (!rc && opt->clip_norm > 0.0f)
                rc = mfl_cuda_check(mfl_cuda_norms(&a, stream), "norm of gradients", err);
        if (!rc)
                rc = launch_moved(pass, &a, mfl_cuda_sgd, "update params", err);
        if (!rc)
                rc = mfl_cuda_tie_params(net, a.groups, a.params, a.low, false, err);
        if (!rc && a.scale)
                rc = mfl_cuda_check(mfl_cuda_scale_next(&a, stream), "adapt the loss scale", err);
        return rc;
}

static struct mfl_cuda_run eval_pass(struct mfl_net *net, struct mfl_error *err)
{
        struct mfl_cuda_run pass = mfl_cuda_run_of(net, false, err);
        if (net->model.options.groups == 1)
                return pass;
        const void *low = mfl_cuda_at(net, MFL_CUDA_EVAL_LOW);
        pass.params = mfl_cuda_at(net, MFL_CUDA_EVAL);
        pass.low = low ? low : pass.params;
        pass.stride = 0;
        return pass;
}

int mfl_cuda_launch_step(const struct mfl_cuda_work *work, struct mfl_error *err)
{
        struct mfl_net *net = work->net;
        bool training = work->opt || work->grain;
        struct mfl_cuda_run pass = training ? mfl_cuda_run_of(net, true, err) : eval_pass(net, err);
        pass.moves = work->opt ? work->opt->moves : MFL_MOVES_ALL;
        bool u8 = work->data && work->data->split->dtype == MFL_U8;
        int rc = !work->data ? 0
                             : mfl_cuda_check(mfl_cuda_launch_gather(&pass, work->data, u8), "gather", err);
        if (!rc)
                rc = mfl_cuda_run_forward(&pass);
        if (!rc)
                rc = launch_loss(&pass, training);
        if (!rc && training)
                rc = mfl_cuda_run_backward(&pass);
        if (!rc && work->opt)
                rc = mfl_cuda_launch_update(&pass, work->opt, err);
        if (!rc)
                rc = mfl_cuda_check(mfl_cuda_next_step(mfl_cuda_control_at(net, net->model.control.step),
                                            net->main.stream),
                        "next step", err);
        return rc;
}

static int capture(
        const struct mfl_cuda_work *work, uint32_t repeats, cudaGraph_t *ret_graph, struct mfl_error *err)
{
        cudaStream_t stream = work->net->main.stream;
        cudaGraph_t graph = NULL;
        int rc = mfl_cuda_check(
                cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "begin a capture", err);
        if (rc)
                return rc;
        for (uint32_t i = 0; !rc && i < repeats; i++)
                rc = mfl_cuda_launch_step(work, err);
        /* The capture must end in any case; the first error counts. */
        cudaError_t status = cudaStreamEndCapture(stream, &graph);
        if (!rc)
                rc = mfl_cuda_check(status, "end a capture", err);
        if (rc && graph)
                (void)cudaGraphDestroy(graph);
        if (!rc)
                *ret_graph = graph;
        return rc;
}

static int instantiate(struct mfl_cuda_replay *replay, cudaGraph_t graph, struct mfl_error *err)
{
        cudaGraphExecUpdateResultInfo info;
        /* Another optimizer or data set: the same graph with other arguments, which is cheap. */
        if (replay->exec && cudaGraphExecUpdate(replay->exec, graph, &info) == cudaSuccess)
                return 0;
        if (replay->exec) {
                (void)cudaGetLastError();
                (void)cudaGraphExecDestroy(replay->exec);
                replay->exec = NULL;
        }
        return mfl_cuda_check(cudaGraphInstantiate(&replay->exec, graph, 0), "make a graph", err);
}

/* Except for the learning rate, which comes with the tables. */
static bool same_optimizer(const struct mfl_optimizer *a, const struct mfl_optimizer *b)
{
        return a->kind == b->kind && a->momentum == b->momentum && a->weight_decay == b->weight_decay &&
               a->prox_mu == b->prox_mu && a->beta1 == b->beta1 && a->beta2 == b->beta2 && a->eps == b->eps &&
               a->clip_norm == b->clip_norm && a->nesterov == b->nesterov && a->clip_prox == b->clip_prox &&
               a->moves == b->moves;
}

static int prepare(const struct mfl_cuda_work *work, struct mfl_cuda_replay *replay, uint32_t repeats,
        struct mfl_error *err)
{
        const struct mfl_optimizer none = {0}, *opt = work->opt ? work->opt : &none;
        uint64_t data = work->data ? work->data->serial : 0;
        if (replay->exec && replay->data == data && same_optimizer(&replay->opt, opt))
                return 0;
        cudaGraph_t graph = NULL;
        int rc = capture(work, repeats, &graph, err);
        if (rc)
                return rc;
        rc = instantiate(replay, graph, err);
        (void)cudaGraphDestroy(graph);
        replay->data = data;
        replay->opt = *opt;
        return rc;
}

static int launch(
        const struct mfl_cuda_work *work, struct mfl_cuda_replay *replay, uint32_t n, struct mfl_error *err)
{
        int rc = 0;
        for (uint32_t i = 0; !rc && i < n; i++)
                rc = mfl_cuda_check(cudaGraphLaunch(replay->exec, work->net->main.stream),
                        work->opt || work->grain ? "launch a step of training"
                                                 : "launch a step of evaluation",
                        err);
        return rc;
}

int mfl_cuda_replay(const struct mfl_cuda_work *work, uint32_t n, struct mfl_error *err)
{
        struct mfl_net *net = work->net;
        struct mfl_cuda_replay *pair = work->opt || work->grain ? net->train : net->eval;
        uint32_t many = net->repeats > 1 ? n / net->repeats : 0, rest = n - many * net->repeats;
        int rc = many ? prepare(work, &pair[1], net->repeats, err) : 0;
        if (!rc && rest)
                rc = prepare(work, &pair[0], 1, err);
        if (!rc)
                rc = launch(work, &pair[1], many, err);
        return rc ? rc : launch(work, &pair[0], rest, err);
}

void mfl_cuda_replay_deinit(struct mfl_cuda_replay *replay)
{
        if (replay->exec)
                (void)cudaGraphExecDestroy(replay->exec);
        replay->exec = NULL;
}
