/* SPDX-License-Identifier: Apache-2.0 */
/* Commands about jobs with one request and one answer: list, show, models, stop, archive, delete. */
#include <inttypes.h>
#include <math.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/base/client.h"
#include "cli/base/display.h"
#include "cli/base/json.h"
#include "cli/many/select.h"
#include "cli/view/views.h"

#define CHOICES_SHOWN 20 /* rounds */

/* Prints the server's answer. */
typedef int print_answer(
        struct mfl_cli *cli, const char *job, const Mfl__Envelope *answer, struct mfl_error *err);

/* Sends one request and takes an answer of that kind. If `job` is not NULL, the first argument is resolved
 * into it, and the request points to it. */
static int ask(struct mfl_cli *cli, Mfl__Envelope *request, char *job, Mfl__Envelope__BodyCase kind,
        print_answer *print)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct mfl_error err;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r && job)
                r = mfl_client_resolve(&client, cli->argument[0], job, &err);
        if (!r)
                r = mfl_client_call(&client, request, kind, &answer, &err);
        if (!r)
                r = print(cli, job, answer, &err);
        return mfl_cli_report(cli, r, &err);
}

/* The width of the terminal; 0 elsewhere: no limit. */
static int width(const struct mfl_cli *cli)
{
        return cli->terminal ? mfl_screen_columns(STDOUT_FILENO) : 0;
}

/* Prints and frees the text. NULL: out of memory. */
static int print_view(char *text, const char *what, struct mfl_error *err)
{
        if (!text)
                return mfl_fail_memory(err, 0, what);
        fputs(text, stdout);
        free(text);
        return 0;
}

static json_t *list_json(const Mfl__JobList *list)
{
        json_t *jobs = json_array();
        for (size_t i = 0; i < list->n_jobs; i++)
                json_array_append_new(jobs, mfl_json_job(list->jobs[i]));
        return *list->notice ? json_pack("{so ss}", "jobs", jobs, "notice", list->notice)
                             : json_pack("{so}", "jobs", jobs);
}

static int print_list(
        struct mfl_cli *cli, const struct mfl_select *select, const Mfl__JobList *all, struct mfl_error *err)
{
        Mfl__JobList list = MFL__JOB_LIST__INIT;
        size_t n = cli->options.last > 0 ? (size_t)cli->options.last : 0;
        int r = mfl_select_jobs(select, n, all, &list, err);
        if (r)
                return r;
        if (!cli->json && *all->notice)
                fprintf(stderr, "mfl: %s\n", all->notice);
        if (cli->json)
                r = mfl_json_print(stdout, list_json(&list), err);
        else if (!list.n_jobs)
                puts(all->n_jobs ? "no job matches"
                                 : "no jobs; 'mfl submit job.yaml' sends one to the server");
        else
                r = print_view(mfl_view_jobs(&list, width(cli)), "a list of jobs", err);
        free(list.jobs);
        return r;
}

int mfl_cmd_list(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_CLIENT_JOBS struct mfl_client_jobs jobs = {.pages = {NULL, 0}};
        struct mfl_select select;
        struct mfl_error err;
        int r = mfl_select_read(cli, &select, &err); /* before the server is asked */
        if (!r)
                r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = mfl_client_jobs(&client, select.archived == MFL_SELECT_CURRENT, &jobs, &err);
        if (!r)
                r = print_list(cli, &select, &jobs.list, &err);
        return mfl_cli_report(cli, r, &err);
}

static json_t *rounds_json(Mfl__RoundInfo *const *rounds, size_t n)
{
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++)
                json_array_append_new(list, mfl_json_round(rounds[i]));
        return list;
}

static int print_rounds(struct mfl_cli *cli, Mfl__RoundInfo *const *rounds, size_t n, struct mfl_error *err)
{
        return n ? print_view(mfl_view_rounds(rounds, n, width(cli)), "rounds", err) : 0;
}

static json_t *nodes_json(Mfl__NodeCost *const *nodes, size_t n)
{
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++)
                json_array_append_new(list, mfl_json_node(nodes[i]));
        return list;
}

static int print_network(struct mfl_cli *cli, const Mfl__JobDetail *d, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = mfl_view_network(d, cli->options.nodes, width(cli));
        if (!text)
                return mfl_fail_memory(err, 0, "the costs of nodes");
        printf("%s%s", *text ? "\n" : "", text);
        return 0;
}

static int print_scores(struct mfl_cli *cli, const Mfl__JobDetail *d, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = mfl_view_scores(d, width(cli));
        if (!text)
                return mfl_fail_memory(err, 0, "the scores of clients");
        printf("%s%s", *text ? "\n" : "", text);
        return 0;
}

static int print_teams(struct mfl_cli *cli, const Mfl__JobDetail *d, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = mfl_view_teams(d->teams, cli->options.teams, width(cli));
        if (!text)
                return mfl_fail_memory(err, 0, "a job's teams");
        printf("%s%s", *text ? "\n" : "", text);
        return 0;
}

static void print_best(const Mfl__JobInfo *j)
{
        char accuracy[16];
        printf("best       round %u, accuracy %s, loss %.4f", j->best->round,
                mfl_view_accuracy(j->best, accuracy, sizeof accuracy), j->best->loss);
        if (j->per_token)
                printf(", perplexity %.2f", exp(j->best->loss));
        putchar('\n');
}

static json_t *teams_json(const Mfl__JobTeams *teams)
{
        json_t *at_work = json_array();
        if (!teams) {
                json_decref(at_work);
                return json_null();
        }
        for (size_t i = 0; i < teams->n_at_work; i++) {
                const Mfl__JobTeam *team = teams->at_work[i];
                json_t *members = json_array();
                for (size_t k = 0; k < team->n_members; k++)
                        json_array_append_new(
                                members, json_pack("{ss si}", "daemon", team->members[k]->daemon, "ranks",
                                                 (int)team->members[k]->ranks));
                json_array_append_new(at_work, members);
        }
        const Mfl__TeamTimes none = MFL__TEAM_TIMES__INIT, *t = teams->times ? teams->times : &none;
        return json_pack("{si si si si si sf sf sf si si so so}", "formed", (int)teams->formed, "broken",
                (int)teams->broken, "taken", (int)teams->taken, "late", (int)teams->late, "unreached",
                (int)teams->unreached, "compute_seconds", (double)t->compute_us / 1e6, "exchange_seconds",
                (double)t->exchange_us / 1e6, "apply_seconds", (double)t->apply_us / 1e6, "repeats",
                (int)t->repeats, "kept_steps", (int)t->kept, "last_lost", mfl_json_text(teams->last),
                "at_work", at_work);
}

static json_t *contract_json(const char *text)
{
        json_t *contract = *text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
        return contract ? contract : json_null();
}

/* What the model expects of its input; nothing while no daemon has told. */
static int print_contract(const char *text, struct mfl_error *err)
{
        struct mfl_contract *contract;
        int r = *text ? mfl_contract_parse(text, "the server's answer", &contract, err) : MFL_INVALID;
        if (r)
                return MFL_MIN(r, 0); /* of a later version */
        char *view = mfl_view_contract(contract, false);
        mfl_contract_free(contract);
        if (!view)
                return mfl_fail_memory(err, 0, "a contract");
        fputs(view, stdout);
        free(view);
        return 0;
}

static json_t *detail_json(const Mfl__JobDetail *d)
{
        return json_pack("{so ss so so so so so}", "job", mfl_json_job(d->info), "text", d->text, "rounds",
                rounds_json(d->rounds, d->n_rounds), "nodes", nodes_json(d->nodes, d->n_nodes), "teams",
                teams_json(d->teams), "scores", mfl_json_scores(d->scores), "contract",
                contract_json(d->contract));
}

/* What a robust strategy made of the updates, for the newest rounds. */
static void print_choices(Mfl__RoundInfo *const *rounds, size_t n)
{
        bool first = true;
        for (size_t i = n > CHOICES_SHOWN ? n - CHOICES_SHOWN : 0; i < n; i++) {
                if (!*rounds[i]->choice)
                        continue;
                printf("%sround %u: %s\n", first ? "\n" : "", rounds[i]->round, rounds[i]->choice);
                first = false;
        }
}

static int print_detail(
        struct mfl_cli *cli, const char *job, const Mfl__Envelope *answer, struct mfl_error *err)
{
        const Mfl__JobDetail *d = answer->job_detail;
        const Mfl__JobInfo *j = d->info;
        char date[32];
        if (cli->json)
                return mfl_json_print(stdout, detail_json(d), err);
        printf("job        %s\nname       %s\nstate      %s%s%s\n", j->job, j->name, mfl_state_name(j->state),
                *j->reason ? ": " : "", j->reason);
        printf("rounds     %u of %u\nmodel      %s, %" PRIu64 " parameters", j->round, j->rounds, j->model,
                j->n_params);
        if (j->n_frozen)
                printf(", %" PRIu64 " of them move", j->n_params - j->n_frozen);
        putchar('\n');
        printf("data       %s\nstrategy   %s\ncreated    %s\n", j->data, j->strategy,
                mfl_view_date(j->created_ms, date, sizeof date));
        if (*j->owner)
                printf("owner      %s\n", j->owner);
        if (*j->privacy)
                printf("privacy    %s, clip %g, noise %g: epsilon %.4f of %g spent, at delta %g\n"
                       "           %s\n",
                        j->privacy, j->clip, j->noise, j->epsilon, j->epsilon_max, j->delta,
                        mfl_view_open_figures(j));
        if (j->finished_ms)
                printf("finished   %s\n", mfl_view_date(j->finished_ms, date, sizeof date));
        if (j->archived_ms)
                printf("archived   %s\n", mfl_view_date(j->archived_ms, date, sizeof date));
        if (j->in_round)
                printf("at work    round %u, %s, clients %u of %u, %u daemons\n", j->in_round, j->phase,
                        j->clients_done, j->clients_total, j->daemons);
        if (j->best)
                print_best(j);
        int r = print_contract(d->contract, err);
        if (r)
                return r;
        putchar('\n');
        r = print_rounds(cli, d->rounds, d->n_rounds, err);
        print_choices(d->rounds, d->n_rounds);
        if (!r)
                r = print_scores(cli, d, err);
        if (!r)
                r = print_network(cli, d, err);
        if (!r)
                r = print_teams(cli, d, err);
        if (r)
                return r;
        printf("%s%s", d->n_rounds ? "\n" : "", d->text);
        if (*d->text && d->text[strlen(d->text) - 1] != '\n')
                putchar('\n');
        return 0;
}

static int print_partition(
        struct mfl_cli *cli, const char *job, const Mfl__Envelope *answer, struct mfl_error *err)
{
        const Mfl__JobPartition *partition = answer->job_partition;
        if (cli->json)
                return mfl_json_print(stdout, mfl_json_partition(partition), err);
        return print_view(mfl_view_partition(partition, width(cli)), "a partition", err);
}

static int show_partition(struct mfl_cli *cli)
{
        char job[MFL_JOB_ID_BYTES];
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__GetPartition get = MFL__GET_PARTITION__INIT;
        get.job = job;
        request.body_case = MFL__ENVELOPE__BODY_GET_PARTITION;
        request.get_partition = &get;
        return ask(cli, &request, job, MFL__ENVELOPE__BODY_JOB_PARTITION, print_partition);
}

int mfl_cmd_show(struct mfl_cli *cli)
{
        char job[MFL_JOB_ID_BYTES];
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__ShowJob show = MFL__SHOW_JOB__INIT;
        if (cli->options.partition)
                return show_partition(cli);
        show.job = job;
        request.body_case = MFL__ENVELOPE__BODY_SHOW_JOB;
        request.show_job = &show;
        return ask(cli, &request, job, MFL__ENVELOPE__BODY_JOB_DETAIL, print_detail);
}

static int print_models(
        struct mfl_cli *cli, const char *job, const Mfl__Envelope *answer, struct mfl_error *err)
{
        const Mfl__ModelList *m = answer->model_list;
        if (cli->json)
                return mfl_json_print(stdout,
                        json_pack("{ss so}", "job", job, "models", rounds_json(m->models, m->n_models)), err);
        if (!m->n_models)
                printf("%s has no model yet\n", job);
        return print_rounds(cli, m->models, m->n_models, err);
}

int mfl_cmd_models(struct mfl_cli *cli)
{
        char job[MFL_JOB_ID_BYTES];
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__ListModels list = MFL__LIST_MODELS__INIT;
        list.job = job;
        request.body_case = MFL__ENVELOPE__BODY_LIST_MODELS;
        request.list_models = &list;
        return ask(cli, &request, job, MFL__ENVELOPE__BODY_MODEL_LIST, print_models);
}

/* Done{text} answers requests that only change something. */
static int print_done(
        struct mfl_cli *cli, const char *job, const Mfl__Envelope *answer, struct mfl_error *err)
{
        const char *text = answer->done->text;
        if (cli->json)
                return mfl_json_print(stdout, json_pack("{ss ss}", "job", job, "text", text), err);
        printf("%s: %s\n", job, *text ? text : "done");
        return 0;
}

int mfl_cmd_stop(struct mfl_cli *cli)
{
        char job[MFL_JOB_ID_BYTES];
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__StopJob stop = MFL__STOP_JOB__INIT;
        Mfl__StopAfterRound after = MFL__STOP_AFTER_ROUND__INIT;
        if (cli->options.all || !cli->argument[0])
                return mfl_cmd_stop_many(cli);
        if (cli->options.name)
                return mfl_cli_report_text(cli, MFL_CLI_USAGE, "--name goes with --all, not with a job");
        stop.job = after.job = job;
        if (cli->options.after_round) { /* a separate request, which an older server refuses */
                request.body_case = MFL__ENVELOPE__BODY_STOP_AFTER_ROUND;
                request.stop_after_round = &after;
                return ask(cli, &request, job, MFL__ENVELOPE__BODY_DONE, print_done);
        }
        request.body_case = MFL__ENVELOPE__BODY_STOP_JOB;
        request.stop_job = &stop;
        return ask(cli, &request, job, MFL__ENVELOPE__BODY_DONE, print_done);
}

int mfl_cmd_archive(struct mfl_cli *cli)
{
        char job[MFL_JOB_ID_BYTES];
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__ArchiveJob archive = MFL__ARCHIVE_JOB__INIT;
        if (!cli->argument[0])
                return mfl_cmd_archive_many(cli);
        if (mfl_select_given(cli))
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "name a job, or say by options which jobs; not both");
        archive.job = job;
        archive.undo = mfl_cmd_archive_undoes(cli);
        request.body_case = MFL__ENVELOPE__BODY_ARCHIVE_JOB;
        request.archive_job = &archive;
        return ask(cli, &request, job, MFL__ENVELOPE__BODY_DONE, print_done);
}

int mfl_cmd_delete(struct mfl_cli *cli)
{
        char job[MFL_JOB_ID_BYTES];
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__DeleteJob delete = MFL__DELETE_JOB__INIT;
        if (!cli->argument[0])
                return mfl_cmd_delete_many(cli);
        if (mfl_select_given(cli))
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "name a job, or say by options which jobs; not both");
        delete.job = job;
        request.body_case = MFL__ENVELOPE__BODY_DELETE_JOB;
        request.delete_job = &delete;
        return ask(cli, &request, job, MFL__ENVELOPE__BODY_DONE, print_done);
}
