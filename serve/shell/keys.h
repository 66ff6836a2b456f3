/* SPDX-License-Identifier: Apache-2.0 */
/* API keys from a file: a line for each, "NAME KEY" or "NAME KEY admin"; '#' begins a comment. Digests of them are kept,
 * and compared in constant time. Loop thread only. */
#ifndef MFL_SERVE_SHELL_KEYS_H
#define MFL_SERVE_SHELL_KEYS_H

#include "common/base/digest.h"

#define MFL_KEY_BYTES_MIN 16

struct mfl_key {
        char name[64];
        uint8_t digest[MFL_SHA256_BYTES];
        bool admin;
};
struct mfl_keys {
        struct mfl_key *v;
        uint32_t n;
};

/* MFL_INVALID names file, line and what is wrong; keys stay as they were on failure. */
int mfl_keys_read(struct mfl_keys *keys, const char *file, struct mfl_error *err);
/* NULL: it is none of them. */
const struct mfl_key *mfl_keys_find(const struct mfl_keys *keys, const char *key);
void mfl_keys_deinit(struct mfl_keys *keys);

#endif
