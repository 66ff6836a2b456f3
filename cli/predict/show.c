/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl model show MODEL`: what a model expects of its input, and where it comes from. */
#include <inttypes.h>
#include <jansson.h>

#include "cli/base/json.h"
#include "cli/predict/answers.h"
#include "cli/predict/predict.h"
#include "cli/view/views.h"

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

int mfl_cmd_model(struct mfl_cli *cli)
{
        struct mfl_model_file *model = NULL;
        struct mfl_error err;
        int r = cli->argument[1] && !cli->argument[2]
                        ? 0
                        : mfl_fail(&err, MFL_CLI_USAGE, "usage: mfl model show MODEL");
        cli->argument[0] = cli->argument[1];
        if (!r)
                r = mfl_predict_model(cli, &model, &err);
        if (!r)
                r = cli->json ? print_json(model, &err) : print_people(model, &err);
        mfl_model_file_free(model);
        return mfl_cli_report(cli, r, &err);
}
