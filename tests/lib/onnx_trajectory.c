/* SPDX-License-Identifier: Apache-2.0 */
/* Imports an ONNX file as `mfl submit` does, trains it for a few steps, and writes everything that PyTorch
 * needs to do the same, and what came out.
 *
 *     mfl-onnx-trajectory FILE.onnx                        only tells the layers
 *     mfl-onnx-trajectory FILE.onnx SAMPLES LABELS BATCH STEPS LR DIR [BACKEND [outputs [WEIGHT ...]]]
 * SAMPLES holds float32 (tokens too), LABELS int32: the batches in order. Files written to DIR: losses.f64
 * (mean loss of each batch before its step of SGD), logits.f32 (of the first batch, after training,
 * inference), final.onnx (the trained model as `mfl pull --format onnx` writes it). The export is read back:
 * the same layers and the same bits, or with `outputs` the same outputs, or it fails. WEIGHTs are those of the losses of
 * auxiliary outputs, all of them; the file is not written and read back then.
 */
#include <math.h>
#include <stdio.h>

#include "cli/onnx/onnx.h"
#include "common/base/fs.h"
#include "common/job/job.h"
#include "kernels/bodies.h"

static struct mfl_error err;

static void must(int rc)
{
        if (!rc)
                return;
        fprintf(stderr, "mfl-onnx-trajectory: %s\n", err.text);
        exit(1);
}

static void *read_file(const char *path, size_t *ret_n)
{
        char *bytes;
        must(mfl_fs_read(path, (size_t)1 << 30, &bytes, ret_n, &err));
        return bytes;
}

static void write_file(const char *dir, const char *name, const void *bytes, size_t n)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s", dir, name);
        FILE *f = path ? fopen(path, "wb") : NULL;
        if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) {
                perror(path);
                exit(1);
        }
}

static int map_nothing(
        void *user, const char *name, const uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *ret_err)
{
        (void)user;
        (void)ret_bytes;
        (void)ret_n;
        return mfl_fail(ret_err, MFL_INVALID, "%s: external data are not read here", name);
}

static void import(const char *path, int auxiliary, struct mfl_onnx_model *model)
{
        size_t n;
        MFL_CLEANUP_FREE uint8_t *bytes = read_file(path, &n);
        struct mfl_onnx_files files = {.map = map_nothing, .auxiliary = (uint32_t)auxiliary};
        must(mfl_onnx_convert(bytes, n, path, auxiliary ? &files : NULL, model, &err));
}

/* By the way of the job file, as the server and the daemons go. */
static struct mfl_graph *graph_of(const struct mfl_onnx_model *model)
{
        struct mfl_job *job;
        struct mfl_graph *graph;
        MFL_CLEANUP_FREE char *text =
                mfl_asprintf("name: t\nrounds: 1\nmodel:\n  layers:\n%sdata: {name: d, partition: iid, "
                             "clients: 1}\ntraining: {optimizer: sgd, lr: 0.1, epochs: 1, batch: 1}\n",
                        model->text);
        mfl_assert(text);
        must(mfl_job_parse(text, strlen(text), "imported", &job, &err));
        job->by_layers = true; /* as model->params are */
        must(mfl_job_graph(job, &model->input, model->classes, &graph, &err));
        mfl_job_free(job);
        mfl_assert(graph->n == model->n);
        return graph;
}

/* The outputs of a batch, and what they are computed from. */
struct outputs {
        const float *samples, *logits;
        uint32_t batch;
        size_t n;
};

static void check_outputs(const struct mfl_graph *graph, const float *params, const struct outputs *of)
{
        struct mfl_net_options options = {.batch = (int)of->batch, .groups = 1, .threads = 1};
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_net *net;
        MFL_CLEANUP_FREE float *logits = mfl_calloc(of->n, sizeof *logits);
        float largest = 0;
        mfl_assert(logits);
        must(mfl_backend_open("reference", &ops, &err));
        must(ops->device_open(&device, &err));
        must(ops->net_new(device, graph, &options, &net, &err));
        must(ops->params_set(net, 0, NULL, params, &err));
        must(ops->forward(net, of->samples, NULL, logits, &err));
        ops->net_free(net);
        ops->device_close(device);
        for (size_t i = 0; i < of->n; i++)
                largest = fmaxf(largest, fabsf(of->logits[i]));
        for (size_t i = 0; i < of->n; i++) {
                if (!(fabsf(logits[i] - of->logits[i]) <= 1e-5f * largest)) {
                        fprintf(stderr,
                                "mfl-onnx-trajectory: the export gives %g, but the trained model gives %g\n",
                                (double)logits[i], (double)of->logits[i]);
                        exit(1);
                }
        }
}

/* of NULL: the same layers and params; otherwise the same outputs are enough. */
static void export_and_read_back(
        const char *dir, const struct mfl_graph *graph, const float *params, const struct outputs *of)
{
        struct mfl_onnx_model back;
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/final.onnx", dir);
        mfl_assert(path);
        must(mfl_onnx_write(path, graph, params, &err));
        import(path, 0, &back);
        struct mfl_graph *again = graph_of(&back);
        MFL_CLEANUP_FREE char *a = mfl_graph_describe(graph), *b = mfl_graph_describe(again);
        const char *table_a = strchr(a, '\n'), *table_b = strchr(b, '\n');
        bool same = back.n == graph->n && !strcmp(table_a, table_b) &&
                    !memcmp(back.params, params, back.n * sizeof *params);
        if (!same && of) {
                check_outputs(again, back.params, of);
        } else if (!same) {
                fprintf(stderr, "mfl-onnx-trajectory: the export is not what was trained\n%s\n%s\n", a, b);
                exit(1);
        }
        mfl_graph_free(again);
        mfl_onnx_model_deinit(&back);
}

struct setup {
        const struct mfl_graph *graph;
        uint32_t batch, n_steps;
        float lr;
        const char *backend;
        struct mfl_loss loss;
};

/* Of a sample; 0: one. */
static int labels_of(const struct mfl_graph *graph, int n_auxiliary)
{
        int n = graph->positions / (1 + n_auxiliary);
        return n > 1 ? n : 0;
}

static void train(const struct setup *t, const float *start, float *samples, int32_t *labels, double *losses,
        float *params, float *logits)
{
        struct mfl_net_options options = {
                .batch = (int)t->batch, .groups = 1, .threads = 1, .training = true, .loss = t->loss};
        struct mfl_optimizer opt = {.lr = t->lr};
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_net *net;
        struct mfl_device_data *data;
        uint32_t n = t->batch * t->n_steps;
        struct mfl_dataset set = {.shape = t->graph->input,
                .classes = t->graph->classes,
                .train = {n, MFL_F32, samples, labels},
                .vocabulary = t->graph->vocabulary,
                .labels_per_sample = labels_of(t->graph, t->loss.n_auxiliary)};
        for (int c = 0; c < MFL_CHANNELS_MAX; c++)
                set.scale[c] = 1;
        MFL_CLEANUP_FREE uint32_t *index = mfl_calloc(n, sizeof *index);
        mfl_assert(index);
        must(mfl_backend_open(t->backend, &ops, &err));
        must(ops->device_open(&device, &err));
        must(ops->net_new(device, t->graph, &options, &net, &err));
        must(ops->params_set(net, 0, NULL, start, &err));
        must(ops->data_new(device, &set, &set.train, true, &data, &err));
        for (uint32_t i = 0; i < n; i++)
                index[i] = i;
        for (uint32_t s = 0; s < t->n_steps; s++) {
                struct mfl_group_steps steps = {.index = index + s * t->batch, .count = &t->batch};
                must(ops->step(net, data, &steps, 1, &opt, &err));
                losses[s] = mfl_fixed_loss_to_double(steps.score.loss_sum) / (double)steps.score.n_scored;
        }
        must(ops->params_get(net, 0, 0, params, &err));
        must(ops->forward(net, samples, NULL, logits, &err));
        ops->data_free(data);
        ops->net_free(net);
        ops->device_close(device);
}

int main(int argc, char **argv)
{
        struct mfl_onnx_model model;
        struct mfl_loss loss = {.n_auxiliary = argc > 10 ? argc - 10 : 0};
        if (argc != 2 && (argc < 8 || loss.n_auxiliary > MFL_AUXILIARY_MAX))
                return 2;
        for (int i = 0; i < loss.n_auxiliary; i++)
                loss.auxiliary_weights[i] = (float)atof(argv[10 + i]);
        import(argv[1], loss.n_auxiliary, &model);
        struct mfl_graph *graph = graph_of(&model);
        if (argc == 2) {
                printf("%s%s", model.text, model.notes);
                return 0;
        }
        size_t n_samples, n_labels;
        MFL_CLEANUP_FREE float *samples = read_file(argv[2], &n_samples);
        MFL_CLEANUP_FREE int32_t *labels = read_file(argv[3], &n_labels);
        uint32_t batch = (uint32_t)atoi(argv[4]), n_steps = (uint32_t)atoi(argv[5]);
        const char *dir = argv[7];
        size_t each = (size_t)mfl_shape_count(&graph->input),
               out = (size_t)graph->positions * (size_t)graph->classes,
               answers = (size_t)MFL_MAX(labels_of(graph, loss.n_auxiliary), 1);
        mfl_assert(n_samples == each * batch * n_steps * sizeof *samples);
        mfl_assert(n_labels == answers * batch * n_steps * sizeof *labels);
        printf("%s", model.text);
        MFL_CLEANUP_FREE float *params = mfl_calloc((size_t)graph->n, sizeof *params);
        MFL_CLEANUP_FREE float *logits = mfl_calloc(batch * out, sizeof *logits);
        MFL_CLEANUP_FREE double *losses = mfl_calloc(n_steps, sizeof *losses);
        mfl_assert(params && logits && losses);
        train(&(struct setup){graph, batch, n_steps, (float)atof(argv[6]), argc > 8 ? argv[8] : "reference",
                      loss},
                model.params, samples, labels, losses, params, logits);
        write_file(dir, "losses.f64", losses, n_steps * sizeof *losses);
        write_file(dir, "logits.f32", logits, batch * out * sizeof *logits);
        struct outputs of = {samples, logits, batch, batch * out};
        if (!loss.n_auxiliary)
                export_and_read_back(dir, graph, params, argc == 10 ? &of : NULL);
        mfl_graph_free(graph);
        mfl_onnx_model_deinit(&model);
        return 0;
}
