/* SPDX-License-Identifier: Apache-2.0 */
/* What it costs that a row's bits depend on no other row: processor time per row of `infer` (a convolution of the library for each row)
 * beside `forward` of a whole batch of as many rows (one for all).
 *
 * bench_infer [BACKEND] [SECONDS]: a table of presets and rows; one thread.
 * bench_infer BACKEND SECONDS MODEL ROWS...: microseconds per row of `infer` alone, a line each (bench/infer.py). */
#include <stdio.h>
#include <time.h>

#include "kernels/backend.h"

static const struct {
        const char *preset;
        struct mfl_shape input;
        int classes;
} models[] = {{"lenet5", {3, {1, 28, 28}}, 10}, {"fedavg-cnn", {3, {1, 28, 28}}, 10},
        {"resnet20", {3, {3, 32, 32}}, 10}, {"mobilenet-v2", {3, {3, 32, 32}}, 10},
        {"vit-tiny", {3, {3, 32, 32}}, 10}, {"char-lstm", {1, {80}}, 65}};

struct bench {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        const struct mfl_graph *graph;
        const float *params;
        float *x, *y;
        double seconds;
};

static void must(int r, const struct mfl_error *err)
{
        if (!r)
                return;
        fprintf(stderr, "bench_infer: %s\n", err->text);
        exit(1);
}

static int one(const struct bench *b, struct mfl_net *net, int rows, bool infer, struct mfl_error *err)
{
        static const float scale = 1, shift = 0;
        struct mfl_rows x = {b->x, MFL_F32, 1, mfl_shape_count(&b->graph->input), &scale, &shift};
        return infer ? b->ops->infer(net, &x, (uint32_t)rows, b->y, err)
                     : b->ops->forward(net, b->x, NULL, b->y, err);
}

/* Microseconds of the processor per row. */
static double measure(const struct bench *b, int rows, bool infer)
{
        struct mfl_net_options options = {.batch = rows, .groups = 1, .threads = 1, .infer = infer};
        struct mfl_net *net;
        struct mfl_error err = {""};
        must(b->ops->net_new(b->device, b->graph, &options, &net, &err), &err);
        must(mfl_backend_set(b->ops, net, b->graph, 0, b->params, &err), &err);
        must(one(b, net, rows, infer, &err), &err);
        clock_t start = clock(), end = start + (clock_t)(b->seconds * CLOCKS_PER_SEC);
        long n = 0;
        do {
                must(one(b, net, rows, infer, &err), &err);
                n++;
        } while (clock() < end);
        double us = (double)(clock() - start) / CLOCKS_PER_SEC * 1e6 / (double)n / rows;
        b->ops->net_free(net);
        return us;
}

static void print_table(const struct bench *b, const char *preset)
{
        static const int rows[] = {1, 8, 32, 64};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(rows); k++) {
                double infer = measure(b, rows[k], true), batch = measure(b, rows[k], false);
                printf("%-14s %5d %12.1f %12.1f %7.2f\n", preset, rows[k], infer, batch, infer / batch);
                fflush(stdout);
        }
}

int main(int argc, char **argv)
{
        struct bench b = {.seconds = argc > 2 ? atof(argv[2]) : 0.5};
        struct mfl_error err = {""};
        must(mfl_backend_open(argc > 1 ? argv[1] : "cpu", &b.ops, &err), &err);
        must(b.ops->device_open(&b.device, &err), &err);
        if (argc < 4)
                printf("%-14s %5s %12s %12s %7s\n", "model", "rows", "infer us/row", "batch us/row", "ratio");
        for (size_t m = 0; m < MFL_ARRAY_SIZE(models); m++) {
                if (argc > 3 && strcmp(argv[3], models[m].preset) != 0)
                        continue;
                struct mfl_graph *graph;
                must(mfl_graph_preset(models[m].preset, &models[m].input, models[m].classes, &graph, &err),
                        &err);
                size_t in = 64 * (size_t)mfl_shape_count(&graph->input),
                       out = 64 * (size_t)mfl_shape_count(&graph->layers[graph->n_layers - 1].out);
                float *params = mfl_calloc(graph->n, sizeof *params);
                b.x = mfl_calloc(in, sizeof *b.x);
                b.y = mfl_calloc(out, sizeof *b.y);
                mfl_assert(params && b.x && b.y);
                mfl_graph_init_params(graph, 1, params);
                for (size_t i = 0; i < in; i++)
                        b.x[i] = (float)(i % 17) / (graph->vocabulary ? 1 : 8);
                b.graph = graph;
                b.params = params;
                if (argc < 4)
                        print_table(&b, models[m].preset);
                for (int i = 4; i < argc; i++)
                        printf("%.3f\n", measure(&b, MFL_MIN(atoi(argv[i]), 64), true));
                free(params);
                free(b.x);
                free(b.y);
                mfl_graph_free(graph);
        }
        b.ops->device_close(b.device);
        return 0;
}
