/* SPDX-License-Identifier: Apache-2.0 */
/* Turns an array from a file into samples and labels. */
#include "common/data/formats.h"

#include <math.h>
#include <stdio.h>

size_t mfl_array_element_bytes(enum mfl_array_type type)
{
        static const size_t bytes[] = {[MFL_ARRAY_U8] = 1,
                [MFL_ARRAY_I8] = 1,
                [MFL_ARRAY_I32] = 4,
                [MFL_ARRAY_I64] = 8,
                [MFL_ARRAY_F32] = 4,
                [MFL_ARRAY_F64] = 8};
        mfl_assert((size_t)type < MFL_ARRAY_SIZE(bytes));
        return bytes[type];
}

static const char *type_name(enum mfl_array_type type)
{
        static const char *const names[] = {[MFL_ARRAY_U8] = "u8",
                [MFL_ARRAY_I8] = "i8",
                [MFL_ARRAY_I32] = "i32",
                [MFL_ARRAY_I64] = "i64",
                [MFL_ARRAY_F32] = "f32",
                [MFL_ARRAY_F64] = "f64"};
        return names[type];
}

/* "60000x28x28 of u8" */
static const char *array_text(const struct mfl_array *array, char *buf, size_t buf_bytes)
{
        size_t n = 0;
        for (int i = 0; i < array->rank && n < buf_bytes; i++)
                n += (size_t)snprintf(
                        buf + n, buf_bytes - n, "%s%llu", i ? "x" : "", (unsigned long long)array->dim[i]);
        if (n < buf_bytes)
                snprintf(buf + n, buf_bytes - n, " of %s", type_name(array->type));
        return buf;
}

int mfl_array_check(struct mfl_array *array, size_t n_bytes, const char *path, struct mfl_error *err)
{
        char text[128];
        uint64_t count = 1, bytes = 0;
        bool over = false, empty = false;
        for (int i = 0; i < array->rank; i++) {
                over |= __builtin_mul_overflow(count, array->dim[i], &count);
                empty |= !array->dim[i];
        }
        if (empty)
                return mfl_fail(
                        err, MFL_INVALID, "%s: %s is empty", path, array_text(array, text, sizeof text));
        over |= __builtin_mul_overflow(count, mfl_array_element_bytes(array->type), &bytes);
        over |= __builtin_add_overflow(bytes, array->offset, &bytes);
        if (over)
                return mfl_fail(err, MFL_INVALID, "%s: declares %s, more than any file holds", path,
                        array_text(array, text, sizeof text));
        if (bytes != n_bytes)
                return mfl_fail(err, MFL_INVALID, "%s: %s: declares %s, %llu bytes in all, but has %zu", path,
                        n_bytes < bytes ? "truncated" : "too long", array_text(array, text, sizeof text),
                        (unsigned long long)bytes, n_bytes);
        if (array->dim[0] > INT32_MAX)
                return mfl_fail(err, MFL_INVALID, "%s: %llu samples; the limit is %d", path,
                        (unsigned long long)array->dim[0], INT32_MAX);
        array->count = count;
        return 0;
}

static uint64_t load_bits(const uint8_t *p, size_t bytes, bool big_endian)
{
        uint64_t v = 0;
        for (size_t i = 0; i < bytes; i++)
                v = v << 8 | p[big_endian ? i : bytes - 1 - i];
        return v;
}

/* A float; NAN for an integer that no float represents exactly. */
static float load_float(const struct mfl_array *array, const uint8_t *p)
{
        if (array->type == MFL_ARRAY_I32 || array->type == MFL_ARRAY_I64) {
                int64_t v = array->type == MFL_ARRAY_I32 ? (int32_t)load_bits(p, 4, array->big_endian)
                                                         : (int64_t)load_bits(p, 8, array->big_endian);
                return v >= -(1 << 24) && v <= 1 << 24 ? (float)v : NAN;
        }
        if (array->type == MFL_ARRAY_U8 || array->type == MFL_ARRAY_I8)
                return array->type == MFL_ARRAY_U8 ? *p : (int8_t)*p;
        if (array->type == MFL_ARRAY_F32) {
                uint32_t bits = (uint32_t)load_bits(p, 4, array->big_endian);
                float f;
                memcpy(&f, &bits, sizeof f);
                return f;
        }
        uint64_t bits = load_bits(p, 8, array->big_endian);
        double d;
        memcpy(&d, &bits, sizeof d);
        return (float)d;
}

int mfl_sample_shape_check(const struct mfl_shape *shape, const char *what, struct mfl_error *err)
{
        uint64_t count = 1;
        if (shape->rank < 1 || shape->rank > 3)
                return mfl_fail(err, MFL_INVALID,
                        "%s: samples of %d dimensions; {features}, {positions, features} and {channels, "
                        "height, width} are possible",
                        what, shape->rank);
        for (int i = 0; i < shape->rank; i++)
                if (shape->dim[i] < 1 || __builtin_mul_overflow(count, (uint64_t)shape->dim[i], &count) ||
                        count > INT32_MAX)
                        return mfl_fail(err, MFL_INVALID,
                                "%s: dimension %d of a sample is %lld; a sample has 1 to %d elements", what,
                                i, (long long)shape->dim[i], INT32_MAX);
        if (shape->rank == 3 && shape->dim[0] > MFL_CHANNELS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "%s: %lld channels; the limit is %d; images are (n, channels, height, width): are "
                        "these channels last?",
                        what, (long long)shape->dim[0], MFL_CHANNELS_MAX);
        return 0;
}

static int sample_shape(const struct mfl_array *array, const struct mfl_shape *wanted, const char *path,
        struct mfl_shape *ret_shape, struct mfl_error *err)
{
        struct mfl_shape shape = {0};
        if (array->rank < 2)
                return mfl_fail(err, MFL_INVALID,
                        "%s: samples of %d dimension; (n, features), (n, height, width), "
                        "(n, channels, height, width) and (n, channels, depth, height, width) are possible",
                        path, array->rank);
        if (array->rank == 3)
                shape.dim[shape.rank++] = 1;
        for (int i = 1; i < array->rank; i++)
                shape.dim[shape.rank++] = array->dim[i] > INT32_MAX ? INT64_MAX : (int64_t)array->dim[i];
        if (shape.rank == 4) { /* a volume's slices lie one above the other */
                shape.dim[1] = MFL_MIN(shape.dim[1], INT32_MAX) * MFL_MIN(shape.dim[2], INT32_MAX);
                shape.dim[2] = shape.dim[3];
                shape.rank = 3;
        }
        int r = wanted && wanted->rank ? mfl_sample_shape_check(wanted, "shape", err)
                                       : mfl_sample_shape_check(&shape, path, err);
        if (r)
                return r;
        if (wanted && wanted->rank) {
                uint64_t each = array->count / array->dim[0];
                if ((uint64_t)mfl_shape_count(wanted) != each)
                        return mfl_fail(err, MFL_INVALID,
                                "%s: %llu elements per sample, but the configured shape has %lld", path,
                                (unsigned long long)each, (long long)mfl_shape_count(wanted));
                shape = *wanted;
        }
        *ret_shape = shape;
        return 0;
}

int mfl_array_to_samples(const struct mfl_array *array, uint8_t *bytes, const struct mfl_shape *shape,
        const char *path, struct mfl_shape *ret_shape, enum mfl_dtype *ret_dtype, uint32_t *ret_n,
        struct mfl_error *err)
{
        size_t size = mfl_array_element_bytes(array->type);
        bool is_float = array->type != MFL_ARRAY_U8; /* or becomes one */
        if (array->type == MFL_ARRAY_I8)
                return mfl_fail(err, MFL_INVALID, "%s: samples of %s; u8, i32, i64, f32 and f64 are possible",
                        path, type_name(array->type));
        struct mfl_shape made;
        int r = sample_shape(array, shape, path, &made, err);
        if (r)
                return r;
        const uint8_t *from = bytes + array->offset;
        if (!is_float)
                memmove(bytes, from, array->count);
        /* Front to back: float i lands before element i of the file, never on one that is still to be read. */
        for (uint64_t i = 0; is_float && i < array->count; i++) {
                float f = load_float(array, from + i * size);
                if (!isfinite(f))
                        return mfl_fail(err, MFL_INVALID,
                                "%s: sample %llu has a value that is not a finite float%s", path,
                                (unsigned long long)(i / (array->count / array->dim[0])),
                                array->type == MFL_ARRAY_I32 || array->type == MFL_ARRAY_I64
                                        ? " exactly: integers are exact up to 2^24"
                                        : "");
                memcpy(bytes + i * sizeof f, &f, sizeof f);
        }
        *ret_shape = made;
        *ret_dtype = is_float ? MFL_F32 : MFL_U8;
        *ret_n = (uint32_t)array->dim[0];
        return 0;
}

static int64_t load_label(const struct mfl_array *array, const uint8_t *p)
{
        switch (array->type) {
        case MFL_ARRAY_U8:
                return p[0];
        case MFL_ARRAY_I8:
                return (int8_t)p[0];
        case MFL_ARRAY_I32:
                return (int32_t)load_bits(p, 4, array->big_endian);
        default:
                return (int64_t)load_bits(p, 8, array->big_endian);
        }
}

int mfl_array_to_labels(const struct mfl_array *array, const uint8_t *bytes, const char *path,
        int32_t **ret_labels, uint32_t *ret_n, struct mfl_error *err)
{
        size_t size = mfl_array_element_bytes(array->type);
        if (array->type == MFL_ARRAY_F32 || array->type == MFL_ARRAY_F64)
                return mfl_fail(err, MFL_INVALID, "%s: labels of %s; labels must be integers", path,
                        type_name(array->type));
        if (array->rank != 1 &&
                (array->rank != 2 || array->dim[1] != 1)) /* a column will do as well as a row */
                return mfl_fail(err, MFL_INVALID,
                        "%s: labels of %d dimensions; labels have 1, one per sample: y.argmax(1) turns "
                        "one-hot rows into labels",
                        path, array->rank);
        int32_t *labels = mfl_calloc(array->count, sizeof *labels);
        if (!labels)
                return mfl_fail_memory(err, array->count * sizeof *labels, path);
        for (uint64_t i = 0; i < array->count; i++) {
                int64_t label = load_label(array, bytes + array->offset + i * size);
                if (label < 0 || label >= MFL_CLASSES_MAX) {
                        free(labels);
                        return mfl_fail(err, MFL_INVALID, "%s: label %lld of sample %llu; labels are 0 to %d",
                                path, (long long)label, (unsigned long long)i, MFL_CLASSES_MAX - 1);
                }
                labels[i] = (int32_t)label;
        }
        *ret_labels = labels;
        *ret_n = (uint32_t)array->count;
        return 0;
}

int mfl_array_to_label_maps(const struct mfl_array *array, const uint8_t *bytes, const char *path,
        const struct mfl_shape *shape, int32_t **ret_labels, int *ret_each, uint32_t *ret_n,
        struct mfl_error *err)
{
        size_t size = mfl_array_element_bytes(array->type);
        int first = array->rank - 2;
        char text[96];
        bool fits = shape->rank == 3 && (array->rank == 3 || (array->rank == 4 && array->dim[1] == 1)) &&
                    array->dim[first] == (uint64_t)shape->dim[1] &&
                    array->dim[first + 1] == (uint64_t)shape->dim[2];
        fits = fits || (shape->rank <= 2 && array->rank == 2 && array->dim[1] == (uint64_t)shape->dim[0]);
        if (!fits)
                return mfl_fail(err, MFL_INVALID,
                        "%s: labels of %d dimensions, the samples are %s; labels are (n), or (n, height, "
                        "width) with one for each pixel of images (n, channels, height, width), or (n, "
                        "positions) "
                        "with one for each token or row",
                        path, array->rank, mfl_shape_text(shape, text, sizeof text));
        int32_t *labels = mfl_calloc(array->count, sizeof *labels);
        if (!labels)
                return mfl_fail_memory(err, array->count * sizeof *labels, path);
        for (uint64_t i = 0; i < array->count; i++) {
                int64_t label = load_label(array, bytes + array->offset + i * size);
                labels[i] = (int32_t)MFL_MIN(MFL_MAX(label, INT32_MIN), INT32_MAX);
        }
        *ret_labels = labels;
        *ret_each = (int)(array->count / array->dim[0]);
        *ret_n = (uint32_t)array->dim[0];
        return 0;
}

bool mfl_array_is_float(const struct mfl_array *array)
{
        return array->type == MFL_ARRAY_F32 || array->type == MFL_ARRAY_F64;
}

int mfl_array_to_targets(const struct mfl_array *array, const uint8_t *bytes, const char *path,
        float **ret_targets, int *ret_n_targets, uint32_t *ret_n, struct mfl_error *err)
{
        size_t size = mfl_array_element_bytes(array->type);
        uint64_t each = array->count / array->dim[0];
        if (array->rank > 2 || each > MFL_TARGETS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "%s: targets of %d dimensions and %llu values per sample; (n) and (n, targets) with "
                        "at most %d are possible",
                        path, array->rank, (unsigned long long)each, MFL_TARGETS_MAX);
        float *targets = mfl_calloc(array->count, sizeof *targets);
        if (!targets)
                return mfl_fail_memory(err, array->count * sizeof *targets, path);
        for (uint64_t i = 0; i < array->count; i++) {
                targets[i] = load_float(array, bytes + array->offset + i * size);
                if (!isfinite(targets[i])) {
                        free(targets);
                        return mfl_fail(err, MFL_INVALID, "%s: target %llu is not a finite float", path,
                                (unsigned long long)i);
                }
        }
        *ret_targets = targets;
        *ret_n_targets = (int)each;
        *ret_n = (uint32_t)array->dim[0];
        return 0;
}
