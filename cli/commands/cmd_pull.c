/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl pull`: fetches a model of a job, or its rounds, into a file. */
#include <inttypes.h>

#include "cli/commands/commands.h"
#include "cli/base/json.h"
#include "cli/pull/pull.h"
#include "common/settings/yaml.h"

static const char *const format_names[] = {[MFL_PULL_SAFETENSORS] = "safetensors",
        [MFL_PULL_NPZ] = "npz",
        [MFL_PULL_ONNX] = "onnx",
        [MFL_PULL_PEFT] = "peft",
        [MFL_PULL_TENSORBOARD] = "tensorboard",
        [MFL_PULL_CSV] = "csv",
        [MFL_PULL_JSONL] = "jsonl",
        [MFL_PULL_FORMATS_] = NULL};

static int parse_format(const char *text, enum mfl_pull_format *ret_format, struct mfl_error *err)
{
        *ret_format = MFL_PULL_SAFETENSORS;
        if (!text)
                return 0;
        for (int i = 0; format_names[i]; i++)
                if (!strcmp(format_names[i], text)) {
                        *ret_format = (enum mfl_pull_format)i;
                        return 0;
                }
        const char *nearest = mfl_yaml_nearest(text, format_names);
        return mfl_fail(err, MFL_CLI_USAGE,
                "--format: '%.60s' is not safetensors, npz, onnx, peft, tensorboard, csv or jsonl%s%s%s",
                text, nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

/* Refuses options that contradict each other before it asks the server. */
static int check_options(const struct mfl_cli *cli, enum mfl_pull_format format, struct mfl_error *err)
{
        const struct mfl_cli_options *o = &cli->options;
        const char *name = format_names[format];
        bool model = format <= MFL_PULL_PEFT, table = format >= MFL_PULL_CSV;
        bool to_stdout = o->out && !strcmp(o->out, "-");
        if (o->out && !*o->out)
                return mfl_fail(err, MFL_CLI_USAGE, "--output: the path is empty");
        if (o->round && !model)
                return mfl_fail(
                        err, MFL_CLI_USAGE, "--round chooses a model; --format %s writes all rounds", name);
        if (o->follow && model)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--follow goes only with rounds (tensorboard, csv, jsonl); --format %s writes one "
                        "model",
                        name);
        if (o->timeout >= 0 && !o->follow)
                return mfl_fail(err, MFL_CLI_USAGE, "--timeout goes only with --follow");
        if (to_stdout && !table)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--output: '-' is for csv and jsonl; --format %s needs a %s", name,
                        model && format != MFL_PULL_PEFT ? "file" : "folder");
        if (o->base && format != MFL_PULL_PEFT)
                return mfl_fail(err, MFL_CLI_USAGE, "--base goes only with --format peft");
        if (o->with_input && format != MFL_PULL_ONNX)
                return mfl_fail(err, MFL_CLI_USAGE, "--with-input goes only with --format onnx");
        if (o->follow && table && !to_stdout)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--follow with --format %s writes to standard output: add '-o -'", name);
        if (to_stdout && cli->json)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--json and '-o -' both write to standard output; --format jsonl is JSON already");
        return 0;
}

static int print_pulled(
        struct mfl_cli *cli, const char *job, const struct mfl_pulled *p, struct mfl_error *err)
{
        if (p->open)
                mfl_cli_note(cli, "accuracy and loss of %s are not private: they are not in the file", job);
        if (cli->json)
                return mfl_json_print(stdout,
                        json_pack("{ss sI ss ss sI so so}", "job", job, "round", (json_int_t)p->round, "file",
                                p->path, "digest", p->digest, "params", (json_int_t)p->n_params, "accuracy",
                                p->has_accuracy ? json_real(p->accuracy) : json_null(), "loss",
                                p->evaluated ? json_real(p->loss) : json_null()),
                        err);
        printf("%s: round %u of %s, %" PRIu64 " parameters", p->path, p->round, job, p->n_params);
        if (p->has_accuracy)
                printf(", accuracy %.4f", p->accuracy);
        if (p->evaluated)
                printf(", loss %.4f", p->loss);
        printf("\nSHA-256 of the params %s\n", p->digest);
        return 0;
}

static int pull_model(struct mfl_cli *cli, enum mfl_pull_format format, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        struct mfl_pulled pulled;
        char job[MFL_JOB_ID_BYTES];
        int64_t round = MFL_PULL_LAST;
        int r = mfl_pull_round(cli->options.round, &round, err);
        if (!r)
                r = mfl_cli_signals_start(cli, err);
        if (!r)
                r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, err);
        if (!r)
                r = mfl_client_resolve_model(&client, cli->argument[0], job, &round, err);
        if (!r)
                r = mfl_pull(&client, job, round, cli->options.out, format, cli->options.base,
                        cli->options.with_input, &pulled, err);
        return r ? r : print_pulled(cli, job, &pulled, err);
}

/* One model's options go with it, but no format: it is npz. */
static int check_deltas(const struct mfl_cli *cli, struct mfl_error *err)
{
        const struct mfl_cli_options *o = &cli->options;
        if (o->format && strcmp(o->format, "npz"))
                return mfl_fail(err, MFL_CLI_USAGE, "--deltas writes npz; remove --format %.60s", o->format);
        if (o->follow)
                return mfl_fail(err, MFL_CLI_USAGE, "--deltas writes one round's changes; remove --follow");
        return 0;
}

static int pull_deltas(struct mfl_cli *cli, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        struct mfl_pulled p;
        char job[MFL_JOB_ID_BYTES];
        int64_t round = MFL_PULL_LAST;
        uint32_t n = 0, counted = 0;
        int r = mfl_pull_round(cli->options.round, &round, err);
        if (!r)
                r = mfl_cli_signals_start(cli, err);
        if (!r)
                r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, err);
        if (!r)
                r = mfl_client_resolve(&client, cli->argument[0], job, err);
        if (!r)
                r = mfl_pull_changes(&client, job, round, cli->options.out, &p, &n, &counted, err);
        if (r)
                return r;
        if (cli->json)
                return mfl_json_print(stdout,
                        json_pack("{ss sI ss sI sI sI}", "job", job, "round", (json_int_t)p.round, "file",
                                p.path, "clients", (json_int_t)n, "counted", (json_int_t)counted, "params",
                                (json_int_t)p.n_params),
                        err);
        printf("%s: the changes of %u client%s in round %u of %s, %" PRIu64 " parameters each\n", p.path, n,
                n == 1 ? "" : "s", p.round, job, p.n_params);
        if (n < counted)
                printf("the round has counted %u clients: those of the others are not kept (debug.deltas)\n",
                        counted);
        return mfl_cli_flush(err);
}

static int print_rounds(struct mfl_cli *cli, enum mfl_pull_format format, const struct mfl_pulled_rounds *p,
        struct mfl_error *err)
{
        if (p->open)
                mfl_cli_note(cli, "%s: %s", p->job, p->open);
        if (!strcmp(p->path, "-"))
                return 0;
        if (cli->json)
                return mfl_json_print(stdout,
                        json_pack("{ss ss ss sI so}", "job", p->job, "format", format_names[format], "file",
                                p->path, "rounds", (json_int_t)p->n, "round",
                                p->last ? json_integer((json_int_t)p->last) : json_null()),
                        err);
        printf("%s: %" PRIu64 " round%s of %s written", p->path, p->n, p->n == 1 ? "" : "s", p->job);
        if (p->last)
                printf(", up to round %u", p->last);
        putchar('\n');
        return mfl_cli_flush(err);
}

int mfl_cmd_pull(struct mfl_cli *cli)
{
        struct mfl_error err;
        enum mfl_pull_format format;
        int r = parse_format(cli->options.format, &format, &err);
        if (!r)
                r = check_options(cli, format, &err);
        if (!r && cli->options.deltas)
                r = check_deltas(cli, &err);
        if (!r && cli->options.deltas) {
                r = pull_deltas(cli, &err);
        } else if (!r && format <= MFL_PULL_PEFT) {
                r = pull_model(cli, format, &err);
        } else if (!r) {
                struct mfl_pulled_rounds pulled = {.n = 0};
                struct mfl_error print_err;
                r = mfl_pull_rounds(cli, format, &pulled, &err);
                /* A job that failed has rounds, too. */
                if ((!r || r == MFL_CLI_FAILED) && print_rounds(cli, format, &pulled, &print_err) && !r)
                        r = mfl_fail(&err, -EIO, "%s", print_err.text);
        }
        return mfl_cli_report(cli, r, &err);
}
