/* SPDX-License-Identifier: Apache-2.0 */
/* The cuts of a job's population. */
#include "server/state/state.h"

void mfl_core_cut_free(struct core_cut *cut)
{
        free(cut->count);
        free(cut);
}

void mfl_core_cuts_free(struct core_job *job)
{
        while (job->cuts) {
                struct core_cut *cut = job->cuts;
                job->cuts = cut->next;
                mfl_core_cut_free(cut);
        }
        job->cut = NULL;
}

bool mfl_core_cut_is_exact(const struct core_job *job)
{
        return job->cut && job->cut->count && job->cut->n_known == job->spec->data.clients;
}

/* It has told all that it tells: every count, or sizes alone. */
bool mfl_core_cut_has_told(const struct core_job *job, const struct core_relation *relation)
{
        return relation->cut && (!relation->n_told || relation->n_told == job->spec->data.clients);
}

bool mfl_core_cut_differs(const struct core_relation *relation, const struct core_job *job)
{
        bool evaluates = job->phase == PHASE_EVAL_WAIT || job->phase == PHASE_EVAL;
        if (evaluates && job->spec->evaluation.on == MFL_EVALUATE_TEST)
                return false; /* the test samples are the same for all daemons */
        return job->cut && relation->cut != job->cut && mfl_core_cut_has_told(job, relation);
}

void mfl_core_cuts_changed(struct mfl_core *core, const struct core_daemon *daemon)
{
        for (struct core_job *job = core->jobs; job; job = job->next) {
                const struct core_relation *relation = mfl_core_relation_find(daemon, job);
                if (!relation || !relation->cut)
                        continue;
                job->cuts_dirty = true;
                mfl_core_dirty(core, job);
        }
}
