/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that make jobs: submit, clone, and check, which only looks at the file. */
#include <inttypes.h>

#include "cli/submit.h"
#include "cli/watch.h"

static int check_token(const char *token, struct mfl_error *err)
{
        if (token && (!*token || strlen(token) >= MFL_NAME_BYTES))
                return mfl_fail(err, MFL_CLI_USAGE, "--token: 1 to %d bytes", MFL_NAME_BYTES - 1);
        return 0;
}

static int print_submitted(
        struct mfl_cli *cli, const char *job, const char *name, bool existed, struct mfl_error *err)
{
        if (cli->json) {
                json_t *object = json_pack("{ss sb}", "job", job, "existed", (int)existed);
                if (cli->options.watch)
                        json_object_set_new(object, "event", json_string("submitted"));
                return mfl_json_print(stdout, object, err);
        }
        printf("%s %s%s\n", job, name, existed ? " (was submitted before with this token)" : "");
        return mfl_cli_flush(err);
}

static int watch_or_end(struct mfl_cli *cli, const char *job)
{
        if (!cli->options.watch)
                return MFL_EXIT_OK;
        return mfl_watch_command(cli, job, cli->json ? MFL_WATCH_JSON : MFL_WATCH_LINES);
}

int mfl_cmd_submit(struct mfl_cli *cli)
{
        MFL_CLEANUP_SUBMISSION struct mfl_submission s = {.path = NULL};
        struct mfl_error err;
        char job[MFL_JOB_ID_BYTES];
        bool existed;
        int r = check_token(cli->options.token, &err);
        if (!r)
                r = mfl_submission_read(cli->argument[0], &s, &err);
        if (!r) {
                mfl_submission_tell(&s, cli);
                MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
                r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
                if (!r)
                        r = mfl_submission_send(&s, &client, cli->options.token, job, &existed, &err);
        }
        if (!r)
                r = print_submitted(cli, job, s.job->name, existed, &err);
        return r ? mfl_cli_report(cli, r, &err) : watch_or_end(cli, job);
}

static int send_clone(struct mfl_cli *cli, char *ret_job, bool *ret_existed, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        char source[MFL_JOB_ID_BYTES];
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__CloneJob clone = MFL__CLONE_JOB__INIT;
        clone.job = source;
        clone.token = (char *)(uintptr_t)(cli->options.token ? cli->options.token : "");
        request.body_case = MFL__ENVELOPE__BODY_CLONE_JOB;
        request.clone_job = &clone;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, err);
        if (!r)
                r = mfl_client_resolve(&client, cli->argument[0], source, err);
        if (!r)
                r = mfl_client_call(&client, &request, MFL__ENVELOPE__BODY_SUBMITTED, &answer, err);
        if (r)
                return r;
        mfl_strcpy(ret_job, MFL_JOB_ID_BYTES, answer->submitted->job);
        *ret_existed = answer->submitted->existed;
        return 0;
}

int mfl_cmd_clone(struct mfl_cli *cli)
{
        struct mfl_error err;
        char job[MFL_JOB_ID_BYTES];
        bool existed;
        int r = check_token(cli->options.token, &err);
        if (!r)
                r = send_clone(cli, job, &existed, &err);
        if (!r)
                r = print_submitted(cli, job, cli->argument[0], existed, &err);
        return r ? mfl_cli_report(cli, r, &err) : watch_or_end(cli, job);
}

/* The graph where the job alone gives it; NULL when the shapes come from the data set. */
static int known_graph(const struct mfl_job *job, struct mfl_graph **ret_graph, struct mfl_error *err)
{
        *ret_graph = NULL;
        if (!job->model.input.rank || !job->model.classes)
                return 0;
        return mfl_job_graph(job, &job->model.input, job->model.classes, ret_graph, err);
}

static void print_check(const struct mfl_submission *s, const struct mfl_graph *graph)
{
        const struct mfl_job *j = s->job;
        printf("%s: valid\n  name      %s\n  rounds    %u\n  model     %s", s->path, j->name, j->rounds,
                j->model.preset[0] ? j->model.preset : "layers");
        if (graph && graph->n_frozen)
                printf(", %" PRIu64 " parameters, %" PRIu64 " of them move\n", graph->n, graph->n_moving);
        else if (graph)
                printf(", %" PRIu64 " parameters\n", graph->n);
        else
                printf(" (parameters depend on the data set)\n");
        printf("  data      %s, %s", j->data.name, mfl_partition_name(j->data.partition));
        if (j->data.clients)
                printf(", %u clients", j->data.clients);
        printf("\n  strategy  %s\n", mfl_strategy_name(j->aggregation.strategy));
}

static json_t *check_json(const struct mfl_submission *s, const struct mfl_graph *graph)
{
        const struct mfl_job *j = s->job;
        return json_pack("{sb ss sI ss so so ss ss sI ss}", "valid", 1, "name", j->name, "rounds",
                (json_int_t)j->rounds, "model", j->model.preset[0] ? j->model.preset : "layers", "params",
                graph ? json_integer((json_int_t)graph->n) : json_null(), "moving",
                graph ? json_integer((json_int_t)graph->n_moving) : json_null(), "data", j->data.name,
                "partition", mfl_partition_name(j->data.partition), "clients", (json_int_t)j->data.clients,
                "strategy", mfl_strategy_name(j->aggregation.strategy));
}

int mfl_cmd_check(struct mfl_cli *cli)
{
        MFL_CLEANUP_SUBMISSION struct mfl_submission s = {.path = NULL};
        struct mfl_error err;
        struct mfl_graph *graph = NULL;
        int r = mfl_submission_read(cli->argument[0], &s, &err);
        if (!r)
                r = known_graph(s.job, &graph, &err);
        if (!r)
                mfl_submission_tell(&s, cli);
        if (!r && cli->json)
                r = mfl_json_print(stdout, check_json(&s, graph), &err);
        else if (!r)
                print_check(&s, graph);
        mfl_graph_free(graph);
        return mfl_cli_report(cli, r, &err);
}
