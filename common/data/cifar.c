/* SPDX-License-Identifier: Apache-2.0 */
/* CIFAR-10 and CIFAR-100 binary batches (https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version"), from
 * bytes in memory. */
#include "common/data/formats.h"

const struct mfl_cifar_kind mfl_cifar10 = {1, 0, 10}, mfl_cifar100_fine = {2, 1, 100},
                            mfl_cifar100_coarse = {2, 0, 20};

int mfl_cifar_append(const uint8_t *bytes, size_t n_bytes, const char *path,
        const struct mfl_cifar_kind *kind, struct mfl_split *split, struct mfl_error *err)
{
        size_t record_bytes = (size_t)kind->label_bytes + MFL_CIFAR_IMAGE_BYTES;
        size_t n = n_bytes / record_bytes, before = split->n;
        if (!n || n_bytes % record_bytes)
                return mfl_fail(err, MFL_INVALID, "%s: %zu bytes is not a multiple of the record size, %zu",
                        path, n_bytes, record_bytes);
        if (n > INT32_MAX - before)
                return mfl_fail(err, MFL_INVALID, "%s: more than %d samples in all", path, INT32_MAX);
        for (size_t i = 0; i < n; i++)
                if (bytes[i * record_bytes + (size_t)kind->label] >= kind->classes)
                        return mfl_fail(err, MFL_INVALID, "%s: label %d of record %zu; labels are 0 to %d",
                                path, bytes[i * record_bytes + (size_t)kind->label], i, kind->classes - 1);

        size_t sample_bytes = (before + n) * MFL_CIFAR_IMAGE_BYTES,
               label_bytes = (before + n) * sizeof(int32_t);
        void *samples = mfl_realloc(split->samples, sample_bytes);
        if (!samples)
                return mfl_fail_memory(err, sample_bytes, path);
        split->samples = samples;
        int32_t *labels = mfl_realloc(split->labels, label_bytes);
        if (!labels)
                return mfl_fail_memory(err, label_bytes, path);
        split->labels = labels;
        for (size_t i = 0; i < n; i++) {
                const uint8_t *record = bytes + i * record_bytes;
                labels[before + i] = record[kind->label];
                memcpy((uint8_t *)samples + (before + i) * MFL_CIFAR_IMAGE_BYTES, record + kind->label_bytes,
                        MFL_CIFAR_IMAGE_BYTES);
        }
        split->n = (uint32_t)(before + n);
        return 0;
}
