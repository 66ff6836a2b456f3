/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that create jobs: submit, clone, forget and replay. */
#include "cli/base/json.h"
#include "cli/commands/commands.h"
#include "cli/job/submit.h"
#include "cli/sites/sites.h"
#include "cli/view/watch.h"

static int check_token(const char *token, struct mfl_error *err)
{
        if (token && (!*token || strlen(token) >= MFL_NAME_BYTES))
                return mfl_fail(err, MFL_CLI_USAGE, "--token: 1 to %d bytes", MFL_NAME_BYTES - 1);
        return 0;
}

/* Those of the report (NULL: none) that would refuse the job. */
static json_t *refusing_json(const Mfl__InquiryReport *report)
{
        json_t *list = json_array();
        for (size_t i = 0; report && i < report->n_sites; i++)
                if (report->sites[i]->status == MFL__INQUIRY_STATUS__INQUIRY_REFUSED)
                        json_array_append_new(list, json_pack("{ss ss}", "site", report->sites[i]->site,
                                                            "reason", report->sites[i]->reason));
        return list;
}

static int print_submitted(struct mfl_cli *cli, const char *job, const char *name, bool existed,
        const Mfl__InquiryReport *report, struct mfl_error *err)
{
        if (cli->json) {
                json_t *object = json_pack("{ss sb}", "job", job, "existed", (int)existed);
                json_t *refusing = refusing_json(report);
                if (json_array_size(refusing))
                        json_object_set(object, "refusing", refusing);
                json_decref(refusing);
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
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *said = NULL;
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
                        r = mfl_sites_ask_job(&client, s.text, cli->options.token, &said, &err);
                if (!r && said) {
                        mfl_sites_tell_job(cli, said->inquiry_report);
                        r = cli->options.anyway ? 0 : mfl_sites_enough(said->inquiry_report, s.job, &err);
                }
                if (!r)
                        r = mfl_submission_send(&s, &client, cli->options.token, job, &existed, &err);
        }
        if (!r)
                r = print_submitted(cli, job, s.job->name, existed, said ? said->inquiry_report : NULL, &err);
        return r ? mfl_cli_report(cli, r, &err) : watch_or_end(cli, job);
}

#define CLONE_AS_IT_IS (-1)
#define CLONE_REPLAYED (-2)

/* forget: a client that the new job leaves out, which replaces the old one; or one of the above. source: the old job's id. */
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
        clone.replay = forget == CLONE_REPLAYED;
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
        char job[MFL_JOB_ID_BYTES], source[MFL_JOB_ID_BYTES], what[MFL_JOB_ID_BYTES + 16];
        bool existed;
        int r = check_token(cli->options.token, &err);
        if (!r)
                r = send_clone(cli, CLONE_AS_IT_IS, source, job, &existed, &err);
        if (!r) {
                snprintf(what, sizeof what, "a copy of %s", source);
                r = print_submitted(cli, job, what, existed, NULL, &err);
        }
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
                        json_pack("{ss ss sI sb}", "job", job, "replaces", source, "client",
                                (json_int_t)client, "existed", (int)existed),
                        &err);
        else if (!r)
                printf("%s takes the place of %s, without client %lld; %s and its models are deleted%s\n",
                        job, source, (long long)client, source,
                        existed ? " (was done before with this token)" : "");
        return r ? mfl_cli_report(cli, r, &err) : watch_or_end(cli, job);
}

/* ---- replay ---- */

/* All rounds of the job, when it has ended, or (once) those that it has. */
static int fetch_rounds(struct mfl_watch *watch, bool once, struct mfl_error *err)
{
        watch->all_rounds = true;
        watch->once = once;
        int r = mfl_watch_run(watch, err);
        return r == MFL_CLI_FAILED && watch->state == MFL__JOB_STATE__JOB_STOPPED ? 0 : r;
}

/* Of the rounds that both have, and of the first `least` ones, the first whose model differs or is missing; 0: none. The old job may have
 * gone on meanwhile. */
static uint32_t find_difference(const struct mfl_watch *old, const struct mfl_watch *new, size_t least)
{
        size_t n = MFL_MIN(old->n, new->n);
        for (size_t i = 0; i < n; i++)
                if (old->all[i].info.round != new->all[i].info.round ||
                        memcmp(old->all[i].digest, new->all[i].digest, MFL_DIGEST_BYTES) != 0)
                        return new->all[i].info.round;
        return new->n < least ? (uint32_t) new->n + 1 : 0;
}

static int tell_replay(struct mfl_cli *cli, const struct mfl_watch *old, const struct mfl_watch *new,
        size_t least, bool *ret_same, struct mfl_error *err)
{
        uint32_t differs = find_difference(old, new, least);
        *ret_same = !differs;
        if (cli->json)
                return mfl_json_print(stdout,
                        json_pack("{ss ss sI sb sI}", "job", new->job, "replays", old->job, "rounds",
                                (json_int_t) new->n, "same", (int)!differs, "differs", (json_int_t)differs),
                        err);
        if (differs > new->n)
                printf("%s: it was stopped after %zu of the %zu rounds of %s\n", new->job, new->n, least,
                        old->job);
        else if (differs)
                printf("%s: round %u of %s has another model\n", new->job, differs, old->job);
        else
                printf("%s: all %zu rounds of %s have the same models\n", new->job, new->n, old->job);
        return mfl_cli_flush(err);
}

/* How many rounds the job has, so many at least are made again. */
static int count_rounds(struct mfl_cli *cli, struct mfl_watch *watch, size_t *ret_n, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, err);
        if (!r)
                r = mfl_client_resolve(&client, cli->argument[0], watch->job, err);
        if (!r)
                r = fetch_rounds(watch, true, err);
        if (!r)
                *ret_n = watch->n;
        mfl_watch_deinit(watch);
        return r;
}

int mfl_cmd_replay(struct mfl_cli *cli)
{
        uint64_t timeout_ms = cli->options.timeout >= 0 ? (uint64_t)cli->options.timeout * 1000 : 60000;
        struct mfl_watch old = {.cli = cli, .address = cli->server, .give_up_ms = timeout_ms}, new = old,
                         before = old;
        struct mfl_error err;
        bool existed = false, same = false;
        size_t least = 0;
        int r = check_token(cli->options.token, &err);
        new.output = cli->options.watch && !cli->json ? MFL_WATCH_LINES : MFL_WATCH_SILENT;
        if (!r)
                r = count_rounds(cli, &before, &least, &err);
        if (!r)
                r = send_clone(cli, CLONE_REPLAYED, old.job, new.job, &existed, &err);
        if (!r)
                r = fetch_rounds(&new, false, &err);
        if (!r)
                r = fetch_rounds(&old, true, &err);
        if (!r)
                r = tell_replay(cli, &old, &new, existed ? 0 : least, &same, &err);
        mfl_watch_deinit(&old);
        mfl_watch_deinit(&new);
        return r ? mfl_cli_report(cli, r, &err) : same ? MFL_EXIT_OK : MFL_EXIT_FAILED;
}
