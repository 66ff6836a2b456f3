/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines on stderr, one write each, with the time or with the journal's priorities. */
#include "common/base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/plain.h"
#include "common/base/systemd.h"

#define TEXT_BYTES 2048

static struct {
        pthread_mutex_t lock; /* protects everything except level */
        atomic_int level;
        const char *program;
        mfl_log_sink *sink;
        void *user;
} logger = {.lock = PTHREAD_MUTEX_INITIALIZER, .level = MFL_LOG_INFO, .program = "mfl"};

static const char *const level_names[] = {"error", "warning", "info", "debug"};
static const int journal_priorities[] = {3, 4, 6, 7};

void mfl_log_init(const char *program, enum mfl_log_level level)
{
        pthread_mutex_lock(&logger.lock);
        logger.program = program;
        pthread_mutex_unlock(&logger.lock);
        atomic_store(&logger.level, (int)level);
}

void mfl_log_set_level(enum mfl_log_level level)
{
        atomic_store(&logger.level, (int)level);
}

static bool is_shown(enum mfl_log_level level)
{
        return (int)level <= atomic_load_explicit(&logger.level, memory_order_relaxed);
}

void mfl_log_set_sink(mfl_log_sink *sink, void *user)
{
        pthread_mutex_lock(&logger.lock);
        logger.sink = sink;
        logger.user = user;
        pthread_mutex_unlock(&logger.lock);
}

/* The variable is compared with stderr, because a program whose stderr goes elsewhere may inherit it
 * (systemd.exec(5)).
 */
static bool stderr_is_journal(bool *ret_socket)
{
        const char *stream = getenv("JOURNAL_STREAM");
        unsigned long long device, inode;
        struct stat st;
        if (!stream || sscanf(stream, "%llu:%llu", &device, &inode) != 2 || fstat(STDERR_FILENO, &st) ||
                st.st_dev != device || st.st_ino != inode)
                return false;
        *ret_socket = S_ISSOCK(st.st_mode);
        return true;
}

static void write_line(enum mfl_log_level level, const char *job, const char *text)
{
        bool is_socket = false;
        char line[TEXT_BYTES + 128];
        int len;
        const char *tag = level == MFL_LOG_INFO ? "" : level_names[level];
        const char *colon = level == MFL_LOG_INFO ? "" : ": ";
        if (stderr_is_journal(&is_socket)) {
                if (is_socket && mfl_systemd_journal(logger.program, journal_priorities[level], job, text))
                        return;
                len = snprintf(line, sizeof line, "<%d>%s\n", journal_priorities[level], text);
        } else {
                time_t now = time(NULL);
                struct tm tm;
                localtime_r(&now, &tm);
                len = snprintf(line, sizeof line, "%02d:%02d:%02d %.64s: %s%s%s\n", tm.tm_hour, tm.tm_min,
                        tm.tm_sec, logger.program, tag, colon, text);
        }
        /* A log that cannot be written has no place to report that. */
        ssize_t written = write(STDERR_FILENO, line, (size_t)len);
        (void)written;
}

static MFL_PRINTF(3, 0) void log_line(enum mfl_log_level level, const char *job, const char *fmt, va_list ap)
{
        int saved = errno;
        char text[TEXT_BYTES];
        int len = vsnprintf(text, sizeof text, fmt, ap);
        if (len >= (int)sizeof text)
                memcpy(text + sizeof text - 4, "...", 4);
        mfl_plain_clean(text, false);
        pthread_mutex_lock(&logger.lock);
        write_line(level, job, text);
        if (logger.sink)
                logger.sink(logger.user, level, text);
        pthread_mutex_unlock(&logger.lock);
        errno = saved;
}

void mfl_log(enum mfl_log_level level, const char *fmt, ...)
{
        va_list ap;
        if (!is_shown(level))
                return;
        va_start(ap, fmt);
        log_line(level, "", fmt, ap);
        va_end(ap);
}

void mfl_log_job(enum mfl_log_level level, const char *job, const char *fmt, ...)
{
        va_list ap;
        if (!is_shown(level))
                return;
        va_start(ap, fmt);
        log_line(level, job, fmt, ap);
        va_end(ap);
}

const char *mfl_log_level_name(enum mfl_log_level level)
{
        return level_names[level];
}

bool mfl_log_level_parse(const char *name, enum mfl_log_level *ret_level)
{
        if (!strcmp(name, "warn"))
                name = "warning";
        for (size_t i = 0; i < MFL_ARRAY_SIZE(level_names); i++) {
                if (!strcmp(name, level_names[i])) {
                        *ret_level = (enum mfl_log_level)i;
                        return true;
                }
        }
        return false;
}
