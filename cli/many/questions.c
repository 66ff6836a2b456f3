/* SPDX-License-Identifier: Apache-2.0 */
/* Asks what a new job file is to say. Each answer is set in the text as `--set` sets it, and the whole is checked as a job, so that a
 * wrong value is found while its question is still on the screen.
 */
#include "cli/many/questions.h"

#include <unistd.h>

#include "cli/base/cli.h"
#include "common/base/plain.h"
#include "common/job/job.h"
#include "common/settings/yaml.h"
#include "common/settings/yaml_edit.h"

#define FIRST "demo" /* the example to begin with */
#define ANSWER_BYTES 1024
#define SITES "sites"

static const struct question {
        const char *path[2]; /* a key, or a key of a key */
        const char *text;
} all[] = {
        {{"name"}, "Name of the job"},
        {{"data", "name"}, "Data set, as the daemons call it"},
        {{"data", "clients"}, "Clients that share it; '" SITES "': each site trains on data of its own"},
        {{"rounds"}, "Rounds"},
        {{"training", "lr"}, "Learning rate"},
};

static void complain(const struct mfl_questions *q, const struct mfl_error *err)
{
        struct mfl_error plain = *err;
        mfl_plain_clean(plain.text, true);
        fprintf(q->out, "  %s\n", plain.text);
}

/* One line without the blanks around it; "": the default. */
static int ask(const struct mfl_questions *q, const char *text, const char *value, char answer[ANSWER_BYTES],
        struct mfl_error *err)
{
        fprintf(q->out, "%s [%s]: ", text, value);
        fflush(q->out);
        if (!fgets(answer, ANSWER_BYTES, q->in)) {
                fputc('\n', q->out);
                return mfl_fail(err, MFL_CLI_INTERRUPTED, "the answers have ended; nothing was written");
        }
        for (int c = 0; !strchr(answer, '\n') && c != '\n' && c != EOF;)
                c = fgetc(q->in);
        size_t n = strlen(answer), begin = strspn(answer, " \t");
        while (n > begin && strchr(" \t\r\n", answer[n - 1]))
                n--;
        memmove(answer, answer + begin, n - begin);
        answer[n - begin] = '\0';
        return 0;
}

static int ask_template(
        const struct mfl_questions *q, const struct mfl_template **ret_template, struct mfl_error *err)
{
        for (;;) {
                char name[ANSWER_BYTES];
                int r = ask(q, "Example to begin from ('?' lists them)", FIRST, name, err);
                if (r)
                        return r;
                if (!strcmp(name, "?")) {
                        q->list();
                        continue;
                }
                r = q->find(*name ? name : FIRST, ret_template, err);
                if (r != MFL_NOT_FOUND)
                        return r;
                complain(q, err);
        }
}

/* The value that the text has there, in its own bytes; false: none, or more than one value. */
static bool value_of(const char *text, const struct question *question, char value[ANSWER_BYTES])
{
        struct mfl_yaml_doc *doc;
        struct mfl_error err;
        if (mfl_yaml_parse(text, strlen(text), "job", NULL, &doc, &err))
                return false;
        const struct mfl_yaml_node *node = mfl_yaml_find(mfl_yaml_root(doc), question->path[0]);
        if (node && question->path[1])
                node = node->type == MFL_YAML_MAPPING ? mfl_yaml_find(node, question->path[1]) : NULL;
        const bool is = node && node->type == MFL_YAML_SCALAR && mfl_strcpy(value, ANSWER_BYTES, node->text);
        mfl_yaml_free(doc);
        return is;
}

static bool is_job(const char *text, struct mfl_error *err)
{
        struct mfl_job *job = NULL;
        const bool is = !mfl_job_parse(text, strlen(text), "job", &job, err);
        mfl_job_free(job);
        return is;
}

static int set(const char *text, const struct question *question, const char *answer, char **ret_text,
        struct mfl_error *err)
{
        char path[64], whole[ANSWER_BYTES + 64], name[ANSWER_BYTES];
        if (question->path[1] && !strcmp(question->path[1], "clients") && !strcmp(answer, SITES)) {
                if (!value_of(text, &(struct question){{"data", "name"}, NULL}, name))
                        return mfl_fail(err, MFL_INVALID, "the example has no data.name");
                snprintf(whole, sizeof whole, "{name: '%s', partition: local}", name);
                return mfl_yaml_set(text, "job", "data", whole, ret_text, err);
        }
        snprintf(path, sizeof path, "%s%s%s", question->path[0], question->path[1] ? "." : "",
                question->path[1] ? question->path[1] : "");
        return mfl_yaml_set(text, "job", path, answer, ret_text, err);
}

/* checks: the example itself is a job without files of the user's, so that each change of it must be one. */
static int ask_value(const struct mfl_questions *q, const struct question *question, bool checks, char **text,
        struct mfl_error *err)
{
        char value[ANSWER_BYTES], answer[ANSWER_BYTES], *changed;
        if (!value_of(*text, question, value))
                return 0;
        for (;;) {
                int r = ask(q, question->text, value, answer, err);
                if (r || !*answer)
                        return r;
                r = set(*text, question, answer, &changed, err);
                if (!r && (!checks || is_job(changed, err))) {
                        free(*text);
                        *text = changed;
                        return 0;
                }
                if (!r)
                        free(changed);
                if (r < 0)
                        return r;
                complain(q, err);
        }
}

/* The example's own words tell of its own numbers. */
static char *begin_text(const struct mfl_template *template)
{
        const char *body = template->text;
        while (*body == '#' || *body == '\n') {
                const char *end = strchr(body, '\n');
                body = end ? end + 1 : body + strlen(body);
        }
        return mfl_asprintf("# Made by `mfl new` from the example %s; `mfl help job` has every key.\n%s",
                template->name, body);
}

int mfl_questions_job(const struct mfl_questions *q, const struct mfl_template **ret_template,
        char **ret_text, struct mfl_error *err)
{
        fprintf(q->out, "Enter takes what is in [brackets]; Ctrl-C ends without a file.\n");
        const struct mfl_template *template;
        int r = ask_template(q, &template, err);
        if (r)
                return r;
        struct mfl_error why;
        char *text = begin_text(template);
        if (!text)
                return mfl_fail_memory(err, strlen(template->text), "a job file");
        const bool checks = is_job(text, &why);
        for (size_t i = 0; !r && i < MFL_ARRAY_SIZE(all); i++)
                r = ask_value(q, &all[i], checks, &text, err);
        if (r) {
                free(text);
                return r;
        }
        *ret_template = template;
        *ret_text = text;
        return 0;
}

int mfl_questions_file(
        const struct mfl_questions *q, const char *proposed, char **ret_path, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *standard = mfl_asprintf("%s.yaml", proposed);
        if (!standard)
                return mfl_fail_memory(err, strlen(proposed), "a path");
        for (;;) {
                char answer[ANSWER_BYTES];
                int r = ask(q, "File", standard, answer, err);
                if (r)
                        return r;
                const char *path = *answer ? answer : standard;
                if (access(path, F_OK)) {
                        *ret_path = mfl_strdup(path);
                        return *ret_path ? 0 : mfl_fail_memory(err, strlen(path), "a path");
                }
                fprintf(q->out, "  %s exists; choose another name\n", path);
        }
}
