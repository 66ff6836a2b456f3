/* SPDX-License-Identifier: Apache-2.0 */
/* Files in jobs/ that no row names. See store_strays.h.
 *   - survey: each directory and file is compared with the rows;
 *   - aside: mkdir, rename, fsync of both directories.
 * Fails when the disk is broken, or when too many folders have been moved aside already.
 */
#include "server/store/store_strays.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "server/store/store_evidence.h"
#include "server/store/store_internal.h"

struct survey {
        struct mfl_db *db;
        int64_t schema, given; /* the highest job number ever used */
        const char *state_dir;
        struct mfl_store_survey result;
};
/* What the rows say about a job. */
struct job {
        bool there, deleted, goes_on, has_initial;
        int64_t committed;
};

static int on_int(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

static int on_job(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct job *job = user;
        job->there = true;
        job->goes_on = mfl_db_int(row, 0) == MFL_JOB_WAITING || mfl_db_int(row, 0) == MFL_JOB_RUNNING;
        job->has_initial = mfl_db_int(row, 1) != 0;
        job->committed = mfl_db_int(row, 2);
        return 0;
}

static int read_job(struct survey *s, const char *id, struct job *ret_job, struct mfl_error *err)
{
        struct job job = {0};
        int64_t deleted = 0;
        int r = !s->schema ? 0
                           : mfl_db_query(s->db, on_job, &job, err,
                                     "SELECT state, has_initial, (SELECT coalesce(max(round), 0) FROM rounds "
                                     "WHERE job = jobs.id AND superseded = 0) FROM jobs WHERE id = ?1",
                                     "t", id);
        if (!r && s->schema >= (int64_t)MFL_STORE_SCHEMA_SUMS)
                r = mfl_db_query(
                        s->db, on_int, &deleted, err, "SELECT 1 FROM deleted WHERE job = ?1", "t", id);
        job.deleted = deleted;
        if (!r)
                *ret_job = job;
        return r;
}

static int add(struct survey *s, enum mfl_store_stray_kind kind, const char *job, const char *file,
        struct mfl_error *err)
{
        struct mfl_store_survey *result = &s->result;
        if (result->n == result->room) {
                uint32_t room = result->room ? 2 * result->room : 16;
                struct mfl_store_stray *grown = mfl_realloc(result->v, room * sizeof *grown);
                if (!grown)
                        return mfl_fail_memory(err, room * sizeof *grown, "the list of files");
                result->v = grown;
                result->room = room;
        }
        struct mfl_store_stray *stray = &result->v[result->n++];
        *stray = (struct mfl_store_stray){.kind = kind};
        mfl_strcpy(stray->job, sizeof stray->job, job);
        mfl_strcpy(stray->file, sizeof stray->file, file);
        result->n_orphans += kind == MFL_STRAY_ORPHAN || kind == MFL_STRAY_PROOF;
        return 0;
}

/* ---- names ---- */

static bool ends_with(const char *name, const char *end)
{
        size_t n = strlen(name), n_end = strlen(end);
        return n >= n_end && !strcmp(name + n - n_end, end);
}

/* round-000012.safetensors; 0: another name. */
static int64_t round_of(const char *file)
{
        char same[64];
        unsigned round;
        if (sscanf(file, "round-%u", &round) != 1)
                return 0;
        snprintf(same, sizeof same, "round-%06u.safetensors", round);
        return strcmp(same, file) ? 0 : round;
}

static bool is_checkpoint(const char *file)
{
        return round_of(file) || !strcmp(file, "frozen.safetensors");
}

/* ---- files of a job that has a row ---- */

struct round_row {
        bool there, named;
        const char *file;
};

static int on_round(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct round_row *found = user;
        found->there = true;
        found->named = mfl_db_int(row, 0) && !strcmp(mfl_db_text(row, 1), found->file);
        return 0;
}

static int judge_round(struct survey *s, const struct job *job, const char *id, const char *file,
        int64_t round, enum mfl_store_stray_kind *ret_kind, bool *ret_named, struct mfl_error *err)
{
        struct round_row row = {.file = file};
        int r = mfl_db_query(s->db, on_round, &row, err,
                "SELECT kept, file FROM rounds WHERE job = ?1 AND round = ?2", "ti", id, round);
        *ret_named = row.named;
        if (row.there)
                *ret_kind = MFL_STRAY_DROPPED;
        else if (round != job->committed + 1)
                *ret_kind = MFL_STRAY_PROOF;
        else
                *ret_kind = job->goes_on ? MFL_STRAY_REDONE : MFL_STRAY_ORPHAN;
        return r;
}

static int judge_file(
        struct survey *s, const struct job *job, const char *id, const char *file, struct mfl_error *err)
{
        enum mfl_store_stray_kind kind = MFL_STRAY_FOREIGN;
        const int64_t round = round_of(file);
        int64_t naming = 0;
        bool named = false;
        int r = 0;
        if (round) {
                r = judge_round(s, job, id, file, round, &kind, &named, err);
        } else if (!strcmp(file, "frozen.safetensors")) {
                if (s->schema >= (int64_t)MFL_STORE_SCHEMA_FROZEN)
                        r = mfl_db_query(s->db, on_int, &naming, err,
                                "SELECT count(*) FROM rounds WHERE job = ?1 AND frozen_file = ?2 AND kept",
                                "tt", id, file);
                named = naming;
                kind = job->goes_on ? MFL_STRAY_REDONE : MFL_STRAY_ORPHAN;
        } else if (!strcmp(file, "initial.f32")) {
                named = job->has_initial;
                kind = MFL_STRAY_ORPHAN;
        } else if (!strcmp(file, MFL_STORE_STATES_FILE)) {
                if (s->schema >= (int64_t)MFL_STORE_SCHEMA_STATES)
                        r = mfl_db_query(s->db, on_int, &naming, err,
                                "SELECT count(*) FROM client_states WHERE job = ?1", "t", id);
                named = naming;
                kind = job->goes_on ? MFL_STRAY_REDONE : MFL_STRAY_DROPPED;
        } else if (!strcmp(file, MFL_STORE_PLUGIN_FILE) || !strcmp(file, MFL_STORE_METRIC_FILE) ||
                   !strcmp(file, MFL_STORE_CHANGES_FILE)) {
                named = true;
        } else if (ends_with(file, ".tmp")) {
                kind = MFL_STRAY_DROPPED;
        }
        return r || named ? r : add(s, kind, id, file, err);
}

/* ---- directories ---- */

struct contents {
        bool checkpoints, initial, foreign;
};

static void look_into(const char *path, struct contents *ret_contents)
{
        struct contents c = {0};
        DIR *dir = opendir(path);
        struct dirent *entry;
        while (dir && (entry = readdir(dir))) {
                const char *name = entry->d_name;
                if (!strcmp(name, ".") || !strcmp(name, ".."))
                        continue;
                if (is_checkpoint(name))
                        c.checkpoints = true;
                else if (!strcmp(name, MFL_STORE_STATES_FILE) || !strcmp(name, MFL_STORE_PLUGIN_FILE) ||
                         !strcmp(name, MFL_STORE_METRIC_FILE) || !strcmp(name, MFL_STORE_CHANGES_FILE))
                        continue;
                else if (!strcmp(name, "initial.f32"))
                        c.initial = true;
                else if (!ends_with(name, ".tmp"))
                        c.foreign = true;
        }
        if (dir)
                closedir(dir);
        *ret_contents = c;
}

/* A number that was never used belongs to a submission that was not answered. */
static int judge_dir(
        struct survey *s, const struct job *job, const char *id, const char *path, struct mfl_error *err)
{
        struct contents c;
        long long number;
        look_into(path, &c);
        enum mfl_store_stray_kind kind = MFL_STRAY_DROPPED;
        if (job->deleted)
                kind = MFL_STRAY_DROPPED;
        else if (c.checkpoints)
                kind = MFL_STRAY_ORPHAN;
        else if (c.foreign)
                kind = MFL_STRAY_FOREIGN;
        else if (c.initial && sscanf(id, "j-%lld", &number) == 1 && number <= s->given)
                kind = MFL_STRAY_ORPHAN;
        return add(s, kind, id, "", err);
}

static int survey_files(
        struct survey *s, const struct job *job, const char *id, const char *path, struct mfl_error *err)
{
        DIR *dir = opendir(path);
        struct dirent *entry;
        int r = 0;
        while (dir && !r && (entry = readdir(dir)))
                if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
                        r = judge_file(s, job, id, entry->d_name, err);
        if (dir)
                closedir(dir);
        return r;
}

static int survey_dir(struct survey *s, const char *id, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        struct job job;
        struct stat st;
        snprintf(path, sizeof path, "%.3600s/jobs/%.255s", s->state_dir, id);
        if (lstat(path, &st) || !S_ISDIR(st.st_mode))
                return 0;
        int r = read_job(s, id, &job, err);
        if (r)
                return r;
        return job.there ? survey_files(s, &job, id, path, err) : judge_dir(s, &job, id, path, err);
}

static int survey_all(struct survey *s, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        int64_t jobs = 0;
        int r = 0;
        if (s->schema) {
                r = mfl_db_query(s->db, on_int, &jobs, err, "SELECT count(*) FROM jobs", "");
                if (!r)
                        r = mfl_db_query(s->db, on_int, &s->given, err,
                                "SELECT seq FROM sqlite_sequence WHERE name = 'jobs'", "");
        }
        s->result.n_jobs = (uint64_t)jobs;
        snprintf(path, sizeof path, "%.3600s/jobs", s->state_dir);
        DIR *dir = r ? NULL : opendir(path);
        if (!r && !dir && errno != ENOENT)
                r = mfl_store_code(mfl_fail_errno(err, "open directory %s", path));
        struct dirent *entry;
        while (dir && !r && (entry = readdir(dir)))
                if (entry->d_name[0] != '.')
                        r = survey_dir(s, entry->d_name, err);
        if (dir)
                closedir(dir);
        return r;
}

int mfl_store_survey_job(struct mfl_db *db, int64_t schema, const char *state_dir, const char *id,
        struct mfl_store_survey *ret_survey, struct mfl_error *err)
{
        struct survey s = {.db = db, .schema = schema, .state_dir = state_dir};
        char path[MFL_STORE_PATH_BYTES];
        struct job job;
        int r = read_job(&s, id, &job, err);
        snprintf(path, sizeof path, "%.3600s/jobs/%.255s", state_dir, id);
        if (!r && job.there) {
                job.goes_on = true;
                r = survey_files(&s, &job, id, path, err);
        }
        if (r)
                mfl_store_survey_deinit(&s.result);
        else
                *ret_survey = s.result;
        return r;
}

int mfl_store_survey_read(struct mfl_db *db, int64_t schema, const char *state_dir,
        struct mfl_store_survey *ret_survey, struct mfl_error *err)
{
        struct survey s = {.db = db, .schema = schema, .state_dir = state_dir};
        int r = survey_all(&s, err);
        if (r)
                mfl_store_survey_deinit(&s.result);
        else
                *ret_survey = s.result;
        return r;
}

void mfl_store_survey_deinit(struct mfl_store_survey *survey)
{
        free(survey->v);
        *survey = (struct mfl_store_survey){0};
}

/* ---- words ---- */

const char *mfl_store_stray_text(const struct mfl_store_stray *stray, char *buf, size_t bytes)
{
        static const char *const words[] = {
                [MFL_STRAY_DROPPED] = "is left over; the next start removes it",
                [MFL_STRAY_REDONE] = "belongs to the current round",
                [MFL_STRAY_FOREIGN] = "is not a file of the server; it stays",
                [MFL_STRAY_ORPHAN] = "is intact, and no row of the database names it",
                [MFL_STRAY_PROOF] = "is intact, but the database lacks that round",
        };
        mfl_snprintf(buf, bytes, "jobs/%s%s%s %s", stray->job, *stray->file ? "/" : "", stray->file,
                words[stray->kind]);
        return buf;
}

bool mfl_store_survey_refuses(const struct mfl_store_survey *survey, char *text, size_t text_bytes)
{
        const struct mfl_store_stray *first = NULL;
        for (uint32_t i = 0; i < survey->n; i++) {
                const struct mfl_store_stray *stray = &survey->v[i];
                if (stray->kind == MFL_STRAY_PROOF ||
                        (stray->kind == MFL_STRAY_ORPHAN && !survey->n_jobs && !first))
                        first = stray;
                if (stray->kind == MFL_STRAY_PROOF)
                        break;
        }
        if (!first)
                return false;
        char one[640];
        mfl_store_stray_text(first, one, sizeof one);
        if (survey->n_jobs)
                mfl_snprintf(text, text_bytes, "rounds are lost: %s (%u such)", one, survey->n_orphans);
        else
                mfl_snprintf(text, text_bytes,
                        "the database has no jobs, but there are %u checkpoints or folders of checkpoints: "
                        "%s",
                        survey->n_orphans, one);
        return true;
}

/* ---- aside ---- */

uint32_t mfl_store_orphans_count(const char *state_dir)
{
        char path[MFL_STORE_PATH_BYTES];
        uint32_t n = 0;
        snprintf(path, sizeof path, "%.3600s/orphans", state_dir);
        DIR *dir = opendir(path);
        struct dirent *entry;
        while (dir && (entry = readdir(dir)))
                n += entry->d_name[0] != '.';
        if (dir)
                closedir(dir);
        return n;
}

static void make_stamp(char *buf, size_t bytes)
{
        time_t now = (time_t)(mfl_store_unix_ms() / 1000);
        struct tm tm;
        gmtime_r(&now, &tm);
        strftime(buf, bytes, "%Y%m%dT%H%M%SZ", &tm);
}

static int move(
        const char *from, const char *to, const char *from_dir, const char *to_dir, struct mfl_error *err)
{
        if (rename(from, to))
                return mfl_fail_errno(err, "rename %s to %s", from, to);
        int r = mfl_fs_sync_dir(to_dir, err);
        return r ? r : mfl_fs_sync_dir(from_dir, err);
}

int mfl_store_stray_aside(
        const char *state_dir, const struct mfl_store_stray *stray, char ret_to[600], struct mfl_error *err)
{
        char from[MFL_STORE_PATH_BYTES], from_dir[MFL_STORE_PATH_BYTES], to[MFL_STORE_PATH_BYTES],
                to_dir[MFL_STORE_PATH_BYTES], stamp[32];
        const bool file = *stray->file;
        make_stamp(stamp, sizeof stamp);
        snprintf(ret_to, 600, "orphans/%s-%s%s%s", stamp, stray->job, file ? "/" : "", stray->file);
        snprintf(to, sizeof to, "%.3400s/%.599s", state_dir, ret_to);
        snprintf(to_dir, sizeof to_dir, "%.3400s/orphans%s%.31s%s%.255s", state_dir, file ? "/" : "",
                file ? stamp : "", file ? "-" : "", file ? stray->job : "");
        snprintf(from_dir, sizeof from_dir, "%.3400s/jobs%s%.255s", state_dir, file ? "/" : "",
                file ? stray->job : "");
        snprintf(from, sizeof from, "%.3700s/%.255s", from_dir, file ? stray->file : stray->job);
        struct stat st;
        if ((!file || stat(to_dir, &st)) && mfl_store_orphans_count(state_dir) >= MFL_STORE_ORPHANS_MAX)
                return mfl_fail(err, MFL_STORE_ORPHANS_FULL,
                        "%s/orphans already has %d folders: look at them, and remove those that nobody needs",
                        state_dir, MFL_STORE_ORPHANS_MAX);
        int r = mfl_fs_mkdirs(to_dir, 0700, err);
        if (!r)
                r = move(from, to, from_dir, to_dir, err);
        return mfl_store_code(r);
}
