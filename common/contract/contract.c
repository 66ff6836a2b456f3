/* SPDX-License-Identifier: Apache-2.0 */
/* Makes contracts from data sets, and says what they mean. */
#include "common/contract/contract.h"

#include "common/base/digest.h"

void mfl_contract_free(struct mfl_contract *contract)
{
        if (!contract)
                return;
        free(contract->feature_mean);
        free(contract->class_names);
        free(contract->feature_names);
        free(contract->words);
        free(contract->symbols);
        free(contract);
}

/* One allocation: pointers, then texts. */
static int copy_names(char *const *names, int n, char ***ret_names, struct mfl_error *err)
{
        size_t bytes = (size_t)n * sizeof *names;
        if (!names || n <= 0)
                return 0;
        for (int i = 0; i < n; i++)
                bytes += strlen(names[i]) + 1;
        char **copy = mfl_malloc(bytes);
        if (!copy)
                return mfl_fail_memory(err, bytes, "names of a contract");
        char *at = (char *)(copy + n);
        for (int i = 0; i < n; i++) {
                size_t length = strlen(names[i]) + 1;
                copy[i] = memcpy(at, names[i], length);
                at += length;
        }
        *ret_names = copy;
        return 0;
}

static int copy_site_names(const struct mfl_dataset *d, struct mfl_contract *c, struct mfl_error *err)
{
        int r = copy_names(d->class_names, d->classes, &c->class_names, err);
        if (!r)
                r = copy_names(
                        d->feature_names, (int)d->shape.dim[d->shape.rank - 1], &c->feature_names, err);
        if (!r && d->words)
                r = copy_names(d->words, d->vocabulary - MFL_TOKEN_FIRST, &c->words, err);
        if (r || !d->symbols)
                return r;
        size_t bytes = (size_t)d->vocabulary * sizeof *c->symbols;
        c->symbols = mfl_malloc(bytes);
        if (!c->symbols)
                return mfl_fail_memory(err, bytes, "symbols of a contract");
        memcpy(c->symbols, d->symbols, bytes);
        return 0;
}

static int copy_columns(const struct mfl_dataset *d, struct mfl_contract *c, struct mfl_error *err)
{
        if (!d->column_mean)
                return 0;
        size_t width = (size_t)d->shape.dim[d->shape.rank - 1];
        c->feature_mean = mfl_calloc(2 * width, sizeof *c->feature_mean);
        if (!c->feature_mean)
                return mfl_fail_memory(err, 2 * width * sizeof *c->feature_mean, "columns of a contract");
        c->n_features = (int)width;
        c->feature_std = c->feature_mean + width;
        memcpy(c->feature_mean, d->column_mean, width * sizeof *c->feature_mean);
        memcpy(c->feature_std, d->column_std, width * sizeof *c->feature_std);
        return 0;
}

static const char *unit_of(const struct mfl_dataset *d)
{
        if (!d->vocabulary)
                return d->train.dtype == MFL_U8 ? "pixel" : "number";
        if (d->symbols)
                return "character";
        if (d->tokens == MFL_TOKENS_PLAIN || d->tokens == MFL_TOKENS_BYTES)
                return "byte";
        return d->tokens == MFL_TOKENS_WORDS ? "word" : "token";
}

int mfl_contract_of_dataset(const struct mfl_dataset *dataset, bool private,
        struct mfl_contract **ret_contract, struct mfl_error *err)
{
        struct mfl_contract *c = mfl_calloc(1, sizeof *c);
        if (!c)
                return mfl_fail_memory(err, sizeof *c, "a contract");
        c->shape = dataset->shape;
        c->dtype = dataset->train.dtype;
        c->classes = dataset->n_targets ? 0 : dataset->classes;
        c->n_targets = dataset->n_targets;
        c->labels_per_sample = (int)mfl_dataset_labels_per_sample(dataset);
        c->vocabulary = dataset->vocabulary;
        c->tokens = dataset->tokens;
        mfl_strcpy(c->data, sizeof c->data, dataset->name);
        mfl_strcpy(c->unit, sizeof c->unit, unit_of(dataset));
        int r = 0;
        c->normalised = private && dataset->measured && !dataset->share_names;
        if (!c->normalised && !c->vocabulary) {
                c->n_channels = dataset->shape.rank == 3 ? (int)dataset->shape.dim[0] : 1;
                memcpy(c->scale, dataset->scale, sizeof c->scale);
                memcpy(c->shift, dataset->shift, sizeof c->shift);
        }
        if (!c->normalised)
                r = copy_columns(dataset, c, err);
        if (!r && dataset->share_names)
                r = copy_site_names(dataset, c, err);
        if (r)
                mfl_contract_free(c);
        else
                *ret_contract = c;
        return r;
}

int mfl_contract_compare(struct mfl_contract *first, const struct mfl_contract *other, const char *site,
        bool *ret_changed, struct mfl_error *err)
{
        uint64_t a, b;
        int r = mfl_contract_scaling(first, &a, err);
        if (!r)
                r = mfl_contract_scaling(other, &b, err);
        *ret_changed = false;
        if (r || a == b || !strcmp(first->from, site))
                return r;
        for (int i = 0; i < first->n_sites; i++)
                if (!strcmp(first->sites[i], site))
                        return 0;
        *ret_changed = first->n_sites < MFL_CONTRACT_SITES_MAX || !first->normalised;
        first->normalised = true;
        if (first->n_sites < MFL_CONTRACT_SITES_MAX)
                mfl_strcpy(first->sites[first->n_sites++], sizeof first->sites[0], site);
        return 0;
}

int mfl_contract_plain(const struct mfl_shape *shape, int vocabulary, struct mfl_contract **ret_contract,
        struct mfl_error *err)
{
        struct mfl_contract *c = mfl_calloc(1, sizeof *c);
        if (!c)
                return mfl_fail_memory(err, sizeof *c, "a contract");
        c->shape = *shape;
        c->dtype = vocabulary ? MFL_I32 : MFL_F32;
        c->vocabulary = vocabulary;
        c->tokens = MFL_TOKENS_NUMBERS;
        c->normalised = !vocabulary;
        mfl_strcpy(c->unit, sizeof c->unit, vocabulary ? "token" : "number");
        *ret_contract = c;
        return 0;
}

size_t mfl_contract_sample_bytes(const struct mfl_contract *contract)
{
        return (size_t)mfl_shape_count(&contract->shape) * mfl_dtype_bytes(mfl_contract_dtype(contract));
}

enum mfl_dtype mfl_contract_dtype(const struct mfl_contract *contract)
{
        return contract->normalised && contract->dtype == MFL_U8 ? MFL_F32 : contract->dtype;
}

bool mfl_contract_is_classes(const struct mfl_contract *contract)
{
        return !contract->n_targets &&
               (!contract->has_loss || mfl_loss_answers(contract->loss) == MFL_ANSWERS_LABELS);
}

bool mfl_contract_is_binary(const struct mfl_contract *contract)
{
        return contract->has_loss && contract->loss == MFL_LOSS_BINARY;
}

int mfl_contract_scaling(const struct mfl_contract *contract, uint64_t *ret_scaling, struct mfl_error *err)
{
        struct mfl_sha256 sha = {0};
        uint8_t digest[MFL_SHA256_BYTES];
        const uint8_t kind[2] = {(uint8_t)contract->dtype, (uint8_t)contract->n_channels};
        size_t channels = (size_t)contract->n_channels * sizeof *contract->scale,
               features = (size_t)contract->n_features * sizeof *contract->feature_mean;
        int r = mfl_sha256_init(&sha, err);
        if (!r)
                r = mfl_sha256_update(&sha, kind, sizeof kind, err);
        if (!r)
                r = mfl_sha256_update(&sha, contract->scale, channels, err);
        if (!r)
                r = mfl_sha256_update(&sha, contract->shift, channels, err);
        if (!r && features)
                r = mfl_sha256_update(&sha, contract->feature_mean, 2 * features, err);
        if (!r)
                r = mfl_sha256_final(&sha, digest, err);
        mfl_sha256_deinit(&sha);
        if (!r)
                *ret_scaling = MFL_MAX(mfl_sha256_number(digest), (uint64_t)1);
        return r;
}
