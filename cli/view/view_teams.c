/* SPDX-License-Identifier: Apache-2.0 */
/* A job's teams: how many there were, where their time went, and who is in those at work. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/base/table.h"
#include "cli/view/views.h"

enum column { LEADER, RANKS, OVER, HELPERS, COLUMNS_ };
static const struct mfl_table_column columns_of[COLUMNS_] = {
        [LEADER] = {"LEADER", false, 0},
        [RANKS] = {"RANKS", true, 0},
        [OVER] = {"OVER", false, 0},
        [HELPERS] = {"HELPERS", false, 1},
};

static void add_team(struct mfl_table *table, const Mfl__JobTeam *team)
{
        char text[16], helpers[512] = "";
        uint32_t ranks = 0;
        size_t n = 0;
        for (size_t i = 0; i < team->n_members; i++) {
                ranks += team->members[i]->ranks;
                if (i && n < sizeof helpers)
                        n += (size_t)snprintf(helpers + n, sizeof helpers - n, "%s%s", i > 1 ? ", " : "",
                                team->members[i]->daemon);
        }
        snprintf(text, sizeof text, "%u", ranks);
        mfl_table_add(table,
                (const char *const[COLUMNS_]){[LEADER] = team->n_members ? team->members[0]->daemon : "",
                        [RANKS] = text,
                        [OVER] = team->wide ? "tcp" : "memory",
                        [HELPERS] = helpers});
}

/* "; compute 71%, exchange 22%, apply 7% of 12.3 s"; "" before any time is known. */
static void put_times(const Mfl__TeamTimes *t, char *buf, size_t buf_bytes)
{
        double all = t ? (double)t->compute_us + (double)t->exchange_us + (double)t->apply_us : 0;
        buf[0] = '\0';
        if (all > 0)
                snprintf(buf, buf_bytes, "; of %.1f s compute %.0f%%, exchange %.0f%%, apply %.0f%%",
                        all / 1e6, 100 * (double)t->compute_us / all, 100 * (double)t->exchange_us / all,
                        100 * (double)t->apply_us / all);
}

/* " (2 late, 1 unreached; 40 steps kept)"; "" without such. */
static void put_losses(const Mfl__JobTeams *teams, char *buf, size_t buf_bytes)
{
        uint32_t kept = teams->times ? teams->times->kept : 0;
        char reasons[64] = "", steps[48] = "";
        buf[0] = '\0';
        if (teams->late || teams->unreached)
                snprintf(reasons, sizeof reasons, "%u late, %u unreached", teams->late, teams->unreached);
        if (kept)
                snprintf(steps, sizeof steps, "%s%u steps kept", *reasons ? "; " : "", kept);
        if (*reasons || *steps)
                snprintf(buf, buf_bytes, " (%s%s)", reasons, steps);
}

char *mfl_view_teams(const Mfl__JobTeams *teams, bool at_work, int columns)
{
        struct mfl_table table = {.columns = columns_of, .n_columns = COLUMNS_};
        char times[128], losses[160];
        if (!teams)
                return mfl_strdup(at_work ? "teams: none; the job has no parallel\n" : "");
        if (!teams->formed && !at_work)
                return mfl_strdup("");
        put_times(teams->times, times, sizeof times);
        put_losses(teams, losses, sizeof losses);
        for (size_t i = 0; at_work && i < teams->n_at_work; i++)
                add_team(&table, teams->at_work[i]);
        MFL_CLEANUP_FREE char *rows = mfl_table_render(&table, columns);
        char *text =
                !rows ? NULL
                      : mfl_asprintf("teams: %u formed, %u lost a member%s, %u were taken back%s\n%s%s%s%s",
                                teams->formed, teams->broken, losses, teams->taken, times,
                                at_work && *teams->last ? "last lost: " : "", at_work ? teams->last : "",
                                at_work && *teams->last ? "\n" : "", at_work && teams->n_at_work ? rows : "");
        mfl_table_deinit(&table);
        return text;
}
