/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons as operators see them, those that were refused lately among them, and draining them. */
#include "server/operator.h"

#include <stdio.h>

/* ---- daemons ---- */

struct daemon_entry {
        Mfl__DaemonInfo info;
        Mfl__Telemetry telemetry;
        Mfl__Activity activity;
        struct mfl_core_daemon_view view;
        Mfl__DataSet sets[MFL_DATA_SETS_MAX];
        Mfl__DataSet *set_pointers[MFL_DATA_SETS_MAX];
        uint32_t shapes[MFL_DATA_SETS_MAX][MFL_SHAPE_RANK_MAX];
};

static void fill_data_sets(struct daemon_entry *entry)
{
        const struct mfl_daemon_info *info = entry->view.info;
        uint32_t n = MFL_MIN(info->n_data_sets, (uint32_t)MFL_DATA_SETS_MAX);
        for (uint32_t i = 0; i < n; i++) {
                const struct mfl_data_info *data = &info->data_sets[i];
                Mfl__DataSet *set = &entry->sets[i];
                mfl__data_set__init(set);
                set->name = (char *)data->name;
                for (int d = 0; d < data->shape.rank; d++)
                        entry->shapes[i][d] = (uint32_t)data->shape.dim[d];
                set->n_shape = (size_t)data->shape.rank;
                set->shape = entry->shapes[i];
                set->classes = data->classes;
                set->train_samples = data->train_samples;
                set->test_samples = data->test_samples;
                set->fingerprint = data->fingerprint;
                set->meaning = data->meaning;
                entry->set_pointers[i] = set;
        }
        entry->info.n_data_sets = n;
        entry->info.data_sets = entry->set_pointers;
}

_Static_assert((int)MFL_COLLECTIVE_SOLO == MFL__COLLECTIVE__COLLECTIVE_SOLO, "collectives differ");
_Static_assert((int)MFL_COLLECTIVE_SHM == MFL__COLLECTIVE__COLLECTIVE_SHM, "collectives differ");
_Static_assert((int)MFL_COLLECTIVE_NCCL == MFL__COLLECTIVE__COLLECTIVE_NCCL, "collectives differ");

static void fill_daemon(struct mfl_server *server, struct daemon_entry *entry)
{
        const struct mfl_core_daemon_view *view = &entry->view;
        struct mfl_session *session = view->conn ? mfl_session_find(server, view->conn) : NULL;
        Mfl__DaemonInfo *out = &entry->info;
        mfl__daemon_info__init(out);
        out->name = (char *)view->info->name;
        out->node = (char *)(*view->node ? view->node : view->info->node);
        out->backend = (char *)view->info->backend;
        out->device = (char *)view->info->device;
        out->software = (char *)view->info->software;
        out->workers = view->info->workers;
        out->address = session ? session->peer : "";
        out->connected_ms = session ? session->connected_unix_ms : 0;
        out->state = (char *)view->state;
        out->job = (char *)view->job;
        out->round = view->round;
        out->items_done = view->items_done;
        out->items_total = view->items_total;
        out->samples_per_second = view->samples_per_second;
        out->clients_per_second = view->clients_per_second;
        out->collective = (Mfl__Collective)view->collective; /* the numbers are the same by design */
        out->leader = view->leader;
        out->alone = (char *)view->alone;
        out->note = (char *)view->note;
        out->device_uuid = (char *)view->info->device_uuid;
        out->device_pci = (char *)view->info->device_pci;
        out->device_memory = view->info->device_memory;
        out->numerics = (char *)view->info->numerics;
        const struct mfl_telemetry *told = mfl_session_telemetry(server, view->conn);
        if (told && (told->known & MFL_TELEMETRY_OF_GPU)) {
                mfl_wire_from_telemetry(told, &entry->telemetry, NULL);
                out->telemetry = &entry->telemetry;
        }
        if (told && (told->known & MFL_TELEMETRY_ACTIVITY)) {
                mfl_wire_from_activity(&told->activity, &entry->activity);
                out->activity = &entry->activity;
        }
        fill_data_sets(entry);
}

void mfl_operator_daemons(struct mfl_session *session, uint64_t request)
{
        struct mfl_server *server = session->server;
        uint32_t n_known = mfl_core_daemon_count(server->core);
        mfl_refused_trim(&server->refused, &server->rules, mfl_unix_ms());
        uint32_t n_core = MFL_MIN(n_known, 1000u), shown = 0; /* an envelope has a limit */
        uint32_t n_refused = MFL_MIN(server->refused.n, 1000u - n_core), n = n_core + n_refused;
        MFL_CLEANUP_FREE struct daemon_entry *entries = mfl_calloc(n, sizeof *entries);
        MFL_CLEANUP_FREE Mfl__DaemonInfo **pointers = mfl_calloc(n, sizeof *pointers);
        if (!entries || !pointers) {
                mfl_operator_no_memory(session, n * sizeof *entries, "a list of daemons");
                return;
        }
        for (uint32_t i = 0; i < n_core; i++) {
                struct daemon_entry *entry = &entries[shown];
                mfl_core_daemon_view(server->core, i, &entry->view);
                if (!entry->view.conn && mfl_refused_find(&server->refused, entry->view.info->name))
                        continue; /* below */
                fill_daemon(server, entry);
                pointers[shown++] = &entry->info;
        }
        for (uint32_t i = 0; i < n_refused; i++) {
                mfl_operator_fill_refused(&server->refused.v[i], &entries[shown].info);
                pointers[shown] = &entries[shown].info;
                shown++;
        }
        Mfl__DaemonList list = MFL__DAEMON_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        list.n_daemons = shown;
        list.daemons = pointers;
        while (mfl__daemon_list__get_packed_size(&list) > MFL_LIST_BYTES_MAX)
                list.n_daemons -= list.n_daemons / 8 + 1;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_DAEMON_LIST;
        envelope.daemon_list = &list;
        mfl_session_send(session, &envelope);
}

#define ALL                                                                                                  \
        "*" /* in the list of drained names: every daemon, also those to come. No daemon can have that name  \
             */

struct mfl_drain_wait {
        struct mfl_drain_wait *next;
        uint32_t conn;
        uint64_t request;
        char daemon[MFL_NAME_BYTES];
};

/* "" when there is no such daemon. */
static const char *daemon_state(struct mfl_server *server, const char *name)
{
        uint32_t n = mfl_core_daemon_count(server->core);
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(server->core, i, &view);
                if (!strcmp(view.info->name, name))
                        return view.state;
        }
        return "";
}

/* What a drain waits for, by name or ALL. */
static bool is_draining(struct mfl_server *server, const char *name)
{
        bool all = !strcmp(name, ALL);
        uint32_t n = mfl_core_daemon_count(server->core);
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(server->core, i, &view);
                if ((all || !strcmp(view.info->name, name)) && !strcmp(view.state, "draining"))
                        return true;
        }
        return false;
}

static void answer_drained(struct mfl_session *session, uint64_t request, const char *name);

void mfl_operator_check_drains(struct mfl_server *server)
{
        struct mfl_drain_wait **at = &server->drains, *wait;
        while ((wait = *at)) {
                if (is_draining(server, wait->daemon)) {
                        at = &wait->next;
                        continue;
                }
                struct mfl_session *session = mfl_session_find(server, wait->conn);
                if (session)
                        answer_drained(session, wait->request, wait->daemon);
                *at = wait->next;
                free(wait);
        }
}

static void feed_drain(struct mfl_server *server, const char *daemon, bool on)
{
        struct mfl_core_event event = {.kind = MFL_EV_DRAIN, .drain = {.on = on}};
        mfl_strcpy(event.drain.name, sizeof event.drain.name, daemon);
        mfl_server_feed(server, &event);
}

static char *drained_name(struct mfl_server *server, const char *daemon)
{
        for (uint32_t i = 0; i < server->drained.n; i++)
                if (!strcmp(server->drained.v[i], daemon))
                        return server->drained.v[i];
        return NULL;
}

bool mfl_operator_is_drained(struct mfl_server *server, const char *daemon)
{
        return drained_name(server, daemon) || drained_name(server, ALL);
}

/* Keeps the list in memory as the database will have it. */
static int note_drained(struct mfl_server *server, const char *daemon, bool on)
{
        struct mfl_store_names *names = &server->drained;
        char *known = drained_name(server, daemon);
        if (on && !known) {
                void *v = mfl_realloc(names->v, (names->n + 1) * sizeof *names->v);
                if (!v)
                        return -ENOMEM;
                names->v = v;
                mfl_strcpy(names->v[names->n++], MFL_NAME_BYTES, daemon);
        } else if (!on && known) {
                memmove(known, names->v[--names->n], MFL_NAME_BYTES);
        }
        return 0;
}

static void run_drain(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_store_drain(op->server->store, op->name, op->which != 0, &op->err);
}

static void wait_for_drain(struct mfl_session *session, uint64_t request, const char *daemon);

/* Those that a Drain of all is told about: connected, and of them at work or drained. */
struct drain_count {
        uint32_t n, n_drained, n_at_work;
};

static struct drain_count count_drained(struct mfl_server *server)
{
        struct drain_count count = {0};
        uint32_t n = mfl_core_daemon_count(server->core);
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(server->core, i, &view);
                count.n += view.conn != 0;
                count.n_drained += !strcmp(view.state, "drained");
                count.n_at_work += !strcmp(view.state, "draining");
        }
        return count;
}

static void answer_all(struct mfl_server *server, struct mfl_session *session, uint64_t request)
{
        struct drain_count count = count_drained(server);
        char text[200];
        if (!drained_name(server, ALL))
                snprintf(text, sizeof text, "%u of %u connected daemons take work; %u stay drained by name",
                        count.n - count.n_drained - count.n_at_work, count.n,
                        count.n_drained + count.n_at_work);
        else if (count.n_at_work)
                snprintf(text, sizeof text, "%u of %u connected daemons are still at work", count.n_at_work,
                        count.n);
        else
                snprintf(text, sizeof text,
                        "no daemon is at work (%u connected): it is safe to restart or upgrade the server "
                        "and daemons",
                        count.n);
        mfl_operator_done(session, request, text);
}

/* A wait is over. */
static void answer_drained(struct mfl_session *session, uint64_t request, const char *name)
{
        if (!strcmp(name, ALL))
                answer_all(session->server, session, request);
        else
                mfl_operator_done(session, request, "drained");
}

static void answer_drain(struct mfl_request *op, struct mfl_session *session)
{
        if (!session)
                return;
        if (op->wait && op->which && is_draining(op->server, op->name))
                wait_for_drain(session, op->request, op->name);
        else if (!strcmp(op->name, ALL))
                answer_all(op->server, session, op->request);
        else
                mfl_operator_done(session, op->request, daemon_state(op->server, op->name));
}

/* Their names first: an event may take a daemon out of the core's list. */
static int feed_drain_all(struct mfl_server *server)
{
        uint32_t n = mfl_core_daemon_count(server->core);
        char(*names)[MFL_NAME_BYTES] = mfl_calloc(n, sizeof *names);
        if (!names)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(server->core, i, &view);
                mfl_strcpy(names[i], sizeof names[i], view.info->name);
        }
        for (uint32_t i = 0; i < n; i++)
                feed_drain(server, names[i], mfl_operator_is_drained(server, names[i]));
        free(names);
        return 0;
}

static int carry_out_drain(struct mfl_server *server, const char *name, bool on)
{
        int r = note_drained(server, name, on);
        if (r)
                return r;
        if (!strcmp(name, ALL))
                return feed_drain_all(server);
        feed_drain(server, name, mfl_operator_is_drained(server, name));
        return 0;
}

void mfl_operator_drain(struct mfl_session *session, uint64_t request, const Mfl__Drain *drain)
{
        struct mfl_server *server = session->server;
        const char *name = drain->all ? ALL : drain->daemon;
        if (!drain->all && !*daemon_state(server, name)) {
                mfl_operator_fail(session, request, MFL__FAILURE_CODE__FAILURE_NOT_FOUND,
                        "there is no daemon '%s'", name);
                return;
        }
        struct mfl_request *op = mfl_request_new(session, request, "", run_drain, answer_drain);
        if (!op)
                return;
        if (carry_out_drain(server, name, !drain->undo)) {
                mfl_request_free(op);
                mfl_operator_no_memory(session, MFL_NAME_BYTES, "names of daemons");
                return;
        }
        mfl_strcpy(op->name, sizeof op->name, name);
        op->which = !drain->undo;
        op->wait = drain->wait;
        mfl_request_audit(op, drain->undo ? "undrain" : "drain", drain->daemon);
        mfl_request_start(op, session);
}

static void wait_for_drain(struct mfl_session *session, uint64_t request, const char *daemon)
{
        struct mfl_server *server = session->server;
        struct mfl_drain_wait *wait = mfl_calloc(1, sizeof *wait);
        if (!wait) {
                mfl_operator_no_memory(session, sizeof *wait, "a request");
                return;
        }
        wait->conn = session->conn;
        wait->request = request;
        mfl_strcpy(wait->daemon, sizeof wait->daemon, daemon);
        wait->next = server->drains;
        server->drains = wait;
}
