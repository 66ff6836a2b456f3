/* SPDX-License-Identifier: Apache-2.0 */
/* Requests: the accesses of a warp's lanes by one instruction, put together from what each lane did between
 * two synchronisations of the warp; and what they cost in banks and sectors.
 *
 * The k-th time that a lane executes an instruction since the last synchronisation belongs to the k-th time
 * of the other lanes. Banks: 32 of 4 bytes; 8 bytes per lane go in two halves of a warp, 16 in four quarters.
 */
#include "tests/emu/watch.h"

#include "common/base/base.h"

#include <stdio.h>

enum {
        BLOCKS = 2,      /* of a launch */
        TRACE_MAX = 512, /* accesses of a lane between two synchronisations; later ones are not counted */
        WARPS = MFL_EMU_THREADS_MAX / MFL_EMU_WARP,
        BANKS = 32,
        SECTOR = 32,
        KERNELS_MAX = 512,
};

struct record {
        uintptr_t at; /* address, or offset in shared memory */
        const void *pc;
        uint8_t bytes;
        bool shared, used;
};
struct trace {
        struct record records[TRACE_MAX];
        unsigned n;
};
static struct trace (*traces)[MFL_EMU_WARP]; /* of each warp */
static unsigned n_blocks;
static bool counting;

static struct {
        const struct mfl_emu_kernel *kernel;
        struct mfl_emu_counts counts;
} kernels[KERNELS_MAX];
static int n_kernels;
static struct mfl_emu_counts *current;

static struct mfl_emu_counts *counts_of(const struct mfl_emu_kernel *kernel)
{
        for (int i = 0; i < n_kernels; i++)
                if (kernels[i].kernel == kernel)
                        return &kernels[i].counts;
        if (n_kernels == KERNELS_MAX)
                abort();
        kernels[n_kernels].kernel = kernel;
        return &kernels[n_kernels++].counts;
}

struct mfl_emu_counts mfl_emu_counts_of(const char *kernel)
{
        for (int i = 0; i < n_kernels; i++)
                if (!strcmp(kernels[i].kernel->name, kernel))
                        return kernels[i].counts;
        return (struct mfl_emu_counts){0};
}

void mfl_emu_count_launch(void)
{
        current = counts_of(mfl_emu_now.kernel);
        current->launches++;
        n_blocks = 0;
}

void mfl_emu_count_block(void)
{
        counting = n_blocks++ < BLOCKS;
        if (!traces)
                traces = calloc(WARPS, sizeof *traces);
        if (!traces)
                abort();
        for (int w = 0; w < WARPS; w++)
                for (int l = 0; l < MFL_EMU_WARP; l++)
                        traces[w][l].n = 0;
}

void mfl_emu_count_access(const void *p, ptrdiff_t offset, size_t bytes, enum mfl_emu_access access,
        unsigned thread, const void *pc)
{
        if (!counting || access == MFL_EMU_ATOMIC || access == MFL_EMU_COPY_END || bytes > 16)
                return;
        struct trace *trace = &traces[thread / MFL_EMU_WARP][thread % MFL_EMU_WARP];
        if (trace->n == TRACE_MAX)
                return;
        trace->records[trace->n++] = (struct record){.at = offset >= 0 ? (uintptr_t)offset : (uintptr_t)p,
                .pc = pc,
                .bytes = (uint8_t)bytes,
                .shared = offset >= 0};
}

/* ---- one request ---- */

/* Distinct numbers among the units of the lanes from `first` on; ret[] has room for 4 of each. */
static int distinct(
        const struct record *const lanes[], int n, uintptr_t unit, uintptr_t ret[4 * MFL_EMU_WARP])
{
        int found = 0;
        for (int l = 0; l < n; l++) {
                if (!lanes[l])
                        continue;
                uintptr_t last = (lanes[l]->at + lanes[l]->bytes - 1) / unit;
                for (uintptr_t u = lanes[l]->at / unit; u <= last; u++) {
                        int i = found - 1;
                        while (i >= 0 && ret[i] != u)
                                i--;
                        if (i < 0 && found < 4 * MFL_EMU_WARP)
                                ret[found++] = u;
                }
        }
        return found;
}

static void count_global(const struct record *const lanes[MFL_EMU_WARP])
{
        uintptr_t units[4 * MFL_EMU_WARP];
        int words = distinct(lanes, MFL_EMU_WARP, 4, units);
        current->global_requests++;
        current->sectors += (unsigned)distinct(lanes, MFL_EMU_WARP, SECTOR, units);
        current->sectors_ideal += (unsigned)(words * 4 + SECTOR - 1) / SECTOR;
}

static void count_shared(const struct record *const lanes[MFL_EMU_WARP], int bytes)
{
        int each = bytes <= 4 ? MFL_EMU_WARP : bytes == 8 ? MFL_EMU_WARP / 2 : MFL_EMU_WARP / 4;
        current->shared_requests++;
        for (int first = 0; first < MFL_EMU_WARP; first += each) {
                uintptr_t words[4 * MFL_EMU_WARP];
                int in_bank[BANKS] = {0}, most = 0, n = distinct(lanes + first, each, 4, words);
                for (int i = 0; i < n; i++) {
                        int k = ++in_bank[words[i] % BANKS];
                        most = MFL_MAX(most, k);
                }
                current->passes += (unsigned)most;
                current->passes_ideal += (unsigned)(n + BANKS - 1) / BANKS;
        }
}

/* Lane l's next record of this instruction; NULL: the lane has not executed it again. */
static const struct record *take(struct trace *trace, const void *pc, unsigned from)
{
        for (unsigned i = from; i < trace->n; i++)
                if (!trace->records[i].used && trace->records[i].pc == pc) {
                        trace->records[i].used = true;
                        return &trace->records[i];
                }
        return NULL;
}

void mfl_emu_count_flush(unsigned warp)
{
        if (!counting)
                return;
        struct trace *lanes = traces[warp];
        for (int l = 0; l < MFL_EMU_WARP; l++) {
                unsigned at[MFL_EMU_WARP] = {0};
                for (unsigned i = 0; i < lanes[l].n; i++) {
                        const struct record *found[MFL_EMU_WARP] = {NULL}, *first = &lanes[l].records[i];
                        if (first->used)
                                continue;
                        for (int m = l; m < MFL_EMU_WARP; m++) {
                                /* Lanes mostly take the same path: everything before is used already. */
                                while (at[m] < lanes[m].n && lanes[m].records[at[m]].used)
                                        at[m]++;
                                found[m] = take(&lanes[m], first->pc, at[m]);
                        }
                        if (first->shared)
                                count_shared(found, first->bytes);
                        else
                                count_global(found);
                }
        }
        for (int l = 0; l < MFL_EMU_WARP; l++)
                lanes[l].n = 0;
}

/* "conv_mma_tf32" of "tests/emu/conv_mma_tf32_cu.c". */
static void stem_of(const char *file, char *stem, size_t bytes)
{
        const char *slash = strrchr(file, '/');
        snprintf(stem, bytes, "%s", slash ? slash + 1 : file);
        char *end = strstr(stem, "_cu.c");
        if (end)
                *end = 0;
}

static __attribute__((destructor)) void finish(void)
{
        const char *path = getenv("MFL_EMU_COUNTS");
        FILE *f = path ? fopen(path, "a") : NULL;
        for (const struct mfl_emu_kernel *k = mfl_emu_kernels(); f && k; k = k->next) {
                const struct mfl_emu_counts *c = counts_of(k);
                char stem[80];
                stem_of(k->file, stem, sizeof stem);
                fprintf(f, "%s:%s %llu %llu %llu %llu %llu %llu %llu\n", stem, k->name,
                        (unsigned long long)c->launches, (unsigned long long)c->shared_requests,
                        (unsigned long long)c->passes, (unsigned long long)c->passes_ideal,
                        (unsigned long long)c->global_requests, (unsigned long long)c->sectors,
                        (unsigned long long)c->sectors_ideal);
        }
        if (f)
                fclose(f);
}
