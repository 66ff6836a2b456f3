/* SPDX-License-Identifier: Apache-2.0 */
/* What every file may use: integer types, allocation, assertions, errors and small macros.
 *
 * Return codes, everywhere in mfl:
 *
 *   0         success
 *   negative  (-errno) this process cannot go on: memory, disk, device, broken environment. Every function passes it on
 *             unchanged, up to main(), which exits; the service manager restarts from the last commit.
 *   positive  a condition of the input or of the moment; the process is fine. A function's header lists the codes that it
 *             returns.
 *               MFL_INVALID: the input was wrong, and the text in struct mfl_error says what, where, and what would be
 *               right. It is passed on with its text up to the function that took the input in (a configuration, a job,
 *               a message, a request), which answers it and goes on.
 *               Every other code is for callers in the same folder, and for the direct caller outside it. That caller
 *               handles it, lists it as a code of its own, or turns it into MFL_INVALID.
 *
 * Outputs are last, named ret_x, and untouched on failure. No byte from a peer may produce a negative.
 */
#ifndef MFL_COMMON_BASE_BASE_H
#define MFL_COMMON_BASE_BASE_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MFL_VERSION "0.1.0"
/* Raise it with every change to the arithmetic of training or of sums that can change the last bit of a result. A job
 * whose daemons differ in it says so in its log (Hello.numerics). */
#define MFL_ARITHMETIC_VERSION 5
/* A job keeps the arithmetic that it began with. From 5 on: a scale of its own for running statistics
 * (common/base/fixed.h), and clipping after the proximal term (kernels/backend.h). */
#define MFL_ARITHMETIC_STATISTICS 5

#define MFL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define MFL_MUST_CHECK __attribute__((warn_unused_result))
#define MFL_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define MFL_MIN(a, b) ((a) < (b) ? (a) : (b))
#define MFL_MAX(a, b) ((a) > (b) ? (a) : (b))
#define MFL_CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* MFL_CLONES before a function: one body, compiled for several instruction sets, of which the program picks one at its start. Not under
 * sanitizers, whose run-time is not ready when the choice is made, and not where the C library has no ifunc. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define MFL_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MFL_SANITIZED 1
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(MFL_SANITIZED) &&                                  \
        (!defined(__clang__) || __clang_major__ >= 14)
#define MFL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MFL_CLONES
#endif

/* Positive codes shared by all modules. A module's header may list more, from 16 upwards; two modules whose codes
 * reach one caller have no number in common. */
enum {
        MFL_INVALID = 1,   /* the input is wrong; struct mfl_error says how */
        MFL_NOT_FOUND = 2, /* no such thing */
        MFL_EXISTS = 3,    /* already there */
        MFL_BUSY = 4,      /* not now; the caller may try again */
};

/* Programmer errors only, on in every build: prints the place and aborts. */
#define mfl_assert(cond) ((cond) ? (void)0 : mfl_assert_fail(#cond, __FILE__, __LINE__))
void mfl_assert_fail(const char *cond, const char *file, int line) __attribute__((noreturn));

/* One line of text, made where the error arises: what was being done, to what, and why it failed. */
struct mfl_error {
        char text[512];
};

/* Formats the text (err may be NULL) and returns code, so that a failure is one statement:
 *     return mfl_fail(err, MFL_INVALID, "%s: truncated: %zu bytes, header says %zu", path, got, want); */
int mfl_fail(struct mfl_error *err, int code, const char *fmt, ...) MFL_PRINTF(3, 4);
/* As mfl_fail with code = -errno and ": strerror" appended. */
int mfl_fail_errno(struct mfl_error *err, const char *fmt, ...) MFL_PRINTF(2, 3);
/* "out of memory (N bytes for WHAT)", returns -ENOMEM. */
int mfl_fail_memory(struct mfl_error *err, size_t bytes, const char *what);

/* Allocation. NULL when memory is out (or when a test asked for it, see below); sizes of 0 give a valid
 * pointer. mfl_calloc checks n * size for overflow. All are freed with free(). */
void *mfl_malloc(size_t size) MFL_MUST_CHECK;
void *mfl_calloc(size_t n, size_t size) MFL_MUST_CHECK;
void *mfl_realloc(void *ptr, size_t size) MFL_MUST_CHECK;
char *mfl_strdup(const char *s) MFL_MUST_CHECK;
char *mfl_asprintf(const char *fmt, ...) MFL_PRINTF(1, 2) MFL_MUST_CHECK;
/* 64-byte aligned, for tensors. Freed with free(). */
void *mfl_alloc_aligned(size_t size) MFL_MUST_CHECK;

/* Tests: the n-th allocation of this thread from now on fails once (n = 0: the next); a negative n turns it
 * off. mfl_alloc_failed() tells whether that has happened, so that a sweep knows when it is done. */
void mfl_alloc_fail_at(long n);
bool mfl_alloc_failed(void);

/* __attribute__((cleanup(mfl_freep))) char *s = ...; */
static inline void mfl_freep(void *p)
{
        free(*(void **)p);
}
#define MFL_CLEANUP_FREE __attribute__((cleanup(mfl_freep)))

/* Bounded copy that always terminates; returns false when it had to cut. */
bool mfl_strcpy(char *dst, size_t dst_bytes, const char *src);

/* '*' is any text, '?' any one byte. Takes at most strlen(pattern) * strlen(text) steps, whatever the pattern;
 * fnmatch(3) may take exponentially many in the number of stars. */
bool mfl_glob(const char *pattern, const char *text);

/* The shortest decimal that reads back as the same number: 0.8648, not 0.86480000000000001. */
#define MFL_DOUBLE_BYTES 32
const char *mfl_double_text(double value, char buf[MFL_DOUBLE_BYTES]);

/* snprintf and vsnprintf, for files that may not see stdio.h (the pure cores): formatting is no I/O. A UTF-8
 * character that the size or a precision would cut in two at the end is left out: the wire accepts no partial
 * characters. */
int mfl_snprintf(char *dst, size_t dst_bytes, const char *fmt, ...) MFL_PRINTF(3, 4);
int mfl_vsnprintf(char *dst, size_t dst_bytes, const char *fmt, va_list ap)
        __attribute__((format(printf, 3, 0)));

/* Monotonic clock in milliseconds and nanoseconds. */
uint64_t mfl_now_ms(void);
uint64_t mfl_now_ns(void);

#endif
