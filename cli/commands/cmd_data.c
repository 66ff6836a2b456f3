/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that need no server: `mfl data show`, how a job's data set is cut into clients, and `mfl presets`.
 */
#include <inttypes.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/job/data_option.h"
#include "cli/base/display.h"
#include "cli/base/json.h"
#include "cli/job/submit.h"
#include "cli/sites/sites.h"
#include "common/partition/partition.h"
#include "common/settings/yaml.h"

/* What a client's samples are counted by: their classes, or their owners, or nothing. */
struct kinds {
        const char *name;
        const int32_t *of; /* train.n */
        int n;
        int32_t *own; /* the holder frees them */
};

static int find_kinds(const struct mfl_dataset *d, struct kinds *ret_kinds, struct mfl_error *err)
{
        *ret_kinds = (struct kinds){.name = "classes", .of = d->train.labels, .n = d->classes};
        if (!d->n_targets && mfl_dataset_labels_per_sample(d) == 1)
                return 0;
        int32_t *own = mfl_calloc(d->train.n, sizeof *own);
        if (!own)
                return mfl_fail_memory(err, d->train.n * sizeof *own, "kinds of samples");
        for (uint32_t i = 0; d->train.owner && i < d->train.n; i++)
                own[i] = (int32_t)d->train.owner[i];
        *ret_kinds = (struct kinds){.name = d->train.owner ? "owners" : "samples",
                .of = own,
                .n = d->train.owner ? (int)d->n_owners : 1,
                .own = own};
        return 0;
}

/* One client's samples of each kind. */
static json_t *client_json(
        const struct mfl_partition *p, const struct kinds *kinds, uint32_t k, int64_t *counts)
{
        json_t *list = json_array();
        memset(counts, 0, (size_t)kinds->n * sizeof *counts);
        for (uint32_t i = p->start[k]; i < p->start[k + 1]; i++)
                counts[kinds->of[p->index[i]]]++;
        for (int c = 0; c < kinds->n; c++)
                json_array_append_new(list, json_integer(counts[c]));
        return json_pack("{sI sI so}", "client", (json_int_t)k, "samples",
                (json_int_t)(p->start[k + 1] - p->start[k]), kinds->name, list);
}

static int print_json(const struct mfl_partition *p, const struct mfl_dataset *d, const struct kinds *kinds,
        uint32_t rows, struct mfl_error *err)
{
        MFL_CLEANUP_FREE int64_t *counts = mfl_calloc((size_t)kinds->n, sizeof *counts);
        json_t *clients = json_array();
        if (!counts || !clients)
                return mfl_fail_memory(err, (size_t)kinds->n * sizeof *counts, "counts");
        for (uint32_t k = 0; k < p->n_clients && (!rows || k < rows); k++)
                json_array_append_new(clients, client_json(p, kinds, k, counts));
        json_t *all = json_pack("{ss sI sI sI sI so}", "data", d->name, "train", (json_int_t)d->train.n,
                "test", (json_int_t)d->test.n, "classes", (json_int_t)d->classes, "population",
                (json_int_t)p->n_clients, "clients", clients);
        if (d->vocabulary)
                json_object_set_new(all, "vocabulary", json_integer(d->vocabulary));
        if (d->n_targets)
                json_object_set_new(all, "targets", json_integer(d->n_targets));
        if (d->n_owners)
                json_object_set_new(all, "owners", json_integer(d->n_owners));
        return mfl_json_print(stdout, all, err);
}

static int print_table(struct mfl_cli *cli, const struct mfl_job *job, const struct mfl_partition *p,
        const struct mfl_dataset *d, const struct kinds *kinds, uint32_t rows, struct mfl_error *err)
{
        char shape[96], owners[32] = "";
        struct mfl_partition_view view = {
                .rows_max = rows, .colour = cli->colour, .utf8 = cli->utf8, .heading = kinds->name};
        MFL_CLEANUP_FREE char *table = mfl_partition_table(p, kinds->of, kinds->n, &view);
        if (!table)
                return mfl_fail_memory(err, 0, "a table");
        if (d->n_owners)
                snprintf(owners, sizeof owners, ", %u owner%s", d->n_owners, d->n_owners == 1 ? "" : "s");
        printf("%s: %u training and %u test samples of %s, %d %s%s; %s, %u client%s\n%s", d->name, d->train.n,
                d->test.n, mfl_shape_text(&d->shape, shape, sizeof shape),
                d->n_targets ? d->n_targets : d->classes,
                d->n_targets                                ? "targets"
                : d->vocabulary && d->labels_per_sample > 1 ? "tokens"
                                                            : "classes",
                owners, mfl_partition_name(job->data.partition), p->n_clients, p->n_clients == 1 ? "" : "s",
                table);
        return 0;
}

static int show_partition(
        struct mfl_cli *cli, const struct mfl_job *job, const struct mfl_dataset *d, struct mfl_error *err)
{
        struct mfl_partition *p = NULL;
        struct kinds kinds = {0};
        uint32_t rows = cli->options.rows >= 0 ? (uint32_t)cli->options.rows : cli->json ? 0 : 20;
        int r = mfl_partition_dataset(job, d, &p, err);
        if (!r)
                r = find_kinds(d, &kinds, err);
        if (!r)
                r = cli->json ? print_json(p, d, &kinds, rows, err)
                              : print_table(cli, job, p, d, &kinds, rows, err);
        free(kinds.own);
        mfl_partition_free(p);
        return r;
}

int mfl_cmd_data(struct mfl_cli *cli)
{
        MFL_CLEANUP_SUBMISSION struct mfl_submission s = {.path = NULL};
        struct mfl_dataset_config config = {.dir = NULL};
        struct mfl_dataset *d = NULL;
        struct mfl_error err;
        if (!strcmp(cli->argument[0], "stats"))
                return mfl_cmd_stats(cli);
        if (strcmp(cli->argument[0], "show"))
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "mfl data: '%.60s' is not show or stats", cli->argument[0]);
        int r = mfl_submission_read(cli->argument[1], NULL, NULL, &s, &err);
        if (!r)
                r = mfl_data_option_find(
                        cli->options.data, cli->options.n_data, s.job->data.name, &config, &err);
        if (!r)
                r = mfl_dataset_load(&config, &d, &err);
        if (!r)
                r = show_partition(cli, s.job, d, &err);
        if (!r && d->note[0])
                mfl_cli_note(cli, "%s", d->note);
        mfl_dataset_free(d);
        mfl_dataset_config_deinit(&config);
        return mfl_cli_report(cli, r, &err);
}

/* ---- presets ---- */

static int list_presets(struct mfl_cli *cli, struct mfl_error *err)
{
        json_t *list = json_array();
        for (const struct mfl_preset_info *p = mfl_presets; p->name; p++) {
                json_array_append_new(list, json_pack("{ss ss}", "name", p->name, "summary", p->summary));
                if (!cli->json)
                        printf("%-14s %s\n", p->name, p->summary);
        }
        if (cli->json)
                return mfl_json_print(stdout, json_pack("{so}", "presets", list), err);
        json_decref(list);
        return 0;
}

static json_t *graph_json(const struct mfl_graph *g)
{
        json_t *params = json_array();
        uint64_t forward, training;
        mfl_graph_flops(g, &forward, &training);
        for (int i = 0; i < g->n_params; i++) {
                json_t *shape = json_array();
                for (int k = 0; k < g->params[i].shape.rank; k++)
                        json_array_append_new(shape, json_integer(g->params[i].shape.dim[k]));
                json_array_append_new(
                        params, json_pack("{ss so}", "name", g->params[i].name, "shape", shape));
        }
        return json_pack("{ss sI sI sI so}", "name", g->name, "params", (json_int_t)g->n, "flops_forward",
                (json_int_t)forward, "flops_training", (json_int_t)training, "tensors", params);
}

static int fail_preset(const char *name, struct mfl_error *err)
{
        const char *names[32];
        int n = 0;
        for (const struct mfl_preset_info *p = mfl_presets; p->name && n < 31; p++)
                names[n++] = p->name;
        names[n] = NULL;
        const char *nearest = mfl_yaml_nearest(name, names);
        if (nearest)
                return mfl_fail(
                        err, MFL_NOT_FOUND, "there is no preset '%.60s'; did you mean '%s'?", name, nearest);
        return mfl_fail(err, MFL_NOT_FOUND, "there is no preset '%.60s'; 'mfl presets' lists them", name);
}

static int show_preset(struct mfl_cli *cli, const char *name, struct mfl_error *err)
{
        struct mfl_shape input = {.rank = 3, .dim = {1, 28, 28}};
        int classes = cli->options.classes >= 0 ? (int)cli->options.classes : 10;
        struct mfl_graph *graph;
        if (cli->options.input && !mfl_data_option_shape(cli->options.input, &input))
                return mfl_fail(err, MFL_CLI_USAGE, "--input: '%.60s' is not a shape like 3x32x32",
                        cli->options.input);
        int r = mfl_graph_preset(name, &input, classes, &graph, err);
        if (r)
                return r == MFL_NOT_FOUND ? fail_preset(name, err) : r;
        if (cli->json) {
                r = mfl_json_print(stdout, graph_json(graph), err);
        } else {
                MFL_CLEANUP_FREE char *text = mfl_graph_describe(graph);
                if (text)
                        fputs(text, stdout);
                else
                        r = mfl_fail_memory(err, 0, "a description");
        }
        mfl_graph_free(graph);
        return r;
}

int mfl_cmd_presets(struct mfl_cli *cli)
{
        struct mfl_error err;
        int r = cli->argument[0] ? show_preset(cli, cli->argument[0], &err) : list_presets(cli, &err);
        return mfl_cli_report(cli, r, &err);
}
