/* SPDX-License-Identifier: Apache-2.0 */
/* Commands about several jobs at once: stop --all; archive, unarchive and delete without a job. Asks for the list, then sends a request for each
 * job that matches. A job that can't be stopped, archived or deleted doesn't keep the others from it; the exit status is 1 then. */
#include "cli/commands/commands.h"
#include "cli/base/client.h"
#include "cli/base/json.h"
#include "cli/many/select.h"

/* A request for one job. */
struct request {
        Mfl__Envelope envelope;
        Mfl__StopJob stop;
        Mfl__StopAfterRound stop_after_round;
        Mfl__DeleteJob delete;
        Mfl__ArchiveJob archive;
};
typedef void fill_request(struct request *request, char *job);

struct many {
        struct mfl_cli *cli;
        struct mfl_client client;
        fill_request *fill;
        json_t *told;
        size_t n_failed;
};

static int list_jobs(struct many *m, const struct mfl_select *select, struct mfl_client_jobs *ret_jobs,
        Mfl__JobList *ret_list, struct mfl_error *err)
{
        int r = mfl_client_open(&m->client, m->cli, m->cli->server, MFL_CLIENT_TIMEOUT_MS, err);
        if (!r)
                r = mfl_client_jobs(&m->client, false, ret_jobs, err);
        return r ? r : mfl_select_jobs(select, 0, &ret_jobs->list, ret_list, err);
}

static int ask_one(struct many *m, const Mfl__JobInfo *job, struct mfl_error *err)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct request request = {MFL__ENVELOPE__INIT, MFL__STOP_JOB__INIT, MFL__STOP_AFTER_ROUND__INIT,
                MFL__DELETE_JOB__INIT, MFL__ARCHIVE_JOB__INIT};
        m->fill(&request, job->job);
        int r = mfl_client_call(&m->client, &request.envelope, MFL__ENVELOPE__BODY_DONE, &answer, err);
        const char *text = r ? err->text : *answer->done->text ? answer->done->text : "done";
        if (m->cli->json)
                json_array_append_new(m->told, json_pack("{ss ss ss}", "job", job->job, "name", job->name,
                                                       r ? "error" : "text", text));
        else if (r)
                mfl_cli_note(m->cli, "%s %s: %s", job->job, job->name, text);
        else
                printf("%s %s: %s\n", job->job, job->name, text);
        return r;
}

/* After a failure that is the connection's, asking for the others makes no sense. */
static bool goes_on(int r)
{
        return r == MFL_INVALID || r == MFL_NOT_FOUND || r == MFL_CLI_CONFLICT || r == MFL_CLI_LIMIT;
}

static int ask_all(struct many *m, const struct mfl_select *select, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT_JOBS struct mfl_client_jobs jobs = {.pages = {NULL, 0}};
        Mfl__JobList list = MFL__JOB_LIST__INIT;
        int r = list_jobs(m, select, &jobs, &list, err);
        for (size_t i = 0; !r && i < list.n_jobs; i++) {
                r = ask_one(m, list.jobs[i], err);
                m->n_failed += r != 0;
                if (goes_on(r))
                        r = 0;
        }
        if (!r && m->cli->json)
                r = mfl_json_print(stdout, json_pack("{sO}", "jobs", m->told), err);
        else if (!r && !list.n_jobs)
                puts("no job matches");
        else if (!r && m->n_failed)
                r = mfl_fail(
                        err, MFL_CLI_FAILED, "%zu of %zu jobs remain as they were", m->n_failed, list.n_jobs);
        free(list.jobs);
        return r;
}

static int run(struct mfl_cli *cli, const struct mfl_select *select, fill_request *fill)
{
        struct many m = {.cli = cli, .client = {.cli = cli}, .fill = fill, .told = json_array()};
        struct mfl_error err;
        int r = ask_all(&m, select, &err);
        mfl_client_close(&m.client);
        json_decref(m.told);
        return r || !m.n_failed ? mfl_cli_report(cli, r, &err) : MFL_EXIT_FAILED;
}

static void fill_stop(struct request *request, char *job)
{
        request->stop.job = job;
        request->envelope.body_case = MFL__ENVELOPE__BODY_STOP_JOB;
        request->envelope.stop_job = &request->stop;
}

static void fill_stop_after_round(struct request *request, char *job)
{
        request->stop_after_round.job = job;
        request->envelope.body_case = MFL__ENVELOPE__BODY_STOP_AFTER_ROUND;
        request->envelope.stop_after_round = &request->stop_after_round;
}

static void fill_delete(struct request *request, char *job)
{
        request->delete.job = job;
        request->envelope.body_case = MFL__ENVELOPE__BODY_DELETE_JOB;
        request->envelope.delete_job = &request->delete;
}

static void fill_archive(struct request *request, char *job)
{
        request->archive.job = job;
        request->envelope.body_case = MFL__ENVELOPE__BODY_ARCHIVE_JOB;
        request->envelope.archive_job = &request->archive;
}

static void fill_unarchive(struct request *request, char *job)
{
        fill_archive(request, job);
        request->archive.undo = true;
}

int mfl_cmd_stop_many(struct mfl_cli *cli)
{
        struct mfl_select select = {
                .states = 1u << MFL__JOB_STATE__JOB_WAITING | 1u << MFL__JOB_STATE__JOB_RUNNING,
                .name = cli->options.name};
        if (!cli->options.all || cli->argument[0])
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "name a job, or write --all: mfl stop JOB|--all");
        return run(cli, &select, cli->options.after_round ? fill_stop_after_round : fill_stop);
}

/* Those that have ended, which the options must name. */
static int read_ended(const struct mfl_cli *cli, struct mfl_select *ret_select, struct mfl_error *err)
{
        const char *verb = cli->command->name;
        int r = mfl_select_read(cli, ret_select, err);
        if (!r && !ret_select->states)
                r = mfl_fail(err, MFL_CLI_USAGE,
                        "say which jobs: mfl %s JOB, mfl %s --done, or --state failed,stopped", verb, verb);
        if (!r &&
                ret_select->states & (1u << MFL__JOB_STATE__JOB_WAITING | 1u << MFL__JOB_STATE__JOB_RUNNING))
                r = mfl_fail(err, MFL_CLI_USAGE,
                        "a job that has not ended can't be %sd: stop it first (mfl stop)", verb);
        return r;
}

bool mfl_cmd_archive_undoes(const struct mfl_cli *cli)
{
        return cli->options.undo || !strcmp(cli->command->name, "unarchive");
}

int mfl_cmd_archive_many(struct mfl_cli *cli)
{
        const bool undo = mfl_cmd_archive_undoes(cli);
        struct mfl_select select;
        struct mfl_error err;
        int r = read_ended(cli, &select, &err);
        if (r)
                return mfl_cli_report(cli, r, &err);
        select.archived = undo ? MFL_SELECT_ARCHIVED : MFL_SELECT_CURRENT;
        return run(cli, &select, undo ? fill_unarchive : fill_archive);
}

int mfl_cmd_delete_many(struct mfl_cli *cli)
{
        struct mfl_select select;
        struct mfl_error err;
        int r = read_ended(cli, &select, &err);
        return r ? mfl_cli_report(cli, r, &err) : run(cli, &select, fill_delete);
}
