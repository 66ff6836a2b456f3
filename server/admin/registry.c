/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of models: versions, aliases, promotion through gates, rollback. */
#include "common/base/log.h"
#include "server/admin/answers.h"
#include "server/admin/permit.h"
#include "server/inquiry/gates.h"
#include "server/models/models.h"

struct change_op {
        Mfl__ModelVerb verb;
        char name[MFL_NAME_BYTES], alias[MFL_NAME_BYTES];
        uint32_t version;
        Mfl__ModelGates gates;
        char done[MFL_REASON_BYTES];
        struct mfl_store_versions versions; /* afterwards, all of them */
};

static void free_change(void *own)
{
        struct change_op *op = own;
        mfl_store_versions_deinit(&op->versions);
        free(op);
}

/* ---- promotion ---- */

/* *ret_report: NULL if there is none. */
static int newest_report(
        struct mfl_request *op, const char *model, Mfl__InquiryReport **ret_report, struct mfl_error *err)
{
        struct mfl_store_version version;
        struct mfl_store_inquiries rows = {0};
        int r = mfl_store_version_find(op->admin->store, model, &version, err);
        if (!r)
                r = mfl_store_inquiry_list(
                        op->admin->store, MFL__INQUIRY_KIND__INQUIRY_EVALUATE, version.digest, 1, &rows, err);
        *ret_report =
                !r && rows.n ? mfl__inquiry_report__unpack(NULL, rows.v[0].bytes, rows.v[0].body) : NULL;
        mfl_store_inquiries_deinit(&rows);
        return r;
}

/* *ret_version: where the alias points; 0: nowhere. */
static int alias_version(struct mfl_request *op, uint32_t *ret_version)
{
        const struct change_op *own = op->own;
        struct mfl_store_aliases aliases = {0};
        int r = mfl_store_alias_list(op->admin->store, &aliases, &op->err);
        *ret_version = 0;
        for (uint32_t i = 0; i < aliases.n; i++)
                if (!strcmp(aliases.v[i].name, own->name) && !strcmp(aliases.v[i].alias, own->alias))
                        *ret_version = aliases.v[i].version;
        mfl_store_aliases_deinit(&aliases);
        return r;
}

static int check_gates(struct mfl_request *op)
{
        const struct change_op *own = op->own;
        Mfl__InquiryReport *now = NULL, *before = NULL;
        char model[2 * MFL_NAME_BYTES], reason[MFL_REASON_BYTES];
        uint32_t had;
        int r = alias_version(op, &had);
        mfl_snprintf(model, sizeof model, "%s@%u", own->name, own->version);
        if (!r)
                r = newest_report(op, model, &now, &op->err);
        mfl_snprintf(model, sizeof model, "%s@%u", own->name, had);
        if (!r && had)
                r = newest_report(op, model, &before, &op->err);
        if (!r && mfl_gates_check(&own->gates, now, had && had != own->version, before, reason))
                r = mfl_fail(
                        &op->err, MFL_BUSY, "%s@%u is not promoted: %s", own->name, own->version, reason);
        if (now)
                mfl__inquiry_report__free_unpacked(now, NULL);
        if (before)
                mfl__inquiry_report__free_unpacked(before, NULL);
        return r;
}

/* ---- changes ---- */

static int set_alias(struct mfl_request *op)
{
        struct change_op *own = op->own;
        struct mfl_store_version newest;
        int r = own->version ? 0 : mfl_store_version_find(op->admin->store, own->name, &newest, &op->err);
        if (!r && !own->version)
                own->version = newest.version;
        if (!r && own->verb == MFL__MODEL_VERB__MODEL_PROMOTE)
                r = check_gates(op);
        if (!r)
                r = mfl_store_alias_set(
                        op->admin->store, own->name, own->alias, own->version, op->audit.who, &op->err);
        mfl_snprintf(own->done, sizeof own->done, "%s@%s is version %u", own->name, own->alias, own->version);
        return r;
}

static int change(struct mfl_request *op)
{
        struct change_op *own = op->own;
        struct mfl_store *store = op->admin->store;
        int r;
        switch (own->verb) {
        case MFL__MODEL_VERB__MODEL_REGISTER:
                r = mfl_store_version_add(
                        store, own->name, op->job, op->which, op->audit.who, &own->version, &op->err);
                mfl_snprintf(own->done, sizeof own->done, "%s@%u%s", own->name, own->version,
                        r == MFL_EXISTS ? " (it was registered before)" : "");
                return r == MFL_EXISTS ? 0 : r;
        case MFL__MODEL_VERB__MODEL_ROLLBACK:
                r = mfl_store_alias_back(store, own->name, own->alias, &own->version, &op->err);
                mfl_snprintf(own->done, sizeof own->done, "%s@%s is version %u again", own->name, own->alias,
                        own->version);
                return r;
        case MFL__MODEL_VERB__MODEL_REMOVE:
                mfl_snprintf(own->done, sizeof own->done, "removed");
                return own->version ? mfl_store_version_remove(store, own->name, own->version, &op->err)
                                    : mfl_store_alias_remove(store, own->name, own->alias, &op->err);
        default:
                return set_alias(op);
        }
}

static void run_change(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        struct change_op *own = op->own;
        op->status = change(op);
        if (op->status)
                return;
        mfl_strcpy(op->audit.text, sizeof op->audit.text, own->done);
        op->status = mfl_store_version_list(op->admin->store, "", &own->versions, &op->err);
}

static void mark_jobs(struct mfl_admin *admin, const struct mfl_store_versions *versions)
{
        for (struct mfl_server_job *job = admin->jobs->first; job; job = job->next) {
                job->registered = false;
                for (uint32_t i = 0; i < versions->n && !job->registered; i++)
                        job->registered = !strcmp(versions->v[i].job, job->id);
        }
}

int mfl_admin_open_registry(struct mfl_admin *admin, struct mfl_error *err)
{
        struct mfl_store_versions versions;
        int r = mfl_store_version_list(admin->store, "", &versions, err);
        if (r)
                return r;
        mark_jobs(admin, &versions);
        mfl_store_versions_deinit(&versions);
        return 0;
}

static void answer_change(struct mfl_request *op, struct mfl_session *session)
{
        const struct change_op *own = op->own;
        mark_jobs(op->admin, &own->versions);
        mfl_operator_models_changed(op->admin);
        if (session)
                mfl_operator_done(session, op->request, own->done);
}

void mfl_operator_change_model(struct mfl_session *session, uint64_t request, const Mfl__ChangeModel *message)
{
        if (*message->job && !mfl_operator_job(session, request, message->job))
                return;
        struct mfl_request *op = mfl_request_new(session, request, message->job, run_change, answer_change);
        struct change_op *own = op ? mfl_calloc(1, sizeof *own) : NULL;
        if (!own) {
                if (op) {
                        mfl_operator_no_memory(session, sizeof *own, "a model");
                        mfl_request_free(op);
                }
                return;
        }
        op->own = own;
        op->own_free = free_change;
        op->which = message->round;
        own->verb = message->verb;
        own->version = message->version;
        mfl_strcpy(own->name, sizeof own->name, message->name);
        mfl_strcpy(own->alias, sizeof own->alias, message->alias);
        own->gates = (Mfl__ModelGates)MFL__MODEL_GATES__INIT;
        own->gates.worse_max = -1;
        if (message->gates) {
                own->gates.accuracy = message->gates->accuracy;
                own->gates.worse_max = message->gates->worse_max;
                own->gates.sites = message->gates->sites;
        }
        mfl_request_audit(op, mfl_operator_model_verb(message->verb), message->name);
        mfl_request_start(op, session);
}

/* ---- the list ---- */

struct list_op {
        char name[MFL_NAME_BYTES];
        struct mfl_store_versions versions;
        struct mfl_store_aliases aliases;
        struct mfl_store_round *rounds; /* one each */
        uint32_t *validated;
};

static void free_list(void *own)
{
        struct list_op *op = own;
        mfl_store_versions_deinit(&op->versions);
        mfl_store_aliases_deinit(&op->aliases);
        free(op->rounds);
        free(op->validated);
        free(op);
}

static int read_version(struct mfl_request *op, uint32_t i)
{
        struct list_op *own = op->own;
        const struct mfl_store_version *v = &own->versions.v[i];
        char model[2 * MFL_NAME_BYTES];
        Mfl__InquiryReport *report = NULL;
        int r = mfl_store_round_get(op->admin->store, v->job, v->round, false, &own->rounds[i], &op->err);
        mfl_snprintf(model, sizeof model, "%s@%u", v->name, v->version);
        if (r == MFL_NOT_FOUND) /* its job began anew; the version's row says what it was */
                r = 0;
        if (!r)
                r = newest_report(op, model, &report, &op->err);
        if (report) {
                own->validated[i] = mfl_gates_sites(report);
                mfl__inquiry_report__free_unpacked(report, NULL);
        }
        return r;
}

static void run_list(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        struct list_op *own = op->own;
        op->status = mfl_store_version_list(op->admin->store, own->name, &own->versions, &op->err);
        if (!op->status)
                op->status = mfl_store_alias_list(op->admin->store, &own->aliases, &op->err);
        if (op->status)
                return;
        own->rounds = mfl_calloc(own->versions.n + 1, sizeof *own->rounds);
        own->validated = mfl_calloc(own->versions.n + 1, sizeof *own->validated);
        if (!own->rounds || !own->validated)
                op->status = mfl_fail_memory(
                        &op->err, own->versions.n * sizeof *own->rounds, "the versions of models");
        for (uint32_t i = 0; i < own->versions.n && !op->status; i++)
                op->status = read_version(op, i);
}

static void fill_version(const struct list_op *own, uint32_t i, char **aliases, Mfl__ModelVersion *to)
{
        const struct mfl_store_version *v = &own->versions.v[i];
        const struct mfl_round_record *round = &own->rounds[i].record;
        mfl__model_version__init(to);
        to->name = (char *)(uintptr_t)v->name;
        to->version = v->version;
        to->job = (char *)(uintptr_t)v->job;
        to->round = v->round;
        to->digest = (ProtobufCBinaryData){MFL_DIGEST_BYTES, (uint8_t *)(uintptr_t)v->digest};
        to->who = (char *)(uintptr_t)v->who;
        to->time_ms = v->time_ms;
        to->validated = own->validated[i];
        to->evaluated = round->evaluated;
        to->accuracy = round->evaluated ? round->accuracy : 0;
        to->loss = round->evaluated ? round->loss : 0;
        to->aliases = aliases;
        for (uint32_t k = 0; k < own->aliases.n; k++)
                if (!strcmp(own->aliases.v[k].name, v->name) && own->aliases.v[k].version == v->version)
                        aliases[to->n_aliases++] = own->aliases.v[k].alias;
}

static void answer_list(struct mfl_request *op, struct mfl_session *session)
{
        const struct list_op *own = op->own;
        uint32_t n = own->versions.n, n_aliases = 0;
        Mfl__Registry body = MFL__REGISTRY__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        MFL_CLEANUP_FREE Mfl__ModelVersion *versions = mfl_calloc(n + 1, sizeof *versions);
        MFL_CLEANUP_FREE Mfl__ModelVersion **pointers = mfl_calloc(n + 1, sizeof *pointers);
        MFL_CLEANUP_FREE char **aliases = mfl_calloc(own->aliases.n + 1, sizeof *aliases);
        if (!session)
                return;
        if (!versions || !pointers || !aliases) {
                mfl_operator_no_memory(session, n * sizeof *versions, "the versions of models");
                return;
        }
        for (uint32_t i = 0; i < n; i++) {
                fill_version(own, i, aliases + n_aliases, &versions[i]);
                n_aliases += (uint32_t)versions[i].n_aliases;
                pointers[i] = &versions[i];
        }
        body.versions = pointers;
        body.n_versions = n;
        while (mfl__registry__get_packed_size(&body) > MFL_LIST_BYTES_MAX) {
                body.versions++;
                body.n_versions--;
        }
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_REGISTRY;
        envelope.registry = &body;
        mfl_session_send(session, &envelope);
}

void mfl_operator_registry(struct mfl_session *session, uint64_t request, const Mfl__ListRegistry *list)
{
        struct mfl_request *op = mfl_request_new(session, request, "", run_list, answer_list);
        struct list_op *own = op ? mfl_calloc(1, sizeof *own) : NULL;
        if (!own) {
                if (op) {
                        mfl_operator_no_memory(session, sizeof *own, "the versions of models");
                        mfl_request_free(op);
                }
                return;
        }
        op->own = own;
        op->own_free = free_list;
        mfl_strcpy(own->name, sizeof own->name, list->name);
        mfl_request_start(op, session);
}
