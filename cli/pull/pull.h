/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches a model: params over the wire, checked against their digest, written as a file. Also fetches the
 * rounds of a job. */
#ifndef MFL_CLI_PULL_PULL_H
#define MFL_CLI_PULL_PULL_H

#include "cli/base/client.h"

enum mfl_pull_format {
        MFL_PULL_SAFETENSORS,
        MFL_PULL_NPZ,
        MFL_PULL_ONNX,
        MFL_PULL_PEFT, /* up to here: a model; this one is a folder */
        MFL_PULL_TENSORBOARD,
        MFL_PULL_CSV, /* from here on: a table */
        MFL_PULL_JSONL,
        MFL_PULL_FORMATS_,
};

#define MFL_PULL_LAST (-1)
#define MFL_PULL_BEST (-2)

struct mfl_pulled {
        uint32_t round;
        bool open; /* accuracy and loss are those of a job with privacy, and have no noise: they are not in the file */
        bool evaluated, has_accuracy;
        double accuracy, loss;
        uint64_t n_params;
        char digest[65]; /* hex */
        char path[4096];
};

/* The value of --round: a number, "best", or "last" and NULL for the newest. MFL_CLI_USAGE. */
int mfl_pull_round(const char *text, int64_t *ret_round, struct mfl_error *err);

/* Writes path atomically, as safetensors, npz or ONNX; NULL: "JOB-rROUND.safetensors", ".npz" or ".onnx" in
 * the current folder. For peft it is a folder, by default "JOB-rROUND-peft", and base is the model that the adapter
 * belongs to, or NULL. with_input: an ONNX file takes raw samples, as the contract says. MFL_CLI_LOST also if the params do not have the digest that the server sent; then
 * nothing is written. Codes of client.h; negative for the disk. */
int mfl_pull(struct mfl_client *client, const char *job, int64_t round, const char *path,
        enum mfl_pull_format format, const char *base, bool with_input, struct mfl_pulled *ret_pulled,
        struct mfl_error *err);

/* The changes of a round's clients (debug.deltas) as one npz; NULL: "JOB-rROUND-deltas.npz". *ret_n clients, each with pulled->n_params floats;
 * *ret_counted: that the round has counted, which may be more (the file's limit, or a crash). */
int mfl_pull_changes(struct mfl_client *client, const char *job, int64_t round, const char *path,
        struct mfl_pulled *ret_pulled, uint32_t *ret_n, uint32_t *ret_counted, struct mfl_error *err);

struct mfl_pulled_rounds {
        char job[MFL_JOB_ID_BYTES];
        char path[4096];  /* "-": standard output */
        uint64_t n;       /* number of rounds written by this call */
        uint32_t last;    /* the newest round in the file; 0: none */
        const char *open; /* what of the rounds is not private; NULL: the job has no privacy */
};
/* Fetches the rounds of the job that the command's first argument names, following its options. Codes of
 * mfl_watch_run, of cli/pull/export.h, and of mfl_client_resolve. */
int mfl_pull_rounds(struct mfl_cli *cli, enum mfl_pull_format format, struct mfl_pulled_rounds *pulled,
        struct mfl_error *err);

#endif
