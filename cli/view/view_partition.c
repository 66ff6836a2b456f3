/* SPDX-License-Identifier: Apache-2.0 */
/* How a job's data set is divided among its clients, as text. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/base/table.h"
#include "cli/view/views.h"

#define TOP 5 /* number of classes named in a row */

enum column { CLIENT, SAMPLES, CLASSES, COLUMNS_ };
static const struct mfl_table_column columns_of[COLUMNS_] = {
        [CLIENT] = {"CLIENT", false, 0},
        [SAMPLES] = {"SAMPLES", true, 0},
        [CLASSES] = {"COMMONEST CLASSES", false, 1},
};

/* "3: 88%  0: 12%"; the last number stands for all classes from that one on. */
static const char *mix_text(const Mfl__ClientSamples *c, uint32_t n_classes, char *buf, size_t buf_bytes)
{
        bool said[256] = {false};
        size_t n = 0;
        mfl_strcpy(buf, buf_bytes, "");
        for (int k = 0; k < TOP; k++) {
                size_t best = SIZE_MAX;
                for (size_t i = 0; i < c->n_classes && i < MFL_ARRAY_SIZE(said); i++)
                        if (!said[i] && c->classes[i] &&
                                (best == SIZE_MAX || c->classes[i] > c->classes[best]))
                                best = i;
                if (best == SIZE_MAX || n >= buf_bytes)
                        break;
                said[best] = true;
                bool rest = best + 1 == c->n_classes && n_classes > c->n_classes;
                int r = snprintf(buf + n, buf_bytes - n, "%s%zu%s: %.0f%%", k ? "  " : "", best,
                        rest ? "+" : "", 100.0 * c->classes[best] / c->samples);
                n += r > 0 ? (size_t)r : 0;
        }
        return buf;
}

static void add_client(struct mfl_table *table, const Mfl__ClientSamples *c, uint32_t n_classes)
{
        char number[24], samples[16], mix[160];
        snprintf(number, sizeof number, "%" PRIu64, c->client);
        snprintf(samples, sizeof samples, "%u", c->samples);
        mfl_table_add(table, (const char *const[COLUMNS_]){
                                     [CLIENT] = *c->daemon ? c->daemon : number,
                                     [SAMPLES] = samples,
                                     [CLASSES] = mix_text(c, n_classes, mix, sizeof mix),
                             });
}

char *mfl_view_partition(const Mfl__JobPartition *partition, int columns)
{
        const Mfl__Partition *p = partition->partition;
        struct mfl_table table = {.columns = columns_of, .n_columns = COLUMNS_};
        if (!p)
                return mfl_asprintf(
                        "%s: no daemon has reported yet how the data set is divided\n", partition->job);
        for (size_t i = 0; i < p->n_shown; i++)
                add_client(&table, p->shown[i], p->classes);
        MFL_CLEANUP_FREE char *rows = mfl_table_render(&table, columns);
        mfl_table_deinit(&table);
        if (!rows)
                return NULL;
        return mfl_asprintf("%u %s, %" PRIu64 " samples: %u to %u each\n%s%s", p->clients,
                partition->local ? "sites" : "clients", p->samples, p->samples_min, p->samples_max, rows,
                p->n_shown < p->clients ? "(not all of them are shown)\n" : "");
}
