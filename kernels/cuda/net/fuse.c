/* SPDX-License-Identifier: Apache-2.0 */
/* How many clients to train at once: as many as memory holds, up to the knee of the speed curve.
 *
 * G doubles from 1 while the measured time of a captured step per client still falls by more than a tenth.
 * The tuner stores each time under the model's digest, so another job of the same model on this kind of
 * device measures nothing. A G that does not fit the device ends the search.
 */
#include <inttypes.h>
#include <stdio.h>

#include "common/base/digest.h"
#include "kernels/cuda/net/net.h"

#define WARM_STEPS 4
#define MEASURES 3
#define MEASURE_NS ((uint64_t)20000000) /* of one measurement, approximately */
#define WORTH 0.9                       /* of the time per client before */

static uint64_t bytes_with(const struct mfl_graph *graph, const struct mfl_net_options *options, int groups)
{
        struct mfl_net_options with = *options;
        with.groups = groups;
        uint64_t bytes = mfl_cuda_net_bytes(graph, &with);
        return bytes ? bytes : UINT64_MAX; /* no network can be made */
}

/* The largest G of at most `wanted` that fits; 0: none. */
static int groups_that_fit(const struct mfl_graph *graph, const struct mfl_net_options *options, int wanted,
        uint64_t memory_bytes)
{
        int fits = 0, fails = wanted + 1;
        while (fails - fits > 1) {
                int middle = fits + (fails - fits) / 2;
                if (bytes_with(graph, options, middle) <= memory_bytes)
                        fits = middle;
                else
                        fails = middle;
        }
        return fits;
}

static int add_layer(struct mfl_sha256 *sha, const struct mfl_layer *layer, struct mfl_error *err)
{
        char line[256];
        int n = snprintf(line, sizeof line, "%d %d %d %d %dx%d/%dx%d+%dx%d*%dx%d %d %d %d;", (int)layer->op,
                layer->input, layer->input2, layer->out_channels, layer->kernel[0], layer->kernel[1],
                layer->stride[0], layer->stride[1], layer->padding[0], layer->padding[1], layer->dilation[0],
                layer->dilation[1], layer->bias, layer->rate > 0, layer->norm_groups);
        int rc = mfl_sha256_update(sha, line, (size_t)n, err);
        /* Properties that older operators do not have enter the key only where they are used, so that earlier
         * measurements stay valid. */
        n = snprintf(line, sizeof line, "%d %d %d %d %d %d %d %d;", layer->conv_groups, layer->axis,
                layer->start, layer->end, layer->vocabulary, layer->heads, layer->lora_rank, layer->frozen);
        if (!rc && strcmp(line, "0 0 0 0 0 0 0 0;") != 0)
                rc = mfl_sha256_update(sha, line, (size_t)n, err);
        if (!rc && layer->ceil_mode)
                rc = mfl_sha256_update(sha, "ceil", 4, err);
        if (!rc && layer->op > MFL_OP_GROUPNORM) {
                char shape[96];
                mfl_shape_text(&layer->out, shape, sizeof shape);
                rc = mfl_sha256_update(sha, shape, strlen(shape), err);
        }
        return rc;
}

/* What the time of a step depends on, as a key for the tuner without G. */
static int make_key(const struct mfl_graph *graph, const struct mfl_net_options *options, char *key,
        size_t bytes, struct mfl_error *err)
{
        static const char *const names[] = {"fp32", "tf32", "bf16", "fp16"};
        uint8_t digest[MFL_SHA256_BYTES];
        char hex[MFL_SHA256_HEX_BYTES], shape[96];
        struct mfl_sha256 sha;
        int rc = mfl_sha256_init(&sha, err);
        mfl_shape_text(&graph->input, shape, sizeof shape);
        if (!rc)
                rc = mfl_sha256_update(&sha, shape, strlen(shape), err);
        for (int i = 0; !rc && i < graph->n_layers; i++)
                rc = add_layer(&sha, &graph->layers[i], err);
        if (!rc)
                rc = mfl_sha256_final(&sha, digest, err);
        mfl_sha256_deinit(&sha);
        if (rc)
                return rc;
        mfl_hex(digest, 12, hex);
        int at = snprintf(key, bytes, "step %s %s batch %d%s", hex, names[options->precision], options->batch,
                options->fast ? " fast" : "");
        if (options->segments > 1)
                at += snprintf(key + at, bytes - (size_t)at, " segments %d", options->segments);
        else if (options->segments == MFL_SEGMENTS_AUTO)
                at += snprintf(key + at, bytes - (size_t)at, " segments auto");
        if (!mfl_net_has_first(options)) /* it measures another step, see below */
                snprintf(key + at, bytes - (size_t)at, " plain");
        return 0;
}

static int time_steps(const struct mfl_cuda_work *work, uint32_t n, uint64_t *ret_ns, struct mfl_error *err)
{
        struct mfl_net *net = work->net;
        /* Step 0 of the tables again each time: the counter goes on, but not beyond the tables. */
        int rc = mfl_cuda_control_send(net, 0, err);
        if (!rc)
                rc = mfl_cuda_sync(net, "time a step", err);
        uint64_t start_ns = mfl_now_ns();
        if (!rc)
                rc = mfl_cuda_replay(work, n, err);
        if (!rc)
                rc = mfl_cuda_sync(net, "time a step", err);
        *ret_ns = mfl_now_ns() - start_ns;
        return rc;
}

/* Nanoseconds of one step of all groups, on full batches of zeros. */
static int measure_net(struct mfl_net *net, double *ret_ns, struct mfl_error *err)
{
        const struct mfl_optimizer opt = {
                .lr = 0.0f, .momentum = mfl_net_has_first(&net->model.options) ? 0.9f : 0.0f};
        const struct mfl_cuda_work work = {.net = net, .opt = &opt};
        uint32_t steps_max = net->model.steps_max, n;
        uint32_t *count = mfl_cuda_pinned(net, net->model.control.count);
        uint64_t best = UINT64_MAX, ns = 0;
        for (size_t i = 0; i < (size_t)steps_max * (size_t)net->model.options.groups; i++)
                count[i] = (uint32_t)net->model.options.batch;
        int rc = mfl_cuda_tables_send(net, 0, steps_max, net->main.stream, err);
        n = MFL_MIN(WARM_STEPS, steps_max);
        if (!rc)
                rc = time_steps(&work, n, &ns, err);
        if (!rc)
                rc = time_steps(&work, n, &ns, err);
        n = (uint32_t)MFL_MIN(MFL_MAX(MEASURE_NS * n / MFL_MAX(ns, 1), n), steps_max);
        for (int i = 0; !rc && i < MEASURES; i++) {
                rc = time_steps(&work, n, &ns, err);
                best = MFL_MIN(best, ns);
        }
        *ret_ns = (double)best / n;
        return rc;
}

/* From the tuner, or measured and stored. MFL_INVALID: it does not fit the device. */
static int step_ns(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, int groups, const char *key, double *ret_ns,
        struct mfl_error *err)
{
        struct mfl_net_options with = *options;
        char full[MFL_TUNE_KEY_BYTES], choice[MFL_TUNE_CHOICE_BYTES];
        struct mfl_net *net = NULL;
        snprintf(full, sizeof full, "%s groups %d", key, groups);
        if (mfl_tuner_get(device->tuner, full, choice, ret_ns))
                return 0;
        with.groups = groups;
        int rc = mfl_cuda_net_new(device, graph, &with, &net, err);
        if (!rc)
                rc = measure_net(net, ret_ns, err);
        mfl_cuda_net_free(net);
        return rc ? rc : mfl_tuner_put(device->tuner, full, "ns", *ret_ns, err);
}

static int find_knee(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, int most, int *ret_groups, struct mfl_error *err)
{
        char key[MFL_TUNE_KEY_BYTES - 32]; /* room for G */
        double best = 0, ns;
        int rc = make_key(graph, options, key, sizeof key, err), groups = 1;
        for (int g = 1; !rc; g = MFL_MIN(2 * g, most)) {
                rc = step_ns(device, graph, options, g, key, &ns, err);
                if ((rc == MFL_INVALID || rc == -ENOMEM) && g > 1) {
                        rc = 0; /* less memory than the budget said, or none beside it for a trial */
                        break;
                }
                if (rc || (g > 1 && ns / g > WORTH * best))
                        break;
                best = ns / g;
                groups = g;
                if (g == most)
                        break;
        }
        mfl_tuner_save(device->tuner);
        if (!rc)
                *ret_groups = groups;
        return rc;
}

int mfl_cuda_fuse(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, int wanted, uint64_t memory_bytes, int *ret_groups,
        struct mfl_error *err)
{
        struct mfl_cuda_model model;
        mfl_assert(wanted >= 1);
        /* If even one cannot be done, the error says why. */
        struct mfl_net_options one = *options;
        one.groups = 1;
        int rc = mfl_cuda_model_init(&model, graph, &one, err);
        if (rc)
                return rc;
        uint64_t bytes = model.bytes;
        mfl_cuda_model_deinit(&model);
        int most = groups_that_fit(graph, options, wanted, memory_bytes);
        if (most < 1)
                return mfl_fail(err, MFL_INVALID,
                        "model %s with batch %d takes %" PRIu64 " bytes on the device, and %" PRIu64
                        " are left",
                        graph->name, options->batch, bytes, memory_bytes);
        if (most == 1 || !options->training) {
                *ret_groups = most;
                return 0;
        }
        return find_knee(device, graph, options, most, ret_groups, err);
}
