/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of a data set: an entry of `data_sets:`, or one argument with the same content. */
#include "common/data/config.h"
#include "common/data/sources.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

static const char *const unit_names[] = {"characters", "bytes", "words", NULL};
static const char *const split_names[] = {"time", "group", NULL};
static const char *const label_at_names[] = {"last", "majority", NULL};
static const char *const normalise_names[] = {"none", "auto", "columns", NULL};
static const char *const names_names[] = {"keep", "share", NULL};
static const char *const label_set_names[] = {"fine", "coarse", NULL};

static int read_name(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        size_t n = node->type == MFL_YAML_SCALAR ? strlen(node->text) : 0;
        bool valid = n >= 1 && n < MFL_NAME_BYTES;
        for (size_t i = 0; valid && i < n; i++)
                valid = isalnum((unsigned char)node->text[i]) || strchr("._-", node->text[i]);
        if (!valid)
                return mfl_yaml_fail(doc, node, err,
                        "expected 1 to 63 letters, digits, '.', '_' and '-', such as fashion-mnist");
        mfl_strcpy(value, MFL_NAME_BYTES, node->text);
        return 0;
}

static int read_shape(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field number = {.kind = MFL_YAML_I64, .min = 1, .max = 1 << 20};
        struct mfl_shape shape = {0};
        if (node->type != MFL_YAML_SEQUENCE || node->n_children < 1 || node->n_children > 3)
                return mfl_yaml_fail(doc, node, err,
                        "expected [features], [positions, features] or [channels, height, width]");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                int r = mfl_yaml_read_value(doc, n, &number, &shape.dim[shape.rank++], err);
                if (r)
                        return r;
        }
        *(struct mfl_shape *)value = shape;
        return 0;
}

static int read_channels(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field number = {.kind = MFL_YAML_F32};
        if (node->type != MFL_YAML_SEQUENCE || !node->n_children || node->n_children > MFL_CHANNELS_MAX)
                return mfl_yaml_fail(
                        doc, node, err, "expected one number per channel, such as [0.49, 0.48, 0.45]");
        uint32_t i = 0;
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                int r = mfl_yaml_read_value(doc, n, &number, (float *)value + i++, err);
                if (r)
                        return r;
        }
        return 0;
}

/* yes, no and so on, inverted. */
static int read_header(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {.kind = MFL_YAML_BOOL, .size = sizeof(bool)};
        bool header = true;
        int r = mfl_yaml_read_value(doc, node, &field, &header, err);
        *(bool *)value = !header;
        return r;
}

static int read_separator(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        const char *text = node->type == MFL_YAML_SCALAR ? node->text : "";
        if (!strcmp(text, "tab"))
                text = "\t";
        if (strlen(text) != 1 || *text == '"' || *text == '\n' || *text == '\r')
                return mfl_yaml_fail(doc, node, err, "expected one character such as \";\", or tab");
        *(char *)value = *text;
        return 0;
}

static int read_columns(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, char ***list,
        int *n, struct mfl_error *err)
{
        if (node->type != MFL_YAML_SEQUENCE || !node->n_children || node->n_children > MFL_TARGETS_MAX)
                return mfl_yaml_fail(
                        doc, node, err, "expected a list of column names or numbers, such as [height, 3]");
        *list = mfl_calloc(node->n_children, sizeof **list);
        if (!*list)
                return mfl_fail_memory(err, node->n_children * sizeof **list, "columns");
        for (const struct mfl_yaml_node *c = node->first; c; c = c->next) {
                if (c->type != MFL_YAML_SCALAR || !*c->text)
                        return mfl_yaml_fail(doc, c, err, "expected a column's name or number");
                (*list)[*n] = mfl_strdup(c->text);
                if (!(*list)[*n])
                        return mfl_fail_memory(err, strlen(c->text), "columns");
                ++*n;
        }
        return 0;
}

static int read_targets(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_dataset_config *config = value;
        return read_columns(doc, node, &config->targets, &config->n_target_columns, err);
}

static int read_features(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_dataset_config *config = value;
        return read_columns(doc, node, &config->features, &config->n_feature_columns, err);
}

static int read_ignored(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_dataset_config *config = value;
        return read_columns(doc, node, &config->ignored, &config->n_ignored, err);
}

static int read_values(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_categories *c, struct mfl_error *err)
{
        struct mfl_error why;
        if (node->type != MFL_YAML_SEQUENCE)
                return mfl_yaml_fail(
                        doc, node, err, "expected a list of all values, such as [red, green, blue]");
        for (const struct mfl_yaml_node *v = node->first; v; v = v->next) {
                if (v->type != MFL_YAML_SCALAR)
                        return mfl_yaml_fail(doc, v, err, "expected a value");
                int r = mfl_categories_add_value(c, v->text, strlen(v->text), &why);
                if (r)
                        return r < 0 ? r : mfl_yaml_fail(doc, v, err, "%.200s", why.text);
        }
        int r = mfl_categories_check(c, &why);
        return r ? mfl_yaml_fail(doc, node, err, "%.200s", why.text) : 0;
}

/* {column: [values], ...} */
static int read_encoded(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_dataset_config *config, bool codes, struct mfl_error *err)
{
        if (node->type != MFL_YAML_MAPPING || !node->n_children)
                return mfl_yaml_fail(doc, node, err,
                        "expected columns with their values, such as {colour: [red, green, blue]}");
        size_t bytes = ((size_t)config->n_categories + node->n_children) * sizeof *config->categories;
        struct mfl_categories *grown = mfl_realloc(config->categories, bytes);
        if (!grown)
                return mfl_fail_memory(err, bytes, "categories");
        config->categories = grown;
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                struct mfl_categories *c = &grown[config->n_categories++];
                *c = (struct mfl_categories){.column = mfl_strdup(n->key), .codes = codes};
                int r = c->column ? read_values(doc, n, c, err)
                                  : mfl_fail_memory(err, strlen(n->key), "categories");
                if (r)
                        return r;
        }
        return 0;
}

static int read_categories(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_encoded(doc, node, value, false, err);
}

static int read_codes(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_encoded(doc, node, value, true, err);
}

static int read_choice(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const char *const *names, bool *value, struct mfl_error *err)
{
        struct mfl_yaml_field field = {.kind = MFL_YAML_ENUM, .size = sizeof(int), .names = names};
        int i = 0;
        int r = mfl_yaml_read_value(doc, node, &field, &i, err);
        *value = i == 1;
        return r;
}

static int read_normalise(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_yaml_field field = {.kind = MFL_YAML_ENUM, .size = sizeof(int), .names = normalise_names};
        struct mfl_dataset_config *config = value;
        int i = 0;
        int r = mfl_yaml_read_value(doc, node, &field, &i, err);
        config->normalise = i == 1;
        config->normalise_columns = i == 2;
        return r;
}

static int read_names(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_choice(doc, node, names_names, value, err);
}

static int read_label_set(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_choice(doc, node, label_set_names, value, err);
}

#define AT(kind_, member) MFL_YAML_AT(kind_, struct mfl_dataset_config, member)
#define CALL_AT(member, read_)                                                                               \
        .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_dataset_config, member), .read = read_
static const struct mfl_yaml_field fields[] = {
        {.key = "name", CALL_AT(name, read_name), .required = true},
        {.key = "format", AT(ENUM, format), .names = mfl_data_format_names, .required = true},
        {.key = "dir", AT(TEXT, dir)},
        {.key = "train_x", AT(TEXT, train_x)},
        {.key = "train_y", AT(TEXT, train_y)},
        {.key = "test_x", AT(TEXT, test_x)},
        {.key = "test_y", AT(TEXT, test_y)},
        {.key = "classes", AT(U32, classes), .min = 2, .max = MFL_CLASSES_MAX},
        {.key = "ignore_index",
                AT(I64, ignore_index),
                .min = -1000000,
                .max = 1000000,
                .seen = offsetof(struct mfl_dataset_config, has_ignore_index)},
        {.key = "mean", CALL_AT(mean, read_channels), .seen = offsetof(struct mfl_dataset_config, has_mean)},
        {.key = "std", CALL_AT(std, read_channels)},
        {.key = "normalise", .kind = MFL_YAML_CALL, .read = read_normalise},
        {.key = "names", CALL_AT(share_names, read_names)},
        {.key = "shape", CALL_AT(shape, read_shape)},
        {.key = "train", AT(U32, n_train), .min = 1, .max = 1e9},
        {.key = "test", AT(U32, n_test), .min = 1, .max = 1e9},
        {.key = "seed", AT(U64, seed)},
        {.key = "masks", AT(TEXT, masks)},
        {.key = "labels", CALL_AT(coarse, read_label_set)},
        {.key = "test_fraction",
                AT(F64, test_fraction),
                .min = 0,
                .max = 1,
                .min_open = true,
                .max_open = true},
        {.key = "header",
                CALL_AT(headless, read_header),
                .seen = offsetof(struct mfl_dataset_config, header_given)},
        {.key = "separator", CALL_AT(separator, read_separator)},
        {.key = "label", AT(TEXT, label)},
        {.key = "owner", AT(TEXT, owner)},
        {.key = "targets", .kind = MFL_YAML_CALL, .read = read_targets},
        {.key = "ignore", .kind = MFL_YAML_CALL, .read = read_ignored},
        {.key = "features", .kind = MFL_YAML_CALL, .read = read_features},
        {.key = "window", AT(U32, window), .min = 1, .max = 65536},
        {.key = "horizon",
                AT(U32, horizon),
                .max = 65536,
                .seen = offsetof(struct mfl_dataset_config, horizon_given)},
        {.key = "group", AT(TEXT, group)},
        {.key = "time", AT(TEXT, time)},
        {.key = "split", AT(ENUM, split), .names = split_names},
        {.key = "label_at", AT(ENUM, label_at), .names = label_at_names},
        {.key = "text", AT(TEXT, text)},
        {.key = "vocabulary", AT(TEXT, vocabulary)},
        {.key = "vocabulary_size", AT(U32, vocabulary_size), .min = 3, .max = MFL_CLASSES_MAX},
        {.key = "categories", .kind = MFL_YAML_CALL, .read = read_categories},
        {.key = "codes", .kind = MFL_YAML_CALL, .read = read_codes},
        {.key = "unit",
                AT(ENUM, unit),
                .names = unit_names,
                .seen = offsetof(struct mfl_dataset_config, unit_given)},
        {.key = "length", AT(U32, length), .min = 1, .max = 65536},
        {.key = "stride", AT(U32, stride), .min = 1, .max = 1000000},
        {0},
};

/* ---- what goes together ---- */

#define BIT(format) (1u << (format))
#define SPLITTING (BIT(MFL_FORMAT_CSV) | BIT(MFL_FORMAT_NPZ) | BIT(MFL_FORMAT_TEXT) | BIT(MFL_FORMAT_IMAGES))

static const struct {
        const char *key;
        unsigned used_by;
} usage[] = {
        {"dir", ~BIT(MFL_FORMAT_SYNTHETIC)},
        {"train_x", BIT(MFL_FORMAT_NPY) | BIT(MFL_FORMAT_NPZ)},
        {"train_y", BIT(MFL_FORMAT_NPY) | BIT(MFL_FORMAT_NPZ)},
        {"ignore_index", BIT(MFL_FORMAT_NPY) | BIT(MFL_FORMAT_NPZ) | BIT(MFL_FORMAT_IMAGES)},
        {"masks", BIT(MFL_FORMAT_IMAGES)},
        {"test_x", BIT(MFL_FORMAT_NPY) | BIT(MFL_FORMAT_NPZ)},
        {"test_y", BIT(MFL_FORMAT_NPY) | BIT(MFL_FORMAT_NPZ)},
        {"train", BIT(MFL_FORMAT_SYNTHETIC)},
        {"test", BIT(MFL_FORMAT_SYNTHETIC)},
        {"seed", BIT(MFL_FORMAT_SYNTHETIC) | SPLITTING},
        {"labels", BIT(MFL_FORMAT_CIFAR100)},
        {"test_fraction", SPLITTING},
        {"header", BIT(MFL_FORMAT_CSV)},
        {"separator", BIT(MFL_FORMAT_CSV)},
        {"label", BIT(MFL_FORMAT_CSV)},
        {"owner", BIT(MFL_FORMAT_CSV) | BIT(MFL_FORMAT_TEXT)},
        {"targets", BIT(MFL_FORMAT_CSV)},
        {"ignore", BIT(MFL_FORMAT_CSV)},
        {"categories", BIT(MFL_FORMAT_CSV)},
        {"codes", BIT(MFL_FORMAT_CSV)},
        {"unit", BIT(MFL_FORMAT_TEXT) | BIT(MFL_FORMAT_CSV)},
        {"length", BIT(MFL_FORMAT_TEXT) | BIT(MFL_FORMAT_CSV)},
        {"stride", BIT(MFL_FORMAT_TEXT) | BIT(MFL_FORMAT_CSV)},
        {"features", BIT(MFL_FORMAT_CSV)},
        {"window", BIT(MFL_FORMAT_CSV)},
        {"horizon", BIT(MFL_FORMAT_CSV)},
        {"group", BIT(MFL_FORMAT_CSV)},
        {"time", BIT(MFL_FORMAT_CSV)},
        {"split", BIT(MFL_FORMAT_CSV)},
        {"label_at", BIT(MFL_FORMAT_CSV)},
        {"text", BIT(MFL_FORMAT_CSV)},
        {"vocabulary", BIT(MFL_FORMAT_CSV) | BIT(MFL_FORMAT_NPY) | BIT(MFL_FORMAT_NPZ)},
        {"vocabulary_size", BIT(MFL_FORMAT_CSV)},
};

/* csv: keys that say more about another one. */
static const struct {
        const char *key, *of;
} companions[] = {
        {"stride", "window"},
        {"horizon", "window"},
        {"group", "window"},
        {"time", "window"},
        {"split", "window"},
        {"split", "test_fraction"},
        {"label_at", "window"},
        {"unit", "text"},
        {"length", "text"},
        {"vocabulary", "text"},
        {"vocabulary_size", "text"},
};
static const struct {
        const char *a, *b, *why;
} rivals[] = {
        {"text", "window", "a sample is a text, or a window over rows"},
        {"text", "features", "a text has no other features"},
        {"text", "categories", "a text has no other features"},
        {"text", "codes", "a text has no other features"},
        {"text", "ignore", "all other columns are ignored"},
        {"features", "ignore", "all other columns are ignored"},
        {"vocabulary", "vocabulary_size", "the file has all words"},
        {"label_at", "targets", "targets are those of one row"},
        {"window", "shape", "the shape is [window, features]"},
        {"text", "shape", "the shape is [length]"},
};

static int check_csv(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_dataset_config *config, struct mfl_error *err)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(companions); i++) {
                const struct mfl_yaml_node *key = mfl_yaml_find(node, companions[i].key);
                if (key && !mfl_yaml_find(node, companions[i].of))
                        return mfl_yaml_fail(doc, key, err, "is only used with %s", companions[i].of);
        }
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rivals); i++) {
                const struct mfl_yaml_node *key = mfl_yaml_find(node, rivals[i].b);
                if (key && mfl_yaml_find(node, rivals[i].a))
                        return mfl_yaml_fail(
                                doc, key, err, "%s is given too: %s", rivals[i].a, rivals[i].why);
        }
        if (config->label_at == MFL_SERIES_LABEL_MAJORITY && config->horizon_given)
                return mfl_yaml_fail(doc, mfl_yaml_find(node, "horizon"), err,
                        "label_at: majority is given too: it counts the labels inside the window");
        for (int i = 0; config->horizon_given && !config->horizon && i < config->n_target_columns; i++) {
                bool feature = !config->n_feature_columns;
                for (int k = 0; k < config->n_feature_columns; k++)
                        feature = feature || !strcmp(config->features[k], config->targets[i]);
                if (feature)
                        return mfl_yaml_fail(doc, mfl_yaml_find(node, "horizon"), err,
                                "0 makes target '%.40s' one of its own features; list the other columns: "
                                "features=[...]",
                                config->targets[i]);
        }
        if (config->split == MFL_SERIES_SPLIT_GROUP && !config->group)
                return mfl_yaml_fail(doc, mfl_yaml_find(node, "split"), err,
                        "group needs the column that tells the series apart: group=COLUMN");
        if (config->text && !config->unit_given)
                config->unit = MFL_TEXT_WORDS;
        if (config->text && config->unit == MFL_TEXT_BYTES && (config->vocabulary || config->vocabulary_size))
                return mfl_yaml_fail(doc, mfl_yaml_find(node, "unit"), err,
                        "bytes have a vocabulary of their own; remove %s",
                        config->vocabulary ? "vocabulary" : "vocabulary_size");
        return 0;
}

/* Without classes, a 255 that marks a border would be one of 256. */
static int check_masks(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_dataset_config *config, struct mfl_error *err)
{
        const struct mfl_yaml_node *masks = mfl_yaml_find(node, "masks"),
                                   *ignored = mfl_yaml_find(node, "ignore_index");
        if (!masks)
                return ignored ? mfl_yaml_fail(doc, ignored, err, "is only used with masks") : 0;
        if (!*config->masks || config->masks[0] == '.' || strchr(config->masks, '/') ||
                !strcmp(config->masks, "images"))
                return mfl_yaml_fail(
                        doc, masks, err, "expected the name of the folder beside images, such as masks");
        return config->classes
                       ? 0
                       : mfl_yaml_fail(doc, masks, err, "needs classes, the number of classes of a pixel");
}

static int check_usage(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_dataset_config *config, struct mfl_error *err)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(usage); i++) {
                const struct mfl_yaml_node *key = mfl_yaml_find(node, usage[i].key);
                if (key && !(usage[i].used_by & BIT(config->format)))
                        return mfl_yaml_fail(doc, key, err, "is not used by format %s; remove it",
                                mfl_data_format_names[config->format]);
        }
        return 0;
}

static int settle_owner(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_dataset_config *config, struct mfl_error *err)
{
        static const char *const kinds[] = {"none", "file", "speaker", NULL};
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_ENUM, .size = sizeof(int), .names = kinds};
        const struct mfl_yaml_node *owner = mfl_yaml_find(node, "owner");
        int kind = 0;
        if (config->format != MFL_FORMAT_TEXT || !owner)
                return 0;
        int r = mfl_yaml_read_value(doc, owner, &field, &kind, err);
        config->text_owner = (enum mfl_text_owner)kind;
        return r;
}

static int check(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_dataset_config *config, struct mfl_error *err)
{
        enum mfl_data_format format = config->format;
        const struct mfl_yaml_node *label = mfl_yaml_find(node, "label");
        if (!config->dir && format != MFL_FORMAT_NPY && format != MFL_FORMAT_SYNTHETIC)
                return mfl_yaml_fail(doc, node, err, "format %s needs dir, the directory with its files%s",
                        mfl_data_format_names[format], SPLITTING & BIT(format) ? ", or its file" : "");
        if (format == MFL_FORMAT_NPY && !config->dir &&
                (!config->train_x || !config->train_y || !config->test_x || !config->test_y))
                return mfl_yaml_fail(
                        doc, node, err, "format npy needs the files train_x, train_y, test_x and test_y");
        if (format == MFL_FORMAT_SYNTHETIC &&
                (!config->shape.rank || !config->classes || !config->n_train || !config->n_test))
                return mfl_yaml_fail(doc, node, err, "format synthetic needs shape, classes, train and test");
        if (format == MFL_FORMAT_IMAGES && config->shape.rank != 3)
                return mfl_yaml_fail(doc, node, err,
                        "format images needs shape, [3, height, width] or [1, height, width] for grey: all "
                        "images are scaled to it");
        if (label && config->n_target_columns)
                return mfl_yaml_fail(doc, label, err, "targets is given too; keep one");
        if (config->has_mean != (mfl_yaml_find(node, "std") != NULL))
                return mfl_yaml_fail(doc, node, err, "mean and std go together");
        if (config->has_mean && (config->normalise || config->normalise_columns))
                return mfl_yaml_fail(
                        doc, mfl_yaml_find(node, "normalise"), err, "mean and std are given too; keep one");
        int r = check_usage(doc, node, config, err);
        if (!r && format == MFL_FORMAT_IMAGES)
                r = check_masks(doc, node, config, err);
        if (!r && format == MFL_FORMAT_CSV)
                r = check_csv(doc, node, config, err);
        if (!r && format == MFL_FORMAT_TEXT && config->unit == MFL_TEXT_WORDS)
                r = mfl_yaml_fail(doc, mfl_yaml_find(node, "unit"), err,
                        "words are only for format csv with text, whose samples have one label each");
        return r;
}

int mfl_dataset_config_read(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_dataset_config *ret_config, struct mfl_error *err)
{
        struct mfl_dataset_config config = {0};
        int r = mfl_yaml_read(doc, node, fields, &config, err);
        if (!r)
                r = check(doc, node, &config, err);
        if (!r)
                r = settle_owner(doc, node, &config, err);
        if (r)
                mfl_dataset_config_deinit(&config);
        else
                *ret_config = config;
        return r;
}

/* ---- an argument ---- */

/* Where ",KEY=" begins; without one, the end. The table decides whether the key exists. */
static const char *find_option(const char *text, size_t *ret_key_bytes)
{
        for (const char *p = strchr(text, ','); p; p = strchr(p + 1, ',')) {
                size_t n = strspn(p + 1, "abcdefghijklmnopqrstuvwxyz_");
                if (n && p[1 + n] == '=') {
                        *ret_key_bytes = n;
                        return p;
                }
        }
        return text + strlen(text);
}

/* "PATH,key=value,..." becomes "{name: N, format: F, dir: 'PATH', key: value, ...}". The result is at most twice as
 * long. */
static char *make_document(const char *name, const char *format, const char *rest)
{
        size_t key_bytes = 0, size = 2 * strlen(rest) + strlen(name) + strlen(format) + 64;
        char *text = mfl_malloc(size);
        if (!text)
                return NULL;
        char *to = text + sprintf(text, "{name: '%s', format: '%s'", name, format);
        const char *end = find_option(rest, &key_bytes);
        if (end > rest) {
                to += sprintf(to, ", dir: '");
                for (; rest < end; rest++) {
                        *to++ = *rest;
                        if (*rest == '\'')
                                *to++ = '\'';
                }
                *to++ = '\'';
        }
        while (*end) {
                rest = end + 1 + key_bytes + 1;
                to += sprintf(to, ", %.*s: ", (int)key_bytes, end + 1);
                end = find_option(rest, &key_bytes);
                memcpy(to, rest, (size_t)(end - rest));
                to += end - rest;
        }
        strcpy(to, "}");
        return text;
}

int mfl_dataset_config_parse(const char *name, const char *format, const char *rest,
        struct mfl_dataset_config *ret_config, struct mfl_error *err)
{
        struct mfl_yaml_doc *doc;
        MFL_CLEANUP_FREE char *text = make_document(name, format, rest);
        if (!text)
                return mfl_fail_memory(err, strlen(rest), "an argument");
        int r = mfl_yaml_parse(text, strlen(text), "--data", NULL, &doc, err);
        if (r)
                return r;
        r = mfl_dataset_config_read(doc, mfl_yaml_root(doc), ret_config, err);
        mfl_yaml_free(doc);
        return r;
}
