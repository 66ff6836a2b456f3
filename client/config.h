/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon's configuration: defaults, then the YAML file, then $MFL_SERVER, then options. Blocking; at start
 * only.
 *
 *     server: 127.0.0.1:7433
 *     tls_ca: /etc/mfl/ca.pem     # TLS: whose certificate the server must show; with tls_cert and tls_key,
 * this tls_cert: /etc/mfl/d.pem    # daemon's own (CN its name, OU=daemon); all three are read at each
 * connection tls_key: /etc/mfl/d.key name: gpu-node-1            # default: the host's name; unique among the
 * server's daemons node: rack4-7               # default: made from machine id and boot id workers: auto #
 * clients trained at once; auto: one per core backend: auto               # auto, cpu, reference, cuda gpu: 3
 * # which GPU: index, GPU-... or MIG-...; none; all or a list: a daemon each share_gpu: false            #
 * whether another daemon may use the same GPU gpu_memory: 60GiB           # for networks and data sets;
 * default: nine tenths of what is free memory: 8GiB                # for networks, params, results; default:
 * four fifths of what there is collective: auto            # with the host's other daemons: auto, shm, nccl
 * (demanded), solo (not at all) share_dir: /dev/shm         # where they share memory log_level: info
 * stop: task # what SIGTERM does: now (default) or task; stop_timeout: 10m # task: no longer than this
 * data_sets:
 *       - {name: fashion-mnist, format: idx, dir: /usr/share/datasets/fashion-mnist}
 *       - {name: mine, format: npy, train_x: x.npy, train_y: y.npy, test_x: tx.npy, test_y: ty.npy}
 *       - {name: noise, format: synthetic, shape: [3, 32, 32], classes: 10, train: 1000, test: 100}
 *
 * Errors: MFL_INVALID with FILE:LINE and key, or the option, and what would be right.
 */
#ifndef MFL_CLIENT_CONFIG_H
#define MFL_CLIENT_CONFIG_H

#include "common/base.h"
#include "common/data/dataset.h"
#include "common/log.h"

#define MFL_CLIENT_GPU_BYTES 256

enum mfl_client_collective {
        MFL_CLIENT_COLLECTIVE_AUTO,
        MFL_CLIENT_COLLECTIVE_SHM,
        MFL_CLIENT_COLLECTIVE_SOLO,
        MFL_CLIENT_COLLECTIVE_NCCL,
};

/* What SIGTERM does. */
enum mfl_client_stop {
        MFL_CLIENT_STOP_NOW,  /* work at hand is given back */
        MFL_CLIENT_STOP_TASK, /* it is brought to its end, within stop_ms */
};

struct mfl_client_config {
        char server[256];
        char tls_ca[1024], tls_cert[1024], tls_key[1024]; /* all: TLS; none: plain TCP */
        char name[MFL_NAME_BYTES], node[MFL_NAME_BYTES];
        char backend[16];
        char gpu[MFL_CLIENT_GPU_BYTES]; /* as written; empty: not said */
        bool share_gpu;
        uint32_t workers;          /* 0: auto */
        uint64_t memory_bytes;     /* 0: by the machine */
        uint64_t gpu_memory_bytes; /* 0: by the GPU */
        int collective;            /* enum mfl_client_collective */
        char share_dir[256];       /* empty: /dev/shm */
        int log_level;             /* enum mfl_log_level */
        int stop;                  /* enum mfl_client_stop */
        uint64_t stop_ms;          /* STOP_TASK: no longer than this */
        uint32_t n_data_sets;
        struct mfl_dataset_config *data_sets;
        bool exit_with_stdin;
        char instance[MFL_CLIENT_GPU_BYTES]; /* --instance, as written; it has been put into gpu and name */
        uint32_t instances;                  /* this many daemons share the machine's memory; 0: unknown */
        bool help, version;                  /* asked for: nothing else counts */
};

/* Everything that a process needs, from its arguments. MFL_INVALID: wrong configuration (exit status 78);
 * MFL_CONFIG_USAGE: wrong arguments (2). Negative: no memory. deinit also after a failure. */
enum {
        MFL_CONFIG_USAGE = 16,
};
int mfl_client_config_init(
        struct mfl_client_config *config, int argc, char *const argv[], struct mfl_error *err);
void mfl_client_config_deinit(struct mfl_client_config *config);
extern const char mfl_client_help[];

/* ---- parts, for tests ---- */
int mfl_client_config_defaults(struct mfl_client_config *config, struct mfl_error *err);
int mfl_client_config_yaml(struct mfl_client_config *config, const char *text, size_t text_bytes,
        const char *file, struct mfl_error *err);
/* NAME=FORMAT:DIR; NAME=synthetic:C,H,W:classes:n_train:n_test:seed. Appends, or replaces one of that name.
 */
int mfl_client_config_data(struct mfl_client_config *config, const char *arg, struct mfl_error *err);
extern const char *const mfl_client_collective_names[]; /* by enum mfl_client_collective, then NULL */
/* 1 to 63 of [A-Za-z0-9._-] */
bool mfl_client_name_valid(const char *name);
/* What `gpu` may be; "" too. */
bool mfl_client_gpu_valid(const char *text);
/* The first 8 bytes of SHA-256 over shape, classes, normalisation, samples and labels. */
int mfl_client_fingerprint(
        const struct mfl_dataset *dataset, uint64_t *ret_fingerprint, struct mfl_error *err);

#endif
