/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of a data set: an entry of `data_sets:`, or one argument that says the same. */
#include "common/data/config.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

static const char *const unit_names[] = {"characters", "bytes", NULL};
static const char *const normalise_names[] = {"none", "auto", NULL};
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
        if (node->type != MFL_YAML_SEQUENCE || (node->n_children != 1 && node->n_children != 3))
                return mfl_yaml_fail(doc, node, err, "expected [features] or [channels, height, width]");
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

/* yes, no and so on, turned round. */
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
                        doc, node, err, "expected a list of columns, by name or number, such as [height, 3]");
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

static int read_ignored(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_dataset_config *config = value;
        return read_columns(doc, node, &config->ignored, &config->n_ignored, err);
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
        return read_choice(doc, node, normalise_names, value, err);
}

static int read_label_set(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_choice(doc, node, label_set_names, value, err);
}

#define AT(kind_, member) MFL_YAML_AT(kind_, struct mfl_dataset_config, member)
#define CALL_AT(member, read_)                                                                               \
        .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_dataset_config, member), .read = read_
const struct mfl_yaml_field mfl_dataset_config_fields[] = {
        {.key = "name", CALL_AT(name, read_name), .required = true},
        {.key = "format", AT(ENUM, format), .names = mfl_data_format_names, .required = true},
        {.key = "dir", AT(TEXT, dir)},
        {.key = "train_x", AT(TEXT, train_x)},
        {.key = "train_y", AT(TEXT, train_y)},
        {.key = "test_x", AT(TEXT, test_x)},
        {.key = "test_y", AT(TEXT, test_y)},
        {.key = "classes", AT(U32, classes), .min = 2, .max = 65536},
        {.key = "mean", CALL_AT(mean, read_channels), .seen = offsetof(struct mfl_dataset_config, has_mean)},
        {.key = "std", CALL_AT(std, read_channels)},
        {.key = "normalise", CALL_AT(normalise, read_normalise)},
        {.key = "shape", CALL_AT(shape, read_shape)},
        {.key = "train", AT(U32, n_train), .min = 1, .max = 1e9},
        {.key = "test", AT(U32, n_test), .min = 1, .max = 1e9},
        {.key = "seed", AT(U64, seed)},
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
        {.key = "unit", AT(ENUM, unit), .names = unit_names},
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
        {"unit", BIT(MFL_FORMAT_TEXT)},
        {"length", BIT(MFL_FORMAT_TEXT)},
        {"stride", BIT(MFL_FORMAT_TEXT)},
};

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
                        "format images needs shape, [3, height, width] or [1, height, width] for grey, the "
                        "size "
                        "that all images are brought to");
        if (label && config->n_target_columns)
                return mfl_yaml_fail(doc, label, err, "targets is given too; keep one");
        if (config->has_mean != (mfl_yaml_find(node, "std") != NULL))
                return mfl_yaml_fail(doc, node, err, "mean and std go together");
        if (config->has_mean && config->normalise)
                return mfl_yaml_fail(
                        doc, mfl_yaml_find(node, "normalise"), err, "mean and std are given too; keep one");
        return check_usage(doc, node, config, err);
}

int mfl_dataset_config_read(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_dataset_config *ret_config, struct mfl_error *err)
{
        struct mfl_dataset_config config = {0};
        int r = mfl_yaml_read(doc, node, mfl_dataset_config_fields, &config, err);
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

/* Where ",KEY=" begins; the end without one. Whether there is such a key is for the table to say. */
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

/* "PATH,key=value,..." becomes "{name: N, format: F, dir: 'PATH', key: value, ...}". At most every byte
 * becomes two. */
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
