/* SPDX-License-Identifier: Apache-2.0 */
/* Text as a data set for next-token models: sample i is `length` tokens of a passage; its labels are the tokens that
 * follow each of them.
 *
 *   - reads the files of each split (one file, or the files of a folder in the order of their names);
 *   - cuts them into passages: a file, or with owner speaker all blocks of one speaker in order;
 *   - without test files, the last test_fraction of each passage is the test split, so that no window of one split
 *     overlaps the other;
 *   - vocabulary: bytes, or the code points of the training files, sorted;
 *   - windows of length + 1 units, `stride` apart, never across passages.
 * Also fails with MFL_INVALID: text that is not UTF-8, a character in the test files that the training files lack, a
 * block without a speaker, no passage as long as a window.
 */
#include "common/data/sources.h"

#include <stdio.h>
#include <unistd.h>

#define LENGTH_DEFAULT 80
#define FILE_BYTES_MAX (1u << 30)

struct passage {
        int split;
        struct mfl_span owner; /* s NULL: none */
        uint32_t *units;
        size_t n, capacity;
};

struct corpus {
        const struct mfl_dataset_config *config;
        struct mfl_dataset *dataset;
        uint32_t length, stride;
        struct passage *passages;
        size_t n, capacity;
        char **texts; /* n_texts, file names and contents that owners point into */
        size_t n_texts, texts_capacity;
};

static void corpus_deinit(struct corpus *c)
{
        for (size_t i = 0; i < c->n; i++)
                free(c->passages[i].units);
        free(c->passages);
        mfl_data_list_free(c->texts, c->n_texts);
}

/* ---- passages ---- */

static int add_passage(struct corpus *c, int split, struct mfl_span owner, struct passage **ret_passage)
{
        if (c->n == c->capacity) {
                size_t capacity = MFL_MAX(c->capacity * 2, 64);
                struct passage *grown = mfl_realloc(c->passages, capacity * sizeof *grown);
                if (!grown)
                        return -ENOMEM;
                c->passages = grown;
                c->capacity = capacity;
        }
        *ret_passage = &c->passages[c->n++];
        **ret_passage = (struct passage){.split = split, .owner = owner};
        return 0;
}

/* The passage of an owner in a split; makes a new one if there is none. */
static int find_passage(struct corpus *c, int split, struct mfl_span owner, struct passage **ret_passage)
{
        for (size_t i = 0; i < c->n; i++) {
                struct passage *p = &c->passages[i];
                if (p->split == split && p->owner.s && p->owner.n == owner.n &&
                        !memcmp(p->owner.s, owner.s, owner.n)) {
                        *ret_passage = p;
                        return 0;
                }
        }
        return add_passage(c, split, owner, ret_passage);
}

static int append_units(
        struct corpus *c, struct passage *p, struct mfl_span text, const char *path, struct mfl_error *err)
{
        uint32_t *units;
        size_t n;
        int r = mfl_text_decode((const uint8_t *)text.s, text.n, c->config->unit, path, &units, &n, err);
        if (r)
                return r;
        if (p->capacity - p->n < n) {
                size_t capacity = MFL_MAX(p->capacity * 2, p->n + n);
                uint32_t *grown = mfl_realloc(p->units, capacity * sizeof *grown);
                if (!grown) {
                        free(units);
                        return mfl_fail_memory(err, capacity * sizeof *grown, path);
                }
                p->units = grown;
                p->capacity = capacity;
        }
        if (n)
                memcpy(p->units + p->n, units, n * sizeof *units);
        p->n += n;
        free(units);
        return 0;
}

static struct mfl_span take_line(struct mfl_span *rest)
{
        const char *end = memchr(rest->s, '\n', rest->n);
        struct mfl_span line = {rest->s, end ? (size_t)(end - rest->s) + 1 : rest->n};
        rest->s += line.n;
        rest->n -= line.n;
        return line;
}

static struct mfl_span trim(struct mfl_span line)
{
        while (line.n && strchr(" \t\r\n", line.s[line.n - 1]) && line.s[line.n - 1])
                line.n--;
        return line;
}

/* One block: the speaker's line, then the speech up to a blank line. */
static int add_block(struct corpus *c, int split, struct mfl_span *rest, uint32_t *line_number,
        const char *path, struct mfl_error *err)
{
        uint32_t first = ++*line_number;
        struct mfl_span name = trim(take_line(rest)), said = {rest->s, 0};
        struct passage *p;
        if (!name.n)
                return 0;
        if (name.s[name.n - 1] != ':' || name.n < 2 || memchr(name.s, 0, name.n))
                return mfl_fail(err, MFL_INVALID,
                        "%s:%u: expected a speaker's name and a colon in the first line of a block, got "
                        "'%.*s'",
                        path, first, (int)MFL_MIN(name.n, 40), name.s);
        name.n--;
        while (rest->n) {
                struct mfl_span line = take_line(rest);
                ++*line_number;
                if (!trim(line).n)
                        break;
                said.n += line.n;
        }
        if (find_passage(c, split, name, &p))
                return mfl_fail_memory(err, sizeof *p, path);
        return append_units(c, p, said, path, err);
}

/* Takes over the text, because owners may point into it. */
static int keep_text(struct corpus *c, char *text)
{
        if (c->n_texts == c->texts_capacity) {
                size_t capacity = MFL_MAX(c->texts_capacity * 2, 64);
                char **grown = mfl_realloc(c->texts, capacity * sizeof *grown);
                if (!grown) {
                        free(text);
                        return -ENOMEM;
                }
                c->texts = grown;
                c->texts_capacity = capacity;
        }
        c->texts[c->n_texts++] = text;
        return 0;
}

static int add_file(struct corpus *c, int split, const char *path, const char *name, struct mfl_error *err)
{
        struct mfl_data_bytes bytes;
        enum mfl_text_owner kind = c->config->text_owner;
        struct mfl_span owner = {0};
        struct passage *p;
        int r = mfl_data_read_file(path, &bytes, err);
        if (r)
                return r;
        struct mfl_span rest = {(const char *)bytes.data, bytes.n};
        if (keep_text(c, (char *)bytes.data))
                return mfl_fail_memory(err, 64, path);
        if (bytes.n > FILE_BYTES_MAX)
                return mfl_fail(err, MFL_INVALID, "%s: %zu bytes; the limit for a text is %u", path, bytes.n,
                        FILE_BYTES_MAX);
        if (kind == MFL_TEXT_OWNER_SPEAKER) {
                for (uint32_t line = 0; !r && rest.n;)
                        r = add_block(c, split, &rest, &line, path, err);
                return r;
        }
        if (kind == MFL_TEXT_OWNER_FILE) {
                char *own = mfl_strdup(name);
                if (!own || keep_text(c, own))
                        return mfl_fail_memory(err, 64, path);
                owner = (struct mfl_span){own, strlen(own)};
        }
        if (add_passage(c, split, owner, &p))
                return mfl_fail_memory(err, sizeof *p, path);
        return append_units(c, p, rest, path, err);
}

static int add_files(struct corpus *c, int split, const char *path, struct mfl_error *err)
{
        char **names;
        size_t n;
        if (!mfl_data_is_folder(path)) {
                const char *slash = strrchr(path, '/');
                return add_file(c, split, path, slash ? slash + 1 : path, err);
        }
        int r = mfl_data_list(path, false, &names, &n, err);
        if (r)
                return r;
        if (!n)
                r = mfl_fail(err, MFL_INVALID, "%s: contains no files", path);
        for (size_t i = 0; !r && i < n; i++) {
                MFL_CLEANUP_FREE char *file = mfl_asprintf("%s/%s", path, names[i]);
                r = file ? add_file(c, split, file, names[i], err) : mfl_fail_memory(err, 64, path);
        }
        mfl_data_list_free(names, n);
        return r;
}

/* dir is a file, a folder of files, or one with train and test (files .txt, or folders). As a whole: the test part, or all of it. */
static int add_splits(struct corpus *c, struct mfl_error *err)
{
        static const char *const stems[] = {"train", "test"};
        const struct mfl_dataset_config *config = c->config;
        int found = 0, r = 0;
        for (int s = config->whole ? 1 : 0; s < 2 && !r; s++) {
                MFL_CLEANUP_FREE char *folder = mfl_asprintf("%s/%s", config->dir, stems[s]);
                MFL_CLEANUP_FREE char *file = mfl_asprintf("%s/%s.txt", config->dir, stems[s]);
                struct mfl_error ignored;
                struct mfl_data_bytes bytes = {0};
                if (!folder || !file)
                        return mfl_fail_memory(err, strlen(config->dir) + 16, "a path");
                const int split = config->whole ? 0 : s;
                if (mfl_data_is_folder(folder)) {
                        found |= 1 << s;
                        r = add_files(c, split, folder, err);
                } else if (mfl_data_read_file(file, &bytes, &ignored) == 0) {
                        free(bytes.data);
                        found |= 1 << s;
                        r = add_files(c, split, file, err);
                }
        }
        if (!r && !found && access(config->dir, F_OK))
                r = mfl_fail_errno(err, "%s", config->dir) == -ENOMEM ? -ENOMEM : MFL_INVALID;
        if (r)
                return r;
        if (config->whole)
                return found & 2 ? 0 : add_files(c, 0, config->dir, err);
        if (found == 2)
                return mfl_fail(
                        err, MFL_INVALID, "%s: has test text, but no train or train.txt", config->dir);
        if ((found == 3) == (config->test_fraction > 0))
                return mfl_fail(err, MFL_INVALID,
                        found == 3 ? "%s: has test text, so test_fraction is not used"
                                   : "%s: has no test or test.txt; set test_fraction, the share at the end "
                                     "of each passage that becomes the test split",
                        config->dir);
        return found ? 0 : add_files(c, 0, config->dir, err);
}

/* ---- vocabulary ---- */

#define POINTS (0x110000 + 1)

/* Replaces units by tokens. */
static int settle_vocabulary(struct corpus *c, struct mfl_error *err)
{
        struct mfl_dataset *d = c->dataset;
        uint32_t n = 0;
        d->vocabulary = 256;
        if (c->config->unit == MFL_TEXT_BYTES)
                return 0;
        MFL_CLEANUP_FREE uint32_t *token = mfl_calloc(POINTS, sizeof *token); /* token + 1, 0: unknown */
        if (!token)
                return mfl_fail_memory(err, POINTS * sizeof *token, "a vocabulary");
        for (size_t i = 0; i < c->n; i++)
                for (size_t u = 0; c->passages[i].split == 0 && u < c->passages[i].n; u++)
                        token[c->passages[i].units[u]] = 1;
        for (uint32_t p = 0; p < POINTS; p++)
                n += token[p];
        d->symbols = mfl_calloc(MFL_MAX(n, 1), sizeof *d->symbols);
        if (!d->symbols)
                return mfl_fail_memory(err, n * sizeof *d->symbols, "a vocabulary");
        if (n > MFL_CLASSES_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: %u different characters; the limit is %d; unit: bytes has 256",
                        c->config->name, n, MFL_CLASSES_MAX);
        n = 0;
        for (uint32_t p = 0; p < POINTS; p++) {
                if (token[p]) {
                        d->symbols[n++] = p;
                        token[p] = n;
                }
        }
        d->vocabulary = (int)n;
        for (size_t i = 0; i < c->n; i++) {
                for (size_t u = 0; u < c->passages[i].n; u++) {
                        uint32_t *unit = &c->passages[i].units[u];
                        if (!token[*unit])
                                return mfl_fail(err, MFL_INVALID,
                                        "data set %s: the test text has U+%04X, which the training text has "
                                        "not; unit bytes takes any text",
                                        c->config->name, *unit);
                        *unit = token[*unit] - 1;
                }
        }
        return 0;
}

/* ---- samples ---- */

struct part {
        const uint32_t *units;
        size_t n;
};

/* The part of a passage that belongs to a split. */
static struct part part_of(const struct corpus *c, const struct passage *p, int split)
{
        double fraction = c->config->test_fraction;
        if (!(fraction > 0))
                return (struct part){p->units, p->split == split ? p->n : 0};
        size_t n_test = (size_t)((double)p->n * fraction + 0.5), n_train = p->n - MFL_MIN(n_test, p->n);
        return split ? (struct part){p->units + n_train, p->n - n_train} : (struct part){p->units, n_train};
}

static uint64_t windows(const struct corpus *c, size_t n)
{
        return n > c->length ? (n - c->length - 1) / c->stride + 1 : 0;
}

static int fill_split(struct corpus *c, int which, struct mfl_split *split, struct mfl_error *err)
{
        uint64_t n = 0;
        size_t length = c->length, at = 0;
        for (size_t i = 0; i < c->n; i++)
                n += windows(c, part_of(c, &c->passages[i], which).n);
        if (!n && c->config->whole)
                return mfl_fail(err, MFL_INVALID,
                        "%s: the text is too short: a sample of the model has %u %s, and the one after it",
                        c->config->dir, c->length,
                        c->config->unit == MFL_TEXT_BYTES ? "bytes" : "characters");
        if (!n)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: the %s text is too short for a sample of %u %s and the one after it; "
                        "set a smaller length",
                        c->config->name, which ? "test" : "training", c->length,
                        c->config->unit == MFL_TEXT_BYTES ? "bytes" : "characters");
        if (n > INT32_MAX || n * length > INT64_MAX / 8)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: the %s text gives %llu samples of %u tokens; the limit is %d",
                        c->config->name, which ? "test" : "training", (unsigned long long)n, c->length,
                        INT32_MAX);
        int32_t *x = mfl_alloc_aligned(n * length * sizeof *x),
                *y = mfl_alloc_aligned(n * length * sizeof *y);
        split->samples = x;
        split->labels = y;
        split->dtype = MFL_I32;
        if (c->dataset->n_owners)
                split->owner = mfl_calloc(n, sizeof *split->owner);
        if (!x || !y || (c->dataset->n_owners && !split->owner))
                return mfl_fail_memory(err, n * length * sizeof *x, c->config->name);
        for (size_t i = 0; i < c->n; i++) {
                const struct passage *p = &c->passages[i];
                struct part part = part_of(c, p, which);
                for (uint64_t w = 0, n_windows = windows(c, part.n); w < n_windows; w++, at++) {
                        const uint32_t *from = part.units + w * c->stride;
                        memcpy(x + at * length, from, length * sizeof *x);
                        memcpy(y + at * length, from + 1, length * sizeof *y);
                        if (split->owner)
                                split->owner[at] = mfl_names_find(
                                        c->dataset->owner_names, c->dataset->n_owners, p->owner);
                }
        }
        split->n = (uint32_t)n;
        return 0;
}

static int settle_owners(struct corpus *c, struct mfl_error *err)
{
        if (c->config->text_owner == MFL_TEXT_OWNER_NONE)
                return 0;
        MFL_CLEANUP_FREE struct mfl_span *all = mfl_calloc(MFL_MAX(c->n, 1), sizeof *all);
        if (!all)
                return mfl_fail_memory(err, c->n * sizeof *all, "owners");
        for (size_t i = 0; i < c->n; i++)
                all[i] = c->passages[i].owner;
        return mfl_names_new(all, c->n, &c->dataset->owner_names, &c->dataset->n_owners, err);
}

int mfl_load_text(const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct corpus c = {.config = config,
                .dataset = dataset,
                .length = config->length ? config->length : LENGTH_DEFAULT};
        c.stride = config->stride ? config->stride : c.length;
        int r = add_splits(&c, err);
        if (!r)
                r = settle_vocabulary(&c, err);
        if (!r)
                r = settle_owners(&c, err);
        if (!r) {
                dataset->shape = (struct mfl_shape){.rank = 1, .dim = {c.length}};
                dataset->labels_per_sample = (int)c.length;
                dataset->classes = dataset->vocabulary;
                r = fill_split(&c, 0, &dataset->train, err);
        }
        if (!r && !config->whole)
                r = fill_split(&c, 1, &dataset->test, err);
        corpus_deinit(&c);
        return r;
}
