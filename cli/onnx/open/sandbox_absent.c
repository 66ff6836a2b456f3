/* SPDX-License-Identifier: Apache-2.0 */
/* Without libseccomp: the limits that every system has. */
#include <sys/prctl.h>

#include "cli/onnx/open/sandbox.h"

#ifdef __has_feature /* clang reports sanitizers this way */
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif
const bool mfl_sandbox_limits_memory = !SANITIZED;

int mfl_sandbox_enter(struct mfl_error *err)
{
        return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ? mfl_fail_errno(err, "no_new_privs") : 0;
}
