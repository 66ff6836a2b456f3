/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, allocation with a test hook, assertions, the clock. */
#include "common/base/base.h"

#include <sys/mman.h>
#include <stdio.h>
#include <time.h>

void mfl_assert_fail(const char *cond, const char *file, int line)
{
        fprintf(stderr, "mfl: assertion failed: %s at %s:%d\n", cond, file, line);
        abort();
}

int mfl_fail(struct mfl_error *err, int code, const char *fmt, ...)
{
        if (err) {
                va_list ap;
                va_start(ap, fmt);
                vsnprintf(err->text, sizeof err->text, fmt, ap);
                va_end(ap);
        }
        return code;
}

int mfl_fail_errno(struct mfl_error *err, const char *fmt, ...)
{
        int saved = errno;
        if (err) {
                va_list ap;
                va_start(ap, fmt);
                int len = vsnprintf(err->text, sizeof err->text, fmt, ap);
                va_end(ap);
                if (len >= 0 && (size_t)len < sizeof err->text)
                        snprintf(err->text + len, sizeof err->text - (size_t)len, ": %s", strerror(saved));
        }
        return -saved;
}

int mfl_fail_memory(struct mfl_error *err, size_t bytes, const char *what)
{
        return mfl_fail(err, -ENOMEM, "out of memory (%zu bytes for %s)", bytes, what);
}

/* -1: off. Thread-local, so that a sweep in one thread leaves the others alone. */
static _Thread_local long fail_countdown = -1;
static _Thread_local bool fail_struck;

void mfl_alloc_fail_at(long n)
{
        fail_countdown = n;
        fail_struck = false;
}

bool mfl_alloc_failed(void)
{
        return fail_struck;
}

static bool allocation_fails(void)
{
        if (fail_countdown < 0)
                return false;
        if (fail_countdown-- > 0)
                return false;
        fail_struck = true;
        return true;
}

void *mfl_malloc(size_t size)
{
        return allocation_fails() ? NULL : malloc(size ? size : 1);
}

void *mfl_calloc(size_t n, size_t size)
{
        if (allocation_fails())
                return NULL;
        return n && size ? calloc(n, size) : calloc(1, 1);
}

void *mfl_realloc(void *ptr, size_t size)
{
        return allocation_fails() ? NULL : realloc(ptr, size ? size : 1);
}

char *mfl_strdup(const char *s)
{
        return allocation_fails() ? NULL : strdup(s);
}

char *mfl_asprintf(const char *fmt, ...)
{
        char *s = NULL;
        if (allocation_fails())
                return NULL;
        va_list ap;
        va_start(ap, fmt);
        int len = vasprintf(&s, fmt, ap);
        va_end(ap);
        return len < 0 ? NULL : s;
}

/* Asks for whole huge pages only, so that nothing beyond the request becomes resident. */
#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_FROM (4 * HUGE_PAGE)

void *mfl_alloc_aligned(size_t size)
{
        void *p = NULL;
        if (allocation_fails())
                return NULL;
        /* Code walks through buffers of many megabytes from end to end. Huge pages, if the kernel has some, reduce
         * the page faults and the address translation to a fraction. */
        size_t align = size >= HUGE_FROM ? HUGE_PAGE : 64;
        size_t padded = (size + 63) & ~(size_t)63;
        if (padded < size)
                return NULL;
        if (posix_memalign(&p, align, padded ? padded : 64))
                return NULL;
        if (align == HUGE_PAGE)
                (void)madvise(p, padded / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
        return p;
}

bool mfl_strcpy(char *dst, size_t dst_bytes, const char *src)
{
        size_t len = strlen(src);
        size_t n = MFL_MIN(len, dst_bytes - 1);
        memcpy(dst, src, n);
        dst[n] = '\0';
        return n == len;
}

/* Where the last character of text[0 .. n) begins if it is incomplete; otherwise n. */
static size_t whole_characters(const char *text, size_t n)
{
        size_t at = n;
        while (at > 0 && n - at < 3 && ((uint8_t)text[at - 1] & 0xc0) == 0x80)
                at--;
        uint8_t lead = at > 0 ? (uint8_t)text[at - 1] : 0;
        size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
        return bytes > n - at + 1 ? at - 1 : n;
}

int mfl_vsnprintf(char *dst, size_t dst_bytes, const char *fmt, va_list ap)
{
        int n = vsnprintf(dst, dst_bytes, fmt, ap);
        if (n <= 0 || !dst_bytes)
                return n;
        bool fits = (size_t)n < dst_bytes;
        size_t whole = whole_characters(dst, fits ? (size_t)n : dst_bytes - 1);
        dst[whole] = '\0';
        return fits ? (int)whole : n;
}

int mfl_snprintf(char *dst, size_t dst_bytes, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        int n = mfl_vsnprintf(dst, dst_bytes, fmt, ap);
        va_end(ap);
        return n;
}

/* A double keeps any 15 decimal digits; 17 digits tell all doubles apart. */
const char *mfl_double_text(double value, char buf[MFL_DOUBLE_BYTES])
{
        for (int digits = 15; digits <= 17; digits++) {
                snprintf(buf, MFL_DOUBLE_BYTES, "%.*g", digits, value);
                if (strtod(buf, NULL) == value)
                        break;
        }
        return buf;
}

uint64_t mfl_now_ns(void)
{
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t mfl_now_ms(void)
{
        return mfl_now_ns() / 1000000u;
}

/* When a '*' has matched too little text, only the last '*' needs another try: those before it matched as little as
 * possible. */
bool mfl_glob(const char *pattern, const char *text)
{
        const char *star = NULL, *from = NULL;
        while (*text) {
                if (*pattern == '*') {
                        star = ++pattern;
                        from = text;
                } else if (*pattern == '?' || *pattern == *text) {
                        pattern++;
                        text++;
                } else if (star) {
                        pattern = star;
                        text = ++from;
                } else {
                        return false;
                }
        }
        return !pattern[strspn(pattern, "*")];
}
