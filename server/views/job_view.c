/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs and rounds as messages. */
#include "server/views/job_view.h"

#include <math.h>

void mfl_view_round(const struct mfl_store_round *round, Mfl__RoundInfo *ret_info)
{
        const struct mfl_round_record *record = &round->record;
        Mfl__RoundInfo out = MFL__ROUND_INFO__INIT;
        out.round = record->round;
        out.evaluated = record->evaluated;
        out.no_accuracy = isnan(record->accuracy) || isnan(record->train_accuracy);
        out.accuracy = out.no_accuracy ? 0 : record->accuracy;
        out.loss = record->loss;
        out.train_loss = record->train_loss;
        out.train_accuracy = out.no_accuracy ? 0 : record->train_accuracy;
        if (record->has_mean_iou) {
                out.has_mean_iou_case = MFL__ROUND_INFO__HAS_MEAN_IOU_MEAN_IOU;
                out.mean_iou = record->mean_iou;
        }
        if (record->has_virtual) {
                out.has_virtual_end_case = MFL__ROUND_INFO__HAS_VIRTUAL_END_VIRTUAL_END;
                out.virtual_start = (double)record->virtual_start_us / 1e6;
                out.virtual_end = (double)record->virtual_end_us / 1e6;
        }
        const struct mfl_measures *measures = &record->measures;
        out.measured = measures->known;
        out.n_measures = measures->known ? MFL_MEASURES : 0;
        out.measures = (double *)measures->v;
        out.clients_evaluated = measures->clients;
        out.n_client_bins = measures->clients ? MFL_SCORE_BINS : 0;
        out.client_bins = (uint32_t *)measures->bins;
        out.metrics = (char *)round->metrics.names;
        out.n_metric_values = round->metrics.n;
        out.metric_values = (double *)round->metrics.v;
        out.samples = record->samples;
        out.clients = record->clients;
        out.clients_rejected = record->clients_rejected;
        out.weight = record->weight;
        out.clamped = record->clamped;
        out.bytes_up = round->bytes_up;
        out.bytes_down = round->bytes_down;
        out.bytes_up_alone = round->bytes_up_alone;
        out.bytes_down_alone = round->bytes_down_alone;
        out.states_lost = round->states_lost;
        out.seconds = (double)(record->ended_ms - record->started_ms) / 1000.0;
        out.digest = (ProtobufCBinaryData){.len = MFL_DIGEST_BYTES, .data = (uint8_t *)record->digest};
        out.attempt = record->attempt;
        out.committed_ms = round->committed_ms;
        out.kept = round->kept;
        out.daemons = record->daemons;
        out.choice = (char *)round->choice;
        *ret_info = out;
}

static Mfl__JobState wire_state(enum mfl_job_state state)
{
        return (Mfl__JobState)state; /* the numbers are the same by design */
}
_Static_assert((int)MFL_JOB_WAITING == MFL__JOB_STATE__JOB_WAITING, "states differ from the wire's");
_Static_assert((int)MFL_JOB_STOPPED == MFL__JOB_STATE__JOB_STOPPED, "states differ from the wire's");

static void view_privacy(const struct mfl_server_job *job, Mfl__JobInfo *out)
{
        const struct mfl_privacy_spec *privacy = &job->spec->privacy;
        if (!privacy->kind)
                return;
        out->privacy = (char *)(uintptr_t)mfl_privacy_kind_name(privacy->kind);
        out->metrics_withheld = mfl_privacy_withholds(privacy);
        out->epsilon_max = privacy->epsilon_max;
        out->delta = privacy->delta;
        out->clip = privacy->clip;
        out->noise = privacy->noise;
        if (job->has_last)
                out->epsilon = job->last.record.measures.v[MFL_MEASURE_EPSILON];
        if (job->has_last && privacy->adaptive)
                out->clip = job->last.record.measures.v[MFL_MEASURE_CLIP];
}

void mfl_view_job(
        const struct mfl_server_job *job, Mfl__JobInfo *ret_info, struct mfl_job_info_buffers *buffers)
{
        Mfl__JobInfo out = MFL__JOB_INFO__INIT;
        struct mfl_core_job_view *view = &buffers->view;
        out.job = (char *)job->id;
        out.name = job->spec->name;
        out.state = wire_state(job->state);
        out.reason = (char *)job->reason;
        out.round = job->committed;
        out.rounds = job->spec->rounds;
        out.n_params = job->n_params;
        out.n_frozen = job->n_frozen;
        if (!job->unread) {
                out.model = (char *)(uintptr_t)mfl_job_model_name(job->spec);
                out.data = job->spec->data.name;
                out.strategy = (char *)mfl_strategy_name(job->spec->aggregation.strategy);
        }
        out.owner = (char *)job->owner;
        out.per_token = job->per_token;
        out.created_ms = job->created_unix_ms;
        out.finished_ms = job->finished_unix_ms;
        out.archived_ms = job->archived_unix_ms;
        if (job->has_last) {
                mfl_view_round(&job->last, &buffers->last);
                out.last = &buffers->last;
        }
        if (job->has_evaluated && !job->last.record.evaluated) {
                mfl_view_round(&job->evaluated, &buffers->evaluated);
                out.evaluated = &buffers->evaluated;
        }
        if (job->has_best) {
                mfl_view_round(&job->best, &buffers->best);
                out.best = &buffers->best;
        }
        if (mfl_server_job_in_core(job) && !mfl_core_job_view(job->jobs->loop->core, job->id, view)) {
                out.phase = (char *)view->phase;
                out.in_round = view->in_round;
                out.attempt = view->attempt;
                out.clients_done = view->clients_done;
                out.clients_total = view->clients_total;
                out.trained = view->trained;
                out.daemons = view->daemons;
                if (view->reason[0] && !mfl_server_job_has_ended(job))
                        out.reason = view->reason;
        }
        view_privacy(job, &out);
        *ret_info = out;
}
