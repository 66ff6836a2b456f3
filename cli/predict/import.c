/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl model import FILE.onnx`: a network of another program as a model file, which predict, evaluate, validate and mfl-serve take.
 *
 * Happy path: the ONNX file is read in a child without rights -> its layers become a job file -> both are written as `mfl pull` writes them. Fails
 * when: it has operators that mfl has not, or no values.
 */
#include <inttypes.h>

#include "cli/base/json.h"
#include "cli/job/submit.h"
#include "cli/onnx/onnx.h"
#include "cli/predict/answers.h"
#include "cli/predict/predict.h"
#include "common/base/digest.h"
#include "common/contract/contract.h"
#include "proto/pull/pulled.h"

/* The job file of a model whose own is not known. Its loss says what the outputs are. */
static int make_text(const struct mfl_cli *cli, const char *path, const struct mfl_onnx_model *onnx,
        char **ret_text, struct mfl_error *err)
{
        const struct mfl_sets sets = {cli->options.set, cli->options.n_set};
        struct mfl_contract *contract = NULL;
        int r = onnx->contract ? mfl_contract_parse(onnx->contract, path, &contract, err) : 0;
        if (r)
                return r;
        const bool loss = contract && contract->has_loss;
        MFL_CLEANUP_FREE char *text =
                mfl_asprintf("name: imported\nrounds: 1\nmodel:\n  layers:\n%sdata: {name: imported}\n"
                             "training: {lr: 0.1, batch: 32%s%s}\n",
                        onnx->text, loss ? ", loss: " : "", loss ? mfl_loss_name(contract->loss) : "");
        mfl_contract_free(contract);
        return text ? mfl_sets_apply(&sets, path, text, ret_text, err)
                    : mfl_fail_memory(err, strlen(onnx->text), "a job file");
}

static int write_model(const char *path, const struct mfl_onnx_model *onnx, char *text, const char *out,
        struct mfl_error *err)
{
        Mfl__PullBegin begin = MFL__PULL_BEGIN__INIT;
        Mfl__RoundInfo round = MFL__ROUND_INFO__INIT;
        struct mfl_job *job = NULL;
        struct mfl_graph *graph = NULL;
        uint32_t input[MFL_SHAPE_RANK_MAX];
        uint8_t digest[MFL_SHA256_BYTES];
        char hex[MFL_SHA256_HEX_BYTES];
        for (int i = 0; i < onnx->input.rank; i++)
                input[i] = (uint32_t)onnx->input.dim[i];
        begin.text = text;
        begin.round = &round;
        begin.n_input = (size_t)onnx->input.rank;
        begin.input = input;
        begin.classes = (uint32_t)onnx->classes;
        begin.n_params = onnx->n;
        begin.contract = onnx->contract ? onnx->contract : begin.contract;
        if (!onnx->params)
                return mfl_fail(err, MFL_INVALID, "%.200s: the file has no values for its parameters", path);
        int r = mfl_pulled_graph(&begin, &job, &graph, err);
        if (!r)
                r = mfl_sha256(onnx->params, onnx->n * sizeof(float), digest, err);
        if (!r) {
                mfl_hex(digest, sizeof digest, hex);
                r = mfl_pulled_write(&begin, job, graph, onnx->params, "", hex, out, err);
        }
        mfl_graph_free(graph);
        mfl_job_free(job);
        return r;
}

int mfl_predict_import(const struct mfl_cli *cli, const char *path, const char *out, struct mfl_error *err)
{
        struct mfl_onnx_model onnx = {.text = NULL};
        MFL_CLEANUP_FREE char *text = NULL;
        int r = mfl_onnx_open(path, 0, true, &onnx, err);
        if (!r)
                r = make_text(cli, path, &onnx, &text, err);
        if (!r)
                r = write_model(path, &onnx, text, out, err);
        if (!r && *onnx.notes)
                fprintf(stderr, "%s", onnx.notes);
        if (!r && onnx.log_softmax)
                fprintf(stderr,
                        "mfl: %s ends in log_softmax, which is left out: a class has the same probability\n",
                        path);
        mfl_onnx_model_deinit(&onnx);
        return r;
}

/* "a/net.onnx": "net.safetensors" */
static char *name_of(const char *path)
{
        const char *base = strrchr(path, '/'), *dot;
        base = base ? base + 1 : path;
        dot = strrchr(base, '.');
        return mfl_asprintf("%.*s.safetensors", dot ? (int)(dot - base) : (int)strlen(base), base);
}

int mfl_cmd_import(struct mfl_cli *cli)
{
        struct mfl_model_file *model = NULL;
        struct mfl_error err;
        const char *path = cli->argument[1];
        int r = path && !cli->argument[2]
                        ? 0
                        : mfl_fail(&err, MFL_CLI_USAGE, "usage: mfl model import FILE.onnx [-o OUT]");
        MFL_CLEANUP_FREE char *out = r                  ? NULL
                                     : cli->options.out ? mfl_strdup(cli->options.out)
                                                        : name_of(path);
        if (!r && !out)
                r = mfl_fail_memory(&err, strlen(path), "a name");
        if (!r)
                r = mfl_predict_import(cli, path, out, &err);
        if (!r)
                r = mfl_model_file_open(out, &model, &err);
        if (!r && cli->json)
                r = mfl_json_print(stdout,
                        json_pack("{ss ss sI}", "file", out, "digest", model->digest, "params",
                                (json_int_t)model->graph->n),
                        &err);
        else if (!r)
                printf("%s: %" PRIu64 " parameters; sha256 of them %.16s\n", out, model->graph->n,
                        model->digest);
        mfl_model_file_free(model);
        return mfl_cli_report(cli, r, &err);
}
