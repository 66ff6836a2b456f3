/* SPDX-License-Identifier: Apache-2.0 */
/* Those who serve models (mfl-serve): they hear which version a registered model is, and tell what they serve. */
#include "server/admin/answers.h"
#include "server/models/models.h"

#define WATCHERS_MAX 256 /* per connection */

/* ---- which version a model is ---- */

struct mfl_model_watcher {
        struct mfl_model_watcher *next; /* of the session */
        uint64_t request;
        char model[2 * MFL_NAME_BYTES + 1];
        bool told; /* of the version below */
        uint32_t version;
};

struct find_op {
        char model[2 * MFL_NAME_BYTES + 1];
        struct mfl_store_version version;
        int found;
        struct mfl_error err;
};

static void run_find(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        struct find_op *own = op->own;
        own->found = mfl_store_version_find(op->admin->store, own->model, &own->version, &own->err);
        if (own->found < 0) {
                op->status = own->found;
                op->err = own->err;
        }
}

static struct mfl_model_watcher **find_watcher(struct mfl_session *session, uint64_t request)
{
        struct mfl_model_watcher **at = &mfl_operator_of(session)->model_watchers;
        while (*at && (*at)->request != request)
                at = &(*at)->next;
        return at;
}

static void drop(struct mfl_model_watcher **at)
{
        struct mfl_model_watcher *watcher = *at;
        *at = watcher->next;
        free(watcher);
}

static void tell_version(struct mfl_session *session, uint64_t request, const struct mfl_store_version *v)
{
        Mfl__ModelVersion version = MFL__MODEL_VERSION__INIT, *pointer = &version;
        Mfl__Registry body = MFL__REGISTRY__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        version.name = (char *)(uintptr_t)v->name;
        version.version = v->version;
        version.job = (char *)(uintptr_t)v->job;
        version.round = v->round;
        version.digest = (ProtobufCBinaryData){MFL_DIGEST_BYTES, (uint8_t *)(uintptr_t)v->digest};
        version.who = (char *)(uintptr_t)v->who;
        version.time_ms = v->time_ms;
        body.versions = &pointer;
        body.n_versions = 1;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_REGISTRY;
        envelope.registry = &body;
        mfl_session_send(session, &envelope);
}

static void answer_find(struct mfl_request *op, struct mfl_session *session)
{
        const struct find_op *own = op->own;
        struct mfl_model_watcher **at = session ? find_watcher(session, op->request) : NULL;
        if (!at || !*at)
                return;
        if (own->found) {
                drop(at);
                mfl_session_fail(
                        session, op->request, mfl_operator_failure_code(own->found), "%s", own->err.text);
                return;
        }
        struct mfl_model_watcher *watcher = *at;
        if (watcher->told && watcher->version == own->version.version)
                return;
        watcher->told = true;
        watcher->version = own->version.version;
        tell_version(session, op->request, &own->version);
}

static void find(struct mfl_session *session, const struct mfl_model_watcher *watcher)
{
        struct mfl_request *op = mfl_request_new(session, watcher->request, "", run_find, answer_find);
        struct find_op *own = op ? mfl_calloc(1, sizeof *own) : NULL;
        if (!own) {
                if (op) {
                        mfl_operator_no_memory(session, sizeof *own, "a model's version");
                        mfl_request_free(op);
                }
                return;
        }
        mfl_strcpy(own->model, sizeof own->model, watcher->model);
        op->own = own;
        op->own_free = free;
        mfl_request_start(op, session);
}

void mfl_operator_watch_model(struct mfl_session *session, uint64_t request, const Mfl__WatchModel *watch)
{
        struct mfl_operator_peer *peer = mfl_operator_of(session);
        uint32_t n = 0;
        for (const struct mfl_model_watcher *w = peer->model_watchers; w; w = w->next)
                n++;
        if (n == WATCHERS_MAX) {
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_LIMIT,
                        "this connection watches %d models already, which is the limit", WATCHERS_MAX);
                return;
        }
        struct mfl_model_watcher *watcher = mfl_calloc(1, sizeof *watcher);
        if (!watcher) {
                mfl_operator_no_memory(session, sizeof *watcher, "a watcher");
                return;
        }
        *watcher = (struct mfl_model_watcher){.next = peer->model_watchers, .request = request};
        mfl_strcpy(watcher->model, sizeof watcher->model, watch->model);
        peer->model_watchers = watcher;
        find(session, watcher);
}

/* The next session of an operator, from this one on. */
static struct mfl_session *next_operator(struct mfl_session *s)
{
        while (s && (s->role != MFL__ROLE__ROLE_OPERATOR || !s->peer))
                s = s->next;
        return s;
}

void mfl_operator_models_changed(struct mfl_admin *admin)
{
        struct mfl_session *s = next_operator(admin->sessions->first);
        for (; s; s = next_operator(s->next))
                for (const struct mfl_model_watcher *w = mfl_operator_of(s)->model_watchers; w; w = w->next)
                        find(s, w);
}

/* ---- what is served ---- */

static int copy(const Mfl__Serving *serving, Mfl__Serving **ret_copy)
{
        size_t n = mfl__serving__get_packed_size(serving);
        MFL_CLEANUP_FREE uint8_t *bytes = mfl_malloc(n + 1);
        if (!bytes)
                return -ENOMEM;
        mfl__serving__pack(serving, bytes);
        *ret_copy = mfl__serving__unpack(NULL, n, bytes);
        return *ret_copy ? 0 : -ENOMEM;
}

void mfl_operator_serving(struct mfl_session *session, const Mfl__Serving *serving)
{
        struct mfl_operator_peer *peer = mfl_operator_of(session);
        Mfl__Serving told = *serving, *kept;
        if (!(session->roles & (MFL_TLS_ROLE_SERVE | MFL_TLS_ROLE_OPERATOR | MFL_TLS_ROLE_ADMIN)))
                return;
        told.who = session->who;
        told.address = session->address;
        told.time_ms = mfl_unix_ms();
        if (copy(&told, &kept)) {
                mfl_operator_no_memory(session, sizeof told, "what is served");
                return;
        }
        if (peer->serving)
                mfl__serving__free_unpacked(peer->serving, NULL);
        peer->serving = kept;
}

void mfl_operator_serving_list(struct mfl_session *session, uint64_t request)
{
        struct mfl_admin *admin = mfl_admin_of(session);
        Mfl__ServingList body = MFL__SERVING_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        MFL_CLEANUP_FREE Mfl__Serving **all = mfl_calloc(admin->n_operators + 1, sizeof *all);
        size_t bytes = 0;
        if (!all) {
                mfl_operator_no_memory(session, admin->n_operators * sizeof *all, "what is served");
                return;
        }
        for (struct mfl_session *s = next_operator(admin->sessions->first); s; s = next_operator(s->next)) {
                Mfl__Serving *serving = mfl_operator_of(s)->serving;
                bytes += serving ? mfl__serving__get_packed_size(serving) + 8 : 0;
                if (serving && bytes <= MFL_LIST_BYTES_MAX)
                        all[body.n_serving++] = serving;
        }
        body.serving = all;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_SERVING_LIST;
        envelope.serving_list = &body;
        mfl_session_send(session, &envelope);
}

void mfl_operator_serving_forget(struct mfl_session *session)
{
        struct mfl_operator_peer *peer = mfl_operator_of(session);
        while (peer->model_watchers)
                drop(&peer->model_watchers);
        if (peer->serving)
                mfl__serving__free_unpacked(peer->serving, NULL);
        peer->serving = NULL;
}
