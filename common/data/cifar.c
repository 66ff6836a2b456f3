/* SPDX-License-Identifier: Apache-2.0 */
/* CIFAR-10 binary batches (https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version"), from bytes in
 * memory. */
#include "common/data/formats.h"

#define RECORD_BYTES (1 + MFL_CIFAR_IMAGE_BYTES)
#define CLASSES 10

int mfl_cifar_append(const uint8_t *bytes, size_t n_bytes, const char *path, struct mfl_split *split,
        struct mfl_error *err)
{
        size_t n = n_bytes / RECORD_BYTES, before = split->n;
        if (!n || n_bytes % RECORD_BYTES)
                return mfl_fail(err, MFL_INVALID, "%s: %zu bytes are no whole number of records of %d", path,
                        n_bytes, RECORD_BYTES);
        if (n > INT32_MAX - before)
                return mfl_fail(err, MFL_INVALID, "%s: over %d samples in all", path, INT32_MAX);
        for (size_t i = 0; i < n; i++)
                if (bytes[i * RECORD_BYTES] >= CLASSES)
                        return mfl_fail(err, MFL_INVALID, "%s: label %d of record %zu; labels are 0 to %d",
                                path, bytes[i * RECORD_BYTES], i, CLASSES - 1);

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
                const uint8_t *record = bytes + i * RECORD_BYTES;
                labels[before + i] = record[0];
                memcpy((uint8_t *)samples + (before + i) * MFL_CIFAR_IMAGE_BYTES, record + 1,
                        MFL_CIFAR_IMAGE_BYTES);
        }
        split->n = (uint32_t)(before + n);
        return 0;
}
