/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-serve's configuration: a YAML file, then options of the command line over it. */
#ifndef MFL_SERVE_SHELL_CONFIG_H
#define MFL_SERVE_SHELL_CONFIG_H

#include "proto/servers.h"
#include "common/settings/settings.h"

#define MFL_SERVE_MODELS_MAX 64

/* From a file, from a job of `server`, or from its registry; the others are "". */
struct mfl_serve_model {
        char name[64], file[1024], job[64], model[160]; /* model: "NAME@alias", ... */
        int round;                                      /* of the job: 0 the newest, 1 the best */
};

struct mfl_serve_models {
        struct mfl_serve_model v[MFL_SERVE_MODELS_MAX];
        uint32_t n;
};

struct mfl_serve_config {
        char listen[256];
        char backend[32];
        int precision;        /* 0 fp32, 1 bf16 */
        bool insecure_listen; /* without TLS or without keys on an address other than loopback */
        uint32_t connections_max, pipeline_max;
        uint64_t idle_ms, request_ms;
        uint64_t head_bytes_max, body_bytes_max, bodies_bytes_max;
        char tls_cert[1024], tls_key[1024], tls_ca[1024];
        char api_keys[1024];
        struct mfl_serve_models models;
        char cache_dir[1024];
        char server[MFL_SERVERS_BYTES], server_ca[1024], server_cert[1024], server_key[1024];
        uint64_t poll_ms;
        uint32_t batch, queue, rows_max, threads, instances;
        uint64_t deadline_ms, delay_ms;
        double canary_share, canary_failures, canary_slower, mirror_share;
        uint64_t canary_ms;
        uint32_t log_level;
        int ready_fd; /* -1: none; command line only */
        bool exit_with_stdin, page;
        int argc;
        char **argv;
};

extern const struct mfl_settings mfl_serve_settings;
/* Defaults, the file that --config names, options. MFL_INVALID with text (exit status 78 for the file, 2 for options: *ret_usage
 * tells); MFL_NOT_FOUND after --help or --version, which were printed. */
int mfl_serve_config_load(
        int argc, char **argv, struct mfl_serve_config *ret_config, bool *ret_usage, struct mfl_error *err);

#endif
