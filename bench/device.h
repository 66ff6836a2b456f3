/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of mfl-bench-device share: an open device with a model and data, and a network that trains.
 */
#ifndef MFL_BENCH_DEVICE_H
#define MFL_BENCH_DEVICE_H

#include <pthread.h>

#include "kernels/backend.h"

struct bench {
        const char *backend, *model;
        int batch, groups, precision, repeats;
        bool fast;
        uint32_t steps;
        double seconds, start_at;
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_graph *graph;
        struct mfl_dataset set;
        struct mfl_device_data *data;
        float *params;
        /* reduce */
        uint32_t rank, n_ranks, deadline_ms;
        const char *id_file;
        bool die;
};

/* A network with the index tables of one call. */
struct cohort {
        struct bench *bench;
        struct mfl_net *net;
        int groups;
        uint32_t n_steps;
        uint32_t *index, *count;
        struct mfl_group_steps *steps;
        pthread_t thread;
};

/* Ends the program with the error's text: 77 where there is no such backend. */
void bench_must(int rc, const struct mfl_error *err);
void bench_cohort_init(struct cohort *c, struct bench *b, int groups, uint32_t n_steps);
/* The clients' first params again. */
void bench_cohort_start(struct cohort *c);
void bench_cohort_step(struct cohort *c);
void bench_cohort_deinit(struct cohort *c);
/* The beginning of a line of JSON. */
void bench_print_head(const struct bench *b, const char *what, int groups);

/* device_sum.c */
int bench_sum(struct bench *b);
int bench_reduce(struct bench *b);

#endif
