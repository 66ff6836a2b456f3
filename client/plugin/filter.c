/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of clients' updates.
 *
 *   - the configured filters are found among the daemon's plug-ins, with their numbers;
 *   - a client's delta goes through one after another; each call is marked.
 * Fails: a filter that is not there; numbers that it does not take; a filter that rejects the
 * client; a client in whose call a process before has ended. */
#include "client/plugin/plugin.h"

#include "client/plugin/internal.h"
#include "client/plugin/mark.h"
#include "common/base/digest.h"

struct filter {
        const struct mfl_filter_plugin *table;
        char *said; /* when: asked: what jobs' logs say of it; NULL: always */
        double values[MFL_PLUGIN_NUMBERS_MAX];
};

struct mfl_filters {
        uint32_t n;
        struct filter v[MFL_FILTERS_MAX];
        struct mfl_marks *marks;
        uint8_t digest[MFL_SHA256_BYTES]; /* of what jobs' logs say of the plug-ins */
};

static int find(struct mfl_filters *filters, const struct mfl_filters_options *options,
        const struct mfl_filter_config *config, struct mfl_error *err)
{
        struct filter *filter = &filters->v[filters->n];
        const struct mfl_plugin_object *object;
        int r = mfl_client_plugin_find(options->plugins, &mfl_filter_kind, "filters", config->name,
                &config->numbers, &object, filter->values,
                config->when == MFL_FILTER_ASKED ? &filter->said : NULL, err);
        if (r)
                return r;
        filter->table = (const void *)object->table;
        filters->n++;
        return 0;
}

/* A job may ask for all of them. */
static int check_room(const struct mfl_filters *filters, const char *said, struct mfl_error *err)
{
        size_t n = strlen(said);
        for (uint32_t i = 0; i < filters->n; i++)
                n += filters->v[i].said ? strlen(filters->v[i].said) + 2 : 0;
        return n < MFL_PLUGINS_TEXT_BYTES
                       ? 0
                       : mfl_fail(err, MFL_INVALID,
                                 "plug-ins: what jobs' logs have to say of those that are used, "
                                 "and of filters with when: asked, takes more than %d bytes: use fewer",
                                 MFL_PLUGINS_TEXT_BYTES - 1);
}

static int digest(struct mfl_filters *filters, const char *said, struct mfl_error *err)
{
        struct mfl_sha256 sha = {0};
        int r = mfl_sha256_init(&sha, err);
        r = r ? r : mfl_sha256_update(&sha, said, strlen(said) + 1, err);
        for (uint32_t i = 0; i < filters->n && !r; i++)
                if (filters->v[i].said)
                        r = mfl_sha256_update(&sha, filters->v[i].said, strlen(filters->v[i].said) + 1, err);
        if (!r)
                r = mfl_sha256_final(&sha, filters->digest, err);
        mfl_sha256_deinit(&sha);
        return r;
}

int mfl_filters_open(
        const struct mfl_filters_options *options, struct mfl_filters **ret_filters, struct mfl_error *err)
{
        int r = 0;
        if (!options->filters->n)
                return 0;
        struct mfl_filters *filters = mfl_calloc(1, sizeof(*filters));
        if (!filters)
                return mfl_fail_memory(err, sizeof(*filters), "filters");
        for (uint32_t i = 0; i < options->filters->n && !r; i++)
                r = find(filters, options, &options->filters->v[i], err);
        if (!r)
                r = check_room(filters, mfl_client_plugins_text(options->plugins), err);
        if (!r)
                r = digest(filters, mfl_client_plugins_text(options->plugins), err);
        if (!r)
                r = mfl_marks_open(options->marks, options->daemon, options->workers, &filters->marks, err);
        if (r)
                mfl_filters_close(filters);
        else
                *ret_filters = filters;
        return r;
}

void mfl_filters_close(struct mfl_filters *filters)
{
        if (!filters)
                return;
        mfl_marks_close(filters->marks);
        for (uint32_t i = 0; i < filters->n; i++)
                free(filters->v[i].said);
        free(filters);
}

/* ---- a job's filters ---- */

static bool concerns(const struct filter *filter, const struct mfl_job *job)
{
        return !filter->said || mfl_job_has_filter(job, filter->table->name);
}

bool mfl_filters_concern(const struct mfl_filters *filters, const struct mfl_job *job)
{
        for (uint32_t i = 0; filters && i < filters->n; i++)
                if (concerns(&filters->v[i], job))
                        return true;
        return false;
}

int mfl_filters_check(const struct mfl_filters *filters, const struct mfl_job *job, struct mfl_error *err)
{
        for (uint32_t k = 0; k < job->n_filters; k++) {
                bool found = false;
                for (uint32_t i = 0; filters && i < filters->n; i++)
                        found |= !strcmp(filters->v[i].table->name, job->filters[k]);
                if (!found)
                        return mfl_fail(err, MFL_INVALID,
                                "this daemon has no filter %s: filters in its client.yaml has the names",
                                job->filters[k]);
        }
        return 0;
}

char *mfl_filters_text(const struct mfl_filters *filters, const char *text, const struct mfl_job *job)
{
        char *all = mfl_strdup(text);
        for (uint32_t i = 0; all && filters && i < filters->n; i++) {
                const struct filter *filter = &filters->v[i];
                if (!filter->said || !concerns(filter, job))
                        continue;
                char *longer = mfl_asprintf("%s%s%s", all, *all ? "; " : "", filter->said);
                free(all);
                all = longer;
        }
        return all;
}

/* ---- a client's update ---- */

struct shape {
        int64_t dim[MFL_SHAPE_RANK_MAX];
};

/* The tensors that move, by their place in the delta. */
static uint32_t list_tensors(
        const struct mfl_graph *graph, struct mfl_filter_tensor *tensors, struct shape *shapes)
{
        uint32_t n = 0;
        for (int i = 0; i < graph->n_params; i++) {
                const struct mfl_param *param = &graph->params[i];
                if (param->offset < graph->n_frozen)
                        continue;
                for (int d = 0; d < param->shape.rank; d++)
                        shapes[n].dim[d] = param->shape.dim[d];
                tensors[n] = (struct mfl_filter_tensor){.name = param->name,
                        .first = param->offset - graph->n_frozen,
                        .count = param->count,
                        .statistics = !param->trained,
                        .rank = (uint32_t)param->shape.rank,
                        .shape = shapes[n].dim};
                n++;
        }
        return n;
}

/* Another server has a job of the same number, and a crash says nothing of another file, or of other numbers. */
static int make_key(const struct mfl_filters *filters, const struct mfl_filter_client *client,
        char ret_key[MFL_MARK_JOB_BYTES], struct mfl_error *err)
{
        struct {
                char job[MFL_MARK_JOB_BYTES];
                uint8_t params[MFL_SHA256_BYTES], filters[MFL_SHA256_BYTES];
        } said = {0};
        uint8_t digest[MFL_SHA256_BYTES];
        mfl_strcpy(said.job, sizeof(said.job), client->job);
        memcpy(said.params, client->params_digest, sizeof(said.params));
        memcpy(said.filters, filters->digest, sizeof(said.filters));
        int r = mfl_sha256(&said, sizeof(said), digest, err);
        if (!r)
                mfl_hex(digest, MFL_MARK_JOB_BYTES / 2 - 1, ret_key);
        return r;
}

static int call_one(struct mfl_filters *filters, uint32_t i, const struct mfl_filter_client *client,
        const char *key, struct mfl_filter_call *call, struct mfl_error *err)
{
        const struct filter *filter = &filters->v[i];
        char reason[MFL_FILTER_REASON_BYTES] = "";
        struct mfl_mark mark = {.round = client->round, .filter = i, .client = client->client};
        mfl_strcpy(mark.job, sizeof(mark.job), key);
        call->settings = filter->values;
        call->reason = reason;
        mfl_mark_begin(filters->marks, client->worker, &mark);
        int r = filter->table->apply(call);
        mfl_mark_end(filters->marks, client->worker);
        reason[sizeof(reason) - 1] = '\0';
        return r ? mfl_fail(err, MFL_INVALID, "filter %s: %s", filter->table->name,
                           *reason ? reason : "it rejects this update")
                 : 0;
}

int mfl_filters_apply(struct mfl_filters *filters, const struct mfl_filter_client *client, float *delta,
        struct mfl_error *err)
{
        uint32_t last = 0, left = 0;
        size_t n = (size_t)client->graph->n_params;
        char key[MFL_MARK_JOB_BYTES];
        MFL_CLEANUP_FREE struct mfl_filter_tensor *tensors = mfl_calloc(n, sizeof(*tensors));
        MFL_CLEANUP_FREE struct shape *shapes = mfl_calloc(n, sizeof(*shapes));
        int r = 0;
        if (!tensors || !shapes)
                return mfl_fail_memory(err, n * sizeof(*tensors), "the tensors of an update");
        r = make_key(filters, client, key, err);
        if (r)
                return r;
        left = mfl_marks_left(filters->marks, key, client->round, client->client, &last);
        if (left >= MFL_FILTER_CRASHES_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "filter %s: the daemon ended %u times in it, in this client's update",
                        filters->v[MFL_MIN(last, filters->n - 1)].table->name, left);
        struct mfl_filter_call call = {.size = sizeof(call),
                .round = client->round,
                .job = client->job,
                .client = client->client,
                .seed = client->seed,
                .count = client->graph->n_moving,
                .params = client->params,
                .delta = delta,
                .n_tensors = list_tensors(client->graph, tensors, shapes),
                .tensors = tensors};
        for (uint32_t i = 0; i < filters->n && !r; i++)
                if (concerns(&filters->v[i], client->spec))
                        r = call_one(filters, i, client, key, &call, err);
        return r;
}
