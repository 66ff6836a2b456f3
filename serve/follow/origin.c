/* SPDX-License-Identifier: Apache-2.0 */
/* The note "origin" in a followed model's folder: the file's name, and the server that it came from. */
#include "serve/follow/origin.h"

#include <stdio.h>
#include <unistd.h>

#include "common/base/fs.h"

#define NOTE_BYTES 4096

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

int mfl_origin_note(const char *path, const char *server, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *note = note_path(path);
        MFL_CLEANUP_FREE char *text = mfl_asprintf("%s\n%s\n", base_of(path), server);
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

bool mfl_origin_differs(const char *path, const char *server, char *ret_from, size_t from_bytes)
{
        MFL_CLEANUP_FREE char *note = note_path(path);
        MFL_CLEANUP_FREE char *text = NULL;
        struct mfl_error err;
        size_t bytes;
        if (access(path, F_OK))
                return false;
        *ret_from = '\0';
        if (!note || mfl_fs_read(note, NOTE_BYTES, &text, &bytes, &err))
                return true;
        char *from = strchr(text, '\n'), *end = from ? strchr(from + 1, '\n') : NULL;
        if (!end)
                return true;
        *from++ = *end = '\0';
        if (strcmp(text, base_of(path)) != 0)
                return true;
        mfl_strcpy(ret_from, from_bytes, from);
        return strcmp(from, server) != 0;
}
