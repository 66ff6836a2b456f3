/* SPDX-License-Identifier: Apache-2.0 */
/* Changes several files of a directory at once: all of them, or none.
 *
 * Planned files are written one by one, each by tmp, fsync and rename. Before the first of them, DIR/undo
 * gets a copy of every file that will be replaced and a list of the new ones. After the last one, DIR/undo is
 * renamed to DIR/done: from then on the change holds. A step that fails is undone at once. What a killed
 * process left is undone by mfl_pki_txn_recover, which every command calls first, under the lock.
 *
 *      plan -> undo.new/ -> undo/ -> files -> done/ -> removed
 *                             |         |
 *                             +---------+-> undone: as it was
 *
 * Errors: negative, with the step and the path. One thread; the caller locks the directory.
 */
#ifndef MFL_CLI_PKI_PKI_TXN_H
#define MFL_CLI_PKI_PKI_TXN_H

#include "common/base/base.h"

#include <sys/types.h>

#define MFL_PKI_TXN_FILES_MAX 16

struct mfl_pki_txn_entry {
        char *path;       /* absolute, or relative as DIR is */
        const char *text; /* NULL: a directory or a removal */
        mode_t mode;
        enum {
                MFL_PKI_TXN_FILE,
                MFL_PKI_TXN_DIR,    /* made if it does not exist */
                MFL_PKI_TXN_REMOVE, /* removes a file if it exists */
        } kind;
        bool is_new; /* did not exist before */
};
struct mfl_pki_txn {
        const char *dir;
        struct mfl_pki_txn_entry entry[MFL_PKI_TXN_FILES_MAX];
        int n;
        bool failed; /* out of memory for the plan; commit reports it */
};

/* Plans a file. text is borrowed until commit; path is copied and must not contain a line break. */
void mfl_pki_txn_file(struct mfl_pki_txn *txn, const char *text, mode_t mode, const char *fmt, ...)
        MFL_PRINTF(4, 5);
/* Plans a directory; plan its parents first. */
void mfl_pki_txn_dir(struct mfl_pki_txn *txn, mode_t mode, const char *fmt, ...) MFL_PRINTF(3, 4);
/* Plans the removal of a file. */
void mfl_pki_txn_remove(struct mfl_pki_txn *txn, const char *fmt, ...) MFL_PRINTF(2, 3);
/* Carries out and releases the plan. On failure, everything is as it was, unless the text says that undoing
 * failed, too; then the next mfl_pki_txn_recover undoes it. */
int mfl_pki_txn_commit(struct mfl_pki_txn *txn, struct mfl_error *err);
/* Releases a plan without carrying it out. Also allowed after commit. */
void mfl_pki_txn_drop(struct mfl_pki_txn *txn);
/* Undoes what a killed process left. ret_undone: there was something to undo. */
int mfl_pki_txn_recover(const char *dir, bool *ret_undone, struct mfl_error *err);

#endif
