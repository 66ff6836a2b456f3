/* SPDX-License-Identifier: Apache-2.0 */
/* Logins of browsers: an operator gets a code for one use (`mfl login issue`); a browser changes it for a cookie, and acts with that
 * operator's name and roles until the login ends.
 *
 *      nothing --issue--> code, 5 minutes --take--> login, as long as was asked for --drop, end, time--> nothing
 *
 * The table keeps SHA-256 of codes and cookies, not the secrets. It is in memory only: a restart of the server ends all logins. Each
 * name has at most MFL_LOGINS_OF_ONE, and the oldest makes room; all have MFL_LOGINS_MAX together. Loop thread only; no I/O but
 * random bytes. Times are those of the caller's monotonic clock. */
#ifndef MFL_SERVER_ACCESS_LOGINS_H
#define MFL_SERVER_ACCESS_LOGINS_H

#include "common/base/digest.h"

#define MFL_LOGINS_MAX 256
#define MFL_LOGINS_OF_ONE 16
#define MFL_LOGIN_SECRET_BYTES 65 /* hexadecimal digits, terminated */
#define MFL_LOGIN_CODE_SECONDS 300u
#define MFL_LOGIN_SECONDS 43200u

struct mfl_login {
        char who[64];
        uint32_t roles; /* MFL_TLS_ROLE_... */
        bool is_code;   /* not taken yet */
        uint64_t code_until_ms, until_ms;
        uint64_t order; /* older ones have less */
        uint8_t digest[MFL_SHA256_BYTES];
        char csrf[MFL_LOGIN_SECRET_BYTES]; /* what requests that change something must repeat */
};

struct mfl_logins {
        char url[320]; /* of the login page; "": there is no HTTP port */
        uint32_t n;
        uint64_t last;
        struct mfl_login v[MFL_LOGINS_MAX];
};

/* Makes a code. MFL_BUSY: the table is full. Negative: no random bytes, or no digest. */
int mfl_logins_issue(struct mfl_logins *logins, const char *who, uint32_t roles, uint32_t seconds,
        uint64_t now_ms, char ret_code[MFL_LOGIN_SECRET_BYTES], struct mfl_error *err);
/* Changes a code for a cookie; the code is then worth nothing. MFL_NOT_FOUND: it is unknown, used, or too old. */
int mfl_logins_take(struct mfl_logins *logins, const char *code, uint64_t now_ms,
        char ret_cookie[MFL_LOGIN_SECRET_BYTES], const struct mfl_login **ret_login, struct mfl_error *err);
/* NULL: no such login, or it has ended. Valid until the next call. */
const struct mfl_login *mfl_logins_find(struct mfl_logins *logins, const char *cookie, uint64_t now_ms);
bool mfl_login_has_csrf(const struct mfl_login *login, const char *csrf);
/* Ends the login of that cookie. */
void mfl_logins_drop(struct mfl_logins *logins, const char *cookie);
/* Ends all of a name, codes included; returns how many. */
uint32_t mfl_logins_end(struct mfl_logins *logins, const char *who);

#endif
