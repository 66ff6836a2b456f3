/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-conformance: every operator and training step of every backend against the reference.
 *
 *     mfl-conformance test [--backend NAME] [--precision P] [--quick] [--smoke] [--complete] [--no-inner]
 *             [--limit SECONDS] [--one-process] [FILTER]
 *     mfl-conformance grad [FILTER]
 *     mfl-conformance inner [--backend NAME] [FILTER]
 *     mfl-conformance perf [--backend NAME] [--precision P] [FILTER]
 *     mfl-conformance list
 *
 *   test        TAP, for all backends that open unless one is named
 *   grad        the reference's gradients against central differences; test shows them too where it
 *               runs the reference
 *   inner       what backends check of their inner choices; test shows it last with fp32 or all, unless
 *               --no-inner
 *   perf        time, GFLOP/s and GB/s of each case, and of whole training steps
 *   list        the names of the cases
 *
 *   --precision     fp32 (default), tf32, bf16, fp16 or all
 *   --quick         without batches of 32 and the deep networks: for slow builds and the emulated device
 *   --smoke         a few cases and one batch that together run each kernel of the cuda backend
 *   --complete      a case that a backend refuses fails; else it is skipped with the reason, and counted
 *                   on the last line
 *   --limit         a case that takes longer is killed
 *   --one-process   all cases in this process, for a debugger
 *   FILTER          only cases whose name contains it
 *
 * Cases run in a child process, one after another, until one dies; then a new child goes on
 * (conformance_run.c). Exit: 0, 1 a case failed, 2 wrong usage.
 */
#include "kernels/conformance/conformance.h"

#include <stdio.h>

#include "kernels/host.h"

/* What the command line asks for. */
struct wanted {
        const char *mode, *backend, *filter; /* backend NULL: all */
        int precision;                       /* MFL_PRECISION_COUNT_: all of them */
        bool inner;
};

static bool open_backend(const char *name, struct conf_backend *backend)
{
        struct mfl_error err = {""};
        bool again = mfl_conf_continues();
        int rc = mfl_backend_open(name, &backend->ops, &err);
        if (!rc)
                rc = backend->ops->device_open(&backend->device, &err);
        if (!rc)
                return true;
        if (!again)
                mfl_conf_skip(name, err.text);
        return false;
}

/* Whether the backend has the precision; a small network shows it. */
static bool has_precision(const struct conf_backend *b)
{
        struct mfl_error err = {""};
        struct mfl_graph *graph = mfl_conf_graph_new(mfl_conf_case_at(0));
        struct mfl_net_options options = {
                .batch = 1, .groups = 1, .threads = 1, .training = true, .precision = b->precision};
        struct mfl_net *net = NULL;
        bool report = mfl_conf_begin("%s: a small network", b->label);
        int rc = b->ops->net_new(b->device, graph, &options, &net, &err);
        b->ops->net_free(net);
        mfl_graph_free(graph);
        if (rc != MFL_INVALID)
                mfl_conf_must(rc, &err);
        else if (report)
                mfl_conf_skip(b->label, err.text);
        return !rc;
}

static void report_inner(void *user, bool ok, const char *text)
{
        const struct conf_backend *b = user;
        mfl_conf_report(ok, "%s inner: %s", b->ops->name, text);
}

/* What the backend checks of its inner choices. It runs last, and in a fresh process, since it tries what
 * nothing else does. */
static void run_inner(struct conf_backend *b, const char *filter)
{
        struct mfl_error err = {""};
        char name[MFL_SELFTEST_NAME];
        bool first = true;
        for (int part = 0; b->ops->selftest && b->ops->selftest_name(b->device, part, name); part++) {
                if ((!strstr("inner", filter) && !strstr(name, filter)) ||
                        (conf_smoke && !mfl_conf_is_smoke(name)))
                        continue;
                bool run = first ? mfl_conf_begin_fresh("%s inner: %s", b->ops->name, name)
                                 : mfl_conf_begin("%s inner: %s", b->ops->name, name);
                first = false;
                if (run)
                        mfl_conf_must(b->ops->selftest(b->device, part, report_inner, b, &err), &err);
        }
}

static void run_precision(const char *mode, struct conf_backend *b, const char *filter)
{
        bool plain = b->precision == MFL_PRECISION_FP32;
        mfl_snprintf(b->label, sizeof b->label, "%s%s%s", b->ops->name, plain ? "" : " ",
                plain ? "" : mfl_precision_name(b->precision));
        if (!has_precision(b))
                return;
        if (!strcmp(mode, "perf")) {
                mfl_conf_perf(b, filter);
        } else {
                mfl_conf_test_operators(b, filter);
                mfl_conf_test_training(b, filter);
                mfl_conf_test_inference(b, filter);
                mfl_conf_test_teams(b, filter);
                if (!conf_smoke)
                        mfl_conf_test_checkpoint(b, filter);
        }
}

static void run_backend(const struct wanted *wanted, const char *name)
{
        struct conf_backend backend = {.ops = NULL};
        struct mfl_device_info info;
        bool again = mfl_conf_continues(), test = !strcmp(wanted->mode, "test");
        if (!open_backend(name, &backend))
                return;
        backend.ops->device_info(backend.device, &info);
        if (!again)
                mfl_conf_say("# %s: %s, %s", info.backend, info.name, info.library);
        for (int p = 0; p < MFL_PRECISION_COUNT_ && strcmp(wanted->mode, "inner"); p++) {
                backend.precision = (enum mfl_precision)p;
                if (wanted->precision == MFL_PRECISION_COUNT_ || wanted->precision == p)
                        run_precision(wanted->mode, &backend, wanted->filter);
        }
        bool all = wanted->precision == MFL_PRECISION_COUNT_ || wanted->precision == MFL_PRECISION_FP32;
        if (!strcmp(wanted->mode, "inner") || (test && all && wanted->inner))
                run_inner(&backend, wanted->filter);
        backend.ops->device_close(backend.device);
}

/* Everything that the command line asks for, in one order. */
static void run_all(void *user)
{
        static const char *const names[] = {"reference", "cpu", "cuda"};
        const struct wanted *wanted = user;
        const char *mode = wanted->mode, *only = wanted->backend;
        bool test = !strcmp(mode, "test");
        if (!strcmp(mode, "grad") || (test && (!only || !strcmp(only, "reference"))))
                mfl_conf_test_gradients(wanted->filter);
        for (size_t i = 0; strcmp(mode, "grad") && i < MFL_ARRAY_SIZE(names); i++)
                if (only ? !strcmp(only, names[i]) : test || i > 0)
                        run_backend(wanted, names[i]);
}

/* -1 for an unknown name. */
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
        fprintf(stderr, "usage: mfl-conformance test|grad|inner|perf|list [--backend NAME] [--precision "
                        "fp32|tf32|bf16|fp16|all] [--quick] [--smoke] [--complete] [--no-inner]\n"
                        "       [--limit SECONDS] [--one-process] [FILTER]\n");
        return 2;
}

static bool is_mode(const char *name)
{
        static const char *const modes[] = {"test", "grad", "inner", "perf", "list"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(modes); i++)
                if (!strcmp(name, modes[i]))
                        return true;
        return false;
}

static bool parse_flag(const char *name, struct wanted *wanted)
{
        const struct {
                const char *name;
                bool *flag, value;
        } flags[] = {{"--quick", &conf_quick, true}, {"--smoke", &conf_smoke, true},
                {"--complete", &conf_complete, true}, {"--no-inner", &wanted->inner, false},
                {"--one-process", &conf_one_process, true}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(flags); i++)
                if (!strcmp(name, flags[i].name)) {
                        *flags[i].flag = flags[i].value;
                        return true;
                }
        return false;
}

static bool parse(int argc, char **argv, struct wanted *wanted)
{
        wanted->mode = argc > 1 ? argv[1] : "";
        for (int i = 2; i < argc; i++) {
                if (!strcmp(argv[i], "--backend") && i + 1 < argc)
                        wanted->backend = argv[++i];
                else if (!strcmp(argv[i], "--precision") && i + 1 < argc)
                        wanted->precision = find_precision(argv[++i]);
                else if (!strcmp(argv[i], "--limit") && i + 1 < argc)
                        conf_limit_s = (unsigned)strtoul(argv[++i], NULL, 10);
                else if (argv[i][0] != '-')
                        wanted->filter = argv[i];
                else if (!parse_flag(argv[i], wanted))
                        return false;
        }
        return is_mode(wanted->mode) && wanted->precision >= 0;
}

int main(int argc, char **argv)
{
        struct wanted wanted = {.filter = "", .precision = MFL_PRECISION_FP32, .inner = true};
        if (!parse(argc, argv, &wanted))
                return usage();
        if (!strcmp(wanted.mode, "list")) {
                for (int i = 0; mfl_conf_case_at(i); i++)
                        printf("%s\n", mfl_conf_case_at(i)->name);
                return 0;
        }
        setvbuf(stdout, NULL, _IOLBF, 0);
        mfl_conf_run(run_all, &wanted);
        return mfl_conf_finish(strcmp(wanted.mode, "perf") != 0);
}
