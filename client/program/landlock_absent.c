/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces landlock.c where the kernel's headers have no Landlock. */
#include "client/program/internal.h"

int mfl_program_landlock(void)
{
        return 0;
}

bool mfl_program_hold_files(const struct program_files *files, bool network)
{
        return !files->n_read && !files->n_write;
}
