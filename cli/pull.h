/* SPDX-License-Identifier: Apache-2.0 */
/* Fetching a model: params over the wire, checked against their digest, written as a file; and fetching the
 * rounds of a job. */
#ifndef MFL_CLI_PULL_H
#define MFL_CLI_PULL_H

#include "cli/client.h"

enum mfl_pull_format {
        MFL_PULL_SAFETENSORS,
        MFL_PULL_NPZ,
        MFL_PULL_ONNX, /* up to here a model */
        MFL_PULL_TENSORBOARD,
        MFL_PULL_CSV, /* from here on a table */
        MFL_PULL_JSONL,
        MFL_PULL_FORMATS_,
};

#define MFL_PULL_LAST (-1)
#define MFL_PULL_BEST (-2)

struct mfl_pulled {
        uint32_t round;
        bool evaluated, has_accuracy;
        double accuracy, loss;
        uint64_t n_params;
        char digest[65]; /* hex */
        char path[4096];
};

/* Writes path atomically, as safetensors, npz or ONNX; NULL: "JOB-rROUND.safetensors", ".npz" or ".onnx"
 * here. MFL_CLI_LOST also when the params do not have the digest that the server told: nothing is written
 * then. Codes of client.h; negative for the disk. */
int mfl_pull(struct mfl_client *client, const char *job, int64_t round, const char *path,
        enum mfl_pull_format format, struct mfl_pulled *ret_pulled, struct mfl_error *err);

struct mfl_pulled_rounds {
        char job[MFL_JOB_ID_BYTES];
        char path[4096]; /* "-": standard output */
        uint64_t n;      /* rounds written now */
        uint32_t last;   /* the newest that is there; 0: none */
};
/* Those of the job that the command's first argument names, as its options say. Codes of mfl_watch_run, of
 * cli/export.h, and of mfl_client_resolve. */
int mfl_pull_rounds(struct mfl_cli *cli, enum mfl_pull_format format, struct mfl_pulled_rounds *pulled,
        struct mfl_error *err);

#endif
