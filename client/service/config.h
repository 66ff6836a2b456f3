/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon's configuration: defaults, then the YAML file, then variables such as MFL_SERVER, then options.
 * Blocks; at start and at a reload only. The table in options.c has every key; docs/configuration.md, which
 * is made from it, says what each means.
 *
 * Errors: MFL_INVALID with FILE:LINE and key, or the option, and what would be right. */
#ifndef MFL_CLIENT_SERVICE_CONFIG_H
#define MFL_CLIENT_SERVICE_CONFIG_H

#include "client/node/node.h"
#include "client/plugin/plugin.h"
#include "client/policy/policy.h"
#include "client/program/program.h"
#include "common/base/base.h"
#include "common/data/dataset.h"
#include "common/tags/where.h"
#include "common/base/log.h"
#include "common/settings/settings.h"

#define MFL_CLIENT_GPU_BYTES 256

/* What SIGTERM does. */
enum mfl_client_stop {
        MFL_CLIENT_STOP_NOW,  /* unfinished work is given back */
        MFL_CLIENT_STOP_TASK, /* work is finished, within stop_ms */
};

struct mfl_client_config {
        char server[1024];                                /* a list: proto/servers.h */
        char tls_ca[1024], tls_cert[1024], tls_key[1024]; /* all: TLS; none: plain TCP */
        char name[MFL_NAME_BYTES], node[MFL_NAME_BYTES];
        char site[MFL_NAME_BYTES]; /* "": this daemon is a site by itself */
        char tags[MFL_TAGS_BYTES]; /* "gpu=h100,region=eu" */
        int team;                  /* 0: auto, 1: off */
        char peer_listen[256];     /* "": no teams with daemons of other nodes */
        char peer_address[MFL_PEER_BYTES];
        char backend[16];
        char gpu[MFL_CLIENT_GPU_BYTES]; /* as written; empty: not set */
        bool share_gpu;
        uint32_t workers;          /* 0: auto */
        uint64_t memory_bytes;     /* 0: depends on the machine */
        uint64_t gpu_memory_bytes; /* 0: depends on the GPU */
        int collective;            /* enum mfl_client_collective */
        char share_dir[256];       /* empty: /dev/shm */
        char state_dir[256];       /* empty: sites keep no clients' states */
        int log_level;             /* enum mfl_log_level */
        int stop;                  /* enum mfl_client_stop */
        uint64_t stop_ms;          /* the longest time for STOP_TASK */
        uint32_t n_data_sets;
        struct mfl_dataset_config *data_sets;
        struct mfl_programs programs;
        char plugins[1024]; /* a directory; "": none */
        struct mfl_filters_config filters;
        struct mfl_plugin_data_configs plugin_data;
        struct mfl_policy policy;
        char predictions_dir[1024]; /* "": predictions are refused */
        bool exit_with_stdin;
        char instance[MFL_CLIENT_GPU_BYTES]; /* --instance, as written; gpu and name are set from it */
        uint32_t instances;                  /* this many daemons share the machine's memory; 0: unknown */
};

/* Everything that a process needs, from its arguments. MFL_INVALID: wrong configuration (exit status 78);
 * MFL_CONFIG_USAGE: wrong arguments (2). MFL_SETTINGS_SHOWN after --help or --version. Negative: no memory.
 * Call deinit also after a failure. */
enum {
        MFL_CONFIG_USAGE = MFL_SETTINGS_USAGE,
};
int mfl_client_config_init(
        struct mfl_client_config *config, int argc, char *const argv[], struct mfl_error *err);
void mfl_client_config_deinit(struct mfl_client_config *config);
extern const struct mfl_settings mfl_client_settings; /* the table: all keys and options */

/* ---- parts, for tests ---- */
int mfl_client_config_defaults(struct mfl_client_config *config, struct mfl_error *err);
/* Sets the name and the node from the machine. */
int mfl_client_config_identify(struct mfl_client_config *config, struct mfl_error *err);
int mfl_client_config_yaml(struct mfl_client_config *config, const char *text, size_t text_bytes,
        const char *file, struct mfl_error *err);
/* Reads the list `data_sets`; value is the whole configuration. */
int mfl_client_config_data_sets(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
/* NAME=FORMAT:PATH[,KEY=VALUE]...; NAME=synthetic:C,H,W:classes:n_train:n_test:seed. Appends, or replaces a
 * data set of the same name. */
int mfl_client_config_data(struct mfl_client_config *config, const char *arg, struct mfl_error *err);
extern const char *const mfl_client_collective_names[]; /* by enum mfl_client_collective, then NULL */
/* 1 to 63 of [A-Za-z0-9._-] */
bool mfl_client_name_valid(const char *name);
/* What `gpu` may be; also "". */
bool mfl_client_gpu_valid(const char *text);
#endif
