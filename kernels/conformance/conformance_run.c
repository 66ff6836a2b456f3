/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the units of the conformance program in child processes, so that an error of the device, a crash or a
 * hang ends one unit and not the run: CUDA's errors stay with the process that met them.
 *
 * A unit is a case with one backend and precision. Units are numbered in the order in which they come, which
 * is the same in every process. A child runs them one after another (a context costs some tenths of a second)
 * and reports, on a pipe, which unit it begins and what it found. When it ends early, the unit that it was in
 * has failed, with the last line of its stderr; the next child continues after that unit.
 */
#include "kernels/conformance/conformance.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4096
#define BEGIN_MARK '\1' /* "\1NUMBER NAME": a unit begins */
#define STATUS_FRESH 75 /* the unit that was named last wants a fresh process */
#define TICK_MS 200

unsigned conf_limit_s;
bool conf_one_process;
static int n_reported, n_failed, n_skipped;

/* ---- the side of the units ---- */

static int unit_number, unit_first; /* number of the next unit; of the first that this process has to run */
static bool in_child, has_begun;

static void take_line(const char *line);

static void tell(const char *fmt, va_list ap)
{
        char line[LINE_MAX_BYTES];
        vsnprintf(line, sizeof line, fmt, ap);
        if (in_child)
                printf("%s\n", line);
        else
                take_line(line);
}

static void say(const char *fmt, ...) MFL_PRINTF(1, 2);
static void say(const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        tell(fmt, ap);
        va_end(ap);
}

static bool begin(bool fresh, const char *fmt, va_list ap)
{
        char name[200];
        int number = unit_number++;
        if (number < unit_first)
                return false;
        vsnprintf(name, sizeof name, fmt, ap);
        say("%c%d %s", BEGIN_MARK, number, name);
        if (fresh && in_child && has_begun)
                exit(STATUS_FRESH);
        has_begun = true;
        return true;
}

bool mfl_conf_begin(const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        bool run = begin(false, fmt, ap);
        va_end(ap);
        return run;
}

bool mfl_conf_begin_fresh(const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        bool run = begin(true, fmt, ap);
        va_end(ap);
        return run;
}

bool mfl_conf_continues(void)
{
        return unit_number < unit_first;
}

void mfl_conf_report(bool ok, const char *fmt, ...)
{
        char text[LINE_MAX_BYTES - 16];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        say("%s - %s", ok ? "ok" : "not ok", text);
}

void mfl_conf_skip(const char *what, const char *why)
{
        say("ok - %s # SKIP %s", what, why);
}

void mfl_conf_say(const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        tell(fmt, ap);
        va_end(ap);
}

/* ---- the side of the run ---- */

struct child {
        pid_t pid;
        int out, err;                 /* -1: at its end */
        char line[2][LINE_MAX_BYTES]; /* the incomplete line of each pipe */
        size_t n[2];
        bool began, hung;
        uint64_t since_ns; /* when its current unit began */
};
static int at_unit = -1; /* the unit that was named last */
static char at_name[200], last_words[300];
static bool took_begin;

/* Numbers results, as TAP requires. */
static void take_line(const char *line)
{
        bool failed = !strncmp(line, "not ok - ", 9), passed = !strncmp(line, "ok - ", 5);
        if (line[0] == BEGIN_MARK) {
                char *end;
                at_unit = (int)strtol(line + 1, &end, 10);
                mfl_snprintf(at_name, sizeof at_name, "%s", end + (*end == ' '));
                took_begin = true;
                return;
        }
        if (!failed && !passed) {
                printf("%s\n", line);
                return;
        }
        printf("%sok %d - %s\n", failed ? "not " : "", ++n_reported, line + (failed ? 9 : 5));
        n_failed += failed;
        n_skipped += passed && strstr(line, " # SKIP ");
}

static void take_words(const char *line)
{
        fprintf(stderr, "%s\n", line);
        if (*line)
                mfl_snprintf(last_words, sizeof last_words, "%s", line);
}

static void take_bytes(struct child *child, int which, const char *bytes, size_t n)
{
        char *line = child->line[which];
        for (size_t i = 0; i < n; i++) {
                if (bytes[i] != '\n') {
                        if (child->n[which] < LINE_MAX_BYTES - 1)
                                line[child->n[which]++] = bytes[i];
                        continue;
                }
                line[child->n[which]] = 0;
                child->n[which] = 0;
                took_begin = false;
                if (which)
                        take_words(line);
                else
                        take_line(line);
                child->began |= took_begin;
                if (took_begin) {
                        child->since_ns = mfl_now_ns();
                        last_words[0] = 0;
                }
        }
}

static void read_some(struct child *child, int which)
{
        char bytes[4096];
        int *fd = which ? &child->err : &child->out;
        ssize_t n = read(*fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
                return;
        if (n > 0) {
                take_bytes(child, which, bytes, (size_t)n);
                return;
        }
        if (child->n[which])
                take_bytes(child, which, "\n", 1);
        close(*fd);
        *fd = -1;
}

/* Reads until both pipes are at their end. A unit that exceeds the limit is killed. */
static void follow(struct child *child)
{
        while (child->out >= 0 || child->err >= 0) {
                struct pollfd fds[2] = {{child->out, POLLIN, 0}, {child->err, POLLIN, 0}};
                int n = poll(fds, 2, conf_limit_s ? TICK_MS : -1);
                for (int i = 0; n > 0 && i < 2; i++)
                        if (fds[i].revents)
                                read_some(child, i);
                if (conf_limit_s && !child->hung && child->began &&
                        mfl_now_ns() - child->since_ns > conf_limit_s * (uint64_t)1000000000) {
                        child->hung = true;
                        kill(child->pid, SIGKILL);
                }
        }
}

static void start(struct child *child, int first, void (*body)(void *user), void *user)
{
        int out[2], err[2];
        fflush(NULL);
        if (pipe(out) || pipe(err) || (child->pid = fork()) < 0) {
                perror("mfl-conformance: a process for the next cases");
                exit(2);
        }
        if (child->pid == 0) {
                dup2(out[1], 1);
                dup2(err[1], 2);
                for (int i = 0; i < 2; i++) {
                        close(out[i]);
                        close(err[i]);
                }
                setvbuf(stdout, NULL, _IOLBF, 0);
                in_child = true;
                unit_first = first;
                body(user);
                exit(0);
        }
        close(out[1]);
        close(err[1]);
        child->out = out[0];
        child->err = err[0];
        child->since_ns = mfl_now_ns();
}

static void report_death(const struct child *child, int status)
{
        char how[80];
        if (child->hung)
                mfl_snprintf(how, sizeof how, "hung: killed after %u s", conf_limit_s);
        else if (WIFSIGNALED(status))
                mfl_snprintf(how, sizeof how, "died of signal %d", WTERMSIG(status));
        else
                mfl_snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(status));
        mfl_conf_report(false, "%s: %s%s%s", child->began ? at_name : "beginning", how,
                *last_words ? ": " : "", last_words);
}

void mfl_conf_run(void (*body)(void *user), void *user)
{
        int first = 0, status = 0;
        if (conf_one_process) {
                unit_number = 0;
                body(user);
                return;
        }
        for (;;) {
                struct child child = {.out = -1};
                last_words[0] = 0;
                start(&child, first, body, user);
                follow(&child);
                while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR)
                        ;
                if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
                        return;
                bool fresh = WIFEXITED(status) && WEXITSTATUS(status) == STATUS_FRESH && child.began;
                if (!fresh)
                        report_death(&child, status);
                if (!child.began) /* the next child would not get further either */
                        return;
                first = at_unit + !fresh;
        }
}

int mfl_conf_finish(bool plan)
{
        if (!plan)
                return n_failed ? 1 : 0;
        printf("# %d passed, %d failed, %d skipped\n", n_reported - n_failed - n_skipped, n_failed,
                n_skipped);
        printf("1..%d\n", n_reported);
        return n_failed ? 1 : 0;
}
