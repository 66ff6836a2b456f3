/* SPDX-License-Identifier: Apache-2.0 */
/* Tells apart two data sets of one name: daemons that share a population must hold the same samples. */
#include "client/service/fingerprint.h"
#include "common/base/digest.h"

static int add_u64(struct mfl_sha256 *sha, uint64_t v, struct mfl_error *err)
{
        uint8_t bytes[8];
        for (int i = 0; i < 8; i++)
                bytes[i] = (uint8_t)(v >> 8 * i);
        return mfl_sha256_update(sha, bytes, sizeof(bytes), err);
}

static int add_part(
        struct mfl_sha256 *sha, uint64_t tag, const void *data, size_t bytes, struct mfl_error *err)
{
        int r = add_u64(sha, tag, err);
        return r ? r : mfl_sha256_update(sha, data, bytes, err);
}

/* What only some data sets have comes last, after a tag: the fingerprints of other data sets stay the
 * same. */
enum {
        TAG_TARGETS = 0x7461726a,
        TAG_OWNERS,
        TAG_TOKENS,
        TAG_SYMBOLS,
        TAG_WORDS,
};

static int add_split(struct mfl_sha256 *sha, const struct mfl_dataset *dataset, const struct mfl_split *split,
        struct mfl_error *err)
{
        size_t n = split->n;
        int r = add_u64(sha, split->n, err);
        if (!r)
                r = add_u64(sha, (uint64_t)split->dtype, err);
        if (!r)
                r = mfl_sha256_update(sha, split->samples,
                        n * (size_t)mfl_shape_count(&dataset->shape) * mfl_dtype_bytes(split->dtype), err);
        if (!r && split->labels)
                r = mfl_sha256_update(sha, split->labels,
                        n * mfl_dataset_labels_per_sample(dataset) * sizeof(*split->labels), err);
        if (!r && split->targets)
                r = add_part(sha, TAG_TARGETS, split->targets,
                        n * (size_t)dataset->n_targets * sizeof(*split->targets), err);
        if (!r && split->owner)
                r = add_part(sha, TAG_OWNERS, split->owner, n * sizeof(*split->owner), err);
        return r;
}

static int add_tokens(struct mfl_sha256 *sha, const struct mfl_dataset *dataset, struct mfl_error *err)
{
        uint64_t numbers[] = {(uint64_t)dataset->vocabulary, mfl_dataset_labels_per_sample(dataset)};
        int r = add_u64(sha, TAG_TOKENS, err);
        for (size_t i = 0; !r && i < MFL_ARRAY_SIZE(numbers); i++)
                r = add_u64(sha, numbers[i], err);
        if (!r && dataset->symbols)
                r = add_part(sha, TAG_SYMBOLS, dataset->symbols,
                        (size_t)dataset->vocabulary * sizeof(*dataset->symbols), err);
        for (int i = 0; !r && dataset->words && i < dataset->vocabulary - MFL_TOKEN_FIRST; i++)
                r = add_part(sha, TAG_WORDS, dataset->words[i], strlen(dataset->words[i]), err);
        return r;
}

static int add_dataset(struct mfl_sha256 *sha, const struct mfl_dataset *dataset, struct mfl_error *err)
{
        size_t channels =
                (size_t)MFL_MIN(dataset->shape.rank == 3 ? dataset->shape.dim[0] : 1, MFL_CHANNELS_MAX);
        int r = add_u64(sha, (uint64_t)dataset->classes, err);
        for (int i = 0; !r && i < dataset->shape.rank; i++)
                r = add_u64(sha, (uint64_t)dataset->shape.dim[i], err);
        if (!r)
                r = mfl_sha256_update(sha, dataset->scale, channels * sizeof(float), err);
        if (!r)
                r = mfl_sha256_update(sha, dataset->shift, channels * sizeof(float), err);
        if (!r && dataset->vocabulary)
                r = add_tokens(sha, dataset, err);
        if (!r)
                r = add_split(sha, dataset, &dataset->train, err);
        return r ? r : add_split(sha, dataset, &dataset->test, err);
}

int mfl_client_fingerprint(
        const struct mfl_dataset *dataset, uint64_t *ret_fingerprint, struct mfl_error *err)
{
        struct mfl_sha256 sha = {0};
        uint8_t digest[MFL_SHA256_BYTES];
        int r = mfl_sha256_init(&sha, err);
        if (!r)
                r = add_dataset(&sha, dataset, err);
        if (!r)
                r = mfl_sha256_final(&sha, digest, err);
        mfl_sha256_deinit(&sha);
        if (!r)
                *ret_fingerprint = mfl_sha256_number(digest);
        return r;
}
