/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the ONNX file in a job file by its layers, so that the server needs no ONNX. The user's own lines
 * stay, as comments. */
#include "cli/onnx/open/job.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/job/job.h"
#include "common/settings/yaml.h"

static size_t line_start(const char *text, size_t n, uint32_t line)
{
        size_t at = 0;
        for (uint32_t i = 1; i < line && at < n; i++) {
                const char *end = memchr(text + at, '\n', n - at);
                at = end ? (size_t)(end - text) + 1 : n;
        }
        return at;
}

static uint32_t count_lines(const char *text, size_t n)
{
        uint32_t lines = 0;
        for (size_t i = 0; i < n; i++)
                lines += text[i] == '\n';
        return lines;
}

static int check_keys(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *model, struct mfl_error *err)
{
        for (const struct mfl_yaml_node *n = model->first; n; n = n->next)
                if (strcmp(n->key, "onnx") && strcmp(n->key, "initial") && strcmp(n->key, "lora") &&
                        strcmp(n->key, "freeze"))
                        return mfl_yaml_fail(doc, n, err,
                                "can't be combined with onnx: the file gives layers, input and classes; only "
                                "initial (a safetensors file of initial params), lora and freeze can be "
                                "added");
        return 0;
}

struct out {
        char *text;
        size_t n, room;
};

static void put(struct out *o, const char *fmt, ...) MFL_PRINTF(2, 3);
static void put(struct out *o, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        o->n += (size_t)mfl_vsnprintf(o->text + o->n, o->room - o->n, fmt, ap);
        va_end(ap);
}

/* Quotes are doubled within quotes. */
static void put_quoted(struct out *o, const char *text)
{
        put(o, "'");
        for (; *text; text++)
                put(o, *text == '\'' ? "''" : "%c", *text);
        put(o, "'");
}

/* A value in flow style. Plain text may hold what ends it there, so only numbers and the like stay plain. */
static void put_value(struct out *o, const struct mfl_yaml_node *value)
{
        if (value->type == MFL_YAML_SCALAR) {
                const char *text = value->text ? value->text : "";
                if (!value->quoted && *text && strspn(text, "0123456789.eE+-_") == strlen(text))
                        put(o, "%s", text);
                else
                        put_quoted(o, text);
                return;
        }
        bool mapping = value->type == MFL_YAML_MAPPING;
        put(o, mapping ? "{" : "[");
        for (const struct mfl_yaml_node *k = value->first; k; k = k->next) {
                put(o, "%s", k == value->first ? "" : ", ");
                if (mapping)
                        put(o, "%s: ", k->key);
                put_value(o, k);
        }
        put(o, mapping ? "}" : "]");
}

static int compose(const char *text, size_t n, size_t from, size_t to, const char *path,
        const struct mfl_yaml_node *model, const struct mfl_onnx_model *m, char **ret_text,
        struct mfl_error *err)
{
        struct out o = {.room = n * 4 + strlen(m->text) + strlen(path) * 4 + 1024};
        o.text = mfl_malloc(o.room);
        if (!o.text)
                return mfl_fail_memory(err, o.room, "a job file");
        put(&o, "%.*s", (int)from, text);
        for (size_t at = from; at < to;) {
                const char *end = memchr(text + at, '\n', to - at);
                size_t length = end ? (size_t)(end - text) - at : to - at;
                put(&o, "# %.*s\n", (int)length, text + at);
                at += length + 1;
        }
        put(&o, "# as mfl reads the operators of that file:\nmodel:\n  input: [");
        for (int d = 0; d < m->input.rank; d++)
                put(&o, "%s%" PRId64, d ? ", " : "", m->input.dim[d]);
        put(&o, "]\n  classes: %d\n  initial: ", m->classes);
        if (mfl_yaml_find(model, "initial"))
                put_value(&o, mfl_yaml_find(model, "initial"));
        else
                put_quoted(&o, path);
        put(&o, "\n");
        for (const struct mfl_yaml_node *k = model->first; k; k = k->next) {
                if (strcmp(k->key, "lora") && strcmp(k->key, "freeze"))
                        continue;
                put(&o, "  %s: ", k->key);
                put_value(&o, k);
                put(&o, "\n");
        }
        put(&o, "  layers:\n%s%.*s", m->text, (int)(n - to), text + to);
        *ret_text = o.text;
        return 0;
}

static int rewrite(const struct mfl_yaml_doc *doc, const char *text, size_t n, struct mfl_onnx_job *job,
        struct mfl_error *err)
{
        const struct mfl_yaml_node *root = mfl_yaml_root(doc), *model = mfl_yaml_find(root, "model");
        const struct mfl_yaml_node *onnx = mfl_yaml_find(model, "onnx"),
                                   *initial = mfl_yaml_find(model, "initial");
        uint32_t first = model->key_line, next = UINT32_MAX;
        struct mfl_error why;
        int r = check_keys(doc, model, err);
        if (r)
                return r;
        if (!onnx->text || !*onnx->text || (initial && initial->type == MFL_YAML_SCALAR && !initial->text))
                return mfl_yaml_fail(doc, onnx, err, "expected the path of an ONNX file");
        const char *end = strrchr(onnx->text, '.');
        if (end && !strcmp(end, ".safetensors"))
                return mfl_yaml_fail(doc, onnx, err,
                        "%.300s is a safetensors file, which has start values for a preset or layers: write "
                        "initial in place of onnx, "
                        "beside preset or layers",
                        onnx->text);
        for (const struct mfl_yaml_node *k = root->first; k; k = k->next) {
                if (k != model && k->key_line == first)
                        return mfl_yaml_fail(
                                doc, model, err, "must be on a line of its own, which is replaced by layers");
                if (k->key_line > first)
                        next = MFL_MIN(next, k->key_line);
        }
        const struct mfl_yaml_node *auxiliary = mfl_yaml_find(mfl_yaml_find(root, "training"), "auxiliary");
        r = mfl_onnx_open(onnx->text, auxiliary ? auxiliary->n_children : 0, false, &job->model, &why);
        if (r > 0)
                return mfl_yaml_fail(doc, onnx, err, "%.440s", why.text);
        if (r)
                return mfl_fail(err, r, "%s", why.text);
        job->has_initial = initial;
        if (!(job->path = mfl_strdup(onnx->text)))
                return mfl_fail_memory(err, strlen(onnx->text), "a path");
        size_t from = line_start(text, n, first), to = line_start(text, n, next);
        r = compose(text, n, from, to, onnx->text, model, &job->model, &job->text, err);
        job->model_line = first;
        job->next_line = next;
        job->n_inserted = r ? 0 : count_lines(job->text, strlen(job->text)) - count_lines(text, n);
        if (!r && strlen(job->text) > MFL_JOB_TEXT_MAX)
                r = mfl_fail(err, MFL_INVALID,
                        "%s: the job file with its layers has %zu bytes; the limit is %d", onnx->text,
                        strlen(job->text), MFL_JOB_TEXT_MAX);
        return r;
}

int mfl_onnx_job_read(
        const char *text, size_t n, const char *file, struct mfl_onnx_job *ret_job, struct mfl_error *err)
{
        struct mfl_onnx_job job = {.text = NULL};
        struct mfl_yaml_doc *doc;
        struct mfl_error ignored;
        int r = 0;
        /* The job's own parser reports errors in the text. */
        if (mfl_yaml_parse(text, n, file, NULL, &doc, &ignored))
                return 0;
        const struct mfl_yaml_node *model = mfl_yaml_find(mfl_yaml_root(doc), "model");
        if (model && mfl_yaml_find(model, "onnx"))
                r = rewrite(doc, text, n, &job, err);
        mfl_yaml_free(doc);
        if (r)
                mfl_onnx_job_deinit(&job);
        else
                *ret_job = job;
        return r;
}

void mfl_onnx_job_place(const struct mfl_onnx_job *job, const char *file, struct mfl_error *err)
{
        size_t n = strlen(file);
        char rest[sizeof err->text];
        const char *at = err->text + n + 1;
        size_t digits = !strncmp(err->text, file, n) && err->text[n] == ':' ? strspn(at, "0123456789") : 0;
        if (!digits || digits > 9 || at[digits] != ':')
                return;
        uint32_t line = (uint32_t)atoi(at);
        if (line < job->next_line)
                return;
        line = line - job->next_line < job->n_inserted ? job->model_line : line - job->n_inserted;
        mfl_strcpy(rest, sizeof rest, at + digits);
        mfl_snprintf(err->text + n + 1, sizeof err->text - n - 1, "%u%s", line, rest);
}

void mfl_onnx_job_deinit(struct mfl_onnx_job *job)
{
        free(job->text);
        free(job->path);
        job->text = job->path = NULL;
        mfl_onnx_model_deinit(&job->model);
}
