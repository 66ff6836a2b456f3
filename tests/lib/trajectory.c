/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a preset for a few steps and writes everything that another framework needs to do the same, and what
 * came out.
 *
 *     mfl-trajectory BACKEND MODEL BATCH STEPS DIR
 * Files in DIR, raw little-endian: params.f32 (the flat vector, in the order of the model's table), images.u8
 * and labels.i32 (the batches, in order; a pixel's value is byte / 255), gradient.f32 (of the first batch's
 * mean loss), losses.f64 (mean loss of each batch before its step of SGD, lr 0.05), final.f32. Exit: 0; 1
 * with a text; 77 when the backend is not here.
 */
#include <stdio.h>

#include "kernels/bodies.h"

#define CLASSES 10

struct trajectory {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_graph *graph;
        struct mfl_net *net;
        struct mfl_dataset set;
        uint32_t batch, n_steps;
        const char *dir;
        struct mfl_error err;
};

static void must(struct trajectory *t, int rc)
{
        if (!rc)
                return;
        fprintf(stderr, "mfl-trajectory: %s\n", t->err.text);
        exit(1);
}

static void *must_alloc(size_t n, size_t size)
{
        void *p = mfl_calloc(n, size);
        mfl_assert(p);
        return p;
}

static void write_file(const struct trajectory *t, const char *name, const void *bytes, size_t n)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s", t->dir, name);
        FILE *f = path ? fopen(path, "wb") : NULL;
        if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) {
                perror(path);
                exit(1);
        }
}

/* Images whose brightest quarter tells the class, so that there is something to learn. */
static void make_data(struct trajectory *t)
{
        struct mfl_rng rng = mfl_rng_new(7, MFL_RNG_TEST, 0, 0);
        uint32_t n = t->batch * t->n_steps;
        uint8_t *images = must_alloc(n, 784);
        int32_t *labels = must_alloc(n, sizeof *labels);
        for (uint32_t i = 0; i < n; i++) {
                labels[i] = (int32_t)mfl_rng_below(&rng, CLASSES);
                for (int k = 0; k < 784; k++) {
                        bool bright = k / 28 / 3 == labels[i];
                        images[i * 784 + (uint32_t)k] =
                                (uint8_t)(mfl_rng_below(&rng, 128) + (bright ? 127 : 0));
                }
        }
        t->set = (struct mfl_dataset){.shape = {3, {1, 28, 28}},
                .classes = CLASSES,
                .scale = {1.0f / 255.0f},
                .train = {n, MFL_U8, images, labels}};
        write_file(t, "images.u8", images, (size_t)n * 784);
        write_file(t, "labels.i32", labels, n * sizeof *labels);
}

static void write_gradient(struct trajectory *t)
{
        size_t batch = t->batch;
        float *x = must_alloc(batch * 784, sizeof *x), *y = must_alloc(batch * CLASSES, sizeof *y);
        float *grad = must_alloc((size_t)t->graph->n, sizeof *grad);
        const uint8_t *images = t->set.train.samples;
        for (size_t i = 0; i < batch * 784; i++)
                x[i] = (float)images[i] * t->set.scale[0];
        /* Training mode; no model that is compared here has dropout. */
        struct mfl_rng_key key = mfl_rng_derive(7, MFL_RNG_DROPOUT, 0, 0);
        must(t, t->ops->forward(t->net, x, &key, y, &t->err));
        for (size_t r = 0; r < batch; r++) {
                float dz[CLASSES];
                bool hit;
                mfl_softmax_xent(
                        y + r * CLASSES, CLASSES, t->set.train.labels[r], 1.0f / (float)batch, dz, &hit);
                memcpy(y + r * CLASSES, dz, sizeof dz);
        }
        must(t, t->ops->backward(t->net, y, NULL, grad, &t->err));
        write_file(t, "gradient.f32", grad, (size_t)t->graph->n * sizeof *grad);
        free(x);
        free(y);
        free(grad);
}

static void train(struct trajectory *t)
{
        struct mfl_optimizer opt = {.lr = 0.05f};
        struct mfl_device_data *data = NULL;
        uint32_t *index = must_alloc((size_t)t->batch * t->n_steps, sizeof *index);
        double *losses = must_alloc(t->n_steps, sizeof *losses);
        float *params = must_alloc((size_t)t->graph->n, sizeof *params);
        must(t, t->ops->data_new(t->device, &t->set, &t->set.train, true, &data, &t->err));
        for (uint32_t i = 0; i < t->batch * t->n_steps; i++)
                index[i] = i;
        for (uint32_t s = 0; s < t->n_steps; s++) {
                struct mfl_group_steps steps = {.index = index + s * t->batch, .count = &t->batch};
                must(t, t->ops->step(t->net, data, &steps, 1, &opt, &t->err));
                losses[s] = mfl_fixed_loss_to_double(steps.score.loss_sum) / t->batch;
        }
        must(t, t->ops->params_get(t->net, 0, params, &t->err));
        write_file(t, "losses.f64", losses, t->n_steps * sizeof *losses);
        write_file(t, "final.f32", params, (size_t)t->graph->n * sizeof *params);
        t->ops->data_free(data);
        free(index);
        free(losses);
        free(params);
}

static void run(struct trajectory *t, const char *model)
{
        struct mfl_shape shape = {3, {1, 28, 28}};
        struct mfl_net_options options = {
                .batch = (int)t->batch, .groups = 1, .threads = 1, .training = true};
        must(t, mfl_graph_preset(model, &shape, CLASSES, &t->graph, &t->err));
        float *params = must_alloc((size_t)t->graph->n, sizeof *params);
        mfl_graph_init_params(t->graph, 3, params);
        write_file(t, "params.f32", params, (size_t)t->graph->n * sizeof *params);
        make_data(t);
        must(t, t->ops->net_new(t->device, t->graph, &options, &t->net, &t->err));
        must(t, t->ops->params_set(t->net, 0, params, &t->err));
        write_gradient(t);
        must(t, t->ops->params_set(t->net, 0, params, &t->err)); /* running statistics have moved */
        train(t);
        t->ops->net_free(t->net);
        mfl_graph_free(t->graph);
        free(t->set.train.samples);
        free(t->set.train.labels);
        free(params);
}

int main(int argc, char **argv)
{
        struct trajectory t = {0};
        if (argc != 6 || atoi(argv[3]) < 1 || atoi(argv[4]) < 1) {
                fprintf(stderr, "usage: mfl-trajectory BACKEND MODEL BATCH STEPS DIR\n");
                return 1;
        }
        t.batch = (uint32_t)atoi(argv[3]);
        t.n_steps = (uint32_t)atoi(argv[4]);
        t.dir = argv[5];
        if (mfl_backend_open(argv[1], &t.ops, &t.err) || t.ops->device_open(&t.device, &t.err)) {
                fprintf(stderr, "mfl-trajectory: %s\n", t.err.text);
                return 77;
        }
        run(&t, argv[2]);
        t.ops->device_close(t.device);
        return 0;
}
