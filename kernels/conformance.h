/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance program: one table of cases, every backend against the reference. */
#ifndef MFL_KERNELS_CONFORMANCE_H
#define MFL_KERNELS_CONFORMANCE_H

#include "kernels/backend.h"

#define CONF_LAYERS_MAX 12
#define CONF_READS_INPUT (-2) /* as a layer's `input`, where 0 means the layer before */

/* A small network that tests one operator, or a chain that backends like to fuse. A flatten is added where
 * the last layer is an image. Where an embedding reads the input, samples are tokens, some of them outside of
 * the vocabulary. */
struct conf_case {
        const char *name;
        struct mfl_shape input;
        struct mfl_layer layers[CONF_LAYERS_MAX]; /* without the input layer; op 0 ends the list */
        int batch;                                /* the only one; 0: 1, 2, 7 and 32 */
        bool ties;                                /* samples are coarse, so that windows hold equal values */
        bool exact;                               /* only copies and comparisons: bit equality */
        bool only_fp32;                           /* too badly conditioned for smaller formats */
        bool inference;                           /* forward without keys: running statistics are used */
        bool many;                                /* perf: with 8 and 64 clients at once too */
        float range;                              /* samples lie in [-range, range); 0: 1 */
};
const struct conf_case *conf_case_at(int i); /* NULL behind the last */
extern const struct conf_case conf_more_cases[];
extern const int conf_n_more_cases;
extern const struct conf_case conf_perf_cases[];
extern const int conf_n_perf_cases;

/* The graph of a case. Aborts on a broken table. */
struct mfl_graph *conf_graph_new(const struct conf_case *kase);

/* Samples and dy (`rows` in each group, like the network's input and output) and params of `groups` groups.
 */
void conf_make_inputs(const struct conf_case *kase, const struct mfl_graph *graph, size_t groups, size_t rows,
        float *x, float *params, float *dy);

/* One backend under test, with an open device. */
struct conf_backend {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        enum mfl_precision precision; /* of its networks; the reference's is always fp32 */
        char label[32];               /* "cuda", "cuda bf16": in reports */
        const char *filter;           /* of its inner checks */
};
/* The reference, opened. */
struct conf_backend conf_reference(void);

/* The largest relative error of rounding to the format, 2^-(bits of mantissa + 1). */
double conf_unit(enum mfl_precision precision);
/* Rounds to the format's grid, so that its first rounding of an input or a weight changes nothing. */
void conf_round(float *v, size_t n, enum mfl_precision precision);

extern bool conf_quick; /* --quick */

/* TAP. */
void conf_report(bool ok, const char *fmt, ...) MFL_PRINTF(2, 3);
void conf_skip(const char *what, const char *why);
/* True where a backend refused (MFL_INVALID), which is reported under the name that fmt gives: as skipped, or
 * with --complete as failed. Other errors end the program. */
bool conf_refused(int rc, const struct mfl_error *err, const char *fmt, ...) MFL_PRINTF(3, 4);
int conf_finish(void); /* prints the plan; returns the exit status */

/* n uniform numbers in [-1, 1) of stream (seed, which); ties: multiples of 1/2. */
void conf_fill(float *v, size_t n, uint64_t seed, uint64_t which, bool ties);
/* mfl_malloc that aborts. */
void *conf_alloc(size_t bytes);
void conf_must(int rc, const struct mfl_error *err);

void conf_test_operators(const struct conf_backend *backend, const char *filter);
void conf_test_gradients(const char *filter); /* reference against central differences */
void conf_test_training(const struct conf_backend *backend, const char *filter);
/* Small versions of presets with some numbers of segments, against everything kept. */
void conf_test_checkpoint(const struct conf_backend *backend, const char *filter);
void conf_perf(const struct conf_backend *backend, const char *filter);

#endif
