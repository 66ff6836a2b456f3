/* SPDX-License-Identifier: Apache-2.0 */
/* Limits the child's system calls with libseccomp: any other call kills it. Allowed are also the calls of
 * glibc's memory functions, and sysinfo, which its qsort uses for more than 1 KiB of elements. */
#include "cli/onnx/open/sandbox.h"

#include <seccomp.h>

const bool mfl_sandbox_limits_memory = true;

int mfl_sandbox_enter(struct mfl_error *err)
{
        static const int allowed[] = {SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(recvmsg), SCMP_SYS(sendmsg),
                SCMP_SYS(sendto), SCMP_SYS(close), SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(mmap),
                SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(mprotect), SCMP_SYS(madvise), SCMP_SYS(brk),
                SCMP_SYS(futex), SCMP_SYS(sysinfo), SCMP_SYS(clock_gettime), SCMP_SYS(getrandom),
                SCMP_SYS(rt_sigreturn), SCMP_SYS(rt_sigprocmask), SCMP_SYS(getpid), SCMP_SYS(gettid),
                SCMP_SYS(tgkill), SCMP_SYS(exit), SCMP_SYS(exit_group)};
        scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
        int r = filter ? 0 : -ENOMEM;
        for (size_t i = 0; !r && i < MFL_ARRAY_SIZE(allowed); i++)
                r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed[i], 0);
        if (!r)
                r = seccomp_load(filter); /* also sets no_new_privs */
        seccomp_release(filter);
        return r ? mfl_fail(err, r, "seccomp: %s", strerror(-r)) : 0;
}
