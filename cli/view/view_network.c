/* SPDX-License-Identifier: Apache-2.0 */
/* The network traffic of a job's rounds, node by node, and what it would have been without nodes. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/base/display.h"
#include "cli/base/table.h"
#include "cli/view/views.h"

/* "4.0x"; "-" if there was no traffic. Returns buf. */
static const char *format_factor(uint64_t bytes, uint64_t bytes_alone, char *buf, size_t buf_bytes)
{
        if (bytes)
                snprintf(buf, buf_bytes, "%.1fx", (double)bytes_alone / (double)bytes);
        else
                mfl_strcpy(buf, buf_bytes, "-");
        return buf;
}

enum column { ROUND, NODE, DAEMONS, UP, DOWN, UP_ALONE, DOWN_ALONE, FACTOR, COLUMNS_ };
static const struct mfl_table_column columns_of[COLUMNS_] = {
        [ROUND] = {"ROUND", true, 0},
        [NODE] = {"NODE", false, 0},
        [DAEMONS] = {"DAEMONS", true, 1},
        [UP] = {"UP", true, 0},
        [DOWN] = {"DOWN", true, 0},
        [UP_ALONE] = {"UP ALONE", true, 2},
        [DOWN_ALONE] = {"DOWN ALONE", true, 3},
        [FACTOR] = {"FACTOR", true, 0},
};

static void add_cost(struct mfl_table *table, const Mfl__NodeCost *c)
{
        char round[16], node[160], daemons[16], up[24], down[24], up_alone[24], down_alone[24], factor[32];
        snprintf(round, sizeof round, "%u", c->round);
        snprintf(daemons, sizeof daemons, "%u", c->daemons);
        mfl_table_add(table,
                (const char *const[COLUMNS_]){
                        [ROUND] = round,
                        [NODE] = mfl_view_node(c->node, node, sizeof node),
                        [DAEMONS] = daemons,
                        [UP] = mfl_display_bytes((double)c->bytes_up, up, sizeof up),
                        [DOWN] = mfl_display_bytes((double)c->bytes_down, down, sizeof down),
                        [UP_ALONE] = mfl_display_bytes((double)c->bytes_up_alone, up_alone, sizeof up_alone),
                        [DOWN_ALONE] =
                                mfl_display_bytes((double)c->bytes_down_alone, down_alone, sizeof down_alone),
                        [FACTOR] = format_factor(c->bytes_up + c->bytes_down,
                                c->bytes_up_alone + c->bytes_down_alone, factor, sizeof factor),
                });
}

/* The sums of the rounds, which go further back than those of the nodes. */
static char *sum_text(const Mfl__JobDetail *d)
{
        uint64_t up = 0, down = 0, up_alone = 0, down_alone = 0;
        char b[4][24], factor[32];
        if (!d->n_rounds)
                return mfl_strdup("");
        for (size_t i = 0; i < d->n_rounds; i++) {
                up += d->rounds[i]->bytes_up;
                down += d->rounds[i]->bytes_down;
                up_alone += d->rounds[i]->bytes_up_alone;
                down_alone += d->rounds[i]->bytes_down_alone;
        }
        return mfl_asprintf("rounds %u to %u: %s up, %s down; alone %s up, %s down (%s)\n",
                d->rounds[0]->round, d->rounds[d->n_rounds - 1]->round,
                mfl_display_bytes((double)up, b[0], sizeof b[0]),
                mfl_display_bytes((double)down, b[1], sizeof b[1]),
                mfl_display_bytes((double)up_alone, b[2], sizeof b[2]),
                mfl_display_bytes((double)down_alone, b[3], sizeof b[3]),
                format_factor(up + down, up_alone + down_alone, factor, sizeof factor));
}

char *mfl_view_network(const Mfl__JobDetail *d, bool all_rounds, int columns)
{
        struct mfl_table table = {.columns = columns_of, .n_columns = COLUMNS_};
        if (!d->n_nodes)
                return mfl_strdup("");
        uint32_t newest = d->nodes[d->n_nodes - 1]->round;
        for (size_t i = 0; i < d->n_nodes; i++)
                if (all_rounds || d->nodes[i]->round == newest)
                        add_cost(&table, d->nodes[i]);
        MFL_CLEANUP_FREE char *rows = mfl_table_render(&table, columns);
        MFL_CLEANUP_FREE char *sum = sum_text(d);
        mfl_table_deinit(&table);
        return rows && sum ? mfl_asprintf("network\n%s%s", rows, sum) : NULL;
}
