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

static uint32_t fill_entries(
        struct mfl_admin *admin, struct daemon_entry *entries, uint32_t n_core, uint32_t n_refused)
{
        const struct mfl_refused_list *refused = &admin->gate->refused;
        uint32_t shown = 0;
        for (uint32_t i = 0; i < n_core; i++) {
                struct daemon_entry *entry = &entries[shown];
                mfl_daemon_row(admin->sessions, i, &entry->row);
                if (!entry->row.view.conn && mfl_refused_find(refused, entry->row.view.info->name))
                        continue; /* below */
                mfl_view_daemon(&entry->row, &entry->info, &entry->buffers);
                shown++;
        }
        for (uint32_t i = 0; i < n_refused; i++)
                mfl_view_refused(&refused->v[i], &entries[shown++].info);
        return shown;
}

void mfl_operator_daemons(struct mfl_session *session, uint64_t request)
{
        struct mfl_admin *admin = mfl_admin_of(session);
        mfl_gate_trim(admin->gate);
        uint32_t n_core = MFL_MIN(mfl_core_daemon_count(admin->loop->core), DAEMONS_MAX);
        uint32_t n_refused = MFL_MIN(admin->gate->refused.n, DAEMONS_MAX - n_core), n = n_core + n_refused;
        MFL_CLEANUP_FREE struct daemon_entry *entries = mfl_calloc(n, sizeof *entries);
        MFL_CLEANUP_FREE Mfl__DaemonInfo **pointers = mfl_calloc(n, sizeof *pointers);
        if (!entries || !pointers) {
                mfl_operator_no_memory(session, n * sizeof *entries, "a list of daemons");
                return;
        }
        Mfl__DaemonList list = MFL__DAEMON_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        list.n_daemons = fill_entries(admin, entries, n_core, n_refused);
        for (uint32_t i = 0; i < list.n_daemons; i++)
                pointers[i] = &entries[i].info;
        list.daemons = pointers;
        while (mfl__daemon_list__get_packed_size(&list) > MFL_LIST_BYTES_MAX)
                list.n_daemons -= list.n_daemons / 8 + 1;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_DAEMON_LIST;
        envelope.daemon_list = &list;
        mfl_session_send(session, &envelope);
}
