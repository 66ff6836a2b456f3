/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of the protocol: tensors as JSON or bytes, and what a model looks like. */
#include <math.h>

#include "serve/kserve/kserve.h"

void mfl_kserve_error(struct mfl_reply *reply, const char *text)
{
        mfl_reply_put(reply, "{\"error\":");
        mfl_reply_string(reply, text);
        mfl_reply_put(reply, "}");
}

bool mfl_kserve_finite(const float *y, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (!isfinite(y[i]))
                        return false;
        return true;
}

/* ---- a model ---- */

static void put_input_shape(const struct mfl_kserve_model *model, bool with_rows, struct mfl_reply *reply)
{
        mfl_reply_put(reply, with_rows ? "[-1" : "[");
        for (uint32_t i = 0; i < model->rank; i++)
                mfl_reply_format(reply, "%s%lld", i || with_rows ? "," : "", (long long)model->dim[i]);
        mfl_reply_put(reply, "]");
}

static void put_output_shape(const struct mfl_kserve_model *model, long long rows, struct mfl_reply *reply)
{
        mfl_reply_put(reply, "[");
        if (rows)
                mfl_reply_format(reply, "%lld,", rows);
        if (model->positions > 1)
                mfl_reply_format(reply, "%u,", model->positions);
        mfl_reply_format(reply, "%u]", model->outputs / model->positions);
}

void mfl_kserve_describe(const struct mfl_kserve_model *model, const char *const *versions,
        uint32_t n_versions, struct mfl_reply *reply)
{
        mfl_reply_put(reply, "{\"name\":");
        mfl_reply_string(reply, model->name);
        mfl_reply_put(reply, ",\"versions\":[");
        for (uint32_t i = 0; i < n_versions; i++) {
                mfl_reply_put(reply, i ? "," : "");
                mfl_reply_string(reply, versions[i]);
        }
        mfl_reply_format(reply,
                "],\"platform\":\"mfl\",\"inputs\":[{\"name\":\"input\",\"datatype\":\"%s\",\"shape\":",
                mfl_tensor_name(model->type));
        put_input_shape(model, true, reply);
        mfl_reply_format(
                reply, "}],\"outputs\":[{\"name\":\"%s\",\"datatype\":\"FP32\",\"shape\":", model->output);
        put_output_shape(model, -1, reply);
        mfl_reply_format(reply, "}],\"parameters\":{\"digest\":\"%s\"", model->digest);
        if (model->round >= 0)
                mfl_reply_format(reply, ",\"round\":%lld", (long long)model->round);
        if (model->precision)
                mfl_reply_format(reply, ",\"precision\":\"%s\"", model->precision);
        mfl_reply_put(reply, "}}");
}

void mfl_kserve_config(const struct mfl_kserve_model *model, uint32_t rows_max, struct mfl_reply *reply)
{
        mfl_reply_put(reply, "{\"name\":");
        mfl_reply_string(reply, model->name);
        mfl_reply_format(reply,
                ",\"platform\":\"mfl\",\"backend\":\"mfl\",\"max_batch_size\":%u,\"input\":[{\"name\":"
                "\"input\",\"data_type\":\"TYPE_%s\",\"dims\":",
                rows_max, mfl_tensor_name(model->type));
        put_input_shape(model, false, reply);
        mfl_reply_format(reply,
                "}],\"output\":[{\"name\":\"%s\",\"data_type\":\"TYPE_FP32\",\"dims\":", model->output);
        put_output_shape(model, 0, reply);
        mfl_reply_put(reply, "}]}");
}

/* ---- tensors ---- */

struct ranked {
        float value;
        uint32_t i;
};

static int compare_ranked(const void *a, const void *b)
{
        const struct ranked *x = a, *y = b;
        return x->value != y->value ? (x->value < y->value) - (x->value > y->value)
                                    : (x->i > y->i) - (x->i < y->i);
}

static void sift(struct ranked *heap, uint32_t n, uint32_t at)
{
        for (;;) {
                uint32_t last = at;
                for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < n; child++)
                        if (compare_ranked(&heap[child], &heap[last]) > 0)
                                last = child;
                if (last == at)
                        return;
                const struct ranked moved = heap[at];
                heap[at] = heap[last];
                heap[last] = moved;
                at = last;
        }
}

/* By a heap of the k best so far, the last of them at its top: a client chooses k, and the loop waits. */
static void find_best(const float *row, uint32_t n, struct ranked *best, uint32_t k)
{
        for (uint32_t i = 0; i < k; i++)
                best[i] = (struct ranked){row[i], i};
        for (uint32_t at = k / 2; at-- > 0;)
                sift(best, k, at);
        for (uint32_t i = k; i < n; i++) {
                const struct ranked one = {row[i], i};
                if (compare_ranked(&one, &best[0]) >= 0)
                        continue;
                best[0] = one;
                sift(best, k, 0);
        }
        qsort(best, k, sizeof *best, compare_ranked);
}

/* The k largest of a row, largest first; equal ones by their place. */
static void put_best(const struct mfl_kserve_model *model, const float *row, uint32_t k, bool binary,
        struct mfl_reply *reply)
{
        struct ranked *order = mfl_malloc(k * sizeof *order);
        reply->failed |= !order;
        if (order)
                find_best(row, model->outputs, order, k);
        for (uint32_t j = 0; order && j < k; j++) {
                const float last = order[j].value;
                const uint32_t best = order[j].i;
                char text[256];
                mfl_snprintf(text, sizeof text, model->classes ? "%f:%u:%s" : "%f:%u", (double)last, best,
                        model->classes ? model->classes[best] : "");
                const uint32_t n = (uint32_t)strlen(text);
                if (binary) {
                        mfl_reply_bytes(reply, &n, sizeof n);
                        mfl_reply_bytes(reply, text, n);
                } else {
                        mfl_reply_put(reply, j ? "," : "");
                        mfl_reply_string(reply, text);
                }
        }
        free(order);
}

static void put_values(const struct mfl_kserve_model *model, const struct mfl_kserve_request *request,
        const float *y, struct mfl_reply *reply)
{
        const size_t n = (size_t)request->rows * model->outputs;
        if (request->classification) {
                for (uint32_t i = 0; i < request->rows; i++) {
                        if (!request->binary && i)
                                mfl_reply_put(reply, ",");
                        put_best(model, y + (size_t)i * model->outputs, request->classification,
                                request->binary, reply);
                }
                return;
        }
        if (request->binary) {
                mfl_reply_bytes(reply, y, n * sizeof *y);
                return;
        }
        for (size_t i = 0; i < n; i++) {
                if (i)
                        mfl_reply_bytes(reply, ",", 1);
                mfl_reply_float(reply, y[i]);
        }
}

static void put_head(const struct mfl_kserve_model *model, const struct mfl_kserve_request *request,
        struct mfl_reply *reply)
{
        mfl_reply_put(reply, "{\"model_name\":");
        mfl_reply_string(reply, model->name);
        mfl_reply_put(reply, ",\"model_version\":");
        mfl_reply_string(reply, model->version);
        if (*request->id) {
                mfl_reply_put(reply, ",\"id\":");
                mfl_reply_string(reply, request->id);
        }
        mfl_reply_format(reply,
                ",\"outputs\":[{\"name\":\"%s\",\"datatype\":\"%s\",\"shape\":", model->output,
                request->classification ? "BYTES" : "FP32");
        if (request->classification)
                mfl_reply_format(reply, "[%u,%u]", request->rows, request->classification);
        else
                put_output_shape(model, request->rows, reply);
}

bool mfl_kserve_answer(const struct mfl_kserve_model *model, const struct mfl_kserve_request *request,
        const float *y, struct mfl_reply *reply, size_t *ret_json_bytes, struct mfl_error *err)
{
        const size_t n = (size_t)request->rows * model->outputs;
        for (size_t i = 0; i < n; i++)
                if (!isfinite(y[i])) {
                        mfl_fail(err, 0, "row %zu: the model's answer is not finite", i / model->outputs);
                        return false;
                }
        put_head(model, request, reply);
        if (!request->binary) {
                mfl_reply_put(reply, ",\"data\":[");
                put_values(model, request, y, reply);
                mfl_reply_put(reply, "]}]}");
                *ret_json_bytes = 0;
                return true;
        }
        struct mfl_reply bytes = {0};
        put_values(model, request, y, &bytes);
        const size_t k = mfl_reply_body_bytes(&bytes);
        mfl_reply_format(reply, ",\"parameters\":{\"binary_data_size\":%zu}}]}", k);
        *ret_json_bytes = mfl_reply_body_bytes(reply);
        if (k)
                mfl_reply_bytes(reply, bytes.v + MFL_REPLY_HEAD_BYTES, k);
        reply->failed |= bytes.failed;
        mfl_reply_deinit(&bytes);
        return true;
}
