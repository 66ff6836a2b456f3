/* SPDX-License-Identifier: Apache-2.0 */
/* What the labels and tokens of a data set mean: sites that train one model must agree on it. */
#include "common/data/dataset.h"
#include "common/base/digest.h"

#define CATEGORIES_REST (((uint64_t)1 << 40) - 1)

static int add_number(struct mfl_sha256 *sha, uint32_t v, struct mfl_error *err)
{
        const uint8_t bytes[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
        return mfl_sha256_update(sha, bytes, sizeof bytes, err);
}

static int add_text(struct mfl_sha256 *sha, const char *text, struct mfl_error *err)
{
        return mfl_sha256_update(sha, text, strlen(text) + 1, err);
}

static int add_meaning(struct mfl_sha256 *sha, const struct mfl_dataset *d, struct mfl_error *err)
{
        static const char *const kinds[] = {[MFL_TOKENS_PLAIN] = "bytes",
                [MFL_TOKENS_NUMBERS] = "classes",
                [MFL_TOKENS_BYTES] = "padded bytes",
                [MFL_TOKENS_WORDS] = "words"};
        int r = add_text(sha, d->symbols ? "symbols" : d->vocabulary ? kinds[d->tokens] : "classes", err);
        for (int i = 0; !r && d->words && i < d->vocabulary - MFL_TOKEN_FIRST; i++)
                r = add_text(sha, d->words[i], err);
        for (int i = 0; !r && d->symbols && i < d->vocabulary; i++)
                r = add_number(sha, d->symbols[i], err);
        for (int i = 0; !r && d->class_names && i < d->classes; i++)
                r = add_text(sha, d->class_names[i], err);
        if (!r && d->encoding)
                r = add_text(sha, "categories", err);
        return r || !d->encoding ? r : add_text(sha, d->encoding, err);
}

int mfl_dataset_meaning(const struct mfl_dataset *dataset, uint64_t *ret_meaning, struct mfl_error *err)
{
        struct mfl_sha256 sha = {0};
        uint8_t digest[MFL_SHA256_BYTES];
        bool tokens = dataset->vocabulary && dataset->tokens != MFL_TOKENS_NUMBERS;
        if (!tokens && !dataset->class_names && !dataset->encoding) {
                *ret_meaning = 0;
                return 0;
        }
        int r = mfl_sha256_init(&sha, err);
        if (!r)
                r = add_meaning(&sha, dataset, err);
        if (!r)
                r = mfl_sha256_final(&sha, digest, err);
        mfl_sha256_deinit(&sha);
        if (r)
                return r;
        *ret_meaning = MFL_MAX(mfl_sha256_number(digest), (uint64_t)1);
        if (dataset->encoding)
                *ret_meaning = (*ret_meaning & CATEGORIES_REST) | (uint64_t)MFL_MEANING_CATEGORIES << 40;
        return 0;
}

bool mfl_meaning_agrees(uint64_t a, uint64_t b)
{
        bool told = (a && b) || a >> 40 == MFL_MEANING_CATEGORIES || b >> 40 == MFL_MEANING_CATEGORIES;
        return !told || a == b;
}
