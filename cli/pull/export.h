/* SPDX-License-Identifier: Apache-2.0 */
/* Sinks of `mfl pull` besides safetensors: TensorBoard's event files, CSV, JSON lines, and NumPy's npz.
 *
 * A sink of rounds takes the rounds in ascending order, each once. Errors as in cli.h; the text names the
 * file. The command's thread only.
 */
#ifndef MFL_CLI_PULL_EXPORT_H
#define MFL_CLI_PULL_EXPORT_H

#include "cli/base/cli.h"
#include "cli/base/json.h"
#include "common/base/fs.h"
#include "common/job/job.h"
#include "common/model/graph.h"

/* ---- rounds as rows: export_rows.c ---- */

/* CSV by RFC 4180 (a line of names, CRLF, nothing for unknown values), or JSON lines. The columns are the
 * members of ROUND (`mfl help json`), in that order, with numbers in the same form. */
struct mfl_rows {
        bool csv;
        FILE *out;               /* standard output, or `text` */
        struct mfl_fs_file file; /* replaced when all rounds are written */
        char *text;
        size_t text_bytes;
};
/* path "-": standard output; each row is written at once. */
int mfl_rows_open(struct mfl_rows *rows, const char *path, bool csv, struct mfl_error *err);
int mfl_rows_add(struct mfl_rows *rows, const Mfl__RoundInfo *round, struct mfl_error *err);
/* Puts the file in its place. Before this call, the place has no new file. */
int mfl_rows_finish(struct mfl_rows *rows, struct mfl_error *err);
void mfl_rows_deinit(struct mfl_rows *rows); /* idempotent, also on a zeroed object and after finish */

/* ---- TensorBoard: export_events.c ---- */

/* LOGDIR/JOB-NAME/events.out.tfevents.SECONDS.mfl; SECONDS is the time when the job was created. Framing:
 * TensorFlow's record format (length, CRC of the length, data, CRC of the data; both CRC-32C, masked). One
 * record holds one whole round, so a round is either complete or absent. All of its bytes follow from the
 * round alone, so writing a record again gives the same bytes. */
struct mfl_events {
        char path[4096];
        int fd; /* locked: one writer at a time */
        uint64_t bytes;
        uint32_t last, n; /* the newest round in the file; the number of rounds added now */
};
/* Opens or creates the file of a job. Records of an earlier writer are kept, except for an incomplete last
 * one. MFL_CLI_CONFLICT: another writer has the file, or the folder holds events of something else. */
int mfl_events_open(
        struct mfl_events *events, const char *logdir, const Mfl__JobDetail *job, struct mfl_error *err);
/* Skips rounds that the file already has. If a record can't be written, no part of it stays. */
int mfl_events_add(struct mfl_events *events, const Mfl__RoundInfo *round, struct mfl_error *err);
void mfl_events_close(struct mfl_events *events); /* idempotent; fd must be -1 before open */

/* ---- peft: export_peft.c ---- */

/* Writes DIR/adapter_model.safetensors and DIR/adapter_config.json as `peft` of Hugging Face reads them
 * (peft.utils.save_and_load, PeftModel.from_pretrained): the low-rank additions as base_model.model.LAYER.lora_A.weight
 * ([r][in]) and lora_B.weight ([out][r]), and the layers that were trained in full as modules_to_save. Creates dir; its
 * files are replaced. base: NULL, or base_model_name_or_path. MFL_INVALID: the job trains no adapters, or they differ in
 * rank or alpha. */
int mfl_peft_write(const char *dir, const char *base, const struct mfl_job *job,
        const struct mfl_graph *graph, const float *params, struct mfl_error *err);

/* ---- npz: export_npz.c ---- */

/* Writes one float32 array per parameter under its PyTorch name, uncompressed; numpy.load reads it. Equal
 * params give equal bytes. comment: the contract, which becomes the archive's comment ("": none; one of more than 64 KiB is
 * left out). Replaces path once the file is complete. MFL_INVALID: this program was built
 * without npz. */
int mfl_npz_write(const char *path, const struct mfl_graph *graph, const float *params, const char *comment,
        struct mfl_error *err);

/* Changes of a round's clients: n of them, each as long as the model. */
struct mfl_changes_pulled {
        uint32_t n;
        const uint64_t *clients, *weights;
        const float *v;
};
/* The same: arrays "clients" and "weights", and "client-K/PARAM" for each client and each param that moves. */
int mfl_npz_write_changes(const char *path, const struct mfl_graph *graph,
        const struct mfl_changes_pulled *changes, struct mfl_error *err);

#endif
