/* SPDX-License-Identifier: Apache-2.0 */
/* The state directory: lock, schema, boot counter, transactions.
 *   - open: directory, lock, database, verification (store_vet.c), schema, boot + 1, what no row names;
 *   - each writing call: begin, its statements, the waiting log lines, the count, commit, the count's file;
 *   - close: waiting log lines, database, lock.
 * Fails when another server has the directory, when it was written by a newer version, when the disk is full
 * or broken, when the database is corrupt or lacks what was committed.
 */
#include "server/store/store_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "server/store/store_sums.h"

/* How a database gets from each version to the next; version 0 is an empty file. A step that was released is
 * never changed: a new one is added. */
static const char *const schema_steps[] = {
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
        "INSERT INTO meta VALUES ('boot', 0);"
        "CREATE TABLE jobs (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, name TEXT NOT NULL,"
        " state INTEGER NOT NULL, reason TEXT NOT NULL, token TEXT UNIQUE, created_ms INTEGER NOT NULL,"
        " finished_ms INTEGER NOT NULL, has_initial INTEGER NOT NULL, text TEXT NOT NULL,"
        " data_name TEXT NOT NULL DEFAULT '', data_rank INTEGER NOT NULL DEFAULT 0, data_dims BLOB,"
        " data_classes INTEGER NOT NULL DEFAULT 0, data_train INTEGER NOT NULL DEFAULT 0,"
        " data_test INTEGER NOT NULL DEFAULT 0, data_fingerprint INTEGER NOT NULL DEFAULT 0,"
        " n_params INTEGER NOT NULL DEFAULT 0);"
        "CREATE TABLE rounds (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE, round INTEGER NOT "
        "NULL,"
        " attempt INTEGER, evaluated INTEGER, loss REAL, accuracy REAL, train_loss REAL, train_accuracy REAL,"
        " eval_samples INTEGER, samples INTEGER, weight INTEGER, clients INTEGER, clients_rejected INTEGER,"
        " daemons INTEGER, started_ms INTEGER, ended_ms INTEGER, digest BLOB NOT NULL, bytes_up INTEGER,"
        " bytes_down INTEGER, committed_ms INTEGER NOT NULL, file TEXT NOT NULL, file_sha256 BLOB NOT NULL,"
        " file_bytes INTEGER NOT NULL, kept INTEGER NOT NULL, superseded INTEGER NOT NULL DEFAULT 0,"
        " PRIMARY KEY (job, round)) WITHOUT ROWID;"
        "CREATE TABLE drained (daemon TEXT PRIMARY KEY) WITHOUT ROWID;"
        "CREATE TABLE lines (seq INTEGER PRIMARY KEY, job TEXT NOT NULL, time_ms INTEGER NOT NULL,"
        " text TEXT NOT NULL);"
        "CREATE INDEX lines_of_job ON lines (job, seq);"
        "PRAGMA user_version = 1;",

        /* Rounds of before knew no groups: what they cost is what they would have cost without. */
        "ALTER TABLE rounds ADD COLUMN bytes_up_alone INTEGER NOT NULL DEFAULT 0;"
        "ALTER TABLE rounds ADD COLUMN bytes_down_alone INTEGER NOT NULL DEFAULT 0;"
        "UPDATE rounds SET bytes_up_alone = coalesce(bytes_up, 0), bytes_down_alone = coalesce(bytes_down, "
        "0);"
        "CREATE TABLE round_nodes (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,"
        " round INTEGER NOT NULL, node TEXT NOT NULL, daemons INTEGER NOT NULL, up INTEGER NOT NULL,"
        " down INTEGER NOT NULL, up_alone INTEGER NOT NULL, down_alone INTEGER NOT NULL,"
        " PRIMARY KEY (job, round, node)) WITHOUT ROWID;"
        "PRAGMA user_version = 2;",

        /* Jobs of before have no owner: they are the admins'. */
        "ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT '';"
        "CREATE TABLE audit (n INTEGER PRIMARY KEY AUTOINCREMENT, time_ms INTEGER NOT NULL, who TEXT NOT "
        "NULL,"
        " address TEXT NOT NULL, action TEXT NOT NULL, object TEXT NOT NULL, result TEXT NOT NULL,"
        " text TEXT NOT NULL);"
        "PRAGMA user_version = 3;",

        "CREATE TABLE daemon_rules (pattern TEXT NOT NULL, verdict INTEGER NOT NULL, who TEXT NOT NULL,"
        " time_ms INTEGER NOT NULL, until_ms INTEGER NOT NULL, reason TEXT NOT NULL,"
        " PRIMARY KEY (pattern, verdict)) WITHOUT ROWID;"
        "CREATE TABLE job_partitions (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,"
        " daemon TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, daemon));"
        "PRAGMA user_version = 4;",

        /* What the data of jobs of before mean is not known: the next daemon that tells decides it. */
        "ALTER TABLE jobs ADD COLUMN data_meaning INTEGER NOT NULL DEFAULT 0;"
        "ALTER TABLE jobs ADD COLUMN data_from TEXT NOT NULL DEFAULT '';"
        "ALTER TABLE jobs ADD COLUMN stop_after INTEGER NOT NULL DEFAULT 0;"
        /* Theirs are in the order of layers, and digests of that: nothing of them is frozen. */
        "ALTER TABLE jobs ADD COLUMN n_frozen INTEGER NOT NULL DEFAULT 0;"
        "PRAGMA user_version = 5;",

        /* Checkpoints of before hold all params. */
        "ALTER TABLE rounds ADD COLUMN frozen_file TEXT NOT NULL DEFAULT '';"
        "ALTER TABLE rounds ADD COLUMN frozen_sha256 BLOB;"
        "ALTER TABLE rounds ADD COLUMN frozen_bytes INTEGER NOT NULL DEFAULT 0;"
        "PRAGMA user_version = 6;",

        /* Checksums (store_sums.h), which the program computes; the number of transactions; tokens that
         * belong to who used them; and jobs whose files may go. */
        "ALTER TABLE meta ADD COLUMN sum INTEGER;"
        "ALTER TABLE jobs ADD COLUMN sum INTEGER;"
        "ALTER TABLE rounds ADD COLUMN sum INTEGER;"
        "ALTER TABLE drained ADD COLUMN sum INTEGER;"
        "ALTER TABLE lines ADD COLUMN sum INTEGER;"
        "ALTER TABLE round_nodes ADD COLUMN sum INTEGER;"
        "ALTER TABLE audit ADD COLUMN sum INTEGER;"
        "ALTER TABLE daemon_rules ADD COLUMN sum INTEGER;"
        "ALTER TABLE job_partitions ADD COLUMN sum INTEGER;"
        "INSERT INTO meta (key, value) VALUES ('commits', 0);"
        "ALTER TABLE jobs ADD COLUMN initial_sha256 BLOB;"
        "CREATE TABLE deleted (job TEXT PRIMARY KEY, sum INTEGER) WITHOUT ROWID;"
        /* operator '': whoever needs no certificate. asked NULL: of before; the job's text is compared. */
        "CREATE TABLE tokens (operator TEXT NOT NULL, token TEXT NOT NULL,"
        " job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE, asked BLOB, sum INTEGER,"
        " PRIMARY KEY (operator, token)) WITHOUT ROWID;"
        "INSERT INTO tokens (operator, token, job) SELECT CASE WHEN owner IN ('local', 'anybody') THEN '' "
        "ELSE "
        "owner END, token, id FROM jobs WHERE token IS NOT NULL;"
        "UPDATE jobs SET token = NULL;"
        "PRAGMA user_version = 7;",

        /* Jobs of before go on with the arithmetic that they began with. */
        "ALTER TABLE jobs ADD COLUMN arithmetic INTEGER NOT NULL DEFAULT 4;"
        "PRAGMA user_version = 8;",

        /* NULL: not an evaluation of labels at several positions. */
        "ALTER TABLE rounds ADD COLUMN mean_iou REAL;"
        "PRAGMA user_version = 9;",

        "ALTER TABLE rounds ADD COLUMN clamped INTEGER NOT NULL DEFAULT 0;"
        /* Microseconds of virtual time; NULL: the job has none. */
        "ALTER TABLE rounds ADD COLUMN virtual_start_us INTEGER;"
        "ALTER TABLE rounds ADD COLUMN virtual_end_us INTEGER;"
        /* Where in clients.f32 a client's state lies, and the committed round that wrote it. slot -1: the round is superseded. */
        "CREATE TABLE client_states (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,"
        " client INTEGER NOT NULL, round INTEGER NOT NULL, slot INTEGER NOT NULL, crc INTEGER NOT NULL,"
        " site_sha256 BLOB,"
        " sum INTEGER, PRIMARY KEY (job, client)) WITHOUT ROWID;"
        "ALTER TABLE rounds ADD COLUMN states_lost INTEGER NOT NULL DEFAULT 0;"
        "ALTER TABLE rounds ADD COLUMN choice TEXT NOT NULL DEFAULT '';"
        /* NULL: no measures beside the loss and the accuracy. */
        "ALTER TABLE rounds ADD COLUMN measures BLOB;"
        /* Metrics of plug-ins: names, and doubles; NULL: none. */
        "ALTER TABLE rounds ADD COLUMN metric_names TEXT;"
        "ALTER TABLE rounds ADD COLUMN metrics BLOB;"
        "CREATE TABLE round_scores (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,"
        " round INTEGER NOT NULL, body BLOB NOT NULL, sum INTEGER, PRIMARY KEY (job, round)) WITHOUT ROWID;"
        "CREATE TABLE releases (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,"
        " round INTEGER NOT NULL, digest BLOB NOT NULL, sum INTEGER, PRIMARY KEY (job, round, digest)) "
        "WITHOUT "
        "ROWID;"
        /* What jobs have released of a data set; it stays when a job goes. */
        "CREATE TABLE spent (data TEXT NOT NULL, job TEXT NOT NULL, sigma REAL NOT NULL, rate REAL NOT NULL,"
        " releases INTEGER NOT NULL, sum INTEGER, PRIMARY KEY (data, job)) WITHOUT ROWID;"
        "CREATE TABLE job_contracts (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,"
        " body TEXT NOT NULL, sum INTEGER, PRIMARY KEY (job)) WITHOUT ROWID;"
        /* digest NULL: of no model. */
        "CREATE TABLE inquiries (n INTEGER PRIMARY KEY AUTOINCREMENT, kind INTEGER NOT NULL,"
        " time_ms INTEGER NOT NULL, digest BLOB, body BLOB NOT NULL, sum INTEGER);"
        "CREATE INDEX inquiries_of_model ON inquiries (digest, n);"
        "CREATE TABLE model_names (name TEXT PRIMARY KEY, last INTEGER NOT NULL, sum INTEGER) WITHOUT ROWID;"
        "CREATE TABLE model_versions (name TEXT NOT NULL, version INTEGER NOT NULL,"
        " job TEXT NOT NULL, round INTEGER NOT NULL, digest BLOB NOT NULL, who TEXT NOT NULL,"
        " time_ms INTEGER NOT NULL, sum INTEGER, PRIMARY KEY (name, version)) WITHOUT ROWID;"
        "CREATE INDEX versions_of_job ON model_versions (job, round);"
        /* An alias points where its newest row says. */
        "CREATE TABLE model_aliases (n INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, alias TEXT NOT "
        "NULL,"
        " version INTEGER NOT NULL, who TEXT NOT NULL, time_ms INTEGER NOT NULL, sum INTEGER);"
        /* In a cluster: clients.f32 as it was when the newest round was committed. */
        "CREATE TABLE state_files (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,"
        " sha256 BLOB NOT NULL, bytes INTEGER NOT NULL, sum INTEGER, PRIMARY KEY (job)) WITHOUT ROWID;"
        /* Jobs on their way to another server, or from one (server/move/move.h). */
        "CREATE TABLE moves (token TEXT PRIMARY KEY, job TEXT NOT NULL, outward INTEGER NOT NULL, peer TEXT "
        "NOT NULL,"
        " there TEXT NOT NULL, time_ms INTEGER NOT NULL, sum INTEGER) WITHOUT ROWID;"
        /* The order in which clients' updates came that made an asynchronous job's version: 12 bytes each. */
        "CREATE TABLE arrivals (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,"
        " version INTEGER NOT NULL, body BLOB NOT NULL, sum INTEGER, PRIMARY KEY (job, version)) WITHOUT "
        "ROWID;"
        /* Unix time; 0: the job is not archived. */
        "ALTER TABLE jobs ADD COLUMN archived_ms INTEGER NOT NULL DEFAULT 0;"
        "PRAGMA user_version = 10;",
};
/* The latest accepted clock time, so that a wrong clock leaves room to count. */
#define BOOT_CLOCK_MAX 0xf0000000u
#define SCHEMA_VERSION ((int)MFL_ARRAY_SIZE(schema_steps))

/* The kernel drops the lock when the process ends, however it ends. */
static int take_lock(struct mfl_store *store, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/lock", store->dir);
        if (!path)
                return mfl_fail_memory(err, strlen(store->dir), "a file name");
        store->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (store->lock_fd < 0)
                return mfl_store_code(mfl_fail_errno(err, "open %s", path));
        if (!flock(store->lock_fd, LOCK_EX | LOCK_NB))
                return 0;
        if (errno == EWOULDBLOCK)
                return mfl_fail(err, MFL_STORE_LOCKED, "state directory %s is in use by another mfl-server",
                        store->dir);
        return mfl_store_code(mfl_fail_errno(err, "lock %s", path));
}

static int on_int(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

int mfl_store_schema_newest(void)
{
        return SCHEMA_VERSION;
}

static int on_word(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        mfl_strcpy(user, 64, mfl_db_text(row, 0));
        return 0;
}

/* Refuses other schemas, with what to do, before anything is written. */
static int check_schema(struct mfl_store *store, int64_t version, struct mfl_error *err)
{
        int64_t n_tables = 0;
        char software[64] = "a later version";
        if (version > SCHEMA_VERSION) {
                mfl_db_query(store->db, on_word, software, NULL,
                        "SELECT value FROM meta WHERE key = 'software'", "");
                return mfl_fail(err, MFL_STORE_NEWER,
                        "state directory %s has schema %lld, written by %s; this is mfl-server %s, which "
                        "supports schemas up to %d: start the newer program, or restore an older back-up "
                        "(docs/upgrade.md, Going back)",
                        store->dir, (long long)version, software, MFL_VERSION, SCHEMA_VERSION);
        }
        int r = mfl_db_query(store->db, on_int, &n_tables, err, "SELECT count(*) FROM sqlite_master", "");
        if (!r && (version < 0 || (version == 0 && n_tables > 0)))
                r = mfl_fail(err, -EIO, "database %s/mfl.db: schema %lld, expected 1 to %d", store->dir,
                        (long long)version, SCHEMA_VERSION);
        return r;
}

/* Removes what earlier migrations have saved; a file that cannot be removed only takes space. */
static void remove_saved(struct mfl_store *store, int64_t except)
{
        char path[MFL_STORE_PATH_BYTES];
        for (int v = 1; v < SCHEMA_VERSION; v++) {
                snprintf(path, sizeof path, "%s/mfl.db.schema-%d.bak", store->dir, v);
                if (v != except && unlink(path) && errno != ENOENT)
                        mfl_store_logf(store, "", "cannot remove %s: %s", path, strerror(errno));
        }
}

static int sync_file(const char *path, struct mfl_error *err)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        int r = fd < 0 || fsync(fd) ? mfl_store_code(mfl_fail_errno(err, "fsync %s", path)) : 0;
        if (fd >= 0)
                close(fd);
        return r;
}

/* tmp, fsync, rename, fsync directory, so that a file of this name is whole. */
static int save_before_migration(struct mfl_store *store, int64_t version, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES], tmp[MFL_STORE_PATH_BYTES];
        snprintf(path, sizeof path, "%s/mfl.db.schema-%lld.bak", store->dir, (long long)version);
        snprintf(tmp, sizeof tmp, "%s/mfl.db.migration.tmp", store->dir);
        int r = mfl_fs_fault("before-migration-save", path);
        if (r)
                return mfl_fail(err, mfl_store_code(r), "save %s: %s", path, strerror(-r));
        unlink(tmp);
        r = mfl_db_save(store->db, tmp, err);
        if (!r)
                r = sync_file(tmp, err);
        if (!r && rename(tmp, path))
                r = mfl_store_code(mfl_fail_errno(err, "rename %s to %s", tmp, path));
        if (!r)
                r = mfl_store_code(mfl_fs_sync_dir(store->dir, err));
        if (r)
                return r;
        r = mfl_fs_fault("after-migration-save", path);
        if (r)
                return mfl_fail(err, mfl_store_code(r), "save %s: %s", path, strerror(-r));
        return 0;
}

static int change_schema(struct mfl_store *store, int64_t version, struct mfl_error *err)
{
        const int64_t was = version;
        int64_t commits = 0;
        int r = 0;
        for (; version < SCHEMA_VERSION && !r; version++)
                r = mfl_db_exec(store->db, schema_steps[version], err);
        if (!r)
                r = mfl_store_sums_watch(store->db, err);
        if (!r && was < SCHEMA_VERSION)
                r = mfl_store_sums_seal(store->db, err);
        store->whole = was < SCHEMA_VERSION;
        if (!r && store->on_repair)
                r = mfl_store_mend_rows(store, err);
        if (!r && store->on_repair) /* it is no prefix of a cluster's log any more */
                r = mfl_db_run(store->db, err, "DELETE FROM meta WHERE key = 'cluster_seq'", "");
        if (!r)
                r = mfl_db_query(
                        store->db, on_int, &commits, err, "SELECT value FROM meta WHERE key = 'commits'", "");
        if (r)
                return r;
        store->commits = (uint64_t)commits;
        if (store->on_repair && store->evidence.count.good)
                store->commits = MFL_MAX(store->commits, store->evidence.count.commits);
        store->counts = true;
        return 0;
}

/* Schema and boot counter in one transaction. */
static int migrate(struct mfl_store *store, const int64_t was, struct mfl_error *err)
{
        int64_t boot = 0, seq = 0;
        const bool migrates = was > 0 && was < SCHEMA_VERSION;
        int r = migrates ? save_before_migration(store, was, err) : 0;
        if (!r)
                r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = change_schema(store, was, err);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "UPDATE meta SET value = max(value + 1, ?1) WHERE key = 'boot'", "i",
                        (int64_t)MFL_MIN(mfl_store_unix_ms() / 1000, (uint64_t)BOOT_CLOCK_MAX));
        if (!r)
                r = mfl_db_query(
                        store->db, on_int, &boot, err, "SELECT value FROM meta WHERE key = 'boot'", "");
        if (!r)
                r = mfl_db_run(store->db, err,
                        "INSERT OR REPLACE INTO meta (key, value) VALUES ('software', ?1)", "t",
                        "mfl-server " MFL_VERSION);
        if (!r)
                r = mfl_db_query(store->db, on_int, &seq, err, "SELECT coalesce(max(seq), 0) FROM lines", "");
        r = mfl_store_end(store, r, err);
        store->boot = (uint32_t)boot;
        store->next_seq = MFL_MAX(store->next_seq, (uint64_t)seq + 1);
        if (!r && migrates) { /* lines get their numbers only now */
                mfl_store_logf(store, "",
                        "schema %lld became %d; the database as it was is kept as mfl.db.schema-%lld.bak",
                        (long long)was, SCHEMA_VERSION, (long long)was);
                remove_saved(store, was);
        }
        return r;
}

/* The count's file begins with what the migration has committed. */
static int begin_count(struct mfl_store *store, struct mfl_error *err)
{
        int r = mfl_store_count_open(store->dir, &store->counter, err);
        if (!r)
                mfl_store_write_count(store);
        return r;
}

static int open_verified(struct mfl_store *store, struct mfl_error *err)
{
        struct mfl_store_survey survey = {0};
        int64_t version = 0;
        int r = mfl_db_query(store->db, on_int, &version, err, "PRAGMA user_version", "");
        if (!r)
                r = check_schema(store, version, err);
        if (!r)
                r = mfl_store_check_cluster(store, version, err);
        if (!r)
                r = mfl_store_vet(store, version, &survey, err);
        if (!r)
                r = migrate(store, version, err);
        if (!r && store->on_repair) { /* removed rows have left files */
                mfl_store_survey_deinit(&survey);
                r = mfl_store_survey_read(store->db, SCHEMA_VERSION, store->dir, &survey, err);
        }
        if (!r)
                r = begin_count(store, err);
        if (!r)
                r = mfl_store_tidy(store, &survey, err);
        mfl_store_survey_deinit(&survey);
        if (r)
                return r;
        for (uint32_t i = 0; i < store->n_warnings; i++)
                mfl_store_log(store, "", store->warnings[i], NULL);
        /* Empties the log at the start: whatever breaks in it later comes from this server. */
        mfl_db_close_moves_log(store->db, true);
        mfl_db_exec(store->db, "PRAGMA wal_checkpoint(TRUNCATE)", NULL);
        return 0;
}

static int open_database(struct mfl_store *store, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/mfl.db", store->dir);
        if (!path)
                return mfl_fail_memory(err, strlen(store->dir), "a file name");
        int r = mfl_store_evidence_read(store->dir, &store->evidence, err);
        if (!r)
                r = mfl_db_open(path, &store->db, err);
        if (!r) {
                mfl_db_close_moves_log(store->db, false);
                r = open_verified(store, err);
        }
        if (r != -EIO)
                return r;
        char why[sizeof err->text];
        mfl_strcpy(why, sizeof why, err->text);
        return mfl_fail(err, MFL_STORE_DAMAGED,
                "%.300s. The database is damaged, or not one of mfl-server: restore a back-up "
                "(docs/admin.md, Restore); mfl-server --check-state prints details",
                why);
}

static int make_dirs(struct mfl_store *store, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *jobs = mfl_asprintf("%s/jobs", store->dir);
        MFL_CLEANUP_FREE char *uploads = mfl_asprintf("%s/uploads", store->dir);
        if (!jobs || !uploads)
                return mfl_fail_memory(err, strlen(store->dir), "a file name");
        int r = mfl_fs_mkdirs(jobs, 0700, err);
        if (!r)
                r = mfl_fs_mkdirs(uploads, 0700, err);
        return mfl_store_code(r);
}

int mfl_store_claim(const char *state_dir, struct mfl_store **ret_store, struct mfl_error *err)
{
        struct mfl_store *store = mfl_calloc(1, sizeof *store);
        if (!store)
                return mfl_fail_memory(err, sizeof *store, "the store");
        store->lock_fd = store->counter.fd = -1;
        store->next_seq = 1;
        pthread_mutex_init(&store->mutex, NULL);
        pthread_mutex_init(&store->log_mutex, NULL);
        int r = 0;
        if (strlen(state_dir) > MFL_STORE_PATH_BYTES - 128) /* room for every name below it */
                r = mfl_fail(err, MFL_INVALID, "state directory: the path is too long (%zu bytes)",
                        strlen(state_dir));
        else if (!(store->dir = mfl_strdup(state_dir)))
                r = mfl_fail_memory(err, strlen(state_dir), "a file name");
        if (!r)
                r = make_dirs(store, err);
        if (!r)
                r = take_lock(store, err);
        if (r) {
                mfl_store_close(store);
                return r;
        }
        *ret_store = store;
        return 0;
}

static int open_store(const char *state_dir, const struct mfl_store_cluster *cluster,
        mfl_store_on_finding *on_repair, void *user, struct mfl_store **ret_store, struct mfl_error *err)
{
        struct mfl_store *store;
        int r = mfl_store_claim(state_dir, &store, err);
        if (r)
                return r;
        store->cluster = cluster;
        store->schema = SCHEMA_VERSION;
        store->on_repair = on_repair;
        store->repair_user = user;
        r = open_database(store, err);
        if (r) {
                mfl_store_close(store);
                return r;
        }
        *ret_store = store;
        return 0;
}

int mfl_store_open_in(const char *state_dir, const struct mfl_store_cluster *cluster,
        struct mfl_store **ret_store, struct mfl_error *err)
{
        return open_store(state_dir, cluster, NULL, NULL, ret_store, err);
}

int mfl_store_open(const char *state_dir, struct mfl_store **ret_store, struct mfl_error *err)
{
        return mfl_store_open_in(state_dir, NULL, ret_store, err);
}

int mfl_store_repair(
        const char *state_dir, mfl_store_on_finding *on_finding, void *user, struct mfl_error *err)
{
        struct mfl_store *store;
        int r = open_store(state_dir, NULL, on_finding, user, &store, err);
        if (!r)
                mfl_store_close(store);
        return r;
}

uint32_t mfl_store_warnings(const struct mfl_store *store)
{
        return store->n_warnings;
}

const char *mfl_store_warning(const struct mfl_store *store, uint32_t i)
{
        return i < store->n_warnings ? store->warnings[i] : NULL;
}

void mfl_store_close(struct mfl_store *store)
{
        if (!store)
                return;
        if (store->db && store->boot)
                mfl_store_flush(store, NULL);
        mfl_db_close(store->db);
        mfl_store_log_deinit(store);
        for (uint32_t i = 0; i < store->n_warnings; i++)
                free(store->warnings[i]);
        mfl_store_count_close(&store->counter);
        if (store->lock_fd >= 0)
                close(store->lock_fd);
        pthread_mutex_destroy(&store->mutex);
        pthread_mutex_destroy(&store->log_mutex);
        free(store->dir);
        free(store);
}

uint32_t mfl_store_boot(const struct mfl_store *store)
{
        return store->boot;
}

const char *mfl_store_dir(const struct mfl_store *store)
{
        return store->dir;
}
