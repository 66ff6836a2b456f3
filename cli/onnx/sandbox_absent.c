/* SPDX-License-Identifier: Apache-2.0 */
/* Without libseccomp: the limits that every system has. */
#include <sys/prctl.h>

#include "cli/onnx/sandbox.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const bool mfl_sandbox_limits_memory = false;
#else
const bool mfl_sandbox_limits_memory = true;
#endif

int mfl_sandbox_enter(struct mfl_error *err)
{
        return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ? mfl_fail_errno(err, "no_new_privs") : 0;
}
