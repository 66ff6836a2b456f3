/* SPDX-License-Identifier: Apache-2.0 */
/* What a training program may not ask the kernel for, with libseccomp. Python and PyTorch use most calls, so this is a list of what
 * is refused (with EPERM, as to any user without rights): calls that reach into other processes, change namespaces or mounts,
 * load code into the kernel, type into terminals, or go around this filter; and, unless the program may use the network, every socket that
 * is not local. Memory that no process maps is counted by nobody but a control group, so calls that make it are missing, too: shmget, and
 * memfd_create where no driver needs it. */
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "client/program/internal.h"

const bool mfl_program_filters = true;

static const int refused[] = {SCMP_SYS(ptrace), SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev),
        SCMP_SYS(kcmp), SCMP_SYS(pidfd_getfd), SCMP_SYS(process_madvise), SCMP_SYS(mount), SCMP_SYS(umount2),
        SCMP_SYS(pivot_root), SCMP_SYS(chroot), SCMP_SYS(unshare), SCMP_SYS(setns), SCMP_SYS(open_tree),
        SCMP_SYS(move_mount), SCMP_SYS(fsopen), SCMP_SYS(fsconfig), SCMP_SYS(fsmount), SCMP_SYS(fspick),
        SCMP_SYS(bpf), SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd), SCMP_SYS(keyctl), SCMP_SYS(add_key),
        SCMP_SYS(request_key), SCMP_SYS(kexec_load), SCMP_SYS(init_module), SCMP_SYS(finit_module),
        SCMP_SYS(delete_module), SCMP_SYS(reboot), SCMP_SYS(swapon), SCMP_SYS(swapoff),
        SCMP_SYS(mount_setattr), SCMP_SYS(fanotify_init), SCMP_SYS(kexec_file_load),
        SCMP_SYS(open_by_handle_at), SCMP_SYS(acct), SCMP_SYS(quotactl), SCMP_SYS(settimeofday),
        SCMP_SYS(clock_settime), SCMP_SYS(adjtimex), SCMP_SYS(sethostname), SCMP_SYS(setdomainname),
        SCMP_SYS(syslog), SCMP_SYS(vhangup)};
/* They are said to be missing, and their callers use older calls, which the filter can look into. */
static const int missing[] = {SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter), SCMP_SYS(io_uring_register),
        SCMP_SYS(clone3), SCMP_SYS(memfd_secret), SCMP_SYS(shmget)};
/* Typing into a terminal as if its user did. */
static const int typing[] = {TIOCSTI, TIOCLINUX};
static const int spaces[] = {
        CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP};

static int add_rules(scmp_filter_ctx filter, bool network, bool memory_files)
{
        int r = 0;
        for (size_t i = 0; !r && i < MFL_ARRAY_SIZE(refused); i++)
                r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), refused[i], 0);
        for (size_t i = 0; !r && i < MFL_ARRAY_SIZE(missing); i++)
                r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), missing[i], 0);
        for (size_t i = 0; !r && i < MFL_ARRAY_SIZE(spaces); i++) {
                scmp_datum_t bit = (scmp_datum_t)spaces[i];
                r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                        SCMP_A0(SCMP_CMP_MASKED_EQ, bit, bit));
        }
        for (size_t i = 0; !r && i < MFL_ARRAY_SIZE(typing); i++)
                r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                        SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, (scmp_datum_t)typing[i]));
        if (!r && !memory_files)
                r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(memfd_create), 0);
        if (!r && !network)
                r = seccomp_rule_add(
                        filter, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_NE, AF_UNIX));
        return r;
}

bool mfl_program_filter(bool network, bool memory_files)
{
        scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
        int r = filter ? add_rules(filter, network, memory_files) : -ENOMEM;
        if (!r)
                r = seccomp_load(filter); /* also sets no_new_privs */
        seccomp_release(filter);
        errno = -r;
        return !r;
}
