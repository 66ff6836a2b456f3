/* SPDX-License-Identifier: Apache-2.0 */
/* What a service tells its manager, and which sockets it takes from it: a datagram socket of the test's is the manager. */
#include "tests/lib/test.h"

#include "common/base/systemd.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRST_FD 3 /* sd_listen_fds(3) */

static int manager = -1;
static char path[108];

static int open_manager(void **state)
{
        (void)state;
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        snprintf(path, sizeof path, "/tmp/mfl-test-notify-%ld", (long)getpid());
        mfl_strcpy(address.sun_path, sizeof address.sun_path, path);
        manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        return manager < 0 || bind(manager, (struct sockaddr *)&address, sizeof address);
}

static int close_manager(void **state)
{
        (void)state;
        close(manager);
        return unlink(path);
}

static void need_systemd(void)
{
        setenv("NOTIFY_SOCKET", path, 1);
        if (!mfl_systemd_listens())
                skip_for("this build has no libsystemd");
}

static void expect(const char *text)
{
        char got[2048];
        ssize_t n = recv(manager, got, sizeof got - 1, 0);
        if (!text) {
                assert_int_equal(n, -1);
                return;
        }
        assert_true(n >= 0);
        got[n] = '\0';
        assert_string_equal(got, text);
}

/* A job's name in the status must not become an assignment of its own. */
static void a_status_is_one_line(void **state)
{
        (void)state;
        need_systemd();
        mfl_systemd_status("%d jobs, %s", 2, "x\nSTOPPING=1\t\x7f\x01 \xc3\xa9");
        expect("STATUS=2 jobs, x?STOPPING=1??? \xc3\xa9");
        mfl_systemd_notify("READY=1\nSTATUS=ok");
        expect("READY=1\nSTATUS=ok");
}

static void a_long_status_is_cut(void **state)
{
        (void)state;
        static char text[3000], want[1024] = "STATUS=";
        need_systemd();
        memset(text, 'a', sizeof text - 1);
        memset(want + 7, 'a', sizeof want - 8);
        mfl_systemd_status("%s", text);
        expect(want);
}

static void without_a_manager_nothing_is_sent(void **state)
{
        (void)state;
        unsetenv("NOTIFY_SOCKET");
        assert_false(mfl_systemd_listens());
        mfl_systemd_status("text");
        mfl_systemd_notify("READY=1");
        setenv("NOTIFY_SOCKET", "", 1);
        assert_false(mfl_systemd_listens());
        expect(NULL);
}

static void how_often_the_watchdog_looks(void **state)
{
        (void)state;
        char pid[24];
        need_systemd();
        assert_int_equal(mfl_systemd_watchdog_ms(), 0);
        snprintf(pid, sizeof pid, "%ld", (long)getpid());
        setenv("WATCHDOG_PID", pid, 1);
        setenv("WATCHDOG_USEC", "2500000", 1);
        assert_int_equal(mfl_systemd_watchdog_ms(), 2500);
        setenv("WATCHDOG_USEC", "10", 1); /* less than a millisecond is not off */
        assert_int_equal(mfl_systemd_watchdog_ms(), 1);
        setenv("WATCHDOG_PID", "1", 1); /* another process's */
        assert_int_equal(mfl_systemd_watchdog_ms(), 0);
        unsetenv("WATCHDOG_PID");
        unsetenv("WATCHDOG_USEC");
}

/* In a process of its own, with n descriptors of this kind from FIRST_FD on: asks twice for at most 2. Its exit status: what the first
 * call returned, with 100 for wrong results. */
static int ask_for_listeners(int n, int type, bool listens)
{
        pid_t child = fork();
        if (child == 0) {
                char text[24];
                int fds[2] = {-1, -1}, again[2] = {-1, -1};
                uint32_t n_fds = 77, n_again = 77;
                struct mfl_error err = {{0}};
                struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
                for (int i = 0; i < n; i++) {
                        int fd = socket(AF_INET, type, 0);
                        if (fd < 0 || bind(fd, (struct sockaddr *)&any, sizeof any) ||
                                (listens && listen(fd, 1)) || dup2(fd, FIRST_FD + 20 + i) < 0)
                                _exit(101);
                }
                for (int i = 0; i < n; i++) /* last, since what is made here takes those numbers */
                        if (dup2(FIRST_FD + 20 + i, FIRST_FD + i) < 0)
                                _exit(101);
                snprintf(text, sizeof text, "%ld", (long)getpid());
                if (n)
                        setenv("LISTEN_PID", text, 1);
                snprintf(text, sizeof text, "%d", n);
                setenv("LISTEN_FDS", text, 1);
                int r = mfl_systemd_listeners(fds, 2, &n_fds, &err);
                if (r)
                        _exit(r > 0 && n_fds == 77 && err.text[0] ? r : 100);
                if (mfl_systemd_listeners(again, 2, &n_again, &err) || n_fds != (uint32_t)n ||
                        n_again != n_fds)
                        _exit(100);
                for (int i = 0; i < n; i++)
                        if (fds[i] < 0 || fds[i] == again[i] || fds[i] == FIRST_FD + i)
                                _exit(100);
                _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static void sockets_of_the_manager(void **state)
{
        (void)state;
        need_systemd();
        assert_int_equal(ask_for_listeners(0, SOCK_STREAM, true), 0);
        assert_int_equal(ask_for_listeners(2, SOCK_STREAM, true), 0);
        assert_int_equal(ask_for_listeners(3, SOCK_STREAM, true), MFL_INVALID);
        assert_int_equal(ask_for_listeners(1, SOCK_STREAM, false), MFL_INVALID);
        assert_int_equal(ask_for_listeners(1, SOCK_DGRAM, false), MFL_INVALID);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_status_is_one_line),
                cmocka_unit_test(a_long_status_is_cut),
                cmocka_unit_test(without_a_manager_nothing_is_sent),
                cmocka_unit_test(how_often_the_watchdog_looks),
                cmocka_unit_test(sockets_of_the_manager),
        };
        return cmocka_run_group_tests_name("systemd", tests, open_manager, close_manager);
}
