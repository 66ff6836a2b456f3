/* SPDX-License-Identifier: Apache-2.0 */
/* What a robust rule made of a round's updates, as one line for people: how many counted, and which counted least. */
#include <math.h>
#include <stdio.h>

#include "server/jobs/job_internal.h"

struct line {
        char *text;
        size_t room;
};

static void add(struct line *line, const char *fmt, ...) MFL_PRINTF(2, 3);
static void add(struct line *line, const char *fmt, ...)
{
        va_list args;
        va_start(args, fmt);
        int n = vsnprintf(line->text, line->room, fmt, args);
        va_end(args);
        size_t used = n < 0 ? 0 : MFL_MIN((size_t)n, line->room - 1);
        line->text += used;
        line->room -= used;
}

static void add_client(const struct mfl_server_job *job, uint64_t item, struct line *line)
{
        char site[MFL_NAME_BYTES] = "";
        if (job->spec->data.partition == MFL_PARTITION_LOCAL)
                mfl_core_site_name(job->jobs->loop->core, item, site);
        if (site[0])
                add(line, "%s", site);
        else
                add(line, "client %llu", (unsigned long long)item);
}

/* "client 3 + client 7": a bucket. */
static void add_members(
        const struct mfl_server_job *job, const struct mfl_rows_members *members, struct line *line)
{
        for (uint32_t i = 0; i < MFL_MIN(members->n, (uint32_t)MFL_MEMBERS_TOLD); i++) {
                if (i)
                        add(line, " + ");
                add_client(job, members->v[i], line);
        }
        if (members->n > MFL_MEMBERS_TOLD)
                add(line, " + %u more", members->n - MFL_MEMBERS_TOLD);
}

static void add_row(const struct mfl_server_job *job, const struct mfl_rows_report *report, uint32_t i,
        char *text, size_t room)
{
        struct line line = {text, room};
        if (report->told[i].members.is_server)
                add(&line, "server %u", report->told[i].members.server);
        else if (report->told[i].members.n)
                add_members(job, &report->told[i].members, &line);
        else
                add_client(job, report->told[i].item, &line);
        double score = report->told[i].score, distance = report->told[i].distance;
        if (report->told[i].share > 0)
                add(&line, " %.2g%%", 100 * report->told[i].share);
        if (!isnan(score))
                add(&line, " score %.3g", score);
        if (!isnan(distance))
                add(&line, " distance %.3g", distance);
}

/* "edge round 1 of 2; region 0: 5 clients 1a2b3c4d; ...": with the first bytes of the params that its clients start from next. */
static void add_regions(
        const struct mfl_server_job *job, const struct mfl_rows_report *report, struct line *line)
{
        uint32_t rounds = job->spec->edges.rounds, at = (report->round - 1) % rounds + 1;
        bool meets = at == rounds;
        add(line, "edge round %u of %u%s", at, rounds, meets ? ", the regions meet" : "");
        for (uint32_t e = 0; e < report->n_regions; e++) {
                char digest[9], part[64];
                mfl_hex(report->region_digest[e], sizeof report->region_digest[e], digest);
                snprintf(part, sizeof part, "; region %u: %u client%s%s%s", e, report->region_clients[e],
                        report->region_clients[e] == 1 ? "" : "s", meets ? "" : " ", meets ? "" : digest);
                if (strlen(part) + sizeof "; ..." > line->room) {
                        add(line, "; ...");
                        return;
                }
                add(line, "%s", part);
        }
}

void mfl_job_choice_describe(struct mfl_server_job *job, const struct mfl_rows_report *report)
{
        static const char *const instead[] = {"nothing", "their mean", "their median"};
        struct line line = {job->choice, sizeof job->choice};
        const char *rule = mfl_strategy_name(job->spec->aggregation.strategy);
        job->choice[0] = '\0';
        if (report->n_bad)
                add(&line, "attack %s: %u bad", mfl_attack_name(job->spec->simulation.attack), report->n_bad);
        if (report->n_dropped)
                add(&line, ", %u not finite", report->n_dropped);
        if (report->n_bad_servers)
                add(&line, "%sservers: %s: %u bad", report->n_bad ? "; " : "",
                        mfl_server_attack_name(job->spec->simulation.servers.attack), report->n_bad_servers);
        if ((report->n_bad || report->n_bad_servers) && (report->n_rows || report->n_regions))
                add(&line, "; ");
        if (report->n_regions)
                add_regions(job, report, &line);
        if (report->few)
                add(&line,
                        report->few < mfl_robust_rows_least(job->spec)
                                ? "%u rows are too few for %s: %s"
                                : "%u rows without the root for %s: %s",
                        report->few, rule, instead[job->spec->aggregation.robust.on_few]);
        else if (report->n_rows)
                add(&line, "%s: %u of %u counted", rule, report->n_used, report->n_rows);
        for (uint32_t i = 0; i < report->n_told; i++) {
                char row[(MFL_NAME_BYTES + 4) * MFL_MEMBERS_TOLD + 96];
                add_row(job, report, i, row, sizeof row);
                if (strlen(row) + sizeof ", ..." + 2 > line.room) {
                        add(&line, ", ...");
                        return;
                }
                add(&line, "%s%s", i ? ", " : "; least: ", row);
        }
        if (report->n_least > report->n_told)
                add(&line, ", ...");
}
