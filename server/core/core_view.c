/* SPDX-License-Identifier: Apache-2.0 */
/* What lists and watchers see of the core. */
#include "common/cohort/cohort.h"
#include "server/core/core_progress.h"
#include "server/core/core_view_node.h"
#include "server/core/core_wait.h"
#include "server/work/core_team.h"

#define RIVAL_TOLD_MS 60000 /* a rival is shown beside the daemon for this long */

static const char *phase_name(enum core_phase phase)
{
        switch (phase) {
        case PHASE_TRAIN:
        case PHASE_CLOSING:
                return "train";
        case PHASE_APPLY:
                return "apply";
        case PHASE_EVAL:
                return "evaluate";
        case PHASE_STORE:
        case PHASE_TRAINED:
                return "commit";
        default:
                return "wait";
        }
}

int mfl_core_job_view(const struct mfl_core *core, const char *id, struct mfl_core_job_view *ret_view)
{
        const struct core_job *job = mfl_core_job(core, id);
        if (!job)
                return MFL_NOT_FOUND;
        struct mfl_core_job_view view = {.state = job->state,
                .phase = phase_name(job->phase),
                .committed = job->committed,
                .in_round = job->phase >= PHASE_TRAIN && job->phase != PHASE_OVER ? job->round : 0,
                .attempt = job->attempt,
                .clients_done = job->count[ITEM_COUNTED] + job->count[ITEM_REJECTED],
                .clients_total = job->n_items,
                .daemons = job->n_leased,
                .samples_done = job->record.samples + job->progress_samples,
                .trained = mfl_core_trained(job)};
        if (view.samples_done && view.in_round)
                view.train_loss =
                        mfl_core_loss(job->train_loss + job->progress_loss) / (double)view.samples_done;
        mfl_strcpy(view.reason, sizeof view.reason, job->reason);
        if (!*job->reason || !strcmp(job->reason, MFL_CORE_TURN)) {
                char why[MFL_REASON_BYTES];
                mfl_core_wait_reason(core, job, why);
                if (*why)
                        mfl_strcpy(view.reason, sizeof view.reason, why);
        }
        *ret_view = view;
        return 0;
}

uint32_t mfl_core_daemon_count(const struct mfl_core *core)
{
        return core->n_daemons;
}

static const char *task_state(const struct core_daemon *daemon)
{
        const char *state = "idle";
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next) {
                if (!mfl_core_task_live(task))
                        continue;
                if (task->kind == MFL_TASK_EVAL)
                        return "evaluating";
                if (task->kind == MFL_TASK_ASSIST)
                        return "helping";
                for (uint32_t i = 0; i < task->n_items; i++) {
                        uint32_t u = task->cover[i];
                        if (!u)
                                return "training";
                }
                state = "uploading";
        }
        return state;
}

static const char *daemon_state(const struct core_daemon *daemon)
{
        const char *state = task_state(daemon);
        if (!daemon->conn)
                return "lost";
        if (!mfl_core_daemon_takes_work(daemon))
                return strcmp(state, "idle") ? "draining" : "drained";
        return state;
}

int mfl_core_job_crew(
        const struct mfl_core *core, const char *id, uint32_t i, struct mfl_core_crew_view *ret_view)
{
        const struct core_job *job = mfl_core_job(core, id);
        if (!job || i >= job->n_leased)
                return MFL_NOT_FOUND;
        const struct core_daemon *daemon = job->leased[i];
        *ret_view = (struct mfl_core_crew_view){.info = &daemon->info,
                .conn = daemon->conn,
                .state = daemon_state(daemon),
                .items_done = daemon->items_done,
                .items_total = daemon->items_total};
        return 0;
}

bool mfl_core_daemon_where(const struct mfl_daemon_info *info, const char *where)
{
        return mfl_core_fit_where(info, where);
}

void mfl_core_daemon_view(const struct mfl_core *core, uint32_t i, struct mfl_core_daemon_view *ret_view)
{
        mfl_assert(i < core->n_daemons);
        const struct core_daemon *daemon = core->daemons[i];
        struct mfl_core_daemon_view view = {.info = &daemon->info,
                .conn = daemon->conn,
                .state = daemon_state(daemon),
                .items_done = daemon->items_done,
                .items_total = daemon->items_total,
                .items_part = mfl_core_items_part(daemon),
                .samples_per_second = daemon->samples_per_second,
                .clients_per_second = daemon->clients_per_second,
                .connected_ms = daemon->connected_ms};
        if (daemon->job) {
                mfl_strcpy(view.job, sizeof view.job, daemon->job->id);
                view.round = daemon->job->round;
        }
        mfl_strcpy(view.note, sizeof view.note, daemon->note);
        if (daemon->rival_ms && core->now_ms - daemon->rival_ms < RIVAL_TOLD_MS)
                mfl_snprintf(view.note, sizeof view.note,
                        "a second process under this name, on node %s, is refused: give it another name",
                        *daemon->rival_node ? daemon->rival_node : "unknown");
        mfl_core_node_label(daemon, view.node);
        mfl_core_node_view(core, daemon, &view);
        *ret_view = view;
}

int mfl_core_job_teams(const struct mfl_core *core, const char *id, struct mfl_team_totals *ret_totals)
{
        const struct core_job *job = mfl_core_job(core, id);
        if (!job)
                return MFL_NOT_FOUND;
        *ret_totals = job->team_totals;
        return 0;
}

int mfl_core_job_team(const struct mfl_core *core, const char *id, uint32_t i, uint32_t member,
        const char **ret_daemon, uint32_t *ret_ranks, bool *ret_wide)
{
        const struct core_job *job = mfl_core_job(core, id);
        const struct core_team *team = job ? job->teams : NULL;
        while (team && i--)
                team = team->next;
        if (!team || member >= team->n_members)
                return MFL_NOT_FOUND;
        *ret_daemon = team->member[member].task->daemon->info.name;
        *ret_ranks = team->member[member].width;
        *ret_wide = team->wide;
        return 0;
}

void mfl_core_site_name(const struct mfl_core *core, uint64_t item, char ret_name[MFL_NAME_BYTES])
{
        const struct core_daemon *daemon = mfl_core_site_first(core, item);
        const char *site = daemon && daemon->info.site[0] ? daemon->info.site
                           : daemon                       ? daemon->info.name
                                                          : "";
        mfl_strcpy(ret_name, MFL_NAME_BYTES, site);
}

void mfl_core_slots_count(const struct mfl_core *core, uint64_t *ret_slots, uint64_t *ret_used)
{
        *ret_slots = *ret_used = 0;
        for (const struct core_job *job = core->jobs; job; job = job->next) {
                *ret_slots += job->n_slots;
                for (uint32_t s = 0; job->slots && s < job->n_slots; s++)
                        *ret_used += job->slots[s].update != NULL;
        }
}

uint64_t mfl_core_clients_bytes(const struct mfl_job *spec, uint32_t population)
{
        uint64_t cohort = mfl_job_cohort_size(spec, population);
        uint64_t each = sizeof(struct core_item) + 2 * sizeof(uint32_t) + 3 * sizeof(void *);
        if (mfl_job_needs_single_updates(spec))
                each += sizeof(struct core_update);
        uint64_t counts = population <= MFL_CUT_CLIENTS_MAX ? sizeof(uint32_t) * (uint64_t)population : 0;
        uint64_t known = 0; /* and what its selection knows of each */
        if (mfl_cohort_needs_samples(spec))
                known = sizeof(uint32_t) * (uint64_t)population;
        if (mfl_memory_is_needed(spec)) { /* in the core, and as it was read at the start */
                known += 2 * sizeof(union mfl_memory_row) * (uint64_t)population;
                each += sizeof(struct mfl_client_loss) + sizeof(struct mfl_seen_client);
        }
        known += 3 * sizeof(union mfl_calendar_row) *
                 (uint64_t)mfl_calendar_rows(spec); /* now, next, and as read */
        return cohort * each + CORE_CUTS_MAX * counts + known;
}

/* Clients' own params are evaluated, too. */
static bool is_of_clients(const struct core_task *task)
{
        const struct mfl_job *spec = task->job->spec;
        bool own = mfl_job_has_own_models(spec) && spec->evaluation.on == MFL_EVALUATE_CLIENTS;
        return task->kind == MFL_TASK_TRAIN || (task->kind == MFL_TASK_EVAL && own);
}

bool mfl_core_trains(const struct mfl_core *core, uint32_t conn, const char *id, uint64_t client)
{
        const struct core_daemon *daemon = mfl_core_map_get(&core->by_conn, conn);
        const struct core_job *job = mfl_core_job(core, id);
        for (const struct core_task *task = daemon ? daemon->tasks : NULL; task; task = task->daemon_next)
                for (uint32_t i = 0; task->job == job && is_of_clients(task) && i < task->n_items; i++)
                        if (job->items[task->index[i]].item == client)
                                return true;
        return false;
}

bool mfl_core_cut_holds(const struct mfl_core *core, uint32_t conn, const char *id)
{
        const struct core_daemon *daemon = mfl_core_map_get(&core->by_conn, conn);
        const struct core_job *job = mfl_core_job(core, id);
        const struct core_relation *relation = daemon && job ? mfl_core_relation_find(daemon, job) : NULL;
        if (!daemon || !job)
                return false;
        bool local = job->spec->data.partition == MFL_PARTITION_LOCAL;
        return local ||
               (mfl_core_daemon_data(daemon, job) && (!relation || !mfl_core_cut_differs(relation, job)));
}
