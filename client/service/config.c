/* SPDX-License-Identifier: Apache-2.0 */
/* The defaults that the daemon finds out by itself, and data sets: in the file, and as an argument. */
#include "client/service/config.h"
#include "common/data/config.h"

#include <ctype.h>
#include <unistd.h>

#include "client/gpu/gpu.h"
#include "common/base/digest.h"
#include "common/base/fs.h"
#include "common/settings/yaml.h"

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

/* The same for all daemons of one boot of one machine; a copied disk image has another boot id. */
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

int mfl_client_config_identify(struct mfl_client_config *config, struct mfl_error *err)
{
        default_name(config->name);
        return default_node(config->node, err);
}

void mfl_client_config_deinit(struct mfl_client_config *config)
{
        for (uint32_t i = 0; i < config->n_data_sets; i++)
                mfl_dataset_config_deinit(&config->data_sets[i]);
        mfl_programs_deinit(&config->programs);
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

int mfl_client_config_data_sets(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_client_config *config = value;
        if (node->type != MFL_YAML_SEQUENCE)
                return mfl_yaml_fail(doc, node, err, "expected a list of {name, format, dir}");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                struct mfl_dataset_config entry;
                uint32_t before = config->n_data_sets;
                int r = mfl_dataset_config_read(doc, n, &entry, err);
                if (r)
                        return r;
                r = add_data(config, &entry, err);
                if (r)
                        return r;
                if (config->n_data_sets == before)
                        return mfl_yaml_fail(doc, mfl_yaml_find(n, "name"), err, "appears twice");
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
        return shape.rank >= 1;
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
        if (n != 5 || !parse_shape(part[0], &entry->shape) ||
                !parse_number(part[1], MFL_CLASSES_MAX, &classes) ||
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
                return mfl_fail(err, MFL_CONFIG_USAGE,
                        "--data %s: '%s' is not a name (letters, digits, '.', '_', '-')", arg, text);
        mfl_strcpy(entry->name, sizeof(entry->name), text);
        if (!strcmp(format, "synthetic")) {
                entry->format = MFL_FORMAT_SYNTHETIC;
                if (parse_synthetic(rest, entry))
                        return 0;
                return mfl_fail(err, MFL_CONFIG_USAGE,
                        "--data %s: expected NAME=synthetic:C,H,W:CLASSES:N_TRAIN:N_TEST:SEED", arg);
        }
        for (int i = 0; mfl_data_format_names[i]; i++) {
                if (!strcmp(format, mfl_data_format_names[i])) {
                        int r = mfl_dataset_config_parse(text, format, rest, entry, err);
                        return r == MFL_INVALID ? MFL_CONFIG_USAGE : r;
                }
        }
        return mfl_fail(err, MFL_CONFIG_USAGE,
                "--data %s: format '%s', expected idx, cifar10, cifar100, npy, npz, csv, text, images or "
                "synthetic",
                arg, format);
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
