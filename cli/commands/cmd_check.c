/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl check`: checks a job file without a server; with --data, also against its data set. */
#include <inttypes.h>

#include "cli/commands/commands.h"
#include "cli/job/data_check.h"
#include "cli/job/data_option.h"
#include "cli/base/json.h"
#include "cli/job/place.h"
#include "cli/job/submit.h"
#include "common/method/central_grid.h"
#include "common/method/method.h"
#include "common/privacy/spend.h"

/* The graph, if the job alone determines it; NULL if the shapes come from the data set. */
static int known_graph(const struct mfl_job *job, struct mfl_graph **ret_graph, struct mfl_error *err)
{
        *ret_graph = NULL;
        if (!job->model.tensors && (!job->model.input.rank || !job->model.classes))
                return 0;
        return mfl_job_graph(job, &job->model.input, job->model.classes, ret_graph, err);
}

/* How many rounds a job's budget allows, and what they cost. */
struct privacy_budget {
        uint64_t rounds;
        double epsilon;
};

static int find_budget(const struct mfl_job *job, const struct mfl_graph *graph,
        struct privacy_budget *ret_budget, struct mfl_error *err)
{
        struct privacy_budget budget = {.rounds = 0};
        if (!job->privacy.kind)
                return 0;
        struct mfl_fixed fixed;
        int r = mfl_job_fixed(job, 0, job->data.clients, &fixed, err);
        if (!r && graph)
                r = mfl_central_check(job, &fixed, graph->n_moving, err);
        if (!r)
                r = mfl_privacy_releases(&job->privacy, mfl_job_rate(job), job->rounds, &budget.rounds, err);
        if (!r)
                r = mfl_privacy_epsilon(
                        &job->privacy, mfl_job_rate(job), budget.rounds, &budget.epsilon, err);
        if (!r)
                *ret_budget = budget;
        return r;
}

static json_t *privacy_json(const struct mfl_job *j, const struct privacy_budget *budget)
{
        if (!j->privacy.kind)
                return json_null();
        return json_pack("{ss sI sf sf sf}", "kind", mfl_privacy_kind_name(j->privacy.kind), "rounds",
                (json_int_t)budget->rounds, "epsilon", budget->epsilon, "epsilon_max", j->privacy.epsilon_max,
                "delta", j->privacy.delta);
}

/* "60000 training and 10000 test samples of 1x28x28, 10 classes; 6000 to a client" */
static void print_facts(const struct mfl_data_facts *f)
{
        char shape[96];
        printf("  samples   %u for training and %u for tests, of %s, %d %s\n", f->train, f->test,
                mfl_shape_text(&f->shape, shape, sizeof shape), f->n_targets ? f->n_targets : f->classes,
                f->n_targets                                   ? "targets"
                : f->vocabulary && f->vocabulary == f->classes ? "tokens"
                                                               : "classes");
        printf("  a client  %u", f->samples_min);
        if (f->samples_max > f->samples_min)
                printf(" to %u", f->samples_max);
        puts(" samples");
}

static void print_privacy(const struct mfl_job *j, const struct privacy_budget *budget)
{
        const struct mfl_privacy_spec *p = &j->privacy;
        printf("  privacy   %s, clip %s%g, noise %g: ", mfl_privacy_kind_name(p->kind),
                p->adaptive ? "adaptive, at first " : "", p->clip, p->noise);
        if (budget->rounds < j->rounds)
                printf("the budget allows %" PRIu64 " of %u rounds\n", budget->rounds, j->rounds);
        else
                puts("the budget allows all rounds");
        printf("            epsilon %.4f after %" PRIu64 " round%s, of at most %g at delta %g\n",
                budget->epsilon, budget->rounds, budget->rounds == 1 ? "" : "s", p->epsilon_max, p->delta);
}

static void print_check(const struct mfl_submission *s, const struct mfl_graph *graph,
        const struct mfl_data_facts *facts, const struct privacy_budget *budget)
{
        const struct mfl_job *j = s->job;
        printf("%s: valid\n  name      %s\n  rounds    %u\n  model     %s", s->path, j->name, j->rounds,
                mfl_job_model_name(j));
        if (graph && graph->n_frozen)
                printf(", %" PRIu64 " parameters, %" PRIu64 " of them move\n", graph->n, graph->n_moving);
        else if (graph)
                printf(", %" PRIu64 " parameters\n", graph->n);
        else
                printf(" (parameters depend on the data set)\n");
        if (mfl_job_has_program(j))
                printf("  program   %s, which the daemons' administrators provide, with %s\n",
                        j->training.program, j->training.config ? j->training.config : "no config");
        printf("  data      %s, %s", mfl_job_owns_data(j) ? "the program's own" : j->data.name,
                mfl_partition_name(j->data.partition));
        if (j->data.clients)
                printf(", %u clients", j->data.clients);
        putchar('\n');
        if (facts)
                print_facts(facts);
        printf("  strategy  %s\n", mfl_strategy_name(j->aggregation.strategy));
        if (j->privacy.kind)
                print_privacy(j, budget);
        static const char *const within[] = {"one daemon", "one node", "any nodes"}; /* by enum mfl_within */
        if (!j->parallel.grain)
                return;
        printf("  parallel  grains of %u sample%s, ", j->parallel.grain, j->parallel.grain > 1 ? "s" : "");
        if (j->parallel.members)
                printf("at most %u workers for a client", j->parallel.members);
        else
                printf("as many workers for a client as pay");
        if (j->parallel.members_min > 1)
                printf(", %u at least", j->parallel.members_min);
        printf(", within %s\n", within[j->parallel.within]);
        if (!j->parallel.exact)
                puts("            sums of floats: the model depends on how many workers train a client");
}

static json_t *facts_json(const struct mfl_data_facts *f)
{
        if (!f)
                return json_null();
        json_t *shape = json_array();
        for (int i = 0; i < f->shape.rank; i++)
                json_array_append_new(shape, json_integer(f->shape.dim[i]));
        return json_pack("{so sI sI sI sI sI sI sI}", "shape", shape, "classes", (json_int_t)f->classes,
                "targets", (json_int_t)f->n_targets, "train_samples", (json_int_t)f->train, "test_samples",
                (json_int_t)f->test, "clients", (json_int_t)f->clients, "samples_min",
                (json_int_t)f->samples_min, "samples_max", (json_int_t)f->samples_max);
}

static json_t *check_json(const struct mfl_submission *s, const struct mfl_graph *graph,
        const struct mfl_data_facts *facts, const struct privacy_budget *budget)
{
        const struct mfl_job *j = s->job;
        return json_pack("{sb ss sI ss so so ss ss sI ss so so}", "valid", 1, "name", j->name, "rounds",
                (json_int_t)j->rounds, "model", mfl_job_model_name(j), "params",
                graph ? json_integer((json_int_t)graph->n) : json_null(), "moving",
                graph ? json_integer((json_int_t)graph->n_moving) : json_null(), "data", j->data.name,
                "partition", mfl_partition_name(j->data.partition), "clients", (json_int_t)j->data.clients,
                "strategy", mfl_strategy_name(j->aggregation.strategy), "samples", facts_json(facts),
                "privacy", privacy_json(j, budget));
}

static int check_beside_data(struct mfl_cli *cli, const struct mfl_submission *s,
        struct mfl_graph **ret_graph, struct mfl_data_facts *ret_facts, struct mfl_error *err)
{
        struct mfl_dataset_config config;
        int r = mfl_data_option_find(cli->options.data, cli->options.n_data, s->job->data.name, &config, err);
        if (r)
                return r;
        r = mfl_data_check(s->job, s->initial, &config, ret_graph, ret_facts, err);
        mfl_dataset_config_deinit(&config);
        return r;
}

int mfl_cmd_check(struct mfl_cli *cli)
{
        MFL_CLEANUP_SUBMISSION struct mfl_submission s = {.path = NULL};
        const struct mfl_sets sets = {cli->options.set, cli->options.n_set};
        struct mfl_error err;
        struct mfl_graph *graph = NULL;
        struct mfl_data_facts facts = {.train = 0};
        struct privacy_budget budget = {.rounds = 0};
        bool beside = cli->options.n_data > 0;
        const char *backend = cli->options.backend ? cli->options.backend : "auto";
        int r = 0;
        if (!strcmp(backend, "cuda"))
                r = mfl_fail(
                        &err, MFL_CLI_USAGE, "check computes on the CPU: --backend auto, cpu or reference");
        if (!r)
                r = mfl_submission_read(cli->argument[0], &sets, backend, &s, &err);
        if (!r)
                r = beside ? check_beside_data(cli, &s, &graph, &facts, &err)
                           : known_graph(s.job, &graph, &err);
        if (!r && graph)
                r = mfl_method_check_states(
                        s.job, beside ? facts.clients : s.job->data.clients, graph->n_moving, &err);
        if (r == MFL_INVALID && s.job &&
                !s.n_initial) /* the lines of an ONNX file's layers are not the user's */
                mfl_job_place(s.job, s.text, s.path, &err);
        if (!r)
                r = find_budget(s.job, graph, &budget, &err);
        if (!r)
                mfl_submission_tell(&s, cli);
        if (!r && facts.note[0])
                mfl_cli_note(cli, "%s", facts.note);
        if (!r && cli->json)
                r = mfl_json_print(stdout, check_json(&s, graph, beside ? &facts : NULL, &budget), &err);
        else if (!r)
                print_check(&s, graph, beside ? &facts : NULL, &budget);
        mfl_graph_free(graph);
        return mfl_cli_report(cli, r, &err);
}
