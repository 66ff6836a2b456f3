/* SPDX-License-Identifier: Apache-2.0 */
#include "client/service/data.h"

#include "client/service/fingerprint.h"
#include "common/base/log.h"

/* The server learns of a program, or a filter, as it learns of a data set. */
static int offer(struct mfl_client_data *data, const struct mfl_dataset *what, struct mfl_error *err)
{
        struct mfl_dataset *set = mfl_malloc(sizeof(*set));
        if (!set)
                return mfl_fail_memory(err, sizeof(*set), "a program or a filter");
        *set = *what;
        struct mfl_data_info *info = &data->infos[data->n];
        *info = (struct mfl_data_info){.shape = set->shape,
                .classes = (uint32_t)set->classes,
                .train_samples = set->train.n,
                .test_samples = set->test.n,
                .fingerprint = MFL_PROGRAM_FINGERPRINT};
        mfl_strcpy(info->name, sizeof(info->name), set->name);
        data->fingerprints[data->n] = MFL_PROGRAM_FINGERPRINT;
        data->sets[data->n++] = set;
        return 0;
}

static bool is_offered(const struct mfl_client_data *data, const char *name)
{
        for (uint32_t i = 0; i < data->n; i++)
                if (!strcmp(data->infos[i].name, name))
                        return true;
        return false;
}

static int offer_all(
        struct mfl_client_data *data, const struct mfl_client_config *config, struct mfl_error *err)
{
        int r = 0;
        for (uint32_t i = 0; i < config->programs.n && !r; i++) {
                struct mfl_dataset set;
                mfl_program_offer(&config->programs.v[i], &set);
                r = offer(data, &set, err);
        }
        for (uint32_t i = 0; i < config->filters.n && !r; i++) {
                struct mfl_dataset set = {
                        .shape = {1, {1}}, .classes = 1, .scale = {1}, .train = {.n = 1}, .test = {.n = 1}};
                if (strlen(config->filters.v[i].name) >= MFL_FILTER_NAME_BYTES)
                        continue; /* too long for jobs to name it */
                mfl_job_filter_offer(config->filters.v[i].name, set.name);
                if (!is_offered(data, set.name))
                        r = offer(data, &set, err);
        }
        return r;
}

/* Of data->sets[data->n], which is loaded. */
static int describe(struct mfl_client_data *data, struct mfl_error *err)
{
        const struct mfl_dataset *d = data->sets[data->n];
        uint64_t meaning = 0;
        uint32_t i = data->n++;
        int r = mfl_client_fingerprint(d, &data->fingerprints[i], err);
        if (!r)
                r = mfl_dataset_meaning(d, &meaning, err);
        if (r)
                return r;
        if (d->note[0])
                mfl_log(MFL_LOG_WARN, "%s", d->note);
        data->infos[i] = (struct mfl_data_info){.shape = d->shape,
                .classes = (uint32_t)(d->n_targets ? d->n_targets : d->classes),
                .train_samples = d->train.n,
                .test_samples = d->test.n,
                .fingerprint = data->fingerprints[i],
                .meaning = meaning};
        mfl_strcpy(data->infos[i].name, sizeof(data->infos[i].name), d->name);
        return 0;
}

static int check_names(const struct mfl_client_config *config, struct mfl_error *err)
{
        uint32_t n = config->n_data_sets + config->plugin_data.n + config->programs.n;
        if (n + config->filters.n > MFL_DATA_SETS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "%u data sets, programs and filters, at most %u are possible", n + config->filters.n,
                        MFL_DATA_SETS_MAX);
        if (!n)
                return mfl_fail(err, MFL_INVALID,
                        "no data set: use --data NAME=FORMAT:DIR, or data_sets, plugin_data or programs in "
                        "--config");
        for (uint32_t i = 0; i < config->plugin_data.n; i++)
                for (uint32_t k = 0; k < config->n_data_sets; k++)
                        if (!strcmp(config->plugin_data.v[i].name, config->data_sets[k].name))
                                return mfl_fail(err, MFL_INVALID,
                                        "plugin_data: data_sets has a data set %s, too",
                                        config->data_sets[k].name);
        return 0;
}

int mfl_client_data_load(struct mfl_client_data *data, const struct mfl_client_config *config,
        struct mfl_client_plugins *plugins, struct mfl_error *err)
{
        int r = check_names(config, err);
        for (uint32_t i = 0; i < config->n_data_sets && !r; i++) {
                r = mfl_dataset_load(&config->data_sets[i], &data->sets[data->n], err);
                if (r && !strstr(err->text, config->data_sets[i].name)) {
                        struct mfl_error why = *err;
                        mfl_fail(err, r, "data set %s: %.400s", config->data_sets[i].name, why.text);
                }
                r = r ? r : describe(data, err);
        }
        for (uint32_t i = 0; i < config->plugin_data.n && !r; i++) {
                r = mfl_plugin_data_load(plugins, &config->plugin_data.v[i], &data->sets[data->n], err);
                r = r ? r : describe(data, err);
        }
        if (r)
                return r == -ENOMEM ? r : MFL_INVALID;
        return offer_all(data, config, err);
}

int mfl_client_filters_open(const struct mfl_client_config *config, struct mfl_client_plugins *plugins,
        uint32_t workers, struct mfl_filters **ret_filters, struct mfl_error *err)
{
        const struct mfl_filters_options options = {.plugins = plugins,
                .filters = &config->filters,
                .daemon = config->name,
                .marks = *config->share_dir ? config->share_dir : "/dev/shm",
                .workers = workers};
        return mfl_filters_open(&options, ret_filters, err);
}

void mfl_client_data_deinit(struct mfl_client_data *data)
{
        for (uint32_t i = 0; i < data->n; i++)
                mfl_dataset_free(data->sets[i]);
        data->n = 0;
}
