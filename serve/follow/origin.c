/* SPDX-License-Identifier: Apache-2.0 */
/* The note "origin" in a followed model's folder: the file's name, the server that it came from, and the file's SHA-256. */
#include "serve/follow/origin.h"

#include <stdio.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"

#define NOTE_BYTES 4096
#define FILE_BYTES_MAX (64ull << 30)

/* In path's folder; NULL: out of memory. */
static char *note_path(const char *path)
{
        const char *slash = strrchr(path, '/');
        return slash ? mfl_asprintf("%.*s/origin", (int)(slash - path), path) : mfl_strdup("origin");
}

static const char *base_of(const char *path)
{
        const char *slash = strrchr(path, '/');
        return slash ? slash + 1 : path;
}

static int digest_of(const char *path, char ret_hex[MFL_SHA256_HEX_BYTES], struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *data = NULL;
        uint8_t digest[MFL_SHA256_BYTES];
        size_t bytes;
        int r = mfl_fs_read(path, FILE_BYTES_MAX, &data, &bytes, err);
        if (!r)
                r = mfl_sha256(data, bytes, digest, err);
        if (!r)
                mfl_hex(digest, sizeof digest, ret_hex);
        return r;
}

/* Cuts the note into its lines; false: there is none of this file. text is the caller's. */
static bool read_note(const char *path, char **ret_text, char *ret_lines[3])
{
        MFL_CLEANUP_FREE char *note = note_path(path);
        struct mfl_error err;
        size_t bytes;
        if (!note || mfl_fs_read(note, NOTE_BYTES, ret_text, &bytes, &err))
                return false;
        char *at = *ret_text;
        for (int i = 0; i < 3; i++) {
                char *end = at ? strchr(at, '\n') : NULL;
                ret_lines[i] = end ? at : NULL;
                if (end)
                        *end++ = '\0';
                at = end;
        }
        return ret_lines[1] && !strcmp(ret_lines[0], base_of(path));
}

/* digest: the file's, or "": not known. */
static int write_note(const char *path, const char *server, const char *digest, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *note = note_path(path);
        MFL_CLEANUP_FREE char *text =
                mfl_asprintf("%s\n%s\n%s%s", base_of(path), server, digest, *digest ? "\n" : "");
        struct mfl_fs_file file = {0};
        if (!note || !text)
                return mfl_fail_memory(err, strlen(path), "a note");
        int r = mfl_fs_begin(&file, note, err);
        if (!r)
                r = mfl_fs_write(&file, text, strlen(text), err);
        if (!r)
                r = mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

int mfl_origin_forget_digest(const char *path, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = NULL;
        char *lines[3];
        return read_note(path, &text, lines) && lines[2] ? write_note(path, lines[1], "", err) : 0;
}

int mfl_origin_note(const char *path, const char *server, struct mfl_error *err)
{
        char hex[MFL_SHA256_HEX_BYTES];
        const int r = digest_of(path, hex, err);
        return r ? r : write_note(path, server, hex, err);
}

bool mfl_origin_differs(const char *path, const char *server, char *ret_from, size_t from_bytes)
{
        MFL_CLEANUP_FREE char *text = NULL;
        char *lines[3];
        if (access(path, F_OK))
                return false;
        *ret_from = '\0';
        if (!read_note(path, &text, lines))
                return true;
        mfl_strcpy(ret_from, from_bytes, lines[1]);
        return strcmp(lines[1], server) != 0;
}

int mfl_origin_check(const char *path, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = NULL;
        char *lines[3], hex[MFL_SHA256_HEX_BYTES];
        if (access(path, F_OK) || !read_note(path, &text, lines) || !lines[2])
                return 0;
        const int r = digest_of(path, hex, err);
        if (r || !strcmp(hex, lines[2]))
                return r;
        return mfl_fail(err, MFL_INVALID, "%s: its SHA-256 is %.16s in place of %.16s: the file is damaged",
                path, hex, lines[2]);
}
