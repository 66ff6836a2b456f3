/* SPDX-License-Identifier: Apache-2.0 */
/* The collective of GPUs: every member's sum is on its card, and all members call NCCL's reduce together.
 *
 * Opening a communicator takes all members and seconds, so a thread of this file does it while the daemon
 * trains; the communicator is used until another one is ordered or something fails.
 *
 *     any thread:      communicator 7 ............................. communicator 8
 *     own thread:             [make the id] open 7 (deadline)              close 7, open 8 ..
 *     device's thread:                 combine: waits, reduces   combine ..
 *
 * Ways to fail, all MFL_COLLECTIVE_BROKEN: the communicator that the group names is not there (any more) or
 * does not open in time, or the reduction fails. What fails is closed, and the next order opens another
 * communicator. A newer order cancels an opening in progress, and waits for a combine in progress. */
#include "client/node/collective.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#define OPEN_MS 120000 /* a member that never comes is usually noticed as lost before */
#define LOOK_MS 10     /* how late a cancel is noticed while combine waits */

enum state {
        NONE,
        OPENING,
        OPEN,
        FAILED, /* with reason */
};

/* An order. */
struct wanted {
        uint64_t number;
        uint32_t rank, n_ranks;
        bool has_id;
        uint8_t id[MFL_COMM_ID_BYTES];
        void (*made)(void *user, uint64_t communicator, const uint8_t *id, const char *reason);
        void *user;
};

struct nccl {
        struct mfl_collective base;
        const struct mfl_comm_ops *comm_ops;
        struct mfl_device *device;
        pthread_t thread;
        pthread_mutex_t lock; /* of all below */
        pthread_cond_t changed;
        bool quit, waiting; /* waiting: `next` is an order that has not begun */
        struct wanted next;
        enum state state;
        struct wanted now;
        struct mfl_comm *comm;
        bool in_use;                     /* by combine */
        struct mfl_comm_control control; /* of the opening */
        int rc;                          /* FAILED */
        struct mfl_error reason;
};

_Static_assert(MFL_COMM_ID_BYTES == MFL_COMMUNICATOR_ID_BYTES, "an id on the wire");

/* ---- the thread ---- */

static void tell(const struct wanted *order, const uint8_t *id, const char *reason)
{
        if (order->made)
                order->made(order->user, order->number, id, reason);
}

static int open_ordered(
        struct nccl *nccl, struct wanted *order, struct mfl_comm **ret_comm, struct mfl_error *err)
{
        const struct mfl_comm_ops *ops = nccl->comm_ops;
        int rc = order->has_id ? 0 : ops->id(nccl->device, order->id, err);
        if (rc)
                return rc;
        if (!order->has_id)
                tell(order, order->id, NULL);
        return ops->open(
                nccl->device, order->id, order->rank, order->n_ranks, OPEN_MS, &nccl->control, ret_comm, err);
}

/* Carries out the waiting order; the lock is held before and after, but not meanwhile. */
static void carry_out(struct nccl *nccl)
{
        struct mfl_comm *old = nccl->comm, *comm = NULL;
        struct mfl_error err = {""};
        struct wanted order = nccl->next;
        nccl->waiting = false;
        nccl->now = order;
        nccl->comm = NULL;
        nccl->state = OPENING;
        nccl->control = (struct mfl_comm_control){0};
        pthread_mutex_unlock(&nccl->lock);
        nccl->comm_ops->close(old);
        int rc = open_ordered(nccl, &order, &comm, &err);
        pthread_mutex_lock(&nccl->lock);
        nccl->comm = comm;
        nccl->state = rc ? FAILED : OPEN;
        nccl->rc = rc;
        nccl->reason = err;
        bool unwanted = nccl->quit || nccl->waiting;
        pthread_cond_broadcast(&nccl->changed);
        if (!rc || unwanted)
                return;
        pthread_mutex_unlock(&nccl->lock);
        tell(&order, NULL, err.text);
        pthread_mutex_lock(&nccl->lock);
}

static void *run(void *arg)
{
        struct nccl *nccl = arg;
        pthread_mutex_lock(&nccl->lock);
        while (!nccl->quit) {
                if (nccl->waiting && !nccl->in_use)
                        carry_out(nccl);
                else
                        pthread_cond_wait(&nccl->changed, &nccl->lock);
        }
        pthread_mutex_unlock(&nccl->lock);
        return NULL;
}

/* ---- orders ---- */

static int order_communicator(struct mfl_collective *collective, const struct mfl_group *group,
        const uint8_t *id,
        void (*made)(void *user, uint64_t communicator, const uint8_t *id, const char *reason), void *user,
        struct mfl_error *err)
{
        struct nccl *nccl = MFL_CONTAINER_OF(collective, struct nccl, base);
        struct wanted order = {.number = group->communicator,
                .rank = group->rank,
                .n_ranks = group->n_members,
                .has_id = id != NULL,
                .made = made,
                .user = user};
        struct wanted given_up = {.made = NULL};
        if (group->rank >= group->n_members)
                return mfl_fail(err, MFL_INVALID, "collective nccl: rank %u of %u members", group->rank,
                        group->n_members);
        if (id)
                memcpy(order.id, id, sizeof(order.id));
        pthread_mutex_lock(&nccl->lock);
        bool known = nccl->waiting ? nccl->next.number == order.number
                                   : (nccl->state == OPENING || nccl->state == OPEN) &&
                                             nccl->now.number == order.number;
        if (!known) {
                if (nccl->waiting && !nccl->next.has_id)
                        given_up = nccl->next;
                nccl->next = order;
                nccl->waiting = true;
                atomic_store(&nccl->control.cancel, true);
                pthread_cond_broadcast(&nccl->changed);
        }
        pthread_mutex_unlock(&nccl->lock);
        tell(&given_up, NULL, "collective nccl: another communicator was ordered before this one was begun");
        return 0;
}

/* ---- combine ---- */

static bool covers_all(const struct mfl_combine *combine)
{
        uint32_t n = combine->group->n_members;
        uint64_t all = n >= 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
        return combine->ranks == all && combine->leader < n;
}

/* Refuses what can't be reduced at all; the communicator stays. */
static int check(const struct mfl_combine *combine, struct mfl_error *err)
{
        const struct mfl_group *group = combine->group;
        if (!covers_all(combine))
                return mfl_fail(err, MFL_COLLECTIVE_BROKEN,
                        "collective nccl: some of the %u members are left out, which a communicator cannot "
                        "do",
                        group->n_members);
        if (!combine->held)
                return mfl_fail(err, MFL_COLLECTIVE_BROKEN, "collective nccl: no sum on the device");
        mfl_assert((group->rank == combine->leader) == (combine->out != NULL));
        return 0;
}

static struct timespec soon(void)
{
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += LOOK_MS * 1000000;
        if (t.tv_nsec >= 1000000000) {
                t.tv_sec++;
                t.tv_nsec -= 1000000000;
        }
        return t;
}

static int fail_state(const struct nccl *nccl, uint64_t number, struct mfl_error *err)
{
        if (nccl->state != FAILED || nccl->now.number != number)
                return mfl_fail(err, MFL_COLLECTIVE_BROKEN,
                        "collective nccl: the communicator is not open (any more)");
        if (nccl->rc < 0)
                return mfl_fail(err, nccl->rc, "%s", nccl->reason.text);
        return mfl_fail(err, MFL_COLLECTIVE_BROKEN, "%s", nccl->reason.text);
}

/* Waits until the communicator is open; the lock is held. A communicator that does not open in time is
 * closed. */
static int wait_open(
        struct nccl *nccl, const struct mfl_combine *combine, uint64_t end_ms, struct mfl_error *err)
{
        uint64_t number = combine->group->communicator;
        for (;;) {
                bool ordered = nccl->waiting && nccl->next.number == number;
                bool now = nccl->now.number == number;
                if (!nccl->waiting && now && nccl->state == OPEN)
                        return 0;
                if (!ordered && (!now || nccl->state != OPENING || nccl->waiting))
                        return fail_state(nccl, number, err);
                bool cancelled = atomic_load(&combine->control->cancel);
                if (cancelled || mfl_now_ms() >= end_ms) {
                        if (!ordered)
                                atomic_store(&nccl->control.cancel, true);
                        return mfl_fail(err, MFL_COLLECTIVE_BROKEN,
                                "collective nccl: %s before the communicator was open",
                                cancelled ? "cancelled" : "too late");
                }
                struct timespec look = soon();
                pthread_cond_timedwait(&nccl->changed, &nccl->lock, &look);
        }
}

/* The lock is held before and after, but not meanwhile. */
static int reduce(
        struct nccl *nccl, const struct mfl_combine *combine, uint64_t end_ms, struct mfl_error *err)
{
        struct mfl_comm *comm = nccl->comm;
        uint64_t now_ms = mfl_now_ms();
        nccl->in_use = true;
        pthread_mutex_unlock(&nccl->lock);
        int rc = nccl->comm_ops->reduce(comm, combine->held, combine->leader, combine->out,
                (uint32_t)(end_ms > now_ms ? end_ms - now_ms : 0), combine->control, err);
        if (rc)
                nccl->comm_ops->close(comm);
        pthread_mutex_lock(&nccl->lock);
        nccl->in_use = false;
        if (rc) {
                nccl->comm = NULL;
                nccl->state = FAILED;
                nccl->rc = rc;
                if (err)
                        nccl->reason = *err;
        }
        pthread_cond_broadcast(&nccl->changed);
        return rc > 0 ? MFL_COLLECTIVE_BROKEN : rc;
}

static int combine_nccl(
        struct mfl_collective *collective, const struct mfl_combine *combine, struct mfl_error *err)
{
        struct nccl *nccl = MFL_CONTAINER_OF(collective, struct nccl, base);
        uint64_t end_ms = mfl_now_ms() + combine->deadline_ms;
        struct mfl_error own = {""};
        int rc = check(combine, err);
        if (rc)
                return rc;
        pthread_mutex_lock(&nccl->lock);
        rc = wait_open(nccl, combine, end_ms, &own);
        if (!rc)
                rc = reduce(nccl, combine, end_ms, &own);
        pthread_mutex_unlock(&nccl->lock);
        return rc ? mfl_fail(err, rc, "%s", own.text) : 0;
}

/* ---- begin and end ---- */

static void close_nccl(struct mfl_collective *collective)
{
        struct nccl *nccl = MFL_CONTAINER_OF(collective, struct nccl, base);
        pthread_mutex_lock(&nccl->lock);
        nccl->quit = true;
        atomic_store(&nccl->control.cancel, true);
        pthread_cond_broadcast(&nccl->changed);
        pthread_mutex_unlock(&nccl->lock);
        pthread_join(nccl->thread, NULL);
        nccl->comm_ops->close(nccl->comm);
        pthread_cond_destroy(&nccl->changed);
        pthread_mutex_destroy(&nccl->lock);
        free(nccl);
}

static const struct mfl_collective_ops nccl_ops = {
        .name = "nccl",
        .kind = MFL_COLLECTIVE_NCCL,
        .combine = combine_nccl,
        .communicator = order_communicator,
        .close = close_nccl,
};

/* Signals are handled by the loop's thread. */
static int start_thread(struct nccl *nccl, struct mfl_error *err)
{
        sigset_t all, old;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        int failed = pthread_create(&nccl->thread, NULL, run, nccl);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (!failed)
                return 0;
        errno = failed;
        return mfl_fail_errno(err, "collective nccl: start a thread");
}

int mfl_collective_nccl_new(const struct mfl_backend_ops *ops, struct mfl_device *device,
        struct mfl_collective **ret_collective, struct mfl_error *err)
{
        char text[64];
        uint32_t version;
        pthread_condattr_t attr;
        if (!ops->comm)
                return mfl_fail(
                        err, MFL_INVALID, "collective nccl: the backend %s has no communicators", ops->name);
        int rc = ops->comm->version(device, text, &version, err);
        if (rc)
                return rc;
        struct nccl *nccl = mfl_calloc(1, sizeof(*nccl));
        if (!nccl)
                return mfl_fail_memory(err, sizeof(*nccl), "a collective");
        nccl->base.ops = &nccl_ops;
        nccl->comm_ops = ops->comm;
        nccl->device = device;
        pthread_mutex_init(&nccl->lock, NULL);
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&nccl->changed, &attr);
        pthread_condattr_destroy(&attr);
        rc = start_thread(nccl, err);
        if (rc) {
                pthread_cond_destroy(&nccl->changed);
                pthread_mutex_destroy(&nccl->lock);
                free(nccl);
                return rc;
        }
        *ret_collective = &nccl->base;
        return 0;
}
