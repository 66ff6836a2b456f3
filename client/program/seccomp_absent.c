/* SPDX-License-Identifier: Apache-2.0 */
/* Builds without libseccomp: no new rights, and nothing more. */
#include <sys/prctl.h>

#include "client/program/internal.h"

const bool mfl_program_filters = false;

bool mfl_program_filter(bool network, bool memory_files)
{
        return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}
