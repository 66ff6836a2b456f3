/* SPDX-License-Identifier: Apache-2.0 */
/* Commands about several versions of a job: sweep, which submits them, and compare.
 *
 * Happy path of sweep: the job file -> the values of each --set -> every combination is checked -> each is submitted -> with
 * --watch, all are waited for, and compared. A failure while submitting leaves the jobs that the server has already: the
 * message says how many, and with --token the same command goes on from there.
 */
#include "cli/commands/commands.h"
#include "cli/base/json.h"
#include "cli/many/fetch.h"
#include "cli/job/submit.h"
#include "cli/view/watch.h"
#include "common/settings/yaml.h"
#include "common/settings/yaml_edit.h"

#define SET_BYTES 600

struct axis {
        const char *key; /* ends at '=' */
        size_t key_bytes;
        char **value;
        int n;
};

struct sweep {
        struct mfl_cli *cli;
        char *text; /* of the job file */
        struct axis axis[MFL_CLI_DATA_MAX];
        int n_axes;
        size_t n; /* combinations */
        char name[MFL_NAME_BYTES];
        bool numbered; /* the jobs are named by number, since names by values are too long or not plain */
        struct mfl_job_ids jobs;
        bool existed[MFL_COMPARE_MAX];
};

/* One combination: its changes of the file, the name first. */
struct version {
        char set[MFL_CLI_DATA_MAX + 1][SET_BYTES];
        const char *text[MFL_CLI_DATA_MAX + 1];
        char name[MFL_NAME_BYTES];
};

static int read_axis(struct sweep *s, const char *set, struct mfl_error *err)
{
        struct axis *axis = &s->axis[s->n_axes];
        const char *equals = strchr(set, '=');
        struct mfl_error why;
        if (!equals || equals == set)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--set: expected KEY=VALUE,VALUE,... as in --set training.lr=0.01,0.03, got '%.100s'",
                        set);
        if (!strncmp(set, "name=", 5))
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--set name: a sweep names its jobs itself, after the job file's name");
        if (strlen(set) >= SET_BYTES)
                return mfl_fail(
                        err, MFL_CLI_USAGE, "--set %.60s...: longer than %d bytes", set, SET_BYTES - 1);
        int r = mfl_yaml_values(equals + 1, MFL_COMPARE_MAX, &axis->value, &axis->n, &why);
        if (r)
                return r < 0 ? r
                             : mfl_fail(err, MFL_CLI_USAGE, "--set %.*s: %s", (int)(equals - set), set,
                                       why.text);
        axis->key = set;
        axis->key_bytes = (size_t)(equals - set);
        s->n_axes++;
        s->n *= (size_t)axis->n;
        if (s->n > MFL_COMPARE_MAX)
                return mfl_fail(err, MFL_CLI_USAGE, "--set: more than %d combinations", MFL_COMPARE_MAX);
        return 0;
}

/* The last --set varies fastest. */
static const char *value_of(const struct sweep *s, size_t i, int axis)
{
        for (int a = s->n_axes - 1; a > axis; a--)
                i /= (size_t)s->axis[a].n;
        return s->axis[axis].value[i % (size_t)s->axis[axis].n];
}

/* "lr" of "training.lr". */
static const char *short_key(const struct axis *axis, size_t *ret_bytes)
{
        const char *at = axis->key;
        for (const char *c = at; c < axis->key + axis->key_bytes; c++)
                if (*c == '.' || *c == ']')
                        at = c + 1;
        *ret_bytes = axis->key_bytes - (size_t)(at - axis->key);
        return at;
}

static bool is_plain(const char *text)
{
        return text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")] ==
               '\0';
}

/* "demo-lr0.01-seed1"; false: not a job's name. */
static bool name_by_values(const struct sweep *s, size_t i, char ret_name[MFL_NAME_BYTES])
{
        char name[2 * MFL_CLI_DATA_MAX * SET_BYTES];
        size_t used = (size_t)mfl_snprintf(name, sizeof name, "%s", s->name);
        for (int a = 0; a < s->n_axes; a++) {
                size_t bytes;
                const char *key = short_key(&s->axis[a], &bytes);
                if (s->axis[a].n > 1)
                        used += (size_t)mfl_snprintf(name + used, sizeof name - used, "-%.*s%s", (int)bytes,
                                key, value_of(s, i, a));
        }
        if (used >= MFL_NAME_BYTES || !is_plain(name))
                return false;
        mfl_strcpy(ret_name, MFL_NAME_BYTES, name);
        return true;
}

static void make_version(const struct sweep *s, size_t i, struct version *v)
{
        if (s->numbered || !name_by_values(s, i, v->name))
                mfl_snprintf(v->name, sizeof v->name, "%.*s-%zu", MFL_NAME_BYTES - 8, s->name, i + 1);
        mfl_snprintf(v->set[0], SET_BYTES, "name=%s", v->name);
        v->text[0] = v->set[0];
        for (int a = 0; a < s->n_axes; a++) {
                mfl_snprintf(v->set[a + 1], SET_BYTES, "%.*s=%s", (int)s->axis[a].key_bytes, s->axis[a].key,
                        value_of(s, i, a));
                v->text[a + 1] = v->set[a + 1];
        }
}

/* The proof of an ONNX file is replayed once. */
static int read_version(const struct sweep *s, size_t i, const struct version *v, bool prove,
        struct mfl_submission *ret_submission, struct mfl_error *err)
{
        const struct mfl_sets sets = {v->text, s->n_axes + 1};
        int r = mfl_submission_read_text(
                s->cli->argument[0], s->text, &sets, prove && !i ? "auto" : NULL, ret_submission, err);
        if (r != MFL_INVALID || s->n == 1)
                return r;
        struct mfl_error why = *err;
        return mfl_fail(err, MFL_INVALID, "%s: %.400s", v->name, why.text);
}

/* The file's own name, and whether names by values are possible for all. A file without a name is refused when it is read. */
static int find_name(struct sweep *s, struct mfl_error *err)
{
        char name[MFL_NAME_BYTES];
        struct mfl_yaml_doc *doc = NULL;
        int r = mfl_yaml_parse(s->text, strlen(s->text), s->cli->argument[0], NULL, &doc, err);
        if (r)
                return r;
        const struct mfl_yaml_node *node = mfl_yaml_find(mfl_yaml_root(doc), "name");
        mfl_snprintf(s->name, sizeof s->name, "%s", node && node->text ? node->text : "job");
        mfl_yaml_free(doc);
        for (size_t i = 0; i < s->n && !s->numbered; i++)
                s->numbered = !name_by_values(s, i, name);
        return 0;
}

static int check_all(struct sweep *s, struct mfl_error *err)
{
        int r = 0;
        for (size_t i = 0; !r && i < s->n; i++) {
                struct version v;
                struct mfl_submission submission;
                make_version(s, i, &v);
                r = read_version(s, i, &v, true, &submission, err);
                if (r)
                        return r;
                if (!i)
                        mfl_submission_tell(&submission, s->cli);
                mfl_submission_deinit(&submission);
        }
        return r;
}

static int send_version(struct sweep *s, struct mfl_client *client, size_t i, struct mfl_error *err)
{
        MFL_CLEANUP_SUBMISSION struct mfl_submission submission = {.path = NULL};
        char token[MFL_NAME_BYTES + 8];
        struct version v;
        make_version(s, i, &v);
        mfl_snprintf(
                token, sizeof token, "%s-%zu", s->cli->options.token ? s->cli->options.token : "", i + 1);
        int r = read_version(s, i, &v, false, &submission, err);
        if (!r)
                r = mfl_submission_send(&submission, client, s->cli->options.token ? token : NULL,
                        s->jobs.id[i], &s->existed[i], err);
        if (r)
                return r;
        s->jobs.n++;
        if (s->cli->json)
                return 0;
        printf("%s %s%s\n", s->jobs.id[i], v.name,
                s->existed[i] ? " (was submitted before with this token)" : "");
        return mfl_cli_flush(err);
}

static int send_all(struct sweep *s, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = s->cli};
        int r = mfl_client_open(&client, s->cli, s->cli->server, MFL_CLIENT_TIMEOUT_MS, err);
        for (size_t i = 0; !r && i < s->n; i++)
                r = send_version(s, &client, i, err);
        if (!r || !s->jobs.n)
                return r;
        struct mfl_error why = *err;
        return mfl_fail(err, r, "%zu of %zu jobs are submitted; then: %.400s", s->jobs.n, s->n, why.text);
}

/* Jobs that fail are counted, and the others are waited for. */
static int wait_all(struct sweep *s, int *ret_n_failed, struct mfl_error *err)
{
        int r = 0;
        for (size_t i = 0; !r && i < s->jobs.n; i++) {
                struct mfl_watch watch = {
                        .cli = s->cli, .address = s->cli->server, .output = MFL_WATCH_SILENT};
                watch.give_up_ms =
                        s->cli->options.timeout >= 0 ? (uint64_t)s->cli->options.timeout * 1000 : 60000;
                mfl_strcpy(watch.job, sizeof watch.job, s->jobs.id[i]);
                r = mfl_watch_run(&watch, err);
                if (r == MFL_CLI_FAILED) {
                        mfl_cli_note(s->cli, "%s", err->text);
                        ++*ret_n_failed;
                        r = 0;
                } else if (!r && !s->cli->json) {
                        printf("%s %s: done\n", watch.job, watch.name);
                        r = mfl_cli_flush(err);
                }
                mfl_watch_deinit(&watch);
        }
        return r;
}

static int print_jobs(const struct sweep *s, struct mfl_error *err)
{
        json_t *jobs = json_array();
        if (!s->cli->json) {
                json_decref(jobs);
                return 0;
        }
        for (size_t i = 0; i < s->jobs.n; i++) {
                struct version v;
                make_version(s, i, &v);
                json_array_append_new(jobs, json_pack("{ss ss sb}", "job", s->jobs.id[i], "name", v.name,
                                                    "existed", (int)s->existed[i]));
        }
        return mfl_json_print(stdout, json_pack("{so}", "jobs", jobs), err);
}

static int watch_and_compare(struct sweep *s, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = s->cli};
        int n_failed = 0, r = wait_all(s, &n_failed, err);
        if (!r && !s->cli->json)
                putchar('\n');
        if (!r)
                r = mfl_client_open(&client, s->cli, s->cli->server, MFL_CLIENT_TIMEOUT_MS, err);
        if (!r)
                r = mfl_compare_print(&client, &s->jobs, err);
        if (!r && n_failed)
                r = mfl_fail(err, MFL_CLI_FAILED, "%d of %zu jobs failed or were stopped", n_failed, s->n);
        return r;
}

static int check_line(const struct mfl_cli *cli, struct mfl_error *err)
{
        const char *token = cli->options.token;
        if (!cli->options.n_set)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "nothing to sweep over; add --set KEY=VALUE,VALUE,... as in --set "
                        "training.lr=0.01,0.03");
        if (token && (!*token || strlen(token) > MFL_NAME_BYTES - 8))
                return mfl_fail(err, MFL_CLI_USAGE, "--token: 1 to %d bytes", MFL_NAME_BYTES - 8);
        return 0;
}

int mfl_cmd_sweep(struct mfl_cli *cli)
{
        struct mfl_error err;
        struct sweep *s = mfl_calloc(1, sizeof *s);
        int r = s ? check_line(cli, &err) : mfl_fail_memory(&err, sizeof *s, "a sweep");
        if (s) {
                s->cli = cli;
                s->n = 1;
        }
        for (int i = 0; !r && i < cli->options.n_set; i++)
                r = read_axis(s, cli->options.set[i], &err);
        if (!r)
                r = mfl_submission_load(cli->argument[0], &s->text, &err);
        if (!r)
                r = find_name(s, &err);
        if (!r)
                r = check_all(s, &err);
        if (!r)
                r = send_all(s, &err);
        if (!r)
                r = cli->options.watch ? watch_and_compare(s, &err) : print_jobs(s, &err);
        for (int a = 0; s && a < s->n_axes; a++)
                mfl_yaml_values_free(s->axis[a].value, s->axis[a].n);
        if (s)
                free(s->text);
        free(s);
        return mfl_cli_report(cli, r, &err);
}

int mfl_cmd_compare(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        struct mfl_error err;
        struct mfl_job_ids *ids = mfl_calloc(1, sizeof *ids);
        int r = ids ? mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err)
                    : mfl_fail_memory(&err, sizeof *ids, "jobs");
        for (int i = 0; !r && i < MFL_CLI_POSITIONAL_MAX && cli->argument[i]; i++)
                r = mfl_job_ids_add(ids, &client, cli->argument[i], &err);
        if (!r)
                r = mfl_compare_print(&client, ids, &err);
        free(ids);
        return mfl_cli_report(cli, r, &err);
}
