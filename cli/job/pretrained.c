/* SPDX-License-Identifier: Apache-2.0 */
/* Initial params from files with the names of Hugging Face.
 *
 * 1. open the file, or all shards of an index; 2. list their tensors by name; 3. find each tensor of the model;
 * 4. what is missing or unused without permission is an error; 5. convert, and turn what is stored transposed.
 * Fails when: a file is missing or is not of its format; two shards have one name; names or shapes do not match.
 */
#include "cli/job/pretrained.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>

#include "common/base/fs.h"
#include "common/model/safetensors.h"

#define SHARDS_MAX 1024
#define INDEX_BYTES_MAX ((size_t)64 << 20)

/* A tensor of one of the files. */
struct source {
        const char *name, *dtype;
        const struct mfl_st_tensor *tensor;
        const struct mfl_st_file *file;
        int i;
        bool used;
};

struct pretrained {
        const struct mfl_job *job;
        const struct mfl_graph *graph;
        const float *start;
        const char *parts;
        char path[4096];
        int n_files;
        struct mfl_st_file **files;
        size_t n;
        struct source *sources; /* by name */
};

/* A list in a message, which is cut when it is too long. */
struct list {
        char text[224];
        unsigned n;
};

static void list_add(struct list *list, const char *name)
{
        size_t used = strlen(list->text);
        if (used + strlen(name) + 8 < sizeof list->text)
                snprintf(list->text + used, sizeof list->text - used, "%s%s", used ? ", " : "", name);
        else if (used && list->text[used - 1] != '.')
                snprintf(list->text + used, sizeof list->text - used, ", ...");
        list->n++;
}

/* ---- files ---- */

static int open_one(struct pretrained *p, const char *path, struct mfl_error *err)
{
        int r = mfl_st_open(path, &p->files[p->n_files], err);
        p->n_files += !r;
        return r;
}

/* The shards lie beside the index. Their names come from a file: they must be plain. */
static int open_shards(struct pretrained *p, const json_t *map, struct mfl_error *err)
{
        MFL_CLEANUP_FREE const char **seen = mfl_calloc(SHARDS_MAX, sizeof *seen);
        const char *name, *slash = strrchr(p->path, '/');
        json_t *value;
        if (!seen)
                return mfl_fail_memory(err, SHARDS_MAX * sizeof *seen, "shards");
        json_object_foreach((json_t *)(uintptr_t)map, name, value)
        {
                const char *shard = json_string_value(value);
                char path[sizeof p->path + 256];
                int at = 0, r;
                if (!shard || !*shard || strchr(shard, '/') || strlen(shard) > 255)
                        return mfl_fail(err, MFL_INVALID,
                                "%s: weight_map: the place of %.120s is not a file name", p->path, name);
                while (at < p->n_files && strcmp(seen[at], shard))
                        at++;
                if (at < p->n_files)
                        continue;
                if (at == SHARDS_MAX)
                        return mfl_fail(err, MFL_INVALID, "%s: more than %d shards", p->path, SHARDS_MAX);
                snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - p->path) + 1 : 0, p->path, shard);
                seen[at] = shard;
                if ((r = open_one(p, path, err)))
                        return r;
        }
        return 0;
}

static int open_index(struct pretrained *p, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = NULL;
        size_t bytes;
        json_error_t why;
        int r = mfl_fs_read(p->path, INDEX_BYTES_MAX, &text, &bytes, err);
        if (r)
                return r;
        json_t *index = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
        const json_t *map = json_object_get(index, "weight_map");
        r = json_object_size(map)
                    ? open_shards(p, map, err)
                    : mfl_fail(err, MFL_INVALID, "%s: not an index of shards: it has no weight_map", p->path);
        json_decref(index);
        return r;
}

static bool is_folder(const char *path)
{
        struct stat st;
        return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static int open_files(struct pretrained *p, struct mfl_error *err)
{
        struct stat st;
        p->files = mfl_calloc(SHARDS_MAX + 1, sizeof *p->files);
        if (!p->files)
                return mfl_fail_memory(err, SHARDS_MAX * sizeof *p->files, "shards");
        mfl_strcpy(p->path, sizeof p->path, p->job->model.initial);
        if (is_folder(p->path)) {
                mfl_snprintf(p->path, sizeof p->path, "%s/model.safetensors", p->job->model.initial);
                if (stat(p->path, &st))
                        mfl_snprintf(p->path, sizeof p->path, "%s/model.safetensors.index.json",
                                p->job->model.initial);
        }
        size_t n = strlen(p->path);
        return n > 5 && !strcmp(p->path + n - 5, ".json") ? open_index(p, err) : open_one(p, p->path, err);
}

static int compare_sources(const void *a, const void *b)
{
        return strcmp(((const struct source *)a)->name, ((const struct source *)b)->name);
}

static int list_sources(struct pretrained *p, struct mfl_error *err)
{
        size_t n = 0;
        for (int f = 0; f < p->n_files; f++)
                n += (size_t)mfl_st_count_all(p->files[f]);
        p->sources = mfl_calloc(n + 1, sizeof *p->sources);
        if (!p->sources)
                return mfl_fail_memory(err, n * sizeof *p->sources, "a table of tensors");
        for (int f = 0; f < p->n_files; f++)
                for (int i = 0; i < mfl_st_count_all(p->files[f]); i++) {
                        struct source *s = &p->sources[p->n++];
                        s->tensor = mfl_st_any_at(p->files[f], i, &s->dtype);
                        s->name = s->tensor->name;
                        s->file = p->files[f];
                        s->i = i;
                }
        qsort(p->sources, p->n, sizeof *p->sources, compare_sources);
        for (size_t i = 1; i < p->n; i++)
                if (!strcmp(p->sources[i - 1].name, p->sources[i].name))
                        return mfl_fail(err, MFL_INVALID, "%s: two shards have tensor %.120s", p->path,
                                p->sources[i].name);
        return 0;
}

/* ---- names ---- */

static struct source *find_name(const struct pretrained *p, const char *prefix, const char *name)
{
        char text[256];
        struct source key = {.name = text};
        if (strlen(prefix) + strlen(name) >= sizeof text)
                return NULL;
        mfl_snprintf(text, sizeof text, "%s%s", prefix, name);
        return p->n ? bsearch(&key, p->sources, p->n, sizeof *p->sources, compare_sources) : NULL;
}

/* The one place that knows how names of files become names of models. *ret_n: how many of the file's tensors it could
 * be; only 1 is right. */
static struct source *find_source(
        const struct pretrained *p, const char *name, const char *prefix, int *ret_n)
{
        size_t n = strlen(prefix);
        struct source *found = NULL, *each[3] = {NULL};
        *ret_n = 0;
        each[0] = find_name(p, "", name);
        if (n)
                each[1] = find_name(p, prefix, name);
        if (n && !strncmp(name, prefix, n))
                each[2] = find_name(p, "", name + n);
        for (int i = 0; i < 3; i++)
                if (each[i]) {
                        found = each[i];
                        ++*ret_n;
                }
        return found;
}

/* A shared tensor may be there under another layer's name alone. */
static struct source *find_alias(const struct pretrained *p, int param, const char *prefix, int *ret_n)
{
        struct source *found = NULL;
        for (int k = 0; !found && k < p->graph->n_aliases; k++)
                if (p->graph->aliases[k].param == param)
                        found = find_source(p, p->graph->aliases[k].name, prefix, ret_n);
        return found;
}

static struct source *find_param(
        const struct pretrained *p, const struct mfl_param *param, const char *prefix, int *ret_n)
{
        const struct mfl_layer *layer = &p->graph->layers[param->layer];
        struct source *found = find_source(p, param->name, prefix, ret_n);
        if (!found)
                found = find_alias(p, (int)(param - p->graph->params), prefix, ret_n);
        bool norm = layer->op == MFL_OP_LAYERNORM || layer->op == MFL_OP_BATCHNORM ||
                    layer->op == MFL_OP_GROUPNORM;
        int index = (int)(param - p->graph->params);
        if (found || !norm || (index != layer->param_weight && index != layer->param_bias))
                return found;
        char name[sizeof layer->name + 8];
        snprintf(name, sizeof name, "%s.%s", layer->name, index == layer->param_weight ? "gamma" : "beta");
        return find_source(p, name, prefix, ret_n);
}

static bool matches(const struct mfl_job_globs *globs, const char *name)
{
        for (uint32_t i = 0; i < globs->n; i++)
                if (mfl_glob(globs->v[i], name))
                        return true;
        return false;
}

static bool is_adapter(const struct mfl_graph *graph, int t)
{
        const struct mfl_layer *layer = &graph->layers[graph->params[t].layer];
        return layer->op == MFL_OP_DENSE && layer->lora_rank &&
               (t == layer->param_weight2 || t == layer->param_bias2);
}

/* A LoRA job starts from a file of the model without adapters, or from a pulled model, which has all of them. */
static bool lacks_adapters(const struct pretrained *p, const char *prefix)
{
        int n;
        for (int t = 0; t < p->graph->n_params; t++)
                if (is_adapter(p->graph, t) && find_source(p, p->graph->params[t].name, prefix, &n))
                        return false;
        return true;
}

static bool ends_with(const char *name, const char *suffix)
{
        size_t n = strlen(name), m = strlen(suffix);
        return n >= m && !strcmp(name + n - m, suffix) && (n == m || name[n - m - 1] == '.');
}

/* State that files keep beside the weights, and that holds none. */
static bool is_state(const struct source *s)
{
        static const char *const names[] = {
                "num_batches_tracked", "position_ids", "inv_freq", "attn.masked_bias"};
        const struct mfl_shape *shape = &s->tensor->shape;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(names); i++)
                if (ends_with(s->name, names[i]))
                        return true;
        if (strchr(s->name, '/'))
                return true;
        return ends_with(s->name, "attn.bias") && shape->rank == 4 && shape->dim[0] == 1 &&
               shape->dim[1] == 1 && shape->dim[2] == shape->dim[3];
}

/* A prefix with which most of what is missing would be found. */
static bool suggest_prefix(
        const struct pretrained *p, const struct mfl_param *missing, char *text, size_t bytes)
{
        int n;
        for (size_t i = 0; i < p->n; i++) {
                const char *a = p->sources[i].name, *b = missing->name;
                const char *longer = strlen(a) > strlen(b) ? a : b, *shorter = longer == a ? b : a;
                size_t extra = strlen(longer) - strlen(shorter);
                unsigned found = 0, lost = 0;
                if (!extra || extra >= bytes || longer[extra - 1] != '.' || strcmp(longer + extra, shorter))
                        continue;
                mfl_snprintf(text, bytes, "%.*s", (int)extra, longer);
                for (int t = 0; t < p->graph->n_params; t++)
                        if (!find_param(p, &p->graph->params[t], "", &n))
                                *(find_param(p, &p->graph->params[t], text, &n) ? &found : &lost) += 1;
                if (found > lost)
                        return true;
        }
        return false;
}

static int fail_names(const struct pretrained *p, const struct list *missing, const struct list *unused,
        const struct mfl_param *first, struct mfl_error *err)
{
        char prefix[MFL_TENSOR_NAME_BYTES], hint[480] = "";
        if (first && !p->job->model.from.prefix && suggest_prefix(p, first, prefix, sizeof prefix))
                mfl_snprintf(hint, sizeof hint, "; write model.initial: {file: ..., prefix: %s}", prefix);
        else if (missing->n && unused->n)
                mfl_snprintf(hint, sizeof hint,
                        "; name them under model.initial.missing and .unused if that is right. If the "
                        "library renames tensors when it "
                        "loads the file (transformers 5), write the loaded module's state_dict() with "
                        "safetensors, or export that module "
                        "with mfl_export, which takes its weights along");
        else
                mfl_snprintf(hint, sizeof hint, "; name %s under model.initial.%s if that is right",
                        missing->n + unused->n == 1 ? "it" : "them", missing->n ? "missing" : "unused");
        if (missing->n && unused->n)
                return mfl_fail(err, MFL_INVALID,
                        "%.100s: %u tensor%s of the model %s missing (%s); the model has no %s%s", p->path,
                        missing->n, missing->n == 1 ? "" : "s", missing->n == 1 ? "is" : "are", missing->text,
                        unused->text, hint);
        if (missing->n)
                return mfl_fail(err, MFL_INVALID, "%.100s: tensor%s %s of the model %s missing%s", p->path,
                        missing->n == 1 ? "" : "s", missing->text, missing->n == 1 ? "is" : "are", hint);
        return mfl_fail(err, MFL_INVALID, "%.100s: the model has no tensor%s %s%s", p->path,
                unused->n == 1 ? "" : "s", unused->text, hint);
}

static int fail_ambiguous(const struct pretrained *p, const struct mfl_param *param, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "%.100s: tensor %s of the model is in the file twice, with and without the prefix '%s'",
                p->path, param->name, p->job->model.from.prefix);
}

static void note(char *notes, size_t bytes, const char *path, const char *what, const struct list *list)
{
        size_t used = strlen(notes);
        if (list->n)
                mfl_snprintf(notes + used, bytes - used, "%.100s: %u tensor%s %s: %s\n", path, list->n,
                        list->n == 1 ? "" : "s", what, list->text);
}

/* The other names of tensor t hold the same numbers. */
static int use_aliases(const struct pretrained *p, int t, const struct source *place, const char *prefix,
        struct mfl_error *err)
{
        for (int k = 0; k < p->graph->n_aliases; k++) {
                const struct mfl_alias *alias = &p->graph->aliases[k];
                const struct mfl_st_tensor *a = place->tensor, *b;
                int n;
                struct source *other = alias->param == t ? find_source(p, alias->name, prefix, &n) : NULL;
                if (!other || other == place)
                        continue;
                b = other->tensor;
                if (strcmp(place->dtype, other->dtype) || !mfl_shape_equal(&a->shape, &b->shape) ||
                        !mfl_st_equal(place->file, place->i, other->file, other->i))
                        return mfl_fail(err, MFL_INVALID,
                                "%.100s: tensors %.120s and %.120s differ, but the model shares one tensor "
                                "under "
                                "both names",
                                p->path, place->name, other->name);
                other->used = true;
        }
        return 0;
}

/* A constant of an ONNX file that no module's state has: a layer without a name, or what a norm whose scale and shift are layers
 * of their own multiplies and adds. */
static bool is_constant(const struct mfl_graph *graph, int t)
{
        const struct mfl_layer *layer = &graph->layers[graph->params[t].layer];
        const char *end = strrchr(layer->name, '.');
        return layer->frozen && !mfl_param_is_statistics(&graph->params[t]) &&
               (mfl_layer_is_unnamed(layer) ||
                       (layer->op == MFL_OP_BATCHNORM && end && !strcmp(end, ".statistics")));
}

/* places: of each tensor of the model; NULL: it gets its start values. */
static int find_all(
        struct pretrained *p, struct source **places, char *notes, size_t bytes, struct mfl_error *err)
{
        const char *prefix = p->job->model.from.prefix ? p->job->model.from.prefix : "";
        struct list missing = {""}, unused = {""}, fresh = {""}, left = {""};
        const struct mfl_param *first = NULL;
        bool base = lacks_adapters(p, prefix);
        for (int t = 0; t < p->graph->n_params; t++) {
                const struct mfl_param *param = &p->graph->params[t];
                int n;
                places[t] = find_param(p, param, prefix, &n);
                if (n > 1)
                        return fail_ambiguous(p, param, err);
                if (places[t] && places[t]->used)
                        return mfl_fail(err, MFL_INVALID,
                                "%.100s: tensor %.120s would be two tensors of the model", p->path,
                                places[t]->name);
                if (places[t]) {
                        places[t]->used = true;
                        int r = use_aliases(p, t, places[t], prefix, err);
                        if (r)
                                return r;
                } else if (matches(&p->job->model.from.missing, param->name)) {
                        list_add(&fresh, param->name);
                } else if (p->start && is_constant(p->graph, t)) {
                        continue;
                } else if (!base || !is_adapter(p->graph, t)) {
                        list_add(&missing, param->name);
                        first = first ? first : param;
                }
        }
        for (size_t i = 0; i < p->n; i++)
                if (!p->sources[i].used && !is_state(&p->sources[i]))
                        list_add(matches(&p->job->model.from.unused, p->sources[i].name) ? &left : &unused,
                                p->sources[i].name);
        if (missing.n || unused.n)
                return fail_names(p, &missing, &unused, first, err);
        note(notes, bytes, p->path, "of the model not in the file, with start values", &fresh);
        note(notes, bytes, p->path, "not used", &left);
        return 0;
}

/* ---- values ---- */

/* Whether a matrix is stored [in][out]; *ret_said: a pattern says so or denies it. */
static bool is_transposed(const struct pretrained *p, const char *name, bool *ret_said)
{
        const struct mfl_job_globs *globs = &p->job->model.from.transposed;
        bool yes = false;
        *ret_said = false;
        for (uint32_t i = 0; i < globs->n; i++) {
                bool no = globs->v[i][0] == '!';
                if (!mfl_glob(globs->v[i] + no, name))
                        continue;
                *ret_said = true;
                if (no)
                        return false;
                yes = true;
        }
        return yes;
}

/* A parameter as a value has the rank of what it is multiplied with or added to: {1, 24} for {24}. */
static bool has_ones_more(
        const struct mfl_layer *layer, const struct mfl_shape *have, const struct mfl_shape *want)
{
        int at = 0;
        if (layer->op != MFL_OP_WEIGHT)
                return false;
        for (int d = 0; d < want->rank; d++) {
                if (want->dim[d] == 1)
                        continue;
                while (at < have->rank && have->dim[at] == 1)
                        at++;
                if (at == have->rank || have->dim[at++] != want->dim[d])
                        return false;
        }
        while (at < have->rank && have->dim[at] == 1)
                at++;
        return at == have->rank;
}

static int check_shape(const struct pretrained *p, const struct mfl_param *param, const struct source *s,
        bool transposed, bool said, struct mfl_error *err)
{
        const struct mfl_layer *layer = &p->graph->layers[param->layer];
        struct mfl_shape have = s->tensor->shape, turned = have;
        char is[96], wants[96];
        bool matrix = have.rank == 2 && param->shape.rank == 2;
        if (matrix)
                turned = (struct mfl_shape){2, {have.dim[1], have.dim[0]}};
        if (transposed && !matrix)
                return mfl_fail(err, MFL_INVALID,
                        "model.initial.transposed: %s is not a matrix; only matrices can be stored "
                        "transposed",
                        param->name);
        if (p->job->model.from.transposed.n && !said && matrix && layer->op == MFL_OP_DENSE &&
                have.dim[0] == have.dim[1])
                return mfl_fail(err, MFL_INVALID,
                        "%.100s: %s is square, so its shape does not say whether it is stored transposed, as "
                        "others "
                        "are: name it under model.initial.transposed, or '!%s' if it is not",
                        p->path, param->name, param->name);
        if (mfl_shape_equal(transposed ? &turned : &have, &param->shape) ||
                (!transposed && has_ones_more(layer, &have, &param->shape)))
                return 0;
        mfl_shape_text(&have, is, sizeof is);
        mfl_shape_text(&param->shape, wants, sizeof wants);
        if (matrix && !transposed && mfl_shape_equal(&turned, &param->shape))
                return mfl_fail(err, MFL_INVALID,
                        "%.100s: tensor %.120s is %s; the model expects %s: if it is stored transposed "
                        "(Conv1D of "
                        "GPT-2), add '%s' to model.initial.transposed",
                        p->path, s->name, is, wants, param->name);
        return mfl_fail(err, MFL_INVALID, "%.100s: tensor %.120s is %s; the model expects %s%s", p->path,
                s->name, is, wants, transposed ? ", transposed" : "");
}

/* What a line of the parts says behind the name: the child that reads ONNX files has written it, so it is checked. */
static bool read_part(const char *text, uint64_t *ret_first, struct mfl_shape *ret_whole)
{
        struct mfl_shape whole = {.rank = 0};
        int used;
        if (sscanf(text, " %" SCNu64 "%n", ret_first, &used) != 1)
                return false;
        for (text += used; *text == ' '; text += used) {
                if (whole.rank == MFL_SHAPE_RANK_MAX ||
                        sscanf(text, " %" SCNd64 "%n", &whole.dim[whole.rank], &used) != 1)
                        return false;
                whole.rank++;
        }
        *ret_whole = whole;
        return whole.rank > 0;
}

static bool find_part(
        const struct pretrained *p, const char *name, uint64_t *ret_first, struct mfl_shape *ret_whole)
{
        const size_t n = strlen(name);
        for (const char *at = p->parts; at && *at; at += *at == '\n') {
                if (!strncmp(at, name, n) && at[n] == ' ')
                        return read_part(at + n, ret_first, ret_whole);
                at += strcspn(at, "\n");
        }
        return false;
}

/* The file has all positions of a table, of which the model has some. *ret_taken: so it is. A tensor of another shape, or one that
 * is said to be stored transposed, is not that table, though it may have as many elements. */
static int take_part(struct pretrained *p, const struct mfl_param *param, const struct source *s,
        bool transposed, float *params, bool *ret_taken, struct mfl_error *err)
{
        uint64_t first;
        struct mfl_shape whole;
        const uint64_t n = (uint64_t)mfl_shape_count(&s->tensor->shape);
        *ret_taken = !transposed && find_part(p, param->name, &first, &whole) &&
                     has_ones_more(&p->graph->layers[param->layer], &s->tensor->shape, &whole) &&
                     param->count <= n && first <= n - param->count;
        if (!*ret_taken)
                return 0;
        MFL_CLEANUP_FREE float *stored = mfl_malloc(n * sizeof *stored + 1);
        if (!stored)
                return mfl_fail_memory(err, n * sizeof *stored, "a tensor");
        if (!mfl_st_floats(s->file, s->i, stored))
                return mfl_fail(err, MFL_INVALID,
                        "%.100s: tensor %.120s is %s; F32, F16 and BF16 are supported", p->path, s->name,
                        s->dtype);
        memcpy(params + param->offset, stored + first, param->count * sizeof *stored);
        return 0;
}

static int convert(struct pretrained *p, const struct mfl_param *param, const struct source *s, float *params,
        struct mfl_error *err)
{
        bool taken, said, transposed = is_transposed(p, param->name, &said);
        int r = take_part(p, param, s, transposed, params, &taken, err);
        if (r || taken)
                return r;
        r = check_shape(p, param, s, transposed, said, err);
        if (r)
                return r;
        float *to = params + param->offset;
        MFL_CLEANUP_FREE float *stored = transposed ? mfl_malloc(param->count * sizeof *stored + 1) : NULL;
        if (transposed && !stored)
                return mfl_fail_memory(err, param->count * sizeof *stored, "a tensor");
        if (!mfl_st_floats(s->file, s->i, transposed ? stored : to))
                return mfl_fail(err, MFL_INVALID,
                        "%.100s: tensor %.120s is %s; F32, F16 and BF16 are supported", p->path, s->name,
                        s->dtype);
        int64_t n_out = param->shape.dim[0], n_in = param->shape.dim[1];
        for (int64_t o = 0; transposed && o < n_out; o++)
                for (int64_t i = 0; i < n_in; i++)
                        to[o * n_in + i] = stored[i * n_out + o];
        return 0;
}

static int read_all(struct pretrained *p, float *params, char *notes, size_t bytes, struct mfl_error *err)
{
        size_t n = (size_t)p->graph->n_params;
        MFL_CLEANUP_FREE struct source **places = mfl_calloc(n + 1, sizeof *places);
        if (!places)
                return mfl_fail_memory(err, n * sizeof *places, "a table of tensors");
        int r = open_files(p, err);
        if (!r)
                r = list_sources(p, err);
        if (!r)
                r = find_all(p, places, notes, bytes, err);
        if (!r && p->start)
                memcpy(params, p->start, p->graph->n * sizeof *params);
        else if (!r)
                mfl_graph_init_params(p->graph, p->job->seed, params);
        for (size_t t = 0; !r && t < n; t++)
                if (places[t])
                        r = convert(p, &p->graph->params[t], places[t], params, err);
        return r;
}

int mfl_pretrained_read(const struct mfl_job *job, const struct mfl_graph *graph, const float *start,
        const char *parts, float *params, char *notes, size_t notes_bytes, struct mfl_error *err)
{
        struct pretrained p = {.job = job, .graph = graph, .start = start, .parts = parts};
        int r = read_all(&p, params, notes, notes_bytes, err);
        for (int f = 0; f < p.n_files; f++)
                mfl_st_close(p.files[f]);
        free(p.files);
        free(p.sources);
        return r;
}
