/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons as operators list them, with recently refused ones. */
#include "server/admin/answers.h"
#include "server/views/daemon_view.h"

#define DAEMONS_MAX 1000u /* an envelope has a limit */

struct daemon_entry {
        Mfl__DaemonInfo info;
        struct mfl_daemon_row row;
        struct mfl_daemon_info_buffers buffers;
};

/* One that is known by that name; the index is of the core's list, or of the refused ones. */
struct named {
        const char *name;
        uint32_t i;
        bool refused;
};

static int compare_named(const void *a, const void *b)
{
        const struct named *x = a, *y = b;
        int order = strcmp(x->name, y->name);
        return order ? order : (int)x->refused - (int)y->refused;
}

/* All whose names come after `after`, by name. The array has room for all. */
static uint32_t find_named(struct mfl_admin *admin, const char *after, struct named *named)
{
        const struct mfl_core *core = admin->loop->core;
        const struct mfl_refused_list *refused = &admin->gate->refused;
        const uint32_t n_core = mfl_core_daemon_count(core);
        struct mfl_core_daemon_view view;
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_core; i++) {
                mfl_core_daemon_view(core, i, &view);
                if (!view.conn && mfl_refused_find(refused, view.info->name))
                        continue; /* below */
                if (strcmp(view.info->name, after) > 0)
                        named[n++] = (struct named){view.info->name, i, false};
        }
        for (uint32_t i = 0; i < refused->n; i++)
                if (strcmp(refused->v[i].name, after) > 0)
                        named[n++] = (struct named){refused->v[i].name, i, true};
        qsort(named, n, sizeof *named, compare_named);
        return n;
}

static void fill_entry(struct mfl_admin *admin, const struct named *named, struct daemon_entry *entry)
{
        if (named->refused) {
                mfl_view_refused(&admin->gate->refused.v[named->i], &entry->info);
                return;
        }
        mfl_daemon_row(admin->sessions, named->i, &entry->row);
        mfl_view_daemon(&entry->row, &entry->info, &entry->buffers);
}

/* No page ends between two of one name. */
static bool splits_name(const struct named *named, size_t n, size_t at)
{
        return at < n && at && !strcmp(named[at - 1].name, named[at].name);
}

static void send_page(struct mfl_session *session, uint64_t request, const struct named *named, size_t n,
        size_t n_shown, struct daemon_entry *entries, Mfl__DaemonInfo **pointers)
{
        struct mfl_admin *admin = mfl_admin_of(session);
        Mfl__DaemonList list = MFL__DAEMON_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        for (size_t i = 0; i < n_shown; i++) {
                fill_entry(admin, &named[i], &entries[i]);
                pointers[i] = &entries[i].info;
        }
        list.n_daemons = n_shown;
        list.daemons = pointers;
        while (mfl__daemon_list__get_packed_size(&list) > MFL_LIST_BYTES_MAX ||
                splits_name(named, n, list.n_daemons))
                list.n_daemons -= list.n_daemons / 8 + 1;
        list.more = list.n_daemons < n;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_DAEMON_LIST;
        envelope.daemon_list = &list;
        mfl_session_send(session, &envelope);
}

void mfl_operator_daemons(struct mfl_session *session, uint64_t request, const Mfl__ListDaemons *ask)
{
        struct mfl_admin *admin = mfl_admin_of(session);
        mfl_gate_trim(admin->gate);
        const size_t n_all = mfl_core_daemon_count(admin->loop->core) + admin->gate->refused.n;
        MFL_CLEANUP_FREE struct named *named = mfl_calloc(n_all + 1, sizeof *named);
        if (!named) {
                mfl_operator_no_memory(session, n_all * sizeof *named, "a list of daemons");
                return;
        }
        const size_t n = find_named(admin, ask->after, named);
        size_t n_shown = MFL_MIN(n, ask->count ? MFL_MIN(ask->count, DAEMONS_MAX) : DAEMONS_MAX);
        n_shown += splits_name(named, n, n_shown);
        MFL_CLEANUP_FREE struct daemon_entry *entries = mfl_calloc(n_shown + 1, sizeof *entries);
        MFL_CLEANUP_FREE Mfl__DaemonInfo **pointers = mfl_calloc(n_shown + 1, sizeof *pointers);
        if (!entries || !pointers) {
                mfl_operator_no_memory(session, n_shown * sizeof *entries, "a list of daemons");
                return;
        }
        send_page(session, request, named, n, n_shown, entries, pointers);
}
