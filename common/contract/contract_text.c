/* SPDX-License-Identifier: Apache-2.0 */
/* A contract as JSON on one line. Keys without a value are left out:
 *
 *   data, from               name of the data set, and the site that says so
 *   shape, type, unit        of a sample; type u8, f32 or i32
 *   classes, targets         how many; labels_per_sample above 1: an answer per token or pixel
 *   vocabulary, tokens       of tokens
 *   loss                     as in job files
 *   scale, shift             per channel
 *   mean, std                per feature, before that
 *   normalised, sites        the input must be scaled by the caller, and whose scaling differs
 *   class_names, feature_names, words, symbols (code points)
 */
#include "common/contract/internal.h"

#include <jansson.h>

#define LOSS_NAME(symbol, name, answers, decides) name,
const char *const mfl_contract_losses[] = {MFL_LOSSES(LOSS_NAME) NULL};
const char *const mfl_contract_types[] = {[MFL_U8] = "u8", [MFL_F32] = "f32", [MFL_I32] = "i32", NULL};
const char *const mfl_contract_tokens[] = {[MFL_TOKENS_PLAIN] = "plain",
        [MFL_TOKENS_NUMBERS] = "numbers",
        [MFL_TOKENS_BYTES] = "padded-bytes",
        [MFL_TOKENS_WORDS] = "words",
        NULL};

/* Sets a key; a value that is NULL (out of memory, or not a text) is an error. */
static bool set(json_t *top, const char *key, json_t *value)
{
        return value && !json_object_set_new(top, key, value);
}

static json_t *texts(char *const *names, int n)
{
        json_t *list = json_array();
        for (int i = 0; list && i < n; i++)
                if (json_array_append_new(list, json_string(names[i]))) {
                        json_decref(list);
                        return NULL;
                }
        return list;
}

static json_t *floats(const float *v, int n)
{
        json_t *list = json_array();
        for (int i = 0; list && i < n; i++)
                if (json_array_append_new(list, json_real((double)v[i]))) {
                        json_decref(list);
                        return NULL;
                }
        return list;
}

static json_t *doubles(const double *v, int n)
{
        json_t *list = json_array();
        for (int i = 0; list && i < n; i++)
                if (json_array_append_new(list, json_real(v[i]))) {
                        json_decref(list);
                        return NULL;
                }
        return list;
}

static json_t *numbers(const uint32_t *v, int n)
{
        json_t *list = json_array();
        for (int i = 0; list && i < n; i++)
                if (json_array_append_new(list, json_integer((json_int_t)v[i]))) {
                        json_decref(list);
                        return NULL;
                }
        return list;
}

static json_t *sites_of(const struct mfl_contract *c)
{
        char *names[MFL_CONTRACT_SITES_MAX];
        for (int i = 0; i < c->n_sites; i++)
                names[i] = (char *)(uintptr_t)c->sites[i];
        return texts(names, c->n_sites);
}

static json_t *shape_of(const struct mfl_shape *shape)
{
        uint32_t dims[MFL_SHAPE_RANK_MAX];
        for (int i = 0; i < shape->rank; i++)
                dims[i] = (uint32_t)shape->dim[i];
        return numbers(dims, shape->rank);
}

static bool add_input(const struct mfl_contract *c, json_t *top)
{
        bool ok = !*c->data || set(top, "data", json_string(c->data));
        ok = ok && (!*c->from || set(top, "from", json_string(c->from)));
        ok = ok && set(top, "shape", shape_of(&c->shape));
        ok = ok && set(top, "type", json_string(mfl_contract_types[c->dtype]));
        ok = ok && set(top, "unit", json_string(c->unit));
        if (c->vocabulary) {
                ok = ok && set(top, "vocabulary", json_integer(c->vocabulary));
                ok = ok && set(top, "tokens", json_string(mfl_contract_tokens[c->tokens]));
        }
        if (c->n_channels) {
                ok = ok && set(top, "scale", floats(c->scale, c->n_channels));
                ok = ok && set(top, "shift", floats(c->shift, c->n_channels));
        }
        if (c->feature_mean) {
                ok = ok && set(top, "mean", doubles(c->feature_mean, c->n_features));
                ok = ok && set(top, "std", doubles(c->feature_std, c->n_features));
        }
        if (c->normalised)
                ok = ok && set(top, "normalised", json_true());
        return ok && (!c->n_sites || set(top, "sites", sites_of(c)));
}

static bool add_output(const struct mfl_contract *c, json_t *top)
{
        bool ok = !c->classes || set(top, "classes", json_integer(c->classes));
        ok = ok && (!c->n_targets || set(top, "targets", json_integer(c->n_targets)));
        ok = ok &&
             (c->labels_per_sample <= 1 || set(top, "labels_per_sample", json_integer(c->labels_per_sample)));
        return ok && (!c->has_loss || set(top, "loss", json_string(mfl_contract_losses[c->loss])));
}

static bool add_names(const struct mfl_contract *c, json_t *top)
{
        bool ok = true;
        if (c->class_names)
                ok = set(top, "class_names", texts(c->class_names, c->classes));
        if (c->feature_names)
                ok = ok &&
                     set(top, "feature_names", texts(c->feature_names, (int)c->shape.dim[c->shape.rank - 1]));
        if (c->words)
                ok = ok && set(top, "words", texts(c->words, c->vocabulary - MFL_TOKEN_FIRST));
        return ok && (!c->symbols || set(top, "symbols", numbers(c->symbols, c->vocabulary)));
}

/* Names that are not UTF-8 can't be JSON. */
static json_t *object_of(const struct mfl_contract *c, bool names)
{
        json_t *top = json_object();
        if (top && add_input(c, top) && add_output(c, top) && (!names || add_names(c, top)))
                return top;
        json_decref(top);
        return NULL;
}

static char *text_of(const struct mfl_contract *contract, bool names)
{
        json_t *top = object_of(contract, names);
        char *text = top ? json_dumps(top, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(17)) : NULL;
        json_decref(top);
        return text;
}

int mfl_contract_text(const struct mfl_contract *contract, char **ret_text, struct mfl_error *err)
{
        char *text = text_of(contract, true);
        if (!text || strlen(text) > MFL_CONTRACT_TEXT_MAX) {
                free(text);
                text = text_of(contract, false);
        }
        if (!text)
                return mfl_fail(err, -ENOMEM, "a contract's text: out of memory");
        *ret_text = text;
        return 0;
}
