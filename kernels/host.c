/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets, batches and losses in host memory. The machine's name comes from /proc/cpuinfo; where that fails
 * the name is "CPU". */
#include "kernels/host.h"

#include <stdio.h>
#include <unistd.h>

#include "kernels/bodies.h"

#define CROP_MAX 65536

const char *mfl_precision_name(enum mfl_precision precision)
{
        static const char *const names[MFL_PRECISION_COUNT_] = {"fp32", "tf32", "bf16", "fp16"};
        return (unsigned)precision < MFL_PRECISION_COUNT_ ? names[precision] : "?";
}

int mfl_host_data_new(struct mfl_device *device, const struct mfl_dataset *dataset,
        const struct mfl_split *split, bool resident, struct mfl_device_data **ret_data,
        struct mfl_error *err)
{
        struct mfl_device_data *data = mfl_calloc(1, sizeof *data);
        if (!data)
                return mfl_fail_memory(err, sizeof *data, "data handle");
        data->dataset = dataset;
        data->split = split;
        data->count = mfl_shape_count(&dataset->shape);
        data->n_planes = dataset->shape.rank == 3 ? dataset->shape.dim[0] : 1;
        data->plane = data->n_planes ? data->count / data->n_planes : 0;
        mfl_assert(data->n_planes <= MFL_CHANNELS_MAX);
        *ret_data = data;
        return 0;
}

void mfl_host_data_free(struct mfl_device_data *data)
{
        free(data);
}

static void gather_u8(const uint8_t *restrict src, int64_t n, float scale, float shift, float *restrict dst)
{
        for (int64_t i = 0; i < n; i++)
                dst[i] = (float)src[i] * scale + shift;
}

static void gather_f32(const float *restrict src, int64_t n, float scale, float shift, float *restrict dst)
{
        for (int64_t i = 0; i < n; i++)
                dst[i] = src[i] * scale + shift;
}

static void gather_i32(const int32_t *restrict src, int64_t n, float *restrict dst)
{
        for (int64_t i = 0; i < n; i++)
                dst[i] = (float)src[i];
}

void mfl_host_gather(const struct mfl_device_data *data, const uint32_t *index, uint32_t rows, float *x)
{
        const struct mfl_dataset *set = data->dataset;
        for (uint32_t r = 0; r < rows; r++) {
                mfl_assert(index[r] < data->split->n);
                int64_t from = (int64_t)index[r] * data->count;
                if (data->split->dtype == MFL_I32) {
                        gather_i32((const int32_t *)data->split->samples + from, data->count, x);
                        x += data->count;
                        continue;
                }
                for (int64_t c = 0; c < data->n_planes; c++, from += data->plane, x += data->plane) {
                        if (data->split->dtype == MFL_U8)
                                gather_u8((const uint8_t *)data->split->samples + from, data->plane,
                                        set->scale[c], set->shift[c], x);
                        else
                                gather_f32((const float *)data->split->samples + from, data->plane,
                                        set->scale[c], set->shift[c], x);
                }
        }
}

void mfl_host_read_rows(const struct mfl_rows *rows, uint32_t n, float *x)
{
        int64_t plane = rows->plane, from = 0;
        if (rows->dtype == MFL_I32) {
                gather_i32(rows->samples, (int64_t)n * rows->n_planes * plane, x);
                return;
        }
        for (uint32_t r = 0; r < n; r++)
                for (int64_t c = 0; c < rows->n_planes; c++, from += plane, x += plane) {
                        if (rows->dtype == MFL_U8)
                                gather_u8((const uint8_t *)rows->samples + from, plane, rows->scale[c],
                                        rows->shift[c], x);
                        else
                                gather_f32((const float *)rows->samples + from, plane, rows->scale[c],
                                        rows->shift[c], x);
                }
}

int mfl_host_image_shape(const struct mfl_graph *graph, const struct mfl_device_data *data,
        struct mfl_shape *ret_image, struct mfl_error *err)
{
        const struct mfl_shape *own = &data->dataset->shape;
        if ((own->rank != 3 && graph->input.rank != 3) || data->dataset->vocabulary)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: augmentation needs images (channels x height x width); give "
                        "model.input",
                        data->dataset->name);
        *ret_image = own->rank == 3 ? *own : graph->input;
        return 0;
}

static float sample_at(const struct mfl_device_data *data, uint32_t sample, int64_t k)
{
        int64_t at = (int64_t)sample * data->count + k;
        return data->split->dtype == MFL_U8 ? (float)((const uint8_t *)data->split->samples)[at]
                                            : ((const float *)data->split->samples)[at];
}

static void gather_plane(const struct mfl_device_data *data, uint32_t sample, int64_t plane,
        struct mfl_augment_choice choice, const struct mfl_shape *image, float *x)
{
        int h = (int)image->dim[1], w = (int)image->dim[2];
        int64_t from = plane * h * w, channel = from / data->plane;
        float scale = data->dataset->scale[channel], shift = data->dataset->shift[channel];
        for (int i = 0; i < h; i++)
                for (int j = 0; j < w; j++) {
                        int at = mfl_augment_source(choice, i, j, h, w);
                        *x++ = (at < 0 ? 0.0f : sample_at(data, sample, from + at)) * scale + shift;
                }
}

void mfl_host_gather_augmented(const struct mfl_device_data *data, const struct mfl_shape *image,
        const struct mfl_augment *augment, struct mfl_rng_key step_key, uint32_t first_row,
        const uint32_t *index, uint32_t rows, float *x)
{
        for (uint32_t r = 0; r < rows; r++) {
                struct mfl_augment_choice choice = mfl_augment_pick(step_key, first_row + r, augment);
                mfl_assert(index[r] < data->split->n);
                for (int64_t c = 0; c < image->dim[0]; c++, x += image->dim[1] * image->dim[2])
                        gather_plane(data, index[r], c, choice, image, x);
        }
}

static void against_targets(const struct mfl_host_loss *a, int n, const float *target, float scale,
        const float *z, float *dz, struct mfl_score *score)
{
        const struct mfl_loss *loss = a->loss;
        bool binary = loss->kind == MFL_LOSS_BINARY;
        for (int k = 0; k < n; k++) {
                float grad, value = mfl_target_loss(loss, k, z[k], target[k], &grad);
                if (dz)
                        dz[k] = grad * scale;
                score->loss_sum = mfl_fixed_loss_add(score->loss_sum, mfl_fixed_loss(value));
                score->n_correct += binary && (z[k] > 0.0f) == (target[k] > 0.5f);
                score->n_scored++;
                if (score->tally && a->tally == MFL_TALLY_TARGETS)
                        mfl_tally_target(score->tally, (uint32_t)k, z[k], target[k]);
        }
}

static uint32_t best_of(const float *z, int classes)
{
        int best = 0;
        for (int c = 1; c < classes; c++)
                best = z[c] > z[best] ? c : best;
        return (uint32_t)best;
}

/* One sample's positions: those of the main output, and of auxiliary ones. */
static void against_labels(const struct mfl_host_loss *a, const int32_t *labels, const float *z, float *dz,
        struct mfl_score *score)
{
        const struct mfl_loss *loss = a->loss;
        int classes = a->graph->classes, positions = a->graph->positions;
        int each = positions / (1 + loss->n_auxiliary);
        for (int t = 0; t < positions; t++, z += classes, dz = dz ? dz + classes : NULL) {
                int label = labels[t % each];
                bool hit, main = t < each, scored = mfl_is_scored(loss, label) && (main || a->share);
                if (!scored && dz)
                        memset(dz, 0, (size_t)classes * sizeof *dz);
                if (!scored)
                        continue;
                mfl_assert(label < classes);
                float head = mfl_head_weight(loss, t, each), scale = a->share ? a->share->scale * head : 0.0f;
                float value = a->row(a->row_user, loss, z, classes, label, scale, dz, &hit);
                value *= a->share ? a->share->ratio * head : 1.0f;
                score->loss_sum = mfl_fixed_loss_add(score->loss_sum, mfl_fixed_loss(value));
                score->n_correct += main && hit;
                score->n_scored += main;
                if (score->tally && a->tally != MFL_TALLY_NONE && main)
                        mfl_tally_label(a->tally, score->tally, (uint32_t)classes, (uint32_t)label,
                                best_of(z, classes));
        }
}

static float label_loss(const void *user, const struct mfl_loss *loss, const float *z, int classes, int label,
        float scale, float *dz, bool *ret_hit)
{
        return mfl_label_loss(loss, z, classes, label, scale, dz, ret_hit);
}

void mfl_host_loss(const struct mfl_host_loss *a, const float *z, float *dz, struct mfl_score *score)
{
        struct mfl_host_loss own = *a;
        const struct mfl_split *split = a->data->split;
        size_t n = (size_t)a->graph->classes * (size_t)a->graph->positions;
        size_t each = mfl_dataset_labels_per_sample(a->data->dataset);
        own.row = a->row ? a->row : label_loss;
        for (uint32_t r = 0; r < a->rows; r++, z += n, dz = dz ? dz + n : NULL) {
                size_t sample = a->index[r];
                if (mfl_loss_answers(a->loss->kind) == MFL_ANSWERS_TARGETS)
                        against_targets(a, (int)n, split->targets + sample * n,
                                a->share ? a->share->scale : 0.0f, z, dz, score);
                else
                        against_labels(&own, split->labels + sample * each, z, dz, score);
        }
}

void mfl_host_device_info(struct mfl_device_info *info)
{
        char line[256], model[96] = "CPU";
        FILE *f = fopen("/proc/cpuinfo", "re");
        while (f && fgets(line, sizeof line, f))
                if (sscanf(line, "model name : %95[^\n]", model) == 1)
                        break;
        if (f)
                fclose(f);
        mfl_strcpy(info->name, sizeof info->name, model);
        info->cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
        info->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

int mfl_host_check_options(const struct mfl_net_options *options, struct mfl_error *err)
{
        if (options->batch < 1 || options->groups < 1 || options->threads < 1)
                return mfl_fail(err, MFL_INVALID, "batch %d, groups %d, threads %d: each must be at least 1",
                        options->batch, options->groups, options->threads);
        if (options->precision != MFL_PRECISION_FP32)
                return mfl_fail(err, MFL_INVALID, "precision %s needs the cuda backend%s",
                        mfl_precision_name(options->precision),
                        options->precision == MFL_PRECISION_BF16
                                ? ", or cpu on a processor with avx512_bf16 or amx_bf16"
                                : "");
        if (options->infer && (options->training || options->groups != 1))
                return mfl_fail(
                        err, MFL_INVALID, "a network for inference does not train, and has one group");
        if (options->segments < MFL_SEGMENTS_AUTO || options->segments > MFL_SEGMENTS_MAX)
                return mfl_fail(err, MFL_INVALID, "%d segments: must be 0 to %d", options->segments,
                        MFL_SEGMENTS_MAX);
        if (options->augment.crop < 0 || options->augment.crop > CROP_MAX)
                return mfl_fail(
                        err, MFL_INVALID, "crop %d: must be 0 to %d", options->augment.crop, CROP_MAX);
        return 0;
}
