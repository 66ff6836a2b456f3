/* SPDX-License-Identifier: Apache-2.0 */
/* A model of a file, for sites to evaluate: it travels with the inquiry, so that the server need not know it.
 *
 * Happy path: open the file -> job file, params and digest -> Inquire -> Initial frames -> the report. Fails when the file is no model file, or has
 * an order of params that sites don't have.
 */
#include <string.h>
#include <sys/stat.h>

#include "cli/sites/sites.h"
#include "common/base/digest.h"
#include "common/contract/model_file.h"

#define FRAME_FLOATS (1u << 20)

bool mfl_sites_is_file(const char *model)
{
        const char *dot = strrchr(model, '.');
        struct stat st;
        if (strchr(model, '/') || (dot && (!strcmp(dot, ".safetensors") || !strcmp(dot, ".onnx"))))
                return true;
        /* A job may be called as a folder is, and no file is NAME@ALIAS. */
        return !strchr(model, '@') && !stat(model, &st) && S_ISREG(st.st_mode);
}

static int send_params(struct mfl_client *client, const struct mfl_model_file *model, struct mfl_error *err)
{
        const uint64_t n = (uint64_t)model->graph->n;
        for (uint64_t at = 0; at < n; at += FRAME_FLOATS) {
                Mfl__Envelope e = MFL__ENVELOPE__INIT;
                Mfl__Initial initial = MFL__INITIAL__INIT;
                const uint64_t some = MFL_MIN((uint64_t)FRAME_FLOATS, n - at);
                initial.offset = at;
                e.body_case = MFL__ENVELOPE__BODY_INITIAL;
                e.initial = &initial;
                const int r =
                        mfl_client_send_payload(client, &e, model->params + at, some * sizeof(float), err);
                if (r)
                        return r;
        }
        return 0;
}

static int ask(struct mfl_client *client, const struct mfl_model_file *model, const char *text,
        Mfl__Inquire *inquire, Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        uint8_t digest[MFL_SHA256_BYTES];
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        int r = mfl_sha256(model->params, (size_t)model->graph->n * sizeof *model->params, digest, err);
        if (r)
                return r;
        inquire->text = (char *)(uintptr_t)text;
        inquire->n_params = (uint64_t)model->graph->n;
        inquire->n_frozen = (uint64_t)model->graph->n_frozen;
        inquire->digest = (ProtobufCBinaryData){sizeof digest, digest};
        request.body_case = MFL__ENVELOPE__BODY_INQUIRE;
        request.inquire = inquire;
        r = mfl_client_ask(client, &request, err);
        if (!r)
                r = send_params(client, model, err);
        return r ? r : mfl_sites_answer(client, inquire->deadline_s, ret_answer, err);
}

/* Params of a model without frozen ones lie in the order of layers; those of others do so in files of older servers alone. */
static int check_order(const struct mfl_model_file *model, struct mfl_error *err)
{
        struct mfl_graph *graph;
        if (!model->job->by_layers)
                return 0;
        model->job->by_layers = false;
        const int r = mfl_job_graph(model->job, &model->graph->input, model->graph->classes, &graph, err);
        if (r)
                return r;
        const bool frozen = graph->n_frozen > 0;
        mfl_graph_free(graph);
        return frozen ? mfl_fail(err, MFL_INVALID,
                                "%.200s: an older server has sent it; pull the model again", model->path)
                      : 0;
}

int mfl_sites_ask_file(struct mfl_client *client, const char *path, Mfl__Inquire *inquire,
        Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        struct mfl_model_file *model = NULL;
        struct mfl_st_file *file = NULL;
        const char *dot = strrchr(path, '.');
        if (dot && !strcmp(dot, ".onnx"))
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: make a model file of it first: mfl model import %.200s --set "
                        "data.name=NAME, with the name "
                        "of the sites' data set",
                        path, path);
        int r = mfl_model_file_open(path, &model, err);
        if (!r)
                r = check_order(model, err);
        if (!r)
                r = mfl_st_open(path, &file, err);
        if (!r)
                r = ask(client, model, mfl_st_meta_get(file, "job_text"), inquire, ret_answer, err);
        mfl_st_close(file);
        mfl_model_file_free(model);
        return r;
}
