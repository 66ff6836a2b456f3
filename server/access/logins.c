/* SPDX-License-Identifier: Apache-2.0 */
/* Logins of browsers. */
#include "server/access/logins.h"

#include <sys/random.h>

#define SECRET_RANDOM_BYTES 32

/* Takes the same time wherever two texts of one length differ. */
static bool equal(const void *a, const void *b, size_t n)
{
        const volatile uint8_t *x = a, *y = b;
        uint8_t differ = 0;
        for (size_t i = 0; i < n; i++)
                differ |= x[i] ^ y[i];
        return !differ;
}

static int make_secret(char ret_secret[MFL_LOGIN_SECRET_BYTES], struct mfl_error *err)
{
        uint8_t bytes[SECRET_RANDOM_BYTES];
        if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
                return mfl_fail_errno(err, "getrandom");
        mfl_hex(bytes, sizeof bytes, ret_secret);
        return 0;
}

static void remove_at(struct mfl_logins *logins, uint32_t i)
{
        mfl_assert(i < logins->n);
        logins->v[i] = logins->v[--logins->n];
}

static void expire(struct mfl_logins *logins, uint64_t now_ms)
{
        for (uint32_t i = logins->n; i-- > 0;)
                if (now_ms >= logins->v[i].until_ms ||
                        (logins->v[i].is_code && now_ms >= logins->v[i].code_until_ms))
                        remove_at(logins, i);
}

static struct mfl_login *find(struct mfl_logins *logins, const char *secret, bool is_code)
{
        uint8_t digest[MFL_SHA256_BYTES];
        struct mfl_error err;
        struct mfl_login *found = NULL;
        if (strlen(secret) != MFL_LOGIN_SECRET_BYTES - 1 ||
                mfl_sha256(secret, MFL_LOGIN_SECRET_BYTES - 1, digest, &err))
                return NULL;
        for (uint32_t i = 0; i < logins->n; i++)
                if (logins->v[i].is_code == is_code && equal(logins->v[i].digest, digest, sizeof digest))
                        found = &logins->v[i];
        return found;
}

/* The oldest of a name makes room when it has too many. */
static void limit_one(struct mfl_logins *logins, const char *who)
{
        uint32_t n = 0, oldest = 0;
        for (uint32_t i = 0; i < logins->n; i++) {
                if (strcmp(logins->v[i].who, who) != 0)
                        continue;
                if (!n++ || logins->v[i].order < logins->v[oldest].order)
                        oldest = i;
        }
        if (n >= MFL_LOGINS_OF_ONE)
                remove_at(logins, oldest);
}

int mfl_logins_issue(struct mfl_logins *logins, const char *who, uint32_t roles, uint32_t seconds,
        uint64_t now_ms, char ret_code[MFL_LOGIN_SECRET_BYTES], struct mfl_error *err)
{
        char code[MFL_LOGIN_SECRET_BYTES];
        struct mfl_login login = {.roles = roles, .is_code = true};
        expire(logins, now_ms);
        limit_one(logins, who);
        if (logins->n == MFL_LOGINS_MAX)
                return mfl_fail(err, MFL_BUSY,
                        "login: %d people are logged in; that is all that this server takes", MFL_LOGINS_MAX);
        int r = make_secret(code, err);
        if (!r)
                r = make_secret(login.csrf, err);
        if (!r)
                r = mfl_sha256(code, sizeof code - 1, login.digest, err);
        if (r)
                return r;
        mfl_strcpy(login.who, sizeof login.who, who);
        login.until_ms = now_ms + 1000ull * (seconds ? seconds : MFL_LOGIN_SECONDS);
        login.code_until_ms = now_ms + 1000ull * MFL_LOGIN_CODE_SECONDS;
        login.order = ++logins->last;
        logins->v[logins->n++] = login;
        memcpy(ret_code, code, sizeof code);
        return 0;
}

int mfl_logins_take(struct mfl_logins *logins, const char *code, uint64_t now_ms,
        char ret_cookie[MFL_LOGIN_SECRET_BYTES], const struct mfl_login **ret_login, struct mfl_error *err)
{
        char cookie[MFL_LOGIN_SECRET_BYTES];
        uint8_t digest[MFL_SHA256_BYTES];
        expire(logins, now_ms);
        struct mfl_login *login = find(logins, code, true);
        if (!login)
                return mfl_fail(err, MFL_NOT_FOUND,
                        "this code is unknown, used, or older than %u minutes: mfl login issue makes another "
                        "one",
                        MFL_LOGIN_CODE_SECONDS / 60);
        int r = make_secret(cookie, err);
        if (!r)
                r = mfl_sha256(cookie, sizeof cookie - 1, digest, err);
        if (r)
                return r;
        memcpy(login->digest, digest, sizeof digest);
        memcpy(ret_cookie, cookie, sizeof cookie);
        login->is_code = false;
        *ret_login = login;
        return 0;
}

const struct mfl_login *mfl_logins_find(struct mfl_logins *logins, const char *cookie, uint64_t now_ms)
{
        expire(logins, now_ms);
        return find(logins, cookie, false);
}

bool mfl_login_has_csrf(const struct mfl_login *login, const char *csrf)
{
        return strlen(csrf) == sizeof login->csrf - 1 && equal(login->csrf, csrf, sizeof login->csrf - 1);
}

void mfl_logins_drop(struct mfl_logins *logins, const char *cookie)
{
        struct mfl_login *login = find(logins, cookie, false);
        if (login)
                remove_at(logins, (uint32_t)(login - logins->v));
}

uint32_t mfl_logins_end(struct mfl_logins *logins, const char *who)
{
        uint32_t before = logins->n;
        for (uint32_t i = logins->n; i-- > 0;)
                if (!strcmp(logins->v[i].who, who))
                        remove_at(logins, i);
        return before - logins->n;
}
