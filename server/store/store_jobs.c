/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of jobs. */
#include "server/store/store_internal.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"
#include "server/store/store_sums.h"

#define JOB_COLUMNS                                                                                          \
        "id, name, state, reason, initial_sha256, created_ms, finished_ms, has_initial, data_name, "         \
        "data_rank, "                                                                                        \
        "data_dims, data_classes, data_train, data_test, data_fingerprint, n_params, "                       \
        "(SELECT coalesce(max(round), 0) FROM rounds WHERE job = jobs.id AND superseded = 0), "              \
        "owner, data_meaning, data_from, stop_after, n_frozen, arithmetic, archived_ms"
#define JOB_COLUMNS_N 24

static void read_job(struct mfl_db_row *row, struct mfl_store_job *job)
{
        *job = (struct mfl_store_job){
                .state = (enum mfl_job_state)mfl_db_int(row, 2),
                .created_ms = (uint64_t)mfl_db_int(row, 5),
                .finished_ms = (uint64_t)mfl_db_int(row, 6),
                .has_initial = mfl_db_int(row, 7) != 0,
                .n_params = (uint64_t)mfl_db_int(row, 15),
                .committed = (uint32_t)mfl_db_int(row, 16),
                .n_frozen = (uint64_t)mfl_db_int(row, 21),
                .arithmetic = (uint32_t)mfl_db_int(row, 22),
                .archived_ms = (uint64_t)mfl_db_int(row, 23),
        };
        mfl_strcpy(job->id, sizeof job->id, mfl_db_text(row, 0));
        mfl_strcpy(job->name, sizeof job->name, mfl_db_text(row, 1));
        mfl_strcpy(job->reason, sizeof job->reason, mfl_db_text(row, 3));
        job->initial_known = mfl_db_bytes(row, 4) > 0;
        mfl_db_blob(row, 4, job->initial_sha256, sizeof job->initial_sha256);
        mfl_strcpy(job->owner, sizeof job->owner, mfl_db_text(row, 17));
        struct mfl_data_info *data = &job->data;
        mfl_strcpy(data->name, sizeof data->name, mfl_db_text(row, 8));
        data->shape.rank = (int)mfl_db_int(row, 9);
        mfl_db_blob(row, 10, data->shape.dim, sizeof data->shape.dim);
        data->classes = (uint32_t)mfl_db_int(row, 11);
        data->train_samples = (uint32_t)mfl_db_int(row, 12);
        data->test_samples = (uint32_t)mfl_db_int(row, 13);
        data->fingerprint = (uint64_t)mfl_db_int(row, 14);
        data->meaning = (uint64_t)mfl_db_int(row, 18);
        mfl_strcpy(job->data_from, sizeof job->data_from, mfl_db_text(row, 19));
        job->stop_after = (uint32_t)mfl_db_int(row, 20);
}

void mfl_store_job_deinit(struct mfl_store_job *job)
{
        free(job->text);
        *job = (struct mfl_store_job){{0}};
}

void mfl_store_jobs_deinit(struct mfl_store_jobs *jobs)
{
        for (uint32_t i = 0; i < jobs->n; i++)
                mfl_store_job_deinit(&jobs->v[i]);
        free(jobs->v);
        *jobs = (struct mfl_store_jobs){0};
}

static int on_job(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_job *job = user;
        read_job(row, job);
        job->text = mfl_strdup(mfl_db_text(row, JOB_COLUMNS_N));
        return job->text ? 0 : mfl_fail_memory(err, strlen(mfl_db_text(row, JOB_COLUMNS_N)), "a job file");
}

static int get_job(
        struct mfl_store *store, const char *id, struct mfl_store_job *ret_job, struct mfl_error *err)
{
        struct mfl_store_job job = {{0}};
        int r = mfl_db_query(store->db, on_job, &job, err,
                "SELECT " JOB_COLUMNS ", text FROM jobs WHERE id = ?1", "t", id);
        if (!r && !job.text)
                r = mfl_fail(err, MFL_NOT_FOUND, "there is no job %s", id);
        if (r)
                free(job.text);
        else
                *ret_job = job;
        return r;
}

int mfl_store_job_get(
        struct mfl_store *store, const char *id, struct mfl_store_job *ret_job, struct mfl_error *err)
{
        mfl_store_lock(store);
        int r = mfl_store_sums_check_job(store->db, id, err);
        if (!r)
                r = get_job(store, id, ret_job, err);
        mfl_store_unlock(store);
        return r;
}

struct jobs_reader {
        struct mfl_store_jobs jobs;
        uint32_t room;
};

static int on_listed(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct jobs_reader *reader = user;
        if (reader->jobs.n == reader->room) {
                uint32_t room = reader->room ? 2 * reader->room : 16;
                struct mfl_store_job *grown = mfl_realloc(reader->jobs.v, room * sizeof *grown);
                if (!grown)
                        return mfl_fail_memory(err, room * sizeof *grown, "the list of jobs");
                reader->jobs.v = grown;
                reader->room = room;
        }
        read_job(row, &reader->jobs.v[reader->jobs.n++]);
        return 0;
}

int mfl_store_job_list(
        struct mfl_store *store, bool unfinished, struct mfl_store_jobs *ret_jobs, struct mfl_error *err)
{
        struct jobs_reader reader = {{0}};
        mfl_store_lock(store);
        int r = mfl_db_query(store->db, on_listed, &reader, err,
                "SELECT " JOB_COLUMNS " FROM jobs WHERE ?1 = 0 OR state IN (?2, ?3) ORDER BY n", "iii",
                (int64_t)unfinished, (int64_t)MFL_JOB_WAITING, (int64_t)MFL_JOB_RUNNING);
        mfl_store_unlock(store);
        if (r)
                mfl_store_jobs_deinit(&reader.jobs);
        else
                *ret_jobs = reader.jobs;
        return r;
}

/* ---- tokens ---- */

/* A request for a new job. */
struct request {
        const char *token, *owner;
        const char *asker; /* whose the token is; NULL: the owner's */
        const char *name, *text;
        const char *clone_of;          /* NULL: submitted */
        const uint32_t *without;       /* of a clone that forgets a client: which one; else NULL */
        uint32_t replayed;             /* of a clone: rounds that it makes again; 0: it is none of those */
        const uint8_t *initial_sha256; /* NULL: none, or not known */
        bool has_initial;
        uint8_t asked[MFL_SHA256_BYTES]; /* identifies the request */
};

/* Without certificates there is one operator. */
static const char *operator_of(const struct request *q)
{
        const char *who = q->asker ? q->asker : q->owner;
        return strcmp(who, "local") && strcmp(who, "anybody") ? who : "";
}

static int digest_request(struct request *q, struct mfl_error *err)
{
        const char *kind = q->replayed   ? "replay"
                           : q->without  ? "forget"
                           : q->clone_of ? "clone"
                                         : "submit",
                   *what = q->clone_of ? q->clone_of : q->text;
        struct mfl_sha256 sha = {0};
        int r = mfl_sha256_init(&sha, err);
        if (!r)
                r = mfl_sha256_update(&sha, kind, strlen(kind) + 1, err);
        if (!r)
                r = mfl_sha256_update(&sha, what, strlen(what) + 1, err);
        if (!r && q->without)
                r = mfl_sha256_update(&sha, q->without, sizeof *q->without, err);
        if (!r && !q->clone_of && q->initial_sha256)
                r = mfl_sha256_update(&sha, q->initial_sha256, MFL_SHA256_BYTES, err);
        if (!r)
                r = mfl_sha256_final(&sha, q->asked, err);
        mfl_sha256_deinit(&sha);
        return r;
}

struct token_row {
        const struct request *request;
        char job[MFL_JOB_ID_BYTES];
        bool same;
};

/* Of an unknown text (NULL), a token of before has no digest to compare with. */
static int on_token(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct token_row *found = user;
        uint8_t asked[MFL_SHA256_BYTES];
        mfl_strcpy(found->job, sizeof found->job, mfl_db_text(row, 0));
        mfl_db_blob(row, 1, asked, sizeof asked);
        found->same = mfl_db_bytes(row, 1)
                              ? !memcmp(asked, found->request->asked, sizeof asked)
                              : found->request->text && !strcmp(mfl_db_text(row, 2), found->request->text);
        return 0;
}

/* MFL_EXISTS with the id if the operator used the token for the same request; MFL_STORE_TOKEN_TAKEN if for another
 * one. */
static int check_token(struct mfl_store *store, const struct request *q, char ret_id[MFL_JOB_ID_BYTES],
        struct mfl_error *err)
{
        struct token_row found = {.request = q};
        if (strlen(q->token) >= MFL_TOKEN_BYTES)
                return mfl_fail(err, MFL_INVALID, "token: %zu bytes; the limit is %d", strlen(q->token),
                        MFL_TOKEN_BYTES - 1);
        if (!*q->token)
                return 0;
        int r = mfl_db_query(store->db, on_token, &found, err,
                "SELECT id, asked, text FROM tokens JOIN jobs ON jobs.id = tokens.job WHERE operator = ?1 "
                "AND tokens.token = ?2",
                "tt", operator_of(q), q->token);
        if (r || !found.job[0])
                return r;
        memcpy(ret_id, found.job, sizeof found.job);
        if (found.same)
                return mfl_fail(err, MFL_EXISTS, "the token was used before, for job %s", found.job);
        return mfl_fail(err, MFL_STORE_TOKEN_TAKEN,
                "the token '%s' was already used for job %s, which differs from this one: nothing was "
                "submitted. Use another token for another job",
                q->token, found.job);
}

static int on_used(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(bool *)user = true;
        return 0;
}

int mfl_store_token_used(
        struct mfl_store *store, const char *token, const char *owner, bool *ret_used, struct mfl_error *err)
{
        const struct request q = {.token = token, .owner = owner};
        *ret_used = false;
        if (!*token)
                return 0;
        mfl_store_lock(store);
        int r = mfl_db_query(store->db, on_used, ret_used, err,
                "SELECT 1 FROM tokens JOIN jobs ON jobs.id = tokens.job WHERE operator = ?1 AND tokens.token "
                "= ?2",
                "tt", operator_of(&q), token);
        mfl_store_unlock(store);
        return r;
}

/* ---- new jobs ---- */

/* The row gets its number first, then the id made from it. */
static int insert_job(
        struct mfl_store *store, const struct request *q, char id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        int r = mfl_db_run(store->db, err,
                "INSERT INTO jobs (name, state, reason, created_ms, finished_ms, has_initial, text, owner, "
                "initial_sha256, arithmetic) VALUES (?1, ?2, '', ?3, 0, ?4, ?5, ?6, nullif(?7, zeroblob(0)), "
                "?8)",
                "tiiittbi", q->name, (int64_t)MFL_JOB_WAITING, (int64_t)mfl_store_unix_ms(),
                (int64_t)q->has_initial, q->text, q->owner,
                (const void *)(q->initial_sha256 ? q->initial_sha256 : (const uint8_t *)""),
                q->initial_sha256 ? (size_t)MFL_SHA256_BYTES : (size_t)0, (int64_t)MFL_ARITHMETIC_VERSION);
        if (r)
                return r;
        int64_t n = mfl_db_last_id(store->db);
        snprintf(id, MFL_JOB_ID_BYTES, "j-%06lld", (long long)n);
        r = mfl_db_run(store->db, err, "UPDATE jobs SET id = ?1 WHERE n = ?2", "ti", id, n);
        if (!r && *q->token)
                r = mfl_db_run(store->db, err,
                        "INSERT INTO tokens (operator, token, job, asked) VALUES (?1, ?2, ?3, ?4)", "tttb",
                        operator_of(q), q->token, id, (const void *)q->asked, sizeof q->asked);
        return r ? r : mfl_store_make_job_dir(store, id, err);
}

static int give_initial(
        struct mfl_store *store, const char *id, const uint8_t sha256[32], struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        struct stat st;
        if (stat(mfl_store_path(store, id, "initial.f32", path), &st))
                return mfl_store_code(mfl_fail_errno(err, "stat %s", path));
        int r = mfl_store_give(store, path, sha256, (uint64_t)st.st_size, err);
        /* So other servers know how long the file is before the job is prepared. */
        return r ? r
                 : mfl_db_run(store->db, err, "UPDATE jobs SET n_params = ?1 WHERE id = ?2", "it",
                           (int64_t)st.st_size / (int64_t)sizeof(float), id);
}

int mfl_store_job_add(struct mfl_store *store, const char *name, const char *text, const char *token,
        const char *owner, struct mfl_store_upload *upload, char ret_id[MFL_JOB_ID_BYTES],
        struct mfl_error *err)
{
        char id[MFL_JOB_ID_BYTES];
        uint8_t sha256[MFL_SHA256_BYTES];
        struct request q = {
                .token = token, .owner = owner, .name = name, .text = text, .has_initial = upload != NULL};
        int r = upload ? mfl_store_upload_digest(upload, sha256, err) : 0;
        if (upload)
                q.initial_sha256 = sha256;
        if (!r)
                r = digest_request(&q, err);
        if (!r)
                r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = check_token(store, &q, ret_id, err);
        if (!r)
                r = insert_job(store, &q, id, err);
        if (!r && upload)
                r = mfl_store_upload_place(upload, id, err);
        if (!r && upload)
                r = give_initial(store, id, sha256, err);
        r = mfl_store_end(store, r, err);
        if (r)
                return r;
        memcpy(ret_id, id, sizeof id);
        mfl_store_upload_discard(upload);
        return 0;
}

static int link_initial(struct mfl_store *store, const char *from, const char *to, struct mfl_error *err)
{
        char old_path[MFL_STORE_PATH_BYTES], new_path[MFL_STORE_PATH_BYTES];
        mfl_store_path(store, from, "initial.f32", old_path);
        mfl_store_path(store, to, "initial.f32", new_path);
        unlink(new_path);
        if (link(old_path, new_path))
                return mfl_store_code(mfl_fail_errno(err, "link %s to %s", old_path, new_path));
        return mfl_store_code(mfl_fs_sync_dir(mfl_store_path(store, to, "", new_path), err));
}

int mfl_store_job_forgotten(struct mfl_store *store, const char *from, uint32_t client, const char *token,
        const char *asker, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        struct request q = {.token = token, .asker = asker, .clone_of = from, .without = &client};
        int r = digest_request(&q, err);
        if (r)
                return r;
        mfl_store_lock(store);
        r = check_token(store, &q, ret_id, err);
        mfl_store_unlock(store);
        return r ? r : mfl_fail(err, MFL_NOT_FOUND, "there is no job '%s'", from);
}

/* What a new job takes over from an old one. */
struct clone {
        const char *from, *text;               /* text NULL: the same */
        const uint32_t *without;               /* the client that the text leaves out; NULL: none */
        uint32_t replayed;                     /* rounds that it makes again; 0: none of those */
        const struct mfl_store_round *rewound; /* it goes on after that one; NULL: from the start */
        const char *asker;                     /* whose the token is; NULL: the owner's */
};

static int clone_job(struct mfl_store *store, const struct clone *clone, const char *token, const char *owner,
        char ret_id[MFL_JOB_ID_BYTES], char id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        struct mfl_store_job job = {{0}};
        const char *from = clone->from;
        int r = mfl_store_sums_check_job(store->db, from, err);
        if (!r)
                r = get_job(store, from, &job, err);
        struct request q = {.token = token,
                .owner = owner,
                .asker = clone->asker,
                .name = job.name,
                .text = clone->text ? clone->text : job.text,
                .clone_of = from,
                .without = clone->without,
                .replayed = clone->replayed,
                .has_initial = job.has_initial,
                .initial_sha256 = job.initial_known ? job.initial_sha256 : NULL};
        if (!r)
                r = digest_request(&q, err);
        if (!r)
                r = check_token(store, &q, ret_id, err);
        if (!r && clone->without) /* the old job goes next: what it can't do must leave no new one */
                r = mfl_store_check_removable(store, from, err);
        if (!r)
                r = insert_job(store, &q, id, err);
        if (!r && job.has_initial)
                r = link_initial(store, from, id, err);
        if (!r && job.has_initial && job.initial_known)
                r = give_initial(store, id, job.initial_sha256, err);
        if (!r && clone->replayed)
                r = mfl_store_replay(store, from, id, clone->replayed, err);
        if (!r && clone->rewound)
                r = mfl_store_rewind(store, from, id, clone->rewound, err);
        mfl_store_job_deinit(&job);
        return r;
}

static int add_clone(struct mfl_store *store, const struct clone *clone, const char *token, const char *owner,
        char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        char id[MFL_JOB_ID_BYTES];
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_store_end(store, clone_job(store, clone, token, owner, ret_id, id, err), err);
        if (!r)
                memcpy(ret_id, id, sizeof id);
        return r;
}

int mfl_store_job_clone(struct mfl_store *store, const char *from, const char *token, const char *owner,
        char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        return add_clone(store, &(struct clone){.from = from}, token, owner, ret_id, err);
}

int mfl_store_job_replay(struct mfl_store *store, const char *from, uint32_t rounds, const char *token,
        const char *owner, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        mfl_assert(rounds);
        return add_clone(store, &(struct clone){.from = from, .replayed = rounds}, token, owner, ret_id, err);
}

int mfl_store_job_forget(struct mfl_store *store, const char *from, const struct mfl_store_forget *forget,
        const char *token, const char *owner, char ret_id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        const struct clone clone = {from, forget->text, &forget->client, 0, forget->at, forget->asker};
        return add_clone(store, &clone, token, owner, ret_id, err);
}

/* Removes what a round that was never committed has left of a job that is over now. */
static int drop_uncommitted(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        struct mfl_store_survey survey = {0};
        mfl_store_lock(store);
        int r = mfl_store_survey_job(store->db, mfl_store_schema_newest(), store->dir, id, &survey, err);
        mfl_store_unlock(store);
        for (uint32_t i = 0; i < survey.n && !r; i++)
                if (survey.v[i].kind == MFL_STRAY_REDONE || survey.v[i].kind == MFL_STRAY_DROPPED)
                        mfl_store_unlink(store, id, survey.v[i].file);
        mfl_store_survey_deinit(&survey);
        mfl_store_states_drop(store, id);
        return r;
}
int mfl_store_job_set_state(struct mfl_store *store, const char *id, enum mfl_job_state state,
        const char *reason, struct mfl_error *err)
{
        bool finished = state == MFL_JOB_DONE || state == MFL_JOB_FAILED || state == MFL_JOB_STOPPED;
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "UPDATE jobs SET state = ?1, reason = ?2, finished_ms = CASE WHEN ?3 = 0 THEN 0 "
                        "WHEN finished_ms = 0 THEN ?4 ELSE finished_ms END WHERE id = ?5",
                        "itiit", (int64_t)state, reason, (int64_t)finished, (int64_t)mfl_store_unix_ms(), id);
        r = mfl_store_end(store, r, err);
        return r || !finished ? r : drop_uncommitted(store, id, err);
}

int mfl_store_job_set_text(struct mfl_store *store, const char *id, const char *text, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_run(store->db, err, "UPDATE jobs SET text = ?1 WHERE id = ?2", "tt", text, id);
        return mfl_store_end(store, r, err);
}

int mfl_store_job_archive(
        struct mfl_store *store, const char *id, uint64_t archived_ms, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_run(store->db, err, "UPDATE jobs SET archived_ms = ?1 WHERE id = ?2", "it",
                        (int64_t)archived_ms, id);
        return mfl_store_end(store, r, err);
}

int mfl_store_job_stop_after(struct mfl_store *store, const char *id, uint32_t round, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_run(store->db, err, "UPDATE jobs SET stop_after = ?1 WHERE id = ?2", "it",
                        (int64_t)round, id);
        return mfl_store_end(store, r, err);
}

int mfl_store_job_prepared(struct mfl_store *store, const char *id, const struct mfl_data_info *data,
        const char *data_from, uint64_t n_params, uint64_t n_frozen, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "UPDATE jobs SET data_name = ?1, data_rank = ?2, data_dims = ?3, data_classes = ?4, "
                        "data_train = ?5, data_test = ?6, data_fingerprint = ?7, n_params = ?8, "
                        "data_meaning = ?10, data_from = ?11, n_frozen = ?12 WHERE id = ?9",
                        "tibiiiiititi", data->name, (int64_t)data->shape.rank, (const void *)data->shape.dim,
                        sizeof data->shape.dim, (int64_t)data->classes, (int64_t)data->train_samples,
                        (int64_t)data->test_samples, (int64_t)data->fingerprint, (int64_t)n_params, id,
                        (int64_t)data->meaning, data_from, (int64_t)n_frozen);
        return mfl_store_end(store, r, err);
}

static int delete_rows(struct mfl_store *store, const char *id, bool unfinished, struct mfl_error *err)
{
        struct mfl_store_job job;
        int r = get_job(store, id, &job, err);
        if (r)
                return r;
        enum mfl_job_state state = job.state;
        mfl_store_job_deinit(&job);
        if (!unfinished && (state == MFL_JOB_WAITING || state == MFL_JOB_RUNNING))
                return mfl_fail(err, MFL_BUSY, "job %s is not finished: stop it first", id);
        r = mfl_store_check_removable(store, id, err);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM round_nodes WHERE job = ?1", "t", id);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM client_states WHERE job = ?1", "t", id);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM rounds WHERE job = ?1", "t", id);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM lines WHERE job = ?1", "t", id);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM jobs WHERE id = ?1", "t", id);
        /* A mark until the files are gone: otherwise they would look like files of a lost row. */
        return r ? r
                 : mfl_db_run(store->db, err, "INSERT OR REPLACE INTO deleted (job) VALUES (?1)", "t", id);
}

static int delete_job(struct mfl_store *store, const char *id, bool unfinished, struct mfl_error *err)
{
        int r = mfl_store_flush(
                store, err); /* so that no waiting log line of the job is written afterwards */
        if (!r)
                r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_store_end(store, delete_rows(store, id, unfinished, err), err);
        if (!r)
                mfl_store_remove_job_dir(store, id);
        return r;
}

int mfl_store_job_delete(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        return delete_job(store, id, false, err);
}

int mfl_store_job_delete_unread(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        return delete_job(store, id, true, err);
}

int mfl_store_initial_check(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        struct mfl_store_job job;
        char path[MFL_STORE_PATH_BYTES];
        uint8_t sha256[MFL_SHA256_BYTES];
        uint64_t bytes;
        int r = mfl_store_job_get(store, id, &job, err);
        if (r)
                return r;
        if (job.has_initial && job.initial_known) {
                r = mfl_store_code(mfl_store_sha256_file(
                        mfl_store_path(store, id, "initial.f32", path), sha256, &bytes, err));
                if (!r && memcmp(sha256, job.initial_sha256, sizeof sha256) != 0)
                        r = mfl_fail(err, MFL_INVALID,
                                "the initial params on the disk differ from those submitted: submit the job "
                                "again");
        }
        mfl_store_job_deinit(&job);
        return r;
}
