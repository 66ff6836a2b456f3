/* SPDX-License-Identifier: Apache-2.0 */
/* Open addressing with linear steps, at most half full. Digests are uniform, so their first bytes are the hash. */
#include "client/secure/book.h"

#define ROWS_FIRST 64u

void mfl_secure_book_deinit(struct mfl_secure_book *book)
{
        free(book->v);
        free(book->slots);
        *book = (struct mfl_secure_book){0};
}

/* The slot of the update's row, or the free one where it would be. */
static uint32_t slot_of(const struct mfl_secure_book *book, const uint8_t *update)
{
        uint32_t hash;
        memcpy(&hash, update, sizeof hash);
        uint32_t at = hash & (book->n_slots - 1);
        while (book->slots[at] && memcmp(book->v[book->slots[at] - 1].update, update, MFL_SHA256_BYTES))
                at = (at + 1) & (book->n_slots - 1);
        return at;
}

const uint8_t *mfl_secure_book_find(
        const struct mfl_secure_book *book, const uint8_t update[MFL_SHA256_BYTES])
{
        uint32_t row = book->n_slots ? book->slots[slot_of(book, update)] : 0;
        return row ? book->v[row - 1].with : NULL;
}

/* Twice as many rows. */
static int grow(struct mfl_secure_book *book, struct mfl_error *err)
{
        uint32_t capacity = book->capacity ? 2 * book->capacity : ROWS_FIRST;
        struct mfl_secure_book_row *v = mfl_realloc(book->v, capacity * sizeof *v);
        if (!v)
                return mfl_fail_memory(err, capacity * sizeof *v, "secure sums");
        book->v = v;
        uint32_t *slots = mfl_calloc(2 * (size_t)capacity, sizeof *slots);
        if (!slots)
                return mfl_fail_memory(err, 2 * (size_t)capacity * sizeof *slots, "secure sums");
        free(book->slots);
        book->slots = slots;
        book->n_slots = 2 * capacity;
        book->capacity = capacity;
        for (uint32_t i = 0; i < book->n; i++) {
                uint32_t at = slot_of(book, v[i].update);
                if (!slots[at])
                        slots[at] = i + 1;
        }
        return 0;
}

int mfl_secure_book_room(struct mfl_secure_book *book, struct mfl_error *err)
{
        if (book->n == MFL_SECURE_BOOK_ROWS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "this daemon remembers %u secure sums, and has no room for more; if no earlier job "
                        "will run again, remove its NAME.sums in policy.dir (without a policy there is "
                        "none), and start it again",
                        book->n);
        return book->n < book->capacity ? 0 : grow(book, err);
}

void mfl_secure_book_put(struct mfl_secure_book *book, const uint8_t update[MFL_SHA256_BYTES],
        const uint8_t with[MFL_SHA256_BYTES])
{
        mfl_assert(book->n < book->capacity);
        struct mfl_secure_book_row *row = &book->v[book->n++];
        memcpy(row->update, update, MFL_SHA256_BYTES);
        memcpy(row->with, with, MFL_SHA256_BYTES);
        uint32_t at = slot_of(book, update);
        if (!book->slots[at])
                book->slots[at] = book->n;
}
