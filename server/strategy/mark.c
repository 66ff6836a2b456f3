/* SPDX-License-Identifier: Apache-2.0 */
#include "server/strategy/mark.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/log.h"

#define NAME_BYTES 64

static uint32_t read_mark(const char *path, uint32_t round, char ret_name[NAME_BYTES])
{
        uint32_t before = 0, crashes = 0;
        *ret_name = '\0';
        FILE *file = fopen(path, "re");
        if (file && (fscanf(file, "%u %u %63s", &before, &crashes, ret_name) < 2 || before != round))
                crashes = 0;
        if (file)
                fclose(file);
        return crashes;
}

/* Where the disk is full, a crash is not counted, and the round goes on. */
static void write_mark(const char *path, uint32_t round, uint32_t crashes, const char *name)
{
        FILE *file = fopen(path, "we");
        if (!file || fprintf(file, "%u %u %s\n", round, crashes, name) < 0)
                mfl_log(MFL_LOG_WARN, "plug-in %s: %s can't be written: %s", name, path, strerror(errno));
        if (file)
                fclose(file);
}

int mfl_plugin_mark(const char *path, uint32_t round, const char *name, struct mfl_error *err)
{
        char last[NAME_BYTES];
        uint32_t crashes = read_mark(path, round, last);
        if (crashes >= MFL_PLUGIN_CRASHES_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "plug-in %s: the server ended %u times in it; mend the plug-in and clone the job",
                        *last ? last : name, crashes);
        write_mark(path, round, crashes + 1, name);
        return 0;
}

void mfl_plugin_mark_next(const char *path, uint32_t round, const char *name)
{
        char last[NAME_BYTES];
        write_mark(path, round, read_mark(path, round, last), name);
}

void mfl_plugin_unmark(const char *path)
{
        unlink(path);
}
