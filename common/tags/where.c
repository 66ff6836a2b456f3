/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tags/where.h"

#include <ctype.h>
#include <string.h>

#define DEPTH_MAX 32

static const char *const own_names[] = {"name", "site", "node", "backend", NULL};
static const char *const words[] = {"and", "or", "not", "in", NULL};

static bool is_one_of(const char *const *list, const char *s, size_t n)
{
        for (; *list; list++)
                if (strlen(*list) == n && !memcmp(*list, s, n))
                        return true;
        return false;
}

static bool is_key(char c)
{
        return isalnum((unsigned char)c) || c == '_';
}

static bool is_value(char c)
{
        return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

static bool consists_of(const char *s, bool (*is)(char))
{
        size_t n = 0;
        while (s[n] && is(s[n]))
                n++;
        return n && !s[n];
}

/* The value of a tag; NULL: the daemon has no such tag. */
static const char *find_tag(const char *tags, const char *key, size_t n, size_t *ret_n)
{
        for (const char *at = tags; *at;) {
                size_t all = strcspn(at, ",");
                if (all > n && at[n] == '=' && !memcmp(at, key, n)) {
                        *ret_n = all - n - 1;
                        return at + n + 1;
                }
                at += all + (at[all] == ',');
        }
        return NULL;
}

int mfl_tags_add(char tags[MFL_TAGS_BYTES], const char *key, const char *value, struct mfl_error *err)
{
        size_t n = strlen(key), used = strlen(tags), unused;
        if (!consists_of(key, is_key) || isdigit((unsigned char)*key))
                return mfl_fail(err, MFL_INVALID,
                        "'%s' can't be a tag: write letters, digits and '_', and begin with a letter", key);
        if (is_one_of(own_names, key, n) || is_one_of(words, key, n))
                return mfl_fail(
                        err, MFL_INVALID, "'%s' has a meaning of its own: give the tag another name", key);
        if (!consists_of(value, is_value))
                return mfl_fail(err, MFL_INVALID,
                        "'%s' can't be a tag's value: write letters, digits, '.', '_' and '-'", value);
        if (find_tag(tags, key, n, &unused))
                return mfl_fail(err, MFL_INVALID, "tag %s is there twice", key);
        if (used + n + strlen(value) + 3 > MFL_TAGS_BYTES)
                return mfl_fail(err, MFL_INVALID, "all tags together have more than %d characters",
                        MFL_TAGS_BYTES - 1);
        mfl_snprintf(tags + used, MFL_TAGS_BYTES - used, "%s%s=%s", used ? "," : "", key, value);
        return 0;
}

/* ---- expressions ---- */

struct reader {
        const char *text, *at;
        const struct mfl_where_daemon *daemon; /* NULL: only the text is checked */
        int depth;
        const char *expected; /* the first mistake; NULL: none */
        const char *mistake;  /* where */
};

static bool wrong(struct reader *r, const char *expected)
{
        if (!r->expected) {
                r->expected = expected;
                r->mistake = r->at;
        }
        return false;
}

static void skip(struct reader *r)
{
        r->at += strspn(r->at, " \t\r\n");
}

static bool take(struct reader *r, const char *sign)
{
        skip(r);
        size_t n = strlen(sign);
        if (strncmp(r->at, sign, n) || (is_key(*sign) && is_key(r->at[n])))
                return false;
        r->at += n;
        return true;
}

static const char *value_of(const struct mfl_where_daemon *d, const char *key, size_t n, size_t *ret_n)
{
        const char *const own[] = {d->name, d->site, d->node, d->backend};
        for (int i = 0; own_names[i]; i++)
                if (strlen(own_names[i]) == n && !memcmp(own_names[i], key, n)) {
                        *ret_n = strlen(own[i]);
                        return own[i];
                }
        return find_tag(d->tags, key, n, ret_n);
}

/* Whether the value that is read equals `have`. */
static bool read_value(struct reader *r, const char *have, size_t n_have)
{
        skip(r);
        char quote = *r->at;
        if (quote != '\'' && quote != '"')
                return wrong(r, "a value in quotes");
        const char *begin = r->at + 1, *end = strchr(begin, quote);
        if (!end)
                return wrong(r, "a quote at the end of the value");
        r->at = end + 1;
        return have && (size_t)(end - begin) == n_have && !memcmp(begin, have, n_have);
}

static bool read_list(struct reader *r, const char *have, size_t n_have)
{
        bool found = false;
        if (!take(r, "("))
                return wrong(r, "'(' and a list of values");
        do
                found |= read_value(r, have, n_have);
        while (!r->expected && take(r, ","));
        if (!r->expected && !take(r, ")"))
                return wrong(r, "',' or ')'");
        return found;
}

static bool read_comparison(struct reader *r)
{
        skip(r);
        const char *key = r->at, *have = NULL;
        size_t n = 0, n_have = 0;
        while (is_key(key[n]))
                n++;
        if (!n || isdigit((unsigned char)*key) || is_one_of(words, key, n))
                return wrong(r, "a tag, name, site, node or backend");
        r->at += n;
        if (r->daemon)
                have = value_of(r->daemon, key, n, &n_have);
        if (take(r, "=="))
                return read_value(r, have, n_have);
        if (take(r, "!="))
                return !read_value(r, have, n_have);
        bool negated = take(r, "not");
        if (!take(r, "in"))
                return wrong(r, negated ? "'in'" : "'==', '!=', 'in' or 'not in'");
        return read_list(r, have, n_have) != negated;
}

static bool read_or(struct reader *r);

static bool read_not(struct reader *r)
{
        bool result;
        if (++r->depth > DEPTH_MAX)
                return wrong(r, "less depth");
        if (take(r, "not"))
                result = !read_not(r);
        else if (take(r, "(")) {
                result = read_or(r);
                if (!r->expected && !take(r, ")"))
                        wrong(r, "'and', 'or' or ')'");
        } else
                result = read_comparison(r);
        r->depth--;
        return result;
}

static bool read_and(struct reader *r)
{
        bool result = read_not(r);
        while (!r->expected && take(r, "and"))
                result &= read_not(r);
        return result;
}

static bool read_or(struct reader *r)
{
        bool result = read_and(r);
        while (!r->expected && take(r, "or"))
                result |= read_and(r);
        return result;
}

static bool read_all(struct reader *r)
{
        bool result = read_or(r);
        skip(r);
        if (!r->expected && *r->at)
                wrong(r, "'and', 'or' or the end");
        return result;
}

int mfl_where_check(const char *text, struct mfl_error *err)
{
        struct reader r = {.text = text, .at = text};
        read_all(&r);
        if (!r.expected)
                return 0;
        return mfl_fail(err, MFL_INVALID, "character %zu: expected %s, got %s%.20s%s; such as region == 'eu'",
                (size_t)(r.mistake - text) + 1, r.expected, *r.mistake ? "\"" : "",
                *r.mistake ? r.mistake : "the end", *r.mistake ? "\"" : "");
}

bool mfl_where_matches(const char *text, const struct mfl_where_daemon *daemon)
{
        struct reader r = {.text = text, .at = text, .daemon = daemon};
        return !*text || (read_all(&r) && !r.expected);
}
