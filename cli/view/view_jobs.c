/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs and their rounds as tables. */
#include <stdio.h>
#include <time.h>

#include "cli/base/display.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/view/views.h"
#include "common/base/digest.h"

#define DIGEST_BYTES_SHOWN 6

const char *mfl_view_date(uint64_t unix_ms, char *buf, size_t buf_bytes)
{
        time_t t = (time_t)(unix_ms / 1000);
        struct tm tm;
        if (!unix_ms || !localtime_r(&t, &tm) || !strftime(buf, buf_bytes, "%Y-%m-%d %H:%M:%S", &tm))
                mfl_strcpy(buf, buf_bytes, "-");
        return buf;
}

const char *mfl_view_accuracy(const Mfl__RoundInfo *r, char *buf, size_t buf_bytes)
{
        if (r && r->evaluated && r->no_accuracy)
                mfl_strcpy(buf, buf_bytes, "n/a");
        else if (r && r->evaluated)
                snprintf(buf, buf_bytes, "%.4f", r->accuracy);
        else
                mfl_strcpy(buf, buf_bytes, "-");
        return buf;
}

const char *mfl_view_open_figures(const Mfl__JobInfo *job)
{
        if (!*job->privacy)
                return NULL;
        return job->metrics_withheld ? "counts and logs are not private"
                                     : "losses, accuracies, measures, counts and logs are not private";
}

const char *mfl_view_mark(const Mfl__JobInfo *job)
{
        return *job->privacy && !job->metrics_withheld ? "*" : "";
}

/* The accuracy of the last evaluated round, with the round's number if later rounds exist. */
static const char *newest_accuracy(const Mfl__JobInfo *j, char *buf, size_t buf_bytes)
{
        const Mfl__RoundInfo *r = j->evaluated && (!j->last || !j->last->evaluated) ? j->evaluated : j->last;
        mfl_view_accuracy(r, buf, buf_bytes);
        size_t n = strlen(buf);
        if (r && r->evaluated)
                n += (size_t)snprintf(buf + n, buf_bytes - n, "%s", mfl_view_mark(j));
        if (r && r == j->evaluated)
                snprintf(buf + n, buf_bytes - n, " (%u)", r->round);
        return buf;
}

char *mfl_view_append(char *text, const char *more)
{
        char *longer = text ? mfl_asprintf("%s%s", text, more) : NULL;
        free(text);
        return longer;
}

char *mfl_view_jobs(const Mfl__JobList *list, int columns)
{
        static const struct mfl_table_column columns_of[] = {{"JOB", false, 0}, {"NAME", false, 0},
                {"STATE", false, 0}, {"ROUND", true, 0}, {"ACCURACY", true, 0}, {"CREATED", false, 1},
                {"REASON", false, 0}};
        struct mfl_table table = {.columns = columns_of, .n_columns = MFL_ARRAY_SIZE(columns_of)};
        bool marked = false;
        for (size_t i = 0; i < list->n_jobs; i++) {
                const Mfl__JobInfo *j = list->jobs[i];
                char accuracy[32], date[32], rounds[32];
                snprintf(rounds, sizeof rounds, "%u/%u", j->round, j->rounds);
                const char *cells[] = {j->job, j->name, mfl_state_name(j->state), rounds,
                        newest_accuracy(j, accuracy, sizeof accuracy),
                        mfl_view_date(j->created_ms, date, sizeof date), columns ? "" : j->reason};
                mfl_table_add(&table, cells);
                /* A reason is a sentence: on a terminal it would make every line too long. */
                if (columns && *j->reason)
                        mfl_table_remark(&table, "%s", j->reason);
                marked |= strchr(accuracy, '*') != NULL;
        }
        char *text = mfl_table_render(&table, columns);
        mfl_table_deinit(&table);
        return marked ? mfl_view_append(text, MFL_VIEW_MARK) : text;
}

char *mfl_view_rounds(Mfl__RoundInfo *const *rounds, size_t n, int columns)
{
        static const struct mfl_table_column columns_of[] = {{"ROUND", true, 0}, {"ACCURACY", true, 0},
                {"MEAN IOU", true, 2}, {"LOSS", true, 0}, {"TRAIN LOSS", true, 3}, {"CLIENTS", true, 1},
                {"UP", true, 4}, {"DOWN", true, 5}, {"SECONDS", true, 2}, {"VIRTUAL", true, 1},
                {"MODEL", false, 0}};
        struct mfl_table table = {.columns = columns_of, .n_columns = MFL_ARRAY_SIZE(columns_of)};
        for (size_t i = 0; i < n; i++) {
                const Mfl__RoundInfo *r = rounds[i];
                char number[16], accuracy[16], iou[16], loss[24] = "-", train_loss[24] = "-", clients[16],
                                                        up[24], down[24];
                char seconds[24], virtual[24] = "", digest[MFL_SHA256_HEX_BYTES] = "",
                                  model[MFL_SHA256_HEX_BYTES + 16];
                snprintf(number, sizeof number, "%u", r->round);
                if (r->evaluated)
                        snprintf(loss, sizeof loss, "%.4f", r->loss);
                snprintf(iou, sizeof iou, "%.4f", r->mean_iou);
                if (r->clients)
                        snprintf(train_loss, sizeof train_loss, "%.4f", r->train_loss);
                snprintf(clients, sizeof clients, "%u", r->clients);
                snprintf(seconds, sizeof seconds, "%.1f", r->seconds);
                if (r->has_virtual_end_case)
                        snprintf(virtual, sizeof virtual, "%.1f", r->virtual_end);
                if (r->digest.len == MFL_SHA256_BYTES)
                        mfl_hex(r->digest.data, DIGEST_BYTES_SHOWN, digest);
                snprintf(model, sizeof model, "%s%s", digest, r->kept ? "" : " (not kept)");
                const char *cells[] = {number, mfl_view_accuracy(r, accuracy, sizeof accuracy),
                        r->has_mean_iou_case ? iou : "", loss, train_loss, clients,
                        mfl_display_bytes((double)r->bytes_up, up, sizeof up),
                        mfl_display_bytes((double)r->bytes_down, down, sizeof down), seconds, virtual, model};
                mfl_table_add(&table, cells);
                if (r->states_lost)
                        mfl_table_remark(&table,
                                "%u client%s began anew: the kept state was missing or damaged",
                                r->states_lost, r->states_lost == 1 ? "" : "s");
        }
        char *text = mfl_table_render(&table, columns);
        mfl_table_deinit(&table);
        return text;
}
