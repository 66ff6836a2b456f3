/* SPDX-License-Identifier: Apache-2.0 */
/* What daemons report of the evaluation of a round. */
#include "server/round.h"
#include "server/round_speed.h"

static const struct core_item *find_item(const struct core_job *job, uint64_t item)
{
        uint32_t lo = 0, hi = job->n_items;
        while (lo < hi) {
                uint32_t mid = lo + (hi - lo) / 2;
                if (job->items[mid].item < item)
                        lo = mid + 1;
                else
                        hi = mid;
        }
        return lo < job->n_items && job->items[lo].item == item ? &job->items[lo] : NULL;
}

void mfl_round_eval_result(struct mfl_core *core, struct core_daemon *daemon, struct core_task *task,
        const struct mfl_eval_item *items, uint32_t n_items)
{
        struct core_job *job = task->job;
        if (job->phase != PHASE_EVAL)
                return;
        for (uint32_t i = 0; i < n_items; i++) {
                const struct core_item *item = find_item(job, items[i].item);
                if (!item || item->state != ITEM_ASSIGNED || item->task != task)
                        continue;
                if (items[i].correct > items[i].samples || items[i].samples > UINT32_MAX)
                        continue; /* nonsense counts as not done */
                mfl_core_item_set(job, (uint32_t)(item - job->items), ITEM_COUNTED, NULL);
                task->n_held--;
                daemon->items_done++;
                job->record.eval_samples += items[i].samples;
                job->eval_correct += items[i].correct;
                job->eval_loss = (int64_t)((uint64_t)job->eval_loss + (uint64_t)items[i].loss_sum);
        }
        mfl_core_dirty(core, job);
        if (!task->n_held)
                mfl_round_measure(core, task);
        if (task->n_held) { /* a daemon that leaves shards out would be asked for ever */
                struct core_relation *relation = mfl_core_relation(core, daemon, job);
                if (relation)
                        relation->rest_stamp = job->stamp;
                mfl_core_task_take(core, task, ITEM_OPEN);
        }
        mfl_core_daemon_idle(core, daemon);
}
