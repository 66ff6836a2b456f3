/* SPDX-License-Identifier: Apache-2.0 */
/* Reads safetensors files.
 *
 * 1. open, map; 2. length and JSON header; 3. one entry per tensor; 4. sort by offset: no gap, no overlap,
 * the last one ends where the file ends. Fails when: there is no such file (MFL_NOT_FOUND); it can't be
 * opened or mapped (-errno); memory is out; a byte of it breaks the format (MFL_INVALID). A file that another
 * process cuts while it is mapped raises SIGBUS: files are replaced by rename, never rewritten.
 */
#include "common/model/safetensors.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES_MAX (16u << 20)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor data are read in place");

struct entry {
        struct mfl_st_tensor tensor; /* data is NULL unless F32 */
        const char *dtype;
        uint64_t begin, end;
};

struct mfl_st_file {
        char *path;
        void *map; /* NULL: the bytes are the caller's */
        size_t map_bytes;
        const unsigned char *data; /* after the header */
        uint64_t data_bytes;
        json_t *header;
        json_t *meta; /* borrowed from header; may be NULL */
        int n, n_f32;
        struct entry *entries; /* F32 first, each kind in the order of the file */
        struct entry **by_name;
};

static const struct {
        const char *name;
        unsigned bytes;
} dtypes[] = {
        {"F32", 4},
        {"F64", 8},
        {"F16", 2},
        {"BF16", 2},
        {"F8_E4M3", 1},
        {"F8_E5M2", 1},
        {"I64", 8},
        {"I32", 4},
        {"I16", 2},
        {"I8", 1},
        {"U64", 8},
        {"U32", 4},
        {"U16", 2},
        {"U8", 1},
        {"BOOL", 1},
};

/* Names appear in messages and on terminals. */
static bool is_printable(const char *s)
{
        for (; *s; s++) {
                if ((unsigned char)*s < 0x20 || *s == 0x7f)
                        return false;
        }
        return true;
}

static int fail_tensor(struct mfl_st_file *file, const char *name, struct mfl_error *err, const char *what)
{
        return mfl_fail(err, MFL_INVALID, "%s: tensor %.120s: %s", file->path, name, what);
}

static bool get_u64(const json_t *value, uint64_t *ret)
{
        if (!json_is_integer(value) || json_integer_value(value) < 0)
                return false;
        *ret = (uint64_t)json_integer_value(value);
        return true;
}

/* Shapes with more than four dimensions are kept as one dimension; only for tensors other than F32. */
static int read_shape(
        struct mfl_st_file *file, struct entry *entry, const json_t *shape, struct mfl_error *err)
{
        struct mfl_st_tensor *tensor = &entry->tensor;
        size_t rank = json_array_size(shape);
        uint64_t count = 1;
        if (!json_is_array(shape))
                return fail_tensor(file, tensor->name, err, "its shape must be a list of whole numbers");
        for (size_t i = 0; i < rank; i++) {
                uint64_t dim;
                if (!get_u64(json_array_get(shape, i), &dim))
                        return fail_tensor(
                                file, tensor->name, err, "its shape must be a list of whole numbers");
                if (__builtin_mul_overflow(count, dim, &count) || count > INT64_MAX)
                        return fail_tensor(file, tensor->name, err, "its shape is too large");
                if (i < MFL_SHAPE_RANK_MAX)
                        tensor->shape.dim[i] = (int64_t)dim;
        }
        tensor->shape.rank = (int)rank;
        if (rank > MFL_SHAPE_RANK_MAX) {
                if (!strcmp(entry->dtype, "F32"))
                        return fail_tensor(file, tensor->name, err, "it has more than 4 dimensions");
                tensor->shape = (struct mfl_shape){.rank = 1, .dim = {(int64_t)count}};
        }
        tensor->count = count;
        return 0;
}

static int read_entry(struct mfl_st_file *file, const char *name, const json_t *info, struct entry *entry,
        struct mfl_error *err)
{
        const json_t *offsets = json_object_get(info, "data_offsets");
        const char *dtype = json_string_value(json_object_get(info, "dtype"));
        unsigned i = 0;
        uint64_t bytes;
        int r;

        if (!is_printable(name))
                return mfl_fail(err, MFL_INVALID, "%s: a tensor's name has a control character", file->path);
        entry->tensor.name = name;
        if (json_object_size(info) != 3 || !dtype || !json_object_get(info, "shape") || !offsets)
                return fail_tensor(
                        file, name, err, "must have dtype, shape and data_offsets, and nothing else");
        while (i < MFL_ARRAY_SIZE(dtypes) && strcmp(dtypes[i].name, dtype))
                i++;
        if (i == MFL_ARRAY_SIZE(dtypes))
                return fail_tensor(file, name, err, "its dtype is unknown");
        entry->dtype = dtypes[i].name;
        if ((r = read_shape(file, entry, json_object_get(info, "shape"), err)))
                return r;
        if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
                !get_u64(json_array_get(offsets, 0), &entry->begin) ||
                !get_u64(json_array_get(offsets, 1), &entry->end))
                return fail_tensor(file, name, err, "its data_offsets must be two whole numbers");
        if (entry->begin > entry->end || entry->end > file->data_bytes)
                return mfl_fail(err, MFL_INVALID,
                        "%s: tensor %.120s: bytes %llu to %llu are outside the file's %llu", file->path, name,
                        (unsigned long long)entry->begin, (unsigned long long)entry->end,
                        (unsigned long long)file->data_bytes);
        if (__builtin_mul_overflow(entry->tensor.count, dtypes[i].bytes, &bytes) ||
                bytes != entry->end - entry->begin)
                return mfl_fail(err, MFL_INVALID, "%s: tensor %.120s: %llu bytes for %llu elements of %s",
                        file->path, name, (unsigned long long)(entry->end - entry->begin),
                        (unsigned long long)entry->tensor.count, entry->dtype);
        if (i == 0) {
                const void *data = file->data + entry->begin;
                if ((uintptr_t)data % sizeof(float))
                        return fail_tensor(file, name, err, "its data are not aligned to 4 bytes");
                entry->tensor.data = data;
        }
        return 0;
}

static int check_meta(struct mfl_st_file *file, json_t *meta, struct mfl_error *err)
{
        const char *key;
        json_t *value;
        if (!json_is_object(meta))
                return mfl_fail(
                        err, MFL_INVALID, "%s: __metadata__ must be an object of strings", file->path);
        json_object_foreach(meta, key, value)
        {
                if (!json_is_string(value))
                        return mfl_fail(err, MFL_INVALID, "%s: __metadata__ must be an object of strings",
                                file->path);
        }
        file->meta = meta;
        return 0;
}

static int compare_places(const void *a, const void *b)
{
        const struct entry *x = *(struct entry *const *)a, *y = *(struct entry *const *)b;
        if (x->begin != y->begin)
                return x->begin < y->begin ? -1 : 1;
        return x->end < y->end ? -1 : x->end > y->end;
}

static int compare_names(const void *a, const void *b)
{
        const struct entry *x = *(struct entry *const *)a, *y = *(struct entry *const *)b;
        return strcmp(x->tensor.name, y->tensor.name);
}

/* Uses by_name for the order of places before it is sorted by name. */
static int check_places(struct mfl_st_file *file, struct mfl_error *err)
{
        uint64_t end = 0;
        for (int i = 0; i < file->n; i++)
                file->by_name[i] = &file->entries[i];
        if (file->n)
                qsort(file->by_name, (size_t)file->n, sizeof *file->by_name, compare_places);
        for (int i = 0; i < file->n; i++) {
                const struct entry *entry = file->by_name[i];
                if (entry->begin != end)
                        return mfl_fail(err, MFL_INVALID,
                                "%s: tensor %.120s: starts at byte %llu; expected %llu (%s)", file->path,
                                entry->tensor.name, (unsigned long long)entry->begin, (unsigned long long)end,
                                entry->begin < end ? "overlap" : "gap");
                end = entry->end;
        }
        if (end != file->data_bytes)
                return mfl_fail(err, MFL_INVALID, "%s: %llu bytes after the last tensor", file->path,
                        (unsigned long long)(file->data_bytes - end));
        if (file->n)
                qsort(file->by_name, (size_t)file->n, sizeof *file->by_name, compare_names);
        return 0;
}

static int read_tensors(struct mfl_st_file *file, struct mfl_error *err)
{
        size_t n = json_object_size(file->header);
        const char *key;
        json_t *value;
        int r;
        file->entries = mfl_calloc(n, sizeof *file->entries);
        file->by_name = mfl_calloc(n, sizeof *file->by_name);
        if (!file->entries || !file->by_name)
                return mfl_fail_memory(err, n * sizeof *file->entries, "a table of tensors");
        for (int pass = 0; pass < 2; pass++) {
                json_object_foreach(file->header, key, value)
                {
                        const char *dtype = json_string_value(json_object_get(value, "dtype"));
                        if ((dtype && !strcmp(dtype, "F32")) != (pass == 0))
                                continue;
                        if (!strcmp(key, "__metadata__"))
                                r = check_meta(file, value, err);
                        else
                                r = read_entry(file, key, value, &file->entries[file->n++], err);
                        if (r)
                                return r;
                }
                if (pass == 0)
                        file->n_f32 = file->n;
        }
        return check_places(file, err);
}

static int read_header(
        struct mfl_st_file *file, const unsigned char *bytes, size_t n_bytes, struct mfl_error *err)
{
        uint64_t length;
        json_error_t json_err;
        if (n_bytes < 8)
                return mfl_fail(err, MFL_INVALID, "%s: %zu bytes are too few for a safetensors file",
                        file->path, n_bytes);
        memcpy(&length, bytes, 8);
        if (length > HEADER_BYTES_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "%s: a header of %llu bytes; the limit is %u: it is no safetensors file, or damaged",
                        file->path, (unsigned long long)length, HEADER_BYTES_MAX);
        if (length > n_bytes - 8)
                return mfl_fail(err, MFL_INVALID, "%s: truncated: a header of %llu bytes in a file of %zu",
                        file->path, (unsigned long long)length, n_bytes);
        file->data = bytes + 8 + length;
        file->data_bytes = n_bytes - 8 - length;
        file->header = json_loadb((const char *)bytes + 8, (size_t)length, JSON_REJECT_DUPLICATES, &json_err);
        if (!file->header && json_error_code(&json_err) == json_error_out_of_memory)
                return mfl_fail_memory(err, (size_t)length, "a safetensors header");
        if (!file->header)
                return mfl_fail(err, MFL_INVALID, "%s: the header is not JSON: %s", file->path,
                        is_printable(json_err.text) ? json_err.text : "bad text");
        if (!json_is_object(file->header))
                return mfl_fail(err, MFL_INVALID, "%s: the header must be a JSON object", file->path);
        return read_tensors(file, err);
}

/* Takes over the mapping, also on failure. */
static int open_bytes(const void *bytes, size_t n_bytes, void *map, const char *path,
        struct mfl_st_file **ret_file, struct mfl_error *err)
{
        struct mfl_st_file *file = mfl_calloc(1, sizeof *file);
        if (!file) {
                if (map)
                        munmap(map, n_bytes);
                return mfl_fail_memory(err, sizeof *file, "a safetensors file");
        }
        file->map = map;
        file->map_bytes = n_bytes;
        file->path = mfl_strdup(path);
        int r = file->path ? read_header(file, bytes, n_bytes, err)
                           : mfl_fail_memory(err, strlen(path), "a path");
        if (r) {
                mfl_st_close(file);
                return r;
        }
        *ret_file = file;
        return 0;
}

int mfl_st_parse(const void *bytes, size_t n_bytes, const char *path, struct mfl_st_file **ret_file,
        struct mfl_error *err)
{
        return open_bytes(bytes, n_bytes, NULL, path, ret_file, err);
}

int mfl_st_open(const char *path, struct mfl_st_file **ret_file, struct mfl_error *err)
{
        struct stat st;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 && errno == ENOENT)
                return mfl_fail(err, MFL_NOT_FOUND, "%s: no such file", path);
        if (fd < 0)
                return mfl_fail_errno(err, "open %s", path);
        if (fstat(fd, &st)) {
                int r = mfl_fail_errno(err, "stat %s", path);
                close(fd);
                return r;
        }
        if (!S_ISREG(st.st_mode) || st.st_size < 8) {
                close(fd);
                return mfl_fail(err, MFL_INVALID, "%s: not a safetensors file", path);
        }
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        int saved = errno;
        close(fd);
        errno = saved;
        if (map == MAP_FAILED)
                return mfl_fail_errno(err, "map %s", path);
        return open_bytes(map, (size_t)st.st_size, map, path, ret_file, err);
}

void mfl_st_close(struct mfl_st_file *file)
{
        if (!file)
                return;
        json_decref(file->header);
        if (file->map)
                munmap(file->map, file->map_bytes);
        free(file->entries);
        free(file->by_name);
        free(file->path);
        free(file);
}

int mfl_st_count(const struct mfl_st_file *file)
{
        return file->n_f32;
}

const struct mfl_st_tensor *mfl_st_tensor_at(const struct mfl_st_file *file, int i)
{
        mfl_assert(i >= 0 && i < file->n_f32);
        return &file->entries[i].tensor;
}

static const struct entry *find_entry(const struct mfl_st_file *file, const char *name)
{
        struct entry key = {.tensor.name = name}, *k = &key;
        struct entry **found = NULL;
        if (file->n)
                found = bsearch(&k, file->by_name, (size_t)file->n, sizeof *file->by_name, compare_names);
        return found ? *found : NULL;
}

const struct mfl_st_tensor *mfl_st_find(const struct mfl_st_file *file, const char *name)
{
        const struct entry *entry = find_entry(file, name);
        return entry && entry->tensor.data ? &entry->tensor : NULL;
}

int mfl_st_words(const struct mfl_st_file *file, const char *name, uint64_t count, int64_t *to)
{
        for (int i = 0; i < file->n; i++) {
                const struct entry *entry = &file->entries[i];
                if (strcmp(entry->dtype, "I64") || strcmp(entry->tensor.name, name) ||
                        entry->tensor.count != count)
                        continue;
                memcpy(to, file->data + entry->begin, count * sizeof *to);
                return 0;
        }
        return MFL_NOT_FOUND;
}

const char *mfl_st_meta_get(const struct mfl_st_file *file, const char *key)
{
        return json_string_value(json_object_get(file->meta, key));
}

int mfl_st_count_all(const struct mfl_st_file *file)
{
        return file->n;
}

const struct mfl_st_tensor *mfl_st_any_at(const struct mfl_st_file *file, int i, const char **ret_dtype)
{
        mfl_assert(i >= 0 && i < file->n);
        *ret_dtype = file->entries[i].dtype;
        return &file->entries[i].tensor;
}

/* IEEE 754 binary16; every value is a float. */
static float half_float(uint16_t h)
{
        uint32_t sign = (uint32_t)(h & 0x8000u) << 16, bits;
        unsigned exponent = h >> 10 & 31, fraction = h & 1023;
        if (!exponent)
                return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
        bits = sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | (uint32_t)fraction << 13;
        float v;
        memcpy(&v, &bits, sizeof v);
        return v;
}

bool mfl_st_floats(const struct mfl_st_file *file, int i, float *to)
{
        const struct entry *entry = &file->entries[i];
        const unsigned char *from = file->data + entry->begin;
        bool half = !strcmp(entry->dtype, "F16");
        if (entry->tensor.data)
                memcpy(to, entry->tensor.data, entry->tensor.count * sizeof *to);
        else if (!half && strcmp(entry->dtype, "BF16"))
                return false;
        for (uint64_t k = 0; !entry->tensor.data && k < entry->tensor.count; k++) {
                uint16_t v;
                memcpy(&v, from + 2 * k, sizeof v);
                uint32_t bits = (uint32_t)v << 16;
                memcpy(&to[k], &bits, sizeof bits);
                to[k] = half ? half_float(v) : to[k];
        }
        return true;
}

bool mfl_st_equal(const struct mfl_st_file *file, int i, const struct mfl_st_file *other, int k)
{
        const struct entry *a = &file->entries[i], *b = &other->entries[k];
        return a->end - a->begin == b->end - b->begin &&
               !memcmp(file->data + a->begin, other->data + b->begin, a->end - a->begin);
}

static bool has_param(const struct mfl_graph *graph, const char *name)
{
        return mfl_graph_find_param(graph, name) >= 0;
}

/* PyTorch stores a step counter with the running statistics; it is not needed here. */
static bool is_batch_counter(const struct mfl_graph *graph, const char *name)
{
        static const char suffix[] = ".num_batches_tracked";
        for (int i = 0; i < graph->n_layers; i++) {
                size_t len = strlen(graph->layers[i].name);
                if (graph->layers[i].op == MFL_OP_BATCHNORM && !strncmp(name, graph->layers[i].name, len) &&
                        !strcmp(name + len, suffix))
                        return true;
        }
        return false;
}

/* Looks in both files; the first one that has it counts. */
static const struct entry *find_either(
        const struct mfl_st_file *file, const struct mfl_st_file *rest, const char *name)
{
        const struct entry *entry = find_entry(file, name);
        return entry || !rest ? entry : find_entry(rest, name);
}

/* The tensor under its own name or another; *ret_name: which. NULL: in none of the files. */
static const struct entry *find_param(const struct mfl_st_file *file, const struct mfl_st_file *rest,
        const struct mfl_graph *graph, int param, const char **ret_name)
{
        const struct entry *entry = find_either(file, rest, graph->params[param].name);
        *ret_name = graph->params[param].name;
        for (int k = 0; !entry && k < graph->n_aliases; k++)
                if (graph->aliases[k].param == param &&
                        (entry = find_either(file, rest, graph->aliases[k].name)))
                        *ret_name = graph->aliases[k].name;
        return entry;
}

/* A shared tensor under several names has one content. */
static int check_aliases(const struct mfl_st_file *file, const struct mfl_st_file *rest,
        const struct mfl_graph *graph, int param, struct mfl_error *err)
{
        const char *name;
        const struct entry *entry = find_param(file, rest, graph, param, &name);
        for (int k = 0; k < graph->n_aliases; k++) {
                const struct mfl_alias *alias = &graph->aliases[k];
                const struct entry *other =
                        alias->param == param ? find_either(file, rest, alias->name) : NULL;
                if (!other || other == entry)
                        continue;
                if (!other->tensor.data || !mfl_shape_equal(&other->tensor.shape, &entry->tensor.shape) ||
                        memcmp(other->tensor.data, entry->tensor.data, entry->tensor.count * sizeof(float)) !=
                                0)
                        return mfl_fail(err, MFL_INVALID,
                                "%s: tensors %s and %s differ, but the model shares one tensor under both "
                                "names",
                                file->path, name, alias->name);
        }
        return 0;
}

static int check_param(const struct mfl_st_file *file, const struct mfl_st_file *rest,
        const struct mfl_graph *graph, int i, struct mfl_error *err)
{
        const struct mfl_param *param = &graph->params[i];
        const char *name;
        const struct entry *entry = find_param(file, rest, graph, i, &name);
        char have[96], want[96];
        if (!entry)
                return mfl_fail(
                        err, MFL_INVALID, "%s: tensor %s of the model is missing", file->path, param->name);
        if (!entry->tensor.data)
                return mfl_fail(err, MFL_INVALID, "%s: tensor %s is %s; only F32 is supported", file->path,
                        name, entry->dtype);
        if (!mfl_shape_equal(&entry->tensor.shape, &param->shape))
                return mfl_fail(err, MFL_INVALID, "%s: tensor %s is %s; the model expects %s", file->path,
                        name, mfl_shape_text(&entry->tensor.shape, have, sizeof have),
                        mfl_shape_text(&param->shape, want, sizeof want));
        return param->n_uses > 1 ? check_aliases(file, rest, graph, i, err) : 0;
}

static int check_names(const struct mfl_st_file *file, const struct mfl_graph *graph, struct mfl_error *err)
{
        for (int i = 0; i < file->n; i++) {
                const char *name = file->entries[i].tensor.name;
                if (!strchr(name, '/') && !has_param(graph, name) && !is_batch_counter(graph, name))
                        return mfl_fail(
                                err, MFL_INVALID, "%s: the model has no tensor %.120s", file->path, name);
        }
        return 0;
}

int mfl_st_to_parts(const struct mfl_st_file *file, const struct mfl_st_file *rest,
        const struct mfl_graph *graph, float *frozen, float *moving, struct mfl_error *err)
{
        int r = 0;
        for (int i = 0; i < graph->n_params && !r; i++)
                r = check_param(file, rest, graph, i, err);
        if (!r)
                r = check_names(file, graph, err);
        if (!r && rest)
                r = check_names(rest, graph, err);
        if (r)
                return r;
        for (int i = 0; i < graph->n_params; i++) {
                const struct mfl_param *param = &graph->params[i];
                float *to = i < graph->i_moving ? frozen + param->offset
                                                : moving + (param->offset - graph->n_frozen);
                const char *name;
                memcpy(to, find_param(file, rest, graph, i, &name)->tensor.data, param->count * sizeof *to);
        }
        return 0;
}

int mfl_st_to_params(const struct mfl_st_file *file, const struct mfl_st_file *rest,
        const struct mfl_graph *graph, float *params, struct mfl_error *err)
{
        return mfl_st_to_parts(file, rest, graph, params, params + graph->n_frozen, err);
}

void mfl_st_from_params(const struct mfl_graph *graph, const float *params, struct mfl_st_tensor *tensors)
{
        mfl_st_from_parts(graph, params, params + graph->n_frozen, tensors);
}

void mfl_st_from_parts(const struct mfl_graph *graph, const float *frozen, const float *moving,
        struct mfl_st_tensor *tensors)
{
        for (int i = 0; i < graph->n_params; i++) {
                const struct mfl_param *param = &graph->params[i];
                tensors[i] = (struct mfl_st_tensor){.name = param->name,
                        .shape = param->shape,
                        .data = i < graph->i_moving ? frozen + param->offset
                                                    : moving + (param->offset - graph->n_frozen),
                        .count = param->count};
        }
}

int mfl_st_add_aliases(const struct mfl_graph *graph, struct mfl_st_tensor *tensors)
{
        int n = graph->n_params;
        for (int k = 0; k < graph->n_aliases; k++) {
                if (!graph->aliases[k].written)
                        continue;
                tensors[n] = tensors[graph->aliases[k].param];
                tensors[n++].name = graph->aliases[k].name;
        }
        return n;
}
