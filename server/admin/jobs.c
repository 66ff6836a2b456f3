/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs, their rounds, models and partitions, as operators list them. */
#include <stdio.h>

#include "server/admin/answers.h"
#include "server/jobs/partition.h"
#include "server/jobs/scores.h"
#include "server/views/job_view.h"
#include "server/views/teams_view.h"

#define DETAIL_ROUNDS 1000
#define DETAIL_NODES 1000

struct job_list_entry {
        Mfl__JobInfo info;
        struct mfl_job_info_buffers buffers;
};

/* Takes the jobs that are asked for, and one more if there is one; NULL: out of memory. */
static struct job_list_entry *collect(const struct mfl_admin *admin, const Mfl__ListJobs *ask, size_t *ret_n)
{
        const uint64_t after = mfl_server_job_number(ask->after);
        size_t n = 0, most = ask->count ? (size_t)ask->count + 1 : 0, i = 0;
        for (struct mfl_server_job *job = admin->jobs->first; job && (!most || n < most); job = job->next)
                n += !ask->count || mfl_server_job_number(job->id) > after;
        struct job_list_entry *entries = mfl_calloc(n, sizeof *entries);
        for (struct mfl_server_job *job = admin->jobs->first; entries && job && i < n; job = job->next) {
                if ((ask->without_archived && job->archived_unix_ms) ||
                        (ask->count && mfl_server_job_number(job->id) <= after))
                        continue;
                mfl_view_job(job, &entries[i].info, &entries[i].buffers);
                i++;
        }
        *ret_n = i;
        return entries;
}

static bool is_too_long(const Mfl__JobList *list)
{
        return mfl__job_list__get_packed_size(list) > MFL_LIST_BYTES_MAX;
}

void mfl_operator_list(struct mfl_session *session, uint64_t request, const Mfl__ListJobs *ask)
{
        struct mfl_admin *admin = mfl_admin_of(session);
        size_t n = 0;
        if (*ask->after && !mfl_server_job_number(ask->after)) { /* else each page would be the first one */
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_INVALID,
                        "after: '%s' is not a job's id", ask->after);
                return;
        }
        MFL_CLEANUP_FREE struct job_list_entry *entries = collect(admin, ask, &n);
        MFL_CLEANUP_FREE Mfl__JobInfo **pointers = mfl_calloc(n, sizeof *pointers);
        if (!entries || !pointers) {
                mfl_operator_no_memory(session, n * sizeof *entries, "a list of jobs");
                return;
        }
        for (size_t i = 0; i < n; i++)
                pointers[i] = &entries[i].info;
        Mfl__JobList list = MFL__JOB_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        char notice[200] = "";
        list.more = ask->count && n > ask->count;
        list.n_jobs = n - list.more;
        list.jobs = pointers;
        uint32_t n_warnings = mfl_store_warnings(admin->store);
        if (n_warnings)
                snprintf(notice, sizeof notice,
                        "%u warning%s about the server's state directory: see its journal, or run mfl-server "
                        "--check-state there",
                        n_warnings, n_warnings == 1 ? "" : "s");
        list.notice = notice;
        while (is_too_long(&list)) {
                size_t n_dropped =
                        list.n_jobs / 8 + 1; /* the oldest; of a page, those that the next one begins with */
                list.jobs += ask->count ? 0 : n_dropped;
                list.n_jobs -= n_dropped;
                list.more = ask->count != 0;
        }
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_JOB_LIST;
        envelope.job_list = &list;
        mfl_session_send(session, &envelope);
}

static void run_rounds(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_store_round_list(op->admin->store, op->job, 0, DETAIL_ROUNDS, &op->rounds, &op->err);
}

static void run_detail(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        run_rounds(work);
        if (!op->status)
                op->status =
                        mfl_store_node_list(op->admin->store, op->job, DETAIL_NODES, &op->nodes, &op->err);
        if (!op->status)
                op->status = mfl_job_scores_read(op->admin->store, op->job, &op->scores, &op->err);
        if (!op->status)
                op->status = mfl_store_contract_get(op->admin->store, op->job, &op->contract, &op->err);
}

/* The rounds as protobuf: two arrays, freed by the caller. */
static bool round_infos(const struct mfl_store_rounds *rounds, bool kept_only, Mfl__RoundInfo **ret_infos,
        Mfl__RoundInfo ***ret_pointers, size_t *ret_n)
{
        Mfl__RoundInfo *infos = mfl_calloc(rounds->n, sizeof *infos);
        Mfl__RoundInfo **pointers = mfl_calloc(rounds->n, sizeof *pointers);
        size_t n = 0;
        *ret_infos = infos;
        *ret_pointers = pointers;
        *ret_n = 0;
        if (!infos || !pointers)
                return false;
        for (uint32_t i = 0; i < rounds->n; i++) {
                if (kept_only && !rounds->v[i].kept)
                        continue;
                mfl_view_round(&rounds->v[i], &infos[n]);
                pointers[n] = &infos[n];
                n++;
        }
        *ret_n = n;
        return true;
}

/* The rows as protobuf: two arrays, freed by the caller. */
static bool node_costs(
        const struct mfl_store_nodes *nodes, Mfl__NodeCost **ret_costs, Mfl__NodeCost ***ret_pointers)
{
        Mfl__NodeCost *costs = mfl_calloc(nodes->n, sizeof *costs);
        Mfl__NodeCost **pointers = mfl_calloc(nodes->n, sizeof *pointers);
        *ret_costs = costs;
        *ret_pointers = pointers;
        if (!costs || !pointers)
                return false;
        for (uint32_t i = 0; i < nodes->n; i++) {
                const struct mfl_store_node *node = &nodes->v[i];
                mfl__node_cost__init(&costs[i]);
                costs[i].round = node->round;
                costs[i].node = (char *)node->node;
                costs[i].daemons = node->daemons;
                costs[i].bytes_up = node->up;
                costs[i].bytes_down = node->down;
                costs[i].bytes_up_alone = node->up_alone;
                costs[i].bytes_down_alone = node->down_alone;
                pointers[i] = &costs[i];
        }
        return true;
}

static void answer_show(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->admin->jobs, op->job);
        MFL_CLEANUP_FREE Mfl__RoundInfo *infos = NULL;
        MFL_CLEANUP_FREE Mfl__RoundInfo **pointers = NULL;
        MFL_CLEANUP_FREE Mfl__NodeCost *costs = NULL;
        MFL_CLEANUP_FREE Mfl__NodeCost **cost_pointers = NULL;
        MFL_CLEANUP_FREE struct mfl_teams *teams = NULL;
        Mfl__JobDetail detail = MFL__JOB_DETAIL__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        struct mfl_job_info_buffers buffers;
        Mfl__JobInfo info;
        if (!session || !job)
                return;
        if (!round_infos(&op->rounds, false, &infos, &pointers, &detail.n_rounds) ||
                !node_costs(&op->nodes, &costs, &cost_pointers) || !(teams = mfl_teams_new(job))) {
                mfl_operator_no_memory(session, 0, "rounds");
                return;
        }
        mfl_view_job(job, &info, &buffers);
        detail.info = &info;
        detail.text = job->text;
        detail.rounds = pointers;
        detail.n_nodes = op->nodes.n;
        detail.nodes = cost_pointers;
        detail.teams = mfl_teams_wire(teams);
        detail.scores = op->scores;
        if (op->contract)
                detail.contract = op->contract;
        while (detail.n_nodes && mfl__job_detail__get_packed_size(&detail) > MFL_LIST_BYTES_MAX) {
                size_t n_dropped = detail.n_nodes / 8 + 1; /* the oldest rounds are left out */
                detail.nodes += n_dropped;
                detail.n_nodes -= n_dropped;
        }
        for (size_t i = 0;
                i < detail.n_rounds && mfl__job_detail__get_packed_size(&detail) > MFL_LIST_BYTES_MAX;)
                for (size_t end = MFL_MIN(detail.n_rounds, i + detail.n_rounds / 8 + 1); i < end; i++)
                        infos[i].choice = "";
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_JOB_DETAIL;
        envelope.job_detail = &detail;
        mfl_session_send(session, &envelope);
}

static void answer_models(struct mfl_request *op, struct mfl_session *session)
{
        MFL_CLEANUP_FREE Mfl__RoundInfo *infos = NULL;
        MFL_CLEANUP_FREE Mfl__RoundInfo **pointers = NULL;
        Mfl__ModelList list = MFL__MODEL_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (!session)
                return;
        if (!round_infos(&op->rounds, true, &infos, &pointers, &list.n_models)) {
                mfl_operator_no_memory(session, 0, "rounds");
                return;
        }
        list.models = pointers;
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_MODEL_LIST;
        envelope.model_list = &list;
        mfl_session_send(session, &envelope);
}

static void run_partition(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_job_partition_read(op->admin->store, op->job, &op->partition, &op->err);
}

static void answer_partition(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->admin->jobs, op->job);
        Mfl__JobPartition body = MFL__JOB_PARTITION__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (!session || !job)
                return;
        body.job = op->job;
        body.local = mfl_job_partition_is_local(job);
        body.partition = op->partition;
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_JOB_PARTITION;
        envelope.job_partition = &body;
        mfl_session_send(session, &envelope);
}

static void ask_rounds(struct mfl_session *session, uint64_t request, const char *id,
        void (*run)(struct mfl_work *), void (*answer)(struct mfl_request *, struct mfl_session *))
{
        if (!mfl_operator_job(session, request, id))
                return;
        struct mfl_request *op = mfl_request_new(session, request, id, run, answer);
        if (op)
                mfl_request_start(op, session);
}

void mfl_operator_show(struct mfl_session *session, uint64_t request, const char *id)
{
        ask_rounds(session, request, id, run_detail, answer_show);
}

void mfl_operator_models(struct mfl_session *session, uint64_t request, const char *id)
{
        ask_rounds(session, request, id, run_rounds, answer_models);
}

void mfl_operator_partition(struct mfl_session *session, uint64_t request, const char *id)
{
        ask_rounds(session, request, id, run_partition, answer_partition);
}
