/* SPDX-License-Identifier: Apache-2.0 */
/* API keys from a file. */
#include "serve/shell/keys.h"

#include <stdio.h>
#include <sys/stat.h>

#include "common/base/fs.h"

#define FILE_BYTES_MAX (1u << 20)
#define MFL_KEY_BYTES_MAX 255 /* what a request's header can hold (serve/http/parse.h) */

static int read_line(
        char *line, const char *file, unsigned number, struct mfl_keys *keys, struct mfl_error *err)
{
        char *save = NULL, *word[4] = {NULL};
        size_t n = 0;
        for (char *w = strtok_r(line, " \t\r", &save); w && *w != '#' && n < 4;
                w = strtok_r(NULL, " \t\r", &save))
                word[n++] = w;
        if (!n)
                return 0;
        if (n < 2 || n > 3 || (word[2] && strcmp(word[2], "admin")))
                return mfl_fail(
                        err, MFL_INVALID, "%s:%u: expected NAME KEY, or NAME KEY admin", file, number);
        if (strlen(word[1]) < MFL_KEY_BYTES_MIN)
                return mfl_fail(err, MFL_INVALID, "%s:%u: a key has at least %d characters", file, number,
                        MFL_KEY_BYTES_MIN);
        if (strlen(word[1]) > MFL_KEY_BYTES_MAX)
                return mfl_fail(err, MFL_INVALID, "%s:%u: a key has at most %d characters", file, number,
                        MFL_KEY_BYTES_MAX);
        struct mfl_key *grown = mfl_realloc(keys->v, (keys->n + 1) * sizeof *grown);
        if (!grown)
                return mfl_fail_memory(err, sizeof *grown, "keys");
        keys->v = grown;
        struct mfl_key *key = &keys->v[keys->n++];
        *key = (struct mfl_key){.admin = word[2] != NULL};
        if (!mfl_strcpy(key->name, sizeof key->name, word[0]))
                return mfl_fail(err, MFL_INVALID, "%s:%u: a name has at most %zu characters", file, number,
                        sizeof key->name - 1);
        return mfl_sha256(word[1], strlen(word[1]), key->digest, err);
}

static int check_mode(const char *file, struct mfl_error *err)
{
        struct stat st;
        if (!stat(file, &st) && (st.st_mode & 07))
                return mfl_fail(err, MFL_INVALID, "%s: others can read it; chmod 600 %s", file, file);
        return 0;
}

int mfl_keys_read(struct mfl_keys *keys, const char *file, struct mfl_error *err)
{
        struct mfl_keys fresh = {0};
        char *text, *save = NULL;
        size_t bytes;
        unsigned number = 1;
        int r = check_mode(file, err);
        if (!r)
                r = mfl_fs_read(file, FILE_BYTES_MAX, &text, &bytes, err);
        if (r)
                return r == MFL_NOT_FOUND ? mfl_fail(err, MFL_INVALID, "%s: no such file", file) : r;
        for (char *line = text; line && !r; line = save, number++) {
                save = strchr(line, '\n');
                if (save)
                        *save++ = '\0';
                r = read_line(line, file, number, &fresh, err);
        }
        free(text);
        if (!r && !fresh.n)
                r = mfl_fail(err, MFL_INVALID, "%s: no key in it", file);
        if (r) {
                mfl_keys_deinit(&fresh);
                return r;
        }
        mfl_keys_deinit(keys);
        *keys = fresh;
        return 0;
}

const struct mfl_key *mfl_keys_find(const struct mfl_keys *keys, const char *key)
{
        uint8_t digest[MFL_SHA256_BYTES];
        struct mfl_error err;
        const struct mfl_key *found = NULL;
        if (mfl_sha256(key, strlen(key), digest, &err))
                return NULL;
        for (uint32_t i = 0; i < keys->n; i++) {
                unsigned differ = 0;
                for (size_t k = 0; k < sizeof digest; k++)
                        differ |= (unsigned)(digest[k] ^ keys->v[i].digest[k]);
                if (!differ)
                        found = &keys->v[i];
        }
        return found;
}

void mfl_keys_deinit(struct mfl_keys *keys)
{
        free(keys->v);
        *keys = (struct mfl_keys){0};
}
