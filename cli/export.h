/* SPDX-License-Identifier: Apache-2.0 */
/* Where `mfl pull` puts the rounds of a job and its model, besides safetensors: TensorBoard's event files,
 * CSV, JSON lines, and NumPy's npz.
 *
 * A sink of rounds takes them in ascending order, once each. Errors as in cli.h; what is wrong with a file is
 * told with its name. The command's thread only.
 */
#ifndef MFL_CLI_EXPORT_H
#define MFL_CLI_EXPORT_H

#include "cli/cli.h"
#include "cli/json.h"
#include "common/fs.h"
#include "common/model/graph.h"

/* ---- rounds as rows: export_rows.c ---- */

/* CSV by RFC 4180 (a line of names, CRLF, nothing for what is not known), or JSON lines. The columns are the
 * members of ROUND (`mfl help json`), in that order; numbers are written as there. */
struct mfl_rows {
        bool csv;
        FILE *out;               /* standard output, or text below */
        struct mfl_fs_file file; /* replaced when all rounds are there */
        char *text;
        size_t text_bytes;
};
/* path "-": standard output, and each row is there at once. */
int mfl_rows_open(struct mfl_rows *rows, const char *path, bool csv, struct mfl_error *err);
int mfl_rows_add(struct mfl_rows *rows, const Mfl__RoundInfo *round, struct mfl_error *err);
/* Puts the file in its place. Before that, nothing is where it shall be. */
int mfl_rows_finish(struct mfl_rows *rows, struct mfl_error *err);
void mfl_rows_deinit(struct mfl_rows *rows); /* fine on a zeroed object, after finish, and twice */

/* ---- TensorBoard: export_events.c ---- */

/* LOGDIR/JOB-NAME/events.out.tfevents.SECONDS.mfl, SECONDS being when the job was created. Framing:
 * TensorFlow's record format (length, CRC of it, data, CRC of them; both CRC-32C, masked). One record is one
 * whole round, so a round is there or it is not; all of its bytes follow from the round alone, so a record
 * that is written again is the same. */
struct mfl_events {
        char path[4096];
        int fd; /* locked: one writer at a time */
        uint64_t bytes;
        uint32_t last, n; /* the newest round there; rounds added here */
};
/* Opens the file of a job, or makes it. What an earlier writer left is kept, less a last record that is not
 * whole. MFL_CLI_CONFLICT: another writer is at it, or the folder holds events of something else. */
int mfl_events_open(
        struct mfl_events *events, const char *logdir, const Mfl__JobDetail *job, struct mfl_error *err);
/* Rounds that are there already are passed over. A record that can't be written leaves nothing of itself. */
int mfl_events_add(struct mfl_events *events, const Mfl__RoundInfo *round, struct mfl_error *err);
void mfl_events_close(struct mfl_events *events); /* idempotent; fd must be -1 before open */

/* ---- npz: export_npz.c ---- */

/* One float32 array for each parameter under its PyTorch name, uncompressed; numpy.load reads it. Equal
 * params give equal bytes. Replaces path when it is whole. MFL_INVALID: this program was built without. */
int mfl_npz_write(
        const char *path, const struct mfl_graph *graph, const float *params, struct mfl_error *err);
#endif
