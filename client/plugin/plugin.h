/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon's plug-ins: filters of clients' updates (include/mfl/filter.h), and formats of data sets (include/mfl/format.h). The
 * administrator's configuration says which are loaded, which filters every update goes through, which ones jobs may ask for by name,
 * with which numbers, and which data sets are read by a format.
 *
 * A crash of a filter ends the daemon. So that one update can't end it again and again, each call is noted before it begins, in a file
 * in shared memory that a new process of the same daemon finds: a client in whose calls two processes have ended is rejected when it
 * comes again. (One may have been killed by somebody, and then the client is trained again with the same bits.)
 *
 * Open and close, and loading: at start, before any thread. Filters are called from any thread. */
#ifndef MFL_CLIENT_PLUGIN_PLUGIN_H
#define MFL_CLIENT_PLUGIN_PLUGIN_H

#include "common/data/dataset.h"
#include "common/job/job.h"
#include "common/model/graph.h"
#include "common/plugin/words.h"
#include "common/settings/yaml.h"

#define MFL_FILTERS_MAX 8
#define MFL_PLUGIN_DATA_MAX 16
#define MFL_PLUGINS_TEXT_BYTES 8001 /* a line of a job's log has room for it, and for the daemon's name */
#define MFL_FILTER_CRASHES_MAX 2u

/* ---- client.yaml ---- */

struct mfl_filter_config {
        char name[MFL_PLUGIN_NAME_BYTES];
        struct mfl_plugin_numbers numbers;
        int when; /* enum mfl_filter_when */
};
enum mfl_filter_when {
        MFL_FILTER_ALWAYS,
        MFL_FILTER_ASKED, /* only for jobs that name it */
};
struct mfl_filters_config {
        uint32_t n;
        struct mfl_filter_config v[MFL_FILTERS_MAX];
};
struct mfl_plugin_data_config {
        char name[MFL_NAME_BYTES], format[MFL_PLUGIN_NAME_BYTES], path[1024];
        struct mfl_plugin_numbers numbers;
};
struct mfl_plugin_data_configs {
        uint32_t n;
        struct mfl_plugin_data_config v[MFL_PLUGIN_DATA_MAX];
};
int mfl_filters_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
int mfl_plugin_data_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);

/* ---- loading ---- */

struct mfl_client_plugins;
/* dir "": there are none. MFL_INVALID: one that can't be loaded. */
int mfl_client_plugins_open(const char *dir, struct mfl_client_plugins **ret_plugins, struct mfl_error *err);
void mfl_client_plugins_close(struct mfl_client_plugins *plugins); /* after the filters; NULL is fine */
/* "filter layer-clip 1.0 (norm 0.5), sha256 0123...; ...": those that every job uses, for jobs' logs; "": none is. */
const char *mfl_client_plugins_text(const struct mfl_client_plugins *plugins);

/* Reads a data set whole. MFL_INVALID with text; -ENOMEM. */
int mfl_plugin_data_load(struct mfl_client_plugins *plugins, const struct mfl_plugin_data_config *config,
        struct mfl_dataset **ret_dataset, struct mfl_error *err);

struct mfl_filters;
struct mfl_filters_options {
        struct mfl_client_plugins *plugins;
        const struct mfl_filters_config *filters;
        const char *daemon; /* its name */
        const char *marks;  /* the directory of the file of calls: on a tmpfs */
        uint32_t workers;   /* so many calls at once at most */
};
/* MFL_INVALID: a filter that is not there, or numbers that it does not take. *ret_filters is NULL where there are no filters. */
int mfl_filters_open(
        const struct mfl_filters_options *options, struct mfl_filters **ret_filters, struct mfl_error *err);
void mfl_filters_close(struct mfl_filters *filters); /* NULL is fine */

/* Whether the job's updates go through any; filters NULL: none. */
bool mfl_filters_concern(const struct mfl_filters *filters, const struct mfl_job *job);
/* MFL_INVALID: the job names one that is not configured. filters NULL: there are none. */
int mfl_filters_check(const struct mfl_filters *filters, const struct mfl_job *job, struct mfl_error *err);
/* What the job's log says of plug-ins: text (mfl_client_plugins_text), and the filters that it has asked for. NULL: no memory. */
char *mfl_filters_text(const struct mfl_filters *filters, const char *text, const struct mfl_job *job);

struct mfl_filter_client {
        const char *job; /* its number */
        const struct mfl_job *spec;
        uint32_t round, worker;
        uint64_t client, seed;
        const struct mfl_graph *graph;
        const float *params;          /* those that move */
        const uint8_t *params_digest; /* SHA-256 */
};
/* Changes graph->n_moving floats of delta in place. MFL_INVALID: the update is rejected, with the reason. */
int mfl_filters_apply(struct mfl_filters *filters, const struct mfl_filter_client *client, float *delta,
        struct mfl_error *err);

#endif
