/* SPDX-License-Identifier: Apache-2.0 */
/* What daemons report about evaluations. */
#include "server/round/round_eval.h"

#include "server/round/round_scores.h"
#include "server/work/core_claims.h"
#include "server/work/core_measure.h"
#include "server/work/core_presence.h"
#include "server/work/core_task.h"

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

/* The task's other items go to others; a daemon that leaves some out would otherwise be asked forever. */
static void give_back(struct mfl_core *core, struct core_task *task, struct core_daemon *daemon)
{
        struct core_relation *relation = mfl_core_relation(core, daemon, task->job);
        if (relation)
                relation->rest_stamp = task->job->stamp;
        mfl_core_task_take(core, task, ITEM_OPEN);
        mfl_core_daemon_idle(core, daemon);
}

void mfl_round_eval_result(
        struct mfl_core *core, struct core_daemon *daemon, struct core_task *task, const struct mfl_msg *msg)
{
        const struct mfl_eval_item *items = msg->eval.items;
        uint32_t n_items = msg->eval.n_items, counts = task->job->n_tally;
        struct core_job *job = task->job;
        if (job->phase != PHASE_EVAL)
                return;
        const struct core_relation *relation = mfl_core_relation(core, daemon, job);
        bool differs = relation && mfl_core_cut_differs(relation, job);
        char text[MFL_REASON_BYTES];
        if (msg->eval.n_tally != n_items * counts) {
                mfl_core_daemon_lied(core, daemon, job,
                        "a tally of %u numbers for %u shards, but each has %u", msg->eval.n_tally, n_items,
                        counts);
                return;
        }
        for (uint32_t i = 0; i < n_items; i++) {
                const struct core_item *item = find_item(job, items[i].item);
                const char *lie = item && item->task == task
                                          ? mfl_core_claim_score(task, daemon, &items[i], text)
                                          : NULL;
                if (!lie && item && item->task == task && counts)
                        lie = mfl_core_claim_tally(
                                job, &items[i], msg->eval.tally + (size_t)i * counts, text);
                if (!lie)
                        continue;
                if (differs) { /* it may agree with its own cut of the population, and the vote decides about that */
                        give_back(core, task, daemon);
                        return;
                }
                bool client = job->spec->evaluation.on == MFL_EVALUATE_CLIENTS;
                mfl_core_daemon_lied(core, daemon, job, "%s %llu: %s", client ? "client" : "shard",
                        (unsigned long long)items[i].item, lie);
                return;
        }
        for (uint32_t i = 0; i < n_items; i++) {
                const struct core_item *item = find_item(job, items[i].item);
                if (!item || item->state != ITEM_ASSIGNED || item->task != task)
                        continue;
                mfl_core_item_set(job, (uint32_t)(item - job->items), ITEM_COUNTED, NULL);
                task->n_held--;
                daemon->items_done++;
                job->record.eval_samples += items[i].samples;
                job->eval_correct += items[i].correct;
                job->eval_loss += items[i].loss_sum;
                mfl_round_scores_take(job, (uint32_t)(item - job->items), &items[i]);
                for (uint32_t c = 0; c < counts; c++)
                        job->tally[c] += msg->eval.tally[(size_t)i * counts + c];
        }
        mfl_core_dirty(core, job);
        if (!task->n_held)
                mfl_core_measure_task(core, task);
        if (task->n_held)
                give_back(core, task, daemon);
        else
                mfl_core_daemon_idle(core, daemon);
}
