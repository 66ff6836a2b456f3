/* SPDX-License-Identifier: Apache-2.0 */
/* Rules about daemons, and recently refused daemons. */
#include "server/access/access.h"

#include <strings.h>

bool mfl_access_matches(const char *pattern, const struct mfl_access_peer *peer)
{
        if (!strncmp(pattern, "cn:", 3))
                return *peer->cn && mfl_glob(pattern + 3, peer->cn);
        if (!strncmp(pattern, "sha256:", 7))
                return *peer->fingerprint && !strcasecmp(pattern + 7, peer->fingerprint);
        return mfl_glob(pattern, peer->name);
}

static bool is_over(const struct mfl_store_rule *rule, uint64_t now_ms)
{
        return rule->until_ms && rule->until_ms <= now_ms;
}

static enum mfl_access deny(const struct mfl_store_rule *rule, char ret_reason[MFL_REASON_BYTES])
{
        mfl_snprintf(ret_reason, MFL_REASON_BYTES, "disabled by the rule '%.79s'%s%.150s", rule->pattern,
                *rule->reason ? ": " : "", rule->reason);
        return MFL_ACCESS_DENIED;
}

/* Rules are sorted, so the first deny rule is the same in whatever order they were made. */
enum mfl_access mfl_access_check(const struct mfl_store_rules *rules, const struct mfl_access_peer *peer,
        uint64_t now_ms, char ret_reason[MFL_REASON_BYTES])
{
        bool any = false, allowed = false;
        for (uint32_t i = 0; i < rules->n; i++) {
                const struct mfl_store_rule *rule = &rules->v[i];
                if (is_over(rule, now_ms))
                        continue;
                bool matches = mfl_access_matches(rule->pattern, peer);
                if (rule->verdict == MFL_VERDICT_DENY && matches)
                        return deny(rule, ret_reason);
                any |= rule->verdict == MFL_VERDICT_ALLOW;
                allowed |= rule->verdict == MFL_VERDICT_ALLOW && matches;
        }
        if (!any || allowed)
                return MFL_ACCESS_OK;
        mfl_snprintf(ret_reason, MFL_REASON_BYTES,
                "only daemons that a rule allows may take part, and no rule allows '%s'", peer->name);
        return MFL_ACCESS_NOT_ALLOWED;
}

enum mfl_access mfl_access_check_absent(const struct mfl_store_rules *rules, const char *name,
        uint64_t now_ms, char ret_reason[MFL_REASON_BYTES])
{
        struct mfl_access_peer peer = {.name = name, .cn = "", .fingerprint = ""};
        for (uint32_t i = 0; i < rules->n; i++) {
                const struct mfl_store_rule *rule = &rules->v[i];
                if (rule->verdict == MFL_VERDICT_DENY && !is_over(rule, now_ms) &&
                        mfl_access_matches(rule->pattern, &peer))
                        return deny(rule, ret_reason);
        }
        return MFL_ACCESS_OK;
}

/* ---- rules in memory ---- */

static int compare(const struct mfl_store_rule *rule, const char *pattern, enum mfl_verdict verdict)
{
        int order = strcmp(rule->pattern, pattern);
        return order ? order : (int)rule->verdict - (int)verdict;
}

/* The rule's position, or where to insert it. */
static uint32_t position(const struct mfl_store_rules *rules, const char *pattern, enum mfl_verdict verdict)
{
        uint32_t i = 0;
        while (i < rules->n && compare(&rules->v[i], pattern, verdict) < 0)
                i++;
        return i;
}

int mfl_access_put(struct mfl_store_rules *rules, const struct mfl_store_rule *rule)
{
        uint32_t i = position(rules, rule->pattern, rule->verdict);
        if (i == rules->n || compare(&rules->v[i], rule->pattern, rule->verdict)) {
                struct mfl_store_rule *v = mfl_realloc(rules->v, (rules->n + 1) * sizeof *v);
                if (!v)
                        return -ENOMEM;
                rules->v = v;
                memmove(&v[i + 1], &v[i], (rules->n - i) * sizeof *v);
                rules->n++;
        }
        rules->v[i] = *rule;
        mfl_assert(position(rules, rule->pattern, rule->verdict) == i);
        return 0;
}

static void remove_at(struct mfl_store_rules *rules, uint32_t i)
{
        mfl_assert(i < rules->n);
        memmove(&rules->v[i], &rules->v[i + 1], (rules->n - i - 1) * sizeof *rules->v);
        rules->n--;
}

bool mfl_access_remove(struct mfl_store_rules *rules, const char *pattern, enum mfl_verdict verdict)
{
        uint32_t i = position(rules, pattern, verdict);
        if (i == rules->n || compare(&rules->v[i], pattern, verdict))
                return false;
        remove_at(rules, i);
        return true;
}

void mfl_access_expire(struct mfl_store_rules *rules, uint64_t now_ms)
{
        for (uint32_t i = rules->n; i-- > 0;)
                if (is_over(&rules->v[i], now_ms))
                        remove_at(rules, i);
}

/* ---- recently refused daemons ---- */

bool mfl_refused_note(struct mfl_refused_list *list, const struct mfl_refused_daemon *refused)
{
        struct mfl_refused_daemon *at = NULL;
        for (uint32_t i = 0; i < list->n && !at; i++)
                if (!strcmp(list->v[i].name, refused->name))
                        at = &list->v[i];
        bool news = !at || strcmp(at->reason, refused->reason) != 0;
        if (!at && list->n < MFL_REFUSED_MAX) {
                at = &list->v[list->n++];
        } else if (!at) {
                at = &list->v[0];
                for (uint32_t i = 1; i < list->n; i++)
                        if (list->v[i].last_ms < at->last_ms)
                                at = &list->v[i];
        }
        mfl_assert(list->n <= MFL_REFUSED_MAX && at < list->v + list->n);
        *at = *refused;
        return news;
}

/* Still of interest: refused not long ago, and the rules have not let it in since. */
static bool is_kept(const struct mfl_refused_daemon *r, const struct mfl_store_rules *rules, uint64_t now_ms)
{
        char reason[MFL_REASON_BYTES];
        struct mfl_access_peer peer = {r->name, r->cn, r->fingerprint};
        return now_ms < r->last_ms + MFL_REFUSED_KEPT_MS &&
               mfl_access_check(rules, &peer, now_ms, reason) != MFL_ACCESS_OK;
}

void mfl_refused_trim(struct mfl_refused_list *list, const struct mfl_store_rules *rules, uint64_t now_ms)
{
        for (uint32_t i = list->n; i-- > 0;)
                if (!is_kept(&list->v[i], rules, now_ms))
                        list->v[i] = list->v[--list->n];
}

uint32_t mfl_refused_count(
        const struct mfl_refused_list *list, const struct mfl_store_rules *rules, uint64_t now_ms)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < list->n; i++)
                n += is_kept(&list->v[i], rules, now_ms);
        return n;
}

void mfl_refused_forget(struct mfl_refused_list *list, const char *name)
{
        for (uint32_t i = 0; i < list->n; i++)
                if (!strcmp(list->v[i].name, name)) {
                        list->v[i] = list->v[--list->n];
                        return;
                }
}

const struct mfl_refused_daemon *mfl_refused_find(const struct mfl_refused_list *list, const char *name)
{
        for (uint32_t i = 0; i < list->n; i++)
                if (!strcmp(list->v[i].name, name))
                        return &list->v[i];
        return NULL;
}
