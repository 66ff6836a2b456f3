/* SPDX-License-Identifier: Apache-2.0 */
/* Changing several files of a directory at once: all of them, or none.
 *
 * Planned files are written one by one, each by tmp, fsync and rename. Before the first of them, DIR/undo
 * gets a copy of every file that will be replaced, and a list of what will be new; after the last one,
 * DIR/undo is renamed to DIR/done: from then on the change holds. A step that fails is undone at once; what a
 * killed process left is undone by mfl_pki_txn_recover, which every command calls first, under the lock.
 *
 *      plan -> undo.new/ -> undo/ -> files -> done/ -> removed
 *                             |         |
 *                             +---------+-> undone: as it was
 *
 * Errors: negative, with the step and the path. One thread; the directory is locked by the caller.
 */
#ifndef MFL_CLI_PKI_TXN_H
#define MFL_CLI_PKI_TXN_H

#include "common/base.h"

#include <sys/types.h>

#define MFL_PKI_TXN_FILES_MAX 16

struct mfl_pki_txn_entry {
        char *path;       /* absolute, or as DIR is */
        const char *text; /* NULL: see kind */
        mode_t mode;
        enum {
                MFL_PKI_TXN_FILE,
                MFL_PKI_TXN_DIR,    /* made when it is not there */
                MFL_PKI_TXN_REMOVE, /* of a file, if it is there */
        } kind;
        bool is_new; /* was not there */
};
struct mfl_pki_txn {
        const char *dir;
        struct mfl_pki_txn_entry entry[MFL_PKI_TXN_FILES_MAX];
        int n;
        bool failed; /* no memory for a plan; commit says so */
};

/* Plans a file. text is borrowed until commit; path is copied and must not hold a line break. */
void mfl_pki_txn_file(struct mfl_pki_txn *txn, const char *text, mode_t mode, const char *fmt, ...)
        MFL_PRINTF(4, 5);
/* Plans a directory; those that it is in come before. */
void mfl_pki_txn_dir(struct mfl_pki_txn *txn, mode_t mode, const char *fmt, ...) MFL_PRINTF(3, 4);
/* Plans that a file shall not be there. */
void mfl_pki_txn_remove(struct mfl_pki_txn *txn, const char *fmt, ...) MFL_PRINTF(2, 3);
/* Carries the plan out. On failure all is as it was, unless the text says that this failed, too; then the
 * next mfl_pki_txn_recover does it. Releases the plan. */
int mfl_pki_txn_commit(struct mfl_pki_txn *txn, struct mfl_error *err);
/* Releases a plan that is not carried out; fine after commit. */
void mfl_pki_txn_drop(struct mfl_pki_txn *txn);
/* Undoes what a killed process had begun. ret_undone: there was something. */
int mfl_pki_txn_recover(const char *dir, bool *ret_undone, struct mfl_error *err);

#endif
