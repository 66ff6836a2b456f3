/* SPDX-License-Identifier: Apache-2.0 */
/* Fills structs from a YAML tree by tables: checks every value, and reports every mistake with its line. */
#include "common/settings/yaml.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

/* ---- Names ---- */

#define NAME_MAX_BYTES 64

/* Levenshtein distance with swaps of neighbours (optimal string alignment); texts that are too long for the table
 * count as far apart. */
static size_t edit_distance(const char *a, const char *b)
{
        size_t n = strlen(a), m = strlen(b);
        size_t row[3][NAME_MAX_BYTES + 1];
        if (n > NAME_MAX_BYTES || m > NAME_MAX_BYTES)
                return SIZE_MAX;
        for (size_t j = 0; j <= m; j++)
                row[0][j] = j;
        for (size_t i = 1; i <= n; i++) {
                size_t *now = row[i % 3], *above = row[(i + 2) % 3], *two_above = row[(i + 1) % 3];
                now[0] = i;
                for (size_t j = 1; j <= m; j++) {
                        now[j] = above[j - 1] + (tolower((unsigned char)a[i - 1]) != b[j - 1]);
                        now[j] = MFL_MIN(now[j], above[j] + 1);
                        now[j] = MFL_MIN(now[j], now[j - 1] + 1);
                        if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                                now[j] = MFL_MIN(now[j], two_above[j - 2] + 1);
                }
        }
        return row[n % 3][m];
}

const char *mfl_yaml_nearest(const char *text, const char *const *names)
{
        const char *best = NULL;
        /* Up to one mistake in three letters is a typing mistake; more is another word. */
        size_t best_distance = strlen(text) / 3 + 1;
        best_distance = MFL_MIN(best_distance, (size_t)3) + 1;
        for (; *names; names++) {
                size_t distance = edit_distance(text, *names);
                if (distance < best_distance && distance < strlen(*names)) {
                        best = *names;
                        best_distance = distance;
                }
        }
        return best;
}

/* Whether name is one of the words of key, or consists of their initials: others write batch_size for batch, and
 * learning_rate for lr. */
static bool is_kindred(const char *key, const char *name)
{
        size_t n = strlen(name), i_word = 0;
        bool initials = true;
        for (const char *word = key; *word; i_word++) {
                size_t word_bytes = strcspn(word, "_-");
                if (word_bytes == n && n > 1 && !memcmp(word, name, n))
                        return true;
                initials = initials && i_word < n && word[0] == name[i_word];
                word += word_bytes + (word[word_bytes] != '\0');
        }
        return initials && i_word == n && n > 1;
}

int mfl_yaml_fail_unknown_key(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const char *const *names, struct mfl_error *err)
{
        const char *best = mfl_yaml_nearest(node->key, names);
        char list[400] = "";
        for (int i = 0; !best && names[i]; i++)
                best = is_kindred(node->key, names[i]) ? names[i] : NULL;
        if (best)
                return mfl_yaml_fail(doc, node, err, "unknown key; did you mean '%s'?", best);
        for (size_t i = 0, n = 0; names[i]; i++) {
                if (n + strlen(names[i]) + sizeof ", ..." > sizeof list) {
                        mfl_snprintf(list + n, sizeof list - n, ", ...");
                        break;
                }
                n += (size_t)mfl_snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", names[i]);
        }
        return mfl_yaml_fail(doc, node, err, "unknown key; the keys are %s", list);
}

/* ---- Texts to numbers ---- */

/* Turns 1 to 20 digits into a number; false when there are none, or too many. *end points behind them. */
static bool parse_digits(const char *text, const char **end, uint64_t *ret_value)
{
        uint64_t value = 0;
        if (!isdigit((unsigned char)*text))
                return false;
        for (; isdigit((unsigned char)*text); text++)
                if (__builtin_mul_overflow(value, 10, &value) ||
                        __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value))
                        return false;
        *end = text;
        *ret_value = value;
        return true;
}

struct unit {
        const char *name;
        uint64_t factor;
};

/* The thousandths in ".5", ".25" or ".125". */
static bool parse_thousandths(const char *text, const char **end, uint64_t *ret_value)
{
        uint64_t value;
        if (!parse_digits(text + 1, end, &value) || *end - text > 4)
                return false;
        for (int digits = (int)(*end - text) - 1; digits < 3; digits++)
                value *= 10;
        *ret_value = value;
        return true;
}

/* fractions: "1.5GiB" is a number, too, rounded down to whole units of the table. */
static bool parse_with_unit(const char *text, const struct unit *units, bool fractions, uint64_t *ret_value)
{
        const char *end;
        uint64_t value, thousandths = 0;
        if (!parse_digits(text, &end, &value))
                return false;
        if (fractions && *end == '.' && !parse_thousandths(end, &end, &thousandths))
                return false;
        if (*end == ' ')
                end++;
        for (; units->name; units++) {
                if (strcmp(end, units->name))
                        continue;
                if (thousandths && units->factor == 1)
                        return false;
                if (__builtin_mul_overflow(value, units->factor, &value) ||
                        __builtin_add_overflow(value,
                                units->factor / 1000 * thousandths +
                                        units->factor % 1000 * thousandths / 1000,
                                &value))
                        return false;
                *ret_value = value;
                return true;
        }
        return false;
}

bool mfl_yaml_parse_duration(const char *text, uint64_t *ret_ms)
{
        static const struct unit units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"min", 60000},
                {"h", 3600000}, {"d", 86400000}, {NULL, 0}};
        return parse_with_unit(text, units, false, ret_ms);
}

bool mfl_yaml_parse_size(const char *text, uint64_t *ret_bytes)
{
        static const struct unit units[] = {{"", 1}, {"B", 1}, {"KiB", 1ull << 10}, {"MiB", 1ull << 20},
                {"GiB", 1ull << 30}, {"TiB", 1ull << 40}, {"kB", 1000}, {"KB", 1000}, {"MB", 1000000},
                {"GB", 1000000000}, {"TB", 1000000000000}, {NULL, 0}};
        return parse_with_unit(text, units, true, ret_bytes);
}

/* Decimal only: strtod would also accept hex, "nan", "infinity" and the locale's comma. */
static bool parse_double(const char *text, double *ret_value)
{
        if (!*text || strspn(text, "0123456789+-.eE") != strlen(text) || !strpbrk(text, "0123456789"))
                return false;
        char *end;
        double value = strtod(text, &end);
        if (*end || !isfinite(value))
                return false;
        *ret_value = value;
        return true;
}

static bool parse_i64(const char *text, int64_t *ret_value)
{
        const char *end;
        uint64_t value;
        bool minus = *text == '-';
        if (!parse_digits(text + minus, &end, &value) || *end || value > (uint64_t)INT64_MAX + minus)
                return false;
        *ret_value = minus ? (int64_t)(0 - value) : (int64_t)value;
        return true;
}

static bool parse_u64(const char *text, uint64_t *ret_value)
{
        const char *end;
        uint64_t value;
        if (!parse_digits(text, &end, &value) || *end)
                return false;
        *ret_value = value;
        return true;
}

static bool parse_bool(const char *text, bool *ret_value)
{
        static const char *const yes[] = {"true", "yes", "on"}, *const no[] = {"false", "no", "off"};
        for (int i = 0; i < 3; i++) {
                if (!strcasecmp(text, yes[i]) || !strcasecmp(text, no[i])) {
                        *ret_value = !strcasecmp(text, yes[i]);
                        return true;
                }
        }
        return false;
}

/* ---- Messages ---- */

static const char *noun_of(enum mfl_yaml_kind kind)
{
        switch (kind) {
        case MFL_YAML_U32:
        case MFL_YAML_U64:
        case MFL_YAML_I64:
                return "a whole number";
        case MFL_YAML_F32:
        case MFL_YAML_F64:
                return "a number";
        case MFL_YAML_BOOL:
                return "true or false";
        case MFL_YAML_DURATION:
                return "a duration like 500ms, 600s, 10m or 1h";
        case MFL_YAML_SIZE:
                return "a size like 512MiB or 4GiB";
        case MFL_YAML_FIELDS:
                return "a mapping (key: value)";
        default:
                return "a text";
        }
}

static bool is_limited(const struct mfl_yaml_field *f)
{
        return f->min != 0 || f->max != 0;
}

/* A limit as people write it: 600000 ms is "10m", 1048576 bytes are "1MiB". */
static void describe_limit(enum mfl_yaml_kind kind, double value, char *text, size_t bytes)
{
        static const struct unit times[] = {
                {"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
        static const struct unit sizes[] = {
                {"TB", 1000000000000}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {" bytes", 1}};
        static const struct unit none = {"", 0};
        const struct unit *units = kind == MFL_YAML_DURATION ? times : kind == MFL_YAML_SIZE ? sizes : &none;
        while (units->factor > 1 &&
                (value < (double)units->factor || fmod(value, (double)units->factor) != 0))
                units++;
        double shown = units->factor ? value / (double)units->factor : value;
        snprintf(text, bytes, "%.12g%s", shown, units->name);
}

/* Whole names, as many as there is room for. */
static void describe_names(const char *const *names, char *text, size_t bytes)
{
        static const char more[] = ", ...";
        size_t len = (size_t)snprintf(text, bytes, "one of");
        for (int i = 0; names[i] && len < bytes; i++) {
                size_t left = bytes - len, n = (size_t)snprintf(NULL, 0, "%s '%s'", i ? "," : "", names[i]);
                if (n + (names[i + 1] ? sizeof more : 1) > left) {
                        snprintf(text + len, left, "%s", more);
                        return;
                }
                len += (size_t)snprintf(text + len, left, "%s '%s'", i ? "," : "", names[i]);
        }
}

void mfl_yaml_describe(const struct mfl_yaml_field *f, char *text, size_t bytes)
{
        int len = snprintf(text, bytes, "%s", noun_of(f->kind));
        if (f->kind == MFL_YAML_ENUM) {
                describe_names(f->names, text, bytes);
                return;
        }
        char *at = text + len, min[32], max[32];
        size_t left = bytes - (size_t)len;
        describe_limit(f->kind, f->min, min, sizeof min);
        describe_limit(f->kind, f->max, max, sizeof max);
        if (f->kind == MFL_YAML_U32 && !is_limited(f))
                snprintf(at, left, " from 0 to 4294967295");
        else if (!is_limited(f) && (f->kind == MFL_YAML_U64))
                snprintf(at, left, " of at least 0");
        else if (!is_limited(f))
                return;
        else if (isinf(f->max))
                snprintf(at, left, " %s %s", f->min_open ? "above" : "of at least", min);
        else if (isinf(f->min))
                snprintf(at, left, " %s %s", f->max_open ? "below" : "of at most", max);
        else if (f->min_open || f->max_open)
                snprintf(at, left, " %s %s and %s %s", f->min_open ? "above" : "of at least", min,
                        f->max_open ? "below" : "at most", max);
        else
                snprintf(at, left, " from %s to %s", min, max);
}

static int fail_value(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_yaml_field *f, struct mfl_error *err)
{
        char want
                [392]; /* with the file's name before it and the value behind it, it is to fit in an error's text */
        mfl_yaml_describe(f, want, sizeof want);
        if (f->kind == MFL_YAML_FIELDS && f->fields && f->fields[0].key)
                snprintf(want, sizeof want, "a mapping such as {%s: ...}", f->fields[0].key);
        if (node->type == MFL_YAML_SEQUENCE)
                return mfl_yaml_fail(doc, node, err, "expected %s, got a list", want);
        if (node->type == MFL_YAML_MAPPING)
                return mfl_yaml_fail(doc, node, err, "expected %s, got a mapping", want);
        if (!*node->text && !node->quoted)
                return mfl_yaml_fail(doc, node, err, "expected %s, got nothing", want);
        const char *near = f->kind == MFL_YAML_ENUM ? mfl_yaml_nearest(node->text, f->names) : NULL;
        for (int i = 0; f->instead && f->instead[i]; i += 2)
                if (!strcasecmp(node->text, f->instead[i]))
                        return mfl_yaml_fail(doc, node, err, "'%.64s': %s", node->text, f->instead[i + 1]);
        return mfl_yaml_fail(doc, node, err, "expected %s, got %s'%.64s'%s%s%s", want,
                node->quoted && f->kind != MFL_YAML_ENUM && f->kind != MFL_YAML_STRING ? "the text " : "",
                node->text, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* ---- Values ---- */

static bool in_limits(const struct mfl_yaml_field *f, double value)
{
        if (!is_limited(f))
                return true;
        return (f->min_open ? value > f->min : value >= f->min) &&
               (f->max_open ? value < f->max : value <= f->max);
}

static bool read_whole(const struct mfl_yaml_node *node, const struct mfl_yaml_field *f, void *value)
{
        uint64_t u;
        int64_t i;
        bool good;
        switch (f->kind) {
        case MFL_YAML_I64:
                if (node->quoted || !parse_i64(node->text, &i) || !in_limits(f, (double)i))
                        return false;
                memcpy(value, &i, sizeof i);
                return true;
        case MFL_YAML_DURATION:
                good = mfl_yaml_parse_duration(node->text, &u);
                break;
        case MFL_YAML_SIZE:
                good = mfl_yaml_parse_size(node->text, &u);
                break;
        default:
                good = !node->quoted && parse_u64(node->text, &u);
        }
        if (!good || !in_limits(f, (double)u) || (f->kind == MFL_YAML_U32 && u > UINT32_MAX))
                return false;
        if (f->kind == MFL_YAML_U32)
                memcpy(value, &(uint32_t){(uint32_t)u}, sizeof(uint32_t));
        else
                memcpy(value, &u, sizeof u);
        return true;
}

static bool read_real(const struct mfl_yaml_node *node, const struct mfl_yaml_field *f, void *value)
{
        double d;
        if (node->quoted || !parse_double(node->text, &d) || !in_limits(f, d))
                return false;
        if (f->kind == MFL_YAML_F64) {
                memcpy(value, &d, sizeof d);
                return true;
        }
        /* Checks again after the rounding: 1e-60 is above 0, but not as a float. */
        float rounded = (float)d;
        bool limit_hit =
                (f->min_open && (double)rounded <= f->min) || (f->max_open && (double)rounded >= f->max);
        if (!isfinite(rounded) || (is_limited(f) && limit_hit))
                return false;
        memcpy(value, &rounded, sizeof rounded);
        return true;
}

static int read_text(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_yaml_field *f, void *value, struct mfl_error *err)
{
        if (!*node->text && !node->quoted)
                return fail_value(doc, node, f, err);
        if (f->kind == MFL_YAML_STRING) {
                if (strlen(node->text) >= f->size)
                        return mfl_yaml_fail(doc, node, err, "%zu characters; the limit is %zu",
                                strlen(node->text), f->size - 1);
                strcpy(value, node->text);
                return 0;
        }
        char *copy = mfl_strdup(node->text);
        if (!copy)
                return mfl_fail_memory(err, strlen(node->text) + 1, node->key ? node->key : "a text");
        char **place = value;
        free(*place);
        *place = copy;
        return 0;
}

static bool read_enum(const struct mfl_yaml_node *node, const struct mfl_yaml_field *f, void *value)
{
        for (int i = 0; f->names[i]; i++) {
                if (!strcmp(node->text, f->names[i])) {
                        memcpy(value, &i, sizeof i);
                        return true;
                }
        }
        return false;
}

static bool read_scalar(const struct mfl_yaml_node *node, const struct mfl_yaml_field *f, void *value)
{
        switch (f->kind) {
        case MFL_YAML_F32:
        case MFL_YAML_F64:
                return read_real(node, f, value);
        case MFL_YAML_BOOL:
                return !node->quoted && parse_bool(node->text, value);
        case MFL_YAML_ENUM:
                return read_enum(node, f, value);
        case MFL_YAML_FIELDS:
                return false;
        default:
                return read_whole(node, f, value);
        }
}

bool mfl_yaml_parse_value(const char *text, const struct mfl_yaml_field *f, void *value)
{
        const struct mfl_yaml_node node = {.type = MFL_YAML_SCALAR, .text = text};
        mfl_assert(f->kind != MFL_YAML_STRING && f->kind != MFL_YAML_TEXT && f->kind != MFL_YAML_CALL);
        return read_scalar(&node, f, value);
}

int mfl_yaml_read_value(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_yaml_field *f, void *target, struct mfl_error *err)
{
        void *value = (char *)target + f->offset;
        if (f->kind == MFL_YAML_CALL)
                return f->read(doc, node, value, err);
        if (f->kind == MFL_YAML_FIELDS && node->type == MFL_YAML_MAPPING)
                return mfl_yaml_read(doc, node, f->fields, value, err);
        if (node->type != MFL_YAML_SCALAR)
                return fail_value(doc, node, f, err);
        if (f->kind == MFL_YAML_STRING || f->kind == MFL_YAML_TEXT)
                return read_text(doc, node, f, value, err);
        return read_scalar(node, f, value) ? 0 : fail_value(doc, node, f, err);
}

/* ---- Mappings ---- */

static int fail_unknown(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_yaml_field *fields, struct mfl_error *err)
{
        const char *names[65];
        size_t n = 0;
        for (; fields->key && n < 64; fields++)
                names[n++] = fields->key;
        names[n] = NULL;
        return mfl_yaml_fail_unknown_key(doc, node, names, err);
}

int mfl_yaml_read(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_yaml_field *fields, void *target, struct mfl_error *err)
{
        if (node->type != MFL_YAML_MAPPING) {
                const struct mfl_yaml_field mapping = {.kind = MFL_YAML_FIELDS};
                return fail_value(doc, node, &mapping, err);
        }
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                const struct mfl_yaml_field *f = fields;
                while (f->key && strcmp(f->key, n->key))
                        f++;
                if (!f->key)
                        return fail_unknown(doc, n, fields, err);
                int r = mfl_yaml_read_value(doc, n, f, target, err);
                if (r)
                        return r;
                if (f->seen)
                        memcpy((char *)target + f->seen, &(bool){true}, sizeof(bool));
        }
        for (const struct mfl_yaml_field *f = fields; f->key; f++)
                if (f->required && !mfl_yaml_find(node, f->key))
                        return mfl_yaml_fail(doc, node, err, "key '%s' is missing", f->key);
        return 0;
}

int mfl_yaml_read_words(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, char *value,
        size_t bytes, struct mfl_error *err)
{
        size_t n = 0;
        const bool one = node->type == MFL_YAML_SCALAR;
        if (node->type == MFL_YAML_MAPPING || (!one && !node->first))
                return mfl_yaml_fail(doc, node, err, "expected a text, or a list of texts in brackets");
        for (const struct mfl_yaml_node *word = one ? node : node->first; word;
                word = one ? NULL : word->next) {
                if (word->type != MFL_YAML_SCALAR || !*word->text)
                        return mfl_yaml_fail(doc, word, err, "expected a text");
                if (n + strlen(word->text) + 2 > bytes)
                        return mfl_yaml_fail(
                                doc, word, err, "the list has more than %zu characters", bytes - 1);
                n += (size_t)mfl_snprintf(value + n, bytes - n, n ? ",%s" : "%s", word->text);
        }
        return 0;
}
