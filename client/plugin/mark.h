/* SPDX-License-Identifier: Apache-2.0 */
/* Which calls of filters have begun and not ended, where the next process of this daemon finds them. Any thread, each with a place of
 * its own. */
#ifndef MFL_CLIENT_PLUGIN_MARK_H
#define MFL_CLIENT_PLUGIN_MARK_H

#include "common/base/base.h"

#define MFL_MARK_JOB_BYTES 24

struct mfl_mark {
        char job[MFL_MARK_JOB_BYTES]; /* what names the job, its params and the filters; "": no call is under way */
        uint32_t round, filter;       /* filter: its place in the list */
        uint64_t client;
};

struct mfl_marks;
/* Reads the calls that a process before has left, and begins anew with n places. -errno; MFL_INVALID: somebody else owns the file. */
int mfl_marks_open(
        const char *dir, const char *daemon, uint32_t n, struct mfl_marks **ret_marks, struct mfl_error *err);
void mfl_marks_close(struct mfl_marks *marks); /* the file goes, too; NULL is fine */
/* How many processes before have ended in calls of this client; *ret_filter is that of the last. Processes also end because somebody
 * kills them: one end says nothing of the filter. */
uint32_t mfl_marks_left(const struct mfl_marks *marks, const char *job, uint32_t round, uint64_t client,
        uint32_t *ret_filter);
void mfl_mark_begin(struct mfl_marks *marks, uint32_t place, const struct mfl_mark *mark);
void mfl_mark_end(struct mfl_marks *marks, uint32_t place);

#endif
