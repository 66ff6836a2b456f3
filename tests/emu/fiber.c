/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: stacks that take turns on one thread of the host. A few instructions on x86-64, ucontext elsewhere;
 * the sanitizers are told about every switch. */
#include "tests/emu/emu_internal.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if MFL_EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if MFL_EMU_TSAN
#include <sanitizer/tsan_interface.h>
#endif

enum {
        STACK_BYTES = MFL_EMU_ASAN ? 512 << 10 : 128 << 10,
};

static struct mfl_emu_fiber host, *all, *unused;
static struct mfl_emu_fiber *self = &host, *previous;
static void (*begin)(void);

#if defined(__x86_64__)
void mfl_emu_swap(void **save, void *to);
/* Saves the registers that the ABI preserves across a call. */
__asm__(".text\n"
        ".globl mfl_emu_swap\n"
        ".hidden mfl_emu_swap\n"
        ".type mfl_emu_swap, @function\n"
        "mfl_emu_swap:\n"
        "       pushq %rbp\n"
        "       pushq %rbx\n"
        "       pushq %r12\n"
        "       pushq %r13\n"
        "       pushq %r14\n"
        "       pushq %r15\n"
        "       movq %rsp, (%rdi)\n"
        "       movq %rsi, %rsp\n"
        "       popq %r15\n"
        "       popq %r14\n"
        "       popq %r13\n"
        "       popq %r12\n"
        "       popq %rbx\n"
        "       popq %rbp\n"
        "       ret\n"
        ".size mfl_emu_swap, . - mfl_emu_swap\n");

static void prepare(struct mfl_emu_fiber *fiber)
{
        /* The stacks' tops are spread over a page; otherwise they all compete for the same lines of the
         * cache. */
        void **top = (void **)(fiber->stack + fiber->stack_bytes - fiber->number % 32 * 128);
        *--top = NULL; /* where `begin` would return to: the stack is aligned as after a call */
        *--top = (void *)begin;
        for (int i = 0; i < 6; i++)
                *--top = NULL;
        fiber->context = top;
}
static void swap(struct mfl_emu_fiber *from, struct mfl_emu_fiber *to)
{
        mfl_emu_swap(&from->context, to->context);
}
#else
static void prepare(struct mfl_emu_fiber *fiber)
{
        ucontext_t *c = fiber->context ? fiber->context : calloc(1, sizeof *c);
        getcontext(c);
        c->uc_stack.ss_sp = fiber->stack;
        c->uc_stack.ss_size = fiber->stack_bytes;
        c->uc_link = NULL;
        makecontext(c, begin, 0);
        fiber->context = c;
}
static void swap(struct mfl_emu_fiber *from, struct mfl_emu_fiber *to)
{
        if (!from->context)
                from->context = calloc(1, sizeof(ucontext_t));
        swapcontext(from->context, to->context);
}
#endif

static struct mfl_emu_fiber *new_fiber(void)
{
        size_t guard = (size_t)sysconf(_SC_PAGESIZE);
        struct mfl_emu_fiber *fiber = calloc(1, sizeof *fiber);
        char *memory = mmap(NULL, guard + STACK_BYTES, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (!fiber || memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE)) {
                perror("emulated GPU: stack of a thread");
                abort();
        }
        fiber->stack = memory + guard;
        fiber->stack_bytes = STACK_BYTES;
#if MFL_EMU_TSAN
        fiber->tsan = __tsan_create_fiber(0);
#endif
        fiber->number = all ? all->number + 1 : 0;
        fiber->next = all;
        all = fiber;
        prepare(fiber);
        return fiber;
}

struct mfl_emu_fiber *mfl_emu_fiber_get(void (*main)(void))
{
        struct mfl_emu_fiber *fiber = unused;
        begin = main;
        if (!fiber)
                return new_fiber();
        unused = fiber->next_free;
        return fiber;
}

void mfl_emu_fiber_put(struct mfl_emu_fiber *fiber)
{
        fiber->next_free = unused;
        unused = fiber;
}

void mfl_emu_fibers_reset(void)
{
        unused = NULL;
        for (struct mfl_emu_fiber *fiber = all; fiber; fiber = fiber->next) {
#if MFL_EMU_ASAN
                __asan_unpoison_memory_region(fiber->stack, fiber->stack_bytes);
                fiber->fake_stack = NULL;
#endif
                prepare(fiber);
                mfl_emu_fiber_put(fiber);
        }
}

struct mfl_emu_fiber *mfl_emu_fiber_host(void)
{
        return &host;
}

struct mfl_emu_fiber *mfl_emu_fiber_self(void)
{
        return self;
}

/* After a switch, on the stack that was switched to. */
static void arrived(void *fake_stack)
{
#if MFL_EMU_ASAN
        const void *bottom;
        size_t bytes;
        __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
        if (previous == &host) {
                host.stack = (char *)(uintptr_t)bottom;
                host.stack_bytes = bytes;
        }
#endif
}

void mfl_emu_fiber_begun(void)
{
        arrived(NULL);
}

void mfl_emu_fiber_switch(struct mfl_emu_fiber *to)
{
        struct mfl_emu_fiber *from = self;
#if MFL_EMU_TSAN
        if (from == &host)
                host.tsan = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(to->tsan, 0);
#endif
#if MFL_EMU_ASAN
        __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
        previous = from;
        self = to;
        swap(from, to);
        arrived(from->fake_stack);
}
