/* SPDX-License-Identifier: Apache-2.0 */
/* `programs` of client.yaml, and what a daemon offers for each. */
#include <stdio.h>

#include "client/program/program.h"

#define COMMAND_MAX 64 /* texts of a command */

static int read_command(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_program_config *config = value;
        if (node->type != MFL_YAML_SEQUENCE || !node->n_children || node->n_children > COMMAND_MAX)
                return mfl_yaml_fail(doc, node, err,
                        "expected a list of 1 to %d texts, such as [/opt/pets/venv/bin/python, train.py]",
                        COMMAND_MAX);
        config->command = mfl_calloc(node->n_children + 1, sizeof(*config->command));
        if (!config->command)
                return mfl_fail_memory(err, node->n_children * sizeof(*config->command), "a command");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                if (n->type != MFL_YAML_SCALAR)
                        return mfl_yaml_fail(doc, n, err, "expected a text");
                config->command[config->n_command] = mfl_strdup(n->text);
                if (!config->command[config->n_command++])
                        return mfl_fail_memory(err, strlen(n->text), "a command");
        }
        if (config->command[0][0] != '/')
                return mfl_yaml_fail(doc, node->first, err,
                        "expected an absolute path, such as /usr/bin/python3; nothing is looked up in PATH");
        return 0;
}

static int read_paths(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, char ***ret_paths,
        uint32_t *ret_n, struct mfl_error *err)
{
        if (node->type != MFL_YAML_SEQUENCE || !node->n_children || node->n_children > MFL_PROGRAM_PATHS_MAX)
                return mfl_yaml_fail(doc, node, err,
                        "expected a list of 1 to %d directories, such as [/data]", MFL_PROGRAM_PATHS_MAX);
        *ret_paths = mfl_calloc(node->n_children + 1, sizeof(**ret_paths));
        if (!*ret_paths)
                return mfl_fail_memory(err, node->n_children * sizeof(**ret_paths), "paths");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                if (n->type != MFL_YAML_SCALAR || n->text[0] != '/')
                        return mfl_yaml_fail(doc, n, err, "expected an absolute path, such as /data");
                if (strlen(n->text) >= MFL_PROGRAM_PATH_BYTES)
                        return mfl_yaml_fail(
                                doc, n, err, "a path has at most %d bytes", MFL_PROGRAM_PATH_BYTES - 1);
                (*ret_paths)[*ret_n] = mfl_strdup(n->text);
                if (!(*ret_paths)[(*ret_n)++])
                        return mfl_fail_memory(err, strlen(n->text), "a path");
        }
        return 0;
}

static int read_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_program_config *config = value;
        return read_paths(doc, node, &config->read, &config->n_read, err);
}

static int read_write(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_program_config *config = value;
        return read_paths(doc, node, &config->write, &config->n_write, err);
}

#define AT(kind_, member_) MFL_YAML_AT(kind_, struct mfl_program_config, member_)
static const struct mfl_yaml_field fields[] = {{.key = "name", AT(STRING, name), .required = true},
        {.key = "command", .kind = MFL_YAML_CALL, .read = read_command, .required = true},
        {.key = "dir", AT(TEXT, dir)},
        {.key = "timeout", AT(DURATION, timeout_ms), .min = 100, .max = 30.0 * 86400000},
        {.key = "memory", AT(SIZE, memory_bytes), .min = 1 << 20, .max = (double)((uint64_t)1 << 50)},
        {.key = "threads", AT(U32, threads), .min = 1, .max = 1024},
        {.key = "samples_max", AT(U32, samples_max), .min = 1, .max = 1 << 28},
        {.key = "processes", AT(U32, processes), .min = 1, .max = 4000000},
        {.key = "read", .kind = MFL_YAML_CALL, .read = read_read},
        {.key = "write", .kind = MFL_YAML_CALL, .read = read_write}, {.key = "network", AT(BOOL, network)},
        {0}};

static void deinit(struct mfl_program_config *config)
{
        for (uint32_t i = 0; i < config->n_command; i++)
                free(config->command[i]);
        free(config->command);
        for (uint32_t i = 0; i < config->n_read; i++)
                free(config->read[i]);
        for (uint32_t i = 0; i < config->n_write; i++)
                free(config->write[i]);
        free(config->read);
        free(config->write);
        free(config->dir);
}

static int read_one(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_programs *programs, struct mfl_error *err)
{
        struct mfl_program_config *config = &programs->v[programs->n++];
        *config = (struct mfl_program_config){.timeout_ms = 30 * 60 * 1000,
                .threads = 1,
                .processes = MFL_PROGRAM_PROCESSES,
                .samples_max = MFL_PROGRAM_SAMPLES_MAX};
        int r = mfl_yaml_read(doc, node, fields, config, err);
        if (r)
                return r;
        const struct mfl_yaml_node *name = mfl_yaml_find(node, "name"), *dir = mfl_yaml_find(node, "dir");
        if (!config->name[0] || config->name[strspn(config->name,
                                        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")])
                return mfl_yaml_fail(doc, name, err, "expected letters, digits, '.', '_' and '-'");
        if (mfl_programs_find(programs, config->name) != config)
                return mfl_yaml_fail(doc, name, err, "appears twice");
        if (dir && config->dir[0] != '/')
                return mfl_yaml_fail(doc, dir, err, "expected an absolute path, such as /opt/pets");
        return 0;
}

int mfl_programs_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_programs *programs = value;
        int r = 0;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children > MFL_PROGRAMS_MAX)
                return mfl_yaml_fail(
                        doc, node, err, "expected a list of at most %d {name, command}", MFL_PROGRAMS_MAX);
        mfl_programs_deinit(programs);
        for (const struct mfl_yaml_node *n = node->first; n && !r; n = n->next)
                r = read_one(doc, n, programs, err);
        return r;
}

void mfl_programs_deinit(struct mfl_programs *programs)
{
        for (uint32_t i = 0; i < programs->n; i++)
                deinit(&programs->v[i]);
        *programs = (struct mfl_programs){0};
}

const struct mfl_program_config *mfl_programs_find(const struct mfl_programs *programs, const char *name)
{
        for (uint32_t i = 0; programs && i < programs->n; i++)
                if (!strcmp(programs->v[i].name, name))
                        return &programs->v[i];
        return NULL;
}

/* One test sample: the program alone knows how many it has. */
void mfl_program_offer(const struct mfl_program_config *config, struct mfl_dataset *ret_offer)
{
        *ret_offer = (struct mfl_dataset){.shape = {1, {1}},
                .classes = 1,
                .scale = {1},
                .train = {.n = config->samples_max},
                .test = {.n = 1}};
        mfl_job_program_offer(config->name, ret_offer->name);
}
