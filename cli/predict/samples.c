/* SPDX-License-Identifier: Apache-2.0 */
/* Reads samples for a model.
 *
 * Happy path: FORMAT:PATH,KEYS -> keys that follow from the contract -> the daemons' reader, without labels if that fits ->
 * samples_fit.c. Fails with MFL_INVALID: an unknown format; a file that its reader refuses; samples of another kind.
 */
#include "cli/predict/samples.h"

#include <stdio.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "common/data/config.h"

struct source {
        const char *format, *path_text; /* path_text: PATH[,KEY=VALUE]... */
        char *path, *keys;              /* keys: those that the contract adds, each with its comma */
        char words[64];                 /* a temporary file with the vocabulary */
};

static bool ends_with(const char *text, const char *suffix)
{
        size_t n = strlen(text), k = strlen(suffix);
        return n >= k && !strcmp(text + n - k, suffix);
}

static bool holds(const char *dir, const char *name)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s", dir, name);
        return path && !access(path, F_OK);
}

/* By the path's ending, or by what a folder holds; NULL: unknown. */
static const char *guess(const char *path)
{
        static const char *const idx[] = {"t10k-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz",
                "t10k-images.idx3-ubyte", "t10k-images.idx3-ubyte.gz"};
        static const char *const endings[][2] = {
                {".csv", "csv"}, {".npy", "npy"}, {".npz", "npz"}, {".txt", "text"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(endings); i++)
                if (ends_with(path, endings[i][0]))
                        return endings[i][1];
        for (size_t i = 0; i < MFL_ARRAY_SIZE(idx); i++)
                if (holds(path, idx[i]))
                        return "idx";
        if (holds(path, "test_batch.bin"))
                return "cifar10";
        return holds(path, "test.csv")   ? "csv"
               : holds(path, "test.npz") ? "npz"
               : holds(path, ".")        ? "images"
                                         : NULL;
}

static bool has_key(const struct source *s, const char *key)
{
        MFL_CLEANUP_FREE char *name = mfl_asprintf(",%s=", key);
        return name && strstr(s->path_text, name);
}

/* What mfl-client takes, and what makes no sense for samples that are read as a whole. */
static int refuse_text(const struct source *s, const char *text, struct mfl_error *err)
{
        /* Of NAME=FORMAT:...; a key's "=" comes after a comma, and a path may have one. */
        const size_t name = strcspn(text, "=,:/");
        const bool named = text[name] == '=';
        const char *format = named ? text + name + 1 : text;
        const size_t n = strcspn(format, ":");
        if (format[n] && n == strlen("synthetic") && !strncmp(format, "synthetic", n))
                return mfl_fail(err, MFL_INVALID,
                        "--data: '%.200s': synthetic samples are in no file; `mfl validate` scores a model "
                        "at the daemons that make them",
                        text);
        for (int i = 0; mfl_data_format_names[i] && named && format[n]; i++)
                if (strlen(mfl_data_format_names[i]) == n && !strncmp(format, mfl_data_format_names[i], n))
                        return mfl_fail(err, MFL_INVALID,
                                "--data: '%.200s': only mfl-client's data sets have names; write '%.200s'",
                                text, format);
        if (has_key(s, "test_fraction"))
                return mfl_fail(err, MFL_INVALID,
                        "--data: test_fraction is for training, and all samples are read here: remove it; "
                        "`mfl validate` "
                        "scores a model on what a site has split off");
        return 0;
}

static int find_format(const char *text, struct source *s, struct mfl_error *err)
{
        const char *colon = strchr(text, ':');
        s->path_text = text;
        for (int i = 0; mfl_data_format_names[i] && colon; i++) {
                size_t n = strlen(mfl_data_format_names[i]);
                if ((size_t)(colon - text) == n && !strncmp(text, mfl_data_format_names[i], n)) {
                        s->format = mfl_data_format_names[i];
                        s->path_text = colon + 1;
                }
        }
        const int r = refuse_text(s, text, err);
        if (r)
                return r;
        size_t n = strcspn(s->path_text, ",");
        s->path = mfl_malloc(n + 1);
        if (!s->path)
                return mfl_fail_memory(err, n, "a path");
        memcpy(s->path, s->path_text, n);
        s->path[n] = '\0';
        if (access(s->path, F_OK))
                return mfl_fail(err, MFL_NOT_FOUND, "--data: %.200s: no such file or folder", s->path);
        if (!s->format)
                s->format = guess(s->path);
        if (!s->format)
                return mfl_fail(err, MFL_INVALID,
                        "--data: %.200s: what format is it? Write FORMAT:PATH; FORMAT is csv, npy, npz, idx, "
                        "cifar10, cifar100, "
                        "images or text",
                        s->path);
        return 0;
}

/* The model's words, in their order, as a file for the reader. */
static int write_words(struct source *s, const struct mfl_contract *c, struct mfl_error *err)
{
        snprintf(s->words, sizeof s->words, "/tmp/mfl-words-XXXXXX");
        int fd = mkstemp(s->words);
        FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
        if (!out)
                return mfl_fail_errno(err, "%s", s->words);
        for (int i = 0; i < c->vocabulary - MFL_TOKEN_FIRST; i++)
                fprintf(out, "%s\n", c->words[i]);
        return fclose(out) ? mfl_fail_errno(err, "%s: write", s->words) : 0;
}

/* What the contract knows needs no key. */
static int add_keys(struct source *s, const struct mfl_contract *c, struct mfl_error *err)
{
        char keys[256] = "";
        const int64_t *dim = c->shape.dim;
        bool arrays = !strcmp(s->format, "npy") || !strcmp(s->format, "npz"),
             table = !strcmp(s->format, "csv");
        if (!strcmp(s->format, "images") && !has_key(s, "shape") && c->shape.rank == 3)
                snprintf(keys, sizeof keys, ",shape=[%lld,%lld,%lld]", (long long)dim[0], (long long)dim[1],
                        (long long)dim[2]);
        else if (arrays && c->vocabulary && !has_key(s, "vocabulary"))
                snprintf(keys, sizeof keys, ",vocabulary=%d", c->vocabulary);
        else if (!strcmp(s->format, "text") && !has_key(s, "length"))
                snprintf(keys, sizeof keys, ",length=%lld%s", (long long)dim[0],
                        c->symbols || has_key(s, "unit") ? "" : ",unit=bytes");
        else if (table && c->vocabulary && has_key(s, "text")) {
                if (c->tokens == MFL_TOKENS_WORDS && !c->words)
                        return mfl_fail(err, MFL_INVALID,
                                "--data: %.200s: the model does not know its words, so texts can't become "
                                "tokens; let the site set "
                                "`names: share`, or give tokens",
                                s->path);
                int r = c->words ? write_words(s, c, err) : 0;
                if (r)
                        return r;
                snprintf(keys, sizeof keys, ",length=%lld%s%s%s", (long long)dim[0],
                        c->words ? ",vocabulary=" : "", s->words, c->words ? "" : ",unit=bytes");
        }
        s->keys = mfl_strdup(keys);
        return s->keys ? 0 : mfl_fail_memory(err, sizeof keys, "keys");
}

static int load(
        const struct source *s, bool labelled, struct mfl_dataset **ret_dataset, struct mfl_error *err)
{
        struct mfl_dataset_config config = {{0}};
        MFL_CLEANUP_FREE char *rest = mfl_asprintf("%s%s", s->path_text, s->keys);
        int r = rest ? mfl_dataset_config_parse("data", s->format, rest, &config, err)
                     : mfl_fail_memory(err, strlen(s->path_text), "an argument");
        if (r)
                return r;
        config.whole = true;
        config.unlabelled = !labelled;
        r = mfl_dataset_load(&config, ret_dataset, err);
        mfl_dataset_config_deinit(&config);
        return r;
}

/* Whether a file may come without labels: its format, and no key that names them. */
static bool may_lack_labels(const struct source *s)
{
        return strcmp(s->format, "text") && strcmp(s->format, "idx") && strncmp(s->format, "cifar", 5) &&
               !has_key(s, "label") && !has_key(s, "targets") && !has_key(s, "train_y") &&
               !has_key(s, "masks") && !has_key(s, "text");
}

static bool fits(const struct mfl_dataset *d, const struct mfl_contract *c)
{
        return mfl_shape_count(&d->shape) == mfl_shape_count(&c->shape);
}

/* Without labels where that fits the model, since a last column may be a feature or a label. */
static int load_either(const struct source *s, const struct mfl_contract *c, bool labels,
        struct mfl_samples *samples, struct mfl_error *err)
{
        struct mfl_error why = {{0}};
        const bool tries = !labels && may_lack_labels(s);
        samples->labelled = false;
        int r = tries ? load(s, false, &samples->dataset, &why) : MFL_INVALID;
        if (r < 0 || (r && tries && !strcmp(s->format, "npy")))
                return mfl_fail(err, r, "%s", why.text);
        if (!r && (fits(samples->dataset, c) || strcmp(s->format, "csv")))
                return 0;
        struct mfl_dataset *unlabelled = samples->dataset;
        samples->dataset = NULL;
        samples->labelled = true;
        r = load(s, true, &samples->dataset, err);
        /* Columns were numbers, but so many are no sample: that says more than what the last one is not. */
        if (r == MFL_INVALID && unlabelled)
                r = mfl_samples_fit(s->path, c, false, unlabelled, err);
        mfl_dataset_free(unlabelled);
        return r;
}

int mfl_samples_load(const char *text, const struct mfl_contract *contract, bool labels,
        struct mfl_samples *ret_samples, struct mfl_error *err)
{
        struct source s = {0};
        struct mfl_samples samples = {0};
        int r = find_format(text, &s, err);
        if (!r)
                r = add_keys(&s, contract, err);
        if (!r)
                r = load_either(&s, contract, labels, &samples, err);
        if (!r)
                r = mfl_samples_fit(s.path, contract, samples.labelled, samples.dataset, err);
        if (*s.words)
                unlink(s.words);
        free(s.path);
        free(s.keys);
        if (r)
                mfl_samples_deinit(&samples);
        else
                *ret_samples = samples;
        return r;
}

void mfl_samples_deinit(struct mfl_samples *samples)
{
        mfl_dataset_free(samples->dataset);
        samples->dataset = NULL;
}
