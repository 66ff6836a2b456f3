/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance program: one table of cases, every backend against the reference. */
#ifndef MFL_KERNELS_CONFORMANCE_CONFORMANCE_H
#define MFL_KERNELS_CONFORMANCE_CONFORMANCE_H

#include "kernels/backend.h"

#define CONF_LAYERS_MAX 12
#define CONF_READS_INPUT (-2) /* as a layer's `input`, where 0 means the layer before */

/* A small network that tests one operator, or a chain that backends like to fuse. Where the last layer is an
 * image, a flatten is added. Where an embedding reads the input, samples are tokens, some of them outside the
 * vocabulary. */
struct conf_case {
        const char *name;
        struct mfl_shape input;
        struct mfl_layer layers[CONF_LAYERS_MAX]; /* without the input layer; op 0 ends the list */
        int batch;                                /* the only batch; 0: 1, 2, 7 and 32 */
        bool ties;                                /* samples are coarse, so that windows hold equal values */
        bool exact;                               /* only copies and comparisons: bit equality */
        bool only_fp32;                           /* too badly conditioned for smaller formats */
        bool inference;                           /* forward without keys: it uses running statistics */
        bool many;                                /* perf: with 8 and 64 clients at once too */
        float range;                              /* samples lie in [-range, range); 0: 1 */
        float low, high;                          /* samples lie between these, unless both are 0 */
};
const struct conf_case *mfl_conf_case_at(int i); /* NULL after the last */
extern const struct conf_case mfl_conf_more_cases[];
extern const int mfl_conf_n_more_cases;
extern const struct conf_case mfl_conf_shared_cases[];
extern const int mfl_conf_n_shared_cases;
extern const struct conf_case mfl_conf_map_cases[];
extern const int mfl_conf_n_map_cases;
extern const struct conf_case mfl_conf_joined_cases[];
extern const int mfl_conf_n_joined_cases;
extern const struct conf_case mfl_conf_unary_cases[];
extern const int mfl_conf_n_unary_cases;
/* Moves samples in [-range, range) to where the case wants them. */
void mfl_conf_move_samples(const struct conf_case *kase, float *x, size_t n);
extern const struct conf_case mfl_conf_perf_cases[];
extern const int mfl_conf_n_perf_cases;

/* The graph of a case. Aborts on a broken table. */
struct mfl_graph *mfl_conf_graph_new(const struct conf_case *kase);

/* The vocabulary of a graph's first embedding; 0: it has none. Then the inputs are whole numbers. */
int mfl_conf_vocabulary(const struct mfl_graph *graph);
/* Makes samples and dy (`rows` in each group, like the network's input and output) and the params of `groups`
 * groups. */
void mfl_conf_make_inputs(const struct conf_case *kase, const struct mfl_graph *graph, size_t groups,
        size_t rows, float *x, float *params, float *dy);

/* One backend under test, with an open device. */
struct conf_backend {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        enum mfl_precision precision; /* of its networks; the reference always has fp32 */
        char label[32];               /* "cuda", "cuda bf16": in reports */
        const char *filter;           /* for its inner checks */
};
/* The reference, opened. */
struct conf_backend mfl_conf_reference(void);

/* The largest relative error of rounding to the format, 2^-(bits of mantissa + 1). */
double mfl_conf_unit(enum mfl_precision precision);
/* Rounds to the format's grid, so that the format's first rounding of an input or a weight changes nothing.
 */
void mfl_conf_round(float *v, size_t n, enum mfl_precision precision);

extern bool conf_quick;    /* --quick */
extern bool conf_smoke;    /* --smoke */
extern bool conf_complete; /* --complete */
/* Whether --smoke runs this case of operators or of training. */
bool mfl_conf_is_smoke(const char *name);

/* ---- units: conformance_run.c ---- */

/* Calls body in a child process. When the child ends early (an error by mfl_conf_must, a crash, a unit that
 * exceeds the limit), that unit fails, and a new child continues with the units that are left. It may be
 * called several times. */
void mfl_conf_run(void (*body)(void *user), void *user);
extern unsigned conf_limit_s; /* seconds of one unit; 0: none */
extern bool conf_one_process; /* body is called in this process, and an error ends the program */
/* Every unit begins with this call; false: another process runs the unit. */
bool mfl_conf_begin(const char *fmt, ...) MFL_PRINTF(1, 2);
/* The same, for a unit that must be the first of its process. */
bool mfl_conf_begin_fresh(const char *fmt, ...) MFL_PRINTF(1, 2);
bool mfl_conf_continues(void); /* another process has run units before this one */

/* TAP output within a unit, and a plain line. */
void mfl_conf_report(bool ok, const char *fmt, ...) MFL_PRINTF(2, 3);
void mfl_conf_skip(const char *what, const char *why);
void mfl_conf_say(const char *fmt, ...) MFL_PRINTF(1, 2);
/* True where a backend refused (MFL_INVALID). The refusal is reported under the name that fmt gives: as
 * skipped or, with --complete, as failed. Other errors end the program. */
bool mfl_conf_refused(int rc, const struct mfl_error *err, const char *fmt, ...) MFL_PRINTF(3, 4);
int mfl_conf_finish(bool plan); /* prints TAP's plan if wanted; returns the exit status */

/* n uniform numbers in [-1, 1) of stream (seed, which); ties: multiples of 1/2. */
void mfl_conf_fill(float *v, size_t n, uint64_t seed, uint64_t which, bool ties);
/* mfl_malloc that aborts. */
void *mfl_conf_alloc(size_t bytes);
void mfl_conf_must(int rc, const struct mfl_error *err);

void mfl_conf_test_operators(const struct conf_backend *backend, const char *filter);
void mfl_conf_test_gradients(const char *filter); /* reference against central differences */
void mfl_conf_test_teams(const struct conf_backend *backend, const char *filter);
void mfl_conf_test_training(const struct conf_backend *backend, const char *filter);
/* Small versions of presets with several numbers of segments, against networks that keep everything. */
void mfl_conf_test_checkpoint(const struct conf_backend *backend, const char *filter);
/* Rows alone and among others, where the backend has `infer`. */
void mfl_conf_test_inference(const struct conf_backend *backend, const char *filter);
void mfl_conf_perf(const struct conf_backend *backend, const char *filter);

#endif
