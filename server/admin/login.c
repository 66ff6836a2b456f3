/* SPDX-License-Identifier: Apache-2.0 */
/* Codes with which browsers log in, for operators that ask. */
#include "server/access/logins.h"

#include "server/admin/answers.h"

static void end_logins(struct mfl_session *session, uint64_t request)
{
        struct mfl_admin *admin = mfl_admin_of(session);
        char text[64];
        uint32_t n = mfl_logins_end(admin->logins, session->who);
        mfl_snprintf(text, sizeof text, "%u %s ended", n, n == 1 ? "login" : "logins");
        mfl_book_note(admin->book, session, "logout", "", "done", text);
        mfl_operator_done(session, request, text);
}

void mfl_operator_login(struct mfl_session *session, uint64_t request, const Mfl__IssueLogin *issue)
{
        struct mfl_admin *admin = mfl_admin_of(session);
        char code[MFL_LOGIN_SECRET_BYTES], url[512];
        struct mfl_error err;
        Mfl__Login body = MFL__LOGIN__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (issue->end) {
                end_logins(session, request);
                return;
        }
        if (!*admin->logins->url) {
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_NOT_FOUND,
                        "this server has no dashboard: `http` in server.yaml is off");
                return;
        }
        int r = mfl_logins_issue(admin->logins, session->who, session->roles, issue->seconds,
                mfl_loop_now(admin->loop), code, &err);
        if (r < 0)
                mfl_loop_fatal(admin->loop, r, &err);
        else if (r)
                mfl_session_fail(session, request, mfl_operator_failure_code(r), "%s", err.text);
        if (r)
                return;
        mfl_snprintf(url, sizeof url, "%s#%s", admin->logins->url, code);
        mfl_book_note(admin->book, session, "login", "", "done", "issued a code for the dashboard");
        body.url = url;
        body.code = code;
        body.code_seconds = MFL_LOGIN_CODE_SECONDS;
        body.seconds = issue->seconds ? issue->seconds : MFL_LOGIN_SECONDS;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_LOGIN;
        envelope.login = &body;
        mfl_session_send(session, &envelope);
}
