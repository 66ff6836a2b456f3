/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/job/tensors.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/model/safetensors.h"
#include "common/settings/yaml.h"
#include "common/settings/yaml_edit.h"

/* A list of patterns, or one. */
static bool is_unused(const struct mfl_yaml_node *unused, const char *name)
{
        if (unused && unused->type == MFL_YAML_SCALAR)
                return mfl_glob(unused->text, name);
        for (const struct mfl_yaml_node *n = unused ? unused->first : NULL; n; n = n->next)
                if (n->type == MFL_YAML_SCALAR && mfl_glob(n->text, name))
                        return true;
        return mfl_glob("*num_batches_tracked", name); /* PyTorch's counter of batches, which nothing reads */
}

static int check_tensor(
        const char *path, const struct mfl_st_tensor *t, const char *dtype, struct mfl_error *err)
{
        bool floats = !strcmp(dtype, "F32") || !strcmp(dtype, "F16") || !strcmp(dtype, "BF16");
        if (strpbrk(t->name, "'\n"))
                return mfl_fail(err, MFL_INVALID, "%s: tensor %.80s: a name has no quotes and is one line",
                        path, t->name);
        if (floats && strlen(t->name) < MFL_TENSOR_NAME_BYTES && t->count)
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "%s: tensor %.100s %s: leave it out, or name it under model.initial.unused", path, t->name,
                !floats    ? "is not of floats, and only floats are trained"
                : t->count ? "has a name of more than 207 bytes"
                           : "is empty");
}

/* "[['conv1.weight', 32, 1, 5, 5], ...]" */
static int list_tensors(const struct mfl_st_file *st, const char *path, const struct mfl_yaml_node *unused,
        char **ret_list, struct mfl_error *err)
{
        char *list = NULL;
        size_t bytes;
        int r = 0, n = 0;
        FILE *out = open_memstream(&list, &bytes);
        if (!out)
                return mfl_fail_memory(err, 0, "a list of tensors");
        for (int i = 0; i < mfl_st_count_all(st) && !r; i++) {
                const char *dtype;
                const struct mfl_st_tensor *t = mfl_st_any_at(st, i, &dtype);
                if (is_unused(unused, t->name))
                        continue;
                r = check_tensor(path, t, dtype, err);
                fprintf(out, "%s['%s'", n++ ? ", " : "[", t->name);
                for (int d = 0; d < t->shape.rank; d++)
                        fprintf(out, ", %" PRId64, t->shape.dim[d]);
                fputc(']', out);
        }
        fputc(']', out);
        if (fclose(out) && !r)
                r = mfl_fail_memory(err, bytes, "a list of tensors");
        if (!r && !n)
                r = mfl_fail(err, MFL_INVALID, "%s: has no tensors to train", path);
        if (r)
                free(list);
        else
                *ret_list = list;
        return r;
}

static const struct mfl_yaml_node *find(const struct mfl_yaml_node *node, const char *key)
{
        return node ? mfl_yaml_find(node, key) : NULL;
}

static int add_tensors(const char *text, const char *file, const char *path,
        const struct mfl_yaml_node *unused, char **ret_text, struct mfl_error *err)
{
        struct mfl_st_file *st;
        MFL_CLEANUP_FREE char *list = NULL;
        int r = mfl_st_open(path, &st, err);
        if (r == MFL_NOT_FOUND)
                return mfl_fail(err, MFL_INVALID,
                        "%s: model.initial: no file %.300s; it is looked for from where mfl runs", file,
                        path);
        if (r)
                return r > 0 ? MFL_INVALID : r;
        r = list_tensors(st, path, unused, &list, err);
        mfl_st_close(st);
        return r ? r : mfl_yaml_set(text, file, "model.tensors", list, ret_text, err);
}

int mfl_tensors_job_read(const char *text, size_t n, const char *file, char **ret_text, struct mfl_error *err)
{
        const struct mfl_yaml_limits limits = {.bytes_max = 256 * 1024, .depth_max = 16, .nodes_max = 65536};
        struct mfl_yaml_doc *doc;
        *ret_text = NULL;
        if (mfl_yaml_parse(text, n, file, &limits, &doc, err))
                return 0; /* the job's own reader says what is wrong */
        const struct mfl_yaml_node *root = mfl_yaml_root(doc), *model = find(root, "model");
        const struct mfl_yaml_node *initial = find(model, "initial"), *path = initial;
        if (initial && initial->type == MFL_YAML_MAPPING)
                path = find(initial, "file");
        bool wanted = find(find(root, "training"), "program") && !find(model, "tensors") &&
                      !find(model, "layers") && !find(model, "preset") && path &&
                      path->type == MFL_YAML_SCALAR;
        int r = wanted ? add_tensors(text, file, path->text, find(initial, "unused"), ret_text, err) : 0;
        mfl_yaml_free(doc);
        return r;
}
