/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes CSV: the first byte says how the columns are used. */
#include "common/data/sources.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static char zero[] = "0", name[] = "b";
        char *targets[] = {zero};
        struct mfl_csv csv;
        struct mfl_error err;
        if (!size)
                return 0;
        struct mfl_dataset_config config = {.headless = data[0] & 1,
                .owner = data[0] & 2 ? name : NULL,
                .separator = data[0] & 4 ? ';' : 0,
                .targets = targets,
                .n_target_columns = data[0] & 8 ? 1 : 0};
        uint8_t *own = malloc(size);
        mfl_assert(own);
        memcpy(own, data + 1, size - 1);
        if (mfl_csv_parse(own, size - 1, "fuzz", &config, &csv, &err) == 0) {
                size_t sum = 0;
                for (size_t i = 0; i < (size_t)csv.n * csv.n_features; i++)
                        mfl_assert(isfinite(csv.features[i]));
                for (uint32_t i = 0; i < csv.n; i++)
                        sum += (csv.labels ? csv.labels[i].n : 0) + (csv.owners ? csv.owners[i].n : 0);
                mfl_assert(sum <= size);
                mfl_csv_deinit(&csv);
        }
        free(own);
        return 0;
}
