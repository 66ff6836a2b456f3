/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that create jobs: submit and clone. */
#include "cli/base/json.h"
#include "cli/commands/commands.h"
#include "cli/job/submit.h"
#include "cli/view/watch.h"

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
        const struct mfl_sets sets = {cli->options.set, cli->options.n_set};
        struct mfl_error err;
        char job[MFL_JOB_ID_BYTES];
        bool existed;
        int r = check_token(cli->options.token, &err);
        if (!r)
                r = mfl_submission_read(cli->argument[0], &sets, "auto", &s, &err);
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

/* forget: a client that the new job leaves out, which replaces the old one; -1: none. source: the old job's id. */
static int send_clone(struct mfl_cli *cli, int64_t forget, char source[MFL_JOB_ID_BYTES], char *ret_job,
        bool *ret_existed, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__CloneJob clone = MFL__CLONE_JOB__INIT;
        clone.job = source;
        clone.token = (char *)(uintptr_t)(cli->options.token ? cli->options.token : "");
        clone.forget = forget >= 0;
        clone.client = forget >= 0 ? (uint32_t)forget : 0;
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
        char job[MFL_JOB_ID_BYTES], source[MFL_JOB_ID_BYTES];
        bool existed;
        int r = check_token(cli->options.token, &err);
        if (!r)
                r = send_clone(cli, -1, source, job, &existed, &err);
        if (!r)
                r = print_submitted(cli, job, cli->argument[0], existed, &err);
        return r ? mfl_cli_report(cli, r, &err) : watch_or_end(cli, job);
}

int mfl_cmd_forget(struct mfl_cli *cli)
{
        struct mfl_error err;
        char job[MFL_JOB_ID_BYTES], source[MFL_JOB_ID_BYTES], *end;
        bool existed;
        errno = 0;
        int64_t client = strtoll(cli->argument[1], &end, 10);
        int r = errno || end == cli->argument[1] || *end || client < 0 || client > UINT32_MAX
                        ? mfl_fail(&err, MFL_CLI_USAGE, "'%.60s' is not a client's number", cli->argument[1])
                        : check_token(cli->options.token, &err);
        if (!r)
                r = send_clone(cli, client, source, job, &existed, &err);
        if (!r && cli->json)
                r = mfl_json_print(stdout,
                        json_pack("{ss ss sI}", "job", job, "replaces", source, "client", (json_int_t)client),
                        &err);
        else if (!r)
                printf("%s begins with round 1, without client %lld; %s and its models are deleted\n", job,
                        (long long)client, source);
        return r ? mfl_cli_report(cli, r, &err) : watch_or_end(cli, job);
}
