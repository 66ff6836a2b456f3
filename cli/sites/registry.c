/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl model`: registers rounds of jobs as versions of a model, and points aliases at them. */
#include <inttypes.h>
#include <time.h>

#include "cli/base/json.h"
#include "cli/pull/pull.h"
#include "cli/sites/sites.h"
#include "proto/json/json_sites.h"

/* "NAME@ALIAS" or "NAME@7"; in two parts. */
struct reference {
        char name[MFL_NAME_BYTES], which[MFL_NAME_BYTES];
        uint32_t version; /* 0: which is no number */
};

static int parse_number(const char *text, uint32_t *ret_number)
{
        char *end;
        unsigned long v = strtoul(text, &end, 10);
        if (end == text || *end || *text == '-' || v < 1 || v > UINT32_MAX)
                return MFL_INVALID;
        *ret_number = (uint32_t)v;
        return 0;
}

static int parse_reference(const char *text, struct reference *ret, struct mfl_error *err)
{
        const char *at = strchr(text, '@');
        struct reference ref = {.version = 0};
        if (!at || at == text || !at[1] || (size_t)(at - text) >= sizeof ref.name ||
                !mfl_strcpy(ref.which, sizeof ref.which, at + 1))
                return mfl_fail(err, MFL_CLI_USAGE, "'%.100s' is not NAME@ALIAS or NAME@VERSION", text);
        mfl_snprintf(ref.name, sizeof ref.name, "%.*s", (int)(at - text), text);
        if (parse_number(ref.which, &ref.version))
                ref.version = 0;
        *ret = ref;
        return 0;
}

/* ---- changes ---- */

static int change(struct mfl_client *client, Mfl__ChangeModel *body, struct mfl_error *err)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        request.body_case = MFL__ENVELOPE__BODY_CHANGE_MODEL;
        request.change_model = body;
        int r = mfl_client_call(client, &request, MFL__ENVELOPE__BODY_DONE, &answer, err);
        if (r)
                return r;
        if (client->cli->json)
                return mfl_json_print(stdout, json_pack("{ss}", "done", answer->done->text), err);
        puts(answer->done->text);
        return mfl_cli_flush(err);
}

static int register_job(struct mfl_client *client, struct mfl_error *err)
{
        struct mfl_cli *cli = client->cli;
        Mfl__ChangeModel body = MFL__CHANGE_MODEL__INIT;
        char job[MFL_JOB_ID_BYTES];
        int64_t round = MFL_PULL_LAST;
        int r = cli->options.as ? mfl_pull_round(cli->options.round, &round, err)
                                : mfl_fail(err, MFL_CLI_USAGE, "model register JOB needs --as NAME");
        if (!r && !cli->argument[1])
                r = mfl_fail(err, MFL_CLI_USAGE, "usage: mfl model register JOB --as NAME");
        if (!r)
                r = mfl_client_resolve(client, cli->argument[1], job, err);
        if (r)
                return r;
        body.verb = MFL__MODEL_VERB__MODEL_REGISTER;
        body.name = (char *)(uintptr_t)cli->options.as;
        body.job = job;
        body.round = round;
        return change(client, &body, err);
}

static int read_share(const char *option, const char *text, double *ret_share, struct mfl_error *err)
{
        char *end;
        double v = text ? strtod(text, &end) : -1;
        if (text && (end == text || *end || !(v >= 0 && v <= 1)))
                return mfl_fail(
                        err, MFL_CLI_USAGE, "--%s: '%.60s' is not a number from 0 to 1", option, text);
        *ret_share = v;
        return 0;
}

static int read_gates(const struct mfl_cli *cli, Mfl__ModelGates *gates, struct mfl_error *err)
{
        double accuracy = -1, worse = -1;
        int r = read_share("accuracy", cli->options.accuracy, &accuracy, err);
        if (!r)
                r = read_share("worse", cli->options.worse, &worse, err);
        if (r)
                return r;
        gates->accuracy = MFL_MAX(accuracy, 0.0);
        gates->worse_max = worse;
        gates->sites = cli->options.sites > 0 ? (uint32_t)cli->options.sites : 0;
        if (!cli->options.accuracy && !cli->options.worse && !gates->sites)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "model promote needs a gate: --accuracy A, --worse X or --sites K; 'mfl model alias' "
                        "asks for none");
        return 0;
}

/* alias, promote: NAME@ALIAS [VERSION]; rollback, remove: NAME@ALIAS; remove: NAME@VERSION. */
static int point(struct mfl_client *client, Mfl__ModelVerb verb, struct mfl_error *err)
{
        const struct mfl_cli *cli = client->cli;
        Mfl__ChangeModel body = MFL__CHANGE_MODEL__INIT;
        Mfl__ModelGates gates = MFL__MODEL_GATES__INIT;
        struct reference ref;
        bool sets = verb == MFL__MODEL_VERB__MODEL_ALIAS || verb == MFL__MODEL_VERB__MODEL_PROMOTE;
        int r = parse_reference(cli->argument[1] ? cli->argument[1] : "", &ref, err);
        if (r)
                return r;
        if (ref.version && verb != MFL__MODEL_VERB__MODEL_REMOVE)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "'%.100s' is a version; an alias is a name, such as %.60s@champion", cli->argument[1],
                        ref.name);
        if (cli->argument[2] && (!sets || parse_number(cli->argument[2], &body.version)))
                return mfl_fail(err, MFL_CLI_USAGE, "'%.60s' is not %s", cli->argument[2],
                        sets ? "the number of a version" : "expected here");
        if (ref.version)
                body.version = ref.version;
        else
                body.alias = ref.which;
        body.verb = verb;
        body.name = ref.name;
        if (verb == MFL__MODEL_VERB__MODEL_PROMOTE) {
                r = read_gates(cli, &gates, err);
                body.gates = &gates;
        }
        return r ? r : change(client, &body, err);
}

/* ---- the list ---- */

static void print_version(const Mfl__ModelVersion *v)
{
        char name[2 * MFL_NAME_BYTES], date[32] = "-", accuracy[24] = "-";
        time_t t = (time_t)(v->time_ms / 1000);
        struct tm tm;
        snprintf(name, sizeof name, "%s@%u", v->name, v->version);
        if (localtime_r(&t, &tm))
                strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
        if (v->evaluated)
                snprintf(accuracy, sizeof accuracy, "%.4f", v->accuracy);
        printf("%-24s %-12s %6u %9s %6u  %-16s %-12s", name, v->job, v->round, accuracy, v->validated, date,
                v->who);
        for (size_t i = 0; i < v->n_aliases; i++)
                printf(" %s", v->aliases[i]);
        putchar('\n');
}

static int list(struct mfl_client *client, struct mfl_error *err)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct mfl_cli *cli = client->cli;
        Mfl__ListRegistry body = MFL__LIST_REGISTRY__INIT;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        if (cli->argument[1])
                body.name = (char *)(uintptr_t)cli->argument[1];
        request.body_case = MFL__ENVELOPE__BODY_LIST_REGISTRY;
        request.list_registry = &body;
        int r = mfl_client_call(client, &request, MFL__ENVELOPE__BODY_REGISTRY, &answer, err);
        if (r)
                return r;
        const Mfl__Registry *all = answer->registry;
        json_t *versions = json_array();
        if (!cli->json)
                printf("%-24s %-12s %6s %9s %6s  %-16s %-12s %s\n", "MODEL", "JOB", "ROUND", "ACCURACY",
                        "SITES", "REGISTERED", "WHO", "ALIASES");
        for (size_t i = 0; i < all->n_versions; i++) {
                json_array_append_new(versions, mfl_json_version(all->versions[i]));
                if (!cli->json)
                        print_version(all->versions[i]);
        }
        if (cli->json)
                return mfl_json_print(stdout, json_pack("{so}", "versions", versions), err);
        json_decref(versions);
        return mfl_cli_flush(err);
}

int mfl_cmd_registry(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        struct mfl_error err;
        const char *verb = cli->argument[0];
        static const struct {
                const char *name;
                Mfl__ModelVerb verb;
        } verbs[] = {{"alias", MFL__MODEL_VERB__MODEL_ALIAS}, {"promote", MFL__MODEL_VERB__MODEL_PROMOTE},
                {"rollback", MFL__MODEL_VERB__MODEL_ROLLBACK}, {"remove", MFL__MODEL_VERB__MODEL_REMOVE}};
        Mfl__ModelVerb change_verb = MFL__MODEL_VERB__MODEL_UNSPECIFIED;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(verbs); i++)
                if (!strcmp(verb, verbs[i].name))
                        change_verb = verbs[i].verb;
        int r = 0;
        static const struct {
                const char *name;
                int (*run)(struct mfl_client *client, struct mfl_error *err);
        } looks[] = {{"register", register_job}, {"list", list}, {"reports", mfl_sites_reports},
                {"serving", mfl_sites_serving}};
        int (*run)(struct mfl_client * client, struct mfl_error * err) = NULL;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(looks); i++)
                if (!strcmp(verb, looks[i].name))
                        run = looks[i].run;
        if (!change_verb && !run)
                r = mfl_fail(&err, MFL_CLI_USAGE,
                        "model: '%.60s' is not show, import, list, register, alias, promote, rollback, "
                        "remove, "
                        "reports or serving",
                        verb);
        if (!r)
                r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r && change_verb)
                r = point(&client, change_verb, &err);
        else if (!r)
                r = run(&client, &err);
        return mfl_cli_report(cli, r, &err);
}
