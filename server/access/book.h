/* SPDX-License-Identifier: Apache-2.0 */
/* The audit: who did or tried what. The disk worker writes the rows. Refusals are limited to 100 per minute,
 * so that a stranger can't fill the table. */
#ifndef MFL_SERVER_ACCESS_BOOK_H
#define MFL_SERVER_ACCESS_BOOK_H

#include "server/loop/loop.h"
#include "server/store/store.h"

struct mfl_session;

struct mfl_book {
        struct mfl_loop *loop;
        struct mfl_store *store;
        uint32_t n_refusals; /* in the minute that began at refusals_ms */
        uint64_t refusals_ms;
};

/* Queues a row, for an act that is no request on the disk worker. session NULL: by the server itself. */
void mfl_book_note(struct mfl_book *book, const struct mfl_session *session, const char *action,
        const char *object, const char *result, const char *text);
/* On the disk worker: adds a row. One that can't be written goes to the log instead; returns the store's
 * code. */
int mfl_book_write(struct mfl_store *store, const struct mfl_store_audit *entry, struct mfl_error *err);

#endif
