/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl privacy ledger`: what a server's jobs have released of each data set. What rows cost together is found here. */
#include <inttypes.h>
#include <math.h>

#include "cli/base/client.h"
#include "cli/base/json.h"
#include "cli/commands/commands.h"
#include "common/privacy/limits.h"

#define DELTA 1e-5 /* of data sets without a limit */

struct total {
        const char *data;
        const Mfl__SpentLimit *limit; /* NULL: none */
        double epsilon, delta;
        uint64_t releases;
};

static const Mfl__SpentLimit *find_limit(const Mfl__SpentList *list, const char *data)
{
        for (size_t i = 0; i < list->n_limits; i++)
                if (!strcmp(list->limits[i]->data, data))
                        return list->limits[i];
        return NULL;
}

/* Rows [first, end) are of one data set. */
static int add_up(
        const Mfl__SpentList *list, size_t first, size_t end, struct total *total, struct mfl_error *err)
{
        struct mfl_dp_rounds *parts = mfl_calloc(end - first + 1, sizeof *parts);
        if (!parts)
                return mfl_fail_memory(err, (end - first) * sizeof *parts, "the ledger");
        for (size_t i = first; i < end; i++) {
                const Mfl__Spent *row = list->rows[i];
                parts[i - first] = (struct mfl_dp_rounds){row->sigma, row->rate, row->releases};
                total->releases += row->releases;
        }
        int r = mfl_privacy_sum(parts, end - first, total->delta, &total->epsilon, err);
        free(parts);
        return r;
}

static struct total begin_total(const Mfl__SpentList *list, const char *data)
{
        const Mfl__SpentLimit *limit = find_limit(list, data);
        return (struct total){.data = data, .limit = limit, .delta = limit ? limit->delta : DELTA};
}

static void print_total(const struct total *t)
{
        char limit[48] = "no limit";
        if (t->limit)
                snprintf(limit, sizeof limit, "of %g", t->limit->epsilon);
        printf("%s: epsilon %.4f %s, at delta %g, by %" PRIu64 " release%s\n", t->data, t->epsilon, limit,
                t->delta, t->releases, t->releases == 1 ? "" : "s");
}

static json_t *total_json(const struct total *t, json_t *rows)
{
        return json_pack("{ss so sf so sI so}", "data", t->data, "epsilon",
                isfinite(t->epsilon) ? json_real(t->epsilon) : json_null(), "delta", t->delta, "epsilon_max",
                t->limit ? json_real(t->limit->epsilon) : json_null(), "releases", (json_int_t)t->releases,
                "jobs", rows);
}

static json_t *row_json(const Mfl__Spent *row)
{
        return json_pack("{ss sf sf sI}", "job", row->job, "sigma", row->sigma, "rate", row->rate, "releases",
                (json_int_t)row->releases);
}

static void print_row(const Mfl__Spent *row)
{
        printf("  %-12s %" PRIu64 " release%s of sigma %g%s", row->job, row->releases,
                row->releases == 1 ? "" : "s", row->sigma, row->rate < 1 ? "" : "\n");
        if (row->rate < 1)
                printf(", q %g\n", row->rate);
}

/* Data sets with rows, then those that have a limit alone. sets NULL: for people. */
static int show(const Mfl__SpentList *list, json_t *sets, struct mfl_error *err)
{
        size_t end;
        for (size_t first = 0; first < list->n_rows; first = end) {
                struct total total = begin_total(list, list->rows[first]->data);
                json_t *rows = sets ? json_array() : NULL;
                for (end = first; end < list->n_rows && !strcmp(list->rows[end]->data, total.data); end++)
                        json_array_append_new(rows, sets ? row_json(list->rows[end]) : NULL);
                int r = add_up(list, first, end, &total, err);
                if (r)
                        return r;
                if (sets)
                        json_array_append_new(sets, total_json(&total, rows));
                else
                        print_total(&total);
                for (size_t i = first; i < end && !sets; i++)
                        print_row(list->rows[i]);
        }
        for (size_t i = 0; i < list->n_limits; i++) {
                struct total total = begin_total(list, list->limits[i]->data);
                bool seen = false;
                for (size_t k = 0; k < list->n_rows; k++)
                        seen |= !strcmp(list->rows[k]->data, total.data);
                if (!seen && sets)
                        json_array_append_new(sets, total_json(&total, json_array()));
                else if (!seen)
                        print_total(&total);
        }
        return 0;
}

int mfl_cmd_ledger(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct mfl_error err;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__ListSpent list = MFL__LIST_SPENT__INIT;
        json_t *sets = cli->json ? json_array() : NULL;
        request.body_case = MFL__ENVELOPE__BODY_LIST_SPENT;
        request.list_spent = &list;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = mfl_client_call(&client, &request, MFL__ENVELOPE__BODY_SPENT_LIST, &answer, &err);
        if (!r)
                r = show(answer->spent_list, sets, &err);
        if (!r && cli->json)
                r = mfl_json_print(stdout, json_pack("{sO}", "data_sets", sets), &err);
        else if (!r && !answer->spent_list->n_rows && !answer->spent_list->n_limits)
                puts("no job with privacy has released anything");
        json_decref(sets);
        return mfl_cli_report(cli, r, &err);
}
