/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl model show MODEL`: what a model expects of its input, and where it comes from. An npz file has arrays and the contract, but no
 * layers: it can be shown, and nothing more. */
#include <inttypes.h>
#include <jansson.h>
#include <unistd.h>

#include "cli/base/json.h"
#include "cli/predict/answers.h"
#include "cli/predict/predict.h"
#include "cli/view/views.h"
#include "common/data/sources.h"

static int print_json(const struct mfl_model_file *m, struct mfl_error *err)
{
        char *text;
        int r = mfl_contract_text(m->contract, &text, err);
        if (r)
                return r;
        json_t *contract = json_loads(text, 0, NULL);
        free(text);
        return mfl_json_print(stdout,
                json_pack("{ss ss* sI ss* ss* so so sI so}", "file", m->path, "job",
                        *m->job_id ? m->job_id : NULL, "round", (json_int_t)m->round, "digest",
                        *m->digest ? m->digest : NULL, "software", *m->software ? m->software : NULL, "loss",
                        m->has_loss ? json_real(m->loss) : json_null(), "accuracy",
                        m->has_accuracy ? json_real(m->accuracy) : json_null(), "params",
                        (json_int_t)m->graph->n, "contract", contract ? contract : json_null()),
                err);
}

static int print_people(const struct mfl_model_file *m, struct mfl_error *err)
{
        if (*m->job_id)
                printf("model      round %" PRId64 " of job %s, %" PRIu64 " parameters\n", m->round,
                        m->job_id, m->graph->n);
        else
                printf("model      %" PRIu64 " parameters\n", m->graph->n);
        char *text = mfl_view_contract(m->contract, !*m->job_id);
        if (!text)
                return mfl_fail_memory(err, 0, "a contract");
        fputs(text, stdout);
        free(text);
        return mfl_cli_flush(err);
}

/* ---- npz ---- */

static int read_npz(const struct mfl_cli *cli, const char *path, size_t *ret_n,
        struct mfl_contract **ret_contract, struct mfl_error *err)
{
        struct mfl_data_bytes bytes = {0};
        struct mfl_npz *npz = NULL;
        size_t n = 0;
        if (access(path, F_OK))
                return mfl_fail(err, MFL_NOT_FOUND, "%.200s: no such file", path);
        if (cli->options.round)
                return mfl_fail(
                        err, MFL_CLI_USAGE, "--round chooses a model of a job; %.200s is a file", path);
        int r = mfl_data_read_file(path, &bytes, err);
        if (!r)
                r = mfl_npz_open(bytes.data, bytes.n, path, &npz, err);
        const char *comment = r ? "" : mfl_npz_comment(npz, &n);
        MFL_CLEANUP_FREE char *text = n ? mfl_asprintf("%.*s", (int)n, comment) : NULL;
        if (!r && !n)
                r = mfl_fail(err, MFL_INVALID,
                        "%.200s: it says nothing of a model's input: `mfl pull --format npz` writes that as "
                        "the "
                        "archive's comment, where the server knows it and it has at most 65535 bytes, a "
                        "limit "
                        "that safetensors files don't have",
                        path);
        else if (!r && !text)
                r = mfl_fail_memory(err, n, path);
        if (!r)
                r = mfl_contract_parse(text, path, ret_contract, err);
        *ret_n = r ? 0 : mfl_npz_count(npz);
        mfl_npz_close(npz);
        free(bytes.data);
        return r;
}

static int print_npz(const struct mfl_cli *cli, const char *path, size_t n,
        const struct mfl_contract *contract, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = NULL;
        int r = 0;
        if (cli->json)
                r = mfl_contract_text(contract, &text, err);
        else if (!(text = mfl_view_contract(contract, true)))
                r = mfl_fail_memory(err, 0, "a contract");
        if (r)
                return r;
        if (cli->json)
                return mfl_json_print(stdout,
                        json_pack("{ss sI so}", "file", path, "arrays", (json_int_t)n, "contract",
                                json_loads(text, 0, NULL)),
                        err);
        printf("model      %zu arrays, without layers\n%s", n, text);
        return mfl_cli_flush(err);
}

static int show_npz(const struct mfl_cli *cli, const char *path, struct mfl_error *err)
{
        struct mfl_contract *contract = NULL;
        size_t n = 0;
        int r = read_npz(cli, path, &n, &contract, err);
        if (!r)
                r = print_npz(cli, path, n, contract, err);
        mfl_contract_free(contract);
        return r;
}

int mfl_cmd_model(struct mfl_cli *cli)
{
        struct mfl_model_file *model = NULL;
        struct mfl_error err;
        int r = cli->argument[1] && !cli->argument[2]
                        ? 0
                        : mfl_fail(&err, MFL_CLI_USAGE, "usage: mfl model show MODEL");
        cli->argument[0] = cli->argument[1];
        const char *dot = r ? NULL : strrchr(cli->argument[0], '.');
        if (dot && !strcmp(dot, ".npz"))
                return mfl_cli_report(cli, show_npz(cli, cli->argument[0], &err), &err);
        if (!r)
                r = mfl_predict_model(cli, &model, &err);
        if (!r)
                r = cli->json ? print_json(model, &err) : print_people(model, &err);
        mfl_model_file_free(model);
        return mfl_cli_report(cli, r, &err);
}
