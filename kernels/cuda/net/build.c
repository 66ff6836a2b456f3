/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a network: plans of convolutions, memory, streams. Loads its kernels with a step that has no rows.
 */
#include "kernels/cuda/net/net.h"

/* For LSTM and GRU, after those of the input. */
static int plan_weights2(struct mfl_net *net, int i, struct mfl_error *err)
{
        struct mfl_cuda_model *model = &net->model;
        struct mfl_cuda_layer *own = &model->layers[i];
        struct mfl_cuda_conv_use use = {.pass = MFL_CUDA_BACKWARD_WEIGHTS,
                .bias = model->graph->layers[i].param_bias2 >= 0,
                .fast = model->options.fast};
        int rc = mfl_cuda_conv_plan_new(&net->side, &own->conv2, &use, &own->weights2, err);
        if (!rc)
                model->workspace_bytes[1] =
                        MFL_MAX(model->workspace_bytes[1], mfl_cuda_conv_plan_workspace(own->weights2));
        return rc;
}

static int plan_pass(struct mfl_net *net, int i, enum mfl_cuda_pass pass, struct mfl_error *err)
{
        struct mfl_cuda_model *model = &net->model;
        struct mfl_cuda_layer *own = &model->layers[i];
        bool weights = pass == MFL_CUDA_BACKWARD_WEIGHTS;
        struct mfl_cuda_conv_plan **at = pass == MFL_CUDA_FORWARD ? &own->forward
                                         : weights                ? &own->weights
                                                                  : &own->data;
        struct mfl_cuda_conv_use use = {.pass = pass, .fast = model->options.fast};
        if (pass == MFL_CUDA_BACKWARD_DATA) {
                use.act = own->in_act;
                use.add = own->add;
        } else {
                use.bias = model->graph->layers[i].param_bias >= 0;
                use.act = weights ? MFL_CUDA_ACT_NONE : own->act;
        }
        int rc = mfl_cuda_conv_plan_new(weights ? &net->side : &net->main, &own->conv, &use, at, err);
        if (!rc)
                model->workspace_bytes[weights] =
                        MFL_MAX(model->workspace_bytes[weights], mfl_cuda_conv_plan_workspace(*at));
        return rc;
}

static int plan_layers(struct mfl_net *net, struct mfl_error *err)
{
        struct mfl_cuda_model *model = &net->model;
        const struct mfl_graph *graph = model->graph;
        int rc = 0;
        model->workspace_bytes[0] = model->workspace_bytes[1] = 0;
        for (int i = 1; !rc && i < graph->n_layers; i++) {
                const struct mfl_cuda_layer *own = &model->layers[i];
                if (!own->live || !mfl_cuda_has_plans(&graph->layers[i]))
                        continue;
                rc = plan_pass(net, i, MFL_CUDA_FORWARD, err);
                bool weights = mfl_cuda_conv_gives(model, i, MFL_CUDA_BACKWARD_WEIGHTS);
                if (!rc && weights)
                        rc = plan_pass(net, i, MFL_CUDA_BACKWARD_WEIGHTS, err);
                if (!rc && weights && mfl_cuda_is_recurrent(graph->layers[i].op))
                        rc = plan_weights2(net, i, err);
                if (rc || !mfl_cuda_conv_gives(model, i, MFL_CUDA_BACKWARD_DATA))
                        continue;
                if (graph->layers[i].input > 0)
                        rc = plan_pass(net, i, MFL_CUDA_BACKWARD_DATA, err);
                else /* only the conformance program does this: not worth measuring */
                        model->workspace_bytes[0] = MFL_MAX(model->workspace_bytes[0],
                                mfl_cuda_conv_workspace(&own->conv, MFL_CUDA_BACKWARD_DATA, 0));
        }
        mfl_tuner_save(net->device->tuner);
        mfl_cuda_model_sizes(model);
        return rc;
}

static int make_events(struct mfl_net *net, struct mfl_error *err)
{
        cudaEvent_t *plain[] = {&net->fork, &net->join, &net->copied[0], &net->copied[1], &net->computed[0],
                &net->computed[1]};
        int rc = 0;
        for (size_t i = 0; !rc && i < MFL_ARRAY_SIZE(plain); i++)
                rc = mfl_cuda_check(
                        cudaEventCreateWithFlags(plain[i], cudaEventDisableTiming), "create an event", err);
        return rc;
}

static int make_streams(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_device *device = net->device;
        int rc = mfl_cuda_context_init(&net->main, device->ordinal, device->tuner, err);
        if (!rc && net->model.options.training)
                rc = mfl_cuda_context_init(&net->side, device->ordinal, device->tuner, err);
        if (!rc)
                rc = make_events(net, err);
        if (!rc && net->model.options.streamed)
                rc = mfl_cuda_check(cudaStreamCreateWithFlags(&net->copies, cudaStreamNonBlocking),
                        "create a stream", err);
        return rc;
}

static int send_permutation(struct mfl_net *net, struct mfl_error *err)
{
        size_t n = (size_t)net->model.flat->n;
        MFL_CLEANUP_FREE uint32_t *place = mfl_calloc(n, sizeof *place);
        if (!place)
                return mfl_fail_memory(err, n * sizeof *place, "order of params");
        if (n == 0)
                return 0;
        mfl_cuda_model_permutation(&net->model, place);
        int rc = mfl_cuda_check(cudaMemcpyAsync(mfl_cuda_at(net, MFL_CUDA_PLACE), place, n * sizeof *place,
                                        cudaMemcpyHostToDevice, net->main.stream),
                "copy the order of params", err);
        return rc ? rc : mfl_cuda_sync(net, "copy the order of params", err); /* place is freed */
}

static int send_constants(struct mfl_net *net, struct mfl_error *err)
{
        static const struct mfl_cuda_scale start = {.scale = MFL_LOSS_SCALE_START};
        struct mfl_cuda_scale *scale = mfl_cuda_at(net, MFL_CUDA_SCALE);
        int rc = scale ? mfl_cuda_check(cudaMemcpyAsync(scale + net->model.options.groups, &start,
                                                sizeof start, cudaMemcpyHostToDevice, net->main.stream),
                                 "set the loss scale", err)
                       : 0;
        const struct mfl_loss *loss = &net->model.options.loss;
        float *weights = mfl_cuda_at(net, MFL_CUDA_CLASS_WEIGHTS);
        if (!rc && weights)
                rc = mfl_cuda_check(
                        cudaMemcpyAsync(weights, loss->weights, (size_t)loss->n_weights * sizeof *weights,
                                cudaMemcpyHostToDevice, net->main.stream),
                        "copy weights of classes", err);
        if (!rc)
                rc = mfl_cuda_send_ties(net, err);
        if (!rc)
                rc = mfl_cuda_maps_send(net, err);
        return rc ? rc : send_permutation(net, err);
}

static int allocate(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_cuda_model *model = &net->model;
        uint64_t control = mfl_cuda_round_up(model->control.bytes);
        uint64_t stage = mfl_cuda_round_up(model->region_bytes[MFL_CUDA_STAGE]);
        uint64_t pinned = control + stage + model->region_bytes[MFL_CUDA_STAGE_LABELS];
        void *memory = NULL;
        int rc = mfl_cuda_alloc(model->bytes, "network on the device", &memory, err);
        net->memory = memory;
        if (rc)
                return rc;
        void *host = NULL;
        rc = mfl_cuda_check(cudaMallocHost(&host, (size_t)pinned), "allocate pinned memory", err);
        if (rc)
                return rc;
        net->pinned = host;
        net->pinned_stage = net->pinned + control;
        net->pinned_labels = (int32_t *)(net->pinned_stage + stage);
        memset(net->pinned, 0, (size_t)pinned);
        rc = mfl_cuda_pipe_init(&net->pipe, model->flat->n * sizeof(int64_t), err);
        if (rc)
                return rc;
        /* What lies between tensors of params stays 0, so that no memory is read that was never written. */
        rc = mfl_cuda_check(cudaMemsetAsync(net->memory, 0, (size_t)model->bytes, net->main.stream),
                "clear the network's memory", err);
        return rc ? rc : send_constants(net, err);
}

/* Kernels are loaded when they are first launched, which must not be within a capture. No group has rows, so
 * nothing changes. */
static int load_kernels(struct mfl_net *net, struct mfl_error *err)
{
        struct mfl_optimizer opt = {0};
        struct mfl_cuda_run pass = mfl_cuda_run_of(net, false, err);
        struct mfl_cuda_work train = {.net = net, .opt = &opt}, eval = {.net = net};
        if (net->model.options.worker)
                train = (struct mfl_cuda_work){.net = net, .grain = true};
        int rc = mfl_cuda_check(mfl_cuda_launch_gather(&pass, NULL, false), "gather", err);
        if (!rc)
                rc = mfl_cuda_check(mfl_cuda_launch_gather(&pass, NULL, true), "gather", err);
        if (!rc && net->model.options.training)
                rc = mfl_cuda_launch_step(&train, err);
        if (!rc && train.opt &&
                net->model.options.training) { /* kernels that another optimizer would launch */
                bool first = mfl_net_has_first(&net->model.options),
                     second = mfl_net_has_second(&net->model.options);
                struct mfl_optimizer other = {.kind = !second ? MFL_OPTIMIZER_SGD
                                                      : first ? MFL_OPTIMIZER_ADAM
                                                              : MFL_OPTIMIZER_ADAGRAD,
                        .clip_norm = 1.0f};
                rc = mfl_cuda_launch_update(&pass, &other, err);
        }
        if (!rc)
                rc = mfl_cuda_launch_step(&eval, err);
        return rc ? rc : mfl_cuda_sync(net, "first launch of a network", err);
}

/* Steps of one large graph. More do not pay where a step has many kernels, as with a library that is called
 * for each client. */
static uint32_t repeats_of(const struct mfl_cuda_model *model)
{
        uint32_t launches = 8;
        for (int i = 1; i < model->graph->n_layers; i++) {
                const struct mfl_cuda_layer *own = &model->layers[i];
                const struct mfl_cuda_conv_plan *plans[] = {own->forward, own->data, own->weights};
                launches += own->carried ? 0 : 3;
                if (mfl_cuda_is_recurrent(model->graph->layers[i].op))
                        launches += mfl_cuda_lstm_launches(model, i);
                for (size_t k = 0; k < MFL_ARRAY_SIZE(plans); k++)
                        launches += plans[k] ? mfl_cuda_conv_plan_calls(plans[k]) - 1 : 0;
        }
        return MFL_MIN(MFL_MAX(512 / launches, 1), 16);
}

static int build(struct mfl_net *net, struct mfl_error *err)
{
        int rc = mfl_cuda_enter(net, err);
        if (!rc)
                rc = make_streams(net, err);
        if (!rc)
                rc = plan_layers(net, err);
        if (!rc)
                rc = allocate(net, err);
        if (!rc)
                rc = load_kernels(net, err);
        if (!rc && net->model.options.worker)
                rc = mfl_cuda_grad_init(net, err);
        net->repeats = repeats_of(&net->model);
        return rc;
}

int mfl_cuda_net_new(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err)
{
        struct mfl_net *net = mfl_calloc(1, sizeof *net);
        if (!net)
                return mfl_fail_memory(err, sizeof *net, "network");
        net->device = device;
        int rc = mfl_cuda_model_init(&net->model, graph, options, err);
        if (!rc)
                rc = build(net, err);
        if (rc) {
                mfl_cuda_net_free(net);
                return rc;
        }
        *ret_net = net;
        return 0;
}

void mfl_cuda_net_free(struct mfl_net *net)
{
        if (!net)
                return;
        cudaEvent_t events[] = {
                net->fork, net->join, net->copied[0], net->copied[1], net->computed[0], net->computed[1]};
        (void)cudaSetDevice(net->device->ordinal);
        /* After an error, copies may still be under way from memory that is freed below. */
        if (net->copies)
                (void)cudaStreamSynchronize(net->copies);
        if (net->main.stream)
                (void)cudaStreamSynchronize(net->main.stream);
        if (net->side.stream)
                (void)cudaStreamSynchronize(net->side.stream);
        for (int k = 0; k < 2; k++) {
                mfl_cuda_replay_deinit(&net->train[k]);
                mfl_cuda_replay_deinit(&net->eval[k]);
        }
        mfl_cuda_grad_deinit(net);
        mfl_cuda_model_deinit(&net->model);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(events); i++)
                if (events[i])
                        (void)cudaEventDestroy(events[i]);
        if (net->copies)
                (void)cudaStreamDestroy(net->copies);
        mfl_cuda_context_deinit(&net->main);
        mfl_cuda_context_deinit(&net->side);
        if (net->memory)
                (void)cudaFree(net->memory);
        if (net->pinned)
                (void)cudaFreeHost(net->pinned);
        mfl_cuda_pipe_deinit(&net->pipe);
        free(net);
}
