/* SPDX-License-Identifier: Apache-2.0 */
/* What measurements chose, stored on disk for each kind of device and version of the libraries.
 *
 * One text file, "tune-<16 hex digits>.txt", is named after (device name, compute capability, CUDA, cuDNN,
 * driver versions, this file's format); its first line spells them out. Each further line is
 * KEY<tab>CHOICE<tab>ns. It is kept in $MFL_CACHE_DIR, else $CACHE_DIRECTORY (systemd), else
 * $XDG_CACHE_HOME/mfl, else $HOME/.cache/mfl. Without any of them, or where it cannot be written, nothing is
 * stored, and one line in the log says so. The file is replaced atomically, so several daemons may share it
 * (the last one wins; entries of others are read again before writing). A damaged line is skipped.
 * Thread-safe.
 */
#ifndef MFL_KERNELS_CUDA_BASE_TUNE_H
#define MFL_KERNELS_CUDA_BASE_TUNE_H

#include "common/base/base.h"

#define MFL_TUNE_KEY_BYTES 192
#define MFL_TUNE_CHOICE_BYTES 64

struct mfl_tuner;

/* identity: one line without tabs. */
int mfl_tuner_new(const char *identity, struct mfl_tuner **ret_tuner, struct mfl_error *err);
void mfl_tuner_free(struct mfl_tuner *tuner); /* saves */
/* Copies the choice and the time; false: unknown. */
bool mfl_tuner_get(
        struct mfl_tuner *tuner, const char *key, char *choice /* MFL_TUNE_CHOICE_BYTES */, double *ret_ns);
/* Errors: -ENOMEM. Nothing is saved until the caller calls mfl_tuner_save. */
int mfl_tuner_put(
        struct mfl_tuner *tuner, const char *key, const char *choice, double ns, struct mfl_error *err);
/* Facts that this process has found out and no file keeps: mfl_tuner_knows after mfl_tuner_note. Errors:
 * -ENOMEM. */
int mfl_tuner_note(struct mfl_tuner *tuner, const char *key, struct mfl_error *err);
bool mfl_tuner_knows(struct mfl_tuner *tuner, const char *key);
/* Best effort: a failure is logged once. */
void mfl_tuner_save(struct mfl_tuner *tuner);

#endif
