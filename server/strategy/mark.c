/* SPDX-License-Identifier: Apache-2.0 */
#include "server/strategy/mark.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/log.h"

int mfl_plugin_mark(const char *path, uint32_t round, const char *name, struct mfl_error *err)
{
        uint32_t before = 0, crashes = 0;
        FILE *file = fopen(path, "re");
        if (file && (fscanf(file, "%u %u", &before, &crashes) != 2 || before != round))
                crashes = 0;
        if (file)
                fclose(file);
        if (crashes >= MFL_PLUGIN_CRASHES_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "plug-in %s: the server ended %u times in it; mend the plug-in and clone the job",
                        name, crashes);
        /* Where the disk is full, a crash is not counted, and the round goes on. */
        file = fopen(path, "we");
        if (!file || fprintf(file, "%u %u\n", round, crashes + 1) < 0)
                mfl_log(MFL_LOG_WARN, "plug-in %s: %s can't be written: %s", name, path, strerror(errno));
        if (file)
                fclose(file);
        return 0;
}

void mfl_plugin_unmark(const char *path)
{
        unlink(path);
}
