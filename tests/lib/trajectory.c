/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a preset for a few steps on batches that another framework made, and writes everything that it needs
 * to do the same, and what came out.
 *
 *     mfl-trajectory BACKEND MODEL INPUT CLASSES BATCH STEPS DIR [KEY=VALUE...]
 *
 * BACKEND: or auto, the first of cpu and reference that is here and does not refuse the model. INPUT:
 * "3x8x8", or "16" tokens. Keys: optimizer (sgd, adam, adamw, adagrad), lr, momentum, nesterov, weight_decay,
 * prox_mu, eps, clip_norm, loss (cross-entropy and the others of job files), smoothing, parameter (focal: gamma, huber:
 * delta, smooth-l1: beta), ignored (a label), accumulate, middle (steps after
 * which middle.f32 is written).
 * Read from DIR, raw little-endian: samples.u8 (a pixel's value is byte / 255) or tokens.i32; labels.i32 (one
 * for each position) or targets.f32; where they are there lr_scale.f32, a factor for each step, weights.f32,
 * one for each class or target, and
 * start.f32, the params to start from. Written: params.f32 (the flat vector, in the order of the model's
 * table), names.txt (of its tensors), gradient.f32 (of the first batch's mean loss), losses.f64 (mean loss of
 * each step's rows before it), middle.f32, final.f32. Layers of dropout let everything through. Prints the
 * backend's name. Exit: 0; 1 with a text; 77 when the backend is not here.
 */
#include <inttypes.h>
#include <stdio.h>

#include "kernels/host.h"

struct trajectory {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_graph *graph;
        struct mfl_net *net;
        struct mfl_dataset set;
        struct mfl_shape input;
        struct mfl_optimizer opt;
        struct mfl_loss loss;
        uint32_t batch, n_steps, accumulate, middle;
        int classes;
        const char *dir;
        float *params, *lr_scale, *weights;
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

static FILE *open_file(const struct trajectory *t, const char *name, const char *mode)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s", t->dir, name);
        return path ? fopen(path, mode) : NULL;
}

static void write_file(const struct trajectory *t, const char *name, const void *bytes, size_t n)
{
        FILE *f = open_file(t, name, "wb");
        if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) {
                perror(name);
                exit(1);
        }
}

/* n bytes, or NULL where the file is not there. */
static void *read_file(const struct trajectory *t, const char *name, size_t n)
{
        FILE *f = open_file(t, name, "rb");
        if (!f)
                return NULL;
        void *bytes = must_alloc(n, 1);
        if (fread(bytes, 1, n, f) != n || fgetc(f) != EOF) {
                fprintf(stderr, "mfl-trajectory: %s is not of %zu bytes\n", name, n);
                exit(1);
        }
        fclose(f);
        return bytes;
}

static int find(const char *text, const char *const *names)
{
        for (int i = 0; names[i]; i++)
                if (!strcmp(text, names[i]))
                        return i;
        fprintf(stderr, "mfl-trajectory: %s is not known\n", text);
        exit(1);
}

static void set_option(struct trajectory *t, const char *text)
{
        static const char *const optimizers[] = {"sgd", "adam", "adamw", "adagrad", NULL};
#define LOSS_NAME(symbol, name, answers, decides) name,
        static const char *const losses[] = {MFL_LOSSES(LOSS_NAME) NULL};
        const struct {
                const char *key;
                float *value;
        } numbers[] = {{"lr", &t->opt.lr}, {"momentum", &t->opt.momentum},
                {"weight_decay", &t->opt.weight_decay}, {"prox_mu", &t->opt.prox_mu}, {"eps", &t->opt.eps},
                {"clip_norm", &t->opt.clip_norm}, {"smoothing", &t->loss.smoothing},
                {"parameter", &t->loss.parameter}};
        const char *value = strchr(text, '=');
        size_t len = value ? (size_t)(value++ - text) : 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(numbers); i++) {
                if (len == strlen(numbers[i].key) && !strncmp(text, numbers[i].key, len)) {
                        *numbers[i].value = strtof(value, NULL);
                        return;
                }
        }
        if (!strncmp(text, "optimizer=", 10))
                t->opt.kind = (enum mfl_optimizer_kind)find(value, optimizers);
        else if (!strncmp(text, "loss=", 5))
                t->loss.kind = (enum mfl_loss_kind)find(value, losses);
        else if (!strncmp(text, "accumulate=", 11))
                t->accumulate = (uint32_t)atoi(value);
        else if (!strncmp(text, "ignored=", 8))
                t->loss.has_ignored = true, t->loss.ignored = atoi(value);
        else if (!strncmp(text, "middle=", 7))
                t->middle = (uint32_t)atoi(value);
        else if (!strcmp(text, "nesterov=1"))
                t->opt.nesterov = true;
        else
                find(text, (const char *const[]){NULL});
}

static void read_data(struct trajectory *t)
{
        uint32_t n = t->batch * t->accumulate * t->n_steps;
        size_t count = (size_t)mfl_shape_count(&t->input);
        bool tokens = t->graph->vocabulary > 0,
             classes = mfl_loss_answers(t->loss.kind) == MFL_ANSWERS_LABELS;
        t->set = (struct mfl_dataset){.shape = t->input,
                .classes = classes ? t->classes : 0,
                .n_targets = classes ? 0 : t->classes,
                .vocabulary = t->graph->vocabulary,
                .labels_per_sample = t->graph->positions,
                .train = {.n = n, .dtype = tokens ? MFL_I32 : MFL_U8}};
        for (int c = 0; c < MFL_CHANNELS_MAX; c++)
                t->set.scale[c] = 1.0f / 255.0f;
        t->set.train.samples = tokens ? read_file(t, "tokens.i32", n * count * sizeof(int32_t))
                                      : read_file(t, "samples.u8", n * count);
        if (classes)
                t->set.train.labels =
                        read_file(t, "labels.i32", n * (size_t)t->graph->positions * sizeof(int32_t));
        else
                t->set.train.targets = read_file(t, "targets.f32", n * (size_t)t->classes * sizeof(float));
        t->lr_scale = read_file(t, "lr_scale.f32", t->n_steps * sizeof(float));
        if (t->set.train.samples && (t->set.train.labels || t->set.train.targets))
                return;
        fprintf(stderr, "mfl-trajectory: samples or what they should give are missing\n");
        exit(1);
}

static void write_gradient(struct trajectory *t)
{
        uint32_t batch = t->batch;
        const struct mfl_layer *last = &t->graph->layers[t->graph->n_layers - 1];
        size_t in = batch * (size_t)mfl_shape_count(&t->input);
        size_t out = batch * (size_t)mfl_shape_count(&last->out);
        float *x = must_alloc(in, sizeof *x), *y = must_alloc(2 * out, sizeof *y), *dy = y + out;
        float *grad = must_alloc((size_t)t->graph->n, sizeof *grad);
        uint32_t *index = must_alloc(batch, sizeof *index);
        struct mfl_device_data *data = NULL;
        struct mfl_score score = {0};
        struct mfl_rng_key key = mfl_rng_derive(7, MFL_RNG_DROPOUT, 0, 0);
        must(t, mfl_host_data_new(NULL, &t->set, &t->set.train, true, &data, &t->err));
        for (uint32_t i = 0; i < batch; i++)
                index[i] = i;
        mfl_host_gather(data, index, batch, x);
        must(t, t->ops->forward(t->net, x, &key, y, &t->err)); /* training mode */
        struct mfl_loss_share share = mfl_loss_share_of(&t->set, &t->set.train, &t->loss, index, batch);
        struct mfl_host_loss loss = {data, t->graph, &t->loss, index, batch, &share, NULL, NULL};
        mfl_host_loss(&loss, y, dy, &score);
        must(t, t->ops->backward(t->net, dy, NULL, grad, &t->err));
        write_file(t, "gradient.f32", grad, (size_t)t->graph->n * sizeof *grad);
        mfl_host_data_free(data);
        free(x);
        free(y);
        free(grad);
        free(index);
}

static void write_params(struct trajectory *t, const char *name)
{
        must(t, t->ops->params_get(t->net, 0, 0, t->params, &t->err));
        write_file(t, name, t->params, (size_t)t->graph->n * sizeof *t->params);
}

static void train(struct trajectory *t)
{
        struct mfl_device_data *data = NULL;
        uint32_t rows = t->batch * t->accumulate;
        uint32_t *index = must_alloc((size_t)rows * t->n_steps, sizeof *index);
        double *losses = must_alloc(t->n_steps, sizeof *losses);
        must(t, t->ops->data_new(t->device, &t->set, &t->set.train, true, &data, &t->err));
        for (uint32_t i = 0; i < rows * t->n_steps; i++)
                index[i] = i;
        for (uint32_t s = 0; s < t->n_steps; s++) {
                struct mfl_group_steps steps = {.index = index + s * rows,
                        .count = &rows,
                        .step_first = s,
                        .lr_scale = t->lr_scale ? &t->lr_scale[s] : NULL};
                must(t, t->ops->step(t->net, data, &steps, 1, &t->opt, &t->err));
                losses[s] = mfl_fixed_loss_to_double(steps.score.loss_sum) / (double)steps.score.n_scored;
                if (s + 1 == t->middle)
                        write_params(t, "middle.f32");
        }
        write_params(t, "final.f32");
        write_file(t, "losses.f64", losses, t->n_steps * sizeof *losses);
        t->ops->data_free(data);
        free(index);
        free(losses);
}

/* A network of that backend, or MFL_NOT_FOUND or MFL_INVALID with the reason. */
static int open_net(struct trajectory *t, const char *backend)
{
        struct mfl_net_options options = {.batch = (int)t->batch,
                .groups = 1,
                .threads = 1,
                .training = true,
                .loss = t->loss,
                .accumulate = (int)t->accumulate};
        int rc = mfl_backend_open(backend, &t->ops, &t->err);
        if (!rc)
                rc = t->ops->device_open(&t->device, &t->err);
        if (!rc && (rc = t->ops->net_new(t->device, t->graph, &options, &t->net, &t->err)))
                t->ops->device_close(t->device);
        return rc;
}

static void make_graph(struct trajectory *t, const char *model)
{
        must(t, mfl_graph_preset(model, &t->input, t->classes, &t->graph, &t->err));
        for (int i = 0; i < t->graph->n_layers; i++)
                t->graph->layers[i].rate = 0;
        t->params = must_alloc((size_t)t->graph->n, sizeof *t->params);
        mfl_graph_init_params(t->graph, 3, t->params);
        MFL_CLEANUP_FREE float *start = read_file(t, "start.f32", (size_t)t->graph->n * sizeof *start);
        if (start)
                memcpy(t->params, start, (size_t)t->graph->n * sizeof *start);
        write_file(t, "params.f32", t->params, (size_t)t->graph->n * sizeof *t->params);
        FILE *names = open_file(t, "names.txt", "w");
        mfl_assert(names);
        for (int i = 0; i < t->graph->n_params; i++)
                fprintf(names, "%s\n", t->graph->params[i].name);
        fclose(names);
}

static int run(struct trajectory *t, const char *backend, const char *model)
{
        make_graph(t, model);
        bool any = !strcmp(backend, "auto");
        int rc = open_net(t, any ? "cpu" : backend);
        if (any && rc > 0)
                rc = open_net(t, "reference");
        if (rc) {
                fprintf(stderr, "mfl-trajectory: %s\n", t->err.text);
                return rc == MFL_NOT_FOUND ? 77 : 1;
        }
        printf("%s\n", t->ops->name);
        read_data(t);
        must(t, mfl_backend_set(t->ops, t->net, t->graph, 0, t->params, &t->err));
        write_gradient(t);
        must(t, mfl_backend_set(
                        t->ops, t->net, t->graph, 0, t->params, &t->err)); /* running statistics have moved */
        train(t);
        t->ops->net_free(t->net);
        t->ops->device_close(t->device);
        return 0;
}

static bool read_shape(const char *text, struct mfl_shape *shape)
{
        shape->rank = sscanf(
                text, "%" SCNd64 "x%" SCNd64 "x%" SCNd64, &shape->dim[0], &shape->dim[1], &shape->dim[2]);
        return shape->rank >= 1;
}

int main(int argc, char **argv)
{
        struct trajectory t = {
                .opt = {.lr = 0.05f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f}, .accumulate = 1};
        if (argc < 8 || !read_shape(argv[3], &t.input) || atoi(argv[4]) < 1 || atoi(argv[5]) < 1 ||
                atoi(argv[6]) < 1) {
                fprintf(stderr, "usage: mfl-trajectory BACKEND MODEL INPUT CLASSES BATCH STEPS DIR "
                                "[KEY=VALUE...]\n");
                return 1;
        }
        t.classes = atoi(argv[4]);
        t.batch = (uint32_t)atoi(argv[5]);
        t.n_steps = (uint32_t)atoi(argv[6]);
        t.dir = argv[7];
        for (int i = 8; i < argc; i++)
                set_option(&t, argv[i]);
        t.loss.weights = t.weights = read_file(&t, "weights.f32", (size_t)t.classes * sizeof(float));
        t.loss.n_weights = t.weights ? t.classes : 0;
        int status = run(&t, argv[1], argv[2]);
        mfl_graph_free(t.graph);
        free(t.weights);
        free(t.set.train.samples);
        free(t.set.train.labels);
        free(t.set.train.targets);
        free(t.params);
        free(t.lr_scale);
        return status;
}
