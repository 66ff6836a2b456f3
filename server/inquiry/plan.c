/* SPDX-License-Identifier: Apache-2.0 */
/* Whom an inquiry asks, and when it is over. */
#include "server/inquiry/plan.h"

static bool glob(const char *pattern, const char *text)
{
        const char *star = NULL, *from = NULL;
        while (*text) {
                if (*pattern == '*') {
                        star = pattern++;
                        from = text;
                } else if (*pattern == '?' || *pattern == *text) {
                        pattern++;
                        text++;
                } else if (star) {
                        pattern = star + 1;
                        text = ++from;
                } else {
                        return false;
                }
        }
        while (*pattern == '*')
                pattern++;
        return !*pattern;
}

bool mfl_inquiry_matches(const char *pattern, const struct mfl_inquiry_daemon *daemon)
{
        return !*pattern || glob(pattern, daemon->name) || glob(pattern, daemon->site);
}

static int by_site(const void *a, const void *b)
{
        const struct mfl_inquiry_part *x = a, *y = b;
        int r = strcmp(x->site, y->site);
        return r ? r : (x->fingerprint > y->fingerprint) - (x->fingerprint < y->fingerprint);
}

int mfl_inquiry_plan_init(struct mfl_inquiry_plan *plan, const struct mfl_inquiry_daemon *daemons, uint32_t n,
        uint64_t until_ms)
{
        struct mfl_inquiry_plan p = {.until_ms = until_ms, .parts = mfl_calloc(n + 1, sizeof *p.parts)};
        if (!p.parts)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++) {
                uint32_t k = 0;
                while (k < p.n && p.parts[k].fingerprint != daemons[i].fingerprint)
                        k++;
                struct mfl_inquiry_part *part = &p.parts[k];
                if (k == p.n || strcmp(daemons[i].site, part->site) < 0)
                        mfl_strcpy(part->site, sizeof part->site, daemons[i].site);
                part->fingerprint = daemons[i].fingerprint;
                part->train_samples = daemons[i].train_samples;
                part->test_samples = daemons[i].test_samples;
                part->n_daemons++;
                p.n += k == p.n;
        }
        qsort(p.parts, p.n, sizeof *p.parts, by_site);
        *plan = p;
        return 0;
}

void mfl_inquiry_plan_deinit(struct mfl_inquiry_plan *plan)
{
        free(plan->parts);
        *plan = (struct mfl_inquiry_plan){0};
}

const struct mfl_inquiry_daemon *mfl_inquiry_next(
        struct mfl_inquiry_plan *plan, uint32_t part, const struct mfl_inquiry_daemon *daemons, uint32_t n)
{
        struct mfl_inquiry_part *p = &plan->parts[part];
        const struct mfl_inquiry_daemon *best = NULL;
        if (p->status != MFL_INQUIRY_WAITS)
                return NULL;
        for (uint32_t i = 0; i < n; i++) {
                if (daemons[i].fingerprint != p->fingerprint)
                        continue;
                if (p->conn && daemons[i].conn == p->conn)
                        return NULL; /* it is at it */
                /* The one that was asked before may have the answer. */
                if (!best || !strcmp(daemons[i].name, p->daemon))
                        best = &daemons[i];
        }
        p->conn = best ? best->conn : 0;
        if (best)
                mfl_strcpy(p->daemon, sizeof p->daemon, best->name);
        return best;
}

struct mfl_inquiry_part *mfl_inquiry_asked(const struct mfl_inquiry_plan *plan, uint32_t conn)
{
        for (uint32_t i = 0; i < plan->n; i++)
                if (plan->parts[i].status == MFL_INQUIRY_WAITS && conn && plan->parts[i].conn == conn)
                        return &plan->parts[i];
        return NULL;
}

bool mfl_inquiry_over(const struct mfl_inquiry_plan *plan, uint64_t now_ms)
{
        bool all = true;
        for (uint32_t i = 0; i < plan->n; i++)
                all &= plan->parts[i].status != MFL_INQUIRY_WAITS;
        return all || now_ms >= plan->until_ms;
}
