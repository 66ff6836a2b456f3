/* SPDX-License-Identifier: Apache-2.0 */
/* Which mfl-server a followed model's file came from: a note beside the file. A server has no name of its own but the text of the
 * configuration, which an administrator may change without another server being meant: so another text takes no model away, but makes the
 * server behind it answer for it first.
 */
#ifndef MFL_SERVE_FOLLOW_ORIGIN_H
#define MFL_SERVE_FOLLOW_ORIGIN_H

#include "common/base/base.h"

/* The file at path has come from server: notes that, and its SHA-256. Its folder is there. */
int mfl_origin_note(const char *path, const char *server, struct mfl_error *err);
/* Another file will take its place: a process that ends between the two, without mfl_origin_note, must not leave a whole file that looks damaged. */
int mfl_origin_forget_digest(const char *path, struct mfl_error *err);
/* True: there is such a file, and it came from another server than this text, which ret_from tells ("": nobody knows). */
bool mfl_origin_differs(const char *path, const char *server, char *ret_from, size_t from_bytes);
/* MFL_INVALID: the file is not the one that was noted, so it was damaged since. A file without a note is fine. */
int mfl_origin_check(const char *path, struct mfl_error *err);

#endif
