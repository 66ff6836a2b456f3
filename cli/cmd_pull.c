/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl pull`: a model of a job as a file. */
#include <inttypes.h>

#include "cli/json.h"
#include "cli/pull.h"

static int parse_round(const char *text, int64_t *ret_round, struct mfl_error *err)
{
        char *end;
        if (!text || !strcmp(text, "last")) {
                *ret_round = MFL_PULL_LAST;
                return 0;
        }
        if (!strcmp(text, "best")) {
                *ret_round = MFL_PULL_BEST;
                return 0;
        }
        errno = 0;
        int64_t v = strtoll(text, &end, 10);
        if (errno || end == text || *end || v < 0 || v > UINT32_MAX)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--round: '%.60s' is not a round's number, 'best' or 'last'", text);
        *ret_round = v;
        return 0;
}

static int print_pulled(
        struct mfl_cli *cli, const char *job, const struct mfl_pulled *p, struct mfl_error *err)
{
        if (cli->json)
                return mfl_json_print(stdout,
                        json_pack("{ss sI ss ss sI so so}", "job", job, "round", (json_int_t)p->round, "file",
                                p->path, "digest", p->digest, "params", (json_int_t)p->n_params, "accuracy",
                                p->evaluated ? json_real(p->accuracy) : json_null(), "loss",
                                p->evaluated ? json_real(p->loss) : json_null()),
                        err);
        printf("%s: round %u of %s, %" PRIu64 " parameters", p->path, p->round, job, p->n_params);
        if (p->evaluated)
                printf(", accuracy %.4f, loss %.4f", p->accuracy, p->loss);
        printf("\nSHA-256 of the params %s\n", p->digest);
        return 0;
}

int mfl_cmd_pull(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        struct mfl_error err;
        struct mfl_pulled pulled;
        char job[MFL_JOB_ID_BYTES];
        int64_t round = MFL_PULL_LAST;
        int r = parse_round(cli->options.round, &round, &err);
        if (!r)
                r = mfl_cli_signals_start(cli, &err);
        if (!r)
                r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = mfl_client_resolve(&client, cli->argument[0], job, &err);
        if (!r)
                r = mfl_pull(&client, job, round, cli->options.out, &pulled, &err);
        if (!r)
                r = print_pulled(cli, job, &pulled, &err);
        return mfl_cli_report(cli, r, &err);
}
