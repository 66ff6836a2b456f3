/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-conformance: every operator and training step of every backend against the reference.
 *
 *     mfl-conformance test [--backend NAME] [--precision P] [--quick] [--complete] [FILTER]
 *     mfl-conformance grad [FILTER]
 *     mfl-conformance perf [--backend NAME] [--precision P] [FILTER]
 *     mfl-conformance list
 *
 * test: TAP; all backends that open unless one is named. P is fp32 (default), tf32, bf16, fp16 or all. What a
 * backend refuses is skipped with its reason and counted on the last line; with --complete it fails. --quick
 * leaves out batches of 32 and the deep networks, for slow builds and the emulated device. grad: only the
 * gradients of the reference against central differences, which test shows too where it runs the reference.
 * perf: time, GFLOP/s and GB/s of each case, and of whole training steps. list: the
 * cases. FILTER: only cases whose name contains it. Exit: 0, 1 a case failed, 2 wrong usage.
 */
#include "kernels/conformance.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "kernels/host.h"

bool conf_quick;
static int n_reported, n_failed, n_skipped;
static bool complete; /* --complete */

void conf_report(bool ok, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        printf("%sok %d - ", ok ? "" : "not ", ++n_reported);
        vprintf(fmt, ap);
        printf("\n");
        va_end(ap);
        n_failed += !ok;
}

void conf_skip(const char *what, const char *why)
{
        printf("ok %d - %s # SKIP %s\n", ++n_reported, what, why);
        n_skipped++;
}

bool conf_refused(int rc, const struct mfl_error *err, const char *fmt, ...)
{
        char what[160];
        va_list ap;
        if (rc != MFL_INVALID) {
                conf_must(rc, err);
                return false;
        }
        va_start(ap, fmt);
        vsnprintf(what, sizeof what, fmt, ap);
        va_end(ap);
        if (complete)
                conf_report(false, "%s: refused: %s", what, err->text);
        else
                conf_skip(what, err->text);
        return true;
}

int conf_finish(void)
{
        printf("# %d passed, %d failed, %d skipped\n", n_reported - n_failed - n_skipped, n_failed,
                n_skipped);
        printf("1..%d\n", n_reported);
        return n_failed ? 1 : 0;
}

void conf_fill(float *v, size_t n, uint64_t seed, uint64_t which, bool ties)
{
        struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_TEST, which, 0);
        for (size_t i = 0; i < n; i++) {
                float u = mfl_u32_to_unit(mfl_rng_u32(&rng));
                v[i] = ties ? floorf(u * 4.0f) * 0.5f - 1.0f : u * 2.0f - 1.0f;
        }
}

void *conf_alloc(size_t bytes)
{
        void *p = mfl_alloc_aligned(bytes);
        mfl_assert(p);
        return p;
}

void conf_must(int rc, const struct mfl_error *err)
{
        if (!rc)
                return;
        fprintf(stderr, "mfl-conformance: %s\n", err->text);
        exit(1);
}

struct conf_backend conf_reference(void)
{
        struct conf_backend b = {.ops = &mfl_backend_reference, .label = "reference"};
        struct mfl_error err;
        conf_must(b.ops->device_open(&b.device, &err), &err);
        return b;
}

/* Bits of mantissa that are kept, without the leading one. */
static int mantissa_bits(enum mfl_precision precision)
{
        static const int bits[MFL_PRECISION_COUNT_] = {23, 10, 7, 10};
        return bits[precision];
}

double conf_unit(enum mfl_precision precision)
{
        return ldexp(1, -mantissa_bits(precision) - 1);
}

void conf_round(float *v, size_t n, enum mfl_precision precision)
{
        for (size_t i = 0; i < n && precision != MFL_PRECISION_FP32; i++) {
                int exponent;
                double m = frexp((double)v[i], &exponent);
                /* fp16 has no normal numbers below 2^-14. */
                int lowest = precision == MFL_PRECISION_FP16 ? -13 : -125;
                int shift = mantissa_bits(precision) + 1 - MFL_MAX(0, lowest - exponent);
                v[i] = (float)ldexp(nearbyint(ldexp(m, shift)), exponent - shift);
        }
}

static bool open_backend(const char *name, struct conf_backend *backend)
{
        struct mfl_error err = {""};
        int rc = mfl_backend_open(name, &backend->ops, &err);
        if (!rc)
                rc = backend->ops->device_open(&backend->device, &err);
        if (!rc)
                return true;
        conf_skip(name, err.text);
        return false;
}

/* A small network tells whether the backend has the precision. */
static bool has_precision(const struct conf_backend *b)
{
        struct mfl_error err = {""};
        struct mfl_graph *graph = conf_graph_new(conf_case_at(0));
        struct mfl_net_options options = {
                .batch = 1, .groups = 1, .threads = 1, .training = true, .precision = b->precision};
        struct mfl_net *net = NULL;
        int rc = b->ops->net_new(b->device, graph, &options, &net, &err);
        b->ops->net_free(net);
        mfl_graph_free(graph);
        if (rc == MFL_INVALID)
                conf_skip(b->label, err.text);
        else
                conf_must(rc, &err);
        return !rc;
}

static void report_inner(void *user, bool ok, const char *text)
{
        const struct conf_backend *b = user;
        if (strstr(text, b->filter))
                conf_report(ok, "%s inner: %s", b->ops->name, text);
}

/* What the backend checks of its own inner choices. */
static void run_inner(struct conf_backend *b, const char *filter)
{
        struct mfl_error err = {""};
        b->filter = filter;
        if (b->ops->selftest)
                conf_must(b->ops->selftest(b->device, report_inner, b, &err), &err);
}

static void run_precision(const char *mode, struct conf_backend *b, const char *filter)
{
        bool plain = b->precision == MFL_PRECISION_FP32;
        mfl_snprintf(b->label, sizeof b->label, "%s%s%s", b->ops->name, plain ? "" : " ",
                plain ? "" : mfl_precision_name(b->precision));
        if (!has_precision(b))
                return;
        if (!strcmp(mode, "perf")) {
                conf_perf(b, filter);
        } else {
                conf_test_operators(b, filter);
                conf_test_training(b, filter);
                conf_test_checkpoint(b, filter);
        }
}

/* precision: a format, or MFL_PRECISION_COUNT_ for all of them. */
static void run_backend(const char *mode, const char *name, int precision, const char *filter)
{
        struct conf_backend backend = {.ops = NULL};
        if (!open_backend(name, &backend))
                return;
        struct mfl_device_info info;
        backend.ops->device_info(backend.device, &info);
        printf("# %s: %s, %s\n", info.backend, info.name, info.library);
        for (int p = 0; p < MFL_PRECISION_COUNT_; p++) {
                backend.precision = (enum mfl_precision)p;
                if (precision == MFL_PRECISION_COUNT_ || precision == p)
                        run_precision(mode, &backend, filter);
        }
        if (!strcmp(mode, "test") && (precision == MFL_PRECISION_FP32 || precision == MFL_PRECISION_COUNT_))
                run_inner(&backend, filter);
        backend.ops->device_close(backend.device);
}

/* -1 for no precision's name. */
static int find_precision(const char *name)
{
        if (!strcmp(name, "all"))
                return MFL_PRECISION_COUNT_;
        for (int p = 0; p < MFL_PRECISION_COUNT_; p++)
                if (!strcmp(name, mfl_precision_name((enum mfl_precision)p)))
                        return p;
        return -1;
}

static int usage(void)
{
        fprintf(stderr, "usage: mfl-conformance test|grad|perf|list [--backend NAME] [--precision "
                        "fp32|tf32|bf16|fp16|all] [--quick] [--complete] [FILTER]\n");
        return 2;
}

static bool is_mode(const char *name)
{
        static const char *const modes[] = {"test", "grad", "perf", "list"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(modes); i++)
                if (!strcmp(name, modes[i]))
                        return true;
        return false;
}

int main(int argc, char **argv)
{
        static const char *const names[] = {"reference", "cpu", "cuda"};
        const char *mode = argc > 1 ? argv[1] : "", *only = NULL, *filter = "";
        int precision = MFL_PRECISION_FP32;
        bool known = is_mode(mode);
        for (int i = 2; i < argc; i++) {
                if (!strcmp(argv[i], "--backend") && i + 1 < argc)
                        only = argv[++i];
                else if (!strcmp(argv[i], "--precision") && i + 1 < argc)
                        precision = find_precision(argv[++i]);
                else if (!strcmp(argv[i], "--quick"))
                        conf_quick = true;
                else if (!strcmp(argv[i], "--complete"))
                        complete = true;
                else if (argv[i][0] != '-')
                        filter = argv[i];
                else
                        known = false;
        }
        if (!known || precision < 0)
                return usage();
        if (!strcmp(mode, "list")) {
                for (int i = 0; conf_case_at(i); i++)
                        printf("%s\n", conf_case_at(i)->name);
                return 0;
        }
        setvbuf(stdout, NULL, _IOLBF, 0);
        bool grad = !strcmp(mode, "grad");
        if (grad || (!strcmp(mode, "test") && (!only || !strcmp(only, "reference"))))
                conf_test_gradients(filter);
        for (size_t i = 0; !grad && i < MFL_ARRAY_SIZE(names); i++)
                if (only ? !strcmp(only, names[i]) : strcmp(mode, "perf") || i > 0)
                        run_backend(mode, names[i], precision, filter);
        return strcmp(mode, "perf") ? conf_finish() : 0;
}
