/* SPDX-License-Identifier: Apache-2.0 */
/* Texts with one label each, from a column of a CSV file: a sample is the first `length` tokens of a text, followed by
 * padding.
 *
 *   - cuts texts into words, characters (UTF-8) or bytes;
 *   - bytes: byte b is token b + 1, the same at every site;
 *   - words and characters: first each gets a number of its own; when the test split is known, those of the training
 *     samples are sorted by frequency, then by their bytes, and the first vocabulary_size - 2 become tokens 2, 3, ...;
 *     or the lines of the configured file do. All others become the unknown token.
 * Fails with MFL_INVALID: a text without a token, text that is not UTF-8, a file of words with an empty or repeated
 * line.
 */
#include "common/data/sources.h"

#include <stdio.h>

#define LENGTH_DEFAULT 128
#define VOCABULARY_DEFAULT 10000
#define BYTES_VOCABULARY 257
#define FILE_BYTES_MAX (1u << 26)

static bool is_word_byte(char c)
{
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c & 0x80);
}

/* The next token of a text, which moves on; n 0: the end. */
static struct mfl_span next_token(enum mfl_text_unit unit, struct mfl_span *text)
{
        size_t n = 0;
        if (unit == MFL_TEXT_WORDS) {
                while (text->n && !is_word_byte(*text->s))
                        text->s++, text->n--;
                while (n < text->n && is_word_byte(text->s[n]))
                        n++;
        } else {
                n = text->n ? 1 : 0;
                while (unit == MFL_TEXT_CHARACTERS && n && n < text->n && (text->s[n] & 0xc0) == 0x80)
                        n++;
        }
        struct mfl_span token = {text->s, n};
        text->s += n;
        text->n -= n;
        return token;
}

static void lower(struct mfl_span token)
{
        char *s = (char *)token.s; /* the table's bytes, which a parser may change */
        for (size_t i = 0; i < token.n; i++)
                if (s[i] >= 'A' && s[i] <= 'Z')
                        s[i] = (char)(s[i] - 'A' + 'a');
}

static int check_text(
        const struct mfl_dataset_config *config, uint32_t row, struct mfl_span text, struct mfl_error *err)
{
        uint32_t *units;
        size_t n;
        struct mfl_error why;
        struct mfl_span rest = text;
        if (config->unit != MFL_TEXT_BYTES) {
                int r = mfl_text_decode(
                        (const uint8_t *)text.s, text.n, MFL_TEXT_CHARACTERS, config->text, &units, &n, &why);
                if (r)
                        return r < 0 ? mfl_fail(err, r, "%s", why.text)
                                     : mfl_fail(err, r, "data set %s: row %u: %.200s", config->name, row,
                                               why.text);
                free(units);
        }
        if (!next_token(config->unit, &rest).n)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: the text of row %u has no word in it: '%.*s'; remove the row, or set "
                        "unit: "
                        "characters",
                        config->name, row, (int)MFL_MIN(text.n, 40), text.s);
        return 0;
}

/* All tokens of the tables, each sample's up to its length. */
static int collect(const struct mfl_dataset_config *config, const struct mfl_csv *const tables[2],
        uint32_t length, struct mfl_span **ret_all, size_t *ret_n, struct mfl_error *err)
{
        struct mfl_span *all = NULL;
        size_t n = 0, capacity = 0;
        int r = 0;
        for (int s = 0; !r && s < 2 && tables[s]; s++)
                for (uint32_t i = 0; !r && i < tables[s]->n; i++) {
                        struct mfl_span text = tables[s]->texts[i];
                        r = check_text(config, i, text, err);
                        for (uint32_t k = 0; !r && k < length; k++) {
                                struct mfl_span token = next_token(config->unit, &text);
                                if (!token.n)
                                        break;
                                if (n == capacity) {
                                        capacity = MFL_MAX(capacity * 2, 4096);
                                        struct mfl_span *grown = mfl_realloc(all, capacity * sizeof *all);
                                        if (!grown)
                                                r = mfl_fail_memory(err, capacity * sizeof *all, "tokens");
                                        all = grown ? grown : all;
                                }
                                if (!r && config->unit == MFL_TEXT_WORDS)
                                        lower(token);
                                if (!r)
                                        all[n++] = token;
                        }
                }
        *ret_all = all;
        *ret_n = n;
        return r;
}

/* The samples of a split; without a dictionary, of bytes. */
static int fill_split(const struct mfl_dataset_config *config, const struct mfl_csv *csv, uint32_t length,
        const struct mfl_dictionary *dictionary, struct mfl_split *split, struct mfl_error *err)
{
        if ((uint64_t)csv->n * length > INT64_MAX / 8)
                return mfl_fail(err, MFL_INVALID, "data set %s: too many tokens", config->name);
        int32_t *x = mfl_alloc_aligned((size_t)csv->n * length * sizeof *x);
        if (!x)
                return mfl_fail_memory(err, (size_t)csv->n * length * sizeof *x, config->name);
        split->samples = x;
        split->dtype = MFL_I32;
        for (uint32_t i = 0; i < csv->n; i++) {
                struct mfl_span text = csv->texts[i];
                for (uint32_t k = 0; k < length; k++) {
                        struct mfl_span token = next_token(config->unit, &text);
                        uint32_t number = MFL_TOKEN_PADDING;
                        if (token.n && !dictionary)
                                number = (uint32_t)(uint8_t)*token.s + 1;
                        else if (token.n)
                                number = mfl_names_find(dictionary->words, dictionary->n, token) + 1;
                        *x++ = (int32_t)number;
                }
        }
        return 0;
}

int mfl_words_take(const struct mfl_dataset_config *config, const struct mfl_csv *const tables[2],
        struct mfl_dataset *dataset, struct mfl_dictionary *ret_dictionary, struct mfl_error *err)
{
        struct mfl_split *splits[] = {&dataset->train, &dataset->test};
        uint32_t length = config->length ? config->length : LENGTH_DEFAULT;
        bool bytes = config->unit == MFL_TEXT_BYTES;
        struct mfl_span *all = NULL;
        size_t n = 0;
        int r = bytes ? 0 : collect(config, tables, length, &all, &n, err);
        if (!r && n > INT32_MAX)
                r = mfl_fail(err, MFL_INVALID, "data set %s: too many tokens", config->name);
        if (!r && !bytes)
                r = mfl_names_new(all, n, &ret_dictionary->words, &ret_dictionary->n, err);
        free(all);
        dataset->shape = (struct mfl_shape){1, {length}};
        dataset->tokens = bytes ? MFL_TOKENS_BYTES : MFL_TOKENS_WORDS;
        dataset->vocabulary = bytes ? BYTES_VOCABULARY : 0;
        for (int s = 0; !r && s < 2 && tables[s]; s++)
                r = fill_split(config, tables[s], length, bytes ? NULL : ret_dictionary, splits[s], err);
        return r;
}

/* ---- the vocabulary ---- */

struct count {
        uint32_t n, word;
};

static int compare_counts(const void *a, const void *b)
{
        const struct count *x = a, *y = b; /* the words are in byte order */
        if (x->n != y->n)
                return x->n > y->n ? -1 : 1;
        return (x->word > y->word) - (x->word < y->word);
}

/* One allocation, as mfl_names_new makes it, in the given order. */
static int copy_words(const struct mfl_span *words, uint32_t n, char ***ret_words, struct mfl_error *err)
{
        size_t bytes = (n + (size_t)1) * sizeof(char *);
        for (uint32_t i = 0; i < n; i++)
                bytes += words[i].n + 1;
        char **list = mfl_malloc(bytes);
        if (!list)
                return mfl_fail_memory(err, bytes, "a vocabulary");
        char *at = (char *)(list + n + 1);
        for (uint32_t i = 0; i < n; i++) {
                list[i] = at;
                memcpy(at, words[i].s, words[i].n);
                at[words[i].n] = '\0';
                at += words[i].n + 1;
        }
        *ret_words = list;
        return 0;
}

/* Of the training samples, the most frequent words. */
static int count_words(const struct mfl_dataset_config *config, const struct mfl_dictionary *dictionary,
        struct mfl_dataset *dataset, struct mfl_error *err)
{
        const struct mfl_split *train = &dataset->train;
        const int32_t *x = train->samples;
        size_t n = train->n * (size_t)mfl_shape_count(&dataset->shape);
        uint32_t limit =
                (config->vocabulary_size ? config->vocabulary_size : VOCABULARY_DEFAULT) - MFL_TOKEN_FIRST;
        uint32_t n_words = 0;
        MFL_CLEANUP_FREE struct count *counts = mfl_calloc(dictionary->n, sizeof *counts);
        MFL_CLEANUP_FREE struct mfl_span *words = mfl_calloc(dictionary->n, sizeof *words);
        if (!counts || !words)
                return mfl_fail_memory(err, dictionary->n * sizeof *counts, "a vocabulary");
        for (uint32_t i = 0; i < dictionary->n; i++)
                counts[i].word = i;
        for (size_t i = 0; i < n; i++)
                if (x[i])
                        counts[x[i] - 1].n++;
        qsort(counts, dictionary->n, sizeof *counts, compare_counts);
        for (; n_words < dictionary->n && n_words < limit && counts[n_words].n; n_words++) {
                const char *word = dictionary->words[counts[n_words].word];
                words[n_words] = (struct mfl_span){word, strlen(word)};
        }
        dataset->vocabulary = (int)n_words + MFL_TOKEN_FIRST;
        return copy_words(words, n_words, &dataset->words, err);
}

/* One word per line; a character may be a space. */
static int read_words(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct mfl_data_bytes bytes = {0};
        MFL_CLEANUP_FREE struct mfl_span *words = NULL;
        uint32_t n = 0;
        const char *path = config->vocabulary;
        int r = mfl_data_read_file(path, &bytes, err);
        if (!r && bytes.n > FILE_BYTES_MAX)
                r = mfl_fail(err, MFL_INVALID, "%s: %zu bytes; the limit for a vocabulary is %u", path,
                        bytes.n, FILE_BYTES_MAX);
        if (!r && !(words = mfl_calloc(MFL_CLASSES_MAX, sizeof *words)))
                r = mfl_fail_memory(err, MFL_CLASSES_MAX * sizeof *words, path);
        const char *at = (const char *)bytes.data, *end = at + bytes.n;
        while (!r && at < end) {
                const char *stop = memchr(at, '\n', (size_t)(end - at));
                struct mfl_span word = {at, (size_t)((stop ? stop : end) - at)};
                word.n -= word.n && word.s[word.n - 1] == '\r';
                if (!word.n || memchr(word.s, 0, word.n))
                        r = mfl_fail(err, MFL_INVALID, "%s:%u: expected a word", path, n + 1);
                else if (n == MFL_CLASSES_MAX - MFL_TOKEN_FIRST)
                        r = mfl_fail(err, MFL_INVALID, "%s: more than %u words", path, n);
                else
                        words[n++] = word;
                at = stop ? stop + 1 : end;
        }
        if (!r && !n)
                r = mfl_fail(err, MFL_INVALID, "%s: is empty; expected one word per line", path);
        dataset->vocabulary = (int)n + MFL_TOKEN_FIRST;
        r = r ? r : copy_words(words, n, &dataset->words, err);
        free(bytes.data);
        return r;
}

/* The token of each word of the dictionary. */
static int number_words(const struct mfl_dataset_config *config, const struct mfl_dictionary *dictionary,
        const struct mfl_dataset *dataset, int32_t *tokens, struct mfl_error *err)
{
        uint32_t n = (uint32_t)dataset->vocabulary - MFL_TOKEN_FIRST, n_known = 0;
        MFL_CLEANUP_FREE uint8_t *seen = mfl_calloc(dictionary->n, 1);
        MFL_CLEANUP_FREE struct mfl_span *all = mfl_calloc(n, sizeof *all);
        char **sorted = NULL;
        uint32_t n_sorted = 0;
        if (!seen || !all)
                return mfl_fail_memory(err, n * sizeof *all, "a vocabulary");
        for (uint32_t i = 0; i < n; i++)
                all[i] = (struct mfl_span){dataset->words[i], strlen(dataset->words[i])};
        int r = mfl_names_new(all, n, &sorted, &n_sorted, err);
        free(sorted);
        if (!r && n_sorted < n)
                return mfl_fail(
                        err, MFL_INVALID, "%s: a word appears twice in the vocabulary", config->vocabulary);
        for (uint32_t i = 0; !r && i < dictionary->n; i++)
                tokens[i] = MFL_TOKEN_UNKNOWN;
        for (uint32_t i = 0; !r && i < n; i++) {
                uint32_t at = mfl_names_find(dictionary->words, dictionary->n, all[i]);
                if (at == UINT32_MAX)
                        continue;
                tokens[at] = (int32_t)(i + MFL_TOKEN_FIRST);
                n_known++;
        }
        if (!r && !n_known)
                return mfl_fail(err, MFL_INVALID,
                        "%s: none of its words occurs in data set %s; words are lower-case letters and "
                        "digits, one "
                        "per line",
                        config->vocabulary, config->name);
        return r;
}

int mfl_words_vocabulary(const struct mfl_dataset_config *config, const struct mfl_dictionary *dictionary,
        struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct mfl_split *splits[] = {&dataset->train, &dataset->test};
        int r = config->vocabulary ? read_words(config, dataset, err)
                                   : count_words(config, dictionary, dataset, err);
        MFL_CLEANUP_FREE int32_t *tokens = r ? NULL : mfl_calloc(dictionary->n, sizeof *tokens);
        if (!r)
                r = tokens ? number_words(config, dictionary, dataset, tokens, err)
                           : mfl_fail_memory(err, dictionary->n * sizeof *tokens, "a vocabulary");
        for (int s = 0; !r && s < 2; s++) {
                int32_t *x = splits[s]->samples;
                size_t n = splits[s]->n * (size_t)mfl_shape_count(&dataset->shape);
                for (size_t i = 0; i < n; i++)
                        x[i] = x[i] ? tokens[x[i] - 1] : MFL_TOKEN_PADDING;
        }
        return r;
}
