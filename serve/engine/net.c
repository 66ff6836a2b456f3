/* SPDX-License-Identifier: Apache-2.0 */
/* The network behind a version, by kernels/infer. */
#include "serve/engine/net.h"

#include "kernels/host.h"
#include "kernels/infer/infer.h"

static enum mfl_tensor_type type_of(enum mfl_dtype dtype)
{
        return dtype == MFL_U8 ? MFL_TENSOR_U8 : dtype == MFL_I32 ? MFL_TENSOR_I32 : MFL_TENSOR_F32;
}

static enum mfl_precision precision_of(bool bf16)
{
        return bf16 ? MFL_PRECISION_BF16 : MFL_PRECISION_FP32;
}

/* The first backend that works is found with the first model. */
int mfl_net_check(const char *backend, bool bf16, struct mfl_error *err)
{
        struct mfl_error why;
        if (!bf16 && !strcmp(backend, "auto"))
                return 0;
        const int r = mfl_infer_check_precision(backend, precision_of(bf16), true, &why);
        return r ? mfl_fail(err, r == MFL_NOT_FOUND ? MFL_INVALID : r, "%s", why.text) : 0;
}

static int describe(struct mfl_version *v, struct mfl_error *err)
{
        const struct mfl_contract *c = mfl_infer_contract(v->infer[0]);
        struct mfl_kserve_model *model = &v->model;
        model->precision = mfl_precision_name(precision_of(v->bf16));
        model->round = mfl_infer_model(v->infer[0])->round;
        mfl_strcpy(model->job, sizeof model->job, mfl_infer_model(v->infer[0])->job_id);
        model->type = type_of(mfl_contract_dtype(c));
        model->vocabulary = (uint32_t)c->vocabulary;
        if (c->shape.rank > MFL_KSERVE_RANK_MAX)
                return mfl_fail(err, MFL_INVALID, "a sample has %d dimensions, and at most %d can be served",
                        c->shape.rank, MFL_KSERVE_RANK_MAX);
        model->rank = (uint32_t)c->shape.rank;
        for (int i = 0; i < c->shape.rank; i++)
                model->dim[i] = c->shape.dim[i];
        model->elements = (size_t)mfl_shape_count(&c->shape);
        model->outputs = mfl_infer_outputs(v->infer[0]);
        model->positions = model->outputs / mfl_infer_classes(v->infer[0]);
        model->output = mfl_contract_is_classes(c) || mfl_contract_is_binary(c) ? "logits" : "values";
        if (c->class_names && (uint32_t)c->classes == mfl_infer_classes(v->infer[0]))
                model->classes = (const char *const *)c->class_names;
        return 0;
}

int mfl_net_open(const char *path, struct mfl_version *v, struct mfl_error *err)
{
        const struct mfl_infer_options options = {.backend = v->backend,
                .batch_max = v->rows_max,
                .threads = 1,
                .precision = precision_of(v->bf16)};
        int r = mfl_infer_open(path, &options, &v->infer[0], err);
        for (uint32_t i = 1; !r && i < v->n_instances; i++)
                r = mfl_infer_new(mfl_infer_model(v->infer[0]), &options, &v->infer[i], err);
        return r ? r : describe(v, err);
}

void mfl_net_close(struct mfl_version *v)
{
        for (uint32_t i = v->n_instances; i-- > 0;) { /* the first one owns the model */
                mfl_infer_free(v->infer[i]);
                v->infer[i] = NULL;
        }
}

int mfl_net_check_codes(const struct mfl_version *v, uint32_t n, const void *x, struct mfl_error *err)
{
        const struct mfl_contract *c = mfl_infer_contract(v->infer[0]);
        const bool scales = !c->normalised && c->n_channels;
        struct mfl_dataset rows = {.name = "of the request",
                .shape = c->shape,
                .vocabulary = c->vocabulary,
                .feature_names = c->feature_names,
                .scale = {scales ? c->scale[0] : 1.0f},
                .shift = {scales ? c->shift[0] : 0.0f},
                .train = {.n = n, .dtype = mfl_contract_dtype(c), .samples = (void *)(uintptr_t)x}};
        return mfl_infer_check(v->infer[0], &rows, err);
}

int mfl_net_run(
        struct mfl_version *v, uint32_t instance, uint32_t n, const void *x, float *y, struct mfl_error *err)
{
        return mfl_infer_run(v->infer[instance], n, x, y, err);
}
