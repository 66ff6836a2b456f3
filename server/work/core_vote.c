/* SPDX-License-Identifier: Apache-2.0 */
/* Which cut of a population is valid. */
#include "server/work/core_vote.h"

#include "common/partition/partition.h"
#include "server/work/core_claims.h"
#include "server/work/core_presence.h"
#include "server/work/core_task.h"

#include <inttypes.h>

/* ---- telling ---- */

static struct core_cut *new_cut(struct mfl_core *core, struct core_job *job, const struct core_daemon *daemon,
        const struct mfl_population *told)
{
        struct core_cut **at = &job->cuts;
        uint32_t n = 0;
        for (; *at; at = &(*at)->next)
                n++;
        if (n == CORE_CUTS_MAX)
                return NULL;
        struct core_cut *cut = mfl_calloc(1, sizeof *cut);
        if (!cut) {
                core->error = -ENOMEM;
                return NULL;
        }
        cut->samples = told->samples;
        cut->samples_min = told->samples_min;
        cut->samples_max = told->samples_max;
        mfl_strcpy(cut->first, sizeof cut->first, daemon->info.name);
        *at = cut;
        return cut;
}

static bool same_sizes(const struct core_cut *cut, const struct mfl_population *told)
{
        return cut->samples == told->samples && cut->samples_min == told->samples_min &&
               cut->samples_max == told->samples_max;
}

/* The index of the first count that differs from the cut's; told->n: none does. */
static uint32_t find_difference(const struct core_cut *cut, const struct mfl_population *told)
{
        uint32_t i = 0;
        while (i < told->n && told->first + i < cut->n_known && cut->count[told->first + i] == told->count[i])
                i++;
        return told->first + i < cut->n_known ? i : told->n;
}

static bool agrees(const struct core_cut *cut, const struct mfl_population *told)
{
        return same_sizes(cut, told) && find_difference(cut, told) == told->n;
}

static struct core_cut *find_cut(const struct core_job *job, const struct mfl_population *told)
{
        for (struct core_cut *cut = job->cuts; cut; cut = cut->next)
                if (agrees(cut, told))
                        return cut;
        return NULL;
}

static bool make_counts(struct mfl_core *core, const struct core_job *job, struct core_cut *cut)
{
        if (!cut->count)
                cut->count = mfl_malloc(job->spec->data.clients * sizeof *cut->count);
        if (!cut->count)
                core->error = -ENOMEM;
        return cut->count != NULL;
}

/* A cut that agrees with all that the daemon has told before, and with these counts, which contradict its
 * cut. */
static struct core_cut *fork_cut(struct mfl_core *core, struct core_job *job,
        const struct core_daemon *daemon, const struct core_relation *relation,
        const struct mfl_population *told)
{
        for (struct core_cut *cut = job->cuts; cut; cut = cut->next)
                if (cut != relation->cut && agrees(cut, told) && cut->n_known >= relation->n_told &&
                        !memcmp(cut->count, relation->cut->count, relation->n_told * sizeof *cut->count))
                        return cut;
        struct core_cut *cut = new_cut(core, job, daemon, told);
        if (!cut || !make_counts(core, job, cut))
                return NULL;
        memcpy(cut->count, relation->cut->count, relation->n_told * sizeof *cut->count);
        cut->n_known = relation->n_told;
        return cut;
}

static void take_counts(struct core_cut *cut, const struct mfl_population *told)
{
        uint32_t end = told->first + told->n;
        if (end <= cut->n_known)
                return;
        memcpy(cut->count + told->first, told->count, told->n * sizeof *told->count);
        cut->n_known = end;
}

/* Why no cut can have these numbers, as text; NULL: one can. */
static const char *check_told(const struct core_job *job, const struct mfl_population *told, char *text)
{
        uint64_t n = job->spec->data.clients;
        if (told->samples > job->data.train_samples) {
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "its clients have %" PRIu64 " samples together, but the data set has %u",
                        told->samples, job->data.train_samples);
                return text;
        }
        if (n * told->samples_min > told->samples || n * told->samples_max < told->samples) {
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "%" PRIu64 " clients of %u to %u samples can't have %" PRIu64 " together", n,
                        told->samples_min, told->samples_max, told->samples);
                return text;
        }
        for (uint32_t i = 0; i < told->n; i++) {
                uint32_t know;
                uint64_t client = (uint64_t)told->first + i;
                if (!mfl_partition_client(job->spec, job->data.train_samples, client, &know) ||
                        know == told->count[i])
                        continue;
                mfl_snprintf(text, MFL_REASON_BYTES, "client %" PRIu64 " has %u samples, but it reports %u",
                        client, know, told->count[i]);
                return text;
        }
        return NULL;
}

/* Checks a cut whose counts are all known. */
static const char *check_whole(const struct core_job *job, const struct core_cut *cut, char *text)
{
        uint64_t sum = 0;
        uint32_t min = UINT32_MAX, max = 0;
        for (uint32_t i = 0; i < job->spec->data.clients; i++) {
                sum += cut->count[i];
                min = MFL_MIN(min, cut->count[i]);
                max = MFL_MAX(max, cut->count[i]);
        }
        if (sum == cut->samples && min == cut->samples_min && max == cut->samples_max)
                return NULL;
        mfl_snprintf(text, MFL_REASON_BYTES,
                "its clients have %" PRIu64 " samples together, %u to %u each, but it reports %" PRIu64
                ", %u to %u",
                sum, min, max, cut->samples, cut->samples_min, cut->samples_max);
        return text;
}

/* The daemon's cut, including these counts, which follow those that it has told. NULL: there are too many
 * cuts. */
static struct core_cut *choose_cut(struct mfl_core *core, struct core_job *job,
        const struct core_daemon *daemon, const struct core_relation *relation,
        const struct mfl_population *told)
{
        struct core_cut *cut = relation->cut;
        if (!cut) {
                cut = find_cut(job, told);
                return cut ? cut : new_cut(core, job, daemon, told);
        }
        return agrees(cut, told) ? cut : fork_cut(core, job, daemon, relation, told);
}

static void take_told(struct mfl_core *core, struct core_job *job, struct core_daemon *daemon,
        struct core_relation *relation, const struct mfl_population *told)
{
        char text[MFL_REASON_BYTES];
        struct core_cut *cut = choose_cut(core, job, daemon, relation, told);
        if (core->error)
                return;
        if (!cut) {
                relation->barred = true;
                mfl_core_trace(core, job,
                        "daemon %s gets no work from this job: daemons report too many different samples for "
                        "its clients",
                        daemon->info.name);
                return;
        }
        relation->cut = cut;
        if (told->n && make_counts(core, job, cut)) {
                take_counts(cut, told);
                relation->n_told = told->first + told->n;
        }
        bool whole = cut->count && relation->n_told == job->spec->data.clients;
        if (whole && check_whole(job, cut, text))
                mfl_core_daemon_lied(core, daemon, job, "%s", text);
        if (whole || !told->n) {
                job->cuts_dirty = true;
                mfl_core_dirty(core, job);
        }
}

static bool is_told_before(const struct core_relation *relation, const struct mfl_population *told)
{
        return relation->cut && (uint64_t)told->first + told->n <= relation->n_told;
}

void mfl_core_vote_told(struct mfl_core *core, struct core_daemon *daemon, struct core_job *job,
        const struct mfl_population *told)
{
        char text[MFL_REASON_BYTES];
        const struct mfl_data_info *data = mfl_core_daemon_data(daemon, job);
        bool local = job->spec->data.partition == MFL_PARTITION_LOCAL;
        if (!data || !job->data.name[0] || job->phase == PHASE_OVER ||
                told->clients != (local ? 1 : job->spec->data.clients))
                return;
        if (local && told->samples != data->train_samples) {
                mfl_core_daemon_lied(core, daemon, job,
                        "its data set has %u samples, but it reports %" PRIu64, data->train_samples,
                        told->samples);
                return;
        }
        const char *lie = local ? NULL : check_told(job, told, text);
        if (lie) {
                mfl_core_daemon_lied(core, daemon, job, "%s", lie);
                return;
        }
        struct core_relation *relation = mfl_core_relation(core, daemon, job);
        if (local || !relation || job->spec->data.partition == MFL_PARTITION_IID)
                return;
        struct mfl_population kept = *told;
        if (told->clients > MFL_CUT_CLIENTS_MAX)
                kept.n = 0;
        bool again = is_told_before(relation, &kept);
        if (relation->cut && (!same_sizes(relation->cut, told) || (again && !agrees(relation->cut, &kept)))) {
                mfl_core_daemon_lied(core, daemon, job, "it reported other samples for the clients before");
                return;
        }
        /* Otherwise the counts are repeated on another connection, or a piece before them is missing, and
         * will come. */
        if (!again && (!kept.n || told->first == relation->n_told))
                take_told(core, job, daemon, relation, &kept);
}

/* ---- deciding ---- */

static void count_votes(struct mfl_core *core, struct core_job *job)
{
        for (struct core_cut *cut = job->cuts; cut; cut = cut->next)
                cut->n_votes = cut->n_held = cut->n_workers = cut->n_tellers = cut->n_known = 0;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                const struct core_relation *relation = mfl_core_relation_find(daemon, job);
                struct core_cut *cut = relation ? relation->cut : NULL;
                if (!cut)
                        continue;
                cut->n_tellers++;
                cut->n_known = MFL_MAX(cut->n_known, relation->n_told);
                if (!mfl_core_cut_has_told(job, relation))
                        continue;
                cut->n_votes += daemon->conn != 0;
                cut->n_held += daemon->conn || mfl_core_daemon_takes_work(daemon);
                cut->n_workers += daemon->job == job || mfl_core_daemon_takes_work(daemon);
        }
        for (struct core_cut **at = &job->cuts; *at;) {
                struct core_cut *cut = *at;
                if (cut->n_tellers) {
                        at = &cut->next;
                        continue;
                }
                *at = cut->next;
                job->cut = job->cut == cut ? NULL : job->cut;
                mfl_core_cut_free(cut);
        }
}

static void tell_difference(const struct core_job *job, const struct core_cut *cut, char *text)
{
        uint32_t i = 0;
        const struct core_cut *holds = job->cut;
        if (!cut->count || !holds->count || cut->n_known < job->spec->data.clients ||
                holds->n_known < job->spec->data.clients) {
                mfl_snprintf(text, MFL_REASON_BYTES,
                        "it reports clients of %u to %u samples, but %s reports %u to %u", cut->samples_min,
                        cut->samples_max, holds->first, holds->samples_min, holds->samples_max);
                return;
        }
        while (i + 1 < job->spec->data.clients && cut->count[i] == holds->count[i])
                i++;
        mfl_snprintf(text, MFL_REASON_BYTES, "it reports %u samples for client %u, but %s reports %u",
                cut->count[i], i, holds->first, holds->count[i]);
}

static void take_back(struct mfl_core *core, const struct core_job *job, struct core_daemon *daemon)
{
        for (struct core_task *task = daemon->tasks, *next; task; task = next) {
                next = task->daemon_next;
                if (task->job != job)
                        continue;
                mfl_core_task_cancel(core, task, "others report other samples for its clients");
                mfl_core_task_take(core, task, ITEM_OPEN);
        }
        mfl_core_daemon_idle(core, daemon);
}

/* A daemon that a majority contradicts lies. In a tie nobody knows who does. */
static void judge(struct mfl_core *core, struct core_job *job)
{
        char text[MFL_REASON_BYTES];
        for (uint32_t i = core->n_daemons; i-- > 0;) {
                struct core_daemon *daemon = core->daemons[i];
                struct core_relation *relation = mfl_core_relation_find(daemon, job);
                const struct core_cut *cut = relation ? relation->cut : NULL;
                if (!cut || cut == job->cut || !mfl_core_cut_has_told(job, relation))
                        continue;
                tell_difference(job, cut, text);
                if (job->cut->n_votes > 1 && cut->n_tellers < job->cut->n_votes) {
                        relation->cut = NULL;
                        mfl_core_daemon_lied(core, daemon, job, "%s", text);
                        return; /* the votes are counted again */
                }
                if (!relation->cut_told) {
                        mfl_snprintf(daemon->note, sizeof daemon->note, "%s: %.200s", job->id, text);
                        mfl_core_trace(core, job, "daemon %s can't take part until others agree with it: %s",
                                daemon->info.name, text);
                } else if (!mfl_core_cut_differs(relation, job)) {
                        continue;
                }
                relation->cut_told = true;
                take_back(core, job, daemon); /* also later: while its cut was the only one, it got work */
        }
        job->cuts_dirty = false;
}

static bool beats(const struct core_cut *cut, const struct core_cut *other)
{
        return cut->n_votes != other->n_votes ? cut->n_votes > other->n_votes
                                              : cut->n_workers && !other->n_workers;
}

/* Nobody needs to work for this round any more. */
static bool round_is_done(const struct core_job *job)
{
        return job->phase == PHASE_CLOSING || (job->phase == PHASE_TRAIN && !job->count[ITEM_OPEN]);
}

/* The cut that holds gives way to a majority alone: in a tie, work would go to and fro with each connection that breaks. But if none of its
 * daemons takes work, the job would wait for as long as they are drained, and the tie goes to daemons that work. */
static struct core_cut *elect(const struct core_job *job)
{
        struct core_cut *best = NULL;
        for (struct core_cut *cut = job->cuts; cut; cut = cut->next)
                if (cut->n_votes && (!best || beats(cut, best)))
                        best = cut;
        const struct core_cut *holds = job->cut;
        if (!holds || !best)
                return holds ? job->cut : best;
        bool works = holds->n_workers || !best->n_workers || round_is_done(job);
        return works && holds->n_held >= best->n_votes ? job->cut : best; /* its daemons may come back */
}

void mfl_core_votes_settle(struct mfl_core *core, struct core_job *job)
{
        while (job->cuts_dirty && !core->error) {
                const struct core_cut *before = job->cut;
                bool was_exact = job->cut_exact;
                count_votes(core, job);
                struct core_cut *best = elect(job);
                job->cut = best;
                job->cut_exact = mfl_core_cut_is_exact(job);
                if (best)
                        judge(core, job);
                else
                        job->cuts_dirty = false;
                if (best && (best != before || job->cut_exact != was_exact))
                        mfl_core_claims_check(core, job);
                core->sched_dirty = true;
                mfl_core_dirty(core, job); /* updates may have waited for this */
        }
}
