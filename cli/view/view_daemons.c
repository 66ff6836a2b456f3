/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons as a table, node by node. */
#include <stdio.h>

#include "cli/view/crew.h"
#include "cli/base/display.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/view/views.h"

#define NODE_HEX 32
#define NODE_HEX_SHOWN 12

const char *mfl_view_node(const char *label, char *buf, size_t buf_bytes)
{
        size_t n = strspn(label, "0123456789abcdef");
        if (n == NODE_HEX && (!label[n] || label[n] == '/'))
                snprintf(buf, buf_bytes, "%.*s%s", NODE_HEX_SHOWN, label, label + n);
        else
                mfl_strcpy(buf, buf_bytes, *label ? label : "-");
        return buf;
}

/* The server's own first, then relay by relay: what is below "a" comes before "a-b". */
static int compare_paths(const char *a, const char *b)
{
        while (*a && *a == *b)
                a++, b++;
        const int x = *a == '/' ? 1 : (unsigned char)*a, y = *b == '/' ? 1 : (unsigned char)*b;
        return x - y;
}

static int compare_daemons(const void *a, const void *b)
{
        const Mfl__DaemonInfo *x = *(Mfl__DaemonInfo *const *)a, *y = *(Mfl__DaemonInfo *const *)b;
        int order = compare_paths(x->relay, y->relay);
        if (!order)
                order = strcmp(x->node, y->node);
        if (!order)
                order = (int)y->leader - (int)x->leader;
        return order ? order : strcmp(x->name, y->name);
}

void mfl_view_sort_daemons(Mfl__DaemonList *list)
{
        if (list->n_daemons)
                qsort(list->daemons, list->n_daemons, sizeof *list->daemons, compare_daemons);
}

enum column {
        NODE,
        LEADER,
        NAME,
        STATE,
        ADDS_BY,
        BACKEND,
        WORKERS,
        WORK,
        CLIENTS,
        SAMPLES,
        ACTIVITY,
        GPU,
        MEMORY,
        TEMPERATURE,
        POWER,
        DEVICE,
        COLUMNS_
};
static const struct mfl_table_column columns_of[COLUMNS_] = {
        [NODE] = {"NODE", false, 0},
        [LEADER] = {"", false, 0},
        [NAME] = {"NAME", false, 0},
        [STATE] = {"STATE", false, 0},
        [ADDS_BY] = {"ADDS BY", false, 1},
        [BACKEND] = {"BACKEND", false, 6},
        [WORKERS] = {"WORKERS", true, 8},
        [WORK] = {"WORK", false, 3},
        [CLIENTS] = {"CLIENTS/S", true, 2},
        [SAMPLES] = {"SAMPLES/S", true, 7},
        [ACTIVITY] = {"COMPUTE/DATA/NETWORK/WAIT", true, 12},
        [GPU] = {"GPU", true, 4},
        [MEMORY] = {"MEMORY", true, 5},
        [TEMPERATURE] = {"TEMP", true, 9},
        [POWER] = {"POWER", true, 10},
        [DEVICE] = {"DEVICE", false, 11},
};

struct cells {
        const char *text[COLUMNS_];
        char room[COLUMNS_][160];
};

#define SET(cells, column, ...)                                                                              \
        ((cells)->text[column] = (cells)->room[column],                                                      \
                snprintf((cells)->room[column], sizeof(cells)->room[column], __VA_ARGS__))

/* "12 GB/141 GB"; empty if the device does not report it. */
static void fill_gpu(struct cells *cells, const Mfl__Telemetry *t)
{
        char used[24] = "-", total[24];
        if (t->has_gpu_percent_case)
                SET(cells, GPU, "%u%%", t->gpu_percent);
        if (t->has_memory_used_case)
                mfl_display_bytes((double)t->memory_used, used, sizeof used);
        if (t->has_memory_total_case)
                SET(cells, MEMORY, "%s/%s", used,
                        mfl_display_bytes((double)t->memory_total, total, sizeof total));
        if (t->has_temperature_case)
                SET(cells, TEMPERATURE, "%u C", t->temperature);
        if (t->has_power_case)
                SET(cells, POWER, "%.0f W", t->power_mw / 1000.0);
}

/* "91/1/2/6%" */
static void fill_activity(struct cells *cells, const Mfl__Activity *activity)
{
        int p[MFL_ACTIVITY_STATES];
        mfl_crew_apportion(activity, 100, p);
        SET(cells, ACTIVITY, "%d/%d/%d/%d%%", p[MFL_ACTIVITY_COMPUTE], p[MFL_ACTIVITY_DATA],
                p[MFL_ACTIVITY_NETWORK], p[MFL_ACTIVITY_WAIT]);
}

static int count_relays(const char *path)
{
        int n = *path != 0;
        for (; *path; path++)
                n += *path == '/';
        return n;
}

static void add_daemon(struct mfl_table *table, const Mfl__DaemonInfo *d, bool first_of_node)
{
        struct cells cells = {{0}};
        char node[160], place[MFL_RELAY_BYTES + sizeof node];
        mfl_snprintf(place, sizeof place, "%*s%s", 2 * count_relays(d->relay), "",
                first_of_node ? mfl_view_node(d->node, node, sizeof node) : "");
        cells.text[NODE] = place;
        SET(&cells, LEADER, "%s", d->leader ? "*" : "");
        SET(&cells, NAME, "%s", d->name);
        SET(&cells, STATE, "%s", d->state);
        if (d->collective)
                SET(&cells, ADDS_BY, "%s", mfl_collective_name(d->collective));
        SET(&cells, BACKEND, "%s", d->backend);
        SET(&cells, WORKERS, "%u", d->workers);
        SET(&cells, WORK, "%s", "-");
        if (*d->job && d->items_part > d->items_done)
                SET(&cells, WORK, "%s r%u %.1f/%u", d->job, d->round, d->items_part, d->items_total);
        else if (*d->job)
                SET(&cells, WORK, "%s r%u %u/%u", d->job, d->round, d->items_done, d->items_total);
        SET(&cells, CLIENTS, "%s", "-");
        if (d->clients_per_second > 0)
                SET(&cells, CLIENTS, d->clients_per_second < 100 ? "%.1f" : "%.0f", d->clients_per_second);
        SET(&cells, SAMPLES, "%s", "-");
        if (d->samples_per_second > 0)
                SET(&cells, SAMPLES, "%.0f", d->samples_per_second);
        if (d->activity)
                fill_activity(&cells, d->activity);
        if (d->telemetry)
                fill_gpu(&cells, d->telemetry);
        SET(&cells, DEVICE, "%s", d->device);
        mfl_table_add(table, cells.text);
}

/* A line for each relay on the way to the daemon that the one before is not below, indented by its depth. */
static void add_relays(struct mfl_table *table, const char *path, const char *before)
{
        size_t from = 0;
        for (int depth = 0; path[from]; depth++) {
                size_t n = from + strcspn(path + from, "/");
                bool known = !strncmp(path, before, n) && (!before[n] || before[n] == '/');
                char name[MFL_RELAY_BYTES + 32];
                const char *text[COLUMNS_];
                for (int i = 0; i < COLUMNS_; i++)
                        text[i] = i == NODE ? name : "";
                snprintf(name, sizeof name, "%*s%s%.*s:", 2 * depth, "", depth ? "" : "relay ",
                        (int)(n - from), path + from);
                if (!known)
                        mfl_table_add(table, text);
                from = n + (path[n] == '/');
        }
}

static bool same_reason(const Mfl__DaemonInfo *a, const Mfl__DaemonInfo *b)
{
        return !strcmp(a->node, b->node) && !strcmp(a->alone, b->alone) && a->collective == b->collective;
}

/* A reason that several daemons of a node share is printed once, below the last of them. */
static void add_reason(struct mfl_table *table, const Mfl__DaemonInfo *d, const Mfl__DaemonInfo *next)
{
        if (!*d->alone || (next && same_reason(d, next)))
                return;
        if (d->collective == MFL__COLLECTIVE__COLLECTIVE_SHM)
                mfl_table_remark(table, "shm, not nccl: %s", d->alone);
        else
                mfl_table_remark(table, "alone: %s", d->alone);
}

/* Whether the daemons that could train one job compute alike. */
static bool computes_alike(const Mfl__DaemonList *list)
{
        const char *first = NULL;
        for (size_t i = 0; i < list->n_daemons; i++) {
                const Mfl__DaemonInfo *d = list->daemons[i];
                if (!strcmp(d->state, "lost"))
                        continue;
                if (first && strcmp(first, d->numerics) != 0)
                        return false;
                first = d->numerics;
        }
        return true;
}

char *mfl_view_daemons(const Mfl__DaemonList *list, int columns)
{
        struct mfl_table table = {.columns = columns_of, .n_columns = COLUMNS_};
        const bool alike = computes_alike(list);
        for (size_t i = 0; i < list->n_daemons; i++) {
                const Mfl__DaemonInfo *d = list->daemons[i];
                const Mfl__DaemonInfo *next = i + 1 < list->n_daemons ? list->daemons[i + 1] : NULL;
                const Mfl__DaemonInfo *before = i ? list->daemons[i - 1] : NULL;
                bool moved = before && strcmp(d->relay, before->relay) != 0;
                add_relays(&table, d->relay, before ? before->relay : "");
                add_daemon(&table, d, !before || moved || strcmp(d->node, before->node) != 0);
                if (*d->note)
                        mfl_table_remark(&table, "note: %s", d->note);
                if (*d->site)
                        mfl_table_remark(&table, "site: %s", d->site);
                if (*d->tags)
                        mfl_table_remark(&table, "tags: %s", d->tags);
                if (!alike) /* otherwise a job's digest depends on which of them trains which clients */
                        mfl_table_remark(
                                &table, "arithmetic: %s", *d->numerics ? d->numerics : "not reported");
                add_reason(&table, d, next);
        }
        char *text = mfl_table_render(&table, columns);
        mfl_table_deinit(&table);
        return text;
}
