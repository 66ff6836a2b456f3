/* SPDX-License-Identifier: Apache-2.0 */
/* Names in the shared directory, owners of files, and errors of failed calls. */
#include "client/node/share_internal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/digest.h"

#define DIGITS 16 /* of an instance */

void mfl_share_name_lock(char name[MFL_SHARE_FILE_BYTES], uint64_t instance)
{
        snprintf(name, MFL_SHARE_FILE_BYTES, "mfl-%016" PRIx64 ".lock", instance);
}

void mfl_share_name_key(
        char name[MFL_SHARE_FILE_BYTES], uint64_t instance, const uint8_t key[MFL_SHARE_KEY_BYTES])
{
        char hex[2 * MFL_SHARE_KEY_BYTES + 1];
        mfl_hex(key, MFL_SHARE_KEY_BYTES, hex);
        snprintf(name, MFL_SHARE_FILE_BYTES, "mfl-%016" PRIx64 ".%s", instance, hex);
}

static bool only_of(const char *text, const char *set)
{
        return *text && !text[strspn(text, set)];
}

bool mfl_share_name_parse(const char *name, uint64_t *ret_instance, enum mfl_share_file_kind *ret_kind)
{
        static const char hex[] = "0123456789abcdef", decimal[] = "0123456789";
        if (strncmp(name, "mfl-", 4) || strspn(name + 4, hex) != DIGITS)
                return false;
        char digits[DIGITS + 1] = "";
        memcpy(digits, name + 4, DIGITS);
        const char *rest = name + 4 + DIGITS;
        enum mfl_share_file_kind kind = MFL_SHARE_FILE_DATA;
        if (!strcmp(rest, ".lock"))
                kind = MFL_SHARE_FILE_LOCK;
        else if (!strncmp(rest, ".new", 4) && only_of(rest + 4, decimal))
                kind = MFL_SHARE_FILE_NEW;
        else if (!(rest[0] == '-' && only_of(rest + 1, decimal)) &&
                 !(rest[0] == '.' && strlen(rest + 1) == 2 * MFL_SHARE_KEY_BYTES && only_of(rest + 1, hex)))
                return false;
        *ret_instance = strtoull(digits, NULL, 16);
        *ret_kind = kind;
        return true;
}

bool mfl_share_is_ours(const struct stat *st)
{
        return S_ISREG(st->st_mode) && st->st_uid == geteuid() && !(st->st_mode & (S_IRWXG | S_IRWXO));
}

bool mfl_share_is_named(const struct mfl_share *share, int fd, const char *name)
{
        struct stat opened, named;
        return !fstat(fd, &opened) && !fstatat(share->fd, name, &named, AT_SYMLINK_NOFOLLOW) &&
               opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

int mfl_share_fail_errno(struct mfl_error *err, const struct mfl_share *share, const char *name,
        const char *doing, const char *advice)
{
        const char *slash = *name ? "/" : "";
        switch (errno) {
        case ENOMEM:
        case EMFILE:
        case ENFILE:
                return mfl_fail_errno(err, "%s %s%s%s", doing, share->dir, slash, name);
        default:
                return mfl_fail(err, MFL_INVALID, "%s %s%s%s: %s%s", doing, share->dir, slash, name,
                        strerror(errno), advice);
        }
}
