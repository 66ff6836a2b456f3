/* SPDX-License-Identifier: Apache-2.0 */
/* Races, from the last accesses to each byte (watch.h says what counts as one).
 *
 * A cell keeps the last write, and the reads (or atomics) since: the last one, and whether there were others
 * that a later write of its thread, its warp or its block would not be ordered with. Epochs order: an access
 * of an earlier epoch of this block is behind a barrier. Four bytes share a cell until one of them is
 * accessed alone; from then on, for the rest of the launch, each has its own. An access of an earlier launch
 * has an epoch before the launch's first, and is ignored. */
#include "tests/emu/watch.h"

#include "common/base/base.h"

#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
        PAGE_BITS = 12,
        WORDS = 1 << (PAGE_BITS - 2),
        SHARED_PAGES = 96,
        PAIRS_MAX = 256,
        STATUS = 66, /* as the sanitizer's */
        MANY_LANES = 1,
        MANY_WARPS = 2,
        MANY_BLOCKS = 4,
        IS_ATOMIC = 8,
};

struct access {
        uint32_t epoch, warp_epoch, pc;
        uint16_t thread;
        uint16_t flags;
};
struct cell {
        struct access write, others;
};
struct page {
        uintptr_t number;
        struct page *next;
        uint32_t split[WORDS]; /* the epoch of the word's first access to a part of it */
        struct cell first[WORDS], rest[3][WORDS];
};

#define BUCKETS 65536
static struct page *pages[BUCKETS], *shared_pages[SHARED_PAGES];

static struct page *new_page(uintptr_t number)
{
        /* Most of it is never touched. */
        struct page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (page == MAP_FAILED) {
                perror("emulated GPU: what memory was last used for");
                abort();
        }
        page->number = number;
        return page;
}

static struct page *page_of(const void *p, ptrdiff_t offset)
{
        if (offset >= 0) {
                struct page **at = &shared_pages[offset >> PAGE_BITS];
                if (offset >> PAGE_BITS >= SHARED_PAGES)
                        mfl_emu_fault("shared memory beyond %d pages", SHARED_PAGES);
                return *at ? *at : (*at = new_page(0));
        }
        static struct page *last; /* the next query is often for the same page */
        uintptr_t number = (uintptr_t)p >> PAGE_BITS;
        if (last && last->number == number)
                return last;
        struct page **bucket = &pages[number * 0x9e3779b97f4a7c15u >> 48], *page = *bucket;
        while (page && page->number != number)
                page = page->next;
        if (!page) {
                page = new_page(number);
                page->next = *bucket;
                *bucket = page;
        }
        return last = page;
}

/* ---- reports ---- */

static struct pair {
        const struct mfl_emu_kernel *kernel;
        uint32_t pc[2];
} pairs[PAIRS_MAX];
static int n_pairs;
static bool quiet;
static char last_race[1600];

static const char anchor = 0;

static uint32_t pack_pc(const void *pc)
{
        return (uint32_t)((uintptr_t)pc - (uintptr_t)&anchor);
}

static const char *unpack_pc(uint32_t pc)
{
        return (const char *)((uintptr_t)&anchor + (uintptr_t)(intptr_t)(int32_t)pc);
}

/* "kernels/cuda/ops/ops_norm.cu:140", or the module and an offset. */
static void say_place(uint32_t packed, char *text, size_t bytes)
{
        Dl_info info;
        char command[600];
        const char *pc = unpack_pc(packed) - 1; /* within the call */
        snprintf(text, bytes, "%p", (const void *)pc);
        if (!dladdr(pc, &info) || !info.dli_fname)
                return;
        size_t offset = (size_t)(pc - (const char *)info.dli_fbase);
        snprintf(text, bytes, "%s+0x%zx", info.dli_fname, offset);
        snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%zx 2>/dev/null", info.dli_fname, offset);
        FILE *f = popen(command, "r");
        char line[300];
        size_t n = 0;
        for (int i = 0; f && i < 3 && fgets(line, sizeof line, f) && line[0] != '?'; i++) {
                char *name = strstr(line, "kernels/cuda/");
                line[strcspn(line, " \n")] = 0;
                n += (size_t)snprintf(
                        text + n, n < bytes ? bytes - n : 0, "%s%s", i ? " in " : "", name ? name : line);
                if (n >= bytes)
                        break;
        }
        if (f)
                pclose(f);
}

static const char *name_of(enum mfl_emu_access access)
{
        return access == MFL_EMU_READ ? "read" : access == MFL_EMU_ATOMIC ? "atomic" : "write";
}

static bool is_known(uint32_t a, uint32_t b)
{
        for (int i = 0; i < n_pairs; i++)
                if (pairs[i].kernel == mfl_emu_now.kernel && pairs[i].pc[0] == a && pairs[i].pc[1] == b)
                        return true;
        return false;
}

static void report(const void *p, ptrdiff_t offset, const struct access *before,
        enum mfl_emu_access before_kind, const struct access *now, enum mfl_emu_access kind)
{
        char at[400], at_before[400];
        bool other_block = before->epoch < mfl_emu_now.block_first;
        if (n_pairs == PAIRS_MAX || is_known(before->pc, now->pc))
                return;
        pairs[n_pairs++] = (struct pair){mfl_emu_now.kernel, {before->pc, now->pc}};
        say_place(now->pc, at, sizeof at);
        say_place(before->pc, at_before, sizeof at_before);
        char where[80];
        if (offset >= 0)
                snprintf(where, sizeof where, "shared memory, byte %td", offset);
        else
                snprintf(where, sizeof where, "global memory at %p", p);
        snprintf(last_race, sizeof last_race,
                "emulated GPU: race in %s, block (%u, %u, %u), %s: %s by thread %u at %s; before it a %s by "
                "thread %u%s at %s",
                mfl_emu_now.kernel->name, blockIdx.x, blockIdx.y, blockIdx.z, where, name_of(kind),
                now->thread, at, name_of(before_kind), before->thread, other_block ? " of another block" : "",
                at_before);
        if (!quiet)
                fprintf(stderr, "%s\n", last_race);
}

int mfl_emu_races(void)
{
        return n_pairs;
}

const char *mfl_emu_last_race(void)
{
        return last_race;
}

void mfl_emu_races_reset(bool wanted)
{
        n_pairs = 0;
        last_race[0] = 0;
        quiet = wanted;
}

static __attribute__((destructor)) void finish(void)
{
        if (!n_pairs || quiet)
                return;
        fflush(NULL);
        _exit(STATUS);
}

/* ---- what orders ---- */

/* From before this memory's present use: each block has its own shared memory. */
static bool is_past(const struct access *a, ptrdiff_t offset)
{
        return a->epoch < (offset >= 0 ? mfl_emu_now.block_first : mfl_emu_now.launch_first);
}

/* One earlier access and the current one. */
static bool is_ordered(const struct access *before, const struct access *now)
{
        if (before->epoch < mfl_emu_now.block_first)
                return false;
        if (before->epoch < now->epoch || before->thread == now->thread)
                return true;
        return before->thread / MFL_EMU_WARP == now->thread / MFL_EMU_WARP &&
               before->warp_epoch < now->warp_epoch;
}

/* All accesses that a cell keeps, and the current one. */
static bool are_ordered(const struct access *set, const struct access *now)
{
        bool now_too = set->epoch == now->epoch; /* only warps order them */
        if (set->flags & MANY_BLOCKS || !is_ordered(set, now))
                return false;
        if (now_too && set->flags & MANY_WARPS)
                return false;
        return !(now_too && set->flags & MANY_LANES && set->warp_epoch == now->warp_epoch);
}

static void add_to_set(struct access *set, const struct access *now, bool atomic, ptrdiff_t offset)
{
        uint16_t flags = atomic ? IS_ATOMIC : 0;
        if (!is_past(set, offset) && !(set->flags & IS_ATOMIC) == !atomic) {
                flags |= set->flags & MANY_BLOCKS;
                if (set->epoch < mfl_emu_now.block_first)
                        flags |= MANY_BLOCKS;
                if (set->epoch == now->epoch) {
                        flags |= set->flags & MANY_WARPS;
                        if (set->thread / MFL_EMU_WARP != now->thread / MFL_EMU_WARP)
                                flags |= MANY_WARPS;
                        else if (set->warp_epoch == now->warp_epoch)
                                flags |= (set->flags & MANY_LANES) |
                                         (set->thread != now->thread ? MANY_LANES : 0);
                }
        }
        *set = *now;
        set->flags = flags;
}

static void access_cell(struct cell *cell, const struct access *now, enum mfl_emu_access kind, const void *p,
        ptrdiff_t offset)
{
        bool set_atomic = cell->others.flags & IS_ATOMIC, atomic = kind == MFL_EMU_ATOMIC;
        /* Nothing new: everything in between was compared the first time. */
        if (kind == MFL_EMU_READ && !set_atomic && cell->others.epoch == now->epoch &&
                cell->others.thread == now->thread && cell->others.warp_epoch == now->warp_epoch)
                return;
        enum mfl_emu_access set_kind = set_atomic ? MFL_EMU_ATOMIC : MFL_EMU_READ;
        if (!is_past(&cell->write, offset) && !is_ordered(&cell->write, now))
                report(p, offset, &cell->write, MFL_EMU_WRITE, now, kind);
        bool may_meet = kind == MFL_EMU_READ ? !set_atomic : atomic && set_atomic;
        if (!is_past(&cell->others, offset) && !may_meet && !are_ordered(&cell->others, now))
                report(p, offset, &cell->others, set_kind, now, kind);
        if (kind == MFL_EMU_READ || atomic)
                add_to_set(&cell->others, now, atomic, offset);
        else
                cell->write = *now;
}

static struct cell *cell_at(struct page *page, size_t word, unsigned byte)
{
        return byte ? &page->rest[byte - 1][word] : &page->first[word];
}

static void split_word(struct page *page, size_t word)
{
        for (int i = 0; i < 3; i++)
                page->rest[i][word] = page->first[word];
        page->split[word] = mfl_emu_now.epoch;
}

void mfl_emu_race_access(const void *p, ptrdiff_t offset, size_t bytes, enum mfl_emu_access kind,
        unsigned thread, const void *pc)
{
        struct access now = {.epoch = mfl_emu_now.epoch,
                .warp_epoch = mfl_emu_now.warp_epoch[thread / MFL_EMU_WARP],
                .pc = pack_pc(pc),
                .thread = (uint16_t)thread};
        uintptr_t at = offset >= 0 ? (uintptr_t)offset : (uintptr_t)p, end = at + bytes;
        while (at < end) {
                size_t word = at / 4 % WORDS, within = at % 4, n = MFL_MIN(4 - within, end - at);
                struct page *page = page_of((const void *)at, offset >= 0 ? (ptrdiff_t)at : -1);
                uint32_t first = offset >= 0 ? mfl_emu_now.block_first : mfl_emu_now.launch_first;
                if (n < 4 && page->split[word] < first)
                        split_word(page, word);
                if (page->split[word] < first)
                        access_cell(&page->first[word], &now, kind, (const void *)at,
                                offset >= 0 ? (ptrdiff_t)at : -1);
                else
                        for (unsigned i = 0; i < n; i++)
                                access_cell(cell_at(page, word, (unsigned)within + i), &now, kind,
                                        (const void *)(at + i), offset >= 0 ? (ptrdiff_t)(at + i) : -1);
                at += n;
        }
}

/* Epochs must not wrap around. */
void mfl_emu_race_launch(void)
{
        if (mfl_emu_now.epoch < UINT32_MAX - (1u << 30))
                return;
        fprintf(stderr, "emulated GPU: too many barriers for one process that is watched\n");
        abort();
}
