/* SPDX-License-Identifier: Apache-2.0 */
/* The service manager by libsystemd.
 *
 * - notifications go out as datagrams; a lost one is not reported, because the next one says the same;
 * - inherited descriptors are checked before use: each must be a listening TCP socket;
 * - journal entries carry the job as a field, so that `journalctl MFL_JOB=j-000007` finds all of a job's entries.
 */
#include "common/base/systemd.h"

/* Otherwise the library's macros would put this file's name and line into every journal entry. */
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-journal.h>
#include <time.h>
#include <unistd.h>

bool mfl_systemd_listens(void)
{
        const char *path = getenv("NOTIFY_SOCKET");
        return path && *path;
}

void mfl_systemd_notify(const char *state)
{
        (void)sd_notify(0, state);
}

/* A line end in the text would begin another assignment. */
void mfl_systemd_status(const char *fmt, ...)
{
        char text[1024] = "STATUS=";
        size_t n = strlen(text);
        va_list ap;
        if (!mfl_systemd_listens())
                return;
        va_start(ap, fmt);
        vsnprintf(text + n, sizeof text - n, fmt, ap);
        va_end(ap);
        for (char *c = text; *c; c++)
                if ((unsigned char)*c < 0x20 || *c == 0x7f)
                        *c = '?';
        mfl_systemd_notify(text);
}

void mfl_systemd_reloading(void)
{
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        (void)sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu",
                (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u);
}

uint64_t mfl_systemd_watchdog_ms(void)
{
        uint64_t us;
        return sd_watchdog_enabled(0, &us) > 0 ? MFL_MAX(us / 1000u, 1u) : 0;
}

int mfl_systemd_listeners(int *ret_fds, uint32_t max, uint32_t *ret_n, struct mfl_error *err)
{
        static int given = -1; /* the variables are gone after the first call */
        int n = given >= 0 ? given : (given = sd_listen_fds(1));
        if (n < 0)
                return mfl_fail(err, MFL_INVALID, "$LISTEN_FDS: %s", strerror(-n));
        if ((uint32_t)n > max)
                return mfl_fail(
                        err, MFL_INVALID, "the service manager passed %d sockets; the limit is %u", n, max);
        for (int i = 0; i < n; i++) {
                int fd = SD_LISTEN_FDS_START + i;
                if (sd_is_socket(fd, AF_INET, SOCK_STREAM, 1) <= 0 &&
                        sd_is_socket(fd, AF_INET6, SOCK_STREAM, 1) <= 0)
                        return mfl_fail(err, MFL_INVALID,
                                "socket %d from the service manager does not listen on TCP; expected "
                                "ListenStream=PORT or ADDRESS:PORT in the socket unit",
                                i + 1);
        }
        for (int i = 0; i < n; i++) {
                ret_fds[i] = fcntl(SD_LISTEN_FDS_START + i, F_DUPFD_CLOEXEC, SD_LISTEN_FDS_START);
                if (ret_fds[i] >= 0)
                        continue;
                int r = mfl_fail_errno(err, "copy socket %d of the service manager", i + 1);
                while (i--)
                        close(ret_fds[i]);
                return r;
        }
        *ret_n = (uint32_t)n;
        return 0;
}

bool mfl_systemd_journal(const char *program, int priority, const char *job, const char *text)
{
        char message[2200], level[16], name[80], field[80];
        struct iovec v[4] = {
                {.iov_base = message}, {.iov_base = level}, {.iov_base = name}, {.iov_base = field}};
        /* sd_journal_sendv reports success when there is no journal. */
        if (access("/run/systemd/journal/socket", W_OK))
                return false;
        v[0].iov_len = (size_t)snprintf(message, sizeof message, "MESSAGE=%.2100s", text);
        v[1].iov_len = (size_t)snprintf(level, sizeof level, "PRIORITY=%d", priority);
        v[2].iov_len = (size_t)snprintf(name, sizeof name, "SYSLOG_IDENTIFIER=%.50s", program);
        if (job && *job)
                v[3].iov_len = (size_t)snprintf(field, sizeof field, "MFL_JOB=%.60s", job);
        return sd_journal_sendv(v, job && *job ? 4 : 3) >= 0;
}
