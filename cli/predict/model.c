/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the model that a command's first argument names: a file, or a job whose model is pulled.
 *
 * Happy path: a file that exists is opened; otherwise server -> job -> mfl_pull into a temporary file -> open. Fails when: there is
 * neither such a file nor such a job; the file is no model file, or of another format.
 */
#include <stdio.h>
#include <unistd.h>

#include "cli/predict/answers.h"
#include "cli/pull/pull.h"
#include "common/model/safetensors.h"
#include "kernels/host.h"

#define ROWS 64 /* of a call */

static int pull(struct mfl_cli *cli, int64_t round, const char *path, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        struct mfl_pulled pulled;
        char job[MFL_JOB_ID_BYTES];
        int r = mfl_cli_signals_start(cli, err);
        if (!r)
                r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, err);
        if (!r)
                r = mfl_client_resolve_model(&client, cli->argument[0], job, &round, err);
        return r ? r : mfl_pull(&client, job, round, path, MFL_PULL_SAFETENSORS, NULL, false, &pulled, err);
}

/* Through a temporary file: of a job's round, or if that is NULL of an ONNX file. */
static int open_made(struct mfl_cli *cli, const int64_t *round, const char *onnx,
        struct mfl_model_file **ret_model, struct mfl_error *err)
{
        char dir[] = "/tmp/mfl-model-XXXXXX";
        int r;
        if (!mkdtemp(dir))
                return mfl_fail_errno(err, "make the folder %s", dir);
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/model.safetensors", dir);
        if (!path)
                r = mfl_fail_memory(err, sizeof dir, "a path");
        else
                r = round ? pull(cli, *round, path, err) : mfl_predict_import(cli, onnx, path, err);
        if (!r)
                r = mfl_model_file_open(path, ret_model, err);
        if (path)
                unlink(path);
        rmdir(dir);
        return r;
}

static int open_job(struct mfl_cli *cli, struct mfl_model_file **ret_model, struct mfl_error *err)
{
        int64_t round = MFL_PULL_LAST;
        const int r = mfl_pull_round(cli->options.round, &round, err);
        return r ? r : open_made(cli, &round, NULL, ret_model, err);
}

static bool looks_like_file(const char *text)
{
        const char *dot = strrchr(text, '.');
        return strchr(text, '/') ||
               (dot && (!strcmp(dot, ".safetensors") || !strcmp(dot, ".onnx") || !strcmp(dot, ".npz")));
}

int mfl_predict_model(struct mfl_cli *cli, struct mfl_model_file **ret_model, struct mfl_error *err)
{
        const char *name = cli->argument[0], *dot = strrchr(name, '.');
        bool there = !access(name, F_OK);
        if (!there && !looks_like_file(name))
                return open_job(cli, ret_model, err);
        if (there && dot && !strcmp(dot, ".npz"))
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: a model is a file that `mfl pull` writes as safetensors (its default), "
                        "which "
                        "also carries its layers and "
                        "its contract, or an ONNX file",
                        name);
        if (cli->options.round)
                return mfl_fail(
                        err, MFL_CLI_USAGE, "--round chooses a model of a job; %.200s is a file", name);
        if (dot && !strcmp(dot, ".onnx"))
                return open_made(cli, NULL, name, ret_model, err);
        return mfl_model_file_open(name, ret_model, err);
}

/* Without --precision, an evaluation has that of the job's own evaluations, where this machine has it. */
static int precision_of(struct mfl_cli *cli, const struct mfl_model_file *model, bool evaluates,
        enum mfl_precision *ret_precision, struct mfl_error *err)
{
        const char *text = cli->options.precision;
        *ret_precision = text && !strcmp(text, "bf16") ? MFL_PRECISION_BF16 : MFL_PRECISION_FP32;
        if (text && !*ret_precision && strcmp(text, "fp32") != 0)
                return mfl_fail(err, MFL_CLI_USAGE, "--precision: expected fp32 or bf16, got '%.60s'", text);
        if (text)
                return *ret_precision ? mfl_infer_check_precision(
                                                cli->options.backend, *ret_precision, !evaluates, err)
                                      : 0;
        if (!evaluates || !model->job || !model->job->training.precision)
                return 0;
        const enum mfl_precision own = (enum mfl_precision)model->job->training.precision;
        struct mfl_error why;
        if (!mfl_infer_check_precision(cli->options.backend, own, false, &why))
                *ret_precision = own;
        else
                mfl_cli_note(cli, "in fp32, not in the job's %s: %s", mfl_precision_name(own), why.text);
        return 0;
}

int mfl_predict_infer(struct mfl_cli *cli, const struct mfl_model_file *model, bool evaluates,
        struct mfl_infer **ret_infer, struct mfl_error *err)
{
        struct mfl_infer_options options = {.backend = cli->options.backend,
                .batch_max = ROWS,
                .threads = cli->options.threads > 0 ? (uint32_t)cli->options.threads : 1};
        if (model->job && model->job->training.auxiliary.n)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: models with auxiliary outputs (training.auxiliary) are not supported",
                        model->path);
        const int r = precision_of(cli, model, evaluates, &options.precision, err);
        return r ? r : mfl_infer_new(model, &options, ret_infer, err);
}
