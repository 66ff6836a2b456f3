/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes CSV: the first byte says how the columns are used. */
#include "common/data/sources.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What the loaders make of the table: windows, or tokens. */
static void check_samples(const struct mfl_dataset_config *config, struct mfl_csv *csv)
{
        const struct mfl_csv *const tables[] = {csv, csv};
        struct mfl_dataset *set = calloc(1, sizeof *set);
        struct mfl_split *splits[] = {&set->train, &set->test};
        struct mfl_dictionary words = {0};
        struct mfl_error err;
        mfl_assert(set);
        set->shape = (struct mfl_shape){2, {config->window, csv->n_features}};
        set->n_targets = (int)csv->n_targets;
        for (int s = 0; s < 2 && config->window && csv->n < 1000; s++) {
                size_t n = csv->n;
                splits[s]->n = csv->n;
                splits[s]->samples = calloc(n * csv->n_features + 1, sizeof(float));
                splits[s]->labels = csv->n_targets ? NULL : calloc(n, sizeof(int32_t));
                splits[s]->targets = csv->n_targets ? calloc(n * csv->n_targets, sizeof(float)) : NULL;
        }
        if (config->window && csv->n < 1000 && mfl_series_windows(config, tables, set, &err) == 0)
                mfl_assert(set->train.n > 0 && set->train.n == set->test.n);
        if (config->text)
                set->train.n = set->test.n = csv->n;
        if (config->text && mfl_words_take(config, tables, set, &words, &err) == 0 &&
                config->unit != MFL_TEXT_BYTES)
                mfl_assert(mfl_words_vocabulary(config, &words, set, &err) == 0);
        free(words.words);
        mfl_dataset_free(set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static char zero[] = "0", name[] = "b";
        char *targets[] = {zero}, *values[] = {zero, name};
        struct mfl_categories categories = {
                .column = name, .codes = size && data[0] & 32, .values = values, .n = 2};
        struct mfl_csv csv;
        struct mfl_error err;
        if (!size)
                return 0;
        struct mfl_dataset_config config = {.headless = data[0] & 1,
                .owner = data[0] & 2 ? name : NULL,
                .separator = data[0] & 4 ? ';' : 0,
                .targets = targets,
                .n_target_columns = data[0] & 8 ? 1 : 0,
                .categories = &categories,
                .n_categories = data[0] & 16 ? 1 : 0};
        if (data[0] & 64) {
                config.window = 2;
                config.group = data[0] & 2 ? name : NULL;
                config.time = zero;
                config.owner = NULL;
        } else if (data[0] & 128) {
                config.text = name;
                config.length = 4;
                config.unit = data[0] & 32  ? MFL_TEXT_BYTES
                              : data[0] & 4 ? MFL_TEXT_CHARACTERS
                                            : MFL_TEXT_WORDS;
                config.owner = NULL;
                config.n_categories = 0;
        }
        uint8_t *own = malloc(size);
        mfl_assert(own);
        memcpy(own, data + 1, size - 1);
        if (mfl_csv_parse(own, size - 1, "fuzz", &config, &csv, &err) == 0) {
                size_t sum = 0;
                for (size_t i = 0; i < (size_t)csv.n * csv.n_features; i++)
                        mfl_assert(isfinite(csv.features[i]));
                for (uint32_t i = 0; i < csv.n; i++)
                        sum += (csv.groups ? csv.groups[i].n : 0) + (csv.times ? csv.times[i].n : 0) +
                               (csv.texts ? csv.texts[i].n : 0);
                for (uint32_t i = 0; i < csv.n; i++)
                        sum += (csv.labels ? csv.labels[i].n : 0) + (csv.owners ? csv.owners[i].n : 0);
                mfl_assert(sum <= size);
                check_samples(&config, &csv);
                mfl_csv_deinit(&csv);
        }
        free(own);
        return 0;
}
