/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the metadata of an ONNX file. Every number and length is checked here, before it is used. */
#include <math.h>
#include <stddef.h>

#include "cli/proof/described_internal.h"

#define PARAMS_MAX 65536
#define SAMPLES_MAX 4096 /* of one parameter */
#define OUTPUTS_MAX 65536
#define MODULES_MAX 4096

static void *alloc(struct mfl_described *d, size_t n, size_t size)
{
        struct block *block = mfl_calloc(1, sizeof(max_align_t) + n * size);
        if (!block)
                return NULL;
        block->next = d->blocks;
        d->blocks = block;
        return (char *)block + sizeof(max_align_t);
}

static int fail(const struct mfl_described *d, const char *what, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "%.200s: its metadata are damaged: %s. Export again with mfl_export.save(net, example, file)",
                d->path, what);
}

/* ---- numbers ---- */

static bool get_size(const json_t *v, double *ret_v)
{
        double x = json_is_number(v) ? json_number_value(v) : -1;
        if (!(x >= 0) || !isfinite(x))
                return false;
        *ret_v = x;
        return true;
}

static bool get_count(const json_t *v, uint64_t most, uint64_t *ret_v)
{
        if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > most)
                return false;
        *ret_v = (uint64_t)json_integer_value(v);
        return true;
}

static int digit_of(char c)
{
        return c >= 'A' && c <= 'Z'   ? c - 'A'
               : c >= 'a' && c <= 'z' ? c - 'a' + 26
               : c >= '0' && c <= '9' ? c - '0' + 52
               : c == '+'             ? 62
               : c == '/'             ? 63
                                      : -1;
}

/* Base64 of little-endian numbers of 4 bytes each; at most `most` of them. */
static int unpack(struct mfl_described *d, const json_t *v, uint32_t most, const void **ret_v,
        uint32_t *ret_n, struct mfl_error *err)
{
        const char *text = json_string_value(v);
        size_t length = text ? json_string_length(v) : 1, n = 0;
        if (length % 4 || length / 4 * 3 / 4 > most)
                return fail(d, "a list of numbers has a wrong length", err);
        uint8_t *bytes = alloc(d, length / 4 * 3 + 4, 1);
        if (!bytes)
                return mfl_fail_memory(err, length, "the metadata of an ONNX file");
        while (length && text[length - 1] == '=' && length + 2 > json_string_length(v))
                length--;
        uint32_t bits = 0;
        for (size_t i = 0; i < length; i++) {
                int digit = digit_of(text[i]);
                if (digit < 0)
                        return fail(d, "a list of numbers is not base64", err);
                bits = bits << 6 | (uint32_t)digit;
                if (i % 4)
                        bytes[n++] = (uint8_t)(bits >> (6 - i % 4 * 2));
        }
        if (n % 4)
                return fail(d, "a list of numbers has a wrong length", err);
        *ret_v = bytes;
        *ret_n = (uint32_t)(n / 4);
        return 0;
}

static bool are_finite(const float *v, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                if (!isfinite(v[i]))
                        return false;
        return true;
}

static int unpack_floats(
        struct mfl_described *d, const json_t *v, uint32_t n, const float **ret_v, struct mfl_error *err)
{
        const void *bytes;
        uint32_t have;
        int r = unpack(d, v, n, &bytes, &have, err);
        if (!r && (have != n || !are_finite(bytes, n)))
                r = fail(d, "a list has missing numbers, or numbers that are not finite", err);
        if (!r)
                *ret_v = bytes;
        return r;
}

/* ---- mfl.model ---- */

static int read_param(
        struct mfl_described *d, const json_t *v, struct described_param *ret, struct mfl_error *err)
{
        const json_t *initializer = json_object_get(v, "initializer");
        ret->name = json_string_value(json_object_get(v, "name"));
        ret->initializer = json_string_value(initializer);
        ret->trained = json_is_true(json_object_get(v, "requires_grad"));
        ret->padding = -1;
        if (!ret->name || !json_is_boolean(json_object_get(v, "requires_grad")) ||
                (!ret->initializer && !json_is_null(initializer)))
                return fail(d, "a parameter has no name, initializer or requires_grad", err);
        return 0;
}

static int read_names(
        struct mfl_described *d, const json_t *tied, struct described_param *p, struct mfl_error *err)
{
        size_t n = json_array_size(tied);
        if (!n || !p->initializer)
                return 0;
        p->names = alloc(d, n + 2, sizeof *p->names);
        if (!p->names)
                return mfl_fail_memory(err, n * sizeof *p->names, "the metadata of an ONNX file");
        p->names[p->n_names++] = p->initializer;
        p->names[p->n_names++] = p->name;
        for (size_t i = 0; i < n; i++) {
                p->names[p->n_names] = json_string_value(json_array_get(tied, i));
                if (!p->names[p->n_names++])
                        return fail(d, "a tied parameter has no name", err);
        }
        return 0;
}

static bool has_name(const struct described_param *p, const char *name)
{
        bool is = !strcmp(p->name, name);
        for (size_t k = 1; k < p->n_names; k++)
                is = is || !strcmp(p->names[k], name);
        return is;
}

static int read_padding(struct mfl_described *d, struct mfl_error *err)
{
        const char *name;
        json_t *v;
        json_object_foreach(json_object_get(d->model, "padding_idx"), name, v)
        {
                uint64_t row;
                if (!get_count(v, INT32_MAX, &row))
                        return fail(d, "a padding_idx is not a row", err);
                for (uint32_t i = 0; i < d->n_params; i++) {
                        struct described_param *p = &d->params[i];
                        if (!has_name(p, name))
                                continue;
                        if (p->n_padded++ && p->padding != (int64_t)row)
                                return fail(d, "a tied embedding has two values of padding_idx", err);
                        p->padding = (int64_t)row;
                }
        }
        return 0;
}

/* Without a proof: the first element of each. */
static int read_model(struct mfl_described *d, struct mfl_error *err)
{
        static const uint32_t first[1] = {0};
        const json_t *list = json_object_get(d->model, "parameters"),
                     *eval = json_object_get(d->model, "eval");
        uint64_t format;
        if (!get_count(json_object_get(d->model, "format"), INT32_MAX, &format) || !json_is_array(list) ||
                json_array_size(list) > PARAMS_MAX)
                return fail(d, "there is no list of parameters", err);
        if (format != 1)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: its metadata have format %llu, but this mfl reads format 1; use the "
                        "mfl_export.py that "
                        "comes with this mfl",
                        d->path, (unsigned long long)format);
        d->n_params = (uint32_t)json_array_size(list);
        d->params = alloc(d, d->n_params, sizeof *d->params);
        if (!d->params)
                return mfl_fail_memory(err, d->n_params * sizeof *d->params, "the metadata of an ONNX file");
        for (uint32_t i = 0; i < d->n_params; i++) {
                const json_t *v = json_array_get(list, i);
                int r = read_param(d, v, &d->params[i], err);
                if (!r)
                        r = read_names(d, json_object_get(v, "tied"), &d->params[i], err);
                if (r)
                        return r;
                d->params[i].index = first;
                d->params[i].n = 1;
        }
        d->why_not = json_string_value(json_object_get(d->model, "no_proof"));
        if (json_array_size(
                    eval)) /* of an earlier mfl_export, which kept batch norm in eval mode as batch norm */
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: batch norm %.120s keeps its running statistics, which an earlier "
                        "mfl_export.py wrote "
                        "as one that trains them: export the module again",
                        d->path,
                        json_string_value(json_array_get(eval, 0))
                                ? json_string_value(json_array_get(eval, 0))
                                : "?");
        return read_padding(d, err);
}

bool mfl_described_log_softmax(const struct mfl_described *d)
{
        return json_is_true(json_object_get(d->model, "log_softmax"));
}

/* ---- mfl.proof ---- */

static int read_inputs(struct mfl_described *d, struct mfl_error *err)
{
        const json_t *list = json_object_get(d->proof, "inputs");
        d->head.n_inputs = (uint32_t)MFL_MIN(json_array_size(list), (size_t)MFL_PROOF_INPUTS_MAX + 1);
        if (!d->head.n_inputs || d->head.n_inputs > MFL_PROOF_INPUTS_MAX)
                return fail(d, "the number of inputs", err);
        for (uint32_t i = 0; i < d->head.n_inputs; i++) {
                const json_t *v = json_array_get(list, i), *shape = json_object_get(v, "shape");
                struct mfl_proof_input *in = &d->head.input[i];
                const char *kind = json_string_value(json_object_get(v, "kind"));
                uint64_t dim, below;
                bool ok = kind && json_is_array(shape) && json_array_size(shape) < MFL_PROOF_RANK_MAX;
                in->count = 1;
                for (size_t k = 0; ok && k < json_array_size(shape); k++) {
                        ok = get_count(json_array_get(shape, k), MFL_PARAMS_MAX, &dim);
                        ok = ok && !__builtin_mul_overflow(in->count, dim, &in->count) &&
                             in->count <= MFL_PARAMS_MAX;
                }
                if (ok && !strcmp(kind, "tokens")) {
                        ok = get_count(json_object_get(v, "below"), INT32_MAX, &below) && below;
                        in->below = ok ? (uint32_t)below : 0;
                } else if (ok) {
                        in->mean = json_number_value(json_object_get(v, "mean"));
                        ok = isfinite(in->mean) && get_size(json_object_get(v, "deviation"), &in->deviation);
                }
                if (!ok)
                        return fail(d, "an input of the proof", err);
        }
        return 0;
}

static int read_outputs(struct mfl_described *d, int b, struct mfl_error *err)
{
        const json_t *v = json_array_get(json_object_get(d->proof, "outputs"), (size_t)b);
        const json_t *shape = json_object_get(v, "shape");
        struct mfl_proof_batch *batch = &d->head.batch[b];
        uint64_t rows = 0, count = 1;
        const void *index;
        const float *value;
        bool ok = get_count(json_array_get(json_object_get(d->proof, "rows"), (size_t)b), MFL_PROOF_ROWS_MAX,
                          &rows) &&
                  rows && json_array_size(shape) >= 2 && json_array_size(shape) <= MFL_PROOF_RANK_MAX;
        d->head.rank = (uint32_t)(ok ? json_array_size(shape) : 0);
        for (uint32_t k = 0; ok && k < d->head.rank; k++) {
                uint64_t dim;
                ok = get_count(json_array_get(shape, k), 1 << 20, &dim) && dim && (k || dim == rows);
                count *= ok ? dim : 1;
                ok = ok && count <= UINT32_MAX;
                d->head.shape[k] = k && ok ? (int64_t)dim : 0;
        }
        if (!ok || !get_size(json_object_get(v, "largest"), &batch->largest) ||
                !get_size(json_object_get(v, "noise"), &batch->noise))
                return fail(d, "the outputs of the proof", err);
        batch->rows = (uint32_t)rows;
        int r = unpack(d, json_object_get(v, "index"), OUTPUTS_MAX, &index, &batch->n_outputs, err);
        if (!r)
                r = unpack_floats(d, json_object_get(v, "value"), batch->n_outputs, &value, err);
        if (r)
                return r;
        if (!batch->n_outputs)
                return fail(d, "the proof has no outputs", err);
        struct mfl_proof_output *out = alloc(d, batch->n_outputs, sizeof *out);
        if (!out)
                return mfl_fail_memory(err, batch->n_outputs * sizeof *out, "the metadata of an ONNX file");
        for (uint32_t i = 0; i < batch->n_outputs; i++) {
                memcpy(&out[i].index, (const uint8_t *)index + i * sizeof out[i].index, sizeof out[i].index);
                out[i].value = value[i];
                if (out[i].index >= count)
                        return fail(d, "an output of the proof is outside the outputs", err);
        }
        d->outputs[b] = out;
        return 0;
}

static int read_samples(struct mfl_described *d, const json_t *v, struct mfl_error *err)
{
        uint64_t i;
        const void *index;
        if (!get_count(json_object_get(v, "parameter"), UINT32_MAX, &i) || i >= d->n_params)
                return fail(d, "the proof names a parameter that does not exist", err);
        struct described_param *p = &d->params[i];
        int r = unpack(d, json_object_get(v, "index"), SAMPLES_MAX, &index, &p->n, err);
        p->index = index;
        if (r || !p->trained || !p->n)
                return r;
        const json_t *value = json_object_get(v, "value"), *largest = json_object_get(v, "largest"),
                     *noise = json_object_get(v, "noise"), *spread = json_object_get(v, "spread");
        for (int b = 0; !r && b < MFL_PROOF_BATCHES; b++) {
                r = unpack_floats(d, json_array_get(value, (size_t)b), p->n, &p->value[b], err);
                if (!r && (!get_size(json_array_get(largest, (size_t)b), &p->largest[b]) ||
                                  !get_size(json_array_get(noise, (size_t)b), &p->noise[b])))
                        r = fail(d, "a gradient of the proof", err);
                if (!r && !spread) /* of an earlier mfl_export */
                        p->spread[b] = p->largest[b] > 0 ? p->noise[b] / p->largest[b] : 0;
                else if (!r && !get_size(json_array_get(spread, (size_t)b), &p->spread[b]))
                        r = fail(d, "a gradient of the proof", err);
        }
        return r;
}

/* What stops gradients, as the exporter saw it, and what to write instead. Only the first one: its remedy is that of all. */
static void name_stop(struct mfl_described *d)
{
        const json_t *stop = json_array_get(json_object_get(d->model, "stops"), 0);
        const char *module = json_string_value(json_object_get(stop, "module")),
                   *kind = json_string_value(json_object_get(stop, "class")),
                   *by = json_string_value(json_object_get(stop, "by"));
        if (module && kind && by)
                mfl_snprintf(d->head.stops, sizeof d->head.stops,
                        "%.120s (%.120s) has a gradient of its own, %.120s, which no ONNX file says: write x "
                        "+ "
                        "(f(x) - x).detach() for a function f that passes gradients on",
                        *module ? module : "the module", kind, by);
}

static int read_proof(struct mfl_described *d, struct mfl_error *err)
{
        const json_t *list = json_object_get(d->proof, "parameters");
        uint64_t seed, format;
        if (!get_count(json_object_get(d->proof, "format"), 1, &format) || format != 1 ||
                !get_count(json_object_get(d->proof, "seed"), INT32_MAX, &seed) ||
                json_array_size(list) != d->n_params ||
                json_array_size(json_object_get(d->proof, "activations")) > MODULES_MAX)
                return fail(d, "the proof has another format", err);
        const char *precision = json_string_value(json_object_get(d->proof, "precision"));
        d->head.seed = (uint32_t)seed;
        d->head.exact = precision && !strcmp(precision, "double");
        name_stop(d);
        int r = read_inputs(d, err);
        for (int b = 0; !r && b < MFL_PROOF_BATCHES; b++)
                r = read_outputs(d, b, err);
        for (uint32_t i = 0; !r && i < d->n_params; i++)
                r = read_samples(d, json_array_get(list, i), err);
        for (uint32_t i = 0; !r && i < d->n_params; i++)
                if (d->params[i].trained && d->params[i].n && !d->params[i].value[0])
                        r = fail(d, "a trained parameter has no gradient in the proof", err);
        return r;
}

/* ---- both ---- */

static int parse(
        const char *text, const char *key, json_t **ret_v, struct mfl_described *d, struct mfl_error *err)
{
        json_error_t why;
        *ret_v = json_loads(text, JSON_REJECT_DUPLICATES, &why);
        if (!json_is_object(*ret_v))
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: its metadata are damaged: %s is not a JSON object (%.120s). Export again "
                        "with "
                        "mfl_export.save(net, example, file)",
                        d->path, key, *ret_v ? "another value" : why.text);
        return 0;
}

int mfl_described_read(const char *model, const char *proof, const char *path,
        struct mfl_described **ret_described, struct mfl_error *err)
{
        struct mfl_described *d = mfl_calloc(1, sizeof *d);
        if (!d)
                return mfl_fail_memory(err, sizeof *d, "the metadata of an ONNX file");
        json_object_seed(1); /* otherwise jansson opens a file, which the sandbox forbids */
        d->path = path;
        int r = parse(model, "mfl.model", &d->model, d, err);
        if (!r)
                r = read_model(d, err);
        if (!r && proof)
                r = parse(proof, "mfl.proof", &d->proof, d, err);
        if (!r && proof)
                r = read_proof(d, err);
        for (uint32_t i = 0; !r && i < d->n_params; i++) {
                d->params[i].first = d->n_samples;
                d->n_samples += d->params[i].n;
                if (d->n_samples > TAGS_MAX)
                        r = fail(d, "the proof has too many samples", err);
        }
        if (r)
                mfl_described_free(d);
        else
                *ret_described = d;
        return r;
}

void mfl_described_free(struct mfl_described *described)
{
        if (!described)
                return;
        while (described->blocks) {
                struct block *next = described->blocks->next;
                free(described->blocks);
                described->blocks = next;
        }
        json_decref(described->model);
        json_decref(described->proof);
        free(described->places);
        free(described->frozen);
        free(described->padding);
        free(described);
}
