/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by a task's threads while they work: the first failure, the order to stop, and figures. */
#include "client/train/trainer_internal.h"

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
