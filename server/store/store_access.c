/* SPDX-License-Identifier: Apache-2.0 */
/* Rules about which daemons may take part, and which ones are drained. */
#include "server/store/store_internal.h"

static int on_count(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

/* Without expired rules, and without the rule that is being replaced. */
static int check_room(struct mfl_store *store, const struct mfl_store_rule *rule, struct mfl_error *err)
{
        int64_t n = 0;
        int r = mfl_db_run(store->db, err, "DELETE FROM daemon_rules WHERE until_ms > 0 AND until_ms <= ?1",
                "i", (int64_t)mfl_store_unix_ms());
        if (!r)
                r = mfl_db_query(store->db, on_count, &n, err,
                        "SELECT count(*) FROM daemon_rules WHERE pattern <> ?1 OR verdict <> ?2", "ti",
                        rule->pattern, (int64_t)rule->verdict);
        if (!r && n >= MFL_ACCESS_RULES_MAX)
                r = mfl_fail(err, MFL_STORE_RULES_FULL,
                        "there are already %d rules about daemons, the limit: one pattern with '*' may do "
                        "for many",
                        MFL_ACCESS_RULES_MAX);
        return r;
}

int mfl_store_rule_put(struct mfl_store *store, const struct mfl_store_rule *rule, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = check_room(store, rule, err);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "INSERT OR REPLACE INTO daemon_rules (pattern, verdict, who, time_ms, until_ms, "
                        "reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                        "titiit", rule->pattern, (int64_t)rule->verdict, rule->who, (int64_t)rule->time_ms,
                        (int64_t)rule->until_ms, rule->reason);
        return mfl_store_end(store, r, err);
}

int mfl_store_rule_remove(
        struct mfl_store *store, const char *pattern, enum mfl_verdict verdict, struct mfl_error *err)
{
        int64_t n = 0;
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_db_query(store->db, on_count, &n, err,
                "SELECT count(*) FROM daemon_rules WHERE pattern = ?1 AND verdict = ?2", "ti", pattern,
                (int64_t)verdict);
        if (!r && !n)
                r = mfl_fail(err, MFL_NOT_FOUND,
                        "there is no rule that %s '%s'; 'mfl daemons rules' lists them",
                        verdict == MFL_VERDICT_DENY ? "disables" : "allows", pattern);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM daemon_rules WHERE pattern = ?1 AND verdict = ?2",
                        "ti", pattern, (int64_t)verdict);
        return mfl_store_end(store, r, err);
}

static int on_rule(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_rules *rules = user;
        void *v = mfl_realloc(rules->v, (rules->n + 1) * sizeof *rules->v);
        if (!v)
                return mfl_fail_memory(err, (rules->n + 1) * sizeof *rules->v, "rules about daemons");
        rules->v = v;
        struct mfl_store_rule *rule = &rules->v[rules->n++];
        *rule = (struct mfl_store_rule){
                .verdict = (enum mfl_verdict)mfl_db_int(row, 1),
                .time_ms = (uint64_t)mfl_db_int(row, 3),
                .until_ms = (uint64_t)mfl_db_int(row, 4),
        };
        mfl_strcpy(rule->pattern, sizeof rule->pattern, mfl_db_text(row, 0));
        mfl_strcpy(rule->who, sizeof rule->who, mfl_db_text(row, 2));
        mfl_strcpy(rule->reason, sizeof rule->reason, mfl_db_text(row, 5));
        return 0;
}

/* SQLite orders text by its bytes, like strcmp. */
int mfl_store_rules(struct mfl_store *store, struct mfl_store_rules *ret_rules, struct mfl_error *err)
{
        struct mfl_store_rules rules = {0};
        mfl_store_lock(store);
        int r = mfl_db_query(store->db, on_rule, &rules, err,
                "SELECT pattern, verdict, who, time_ms, until_ms, reason FROM daemon_rules "
                "ORDER BY pattern, verdict",
                "");
        mfl_store_unlock(store);
        if (r)
                mfl_store_rules_deinit(&rules);
        else
                *ret_rules = rules;
        return r;
}

void mfl_store_rules_deinit(struct mfl_store_rules *rules)
{
        free(rules->v);
        *rules = (struct mfl_store_rules){0};
}

/* ---- drained daemons ---- */

int mfl_store_drain(struct mfl_store *store, const char *daemon, bool on, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_db_run(store->db, err,
                on ? "INSERT OR IGNORE INTO drained (daemon) VALUES (?1)"
                   : "DELETE FROM drained WHERE daemon = ?1",
                "t", daemon);
        return mfl_store_end(store, r, err);
}

static int on_name(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_names *names = user;
        void *v = mfl_realloc(names->v, (names->n + 1) * sizeof *names->v);
        if (!v)
                return mfl_fail_memory(err, (names->n + 1) * sizeof *names->v, "names of daemons");
        names->v = v;
        mfl_strcpy(names->v[names->n++], MFL_NAME_BYTES, mfl_db_text(row, 0));
        return 0;
}

int mfl_store_drained(struct mfl_store *store, struct mfl_store_names *ret_names, struct mfl_error *err)
{
        struct mfl_store_names names = {0};
        mfl_store_lock(store);
        int r = mfl_db_query(
                store->db, on_name, &names, err, "SELECT daemon FROM drained ORDER BY daemon", "");
        mfl_store_unlock(store);
        if (r)
                mfl_store_names_deinit(&names);
        else
                *ret_names = names;
        return r;
}

void mfl_store_names_deinit(struct mfl_store_names *names)
{
        free(names->v);
        *names = (struct mfl_store_names){0};
}
