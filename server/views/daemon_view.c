/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons as rows, and as messages. */
#include "server/views/daemon_view.h"

static int by_node_and_name(const void *a, const void *b)
{
        const struct mfl_core_daemon_view *x = &((const struct mfl_daemon_row *)a)->view;
        const struct mfl_core_daemon_view *y = &((const struct mfl_daemon_row *)b)->view;
        int r = strcmp(x->node, y->node);
        return r ? r : strcmp(x->info->name, y->info->name);
}

void mfl_daemon_row(const struct mfl_sessions *sessions, uint32_t i, struct mfl_daemon_row *ret_row)
{
        struct mfl_core_daemon_view *view = &ret_row->view;
        mfl_core_daemon_view(sessions->loop->core, i, view);
        mfl_assert(view->info && *view->info->name && view->state);
        if (!*view->node)
                mfl_strcpy(view->node, sizeof view->node, view->info->node);
        const struct mfl_session *s = view->conn ? mfl_session_find(sessions, view->conn) : NULL;
        ret_row->telemetry = mfl_daemon_telemetry(sessions, view->conn);
        ret_row->address = s ? s->address : "";
        ret_row->connected_unix_ms = s ? s->connected_unix_ms : 0;
}

struct mfl_daemon_row *mfl_daemon_rows(const struct mfl_sessions *sessions, uint32_t max, uint32_t *ret_n)
{
        uint32_t n = MFL_MIN(mfl_core_daemon_count(sessions->loop->core), max);
        struct mfl_daemon_row *rows = mfl_calloc(n, sizeof *rows);
        for (uint32_t i = 0; rows && i < n; i++)
                mfl_daemon_row(sessions, i, &rows[i]);
        if (rows)
                qsort(rows, n, sizeof *rows, by_node_and_name);
        *ret_n = rows ? n : 0;
        return rows;
}

static void fill_data_sets(
        const struct mfl_daemon_info *info, Mfl__DaemonInfo *out, struct mfl_daemon_info_buffers *buffers)
{
        uint32_t n = MFL_MIN(info->n_data_sets, (uint32_t)MFL_DATA_SETS_MAX);
        for (uint32_t i = 0; i < n; i++) {
                const struct mfl_data_info *data = &info->data_sets[i];
                Mfl__DataSet *set = &buffers->sets[i];
                mfl__data_set__init(set);
                set->name = (char *)data->name;
                for (int d = 0; d < data->shape.rank; d++)
                        buffers->shapes[i][d] = (uint32_t)data->shape.dim[d];
                set->n_shape = (size_t)data->shape.rank;
                set->shape = buffers->shapes[i];
                set->classes = data->classes;
                set->train_samples = data->train_samples;
                set->test_samples = data->test_samples;
                set->fingerprint = data->fingerprint;
                set->meaning = data->meaning;
                buffers->set_pointers[i] = set;
        }
        out->n_data_sets = n;
        out->data_sets = buffers->set_pointers;
}

static void fill_telemetry(
        const struct mfl_telemetry *told, Mfl__DaemonInfo *out, struct mfl_daemon_info_buffers *buffers)
{
        if (told->known & MFL_TELEMETRY_OF_GPU) {
                mfl_wire_from_telemetry(told, &buffers->telemetry, NULL);
                out->telemetry = &buffers->telemetry;
        }
        if (told->known & MFL_TELEMETRY_ACTIVITY) {
                mfl_wire_from_activity(&told->activity, &buffers->activity);
                out->activity = &buffers->activity;
        }
}

_Static_assert((int)MFL_COLLECTIVE_SOLO == MFL__COLLECTIVE__COLLECTIVE_SOLO, "collectives differ");
_Static_assert((int)MFL_COLLECTIVE_SHM == MFL__COLLECTIVE__COLLECTIVE_SHM, "collectives differ");
_Static_assert((int)MFL_COLLECTIVE_NCCL == MFL__COLLECTIVE__COLLECTIVE_NCCL, "collectives differ");
_Static_assert((int)MFL_COLLECTIVE_RELAY == MFL__COLLECTIVE__COLLECTIVE_RELAY, "collectives differ");

void mfl_view_daemon(
        const struct mfl_daemon_row *row, Mfl__DaemonInfo *ret_info, struct mfl_daemon_info_buffers *buffers)
{
        const struct mfl_core_daemon_view *view = &row->view;
        const struct mfl_daemon_info *info = view->info;
        Mfl__DaemonInfo out = MFL__DAEMON_INFO__INIT;
        out.name = (char *)info->name;
        out.node = (char *)view->node;
        out.backend = (char *)info->backend;
        out.device = (char *)info->device;
        out.software = (char *)info->software;
        out.workers = info->workers;
        out.address = (char *)row->address;
        out.connected_ms = row->connected_unix_ms;
        out.state = (char *)view->state;
        out.job = (char *)view->job;
        out.round = view->round;
        out.items_done = view->items_done;
        out.items_total = view->items_total;
        out.items_part = view->items_part;
        out.samples_per_second = view->samples_per_second;
        out.clients_per_second = view->clients_per_second;
        out.collective = (Mfl__Collective)view->collective; /* the numbers are equal by design */
        out.leader = view->leader;
        out.alone = (char *)view->alone;
        out.note = (char *)view->note;
        out.device_uuid = (char *)info->device_uuid;
        out.device_pci = (char *)info->device_pci;
        out.device_memory = info->device_memory;
        out.numerics = (char *)info->numerics;
        out.site = (char *)info->site;
        out.tags = (char *)info->tags;
        out.relay = (char *)info->relay;
        if (row->telemetry)
                fill_telemetry(row->telemetry, &out, buffers);
        fill_data_sets(info, &out, buffers);
        *ret_info = out;
}

void mfl_view_refused(const struct mfl_refused_daemon *refused, Mfl__DaemonInfo *ret_info)
{
        Mfl__DaemonInfo out = MFL__DAEMON_INFO__INIT;
        out.name = (char *)refused->name;
        out.node = (char *)refused->node;
        out.address = (char *)refused->address;
        out.backend = (char *)refused->backend;
        out.device = (char *)refused->device;
        out.software = (char *)refused->software;
        out.workers = refused->workers;
        out.state = "refused";
        out.note = (char *)refused->reason;
        out.connected_ms = refused->last_ms;
        *ret_info = out;
}
