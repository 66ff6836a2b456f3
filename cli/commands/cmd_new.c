/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl new`: a job file to begin from. Without a name, questions on a terminal, and elsewhere the list of them. A file that exists is never
 * replaced. */
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/base/json.h"
#include "cli/job/submit.h"
#include "cli/many/questions.h"
#include "common/base/fs.h"
#include "common/settings/yaml.h"

#define SENTENCE_BYTES 160

/* The first sentence of the comment at the top, in one line. */
static void first_sentence(const char *text, char sentence[SENTENCE_BYTES])
{
        size_t n = 0;
        bool begun = false;
        int depth = 0; /* of parentheses */
        for (const char *c = text; *c && n + 2 < SENTENCE_BYTES; c++) {
                bool at_line = c == text || c[-1] == '\n';
                if (at_line && *c != '#')
                        break;
                if (at_line || (*c == ' ' && (!begun || sentence[n - 1] == ' ')))
                        continue;
                sentence[n++] = *c == '\n' ? ' ' : *c;
                begun = true;
                depth += (*c == '(') - (*c == ')');
                bool ends = !depth && (*c == '.' || *c == ':') && (c[1] == '\n' || c[1] == ' ');
                if (ends && n > 20)
                        break;
        }
        while (n && strchr(" .:", sentence[n - 1]))
                n--;
        sentence[n] = '\0';
}

static void print_list(void)
{
        char sentence[SENTENCE_BYTES];
        for (const struct mfl_template *t = mfl_templates; t->name; t++) {
                first_sentence(t->text, sentence);
                printf("%-18s %s\n", t->name, sentence);
        }
}

static int list(struct mfl_cli *cli, struct mfl_error *err)
{
        char sentence[SENTENCE_BYTES];
        if (!cli->json) {
                print_list();
                printf("\n'mfl new NAME -o job.yaml' writes one\n");
                return 0;
        }
        json_t *all = json_array();
        for (const struct mfl_template *t = mfl_templates; t->name; t++) {
                first_sentence(t->text, sentence);
                json_array_append_new(all, json_pack("{ss ss}", "name", t->name, "about", sentence));
        }
        return mfl_json_print(stdout, json_pack("{so}", "templates", all), err);
}

static int find(const char *name, const struct mfl_template **ret_template, struct mfl_error *err)
{
        const char *names[128];
        int n = 0;
        for (const struct mfl_template *t = mfl_templates; t->name; t++) {
                if (!strcmp(t->name, name)) {
                        *ret_template = t;
                        return 0;
                }
                if (n < (int)MFL_ARRAY_SIZE(names) - 1)
                        names[n++] = t->name;
        }
        names[n] = NULL;
        const char *nearest = mfl_yaml_nearest(name, names);
        return mfl_fail(err, MFL_NOT_FOUND, "there is no example '%.60s'%s%s%s; 'mfl new | cat' lists them",
                name, nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'" : "");
}

static int check_free(const char *path, struct mfl_error *err)
{
        if (!access(path, F_OK))
                return mfl_fail(err, MFL_CLI_CONFLICT, "%s exists; choose another name", path);
        return 0;
}

static int write_job(const struct mfl_cli *cli, const char *path, const char *text, struct mfl_error *err)
{
        bool printed = !path || !strcmp(path, "-");
        if (printed && cli->json)
                return mfl_json_print(stdout, json_pack("{ss}", "text", text), err);
        if (printed) {
                fputs(text, stdout);
                return mfl_cli_flush(err);
        }
        struct mfl_fs_file file = {.fd = -1};
        int r = check_free(path, err);
        if (r)
                return r;
        r = mfl_fs_begin(&file, path, err);
        if (!r)
                r = mfl_fs_write(&file, text, strlen(text), err);
        if (r) {
                mfl_fs_abort(&file);
                return r;
        }
        r = mfl_fs_commit(&file, err);
        return r || !cli->json ? r : mfl_json_print(stdout, json_pack("{ss}", "file", path), err);
}

/* Nothing is written before the last answer. */
static int ask(struct mfl_cli *cli, struct mfl_error *err)
{
        const struct mfl_questions questions = {.in = stdin, .out = stdout, .find = find, .list = print_list};
        const struct mfl_template *template;
        MFL_CLEANUP_FREE char *text = NULL, *path = NULL;
        int r = cli->options.out && strcmp(cli->options.out, "-") ? check_free(cli->options.out, err) : 0;
        if (!r)
                r = mfl_questions_job(&questions, &template, &text, err);
        if (!r && !cli->options.out)
                r = mfl_questions_file(&questions, template->name, &path, err);
        const char *out = cli->options.out ? cli->options.out : path;
        if (!r)
                r = write_job(cli, out, text, err);
        if (!r && strcmp(out, "-"))
                printf("\n%s: 'mfl check %s' checks it, 'mfl run %s' trains it on this machine, and 'mfl "
                       "submit %s' sends it "
                       "to a server\n",
                        out, out, out, out);
        return r;
}

static int without_name(struct mfl_cli *cli, struct mfl_error *err)
{
        if (cli->options.n_set)
                return mfl_fail(
                        err, MFL_CLI_USAGE, "--set changes an example: name one; 'mfl new | cat' lists them");
        if (!cli->json && cli->terminal && isatty(STDIN_FILENO))
                return ask(cli, err);
        if (cli->options.out)
                return mfl_fail(
                        err, MFL_CLI_USAGE, "-o writes an example: name one; 'mfl new | cat' lists them");
        return list(cli, err);
}

int mfl_cmd_new(struct mfl_cli *cli)
{
        const struct mfl_sets sets = {cli->options.set, cli->options.n_set};
        const struct mfl_template *template = NULL;
        MFL_CLEANUP_FREE char *text = NULL;
        struct mfl_error err;
        int r;
        if (!cli->argument[0])
                return mfl_cli_report(cli, without_name(cli, &err), &err);
        r = find(cli->argument[0], &template, &err);
        if (!r)
                r = mfl_sets_apply(&sets, template->name, template->text, &text, &err);
        if (!r)
                r = write_job(cli, cli->options.out, text, &err);
        return mfl_cli_report(cli, r, &err);
}
