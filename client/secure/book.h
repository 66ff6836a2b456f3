/* SPDX-License-Identifier: Apache-2.0 */
/* With whom updates were summed: a table by the update's digest, which only grows. A row takes about 80 bytes. One thread at a time. */
#ifndef MFL_CLIENT_SECURE_BOOK_H
#define MFL_CLIENT_SECURE_BOOK_H

#include "common/base/base.h"
#include "common/base/digest.h"

/* 256 MiB of rows, and a sum every ten seconds for 16 months. */
#define MFL_SECURE_BOOK_ROWS_MAX (1u << 22)

struct mfl_secure_book_row {
        uint8_t update[MFL_SHA256_BYTES], with[MFL_SHA256_BYTES];
};

/* A zeroed one is empty. */
struct mfl_secure_book {
        uint32_t n, capacity, n_slots;
        struct mfl_secure_book_row *v;
        uint32_t *slots; /* 1 + a row's number, where its digest leads or behind; 0: free */
};

void mfl_secure_book_deinit(struct mfl_secure_book *book);
/* The survivors with whom the update was summed, MFL_SHA256_BYTES; NULL: it was not. Until the next call of room. */
const uint8_t *mfl_secure_book_find(
        const struct mfl_secure_book *book, const uint8_t update[MFL_SHA256_BYTES]);
/* Room for one more row. MFL_INVALID: there are MFL_SECURE_BOOK_ROWS_MAX. -ENOMEM. */
int mfl_secure_book_room(struct mfl_secure_book *book, struct mfl_error *err);
/* After room. Of an update that is there already, the older row counts. */
void mfl_secure_book_put(struct mfl_secure_book *book, const uint8_t update[MFL_SHA256_BYTES],
        const uint8_t with[MFL_SHA256_BYTES]);

#endif
