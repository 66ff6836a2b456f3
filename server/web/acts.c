/* SPDX-License-Identifier: Apache-2.0 */
/* What people who are logged in do from a browser.
 *
 *   - the cookie names the login, and the CSRF token is compared;
 *   - an inner session asks what the command line would ask, and its answer becomes JSON;
 *   - a model is written by the disk worker and sent as a file.
 * Ways to fail: no login, a wrong token, what the request's own rules refuse, a server that is busy or stops. */
#include "server/web/acts.h"

#include <unistd.h>

#include "proto/json/json_sites.h"
#include "server/access/book.h"
#include "server/access/logins.h"
#include "server/session/session.h"
#include "server/web/model.h"

#define TYPE_JSON "application/json"
#define WRONG_CODE_EVERY_MS 60000u
#define VALIDATIONS_MAX 200 /* the newest */
#define MODELS_AT_ONCE                                                                                       \
        2 /* on their way to the disk worker: each keeps it from commits for as long as a copy takes */

enum act_kind {
        ACT_LOGIN,
        ACT_LOGOUT,
        ACT_WHO,
        ACT_SUBMIT,
        ACT_CLONE,
        ACT_STOP,
        ACT_STOP_AFTER_ROUND,
        ACT_DELETE,
        ACT_ARCHIVE,
        ACT_UNARCHIVE,
        ACT_MODEL,
        ACT_REGISTRY,
        ACT_VALIDATIONS,
        ACT_SERVING,
};

/* On its way through the server. */
struct mfl_web_act {
        struct mfl_web_act *next;
        struct mfl_pages *pages;
        uint64_t id;
        struct mfl_session *session; /* NULL: of a model */
        struct mfl_work work;        /* of a model, from here on */
        char job[MFL_JOB_ID_BYTES];
        int64_t which;
        int status, fd;
        uint64_t bytes;
        uint32_t round;
        struct mfl_error err;
};

/* ---- paths ---- */

static const struct {
        const char *path; /* "*": a job's number; at the end '+': a round's */
        bool post;
        enum act_kind kind;
} table[] = {
        {"/api/login", true, ACT_LOGIN},
        {"/api/logout", true, ACT_LOGOUT},
        {"/api/login", false, ACT_WHO},
        {"/api/jobs", true, ACT_SUBMIT},
        {"/api/jobs/*/clone", true, ACT_CLONE},
        {"/api/jobs/*/stop", true, ACT_STOP},
        {"/api/jobs/*/stop-after-round", true, ACT_STOP_AFTER_ROUND},
        {"/api/jobs/*/delete", true, ACT_DELETE},
        {"/api/jobs/*/archive", true, ACT_ARCHIVE},
        {"/api/jobs/*/unarchive", true, ACT_UNARCHIVE},
        {"/api/jobs/*/model/+", false, ACT_MODEL},
        {"/api/models", false, ACT_REGISTRY},
        {"/api/validations", false, ACT_VALIDATIONS},
        {"/api/serving", false, ACT_SERVING},
};

static bool take_which(const char *text, int64_t *ret_which)
{
        size_t n = strspn(text, "0123456789");
        if (!strcmp(text, "best") || !strcmp(text, "newest"))
                *ret_which = *text == 'b' ? MFL_STORE_BEST : MFL_STORE_NEWEST;
        else if (n && n <= 9 && !text[n])
                *ret_which = strtoll(text, NULL, 10);
        else
                return false;
        return true;
}

static bool matches(const char *pattern, const char *path, char ret_job[MFL_JOB_ID_BYTES], int64_t *ret_which)
{
        for (; *pattern; pattern++) {
                if (*pattern == '+')
                        return take_which(path, ret_which);
                if (*pattern != '*') {
                        if (*path++ != *pattern)
                                return false;
                        continue;
                }
                size_t n = strspn(path, "abcdefghijklmnopqrstuvwxyz0123456789-");
                if (!n || n >= MFL_JOB_ID_BYTES)
                        return false;
                memcpy(ret_job, path, n);
                ret_job[n] = '\0';
                path += n;
        }
        return !*path;
}

static bool find_kind(const char *path, bool post, enum act_kind *ret_kind, char ret_job[MFL_JOB_ID_BYTES],
        int64_t *ret_which)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(table); i++)
                if (table[i].post == post && matches(table[i].path, path, ret_job, ret_which)) {
                        *ret_kind = table[i].kind;
                        return true;
                }
        return false;
}

bool mfl_acts_known(const char *path, bool post)
{
        enum act_kind kind;
        char job[MFL_JOB_ID_BYTES];
        int64_t which;
        return find_kind(path, post, &kind, job, &which);
}

/* ---- answers ---- */

/* Takes the object. */
static void answer_json(
        struct mfl_pages *pages, uint64_t id, unsigned status, json_t *object, const char *cookie)
{
        struct mfl_http_result result = {.status = status, .type = TYPE_JSON, .fd = -1, .cookie = cookie};
        result.body = object ? json_dumps(object, JSON_COMPACT) : NULL;
        result.n = result.body ? strlen(result.body) : 0;
        if (!result.body)
                result.status = 503;
        json_decref(object);
        mfl_http_acted(pages->http, id, &result);
}

static void answer_error(struct mfl_pages *pages, uint64_t id, unsigned status, const char *text)
{
        answer_json(pages, id, status, json_pack("{so}", "error", mfl_json_text(text)), NULL);
}

static void answer_login(
        struct mfl_pages *pages, uint64_t id, const struct mfl_login *login, const char *cookie)
{
        char roles[64];
        uint64_t now = mfl_loop_now(pages->loop);
        answer_json(pages, id, 200,
                json_pack("{so ss sb ss sI}", "who", mfl_json_text(login->who), "roles",
                        mfl_tls_roles_text(login->roles, roles, sizeof roles), "may_change",
                        (login->roles & (MFL_TLS_ROLE_OPERATOR | MFL_TLS_ROLE_ADMIN)) != 0, "csrf",
                        login->csrf, "seconds", (json_int_t)((login->until_ms - now) / 1000)),
                cookie);
}

static unsigned status_of(Mfl__FailureCode code)
{
        switch (code) {
        case MFL__FAILURE_CODE__FAILURE_INVALID:
                return 400;
        case MFL__FAILURE_CODE__FAILURE_NOT_FOUND:
                return 404;
        case MFL__FAILURE_CODE__FAILURE_CONFLICT:
                return 409;
        case MFL__FAILURE_CODE__FAILURE_DENIED:
                return 403;
        default:
                return 503;
        }
}

static void forget(struct mfl_web_act *one)
{
        struct mfl_web_act **at = &one->pages->acts;
        while (*at && *at != one)
                at = &(*at)->next;
        if (*at)
                *at = one->next;
        if (one->session)
                mfl_stream_close(&one->session->stream, NULL, false);
        free(one);
}

/* ---- models ---- */

static json_t *registry_json(const Mfl__Registry *registry)
{
        json_t *versions = json_array();
        for (size_t i = 0; i < registry->n_versions; i++)
                json_array_append_new(versions, mfl_json_version(registry->versions[i]));
        return json_pack("{so}", "versions", versions);
}

static json_t *validations_json(const Mfl__InquiryList *list)
{
        json_t *reports = json_array();
        for (size_t i = 0; i < list->n_reports; i++)
                json_array_append_new(reports, mfl_json_report("", list->reports[i]));
        return json_pack("{so}", "reports", reports);
}

static json_t *serving_json(const Mfl__ServingList *list)
{
        json_t *serving = json_array();
        for (size_t i = 0; i < list->n_serving; i++)
                json_array_append_new(serving, mfl_json_serving(list->serving[i]));
        return json_pack("{so}", "serving", serving);
}

/* What the inner session is told. */
static void on_told(void *user, const Mfl__Envelope *envelope)
{
        struct mfl_web_act *one = user;
        struct mfl_pages *pages = one->pages;
        switch (envelope->body_case) {
        case MFL__ENVELOPE__BODY_SUBMITTED:
                answer_json(pages, one->id, 200,
                        json_pack("{ss sb}", "job", envelope->submitted->job, "existed",
                                (int)envelope->submitted->existed),
                        NULL);
                break;
        case MFL__ENVELOPE__BODY_DONE:
                answer_json(pages, one->id, 200,
                        json_pack("{so}", "done", mfl_json_text(envelope->done->text)), NULL);
                break;
        case MFL__ENVELOPE__BODY_REGISTRY:
                answer_json(pages, one->id, 200, registry_json(envelope->registry), NULL);
                break;
        case MFL__ENVELOPE__BODY_INQUIRY_LIST:
                answer_json(pages, one->id, 200, validations_json(envelope->inquiry_list), NULL);
                break;
        case MFL__ENVELOPE__BODY_SERVING_LIST:
                answer_json(pages, one->id, 200, serving_json(envelope->serving_list), NULL);
                break;
        case MFL__ENVELOPE__BODY_FAILURE:
                answer_error(pages, one->id, status_of(envelope->failure->code), envelope->failure->text);
                break;
        default: /* Welcome */
                return;
        }
        forget(one);
}

/* ---- logging in and out ---- */

static void set_cookie(
        const struct mfl_pages *pages, const char *value, uint64_t seconds, char *text, size_t bytes)
{
        mfl_snprintf(text, bytes, "%s=%s; Path=/; HttpOnly; SameSite=Strict; Max-Age=%llu%s", pages->cookie,
                value, (unsigned long long)seconds,
                !strncmp(pages->logins->url, "https:", 6) ? "; Secure" : "");
}

static void note(struct mfl_pages *pages, const struct mfl_http_act *act, const char *who, const char *action,
        const char *result, const char *text)
{
        struct mfl_session as = {0}; /* for its names alone */
        mfl_strcpy(as.who, sizeof as.who, who);
        mfl_strcpy(as.address, sizeof as.address, act->address);
        mfl_book_note(pages->gate->book, &as, action, "", result, text);
}

/* Anybody can send one: they must not push other rows out of the audit, nor use up what it takes of refusals in a minute. */
static void note_wrong_code(struct mfl_pages *pages, const struct mfl_http_act *act, uint64_t now_ms)
{
        char text[128];
        if (pages->wrong_ms && now_ms - pages->wrong_ms < WRONG_CODE_EVERY_MS) {
                pages->n_wrong++;
                return;
        }
        mfl_snprintf(text, sizeof text,
                pages->n_wrong ? "a code that is unknown, used, or too old; %u more since the last such row"
                               : "a code that is unknown, used, or too old",
                pages->n_wrong);
        note(pages, act, "", "login", "refused", text);
        pages->wrong_ms = now_ms;
        pages->n_wrong = 0;
}

static void log_in(struct mfl_pages *pages, const struct mfl_http_act *act)
{
        const struct mfl_login *login;
        char cookie[MFL_LOGIN_SECRET_BYTES], text[256];
        struct mfl_error err;
        uint64_t now = mfl_loop_now(pages->loop);
        char code[MFL_LOGIN_SECRET_BYTES];
        bool certified = *act->visitor && !act->n; /* no code: the certificate that the browser has shown */
        int r = 0;
        if (certified)
                r = mfl_logins_issue(
                        pages->logins, act->visitor, act->roles, MFL_LOGIN_SECONDS, now, code, &err);
        if (!r)
                r = mfl_logins_take(pages->logins,
                        certified   ? code
                        : act->body ? act->body
                                    : "",
                        now, cookie, &login, &err);
        if (r < 0)
                mfl_loop_fatal(pages->loop, r, &err);
        if (r) {
                if (!certified)
                        note_wrong_code(pages, act, now);
                answer_error(pages, act->id, certified ? 503 : 401, err.text);
                return;
        }
        set_cookie(pages, cookie, (login->until_ms - now) / 1000, text, sizeof text);
        note(pages, act, login->who, "login", "done",
                certified ? "by a browser, with a certificate" : "by a browser");
        answer_login(pages, act->id, login, text);
}

static void log_out(struct mfl_pages *pages, const struct mfl_http_act *act, const struct mfl_login *login)
{
        char text[256];
        note(pages, act, login->who, "logout", "done", "by a browser");
        mfl_logins_drop(pages->logins, act->cookie);
        set_cookie(pages, "", 0, text, sizeof text);
        answer_json(pages, act->id, 200, json_pack("{ss}", "done", "logged out"), text);
}

/* ---- a model ---- */

static void run_model(struct mfl_work *work)
{
        struct mfl_web_act *one = MFL_CONTAINER_OF(work, struct mfl_web_act, work);
        one->status = mfl_web_model(
                one->pages->store, one->job, one->which, &one->fd, &one->bytes, &one->round, &one->err);
}

static void done_model(struct mfl_work *work)
{
        struct mfl_web_act *one = MFL_CONTAINER_OF(work, struct mfl_web_act, work);
        struct mfl_pages *pages = one->pages;
        char name[80];
        pages->n_models--;
        if (!work->cancelled && one->status < 0)
                mfl_loop_fatal(pages->loop, one->status, &one->err);
        if (!pages->http || work->cancelled) {
                if (one->fd >= 0)
                        close(one->fd);
        } else if (one->status) {
                answer_error(pages, one->id, one->status == MFL_NOT_FOUND ? 404 : 503, one->err.text);
        } else {
                mfl_snprintf(name, sizeof name, "%s-round-%u.safetensors", one->job, one->round);
                struct mfl_http_result result = {.status = 200,
                        .type = "application/octet-stream",
                        .fd = one->fd,
                        .n = one->bytes,
                        .file_name = name};
                mfl_http_acted(pages->http, one->id, &result);
        }
        free(one);
}

static struct mfl_web_act *act_new(struct mfl_pages *pages, const struct mfl_http_act *act)
{
        struct mfl_web_act *one = mfl_calloc(1, sizeof *one);
        if (!one) {
                answer_error(pages, act->id, 503, "out of memory");
                return NULL;
        }
        one->pages = pages;
        one->id = act->id;
        one->fd = -1;
        return one;
}

static void load_model(
        struct mfl_pages *pages, const struct mfl_http_act *act, const char *job, int64_t which)
{
        if (!mfl_server_job_find(pages->jobs, job)) {
                answer_error(pages, act->id, 404, "there is no such job");
                return;
        }
        if (pages->n_models >= MODELS_AT_ONCE) {
                answer_error(pages, act->id, 503, "other models are being made; try again");
                return;
        }
        struct mfl_web_act *one = act_new(pages, act);
        if (!one)
                return;
        mfl_strcpy(one->job, sizeof one->job, job);
        one->which = which;
        one->work = (struct mfl_work){.run = run_model, .done = done_model};
        /* Half of the queue is for the server's own work (session.h). */
        if (pages->loop->disk.n_pending < pages->loop->disk.queue_max / 2 &&
                !mfl_worker_submit(&pages->loop->disk, &one->work)) {
                pages->n_models++;
                return;
        }
        free(one);
        answer_error(pages, act->id, 503, "the server is too busy");
}

/* ---- requests of the protocol ---- */

static void ask(struct mfl_pages *pages, const struct mfl_http_act *act, const struct mfl_login *login,
        const Mfl__Envelope *envelope)
{
        struct mfl_error err;
        struct mfl_web_act *one = act_new(pages, act);
        if (!one)
                return;
        one->next = pages->acts;
        pages->acts = one;
        one->session =
                mfl_session_inner(pages->sessions, login->who, login->roles, act->address, on_told, one);
        if (!one->session) {
                forget(one);
                answer_error(pages, act->id, 503, "out of memory");
                return;
        }
        int r = mfl_session_inner_ask(one->session, envelope, &err);
        if (!r)
                return;
        forget(one); /* an invalid request was not answered */
        if (r < 0)
                mfl_loop_fatal(pages->loop, r, &err);
        answer_error(pages, act->id, r < 0 ? 503 : 400, err.text);
}

static void ask_for(struct mfl_pages *pages, const struct mfl_http_act *act, const struct mfl_login *login,
        enum act_kind kind, char *job)
{
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        Mfl__Submit submit = MFL__SUBMIT__INIT;
        Mfl__CloneJob clone = MFL__CLONE_JOB__INIT;
        Mfl__StopJob stop = MFL__STOP_JOB__INIT;
        Mfl__StopAfterRound after = MFL__STOP_AFTER_ROUND__INIT;
        Mfl__DeleteJob gone = MFL__DELETE_JOB__INIT;
        Mfl__ArchiveJob archive = MFL__ARCHIVE_JOB__INIT;
        envelope.request = act->id;
        submit.text = act->body ? act->body : "";
        submit.file = "job.yaml";
        submit.token = clone.token = (char *)(uintptr_t)act->token;
        clone.job = stop.job = after.job = gone.job = archive.job = job;
        switch (kind) {
        case ACT_SUBMIT:
                envelope.body_case = MFL__ENVELOPE__BODY_SUBMIT;
                envelope.submit = &submit;
                break;
        case ACT_CLONE:
                envelope.body_case = MFL__ENVELOPE__BODY_CLONE_JOB;
                envelope.clone_job = &clone;
                break;
        case ACT_STOP:
                envelope.body_case = MFL__ENVELOPE__BODY_STOP_JOB;
                envelope.stop_job = &stop;
                break;
        case ACT_DELETE:
                envelope.body_case = MFL__ENVELOPE__BODY_DELETE_JOB;
                envelope.delete_job = &gone;
                break;
        case ACT_ARCHIVE:
        case ACT_UNARCHIVE:
                archive.undo = kind == ACT_UNARCHIVE;
                envelope.body_case = MFL__ENVELOPE__BODY_ARCHIVE_JOB;
                envelope.archive_job = &archive;
                break;
        default:
                envelope.body_case = MFL__ENVELOPE__BODY_STOP_AFTER_ROUND;
                envelope.stop_after_round = &after;
        }
        ask(pages, act, login, &envelope);
}

/* What changes nothing. */
static void look_for(struct mfl_pages *pages, const struct mfl_http_act *act, const struct mfl_login *login,
        enum act_kind kind)
{
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        Mfl__ListRegistry registry = MFL__LIST_REGISTRY__INIT;
        Mfl__ListInquiries inquiries = MFL__LIST_INQUIRIES__INIT;
        Mfl__ListServing serving = MFL__LIST_SERVING__INIT;
        envelope.request = act->id;
        if (kind == ACT_REGISTRY) {
                envelope.body_case = MFL__ENVELOPE__BODY_LIST_REGISTRY;
                envelope.list_registry = &registry;
        } else if (kind == ACT_VALIDATIONS) {
                inquiries.kind = MFL__INQUIRY_KIND__INQUIRY_EVALUATE;
                inquiries.count = VALIDATIONS_MAX;
                envelope.body_case = MFL__ENVELOPE__BODY_LIST_INQUIRIES;
                envelope.list_inquiries = &inquiries;
        } else {
                envelope.body_case = MFL__ENVELOPE__BODY_LIST_SERVING;
                envelope.list_serving = &serving;
        }
        ask(pages, act, login, &envelope);
}

void mfl_act(struct mfl_pages *pages, const struct mfl_http_act *act)
{
        enum act_kind kind;
        char job[MFL_JOB_ID_BYTES] = "";
        int64_t which = 0;
        bool known = find_kind(act->path, act->post, &kind, job, &which);
        mfl_assert(known);
        if (kind == ACT_LOGIN) {
                log_in(pages, act);
                return;
        }
        const struct mfl_login *found =
                mfl_logins_find(pages->logins, act->cookie, mfl_loop_now(pages->loop));
        if (!found && kind == ACT_WHO && *act->visitor) {
                answer_json(pages, act->id, 401,
                        json_pack("{ss ss}", "error", "nobody is logged in", "certificate", act->visitor),
                        NULL);
                return;
        }
        if (!found) {
                answer_error(pages, act->id, 401,
                        *act->cookie ? "this login has ended: mfl login issue makes a code for another one"
                                     : "nobody is logged in: mfl login issue makes a code");
                return;
        }
        const struct mfl_login login = *found; /* the table may change below */
        if (act->post && !mfl_login_has_csrf(&login, act->csrf)) {
                answer_error(pages, act->id, 403,
                        "X-MFL-CSRF is not the value that GET /api/login tells for this login");
                return;
        }
        if (act->post && act->body && strlen(act->body) != act->n) {
                answer_error(pages, act->id, 400, "job.yaml: it has a zero byte");
                return;
        }
        if (kind == ACT_LOGOUT)
                log_out(pages, act, &login);
        else if (kind == ACT_WHO)
                answer_login(pages, act->id, &login, NULL);
        else if (kind == ACT_MODEL)
                load_model(pages, act, job, which);
        else if (kind == ACT_SUBMIT && !pages->ready)
                answer_error(pages, act->id, 503, "the server is starting; try again");
        else if (kind >= ACT_REGISTRY)
                look_for(pages, act, &login, kind);
        else
                ask_for(pages, act, &login, kind, job);
}

void mfl_acts_close(struct mfl_pages *pages)
{
        while (pages->acts)
                forget(pages->acts);
}
