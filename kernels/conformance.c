/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-conformance: every operator and training step of every backend against the reference.
 *
 *     mfl-conformance test [--backend NAME] [FILTER]   TAP; all backends that open unless one is named
 *     mfl-conformance perf [--backend NAME] [FILTER]   time, GFLOP/s and GB/s of each case, whole training
 * steps mfl-conformance list                             the cases FILTER: only cases whose name contains it.
 * Exit: 0, 1 a case failed, 2 wrong usage.
 */
#include "kernels/conformance.h"

#include <stdio.h>

static int n_reported, n_failed;

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
}

int conf_finish(void)
{
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

static void run_backend(const char *mode, const char *name, const char *filter)
{
        struct conf_backend backend;
        if (!open_backend(name, &backend))
                return;
        struct mfl_device_info info;
        backend.ops->device_info(backend.device, &info);
        printf("# %s: %s, %s\n", info.backend, info.name, info.library);
        if (!strcmp(mode, "perf")) {
                conf_perf(&backend, filter);
        } else {
                conf_test_operators(&backend, filter);
                conf_test_training(&backend, filter);
        }
        backend.ops->device_close(backend.device);
}

static int usage(void)
{
        fprintf(stderr, "usage: mfl-conformance test|perf|list [--backend NAME] [FILTER]\n");
        return 2;
}

int main(int argc, char **argv)
{
        static const char *const names[] = {"reference", "cpu", "cuda"};
        const char *mode = argc > 1 ? argv[1] : "", *only = NULL, *filter = "";
        bool known = !strcmp(mode, "test") || !strcmp(mode, "perf") || !strcmp(mode, "list");
        for (int i = 2; i < argc; i++) {
                if (!strcmp(argv[i], "--backend") && i + 1 < argc)
                        only = argv[++i];
                else if (argv[i][0] != '-')
                        filter = argv[i];
                else
                        known = false;
        }
        if (!known)
                return usage();
        if (!strcmp(mode, "list")) {
                for (int i = 0; i < conf_n_cases; i++)
                        printf("%s\n", conf_cases[i].name);
                return 0;
        }
        setvbuf(stdout, NULL, _IOLBF, 0);
        if (!strcmp(mode, "test") && (!only || !strcmp(only, "reference")))
                conf_test_gradients(filter);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(names); i++)
                if (only ? !strcmp(only, names[i]) : strcmp(mode, "perf") || i > 0)
                        run_backend(mode, names[i], filter);
        return strcmp(mode, "perf") ? conf_finish() : 0;
}
