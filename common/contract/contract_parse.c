/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a contract from JSON that comes from a daemon or a file. Unknown keys are of later versions, and ignored. */
#include "common/contract/internal.h"

#include "common/base/plain.h"

#include <jansson.h>
#include <math.h>

#define DIM_MAX (1 << 24)
#define COUNT_MAX ((int64_t)1 << 31)

struct reading {
        const json_t *top;
        const char *from;
        struct mfl_error *err;
};

static int fail(const struct reading *r, const char *key, const char *expected)
{
        return mfl_fail(r->err, MFL_INVALID, "%.200s: contract: %s: expected %s", r->from, key, expected);
}

/* A missing key leaves *value as it is. */
static int read_number(const struct reading *r, const char *key, int min, int max, int *value)
{
        const json_t *v = json_object_get(r->top, key);
        if (!v)
                return 0;
        if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
                return fail(r, key, "a whole number in its range");
        *value = (int)json_integer_value(v);
        return 0;
}

static int read_name(
        const struct reading *r, const char *key, const char *const *names, int *value, bool *ret_there)
{
        const json_t *v = json_object_get(r->top, key);
        const char *text = json_string_value(v);
        *ret_there = v != NULL;
        if (!v)
                return 0;
        for (int i = 0; text && names[i]; i++)
                if (!strcmp(names[i], text)) {
                        *value = i;
                        return 0;
                }
        return fail(r, key, "a name that this version knows");
}

static int read_text(const struct reading *r, const char *key, char *value, size_t bytes)
{
        const json_t *v = json_object_get(r->top, key);
        if (!v)
                return 0;
        if (!json_is_string(v) || !mfl_strcpy(value, bytes, json_string_value(v)))
                return fail(r, key, "a short text");
        mfl_plain_clean(value, false);
        return 0;
}

static int read_shape(const struct reading *r, struct mfl_shape *shape)
{
        const json_t *list = json_object_get(r->top, "shape");
        size_t n = json_array_size(list);
        int64_t count = 1;
        if (n < 1 || n > MFL_SHAPE_RANK_MAX)
                return fail(r, "shape", "1 to 4 numbers");
        for (size_t i = 0; i < n; i++) {
                const json_t *v = json_array_get(list, i);
                json_int_t dim = json_is_integer(v) ? json_integer_value(v) : 0;
                if (dim < 1 || dim > DIM_MAX || (count *= dim) > COUNT_MAX)
                        return fail(r, "shape", "whole numbers above 0, with a product of at most 2^31");
                shape->dim[shape->rank++] = dim;
        }
        return 0;
}

static int read_reals(const struct reading *r, const char *key, int n, double *v)
{
        const json_t *list = json_object_get(r->top, key);
        if (!json_is_array(list) || json_array_size(list) != (size_t)n)
                return fail(r, key, "a number for each channel or feature");
        for (int i = 0; i < n; i++) {
                const json_t *x = json_array_get(list, (size_t)i);
                v[i] = json_number_value(x);
                if (!json_is_number(x) || !isfinite(v[i]))
                        return fail(r, key, "finite numbers");
        }
        return 0;
}

static int read_scale(const struct reading *r, struct mfl_contract *c)
{
        double scale[MFL_CHANNELS_MAX], shift[MFL_CHANNELS_MAX];
        const json_t *list = json_object_get(r->top, "scale");
        int n = c->shape.rank == 3 ? (int)c->shape.dim[0] : 1;
        if (!list)
                return 0;
        if (n > MFL_CHANNELS_MAX || c->vocabulary)
                return fail(r, "scale", "none for tokens or more than 16 channels");
        int rc = read_reals(r, "scale", n, scale);
        if (!rc)
                rc = read_reals(r, "shift", n, shift);
        for (int i = 0; !rc && i < n; i++) {
                c->scale[i] = (float)scale[i];
                c->shift[i] = (float)shift[i];
                if (!isfinite(c->scale[i]) || !isfinite(c->shift[i]))
                        rc = fail(r, "scale", "numbers that floats can hold");
        }
        c->n_channels = rc ? 0 : n;
        return rc;
}

static int read_columns(const struct reading *r, struct mfl_contract *c)
{
        size_t n = (size_t)c->shape.dim[c->shape.rank - 1];
        const json_t *list = json_object_get(r->top, "mean");
        if (!list)
                return 0;
        if (c->dtype != MFL_F32)
                return fail(r, "mean", "none for bytes or tokens");
        if (json_array_size(list) != n)
                return fail(r, "mean", "a number for each feature");
        c->feature_mean = mfl_calloc(2 * n, sizeof *c->feature_mean);
        if (!c->feature_mean)
                return mfl_fail_memory(r->err, 2 * n * sizeof *c->feature_mean, "a contract");
        c->feature_std = c->feature_mean + n;
        c->n_features = (int)n;
        int rc = read_reals(r, "mean", (int)n, c->feature_mean);
        if (!rc)
                rc = read_reals(r, "std", (int)n, c->feature_std);
        for (size_t i = 0; !rc && i < n; i++)
                if (!(c->feature_std[i] > 0))
                        rc = fail(r, "std", "numbers above 0");
        return rc;
}

static int read_names(const struct reading *r, const char *key, int64_t n, char ***ret_names)
{
        const json_t *list = json_object_get(r->top, key);
        size_t bytes = (size_t)MFL_MAX(n, 0) * sizeof **ret_names;
        if (!list)
                return 0;
        if (n < 1 || json_array_size(list) != (size_t)n)
                return fail(r, key, "as many names as there are numbers");
        for (size_t i = 0; i < (size_t)n; i++) {
                if (!json_is_string(json_array_get(list, i)))
                        return fail(r, key, "texts");
                bytes += json_string_length(json_array_get(list, i)) + 1;
        }
        char **names = mfl_malloc(bytes);
        if (!names)
                return mfl_fail_memory(r->err, bytes, "names of a contract");
        char *at = (char *)(names + n);
        for (size_t i = 0; i < (size_t)n; i++) {
                const json_t *v = json_array_get(list, i);
                names[i] = memcpy(at, json_string_value(v), json_string_length(v) + 1);
                at += json_string_length(v) + 1;
                mfl_plain_clean(names[i], false);
        }
        *ret_names = names;
        return 0;
}

static int read_symbols(const struct reading *r, struct mfl_contract *c)
{
        const json_t *list = json_object_get(r->top, "symbols");
        size_t n = (size_t)c->vocabulary;
        if (!list)
                return 0;
        if (!n || json_array_size(list) != n)
                return fail(r, "symbols", "as many code points as the vocabulary has");
        c->symbols = mfl_calloc(n, sizeof *c->symbols);
        if (!c->symbols)
                return mfl_fail_memory(r->err, n * sizeof *c->symbols, "symbols of a contract");
        for (size_t i = 0; i < n; i++) {
                const json_t *v = json_array_get(list, i);
                json_int_t code = json_is_integer(v) ? json_integer_value(v) : -1;
                if (code < 0 || code > 0x10ffff || (i && code <= (json_int_t)c->symbols[i - 1]))
                        return fail(r, "symbols", "rising code points");
                c->symbols[i] = (uint32_t)code;
        }
        return 0;
}

static int read_sites(const struct reading *r, struct mfl_contract *c)
{
        const json_t *list = json_object_get(r->top, "sites");
        if (!list)
                return 0;
        if (json_array_size(list) > MFL_CONTRACT_SITES_MAX)
                return fail(r, "sites", "at most 16 names");
        for (size_t i = 0; i < json_array_size(list); i++) {
                const char *name = json_string_value(json_array_get(list, i));
                if (!name || !mfl_strcpy(c->sites[c->n_sites], sizeof c->sites[0], name))
                        return fail(r, "sites", "names");
                mfl_plain_clean(c->sites[c->n_sites++], false);
        }
        return 0;
}

static int read_numbers(const struct reading *r, struct mfl_contract *c)
{
        int dtype = MFL_F32, tokens = MFL_TOKENS_NUMBERS, loss = 0;
        bool there;
        int rc = read_text(r, "data", c->data, sizeof c->data);
        if (!rc)
                rc = read_text(r, "from", c->from, sizeof c->from);
        if (!rc)
                rc = read_shape(r, &c->shape);
        if (!rc)
                rc = read_name(r, "type", mfl_contract_types, &dtype, &there);
        if (!rc)
                rc = read_text(r, "unit", c->unit, sizeof c->unit);
        if (!rc)
                rc = read_number(r, "classes", 0, MFL_CLASSES_MAX, &c->classes);
        if (!rc)
                rc = read_number(r, "targets", 0, MFL_TARGETS_MAX, &c->n_targets);
        c->labels_per_sample = 1;
        if (!rc)
                rc = read_number(r, "labels_per_sample", 1, DIM_MAX, &c->labels_per_sample);
        if (!rc)
                rc = read_number(r, "vocabulary", 0, 1 << 24, &c->vocabulary);
        if (!rc)
                rc = read_name(r, "tokens", mfl_contract_tokens, &tokens, &there);
        if (!rc)
                rc = read_name(r, "loss", mfl_contract_losses, &loss, &c->has_loss);
        c->dtype = (enum mfl_dtype)dtype;
        c->tokens = (enum mfl_token_kind)tokens;
        c->loss = (enum mfl_loss_kind)loss;
        c->normalised = json_is_true(json_object_get(r->top, "normalised"));
        return !rc && (c->dtype == MFL_I32) != (c->vocabulary > 0) ? fail(r, "type", "i32 for tokens alone")
                                                                   : rc;
}

static int read_all(const struct reading *r, struct mfl_contract *c)
{
        int rc = read_numbers(r, c);
        if (!rc)
                rc = read_scale(r, c);
        if (!rc)
                rc = read_columns(r, c);
        if (!rc)
                rc = read_sites(r, c);
        if (!rc)
                rc = read_names(r, "class_names", c->classes, &c->class_names);
        if (!rc)
                rc = read_names(r, "feature_names", c->shape.dim[c->shape.rank - 1], &c->feature_names);
        if (!rc)
                rc = read_names(r, "words", (int64_t)c->vocabulary - MFL_TOKEN_FIRST, &c->words);
        return rc ? rc : read_symbols(r, c);
}

int mfl_contract_parse(
        const char *text, const char *from, struct mfl_contract **ret_contract, struct mfl_error *err)
{
        json_error_t why;
        struct mfl_contract *c = mfl_calloc(1, sizeof *c);
        if (!c)
                return mfl_fail_memory(err, sizeof *c, "a contract");
        json_t *top =
                strlen(text) <= MFL_CONTRACT_TEXT_MAX ? json_loads(text, JSON_REJECT_DUPLICATES, &why) : NULL;
        struct reading reading = {top, from, err};
        int r = json_is_object(top) ? read_all(&reading, c)
                                    : mfl_fail(err, MFL_INVALID,
                                              "%.200s: contract: not a JSON object of at most 512 KiB", from);
        json_decref(top);
        if (r)
                mfl_contract_free(c);
        else
                *ret_contract = c;
        return r;
}
