/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's defaults that it finds out by itself, and data sets: in the file, and as an argument. */
#include "client/config.h"

#include <ctype.h>
#include <unistd.h>

#include "client/gpu.h"
#include "common/digest.h"
#include "common/fs.h"
#include "common/yaml.h"

static const char *const format_names[] = {"idx", "cifar10", "npy", "synthetic", NULL};

bool mfl_client_name_valid(const char *name)
{
        size_t n = strlen(name);
        for (size_t i = 0; i < n; i++) {
                if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
                        return false;
        }
        return n >= 1 && n < MFL_NAME_BYTES;
}

bool mfl_client_gpu_valid(const char *text)
{
        struct mfl_gpu_id id, ids[MFL_GPUS_MAX];
        uint32_t n;
        return !strcmp(text, "all") || mfl_gpu_id_parse(text, &id) || mfl_gpu_ids_parse(text, ids, &n);
}

/* ---- defaults ---- */

static void default_name(char name[MFL_NAME_BYTES])
{
        char host[256] = "";
        if (gethostname(host, sizeof(host) - 1) || !*host)
                strcpy(host, "daemon");
        for (char *c = host; *c; c++) {
                if (!isalnum((unsigned char)*c) && !strchr("._-", *c))
                        *c = '-';
        }
        mfl_strcpy(name, MFL_NAME_BYTES, host);
}

/* Daemons of one boot of one machine share it; a copied disk image does not, for its boot differs. */
static int default_node(char node[MFL_NAME_BYTES], struct mfl_error *err)
{
        static const char *const files[] = {"/etc/machine-id", "/proc/sys/kernel/random/boot_id"};
        struct mfl_sha256 sha = {0};
        uint8_t digest[MFL_SHA256_BYTES];
        int r = mfl_sha256_init(&sha, err);
        for (size_t i = 0; !r && i < MFL_ARRAY_SIZE(files); i++) {
                MFL_CLEANUP_FREE char *data = NULL;
                size_t bytes = 0;
                if (!mfl_fs_read(files[i], 4096, &data, &bytes, NULL))
                        r = mfl_sha256_update(&sha, data, bytes, err);
        }
        char host[256] = "";
        gethostname(host, sizeof(host) - 1);
        if (!r)
                r = mfl_sha256_update(&sha, host, strlen(host), err);
        if (!r)
                r = mfl_sha256_final(&sha, digest, err);
        mfl_sha256_deinit(&sha);
        if (!r)
                mfl_hex(digest, 16, node);
        return r;
}

int mfl_client_config_defaults(struct mfl_client_config *config, struct mfl_error *err)
{
        *config = (struct mfl_client_config){0};
        mfl_settings_defaults(&mfl_client_settings, config);
        default_name(config->name);
        return default_node(config->node, err);
}

void mfl_client_config_deinit(struct mfl_client_config *config)
{
        for (uint32_t i = 0; i < config->n_data_sets; i++)
                mfl_dataset_config_deinit(&config->data_sets[i]);
        free(config->data_sets);
        config->data_sets = NULL;
        config->n_data_sets = 0;
}

/* Takes the entry over, also on failure. */
static int add_data(struct mfl_client_config *config, struct mfl_dataset_config *entry, struct mfl_error *err)
{
        for (uint32_t i = 0; i < config->n_data_sets; i++) {
                if (strcmp(config->data_sets[i].name, entry->name))
                        continue;
                mfl_dataset_config_deinit(&config->data_sets[i]);
                config->data_sets[i] = *entry;
                return 0;
        }
        size_t bytes = (config->n_data_sets + 1) * sizeof(*entry);
        struct mfl_dataset_config *v = mfl_realloc(config->data_sets, bytes);
        if (!v) {
                mfl_dataset_config_deinit(entry);
                return mfl_fail_memory(err, bytes, "data sets");
        }
        config->data_sets = v;
        v[config->n_data_sets++] = *entry;
        return 0;
}

/* ---- YAML ---- */

static int read_name(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        if (node->type != MFL_YAML_SCALAR || !mfl_client_name_valid(node->text))
                return mfl_yaml_fail(doc, node, err,
                        "expected 1 to 63 letters, digits, '.', '_' and '-', such as gpu-node-1");
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

#define AT(kind_, member) MFL_YAML_AT(kind_, struct mfl_dataset_config, member)
#define CALL_AT(type_, member, read_) .kind = MFL_YAML_CALL, .offset = offsetof(type_, member), .read = read_
static const struct mfl_yaml_field data_fields[] = {
        {.key = "name", CALL_AT(struct mfl_dataset_config, name, read_name), .required = true},
        {.key = "format", AT(ENUM, format), .names = format_names, .required = true},
        {.key = "dir", AT(TEXT, dir)},
        {.key = "train_x", AT(TEXT, train_x)},
        {.key = "train_y", AT(TEXT, train_y)},
        {.key = "test_x", AT(TEXT, test_x)},
        {.key = "test_y", AT(TEXT, test_y)},
        {.key = "classes", AT(U32, classes), .min = 2, .max = 65536},
        {.key = "mean",
                CALL_AT(struct mfl_dataset_config, mean, read_channels),
                .seen = offsetof(struct mfl_dataset_config, has_mean)},
        {.key = "std", CALL_AT(struct mfl_dataset_config, std, read_channels)},
        {.key = "shape", CALL_AT(struct mfl_dataset_config, shape, read_shape)},
        {.key = "train", AT(U32, n_train), .min = 1, .max = 1e9},
        {.key = "test", AT(U32, n_test), .min = 1, .max = 1e9},
        {.key = "seed", AT(U64, seed)},
        {0},
};

static int check_data(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_dataset_config *entry, struct mfl_error *err)
{
        bool in_dir = entry->format == MFL_FORMAT_IDX || entry->format == MFL_FORMAT_CIFAR10;
        if (in_dir && !entry->dir)
                return mfl_yaml_fail(doc, node, err, "format %s needs dir, the directory with its files",
                        format_names[entry->format]);
        if (entry->format == MFL_FORMAT_NPY &&
                (!entry->train_x || !entry->train_y || !entry->test_x || !entry->test_y))
                return mfl_yaml_fail(
                        doc, node, err, "format npy needs the files train_x, train_y, test_x and test_y");
        if (entry->format == MFL_FORMAT_SYNTHETIC &&
                (!entry->shape.rank || !entry->classes || !entry->n_train || !entry->n_test))
                return mfl_yaml_fail(doc, node, err, "format synthetic needs shape, classes, train and test");
        if (entry->has_mean != (mfl_yaml_find(node, "std") != NULL))
                return mfl_yaml_fail(doc, node, err, "mean and std go together");
        return 0;
}

int mfl_client_config_data_sets(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_client_config *config = value;
        if (node->type != MFL_YAML_SEQUENCE)
                return mfl_yaml_fail(doc, node, err, "expected a list of {name, format, dir}");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                struct mfl_dataset_config entry = {0};
                uint32_t before = config->n_data_sets;
                int r = mfl_yaml_read(doc, n, data_fields, &entry, err);
                if (!r)
                        r = check_data(doc, n, &entry, err);
                if (r) {
                        mfl_dataset_config_deinit(&entry);
                        return r;
                }
                r = add_data(config, &entry, err);
                if (r)
                        return r;
                if (config->n_data_sets == before)
                        return mfl_yaml_fail(doc, mfl_yaml_find(n, "name"), err, "is there twice");
        }
        return 0;
}

/* ---- one data set as an argument ---- */

static bool parse_number(const char *text, uint64_t max, uint64_t *ret_number)
{
        char *end;
        errno = 0;
        unsigned long long v = strtoull(text, &end, 10);
        if (errno || end == text || *end || *text == '-' || v > max)
                return false;
        *ret_number = v;
        return true;
}

/* "C,H,W" or "F" */
static bool parse_shape(char *text, struct mfl_shape *ret_shape)
{
        struct mfl_shape shape = {0};
        for (char *save, *part = strtok_r(text, ",", &save); part; part = strtok_r(NULL, ",", &save)) {
                uint64_t v;
                if (shape.rank == 3 || !parse_number(part, 1 << 20, &v) || !v)
                        return false;
                shape.dim[shape.rank++] = (int64_t)v;
        }
        *ret_shape = shape;
        return shape.rank == 1 || shape.rank == 3;
}

static bool parse_synthetic(char *text, struct mfl_dataset_config *entry)
{
        char *part[5], *save;
        uint32_t n = 0;
        for (char *p = strtok_r(text, ":", &save); p; p = strtok_r(NULL, ":", &save)) {
                if (n == 5)
                        return false;
                part[n++] = p;
        }
        uint64_t classes, n_train, n_test;
        if (n != 5 || !parse_shape(part[0], &entry->shape) || !parse_number(part[1], 65536, &classes) ||
                !parse_number(part[2], 1000000000, &n_train) || !parse_number(part[3], 1000000000, &n_test) ||
                !parse_number(part[4], UINT64_MAX, &entry->seed))
                return false;
        entry->classes = (int)classes;
        entry->n_train = (uint32_t)n_train;
        entry->n_test = (uint32_t)n_test;
        return classes >= 2 && n_train && n_test;
}

static int parse_data(char *text, struct mfl_dataset_config *entry, const char *arg, struct mfl_error *err)
{
        char *format = strchr(text, '='), *rest = format ? strchr(format, ':') : NULL;
        if (!format || !rest || !rest[1])
                return mfl_fail(err, MFL_CONFIG_USAGE, "--data %s: expected NAME=FORMAT:DIR", arg);
        *format++ = 0;
        *rest++ = 0;
        if (!mfl_client_name_valid(text))
                return mfl_fail(err, MFL_CONFIG_USAGE, "--data %s: '%s' is no name", arg, text);
        mfl_strcpy(entry->name, sizeof(entry->name), text);
        if (!strcmp(format, "synthetic")) {
                entry->format = MFL_FORMAT_SYNTHETIC;
                if (parse_synthetic(rest, entry))
                        return 0;
                return mfl_fail(err, MFL_CONFIG_USAGE,
                        "--data %s: expected NAME=synthetic:C,H,W:CLASSES:N_TRAIN:N_TEST:SEED", arg);
        }
        if (strcmp(format, "idx") && strcmp(format, "cifar10"))
                return mfl_fail(err, MFL_CONFIG_USAGE,
                        "--data %s: format '%s', expected idx, cifar10 or synthetic", arg, format);
        entry->format = !strcmp(format, "idx") ? MFL_FORMAT_IDX : MFL_FORMAT_CIFAR10;
        entry->dir = mfl_strdup(rest);
        return entry->dir ? 0 : mfl_fail_memory(err, strlen(rest), "a path");
}

int mfl_client_config_data(struct mfl_client_config *config, const char *arg, struct mfl_error *err)
{
        struct mfl_dataset_config entry = {0};
        MFL_CLEANUP_FREE char *text = mfl_strdup(arg);
        if (!text)
                return mfl_fail_memory(err, strlen(arg), "an argument");
        int r = parse_data(text, &entry, arg, err);
        return r ? r : add_data(config, &entry, err);
}
