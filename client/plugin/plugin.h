/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon's plug-ins: filters of clients' updates (include/mfl/filter.h). The administrator's configuration says which are loaded
 * and which every update goes through; jobs have no say.
 *
 * A crash of a filter ends the daemon. So that one update can't end it again and again, each call is noted before it begins, in a file
 * in shared memory that a new process of the same daemon finds: a client in whose calls two processes have ended is rejected when it
 * comes again. (One may have been killed by somebody, and then the client is trained again with the same bits.)
 *
 * Open and close: at start, before any thread. Filters are called from any thread. */
#ifndef MFL_CLIENT_PLUGIN_PLUGIN_H
#define MFL_CLIENT_PLUGIN_PLUGIN_H

#include "common/job/job.h"
#include "common/model/graph.h"
#include "common/settings/yaml.h"

#define MFL_FILTERS_MAX 8
#define MFL_FILTER_NUMBERS_MAX 16
#define MFL_FILTER_TEXT_BYTES 2048
#define MFL_FILTER_CRASHES_MAX 2u

/* `filters` of client.yaml. */
struct mfl_filter_config {
        char name[MFL_PLUGIN_NAME_BYTES];
        uint32_t n_settings;
        struct mfl_plugin_setting settings[MFL_FILTER_NUMBERS_MAX];
};
struct mfl_filters_config {
        uint32_t n;
        struct mfl_filter_config v[MFL_FILTERS_MAX];
};
int mfl_filters_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);

struct mfl_filters;
struct mfl_filters_options {
        const char *dir; /* "": no plug-ins */
        const struct mfl_filters_config *filters;
        const char *daemon; /* its name */
        const char *marks;  /* the directory of the file of calls: on a tmpfs */
        uint32_t workers;   /* so many calls at once at most */
};
/* MFL_INVALID: a plug-in that can't be loaded, a filter that is not there, or numbers that it does not take; the text says which.
 * *ret_filters is NULL where there are no filters. */
int mfl_filters_open(const struct mfl_filters_options *options, struct mfl_filters **ret_filters, struct mfl_error *err);
void mfl_filters_close(struct mfl_filters *filters); /* NULL is fine */
/* "layer-clip 1.0 (norm 0.5), sha256 0123...; ...": for jobs' logs. */
const char *mfl_filters_text(const struct mfl_filters *filters);

struct mfl_filter_client {
        const char *job; /* its number */
        uint32_t round, worker;
        uint64_t client, seed;
        const struct mfl_graph *graph;
        const float *params; /* those that move */
};
/* Changes graph->n_moving floats of delta in place. MFL_INVALID: the update is rejected, with the reason. */
int mfl_filters_apply(
        struct mfl_filters *filters, const struct mfl_filter_client *client, float *delta, struct mfl_error *err);

#endif
