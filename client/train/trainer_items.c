/* SPDX-License-Identifier: Apache-2.0 */
/* The samples of an item; which items of a training have begun, and which were given back. Workers begin items in the run's order;
 * the server gets them back from the end of the task's order, down to the last item that has begun. Both are
 * in one number, so that neither waits for the other. */
#include "client/train/trainer_internal.h"

static uint32_t bound(uint64_t items)
{
        return (uint32_t)items;
}

static uint32_t n_returned(uint64_t items)
{
        return (uint32_t)(items >> 32);
}

uint32_t mfl_train_recall(struct mfl_train_control *control, uint32_t n_items, uint32_t keep)
{
        uint64_t seen = atomic_load(&control->items);
        for (;;) {
                uint32_t has = n_items - n_returned(seen), least = MFL_MAX(MFL_MAX(keep, bound(seen)), 1u);
                if (least >= has)
                        return has;
                uint64_t want = (uint64_t)(n_items - least) << 32 | bound(seen);
                if (atomic_compare_exchange_weak(&control->items, &seen, want))
                        return least;
        }
}

uint32_t mfl_trainer_items(const struct trainer_run *run)
{
        return run->request->task->n_items - n_returned(atomic_load(&run->request->control->items));
}

bool mfl_trainer_item_waits(const struct trainer_run *run)
{
        uint32_t next = atomic_load(&run->next);
        return next < run->clients.n && run->clients.v[next].item < mfl_trainer_items(run);
}

/* Not if it was given back. */
static bool begin(struct trainer_run *run, uint32_t item)
{
        _Atomic uint64_t *items = &run->request->control->items;
        uint64_t seen = atomic_load(items), want;
        do {
                if (item >= run->request->task->n_items - n_returned(seen))
                        return false;
                want = (seen & ~(uint64_t)UINT32_MAX) | MFL_MAX(bound(seen), item + 1);
        } while (!atomic_compare_exchange_weak(items, &seen, want));
        return true;
}

bool mfl_trainer_item_begin(struct trainer_run *run, uint32_t *ret_item)
{
        for (;;) {
                uint32_t next = atomic_fetch_add(&run->next, 1);
                if (next >= run->clients.n)
                        return false;
                if (begin(run, run->clients.v[next].item)) {
                        *ret_item = run->clients.v[next].item;
                        return true;
                }
        }
}

/* ---- samples ---- */

/* All samples of an item. */
static int client_samples(const struct mfl_trainer *trainer, const struct trainer_job *job, uint64_t item,
        const uint32_t **ret_samples, uint32_t *ret_n, struct mfl_error *err)
{
        const struct mfl_partition *partition = job->partition;
        uint64_t k = item;
        if (job->spec->data.partition == MFL_PARTITION_LOCAL) {
                if (item != trainer->local_item)
                        return mfl_fail(err, MFL_INVALID, "the client is another site's data");
                k = 0;
        }
        if (!partition && k < MFL_MAX(job->spec->data.clients, 1u)) { /* a program's own data */
                *ret_samples = NULL;
                *ret_n = 0;
                return 0;
        }
        if (!partition || k >= partition->n_clients)
                return mfl_fail(err, MFL_INVALID, "client %llu of a population of %u",
                        (unsigned long long)item, partition ? partition->n_clients : job->spec->data.clients);
        *ret_samples = partition->index + partition->start[k];
        *ret_n = partition->start[k + 1] - partition->start[k];
        return 0;
}

int mfl_trainer_job_client(const struct mfl_trainer *trainer, const struct trainer_job *job, uint64_t item,
        const uint32_t **ret_samples, uint32_t *ret_n, struct mfl_error *err)
{
        int r = client_samples(trainer, job, item, ret_samples, ret_n, err);
        if (!r)
                *ret_n -= mfl_job_held(job->spec, *ret_n);
        return r;
}

int mfl_trainer_job_held(const struct mfl_trainer *trainer, const struct trainer_job *job, uint64_t item,
        const uint32_t **ret_samples, uint32_t *ret_n, struct mfl_error *err)
{
        const uint32_t *samples = NULL;
        uint32_t n = 0;
        int r = client_samples(trainer, job, item, &samples, &n, err);
        if (r)
                return r;
        *ret_n = mfl_job_held(job->spec, n);
        *ret_samples = samples + n - *ret_n;
        return 0;
}

/* ---- shared by a task's threads while they work: the first failure, the order to stop, and figures ---- */

void mfl_trainer_run_fail(struct trainer_run *run, int code, const struct mfl_error *err)
{
        pthread_mutex_lock(&run->lock);
        /* A broken device outranks the errors that it caused in other threads. */
        if (!run->code || (code < 0 && run->code > 0)) {
                run->code = code;
                run->err = *err;
        }
        pthread_mutex_unlock(&run->lock);
        atomic_store(&run->stop, true);
}

void mfl_trainer_add_loss(struct trainer_run *run, int64_t loss_sum)
{
        if (mfl_trainer_withholds(run))
                return;
        _Atomic int64_t *sum = &run->request->control->loss_sum;
        int64_t was = atomic_load(sum);
        while (!atomic_compare_exchange_weak(sum, &was, mfl_fixed_loss_add(was, loss_sum)))
                ;
}

bool mfl_trainer_run_stopped(struct trainer_run *run)
{
        return atomic_load(&run->stop) || atomic_load(&run->request->control->cancel);
}

void mfl_trainer_count(struct trainer_run *run, struct mfl_net *net, uint64_t samples, uint64_t reads_ns,
        uint64_t now_ns, uint64_t *told_ns)
{
        struct mfl_trainer *trainer = run->trainer;
        if (!trainer->activity)
                return;
        uint64_t gathers_ns = trainer->ops->gather_ns ? trainer->ops->gather_ns(net) : 0;
        /* The network's other threads wait during that time. */
        reads_ns = (reads_ns + gathers_ns - *told_ns) * trainer_width(run);
        *told_ns = gathers_ns;
        mfl_activity_count(trainer->activity, samples, reads_ns, now_ns);
}
