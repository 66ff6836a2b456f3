/* SPDX-License-Identifier: Apache-2.0 */
/* Writes adapters as `peft` reads them. */
#include "cli/pull/export.h"

#include <math.h>
#include <stdio.h>

#include "common/model/safetensors.h"

#define ROOT "base_model.model."
#define NAME_BYTES (sizeof ROOT + MFL_TENSOR_NAME_BYTES + 16)

struct adapter {
        const struct mfl_job *job;
        const struct mfl_graph *graph;
        const float *params;
        int n;
        char (*names)[NAME_BYTES];
        struct mfl_st_tensor *tensors;
};

static void add(struct adapter *a, const struct mfl_param *param, const char *suffix)
{
        struct mfl_st_tensor *t = &a->tensors[a->n];
        snprintf(a->names[a->n], NAME_BYTES, ROOT "%s%s", param->name, suffix);
        *t = (struct mfl_st_tensor){a->names[a->n], param->shape, a->params + param->offset, param->count};
        a->n++;
}

/* An addition of rank r to each adapted layer; `whole` layers have all of their params in the file. */
static bool is_adapted(const struct mfl_layer *layer)
{
        return layer->op == MFL_OP_DENSE && layer->lora_rank;
}

static bool is_whole(const struct mfl_layer *layer)
{
        return !layer->frozen && !is_adapted(layer) && layer->param_weight >= 0;
}

static int check(const struct mfl_graph *graph, const struct mfl_layer **ret_first, struct mfl_error *err)
{
        const struct mfl_layer *first = NULL;
        for (int i = 1; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                if (!is_adapted(layer))
                        continue;
                first = first ? first : layer;
                if (layer->lora_rank != first->lora_rank || layer->lora_alpha != first->lora_alpha)
                        return mfl_fail(err, MFL_INVALID,
                                "--format peft: layers %s and %s have adapters of different rank or alpha; "
                                "an "
                                "adapter_config.json holds one of each",
                                first->name, layer->name);
        }
        if (!first)
                return mfl_fail(err, MFL_INVALID,
                        "--format peft: the job trains no adapters (model.lora); use --format safetensors");
        *ret_first = first;
        return 0;
}

/* peft selects layer M by target T if M is T or ends with ".T". */
static bool selects(const char *target, const char *name)
{
        size_t n = strlen(name), m = strlen(target);
        return !strcmp(target, name) || (n > m && name[n - m - 1] == '.' && !strcmp(name + n - m, target));
}

/* Whether names of layers select a layer that has no adapter; then only a regular expression says it. */
static bool is_vague(const struct mfl_graph *graph)
{
        for (int i = 1; i < graph->n_layers; i++)
                for (int k = 1; k < graph->n_layers; k++)
                        if (is_adapted(&graph->layers[i]) && !is_adapted(&graph->layers[k]) &&
                                graph->layers[k].param_weight >= 0 &&
                                selects(graph->layers[i].name, graph->layers[k].name))
                                return true;
        return false;
}

static json_t *names_of(const struct mfl_graph *graph, bool (*takes)(const struct mfl_layer *))
{
        json_t *names = json_array();
        for (int i = 1; i < graph->n_layers; i++)
                if (takes(&graph->layers[i]))
                        json_array_append_new(names, json_string(graph->layers[i].name));
        return names;
}

/* (a\.b|c): the whole names. */
static json_t *expression_of(const struct mfl_graph *graph, struct mfl_error *err)
{
        size_t room = 2 * MFL_LAYER_NAME_BYTES * (size_t)graph->n_layers + 8, n = 0;
        MFL_CLEANUP_FREE char *text = mfl_malloc(room);
        if (!text) {
                mfl_fail_memory(err, room, "names of layers");
                return NULL;
        }
        text[n++] = '(';
        for (int i = 1; i < graph->n_layers; i++) {
                if (!is_adapted(&graph->layers[i]))
                        continue;
                if (n > 1)
                        text[n++] = '|';
                for (const char *c = graph->layers[i].name; *c; c++) {
                        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                                    (*c >= '0' && *c <= '9') || *c == '_'))
                                text[n++] = '\\';
                        text[n++] = *c;
                }
        }
        text[n++] = ')';
        return json_stringn(text, n);
}

static json_t *config_of(
        const struct adapter *a, const char *base, const struct mfl_layer *first, struct mfl_error *err)
{
        json_t *targets = is_vague(a->graph) ? expression_of(a->graph, err) : names_of(a->graph, is_adapted);
        json_t *whole = names_of(a->graph, is_whole), *config = json_object();
        double alpha = (double)(first->lora_alpha > 0 ? first->lora_alpha : (float)first->lora_rank);
        json_t *number = alpha == floor(alpha) ? json_integer((json_int_t)alpha) : json_real(alpha);
        int bad = json_object_set_new(config, "peft_type", json_string("LORA"));
        bad |= json_object_set_new(config, "task_type", json_null());
        bad |= json_object_set_new(config, "base_model_name_or_path", base ? json_string(base) : json_null());
        bad |= json_object_set_new(config, "r", json_integer(first->lora_rank));
        bad |= json_object_set_new(config, "lora_alpha", number);
        bad |= json_object_set_new(config, "lora_dropout", json_real(0));
        bad |= json_object_set_new(config, "bias", json_string("none"));
        /* GPT-2's Conv1D has its weight as [in][out]. For other layers peft ignores this. */
        bad |= json_object_set_new(
                config, "fan_in_fan_out", json_boolean(a->job->model.from.transposed.n > 0));
        bad |= json_object_set_new(config, "inference_mode", json_true());
        bad |= json_object_set_new(config, "target_modules", targets);
        if (json_array_size(whole))
                bad |= json_object_set(config, "modules_to_save", whole);
        else
                bad |= json_object_set_new(config, "modules_to_save", json_null());
        json_decref(whole);
        if (bad) {
                mfl_fail_memory(err, 0, "adapter_config.json");
                json_decref(config);
                return NULL;
        }
        return config;
}

static int write_config(const struct adapter *a, const char *dir, const char *base,
        const struct mfl_layer *first, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/adapter_config.json", dir);
        json_t *config = path ? config_of(a, base, first, err) : NULL;
        char *text = json_dumps(config, JSON_INDENT(2));
        struct mfl_fs_file file = {.fd = -1};
        int r = text ? mfl_fs_begin(&file, path, err) : mfl_fail_memory(err, 4096, "a file");
        bool open = !r;
        if (!r)
                r = mfl_fs_write(&file, text, strlen(text), err);
        if (!r)
                r = mfl_fs_commit(&file, err);
        else if (open)
                mfl_fs_abort(&file);
        free(text);
        json_decref(config);
        return r;
}

static int write_tensors(struct adapter *a, const char *dir, struct mfl_error *err)
{
        static const struct mfl_st_meta meta[] = {{"format", "pt"}};
        struct mfl_fs_file file = {.fd = -1};
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/adapter_model.safetensors", dir);
        for (int t = 0; t < a->graph->n_params; t++) {
                const struct mfl_param *param = &a->graph->params[t];
                const struct mfl_layer *layer = &a->graph->layers[param->layer];
                if (is_adapted(layer) && (t == layer->param_weight2 || t == layer->param_bias2))
                        add(a, param, ".weight");
                else if (is_whole(layer))
                        add(a, param, "");
        }
        int r = path ? mfl_fs_begin(&file, path, err) : mfl_fail_memory(err, strlen(dir), "a file name");
        if (r)
                return r;
        r = mfl_st_write(file.fd, path, a->tensors, a->n, meta, 1, err);
        if (!r)
                return mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

int mfl_peft_write(const char *dir, const char *base, const struct mfl_job *job,
        const struct mfl_graph *graph, const float *params, struct mfl_error *err)
{
        size_t n = (size_t)graph->n_params;
        const struct mfl_layer *first = NULL;
        struct adapter a = {.job = job, .graph = graph, .params = params};
        int r = check(graph, &first, err);
        if (r)
                return r;
        if ((r = mfl_fs_mkdirs(dir, 0777, err)))
                return r;
        a.names = mfl_calloc(n, sizeof *a.names);
        a.tensors = mfl_calloc(n, sizeof *a.tensors);
        if (!a.names || !a.tensors)
                r = mfl_fail_memory(err, n * (sizeof *a.names + sizeof *a.tensors), "a table of tensors");
        if (!r)
                r = write_tensors(&a, dir, err);
        if (!r)
                r = write_config(&a, dir, base, first, err);
        free(a.names);
        free(a.tensors);
        return r;
}
