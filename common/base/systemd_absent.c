/* SPDX-License-Identifier: Apache-2.0 */
/* A build without libsystemd: nothing is reported to a service manager. */
#include "common/base/systemd.h"

bool mfl_systemd_listens(void)
{
        return false;
}

void mfl_systemd_notify(const char *state)
{
}

void mfl_systemd_status(const char *fmt, ...)
{
}

void mfl_systemd_reloading(void)
{
}

uint64_t mfl_systemd_watchdog_ms(void)
{
        return 0;
}

/* Ignoring the sockets would leave clients waiting at a port that nobody answers. */
int mfl_systemd_listeners(int *ret_fds, uint32_t max, uint32_t *ret_n, struct mfl_error *err)
{
        const char *n = getenv("LISTEN_FDS");
        if (n && *n && strcmp(n, "0"))
                return mfl_fail(err, MFL_INVALID,
                        "the service manager passed sockets ($LISTEN_FDS), but this program was built "
                        "without libsystemd");
        *ret_n = 0;
        return 0;
}

bool mfl_systemd_journal(const char *program, int priority, const char *job, const char *text)
{
        return false;
}
