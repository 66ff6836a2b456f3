/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions from daemons to the store, and from there to whoever looks. */
#include "server/partition.h"

#include "common/log.h"

struct word {
        struct mfl_work work;
        struct mfl_server *server;
        uint32_t conn;
        char job[MFL_JOB_ID_BYTES], daemon[MFL_NAME_BYTES];
        uint8_t *body;
        size_t bytes;
        int status;
        struct mfl_error err;
};

bool mfl_job_partition_is_local(const struct mfl_server_job *job)
{
        return job->spec->data.partition == MFL_PARTITION_LOCAL;
}

void mfl_job_partition_free(Mfl__Partition *partition)
{
        mfl__partition__free_unpacked(partition, NULL);
}

/* ---- taking ---- */

static void run_word(struct mfl_work *work)
{
        struct word *word = MFL_CONTAINER_OF(work, struct word, work);
        word->status = mfl_store_partition_put(
                word->server->store, word->job, word->daemon, word->body, word->bytes, &word->err);
}

static void free_word(struct word *word)
{
        free(word->body);
        free(word);
}

static void done_word(struct mfl_work *work)
{
        struct word *word = MFL_CONTAINER_OF(work, struct word, work);
        struct mfl_server_job *job = mfl_server_job_find(word->server, word->job);
        mfl_session_worked(word->server, word->conn);
        if (job && word->status) /* the next daemon's word, or this one's after a reconnect */
                job->has_partition = false;
        if (word->status < 0 && !work->cancelled)
                mfl_server_fatal(word->server, word->status, &word->err);
        else if (word->status > 0 && job)
                mfl_log(MFL_LOG_WARN, "%s: its partition was not kept: %s", word->job, word->err.text);
        free_word(word);
}

static void keep(struct mfl_session *session, struct mfl_server_job *job, const char *daemon,
        const Mfl__Partition *partition)
{
        struct mfl_server *server = job->server;
        struct mfl_error err;
        size_t n = mfl__partition__get_packed_size(partition);
        struct word *word = mfl_calloc(1, sizeof *word);
        if (word)
                word->body = mfl_malloc(n);
        if (!word || !word->body) {
                free(word);
                mfl_server_fatal(server, mfl_fail_memory(&err, n, "a partition"), &err);
                return;
        }
        word->server = server;
        word->conn = session->conn;
        word->bytes = mfl__partition__pack(partition, word->body);
        word->work = (struct mfl_work){.run = run_word, .done = done_word};
        mfl_strcpy(word->job, sizeof word->job, job->id);
        mfl_strcpy(word->daemon, sizeof word->daemon, daemon);
        if (!mfl_session_submit(session, &word->work))
                free_word(word);
        else if (!*daemon)
                job->has_partition = true;
}

/* Of a site only how many samples it has is kept, whatever it has sent besides. */
static void keep_site(struct mfl_session *session, struct mfl_server_job *job, const Mfl__Partition *told)
{
        Mfl__Partition site = MFL__PARTITION__INIT;
        Mfl__ClientSamples client = MFL__CLIENT_SAMPLES__INIT, *clients = &client;
        client.client = told->shown[0]->client;
        client.samples = told->shown[0]->samples;
        site.job = told->job;
        site.clients = 1;
        site.samples = client.samples;
        site.samples_min = site.samples_max = client.samples;
        site.n_shown = 1;
        site.shown = &clients;
        keep(session, job, session->daemon, &site);
}

void mfl_job_partition_take(struct mfl_session *session, const Mfl__Partition *partition)
{
        struct mfl_server_job *job = mfl_server_job_find(session->server, partition->job);
        if (!job || job->state > MFL_JOB_RUNNING || job->has_partition)
                return;
        bool local = mfl_job_partition_is_local(job);
        uint32_t expected = local ? 1 : job->spec->data.clients;
        if (partition->clients != expected) {
                mfl_log(MFL_LOG_WARN, "%s: daemon %s tells of %u clients, the job has %u: not kept", job->id,
                        session->daemon, partition->clients, expected);
                return;
        }
        for (size_t i = 0; i < partition->n_shown; i++)
                if (*partition->shown[i]->daemon) /* for sites, and named by the server alone */
                        return;
        if (local)
                keep_site(session, job, partition);
        else
                keep(session, job, "", partition);
}

/* ---- reading ---- */

static bool add_site(Mfl__Partition *all, const char *daemon, const Mfl__Partition *site)
{
        const Mfl__ClientSamples *told = site->shown[0];
        all->samples += told->samples;
        all->samples_min = all->clients ? MFL_MIN(all->samples_min, told->samples) : told->samples;
        all->samples_max = MFL_MAX(all->samples_max, told->samples);
        all->clients++;
        if (all->n_shown == MFL_PARTITION_SHOWN_MAX)
                return true;
        Mfl__ClientSamples *client = mfl_malloc(sizeof *client);
        if (!client)
                return false;
        mfl__client_samples__init(client);
        all->shown[all->n_shown++] = client;
        client->client = told->client;
        client->samples = told->samples;
        client->daemon = mfl_strdup(daemon);
        return client->daemon != NULL;
}

/* An own object, so that whoever frees it need not know how it was made. */
static Mfl__Partition *new_partition(const char *id)
{
        Mfl__Partition *all = mfl_malloc(sizeof *all);
        if (!all)
                return NULL;
        mfl__partition__init(all);
        all->job = mfl_strdup(id);
        all->shown = mfl_calloc(MFL_PARTITION_SHOWN_MAX, sizeof *all->shown);
        if (all->job && all->shown)
                return all;
        mfl_job_partition_free(all);
        return NULL;
}

static int join_sites(const char *id, const struct mfl_store_partitions *rows, Mfl__Partition **ret_partition,
        struct mfl_error *err)
{
        Mfl__Partition *all = new_partition(id);
        bool ok = all != NULL;
        for (uint32_t i = 0; ok && i < rows->n; i++) {
                Mfl__Partition *site = mfl__partition__unpack(NULL, rows->v[i].bytes, rows->v[i].body);
                ok = site && site->n_shown == 1 && add_site(all, rows->v[i].daemon, site);
                mfl_job_partition_free(site);
        }
        if (ok) {
                *ret_partition = all;
                return 0;
        }
        mfl_job_partition_free(all);
        return mfl_fail_memory(err, 0, "a partition");
}

int mfl_job_partition_read(
        struct mfl_store *store, const char *id, Mfl__Partition **ret_partition, struct mfl_error *err)
{
        struct mfl_store_partitions rows;
        int r = mfl_store_partition_list(store, id, &rows, err);
        if (r)
                return r;
        if (!rows.n) {
                *ret_partition = NULL;
        } else if (*rows.v[0].daemon) {
                r = join_sites(id, &rows, ret_partition, err);
        } else {
                *ret_partition = mfl__partition__unpack(NULL, rows.v[0].bytes, rows.v[0].body);
                if (!*ret_partition)
                        r = mfl_fail_memory(err, rows.v[0].bytes, "a partition");
        }
        mfl_store_partitions_deinit(&rows);
        return r;
}
