/* SPDX-License-Identifier: Apache-2.0 */
/* Counts workers by what they do; their time is added to seconds of the clock and to totals. */
#include "client/train/activity.h"

#define SECOND_NS 1000000000u
#define PAUSE_NS (2ull * SECOND_NS)

int mfl_activity_init(
        struct mfl_activity *activity, uint32_t n_workers, uint64_t now_ns, struct mfl_error *err)
{
        mfl_assert(n_workers > 0);
        *activity = (struct mfl_activity){.n = {[MFL_ACTIVITY_IDLE] = n_workers},
                .start_ns = now_ns,
                .now_ns = now_ns,
                .busy_ns = now_ns};
        int r = pthread_mutex_init(&activity->lock, NULL);
        return r ? mfl_fail(err, -r, "activity: mutex: %s", strerror(r)) : 0;
}

void mfl_activity_deinit(struct mfl_activity *activity)
{
        pthread_mutex_destroy(&activity->lock);
}

/* The ring's place for a second; an older second there is overwritten. */
static struct mfl_activity_second *second_of(struct mfl_activity *a, uint64_t number)
{
        struct mfl_activity_second *second = &a->ring[number % MFL_ACTIVITY_SECONDS];
        if (second->number != number)
                *second = (struct mfl_activity_second){.number = number};
        return second;
}

static enum mfl_activity_state state_of(const struct mfl_activity *a, enum mfl_activity_work work)
{
        if (work == MFL_ACTIVITY_COMPUTES)
                return MFL_ACTIVITY_COMPUTE;
        if (work == MFL_ACTIVITY_READS)
                return MFL_ACTIVITY_DATA;
        return a->transfer ? MFL_ACTIVITY_NETWORK : MFL_ACTIVITY_WAIT;
}

static void spend(const struct mfl_activity *a, uint64_t ns, uint64_t *of_states)
{
        for (int work = 0; work < MFL_ACTIVITY_WORKS_; work++)
                of_states[state_of(a, work)] += a->n[work] * ns;
}

static bool waits(const struct mfl_activity *a)
{
        return !a->n[MFL_ACTIVITY_COMPUTES] && !a->n[MFL_ACTIVITY_READS] && !a->transfer;
}

/* Work begins. After a pause, the figures start anew. */
static void begin_work(struct mfl_activity *a)
{
        if (waits(a) && a->now_ns - a->busy_ns >= PAUSE_NS)
                memset(a->ring, 0, sizeof a->ring);
}

/* Accounts for the time up to now: all of it in the totals, and in the ring what it can hold. */
static void advance(struct mfl_activity *a, uint64_t now_ns)
{
        if (now_ns <= a->now_ns)
                return;
        spend(a, now_ns - a->now_ns, a->total_ns);
        if (!waits(a))
                a->busy_ns = now_ns;
        uint64_t last = now_ns / SECOND_NS, first = a->now_ns / SECOND_NS;
        if (last - first >= MFL_ACTIVITY_SECONDS)
                first = last - MFL_ACTIVITY_SECONDS + 1;
        for (uint64_t number = first; number <= last; number++) {
                uint64_t from = MFL_MAX(a->now_ns, number * SECOND_NS);
                uint64_t to = MFL_MIN(now_ns, (number + 1) * SECOND_NS);
                spend(a, to - from, second_of(a, number)->ns);
        }
        a->now_ns = now_ns;
}

void mfl_activity_move(struct mfl_activity *activity, uint32_t n, enum mfl_activity_work from,
        enum mfl_activity_work to, uint64_t now_ns)
{
        pthread_mutex_lock(&activity->lock);
        advance(activity, now_ns);
        mfl_assert(activity->n[from] >= n);
        if (to != MFL_ACTIVITY_IDLE)
                begin_work(activity);
        activity->n[from] -= n;
        activity->n[to] += n;
        pthread_mutex_unlock(&activity->lock);
}

static uint64_t take_computed(uint64_t *of_states, uint64_t ns)
{
        ns = MFL_MIN(ns, of_states[MFL_ACTIVITY_COMPUTE]);
        of_states[MFL_ACTIVITY_COMPUTE] -= ns;
        of_states[MFL_ACTIVITY_DATA] += ns;
        return ns;
}

void mfl_activity_count(struct mfl_activity *activity, uint64_t samples, uint64_t reads_ns, uint64_t now_ns)
{
        struct mfl_activity *a = activity;
        pthread_mutex_lock(&a->lock);
        advance(a, now_ns);
        uint64_t number = a->now_ns / SECOND_NS;
        a->samples += samples;
        second_of(a, number)->samples += samples;
        uint64_t left = take_computed(a->total_ns, reads_ns);
        for (uint32_t i = 0; left && i < MFL_ACTIVITY_SECONDS && i <= number; i++)
                left -= take_computed(second_of(a, number - i)->ns, left);
        pthread_mutex_unlock(&a->lock);
}

void mfl_activity_transfer(struct mfl_activity *activity, bool under_way, uint64_t now_ns)
{
        pthread_mutex_lock(&activity->lock);
        advance(activity, now_ns);
        if (under_way)
                begin_work(activity);
        activity->transfer = under_way;
        pthread_mutex_unlock(&activity->lock);
}

static uint32_t workers_of(const struct mfl_activity *a)
{
        uint32_t n = 0;
        for (int work = 0; work < MFL_ACTIVITY_WORKS_; work++)
                n += a->n[work];
        return n;
}

void mfl_activity_read(
        struct mfl_activity *activity, uint64_t now_ns, struct mfl_activity_figures *ret_figures)
{
        struct mfl_activity *a = activity;
        struct mfl_activity_second sum = {0};
        struct mfl_activity_figures figures = {0};
        pthread_mutex_lock(&a->lock);
        advance(a, now_ns);
        figures.workers = workers_of(a);
        figures.samples = a->samples;
        uint64_t number = a->now_ns / SECOND_NS, all_ns = 0;
        for (uint32_t i = 0; i < MFL_ACTIVITY_SECONDS && i <= number; i++) {
                const struct mfl_activity_second *second = second_of(a, number - i);
                sum.samples += second->samples;
                for (int s = 0; s < MFL_ACTIVITY_STATES; s++)
                        sum.ns[s] += second->ns[s];
        }
        for (int s = 0; s < MFL_ACTIVITY_STATES; s++) {
                figures.total_us[s] = a->total_ns[s] / 1000;
                all_ns += sum.ns[s];
        }
        pthread_mutex_unlock(&a->lock);
        for (int s = 0; s < MFL_ACTIVITY_STATES; s++)
                figures.share[s] = all_ns ? (double)sum.ns[s] / (double)all_ns : s == MFL_ACTIVITY_WAIT;
        if (all_ns)
                figures.samples_per_second =
                        (double)sum.samples * SECOND_NS * figures.workers / (double)all_ns;
        *ret_figures = figures;
}
