/* SPDX-License-Identifier: Apache-2.0 */
/* Predictions at a site.
 *
 * Happy path: job file -> graph -> network -> batches of scaled samples -> lines -> rename. Failures: a model of other data; a disk that
 * is full, or a directory that is not there: the file of before stays as it was. */
#include "client/inquiry/predict.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/stats/scaled.h"
#include "kernels/check.h"
#include "kernels/infer/infer.h"

#define BATCH 64u

struct prediction {
        const struct mfl_dataset *data;
        struct mfl_dataset *scaled;  /* data.normalise: what `data` then is */
        struct mfl_model_file model; /* borrows the params */
        struct mfl_infer *infer;
        float *x, *y;
        FILE *out;
};

static int check_model(const struct mfl_job *job, struct mfl_error *err)
{
        if (mfl_job_has_program(job))
                return mfl_fail(err, MFL_INVALID, "only the program %s can compute answers of this model",
                        job->training.program);
        if (job->personal.layers.n)
                return mfl_fail(err, MFL_INVALID,
                        "each client of the job has layers of its own, which the job's model lacks");
        return 0;
}

/* The test samples as the job's trainings see them. */
static int scale(struct prediction *p, struct mfl_error *err)
{
        const struct mfl_normalise_spec *normalise = &p->model.job->data.normalise;
        struct mfl_dataset tests = *p->data;
        if (normalise->kind == MFL_NORMALISE_SITE)
                return 0;
        if (normalise->kind == MFL_NORMALISE_FEDERATED)
                return mfl_fail(err, MFL_INVALID,
                        "data.normalise: federated: the server has not measured the mean and deviation");
        tests.train.n = 0; /* nobody reads them */
        int r = mfl_dataset_scaled(&tests, normalise->n, normalise->mean, normalise->std, &p->scaled, err);
        if (!r)
                p->data = p->scaled;
        return r;
}

static int open_model(
        struct prediction *p, const struct mfl_site_model *model, const char *backend, struct mfl_error *err)
{
        struct mfl_infer_options options = {.backend = backend, .batch_max = BATCH};
        int r = mfl_job_parse(model->text, strlen(model->text), "the model", &p->model.job, err);
        if (!r)
                r = check_model(p->model.job, err);
        if (!r)
                r = scale(p, err);
        if (r)
                return r;
        const struct mfl_dataset *d = p->data;
        p->model.job->by_layers = !model->n_frozen;
        r = mfl_job_graph(
                p->model.job, &d->shape, d->n_targets ? d->n_targets : d->classes, &p->model.graph, err);
        if (!r && p->model.graph->n != model->n_params)
                r = mfl_fail(err, MFL_INVALID,
                        "for data set %s the model has %" PRIu64 " params, and %" PRIu64 " came", d->name,
                        p->model.graph->n, model->n_params);
        if (!r)
                r = mfl_contract_plain(&d->shape, d->vocabulary, &p->model.contract, err);
        p->model.params = model->params;
        p->model.path = (char *)"the model";
        if (!r)
                r = mfl_infer_new(&p->model, &options, &p->infer, err);
        return r ? r : mfl_infer_check(p->infer, d, err);
}

/* What the model sees: x * scale + shift. */
static void read_rows(const struct prediction *p, uint32_t first, uint32_t n)
{
        const struct mfl_dataset *d = p->data;
        size_t count = (size_t)mfl_shape_count(&d->shape),
               planes = d->shape.rank == 3 ? (size_t)d->shape.dim[0] : 1;
        for (size_t i = 0; i < n * count; i++) {
                size_t c = MFL_MIN(i % count / (count / planes), (size_t)MFL_CHANNELS_MAX - 1),
                       at = first * count + i;
                float v = d->test.dtype == MFL_U8 ? (float)((const uint8_t *)d->test.samples)[at]
                                                  : ((const float *)d->test.samples)[at];
                p->x[i] = v * d->scale[c] + d->shift[c];
        }
}

static void write_class(const struct prediction *p, const float *z, uint32_t classes)
{
        uint32_t best = 0;
        double sum = 0;
        for (uint32_t c = 1; c < classes; c++)
                best = z[c] > z[best] ? c : best;
        for (uint32_t c = 0; c < classes; c++)
                sum += exp((double)z[c] - (double)z[best]);
        fprintf(p->out, ",%u,%.9g", best, 1 / sum);
}

static void write_row(const struct prediction *p, uint32_t row, const float *z)
{
        uint32_t outputs = mfl_infer_outputs(p->infer), classes = (uint32_t)p->model.graph->classes;
        fprintf(p->out, "%u", row);
        if (!p->data->n_targets && classes && mfl_loss_of_job(p->model.job).kind == MFL_LOSS_CROSS_ENTROPY)
                for (uint32_t at = 0; at + classes <= outputs; at += classes)
                        write_class(p, z + at, classes);
        else
                for (uint32_t k = 0; k < outputs; k++)
                        fprintf(p->out, ",%.9g", (double)z[k]);
        fputs("\n", p->out);
}

static int write_rows(struct prediction *p, struct mfl_error *err)
{
        const struct mfl_split *s = &p->data->test;
        size_t count = (size_t)mfl_shape_count(&p->data->shape), outputs = mfl_infer_outputs(p->infer);
        p->x = mfl_alloc_aligned(BATCH * count * sizeof *p->x);
        p->y = mfl_alloc_aligned(BATCH * outputs * sizeof *p->y);
        if (!p->x || !p->y)
                return mfl_fail_memory(err, BATCH * (count + outputs) * sizeof *p->x, "predictions");
        fputs("row,answer\n", p->out);
        for (uint32_t i = 0; i < s->n; i += BATCH) {
                uint32_t n = MFL_MIN(BATCH, s->n - i);
                const void *x = p->x;
                if (s->dtype == MFL_I32)
                        x = (const int32_t *)s->samples + i * count;
                else
                        read_rows(p, i, n);
                int r = mfl_infer_run(p->infer, n, x, p->y, err);
                for (uint32_t k = 0; !r && k < n; k++)
                        write_row(p, i + k, p->y + k * outputs);
                if (r)
                        return r;
        }
        return 0;
}

/* Where the site keeps its files is not for the server. */
static int unwritten(int r, struct mfl_error *err)
{
        if (r >= 0 || r == -ENOMEM)
                return r;
        mfl_log(MFL_LOG_ERROR, "predictions: %s", err->text);
        return mfl_fail(err, MFL_INVALID, "this site can't write its predictions; its daemon's log says why");
}

static int write_file(struct prediction *p, const char *path, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        int r = mfl_fs_begin(&file, path, err), fd;
        if (r)
                return unwritten(r, err);
        fd = dup(file.fd);
        p->out = fd < 0 ? NULL : fdopen(fd, "w");
        r = p->out && !fchmod(fd, 0600) ? write_rows(p, err) : mfl_fail_errno(err, "write %s", path);
        bool broken = p->out && (ferror(p->out) != 0 || fflush(p->out) != 0);
        if (p->out && (fclose(p->out) || broken) && !r)
                r = mfl_fail_errno(err, "write %s", path);
        if (!r)
                r = mfl_fs_commit(&file, err);
        else
                mfl_fs_abort(&file);
        return unwritten(r, err);
}

int mfl_site_predict(const struct mfl_site_model *model, const struct mfl_dataset *dataset,
        const char *backend, const char *dir, uint64_t *ret_rows, struct mfl_error *err)
{
        struct prediction p = {.data = dataset};
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s-%02x%02x%02x%02x%02x%02x.csv", dir, dataset->name,
                model->digest[0], model->digest[1], model->digest[2], model->digest[3], model->digest[4],
                model->digest[5]);
        int r = path ? open_model(&p, model, backend, err) : mfl_fail_memory(err, strlen(dir), "a path");
        if (!r)
                r = write_file(&p, path, err);
        if (!r)
                *ret_rows = dataset->test.n;
        mfl_infer_free(p.infer);
        mfl_contract_free(p.model.contract);
        mfl_graph_free(p.model.graph);
        mfl_job_free(p.model.job);
        mfl_dataset_scaled_free(p.scaled);
        free(p.x);
        free(p.y);
        return r;
}
