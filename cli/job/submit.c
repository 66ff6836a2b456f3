/* SPDX-License-Identifier: Apache-2.0 */
/* Reads, checks and sends a job file. */
#include "cli/job/submit.h"

#include <math.h>

#include "cli/job/place.h"
#include "cli/job/pretrained.h"
#include "cli/job/proof.h"
#include "cli/job/tensors.h"
#include "cli/job/trace_file.h"
#include "cli/onnx/open/job.h"
#include "common/privacy/spend.h"
#include "common/base/fs.h"
#include "common/settings/yaml_edit.h"

#define FRAME_FLOATS (1024 * 1024 / sizeof(float))

/* A job whose initial params contain a value that is not finite would end with such values: refuse it before
 * it runs. start: what an ONNX file beside the file has, which the file need not have, or NULL. */
static int check_finite(const struct mfl_graph *graph, const char *path, const float *v, const float *start,
        const char *start_path, struct mfl_error *err)
{
        for (int t = 0; t < graph->n_params; t++) {
                const struct mfl_param *param = &graph->params[t];
                for (uint64_t i = 0; i < param->count; i++)
                        if (!isfinite(v[param->offset + i]))
                                return mfl_fail(err, MFL_INVALID, "%s: tensor %s: element %llu is %g",
                                        start && !isfinite(start[param->offset + i]) ? start_path : path,
                                        param->name, (unsigned long long)i, (double)v[param->offset + i]);
        }
        return 0;
}

static int fill_params(
        const struct mfl_graph *graph, const char *path, struct mfl_submission *s, struct mfl_error *err)
{
        s->initial = mfl_alloc_aligned(graph->n * sizeof(float));
        if (!s->initial)
                return mfl_fail_memory(err, graph->n * sizeof(float), "the initial params");
        size_t used = strlen(s->notes);
        int r = mfl_pretrained_read(
                s->job, graph, s->start, s->parts, s->initial, s->notes + used, sizeof s->notes - used, err);
        if (!r)
                r = check_finite(graph, path, s->initial, s->start, s->start_path, err);
        s->n_initial = r ? 0 : graph->n;
        return r;
}

/* The tensors are sent in the order of the layers. */
static int sent_graph(const struct mfl_job *job, struct mfl_graph **ret_graph, struct mfl_error *err)
{
        int r = mfl_job_graph(job, &job->model.input, job->model.classes, ret_graph, err);
        if (!r && (r = mfl_graph_by_layers(*ret_graph, err)))
                mfl_graph_free(*ret_graph);
        return r;
}

/* The graph gives the params' order and shapes, and building it needs the model's input shape and classes. */
static int read_initial(struct mfl_submission *s, struct mfl_error *err)
{
        const struct mfl_job *job = s->job;
        struct mfl_graph *graph;
        if (!job->model.tensors && (!job->model.input.rank || !job->model.classes))
                return mfl_fail(err, MFL_INVALID,
                        "%s: model.initial also needs model.input and model.classes, to check the file; for "
                        "example input: [1, 28, 28] and classes: 10",
                        s->path);
        int r = sent_graph(job, &graph, err);
        if (r)
                return r;
        r = fill_params(graph, job->model.initial, s, err);
        mfl_graph_free(graph);
        free(s->start);
        s->start = NULL;
        return r;
}

static int fail_count(const struct mfl_submission *s, const struct mfl_onnx_job *onnx,
        const struct mfl_graph *graph, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID, "%s: the ONNX file has %llu parameters, but its layers need %llu",
                s->path, (unsigned long long)onnx->model.n, (unsigned long long)graph->n);
}

/* Adapters beside the params of a file that has none: they get their start values. */
static int add_adapters(struct mfl_submission *s, const struct mfl_graph *graph,
        const struct mfl_onnx_job *onnx, struct mfl_error *err)
{
        struct mfl_job without = *s->job;
        struct mfl_graph *base;
        without.model.lora.rank = 0;
        int r = sent_graph(&without, &base, err);
        if (r)
                return r;
        float *params = base->n == onnx->model.n ? mfl_alloc_aligned(graph->n * sizeof(float)) : NULL;
        if (base->n != onnx->model.n)
                r = fail_count(s, onnx, base, err);
        else if (!params)
                r = mfl_fail_memory(err, graph->n * sizeof(float), "the initial params");
        else
                mfl_graph_init_params(graph, s->job->seed, params);
        for (int t = 0, b = 0; !r && t < graph->n_params && b < base->n_params; t++) {
                const struct mfl_param *to = &graph->params[t], *from = &base->params[b];
                if (strcmp(to->name, from->name))
                        continue; /* an adapter */
                mfl_assert(to->count == from->count);
                memcpy(params + to->offset, onnx->model.params + from->offset, to->count * sizeof(float));
                b++;
        }
        mfl_graph_free(base);
        s->initial = r ? NULL : params;
        s->n_initial = r ? 0 : graph->n;
        return r;
}

/* The initial params of an ONNX file's graph, unless the job names another file. */
static int take_params(struct mfl_submission *s, struct mfl_onnx_job *onnx, struct mfl_error *err)
{
        struct mfl_graph *graph;
        int r = sent_graph(s->job, &graph, err);
        if (r)
                return r;
        bool adapted = s->job->model.lora.rank > 0;
        if (adapted)
                r = add_adapters(s, graph, onnx, err);
        else if (graph->n != onnx->model.n)
                r = fail_count(s, onnx, graph, err);
        if (!r && !onnx->has_initial) /* else what takes their place is checked */
                r = check_finite(graph, s->job->model.initial, adapted ? s->initial : onnx->model.params,
                        NULL, NULL, err);
        mfl_graph_free(graph);
        if (r || adapted)
                return r;
        s->initial = onnx->model.params;
        s->n_initial = onnx->model.n;
        onnx->model.params = NULL;
        return 0;
}

/* Such a model trains, but slowly and worse. Newcomers often end a network with softmax, which PyTorch's
 * cross-entropy does not want either. */
static void note_softmax(struct mfl_submission *s)
{
        const struct mfl_job *job = s->job;
        int n = job->model.n_layers;
        if (!n || job->model.layers[n - 1].op != MFL_OP_SOFTMAX || job->training.loss)
                return;
        size_t used = strlen(s->notes);
        mfl_snprintf(s->notes + used, sizeof s->notes - used,
                "%s: the model ends with softmax, but the loss cross-entropy already includes it: remove the "
                "layer\n",
                s->path);
}

/* Only losses of labels contain a softmax. */
static int check_log_softmax(
        const struct mfl_submission *s, const struct mfl_onnx_model *model, struct mfl_error *err)
{
        if (!model->log_softmax || mfl_loss_answers(s->job->training.loss) == MFL_ANSWERS_LABELS)
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "%s: the model ends in log_softmax, which mfl leaves out, since cross-entropy contains it; "
                "this "
                "training.loss does not: write x - x.logsumexp(-1, keepdim=True) in the module",
                s->path);
}

static int take_tensors(struct mfl_submission *s, struct mfl_error *err)
{
        char *text;
        int r = mfl_tensors_job_read(s->text, s->text_bytes, s->path, &text, err);
        if (r || !text)
                return r;
        free(s->text);
        s->text = text;
        s->text_bytes = strlen(text);
        return 0;
}

static int check_whole(const struct mfl_submission *s, struct mfl_error *err)
{
        int r = mfl_job_check_text(s->text, s->path, err);
        if (!r)
                r = mfl_job_check_moves(s->job, err);
        if (!r)
                r = mfl_job_check_over(s->job, err);
        if (!r)
                r = mfl_job_check_cohort(s->job, err);
        if (r == MFL_INVALID)
                mfl_job_place(s->job, s->text, s->path, err);
        return r;
}

static int parse(struct mfl_submission *s, const char *prover, struct mfl_error *err)
{
        struct mfl_onnx_job onnx = {.text = NULL};
        struct mfl_trace_file trace;
        int r = mfl_trace_file_read(s->text, s->text_bytes, s->path, &trace, err);
        if (!r && trace.text) {
                free(s->text);
                s->text = trace.text;
                s->text_bytes = strlen(s->text);
        }
        if (!r)
                r = mfl_onnx_job_read(s->text, s->text_bytes, s->path, &onnx, err);
        if (!r && onnx.text) {
                free(s->text);
                s->text = onnx.text;
                s->text_bytes = strlen(onnx.text);
                onnx.text = NULL;
                mfl_strcpy(s->notes, sizeof s->notes, onnx.model.notes);
        }
        if (!r)
                r = take_tensors(s, err);
        if (!r)
                r = mfl_job_parse(s->text, s->text_bytes, s->path, &s->job, err);
        if (!r)
                r = check_whole(s, err);
        if (r == MFL_INVALID && onnx.n_inserted)
                mfl_onnx_job_place(&onnx, s->path, err);
        if (r)
                mfl_trace_file_name(&trace, s->path, err);
        free(trace.path);
        if (!r && s->job->privacy.kind)
                r = mfl_privacy_check_first(&s->job->privacy, mfl_job_rate(s->job), err);
        if (!r)
                note_softmax(s);
        if (!r)
                r = check_log_softmax(s, &onnx.model, err);
        if (!r && onnx.model.params && prover)
                r = mfl_job_prove(s, &onnx.model, prover, err);
        if (!r && onnx.model.params)
                r = take_params(s, &onnx, err);
        if (!r && onnx.has_initial) {
                s->start = s->initial;
                s->start_path = onnx.path;
                onnx.path = NULL;
                s->parts = onnx.model.parts;
                onnx.model.parts = NULL;
                s->initial = NULL;
                s->n_initial = 0;
        }
        mfl_onnx_job_deinit(&onnx);
        return r;
}

int mfl_submission_load(const char *path, char **ret_text, struct mfl_error *err)
{
        size_t bytes;
        char *text;
        const char *end = strrchr(path, '.');
        if (end && !strcmp(end, ".onnx"))
                return mfl_fail(err, MFL_INVALID,
                        "%s: this is a model; write a job file that names it, model: {onnx: %s} (mfl help "
                        "job)",
                        path, path);
        if (end && !strcmp(end, ".safetensors"))
                return mfl_fail(err, MFL_INVALID,
                        "%s: this is a model; write a job file that starts from it, with the preset or the "
                        "layers that it has: "
                        "model: {preset: lenet5, input: [1, 28, 28], classes: 10, initial: %s} (mfl help "
                        "job)",
                        path, path);
        int r = mfl_fs_read(strcmp(path, "-") ? path : "/dev/stdin", MFL_JOB_TEXT_MAX, &text, &bytes, err);
        if (!r && strlen(text) != bytes) {
                free(text);
                r = mfl_fail(err, MFL_INVALID, "%s: contains a NUL byte, so it is no text", path);
        }
        if (!r)
                *ret_text = text;
        return r;
}

/* "training.lr=0.01": the changed text replaces *text. */
static int change(char **text, const char *file, const char *set, struct mfl_error *err)
{
        const char *equals = strchr(set, '=');
        if (!equals || equals == set)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--set: expected KEY=VALUE, as in --set training.lr=0.01, got '%.100s'", set);
        char *changed;
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%.*s", (int)(equals - set), set);
        int r = path ? mfl_yaml_set(*text, file, path, equals + 1, &changed, err)
                     : mfl_fail_memory(err, strlen(set), "a key");
        if (r)
                return r;
        free(*text);
        *text = changed;
        return 0;
}

int mfl_sets_apply(const struct mfl_sets *sets, const char *file, const char *text, char **ret_text,
        struct mfl_error *err)
{
        char *changed = mfl_strdup(text);
        int r = changed ? 0 : mfl_fail_memory(err, strlen(text), "a job file");
        for (int i = 0; sets && !r && i < sets->n; i++)
                r = change(&changed, file, sets->text[i], err);
        if (r)
                free(changed);
        else
                *ret_text = changed;
        return r;
}

static size_t count_lines(const char *text)
{
        size_t n = 0;
        for (; *text; text++)
                n += *text == '\n';
        return n;
}

int mfl_submission_read_text(const char *path, const char *text, const struct mfl_sets *sets,
        const char *prover, struct mfl_submission *ret_submission, struct mfl_error *err)
{
        struct mfl_submission s = {.path = strcmp(path, "-") ? path : "<stdin>"};
        int r = mfl_sets_apply(sets, s.path, text, &s.text, err);
        s.text_bytes = r ? 0 : strlen(s.text);
        /* A line of the changed text may be another one in the user's file. */
        bool longer = !r && count_lines(s.text) > count_lines(text);
        if (!r)
                r = parse(&s, prover, err);
        if (!r && s.job->model.initial && !s.initial)
                r = read_initial(&s, err);
        if (r == MFL_INVALID && longer)
                mfl_snprintf(err->text + strlen(err->text), sizeof err->text - strlen(err->text),
                        " (lines are counted with those that --set added)");
        if (r) {
                mfl_submission_deinit(&s);
                return r;
        }
        *ret_submission = s;
        return 0;
}

int mfl_submission_read(const char *path, const struct mfl_sets *sets, const char *prover,
        struct mfl_submission *ret_submission, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = NULL;
        int r = mfl_submission_load(path, &text, err);
        return r ? r : mfl_submission_read_text(path, text, sets, prover, ret_submission, err);
}

void mfl_submission_tell(struct mfl_submission *s, struct mfl_cli *cli)
{
        if (s->proof[0])
                mfl_cli_note(cli, "%s", s->proof);
        for (char *line = strtok(s->notes, "\n"); line; line = strtok(NULL, "\n"))
                mfl_cli_note(cli, "%s", line);
}

void mfl_submission_deinit(struct mfl_submission *s)
{
        free(s->text);
        free(s->initial);
        free(s->start);
        free(s->start_path);
        free(s->parts);
        mfl_job_free(s->job);
        *s = (struct mfl_submission){.path = NULL};
}

static int send_initial(const struct mfl_submission *s, struct mfl_client *client, struct mfl_error *err)
{
        for (uint64_t at = 0; at < s->n_initial; at += FRAME_FLOATS) {
                Mfl__Envelope e = MFL__ENVELOPE__INIT;
                Mfl__Initial initial = MFL__INITIAL__INIT;
                uint64_t n = MFL_MIN((uint64_t)FRAME_FLOATS, s->n_initial - at);
                initial.offset = at;
                e.body_case = MFL__ENVELOPE__BODY_INITIAL;
                e.initial = &initial;
                int r = mfl_client_send_payload(client, &e, s->initial + at, n * sizeof(float), err);
                if (r)
                        return r;
        }
        return 0;
}

int mfl_submission_send(const struct mfl_submission *s, struct mfl_client *client, const char *token,
        char *ret_job, bool *ret_existed, struct mfl_error *err)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__Submit submit = MFL__SUBMIT__INIT;
        const char *slash = strrchr(s->path, '/');
        submit.text = s->text;
        submit.file = (char *)(uintptr_t)(slash ? slash + 1 : s->path);
        submit.token = (char *)(uintptr_t)(token ? token : "");
        submit.initial_count = s->n_initial;
        request.body_case = MFL__ENVELOPE__BODY_SUBMIT;
        request.submit = &submit;
        int r = mfl_client_ask(client, &request, err);
        if (!r)
                r = send_initial(s, client, err);
        /* The server may have refused and closed the connection before everything was sent: its answer says
         * why. */
        if (!r || r == MFL_CLI_LOST)
                r = mfl_client_next(client, MFL_CLIENT_FOREVER, &answer, err);
        if (r)
                return r;
        if (answer->body_case != MFL__ENVELOPE__BODY_SUBMITTED)
                return mfl_fail(err, MFL_CLI_LOST, "the server gave an unexpected answer to the submission");
        mfl_strcpy(ret_job, MFL_JOB_ID_BYTES, answer->submitted->job);
        *ret_existed = answer->submitted->existed;
        return 0;
}
