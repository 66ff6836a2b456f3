/* SPDX-License-Identifier: Apache-2.0 */
/* A request for inference: JSON, read once from front to back, and the bytes behind it. Its keys may come in any order. */
#include <math.h>
#include <stdio.h>

#include "serve/kserve/kserve.h"

struct reading {
        const struct mfl_kserve_model *model;
        uint32_t rows_max;
        struct mfl_scan json;
        struct mfl_kserve_request request;
        struct mfl_scan_tensor data;
        int64_t shape[MFL_KSERVE_RANK_MAX + 1];
        uint32_t rank;
        char datatype[16];
        uint64_t binary_bytes;
        bool has_input, has_data, has_shape, is_binary, all_binary, binary_set, output_binary, has_output;
};

/* ---- parameters ---- */

static int fail_key(struct reading *d, const char *where, const char *key)
{
        return mfl_scan_fail(&d->json, "%s: '%.40s' is not supported", where, key);
}

/* Of the request. */
static int read_parameter(struct reading *d, const char *key)
{
        if (!strcmp(key, "timeout"))
                return mfl_scan_whole(&d->json, 1ull << 50, &d->request.timeout_us);
        if (!strcmp(key, "binary_data_output"))
                return mfl_scan_bool(&d->json, &d->all_binary);
        return fail_key(d, "parameters", key);
}

static int read_input_parameter(struct reading *d, const char *key)
{
        if (strcmp(key, "binary_data_size"))
                return fail_key(d, "inputs[0].parameters", key);
        d->is_binary = true;
        return mfl_scan_whole(&d->json, 1ull << 50, &d->binary_bytes);
}

static int read_output_parameter(struct reading *d, const char *key)
{
        uint64_t k = 0;
        int r;
        if (!strcmp(key, "binary_data")) {
                d->binary_set = true;
                return mfl_scan_bool(&d->json, &d->output_binary);
        }
        if (strcmp(key, "classification"))
                return fail_key(d, "outputs[0].parameters", key);
        r = mfl_scan_whole(&d->json, UINT32_MAX, &k);
        d->request.classification = (uint32_t)k;
        return r;
}

/* Reads "{key: value, ...}" with a function for the values. */
static int read_object(struct reading *d, int (*read)(struct reading *d, const char *key))
{
        char key[64];
        bool more;
        int r = mfl_scan_expect(&d->json, '{');
        for (uint32_t i = 0; !r; i++) {
                r = mfl_scan_next(&d->json, '}', i, &more);
                if (r || !more)
                        break;
                r = mfl_scan_key(&d->json, key, sizeof key);
                if (!r)
                        r = read(d, key);
        }
        return r;
}

/* ---- the input ---- */

static int fail_shape(struct reading *d)
{
        char text[160];
        size_t k = (size_t)snprintf(text, sizeof text, "[n");
        for (uint32_t i = 0; i < d->model->rank; i++)
                k += (size_t)snprintf(text + k, sizeof text - k, ", %lld", (long long)d->model->dim[i]);
        return mfl_fail(d->json.err, MFL_INVALID, "inputs[0].shape: this model takes %s], n from 1 to %u",
                text, d->rows_max);
}

static int read_shape(struct reading *d)
{
        bool more;
        int r = mfl_scan_expect(&d->json, '[');
        d->rank = 0;
        for (uint32_t i = 0; !r; i++) {
                uint64_t v = 0;
                r = mfl_scan_next(&d->json, ']', i, &more);
                if (r || !more)
                        break;
                if (i > MFL_KSERVE_RANK_MAX)
                        return fail_shape(d);
                r = mfl_scan_whole(&d->json, 1ull << 40, &v);
                d->shape[d->rank++] = (int64_t)v;
        }
        d->has_shape = true;
        if (r)
                return r;
        bool fits = d->rank == d->model->rank + 1 && d->shape[0] >= 1 && d->shape[0] <= d->rows_max;
        for (uint32_t i = 0; fits && i < d->model->rank; i++)
                fits = d->shape[i + 1] == d->model->dim[i];
        return fits ? 0 : fail_shape(d);
}

/* Numbers go straight into the tensor; with a shape before them it has its size from the start. */
static int read_data(struct reading *d)
{
        const size_t n_max = (size_t)d->rows_max * d->model->elements;
        if (d->has_data)
                return mfl_scan_fail(&d->json, "inputs[0]: 'data' twice");
        d->has_data = true;
        d->data = (struct mfl_scan_tensor){.type = d->model->type, .n_max = n_max};
        if (d->has_shape) {
                /* A number takes at least two bytes of text. */
                const size_t n = MFL_MIN(
                        (size_t)d->shape[0] * d->model->elements, (size_t)(d->json.end - d->json.at) / 2 + 1);
                d->data.v = mfl_malloc(n * mfl_tensor_bytes(d->model->type));
                if (!d->data.v)
                        return mfl_fail_memory(d->json.err, n * 4, "a tensor");
                d->data.room = n;
        }
        return mfl_scan_tensor(&d->json, &d->data);
}

static int read_input_key(struct reading *d, const char *key)
{
        char name[MFL_KSERVE_NAME_BYTES];
        int r;
        if (!strcmp(key, "name")) {
                r = mfl_scan_string(&d->json, name, sizeof name);
                if (!r && strcmp(name, "input"))
                        r = mfl_scan_fail(
                                &d->json, "inputs[0].name: this model's input is 'input', not '%s'", name);
                return r;
        }
        if (!strcmp(key, "shape"))
                return read_shape(d);
        if (!strcmp(key, "datatype")) {
                r = mfl_scan_string(&d->json, d->datatype, sizeof d->datatype);
                if (!r && strcmp(d->datatype, mfl_tensor_name(d->model->type)) &&
                        !(d->model->type == MFL_TENSOR_I32 && !strcmp(d->datatype, "INT64")))
                        r = mfl_scan_fail(&d->json, "inputs[0].datatype: this model takes %s, not %s",
                                mfl_tensor_name(d->model->type), d->datatype);
                return r;
        }
        if (!strcmp(key, "parameters"))
                return read_object(d, read_input_parameter);
        return !strcmp(key, "data") ? read_data(d) : fail_key(d, "inputs[0]", key);
}

/* An array of one object. */
static int read_single(
        struct reading *d, const char *what, bool *has, int (*read)(struct reading *d, const char *key))
{
        bool more;
        int r = mfl_scan_expect(&d->json, '[');
        if (!r && *has)
                return mfl_scan_fail(&d->json, "'%s' twice", what);
        for (uint32_t i = 0; !r; i++) {
                r = mfl_scan_next(&d->json, ']', i, &more);
                if (r || !more)
                        break;
                if (*has)
                        return mfl_scan_fail(&d->json, "%s: this model has one", what);
                *has = true;
                r = read_object(d, read);
        }
        return r;
}

static int read_output_key(struct reading *d, const char *key)
{
        char name[MFL_KSERVE_NAME_BYTES];
        if (!strcmp(key, "parameters"))
                return read_object(d, read_output_parameter);
        if (strcmp(key, "name"))
                return fail_key(d, "outputs[0]", key);
        int r = mfl_scan_string(&d->json, name, sizeof name);
        if (!r && strcmp(name, d->model->output))
                r = mfl_scan_fail(&d->json, "outputs[0].name: this model's output is '%s', not '%s'",
                        d->model->output, name);
        return r;
}

/* Triton's examples, and KServe's own client, repeat what the path says. */
static int read_repeated(struct reading *d, const char *key, const char *expected)
{
        char text[MFL_KSERVE_NAME_BYTES];
        const int r = mfl_scan_string(&d->json, text, sizeof text);
        return r || !*text || !strcmp(text, expected)
                       ? r
                       : mfl_scan_fail(&d->json, "%s: this is '%s', not '%s'", key, expected, text);
}

static int read_key(struct reading *d, const char *key)
{
        if (!strcmp(key, "model_name"))
                return read_repeated(d, key, d->model->name);
        if (!strcmp(key, "model_version"))
                return read_repeated(d, key, d->model->version);
        if (!strcmp(key, "id"))
                return mfl_scan_string(&d->json, d->request.id, sizeof d->request.id);
        if (!strcmp(key, "parameters"))
                return read_object(d, read_parameter);
        if (!strcmp(key, "inputs"))
                return read_single(d, "inputs", &d->has_input, read_input_key);
        if (!strcmp(key, "outputs"))
                return read_single(d, "outputs", &d->has_output, read_output_key);
        return fail_key(d, "the request", key);
}

/* ---- what all of it must be ---- */

static int take_binary(struct reading *d, const char *bytes, size_t n)
{
        const bool wide = !strcmp(d->datatype, "INT64");
        const size_t size = wide ? 8 : mfl_tensor_bytes(d->model->type);
        const size_t count = (size_t)d->shape[0] * d->model->elements;
        struct mfl_error *err = d->json.err;
        if (d->has_data)
                return mfl_fail(err, MFL_INVALID, "inputs[0]: both 'data' and binary data");
        if (d->binary_bytes != count * size || n != d->binary_bytes)
                return mfl_fail(err, MFL_INVALID,
                        "inputs[0]: the shape has %zu bytes, binary_data_size says %llu, and %zu follow the "
                        "JSON",
                        count * size, (unsigned long long)d->binary_bytes, n);
        d->data.v = mfl_malloc(count * mfl_tensor_bytes(d->model->type));
        if (!d->data.v)
                return mfl_fail_memory(err, count * 4, "a tensor");
        d->data.n = count;
        if (!wide) {
                memcpy(d->data.v, bytes, n);
                return 0;
        }
        for (size_t i = 0; i < count; i++) {
                int64_t v;
                memcpy(&v, bytes + i * 8, 8);
                if (v < INT32_MIN || v > INT32_MAX)
                        return mfl_fail(err, MFL_INVALID,
                                "inputs[0]: row %zu has the value %lld, which is beyond 32 bits",
                                i / d->model->elements, (long long)v);
                ((int32_t *)d->data.v)[i] = (int32_t)v;
        }
        return 0;
}

/* Nested data must have the shape; flat data its number of elements. */
static int check_data(struct reading *d)
{
        const size_t count = (size_t)d->shape[0] * d->model->elements;
        bool fits = d->data.n == count;
        if (d->data.rank > 1) {
                fits &= d->data.rank == d->rank;
                for (uint32_t i = 0; fits && i < d->rank; i++)
                        fits = d->data.dim[i] == (size_t)d->shape[i];
        }
        return fits ? 0
                    : mfl_fail(d->json.err, MFL_INVALID, "inputs[0].data: %zu numbers%s; the shape has %zu",
                              d->data.n, d->data.rank > 1 ? ", nested otherwise than the shape" : "", count);
}

/* A row that is no input must not be answered, and the others of a batch don't notice it. */
static int check_values(struct reading *d)
{
        const size_t n = d->data.n, each = d->model->elements;
        for (size_t i = 0; d->model->type == MFL_TENSOR_F32 && i < n; i++)
                if (!isfinite(((const float *)d->data.v)[i]))
                        return mfl_fail(d->json.err, MFL_INVALID,
                                "inputs[0]: row %zu has a value that is not finite", i / each);
        for (size_t i = 0; d->model->vocabulary && d->model->type == MFL_TENSOR_I32 && i < n; i++) {
                const int32_t v = ((const int32_t *)d->data.v)[i];
                if (v < 0 || (uint32_t)v >= d->model->vocabulary)
                        return mfl_fail(d->json.err, MFL_INVALID,
                                "inputs[0]: row %zu has the token %d; the vocabulary has %u", i / each, v,
                                d->model->vocabulary);
        }
        return 0;
}

static int check_request(struct reading *d, const char *body, size_t body_bytes, size_t json_bytes)
{
        struct mfl_error *err = d->json.err;
        int r = 0;
        if (!d->has_input)
                return mfl_fail(err, MFL_INVALID, "inputs: missing");
        if (!d->has_shape || !*d->datatype)
                return mfl_fail(
                        err, MFL_INVALID, "inputs[0].%s: missing", d->has_shape ? "datatype" : "shape");
        if (d->is_binary)
                r = take_binary(d, body + json_bytes, body_bytes - json_bytes);
        else if (body_bytes != json_bytes)
                r = mfl_fail(err, MFL_INVALID, "bytes follow the JSON, but no input has binary_data_size");
        else
                r = d->has_data ? check_data(d) : mfl_fail(err, MFL_INVALID, "inputs[0].data: missing");
        if (!r)
                r = check_values(d);
        if (!r && d->request.classification &&
                (d->model->positions > 1 || d->request.classification > d->model->outputs))
                r = mfl_fail(err, MFL_INVALID,
                        "outputs[0].parameters.classification: this model has %u classes%s",
                        d->model->outputs / d->model->positions,
                        d->model->positions > 1 ? " at each of several positions, which can't be asked for so"
                                                : "");
        return r;
}

static int take_raw(struct reading *d, const char *body, size_t n)
{
        const size_t row = d->model->elements * mfl_tensor_bytes(d->model->type);
        if (n != row)
                return mfl_fail(d->json.err, MFL_INVALID,
                        "Inference-Header-Content-Length is 0, so the body is one row as bytes: %zu of %s, "
                        "not %zu",
                        row, mfl_tensor_name(d->model->type), n);
        d->shape[0] = 1;
        d->binary_bytes = n;
        d->all_binary = true;
        const int r = take_binary(d, body, n);
        return r ? r : check_values(d);
}

int mfl_kserve_parse(const struct mfl_kserve_model *model, uint32_t rows_max, const char *body,
        size_t body_bytes, size_t json_bytes, struct mfl_kserve_request *ret_request, struct mfl_error *err)
{
        struct reading d = {.model = model, .rows_max = rows_max};
        if (json_bytes > body_bytes)
                return mfl_fail(err, MFL_INVALID,
                        "Inference-Header-Content-Length is %zu, but the body has %zu bytes", json_bytes,
                        body_bytes);
        mfl_scan_open(&d.json, body, json_bytes, err);
        const bool raw = !json_bytes && body_bytes;
        int r = raw ? take_raw(&d, body, body_bytes) : read_object(&d, read_key);
        if (!r && !raw)
                r = mfl_scan_end(&d.json);
        if (!r && !raw)
                r = check_request(&d, body, body_bytes, json_bytes);
        if (r) {
                free(d.data.v);
                return r;
        }
        d.request.rows = (uint32_t)d.shape[0];
        d.request.x = d.data.v;
        d.request.binary = d.binary_set ? d.output_binary : d.all_binary;
        *ret_request = d.request;
        return 0;
}

int mfl_kserve_parse_index(const char *body, size_t bytes, bool *ret_ready, struct mfl_error *err)
{
        struct mfl_scan json;
        char key[64];
        bool ready = false, more;
        mfl_scan_open(&json, body, bytes, err);
        int r = bytes ? mfl_scan_expect(&json, '{') : 0;
        for (uint32_t i = 0; bytes && !r; i++) {
                r = mfl_scan_next(&json, '}', i, &more);
                if (r || !more)
                        break;
                r = mfl_scan_key(&json, key, sizeof key);
                if (!r)
                        r = strcmp(key, "ready") ? mfl_scan_fail(&json, "'%.40s' is not supported", key)
                                                 : mfl_scan_bool(&json, &ready);
        }
        if (!r)
                r = mfl_scan_end(&json);
        if (!r)
                *ret_ready = ready;
        return r;
}
