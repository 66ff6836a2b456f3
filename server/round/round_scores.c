/* SPDX-License-Identifier: Apache-2.0 */
/* The scores of clients that evaluate. */
#include "server/round/round_scores.h"

void mfl_round_scores_clear(struct core_job *job)
{
        free(job->scores.v);
        free(job->scores.sites);
        free(job->scores.sums);
        job->scores = (struct mfl_round_scores){0};
}

int mfl_round_scores_begin(struct core_job *job)
{
        mfl_round_scores_clear(job);
        if (job->spec->evaluation.on != MFL_EVALUATE_CLIENTS)
                return 0;
        job->scores.v = mfl_calloc(job->n_items, sizeof *job->scores.v);
        job->scores.n = job->n_items;
        return job->scores.v ? 0 : -ENOMEM;
}

void mfl_round_scores_take(struct core_job *job, uint32_t i, const struct mfl_eval_item *item)
{
        if (job->scores.v && !job->census)
                job->scores.v[i] =
                        (struct mfl_client_score){item->item, item->samples, item->correct, item->loss_sum};
}

static void name_sites(struct mfl_core *core, struct core_job *job)
{
        job->scores.sites = mfl_calloc(job->scores.n, sizeof *job->scores.sites);
        if (!job->scores.sites) {
                core->error = -ENOMEM;
                return;
        }
        for (uint32_t i = 0; i < job->scores.n; i++) {
                const struct core_daemon *daemon = mfl_core_site_first(core, job->scores.v[i].client);
                if (daemon)
                        mfl_strcpy(job->scores.sites[i], MFL_NAME_BYTES,
                                daemon->info.site[0] ? daemon->info.site : daemon->info.name);
        }
}

void mfl_round_scores_end(struct mfl_core *core, struct core_job *job)
{
        struct mfl_round_scores *scores = &job->scores;
        if (scores->v) {
                mfl_measure_clients(
                        scores->v, scores->n, mfl_job_has_accuracy(job->spec), &job->record.measures);
                scores->n = MFL_MIN(job->record.measures.clients, (uint32_t)MFL_SCORES_SHOWN_MAX);
                scores->round = job->round;
                if (mfl_core_job_is_local(job))
                        name_sites(core, job);
        }
        bool confusion = job->tally_kind == MFL_TALLY_CONFUSION;
        if (!confusion && !job->spec->evaluation.n_metrics)
                return;
        scores->round = job->round;
        scores->n_sums = job->n_tally;
        scores->answers = job->answers;
        scores->sums = mfl_malloc(job->n_tally * sizeof *scores->sums);
        if (!scores->sums) {
                core->error = -ENOMEM;
                return;
        }
        /* the next round may begin before this one is stored */
        memcpy(scores->sums, job->tally, job->n_tally * sizeof *scores->sums);
        scores->classes = confusion ? job->answers : 0;
}
