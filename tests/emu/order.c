/* SPDX-License-Identifier: Apache-2.0 */
/* The order of the emulated device's work: chooses what hardware leaves open. */
#include "tests/emu/emu_internal.h"

#include <stdio.h>

static enum mfl_emu_order order;
static uint64_t state;

void mfl_emu_set_order(enum mfl_emu_order wanted, uint64_t seed)
{
        order = wanted;
        state = seed * 0x9e3779b97f4a7c15u + 1;
}

static __attribute__((constructor)) void read_environment(void)
{
        const char *text = getenv("MFL_EMU_ORDER");
        if (!text || !*text || !strcmp(text, "forward"))
                return;
        if (!strcmp(text, "reverse")) {
                mfl_emu_set_order(MFL_EMU_REVERSE, 0);
        } else if (!strncmp(text, "random:", 7)) {
                mfl_emu_set_order(MFL_EMU_RANDOM, strtoull(text + 7, NULL, 10));
        } else {
                fprintf(stderr, "emulated GPU: MFL_EMU_ORDER=%s: it is forward, reverse or random:SEED\n",
                        text);
                abort();
        }
}

enum mfl_emu_order mfl_emu_order(void)
{
        return order;
}

/* xorshift64*. */
uint32_t mfl_emu_random(uint32_t n)
{
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return (uint32_t)(((state * 0x2545f4914f6cdd1du >> 32) * n) >> 32);
}

static uint64_t divisor(uint64_t a, uint64_t b)
{
        while (b) {
                uint64_t r = a % b;
                a = b;
                b = r;
        }
        return a;
}

struct mfl_emu_permutation mfl_emu_permutation(uint64_t n)
{
        struct mfl_emu_permutation p = {n, 1, 0};
        uint32_t below = n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
        if (order == MFL_EMU_RANDOM && n > 1) {
                p.first = mfl_emu_random(below);
                do
                        p.factor = 1 + mfl_emu_random(below);
                while (divisor(p.factor, n) != 1);
        }
        return p;
}

uint64_t mfl_emu_permute(const struct mfl_emu_permutation *p, uint64_t i)
{
        if (order == MFL_EMU_REVERSE)
                return p->n - 1 - i;
        return (uint64_t)(((unsigned __int128)p->factor * i + p->first) % p->n);
}
