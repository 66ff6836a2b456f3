/* SPDX-License-Identifier: Apache-2.0 */
/* Clients' own models and layers that stay at their site (client_state: daemon): read before a training or an evaluation, kept after a training.
 * Of layers that stay, the client's whole change is in the file and none of it in the update.
 *
 * What the server names and the site does not have is lost: the client begins anew, and its update says so. A full disk rejects the client. */
#include "client/train/trainer_internal.h"

#include "client/keep/keep.h"

bool mfl_trainer_keeps_own(const struct trainer_run *run)
{
        const struct mfl_method_ops *method = mfl_method_get(run->job->spec);
        return run->job->spec->client_state == MFL_CLIENT_STATE_DAEMON && (method->models || method->starts);
}

static struct mfl_keep site_of(const struct trainer_run *run, uint64_t client)
{
        return (struct mfl_keep){.dir = run->trainer->state_dir,
                .job = run->request->task->job,
                .job_text = run->request->job_text,
                .client = client};
}

int mfl_trainer_site_load(
        struct trainer_run *run, uint64_t client, float *ret_own, bool *ret_there, struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        const struct mfl_keep keep = site_of(run, client);
        size_t n = (size_t)run->job->graph->n_moving;
        bool there = false;
        int r = task->has_state ? mfl_keep_load(&keep, task->state_digest, n, ret_own, &there, err) : 0;
        if (!r)
                *ret_there = there;
        return r;
}

int mfl_trainer_site_save(struct trainer_run *run, uint64_t client, size_t n, const float *own, bool there,
        struct trainer_item *item, struct mfl_error *err)
{
        const struct mfl_keep keep = site_of(run, client);
        struct mfl_error why;
        int r = mfl_keep_save(&keep, n, own, item->state.digest, &why);
        if (r < 0)
                return mfl_fail(err, r, "%s", why.text);
        item->state.there = true;
        item->state.anew = run->request->task->has_state && !there;
        return r ? mfl_trainer_reject(item, mfl_asprintf("%s", why.text), err) : 0;
}

/* Moves the elements of layers that stay from the delta to `own`, which has 0 elsewhere. */
static void split(const struct mfl_graph *graph, float *delta, float *own)
{
        static const struct mfl_fixed apart = {.statistics_max = 1}; /* the parts count as such */
        for (uint64_t e = 0; e < graph->n_moving;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(&apart, &graph->personal, e, graph->n_moving);
                for (; e < part.end; e++) {
                        own[e] = part.statistics ? delta[e] : 0;
                        delta[e] = part.statistics ? 0 : delta[e];
                }
        }
}

int mfl_trainer_site_keep(struct trainer_run *run, const struct trainer_lane *lane, struct trainer_item *item,
        struct mfl_error *err)
{
        const struct mfl_graph *graph = run->job->graph;
        size_t n = (size_t)graph->n_moving;
        float *delta = run->result->data[lane->item];
        void *own;
        if (!mfl_trainer_keeps_own(run))
                return 0;
        if (mfl_method_get(run->job->spec)->models)
                return mfl_trainer_site_save(
                        run, lane->local.client, n, delta + n, !item->state.anew, item, err);
        int r = mfl_trainer_buffer_get(
                &run->trainer->memory, n * sizeof *delta, "what stays of a client", &own, err);
        if (r)
                return r;
        split(graph, delta, own);
        r = mfl_trainer_site_save(run, lane->local.client, n, own, !item->state.anew, item, err);
        mfl_trainer_buffer_put(&run->trainer->memory, own, n * sizeof *delta);
        return r;
}
