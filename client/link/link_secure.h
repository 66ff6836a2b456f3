/* SPDX-License-Identifier: Apache-2.0 */
/* Secure sums (link_secure.c), for the other files of the link. Loop thread. */
#ifndef MFL_CLIENT_LINK_LINK_SECURE_H
#define MFL_CLIENT_LINK_LINK_SECURE_H

#include "client/link/link_internal.h"

/* A training is done. In a job with secure_sum its figures go into `entry`, and the result tells none. */
void mfl_link_secure_hide(
        struct mfl_link *link, const char *job, struct mfl_train_result *result, struct link_result *entry);
/* The Announce was sent: keys follow, if its result is masked; with a group, when the node's sum is there. */
void mfl_link_secure_announced(struct mfl_link *link, const struct mfl_agent_action *action);
void mfl_link_secure_summed(struct mfl_link *link);               /* a combine has ended */
void mfl_link_secure_alone(struct mfl_link *link, uint64_t wire); /* the server has ended the task's group */
void mfl_link_secure_message(struct mfl_link *link, const struct mfl_secure_msg *msg);
/* A daemon with a policy takes part in secure sums by itself: the book of one daemon can't know in which sums of their node the
 * updates of the others were. */
void mfl_link_secure_apart(struct mfl_link *link, struct mfl_task *task);
/* False: the task is refused, and the server was told. */
bool mfl_link_secure_lets(struct mfl_link *link, const struct mfl_task *task);
void mfl_link_secure_cut(struct mfl_link *link); /* the connection is lost, or the link closes */
void mfl_link_secure_freed(
        struct mfl_link *link, uint64_t task); /* the agent drops the result: sums with it end */

/* link_book.c. open: link->book and link->book_file; close also after a failed open. */
int mfl_link_book_open(struct mfl_link *link, struct mfl_error *err);
int mfl_link_book_keep(struct mfl_link *link, const uint8_t update[MFL_SHA256_BYTES],
        const uint8_t with[MFL_SHA256_BYTES], struct mfl_error *err);
void mfl_link_book_close(struct mfl_link *link);

#endif
