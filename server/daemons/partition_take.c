/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon says about a job's partition: for the core, which holds daemons to it, and for the store. */
#include "common/base/log.h"
#include "server/daemons/contract_take.h"
#include "server/daemons/partition_take.h"

struct word {
        struct mfl_work work;
        struct mfl_jobs *jobs;
        struct mfl_sessions *sessions;
        uint32_t conn;
        char job[MFL_JOB_ID_BYTES], daemon[MFL_NAME_BYTES];
        uint8_t *body;
        size_t bytes;
        int status;
        struct mfl_error err;
};

static void run_word(struct mfl_work *work)
{
        struct word *word = MFL_CONTAINER_OF(work, struct word, work);
        word->status = mfl_store_partition_put(
                word->jobs->store, word->job, word->daemon, word->body, word->bytes, &word->err);
}

static void free_word(struct word *word)
{
        free(word->body);
        free(word);
}

static void done_word(struct mfl_work *work)
{
        struct word *word = MFL_CONTAINER_OF(work, struct word, work);
        struct mfl_server_job *job = mfl_server_job_find(word->jobs, word->job);
        mfl_session_worked(word->sessions, word->conn);
        if (job && word->status) /* the next daemon's word, or this one's after a reconnect */
                job->has_partition = false;
        if (word->status < 0 && !work->cancelled)
                mfl_loop_fatal(word->jobs->loop, word->status, &word->err);
        else if (word->status > 0 && job)
                mfl_log(MFL_LOG_WARN, "%s: its partition was not stored: %s", word->job, word->err.text);
        free_word(word);
}

static void keep(struct mfl_session *session, struct mfl_server_job *job, const char *daemon,
        const Mfl__Partition *partition)
{
        size_t n = mfl__partition__get_packed_size(partition);
        struct word *word = mfl_calloc(1, sizeof *word);
        if (word)
                word->body = mfl_malloc(n);
        if (!word || !word->body) {
                free(word);
                mfl_loop_no_memory(job->jobs->loop, n, "a partition");
                return;
        }
        word->jobs = job->jobs;
        word->sessions = session->all;
        word->conn = session->conn;
        word->bytes = mfl__partition__pack(partition, word->body);
        mfl_assert(word->bytes == n);
        word->work = (struct mfl_work){.run = run_word, .done = done_word};
        mfl_strcpy(word->job, sizeof word->job, job->id);
        mfl_strcpy(word->daemon, sizeof word->daemon, daemon);
        if (!mfl_session_submit(session, &word->work))
                free_word(word);
        else if (!*daemon)
                job->has_partition = true;
}

/* Only the number of samples of a site is stored, whatever else it sent. */
static void keep_site(struct mfl_session *session, struct mfl_server_job *job, const char *daemon,
        const Mfl__Partition *told)
{
        Mfl__Partition site = MFL__PARTITION__INIT;
        Mfl__ClientSamples client = MFL__CLIENT_SAMPLES__INIT, *clients = &client;
        mfl_assert(told->n_shown > 0); /* the wire's rules */
        client.client = told->shown[0]->client;
        client.samples = told->shown[0]->samples;
        site.job = told->job;
        site.clients = 1;
        site.samples = client.samples;
        site.samples_min = site.samples_max = client.samples;
        site.n_shown = 1;
        site.shown = &clients;
        keep(session, job, daemon, &site);
}

/* Counts come beside the clients that are shown; an earlier release sends only the latter. */
static void tell_core(
        struct mfl_session *session, struct mfl_server_job *job, const Mfl__Partition *partition)
{
        uint32_t shown[MFL_PARTITION_SHOWN_MAX];
        struct mfl_core_event event = {.kind = MFL_EV_POPULATION, .conn = session->conn};
        struct mfl_population *told = &event.population;
        *told = (struct mfl_population){.clients = partition->clients,
                .samples = partition->samples,
                .samples_min = partition->samples_min,
                .samples_max = partition->samples_max,
                .first = partition->first,
                .n = (uint32_t)partition->n_counts,
                .count = partition->counts};
        for (size_t i = 0; i < partition->n_shown; i++)
                shown[i] = partition->shown[i]->samples;
        if (!told->n && partition->n_shown == partition->clients) {
                told->count = shown;
                told->n = partition->clients;
        }
        mfl_strcpy(event.job, sizeof event.job, job->id);
        mfl_loop_feed(session->all->loop, &event);
}

static bool is_wanted(
        const struct mfl_session *session, const struct mfl_server_job *job, const Mfl__Partition *partition)
{
        if (job->has_partition || partition->first ||
                !mfl_core_cut_holds(session->all->loop->core, session->conn, job->id))
                return false;
        for (size_t i = 0; i < partition->n_shown; i++)
                if (*partition->shown[i]->daemon) /* only sites have names, and the server adds them */
                        return false;
        return true;
}

/* What a site reads its data with and does to its updates belongs to what is known of a run. */
static void note_plugins(struct mfl_server_job *job, const char *daemon, const char *plugins)
{
        MFL_CLEANUP_FREE char *line = mfl_asprintf("daemon %s uses plug-ins: %s", daemon, plugins);
        uint64_t seq;
        if (line)
                mfl_store_log(job->jobs->store, job->id, line, &seq);
}

void mfl_job_partition_take(struct mfl_jobs *jobs, struct mfl_session *session, const char *daemon,
        const char *site, const Mfl__Partition *partition)
{
        struct mfl_server_job *job = mfl_server_job_find(jobs, partition->job);
        struct mfl_core_event heard = {.kind = MFL_EV_HEARD, .conn = session->conn};
        if (!job || mfl_server_job_has_ended(job)) {
                mfl_loop_feed(jobs->loop, &heard);
                return;
        }
        bool local = mfl_job_partition_is_local(job);
        uint32_t expected = local ? 1 : job->spec->data.clients;
        if (partition->clients != expected) {
                mfl_log(MFL_LOG_WARN, "%s: daemon %s reports %u clients, but the job has %u: ignored",
                        job->id, daemon, partition->clients, expected);
                mfl_loop_feed(jobs->loop, &heard);
                return;
        }
        if (*partition->contract && !partition->first)
                mfl_job_contract_take(session, job, *site ? site : daemon, partition->contract);
        if (*partition->plugins && !partition->first)
                note_plugins(job, daemon, partition->plugins);
        tell_core(session, job, partition);
        if (!is_wanted(session, job, partition))
                return;
        if (local) {
                keep_site(session, job, *site ? site : daemon, partition);
                return;
        }
        Mfl__Partition shown = *partition;
        shown.n_counts = 0;
        shown.contract = (char *)protobuf_c_empty_string;
        shown.plugins = (char *)protobuf_c_empty_string;
        mfl_strcpy(job->partition_from, sizeof job->partition_from, daemon);
        keep(session, job, "", &shown);
}

void mfl_job_partition_distrust(struct mfl_server_job *job, const char *daemon)
{
        if (!strcmp(job->partition_from, daemon))
                job->has_partition = false;
}
