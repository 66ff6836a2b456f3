/* SPDX-License-Identifier: Apache-2.0 */
/* A job file on its way to the server. */
#include "cli/submit.h"

#include <math.h>

#include "cli/onnx/job.h"
#include "common/fs.h"
#include "common/model/safetensors.h"

#define FRAME_FLOATS (1024 * 1024 / sizeof(float))

/* A job that starts from a value that is no number ends there too; better to say so before it runs. */
static int check_finite(
        const struct mfl_graph *graph, const char *path, const float *v, struct mfl_error *err)
{
        for (int t = 0; t < graph->n_params; t++) {
                const struct mfl_param *param = &graph->params[t];
                for (uint64_t i = 0; i < param->count; i++)
                        if (!isfinite(v[param->offset + i]))
                                return mfl_fail(err, MFL_INVALID, "%s: tensor %s: element %llu is %g", path,
                                        param->name, (unsigned long long)i, (double)v[param->offset + i]);
        }
        return 0;
}

/* A LoRA job starts from a file of the model without adapters, or of one with them: one that was pulled. */
static bool lacks_adapters(const struct mfl_graph *graph, const struct mfl_st_file *file)
{
        for (int t = 0; t < graph->n_params; t++) {
                const struct mfl_layer *layer = &graph->layers[graph->params[t].layer];
                if (layer->lora_rank && t == layer->param_weight2)
                        return !mfl_st_find(file, graph->params[t].name);
        }
        return false;
}

static const struct mfl_param *find_param(const struct mfl_graph *graph, const char *name)
{
        for (int t = 0; t < graph->n_params; t++)
                if (!strcmp(graph->params[t].name, name))
                        return &graph->params[t];
        return NULL;
}

/* The file's params, and adapters as they start. */
static int fill_base(const struct mfl_job *job, const struct mfl_graph *graph, const struct mfl_st_file *file,
        float *params, struct mfl_error *err)
{
        struct mfl_job without = *job;
        struct mfl_graph *base;
        without.model.lora.rank = 0;
        int r = mfl_job_graph(&without, &job->model.input, job->model.classes, &base, err);
        if (r)
                return r;
        MFL_CLEANUP_FREE float *from = mfl_alloc_aligned(base->n * sizeof(float));
        r = from ? mfl_st_to_params(file, NULL, base, from, err)
                 : mfl_fail_memory(err, base->n * sizeof(float), "the initial params");
        mfl_graph_init_params(graph, job->seed, params);
        for (int t = 0; !r && t < base->n_params; t++) {
                const struct mfl_param *to = find_param(graph, base->params[t].name);
                mfl_assert(to && to->count == base->params[t].count);
                memcpy(params + to->offset, from + base->params[t].offset, to->count * sizeof(float));
        }
        mfl_graph_free(base);
        return r;
}

static int fill_params(
        const struct mfl_graph *graph, const char *path, struct mfl_submission *s, struct mfl_error *err)
{
        struct mfl_st_file *file;
        int r = mfl_st_open(path, &file, err);
        if (r)
                return r;
        s->initial = mfl_alloc_aligned(graph->n * sizeof(float));
        if (!s->initial)
                r = mfl_fail_memory(err, graph->n * sizeof(float), "the initial params");
        else
                r = s->job->model.lora.rank && lacks_adapters(graph, file)
                            ? fill_base(s->job, graph, file, s->initial, err)
                            : mfl_st_to_params(file, NULL, graph, s->initial, err);
        if (!r)
                r = check_finite(graph, path, s->initial, err);
        s->n_initial = r ? 0 : graph->n;
        mfl_st_close(file);
        return r;
}

/* What is sent has its tensors in the order of layers. */
static int sent_graph(const struct mfl_job *job, struct mfl_graph **ret_graph, struct mfl_error *err)
{
        int r = mfl_job_graph(job, &job->model.input, job->model.classes, ret_graph, err);
        if (!r && (r = mfl_graph_by_layers(*ret_graph, err)))
                mfl_graph_free(*ret_graph);
        return r;
}

/* The params' order and shapes come from the graph, and the graph needs to know what goes in and comes out.
 */
static int read_initial(struct mfl_submission *s, struct mfl_error *err)
{
        const struct mfl_job *job = s->job;
        struct mfl_graph *graph;
        if (!job->model.input.rank || !job->model.classes)
                return mfl_fail(err, MFL_INVALID,
                        "%s: model.initial: needs model.input and model.classes beside it, so that the file "
                        "can be "
                        "checked, e.g. input: [1, 28, 28] and classes: 10",
                        s->path);
        int r = sent_graph(job, &graph, err);
        if (r)
                return r;
        r = fill_params(graph, job->model.initial, s, err);
        mfl_graph_free(graph);
        return r;
}

/* What the graph of an ONNX file starts from, unless the job names another file. */
static int take_params(struct mfl_submission *s, struct mfl_onnx_job *onnx, struct mfl_error *err)
{
        struct mfl_graph *graph;
        int r = sent_graph(s->job, &graph, err);
        if (r)
                return r;
        if (graph->n != onnx->model.n)
                r = mfl_fail(err, MFL_INVALID,
                        "%s: the ONNX file gives %llu parameters, its layers have %llu", s->path,
                        (unsigned long long)onnx->model.n, (unsigned long long)graph->n);
        if (!r)
                r = check_finite(graph, s->job->model.initial, onnx->model.params, err);
        mfl_graph_free(graph);
        if (r)
                return r;
        s->initial = onnx->model.params;
        s->n_initial = onnx->model.n;
        onnx->model.params = NULL;
        return 0;
}

/* It trains, but slowly and worse: what a newcomer's network has at its end, and PyTorch's loss does not want
 * either. */
static void note_softmax(struct mfl_submission *s)
{
        const struct mfl_job *job = s->job;
        int n = job->model.n_layers;
        if (!n || job->model.layers[n - 1].op != MFL_OP_SOFTMAX || job->training.loss)
                return;
        size_t used = strlen(s->notes);
        mfl_snprintf(s->notes + used, sizeof s->notes - used,
                "%s: the model ends with softmax, and the loss cross-entropy has one of its own: leave it "
                "out\n",
                s->path);
}

static int parse(struct mfl_submission *s, struct mfl_error *err)
{
        struct mfl_onnx_job onnx = {.text = NULL};
        int r = mfl_onnx_job_read(s->text, s->text_bytes, s->path, &onnx, err);
        if (!r && onnx.text) {
                free(s->text);
                s->text = onnx.text;
                s->text_bytes = strlen(onnx.text);
                onnx.text = NULL;
                mfl_strcpy(s->notes, sizeof s->notes, onnx.model.notes);
        }
        if (!r)
                r = mfl_job_parse(s->text, s->text_bytes, s->path, &s->job, err);
        if (!r)
                r = mfl_job_check_moves(s->job, err);
        if (!r)
                note_softmax(s);
        if (!r && onnx.model.params && !onnx.has_initial)
                r = take_params(s, &onnx, err);
        mfl_onnx_job_deinit(&onnx);
        return r;
}

int mfl_submission_read(const char *path, struct mfl_submission *ret_submission, struct mfl_error *err)
{
        bool is_stdin = !strcmp(path, "-");
        struct mfl_submission s = {.path = is_stdin ? "<stdin>" : path};
        int r = mfl_fs_read(is_stdin ? "/dev/stdin" : path, MFL_JOB_TEXT_MAX, &s.text, &s.text_bytes, err);
        if (!r)
                r = parse(&s, err);
        if (!r && s.job->model.initial && !s.initial)
                r = read_initial(&s, err);
        if (r) {
                mfl_submission_deinit(&s);
                return r;
        }
        *ret_submission = s;
        return 0;
}

void mfl_submission_tell(struct mfl_submission *s, struct mfl_cli *cli)
{
        for (char *line = strtok(s->notes, "\n"); line; line = strtok(NULL, "\n"))
                mfl_cli_note(cli, "%s", line);
}

void mfl_submission_deinit(struct mfl_submission *s)
{
        free(s->text);
        free(s->initial);
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
        /* A refusal may have come, and the connection may be closed, before all was out: the answer tells
         * why. */
        if (!r || r == MFL_CLI_LOST)
                r = mfl_client_next(client, MFL_CLIENT_FOREVER, &answer, err);
        if (r)
                return r;
        if (answer->body_case != MFL__ENVELOPE__BODY_SUBMITTED)
                return mfl_fail(err, MFL_CLI_LOST, "the server answered Submit with something else");
        mfl_strcpy(ret_job, MFL_JOB_ID_BYTES, answer->submitted->job);
        *ret_existed = answer->submitted->existed;
        return 0;
}
