/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl plan`: which teams can train a job's client, what each daemon needs, and what a step should take. Asks no server. */
#include <inttypes.h>
#include <unistd.h>

#include "cli/base/json.h"
#include "cli/base/display.h"
#include "cli/base/table.h"
#include "cli/commands/commands.h"
#include "cli/job/data_check.h"
#include "cli/job/data_option.h"
#include "cli/job/plan_measure.h"
#include "cli/job/submit.h"
#include "common/base/budget.h"
#include "common/settings/yaml.h"

#define MEMBERS_DEFAULT 8u

struct question {
        struct mfl_parallel_facts facts;
        uint32_t members; /* at most */
        int zero;         /* the job's; -1: any */
        bool timed;
};

/* The graph, from the job or its data set. */
static int find_graph(
        struct mfl_cli *cli, const struct mfl_job *job, struct mfl_graph **ret_graph, struct mfl_error *err)
{
        struct mfl_dataset_config config;
        struct mfl_data_facts facts;
        if (!cli->options.n_data && job->model.input.rank && job->model.classes)
                return mfl_job_graph(job, &job->model.input, job->model.classes, ret_graph, err);
        if (!cli->options.n_data)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "the model's size depends on the data set: give it with --data %s=FORMAT:DIR, or "
                        "write "
                        "model.input and model.classes in the job",
                        job->data.name);
        int r = mfl_data_option_find(cli->options.data, cli->options.n_data, job->data.name, &config, err);
        if (r)
                return r;
        r = mfl_data_check(job, NULL, &config, ret_graph, &facts, err);
        mfl_dataset_config_deinit(&config);
        return r;
}

static int ask(struct mfl_cli *cli, const struct mfl_job *job, struct question *q, struct mfl_error *err)
{
        const char *own = job->training.backend;
        const char *backend = cli->options.backend          ? cli->options.backend
                              : *own && strcmp(own, "auto") ? own
                                                            : "cpu"; /* the one that every machine has */
        struct mfl_graph *graph = NULL;
        struct mfl_error why;
        if (!job->parallel.grain)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "the job has no `parallel`, so one daemon trains each client; write parallel: "
                        "{grain: %u}, "
                        "for example",
                        MFL_MAX(job->training.batch / 4, 1u));
        int r = find_graph(cli, job, &graph, err);
        if (!r)
                r = mfl_plan_sizes(backend, job, graph, &q->facts, err);
        if (!r && cli->options.memory && !mfl_yaml_parse_size(cli->options.memory, &q->facts.memory))
                r = mfl_fail(err, MFL_CLI_USAGE, "--memory: expected a size like 512MiB or 4GiB, got '%.40s'",
                        cli->options.memory);
        if (!r) {
                uint32_t most = cli->options.members > 0 ? (uint32_t)cli->options.members : MEMBERS_DEFAULT;
                q->members = MFL_MIN(most, job->parallel.members ? job->parallel.members : most);
                q->members = MFL_MIN(q->members, q->facts.shape.grains);
                q->zero = job->parallel.zero;
                int failed = cli->options.sizes ? 1 : mfl_plan_measure(backend, job, graph, &q->facts, &why);
                q->timed = !failed;
                if (failed && !cli->options.sizes)
                        mfl_cli_note(cli, "no times: %s", why.text);
                r = failed < 0 ? mfl_fail(err, failed, "%s", why.text) : 0;
        }
        mfl_graph_free(graph);
        return r;
}

/* The rows that people compare: doublings of the members, and the most. */
static uint32_t next_members(const struct question *q, uint32_t members)
{
        return members < q->members ? MFL_MIN(2 * members, q->members) : 0;
}

static void add_row(const struct question *q, const struct mfl_parallel_plan *plan,
        const struct mfl_parallel_plan *best, struct mfl_table *table)
{
        char members[16], zero[16], leader[16], member[16], each[32], traffic[16], ms[32];
        double params = (double)MFL_MAX(q->facts.moving, 1);
        snprintf(members, sizeof members, "%u", plan->members);
        snprintf(zero, sizeof zero, "%u", plan->zero);
        snprintf(each, sizeof each, "%.1f", (double)plan->leader / params);
        snprintf(ms, sizeof ms, "%.1f", plan->seconds * 1e3);
        bool same = best->members == plan->members && (best->members == 1 || best->zero == plan->zero);
        const char *cells[] = {members, plan->members > 1 ? zero : "-",
                mfl_format_bytes(plan->leader, leader),
                plan->members > 1 ? mfl_format_bytes(plan->member, member) : "-", each,
                plan->members > 1 ? mfl_format_bytes(plan->traffic, traffic) : "-", q->timed ? ms : "-",
                !plan->fits ? "too large"
                : same      ? "best"
                            : ""};
        mfl_table_add(table, cells);
}

static bool wanted(const struct question *q, uint32_t members, uint32_t zero)
{
        return members == 1 ? !zero : q->zero < 0 ? true : zero == (uint32_t)q->zero;
}

static int print_table(struct mfl_cli *cli, const struct question *q, const struct mfl_parallel_plan *best,
        struct mfl_error *err)
{
        static const struct mfl_table_column columns[] = {{"MEMBERS", true, 0}, {"ZERO", true, 0},
                {"LEADER", true, 0}, {"MEMBER", true, 0}, {"BYTES/PARAM", true, 2}, {"TRAFFIC/STEP", true, 1},
                {"MS/STEP", true, 0}, {"", false, 0}};
        struct mfl_table table = {.columns = columns, .n_columns = MFL_ARRAY_SIZE(columns)};
        struct mfl_parallel_plan plan;
        for (uint32_t n = 1; n; n = next_members(q, n))
                for (uint32_t zero = 0; zero < MFL_PARALLEL_STAGES; zero++) {
                        if (!wanted(q, n, zero))
                                continue;
                        mfl_parallel_estimate(&q->facts, n, zero, &plan);
                        add_row(q, &plan, best, &table);
                }
        if (q->facts.shape.size == sizeof(float))
                mfl_table_remark(&table, "sums of floats: the model depends on the number of members");
        MFL_CLEANUP_FREE char *text =
                mfl_table_render(&table, cli->terminal ? mfl_screen_columns(STDOUT_FILENO) : 0);
        mfl_table_deinit(&table);
        if (!text)
                return mfl_fail_memory(err, 0, "the table of plans");
        printf("%" PRIu64 " parameters move; a step has %u grain%s\n", q->facts.moving, q->facts.shape.grains,
                q->facts.shape.grains > 1 ? "s" : "");
        fputs(text, stdout);
        return 0;
}

static void print_advice(const struct question *q, const struct mfl_parallel_plan *best)
{
        char bytes[16];
        mfl_format_bytes(best->leader, bytes);
        if (!best->fits)
                printf("No plan fits: the one that takes least, %u members with zero: %u, needs %s at its "
                       "leader.\n",
                        best->members, best->zero, bytes);
        else if (best->members == 1)
                printf("One daemon for each client is best%s: it needs %s. Write members: 1, or leave out "
                       "`parallel`.\n",
                        q->timed ? "" : " where it fits", bytes);
        else
                printf("Best: parallel: {members: %u, zero: %u}. The leader needs %s.\n", best->members,
                        best->zero, bytes);
}

static json_t *plan_json(const struct mfl_parallel_plan *plan, bool timed)
{
        return json_pack("{sI sI sI sI sI so sb}", "members", (json_int_t)plan->members, "zero",
                (json_int_t)plan->zero, "leader_bytes", (json_int_t)plan->leader, "member_bytes",
                (json_int_t)plan->member, "traffic_bytes", (json_int_t)plan->traffic, "seconds",
                timed ? json_real(plan->seconds) : json_null(), "fits", (int)plan->fits);
}

static json_t *answer_json(const struct question *q, const struct mfl_parallel_plan *best)
{
        const struct mfl_parallel_facts *f = &q->facts;
        json_t *plans = json_array(), *costs = json_null();
        for (uint32_t n = 1; n; n = next_members(q, n))
                for (uint32_t zero = 0; zero < MFL_PARALLEL_STAGES; zero++) {
                        struct mfl_parallel_plan plan;
                        mfl_parallel_estimate(f, n, zero, &plan);
                        if (wanted(q, n, zero))
                                json_array_append_new(plans, plan_json(&plan, q->timed));
                }
        if (q->timed)
                costs = json_pack("{sf sf sf sf sf s[fff]}", "grain_seconds", f->grain_s,
                        "grain_seconds_beside", f->beside_s, "apply_seconds", f->apply_s, "bytes_per_second",
                        f->bytes_per_s, "wait_seconds", f->wait_s, "sync_seconds", f->sync_s[1], f->sync_s[2],
                        f->sync_s[3]);
        return json_pack("{sI sI so so so}", "moving", (json_int_t)f->moving, "grains",
                (json_int_t)f->shape.grains, "measured", costs, "plans", plans, "best",
                plan_json(best, q->timed));
}

int mfl_cmd_plan(struct mfl_cli *cli)
{
        MFL_CLEANUP_SUBMISSION struct mfl_submission s = {.path = NULL};
        struct mfl_error err;
        struct question q = {.members = 1};
        struct mfl_parallel_plan best;
        const struct mfl_sets sets = {cli->options.set, cli->options.n_set};
        int r = mfl_submission_read(cli->argument[0], &sets, NULL, &s, &err);
        if (!r)
                r = ask(cli, s.job, &q, &err);
        if (!r)
                mfl_parallel_choose(&q.facts, q.members, q.zero, &best);
        if (!r && cli->json)
                r = mfl_json_print(stdout, answer_json(&q, &best), &err);
        else if (!r) {
                r = print_table(cli, &q, &best, &err);
                if (!r)
                        print_advice(&q, &best);
        }
        return mfl_cli_report(cli, r, &err);
}
