/* SPDX-License-Identifier: Apache-2.0 */
/* mfl daemons disable, enable, allow, disallow, rules: which daemons may take part. */
#include <inttypes.h>
#include <time.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/base/client.h"
#include "cli/base/display.h"
#include "cli/base/json.h"
#include "cli/base/period.h"
#include "cli/base/table.h"
#include "common/settings/yaml.h"

static const char *verdict_name(Mfl__Verdict verdict)
{
        return verdict == MFL__VERDICT__VERDICT_DENY ? "disable" : "allow";
}

/* ---- rules ---- */

static json_t *rule_json(const Mfl__AccessRule *r)
{
        json_t *rule = json_pack("{ss ss ss sI ss sI sI}", "pattern", r->pattern, "rule",
                verdict_name(r->verdict), "who", r->who, "time_ms", (json_int_t)r->time_ms, "reason",
                r->reason, "connected", (json_int_t)r->connected, "refused", (json_int_t)r->refused);
        if (rule)
                json_object_set_new(
                        rule, "until_ms", r->until_ms ? json_integer((json_int_t)r->until_ms) : json_null());
        return rule;
}

static int print_json(const Mfl__AccessList *list, struct mfl_error *err)
{
        json_t *rules = json_array();
        for (size_t i = 0; i < list->n_rules; i++)
                json_array_append_new(rules, rule_json(list->rules[i]));
        return mfl_json_print(stdout, json_pack("{so}", "rules", rules), err);
}

static const char *date_text(uint64_t unix_ms, char *buf, size_t bytes)
{
        time_t t = (time_t)(unix_ms / 1000);
        struct tm tm;
        mfl_strcpy(buf, bytes, "-");
        if (unix_ms && localtime_r(&t, &tm))
                strftime(buf, bytes, "%Y-%m-%d %H:%M", &tm);
        return buf;
}

/* Another operator wrote the reason, and it is printed to a terminal. */
static const char *clean_text(const char *text, char *buf, size_t bytes)
{
        mfl_strcpy(buf, bytes, text);
        for (char *c = buf; *c; c++)
                if ((unsigned char)*c < ' ' || *c == 0x7f)
                        *c = '?';
        return buf;
}

static int print_rules(struct mfl_cli *cli, const Mfl__AccessList *list, struct mfl_error *err)
{
        static const struct mfl_table_column columns[] = {{"RULE", false, 0}, {"PATTERN", false, 0},
                {"CONNECTED", true, 2}, {"REFUSED", true, 3}, {"BY", false, 1}, {"SINCE", false, 4},
                {"UNTIL", false, 0}, {"REASON", false, 0}};
        struct mfl_table table = {.columns = columns, .n_columns = MFL_ARRAY_SIZE(columns)};
        if (!list->n_rules) {
                puts("no rules: every daemon may take part");
                return 0;
        }
        for (size_t i = 0; i < list->n_rules; i++) {
                const Mfl__AccessRule *r = list->rules[i];
                char connected[16], refused[16], since[32], until[32], reason[256];
                snprintf(connected, sizeof connected, "%" PRIu32, r->connected);
                snprintf(refused, sizeof refused, "%" PRIu32, r->refused);
                const char *cells[] = {verdict_name(r->verdict), r->pattern, connected, refused, r->who,
                        date_text(r->time_ms, since, sizeof since),
                        date_text(r->until_ms, until, sizeof until),
                        clean_text(r->reason, reason, sizeof reason)};
                mfl_table_add(&table, cells);
        }
        MFL_CLEANUP_FREE char *text =
                mfl_table_render(&table, cli->terminal ? mfl_screen_columns(STDOUT_FILENO) : 0);
        mfl_table_deinit(&table);
        if (!text)
                return mfl_fail_memory(err, 0, "the list of rules");
        fputs(text, stdout);
        return 0;
}

static int list_rules(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct mfl_error err;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__ListAccess list = MFL__LIST_ACCESS__INIT;
        request.body_case = MFL__ENVELOPE__BODY_LIST_ACCESS;
        request.list_access = &list;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = mfl_client_call(&client, &request, MFL__ENVELOPE__BODY_ACCESS_LIST, &answer, &err);
        if (!r)
                r = cli->json ? print_json(answer->access_list, &err)
                              : print_rules(cli, answer->access_list, &err);
        return mfl_cli_report(cli, r, &err);
}

/* ---- changes ---- */

static int change(struct mfl_cli *cli, Mfl__Access *access)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct mfl_error err;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        request.body_case = MFL__ENVELOPE__BODY_ACCESS;
        request.access = access;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = mfl_client_call(&client, &request, MFL__ENVELOPE__BODY_DONE, &answer, &err);
        if (!r && cli->json)
                r = mfl_json_print(stdout,
                        json_pack("{ss ss}", "pattern", access->pattern, "text", answer->done->text), &err);
        else if (!r)
                printf("%s: %s\n", access->pattern, answer->done->text);
        return mfl_cli_report(cli, r, &err);
}

static bool pattern_valid(const char *pattern)
{
        const char *name = !strncmp(pattern, "cn:", 3) ? pattern + 3 : pattern;
        if (!strncmp(pattern, "sha256:", 7))
                return strlen(pattern + 7) == 64 &&
                       !pattern[7 + strspn(pattern + 7, "0123456789abcdefABCDEF")];
        size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-*?");
        return n && !name[n] && n < MFL_NAME_BYTES;
}

static const struct verb {
        const char *name;
        Mfl__Verdict verdict;
        bool remove;
} verbs[] = {
        {"disable", MFL__VERDICT__VERDICT_DENY, false},
        {"enable", MFL__VERDICT__VERDICT_DENY, true},
        {"allow", MFL__VERDICT__VERDICT_ALLOW, false},
        {"disallow", MFL__VERDICT__VERDICT_ALLOW, true},
};

static int fail_verb(struct mfl_cli *cli)
{
        static const char *const names[] = {"disable", "enable", "allow", "disallow", "rules", NULL};
        const char *nearest = mfl_yaml_nearest(cli->argument[0], names);
        if (nearest)
                return mfl_cli_report_text(cli, MFL_CLI_USAGE,
                        "mfl daemons knows no '%.60s'; did you mean '%s'?", cli->argument[0], nearest);
        return mfl_cli_report_text(cli, MFL_CLI_USAGE,
                "mfl daemons knows no '%.60s'; it knows disable, enable, allow, disallow and rules",
                cli->argument[0]);
}

static int run_verb(struct mfl_cli *cli, const struct verb *verb)
{
        Mfl__Access access = MFL__ACCESS__INIT;
        const char *pattern = cli->argument[1], *reason = cli->options.reason;
        if (!pattern)
                return mfl_cli_report_text(cli, MFL_CLI_USAGE,
                        "mfl daemons %s needs the name of a daemon, or a pattern such as 'site-b*'",
                        verb->name);
        if (!pattern_valid(pattern))
                return mfl_cli_report_text(cli, MFL_CLI_USAGE,
                        "'%.100s' is not a pattern: use 1 to %d letters, digits, '.', '_', '-', '*' and '?'; "
                        "the same after 'cn:'; or 'sha256:' and 64 hexadecimal digits",
                        pattern, MFL_NAME_BYTES - 1);
        if (verb->remove && (reason || cli->options.period))
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "mfl daemons %s takes no --reason and no --for", verb->name);
        if (reason && strlen(reason) >= MFL_ACCESS_REASON_BYTES)
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "--reason: at most %d bytes", MFL_ACCESS_REASON_BYTES - 1);
        if (cli->options.period && verb->verdict != MFL__VERDICT__VERDICT_DENY)
                return mfl_cli_report_text(cli, MFL_CLI_USAGE, "--for goes only with disable");
        if (cli->options.period && !mfl_period_parse(cli->options.period, 366, &access.seconds))
                return mfl_cli_report_text(cli, MFL_CLI_USAGE,
                        "--for: '%.60s' is not a time such as 90s, 30m, 12h or 7d (366d at most)",
                        cli->options.period);
        access.pattern = (char *)(uintptr_t)pattern;
        access.verdict = verb->verdict;
        access.remove = verb->remove;
        if (reason)
                access.reason = (char *)(uintptr_t)reason;
        return change(cli, &access);
}

int mfl_cmd_access(struct mfl_cli *cli)
{
        const char *name = cli->argument[0];
        if (!strcmp(name, "rules")) {
                if (cli->argument[1] || cli->options.reason || cli->options.period)
                        return mfl_cli_report_text(
                                cli, MFL_CLI_USAGE, "mfl daemons rules takes no more arguments");
                return list_rules(cli);
        }
        for (size_t i = 0; i < MFL_ARRAY_SIZE(verbs); i++)
                if (!strcmp(name, verbs[i].name))
                        return run_verb(cli, &verbs[i]);
        return fail_verb(cli);
}
