/* SPDX-License-Identifier: Apache-2.0 */
#include "client/service/data.h"

#include "client/service/fingerprint.h"
#include "common/base/log.h"

/* The server learns of a program as it learns of a data set. */
static int offer_programs(
        struct mfl_client_data *data, const struct mfl_client_config *config, struct mfl_error *err)
{
        for (uint32_t i = 0; i < config->programs.n; i++) {
                struct mfl_dataset *offer = mfl_malloc(sizeof(*offer));
                if (!offer)
                        return mfl_fail_memory(err, sizeof(*offer), "a program");
                mfl_program_offer(&config->programs.v[i], offer);
                struct mfl_data_info *info = &data->infos[data->n];
                *info = (struct mfl_data_info){.shape = offer->shape,
                        .classes = (uint32_t)offer->classes,
                        .train_samples = offer->train.n,
                        .test_samples = offer->test.n,
                        .fingerprint = MFL_PROGRAM_FINGERPRINT};
                mfl_strcpy(info->name, sizeof(info->name), offer->name);
                data->fingerprints[data->n] = MFL_PROGRAM_FINGERPRINT;
                data->sets[data->n++] = offer;
        }
        return 0;
}

int mfl_client_data_load(
        struct mfl_client_data *data, const struct mfl_client_config *config, struct mfl_error *err)
{
        if (config->n_data_sets + config->programs.n > MFL_DATA_SETS_MAX)
                return mfl_fail(err, MFL_INVALID, "%u data sets and programs, at most %u are possible",
                        config->n_data_sets + config->programs.n, MFL_DATA_SETS_MAX);
        if (!config->n_data_sets && !config->programs.n)
                return mfl_fail(err, MFL_INVALID,
                        "no data set: use --data NAME=FORMAT:DIR, or data_sets or programs in --config");
        for (uint32_t i = 0; i < config->n_data_sets; i++) {
                int r = mfl_dataset_load(&config->data_sets[i], &data->sets[i], err);
                if (!r) {
                        data->n++;
                        r = mfl_client_fingerprint(data->sets[i], &data->fingerprints[i], err);
                }
                struct mfl_data_info *info = &data->infos[i];
                uint64_t meaning = 0;
                if (!r)
                        r = mfl_dataset_meaning(data->sets[i], &meaning, err);
                if (r)
                        return r == -ENOMEM ? r : MFL_INVALID;
                const struct mfl_dataset *d = data->sets[i];
                if (d->note[0])
                        mfl_log(MFL_LOG_WARN, "%s", d->note);
                *info = (struct mfl_data_info){.shape = d->shape,
                        .classes = (uint32_t)(d->n_targets ? d->n_targets : d->classes),
                        .train_samples = d->train.n,
                        .test_samples = d->test.n,
                        .fingerprint = data->fingerprints[i],
                        .meaning = meaning};
                mfl_strcpy(info->name, sizeof(info->name), d->name);
        }
        return offer_programs(data, config, err);
}

void mfl_client_data_deinit(struct mfl_client_data *data)
{
        for (uint32_t i = 0; i < data->n; i++)
                mfl_dataset_free(data->sets[i]);
        data->n = 0;
}
