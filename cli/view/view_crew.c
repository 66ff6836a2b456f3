/* SPDX-License-Identifier: Apache-2.0 */
/* How a job's daemons spend their time, as a table of bars. */
#include <stdio.h>

#include "cli/view/crew.h"
#include "cli/base/table.h"

#define BAR_COLUMNS 16

/* By the largest remainders: parts that are rounded one by one would not add up. */
void mfl_crew_apportion(const Mfl__Activity *activity, int of, int ret_parts[MFL_ACTIVITY_STATES])
{
        double rest[MFL_ACTIVITY_STATES];
        int left = of;
        for (int s = 0; s < MFL_ACTIVITY_STATES; s++) {
                double exact = mfl_wire_activity_share(activity, s) * of;
                ret_parts[s] = MFL_MIN((int)exact, left);
                rest[s] = exact - ret_parts[s];
                left -= ret_parts[s];
        }
        for (; left > 0; left--) {
                int most = 0;
                for (int s = 1; s < MFL_ACTIVITY_STATES; s++)
                        if (rest[s] > rest[most])
                                most = s;
                ret_parts[most]++;
                rest[most] -= 1;
        }
}

static const char *speed_text(double samples, char *buf, size_t buf_bytes)
{
        snprintf(buf, buf_bytes, samples > 0 && samples < 9.95 ? "%.1f" : "%.0f", samples);
        return buf;
}

const char *mfl_crew_line(const Mfl__Activity *activity, char *buf, size_t buf_bytes)
{
        int percent[MFL_ACTIVITY_STATES];
        char speed[32];
        mfl_crew_apportion(activity, 100, percent);
        int n = snprintf(buf, buf_bytes, "%s samples/s",
                speed_text(activity->samples_per_second, speed, sizeof speed));
        for (int s = 0; s < MFL_ACTIVITY_STATES && (size_t)n < buf_bytes; s++)
                n += snprintf(
                        buf + n, buf_bytes - (size_t)n, "  %s %d%%", mfl_activity_state_name(s), percent[s]);
        return buf;
}

/* ---- the table ---- */

enum column { NAME, SAMPLES, SHARES, BAR = SHARES + MFL_ACTIVITY_STATES, COLUMNS_ };
static const struct mfl_table_column columns_of[COLUMNS_] = {
        [NAME] = {"daemon", false, 0},
        [SAMPLES] = {"samples/s", true, 0},
        [SHARES + MFL_ACTIVITY_COMPUTE] = {"compute", true, 1},
        [SHARES + MFL_ACTIVITY_DATA] = {"data", true, 4},
        [SHARES + MFL_ACTIVITY_NETWORK] = {"network", true, 3},
        [SHARES + MFL_ACTIVITY_WAIT] = {"wait", true, 2},
        [BAR] = {"", false, 5},
};

static const struct {
        const char *utf8, *plain, *colour;
} marks[MFL_ACTIVITY_STATES] = {
        [MFL_ACTIVITY_COMPUTE] = {"\u2588", "#", "\033[36m"},
        [MFL_ACTIVITY_DATA] = {"\u2593", "=", "\033[33m"},
        [MFL_ACTIVITY_NETWORK] = {"\u2592", "-", "\033[35m"},
        [MFL_ACTIVITY_WAIT] = {"\u2591", ".", "\033[2m"},
};

static const char *bar_text(
        const Mfl__Activity *activity, const struct mfl_style *style, char *buf, size_t buf_bytes)
{
        int parts[MFL_ACTIVITY_STATES];
        size_t n = 0;
        mfl_crew_apportion(activity, BAR_COLUMNS, parts);
        buf[0] = '\0';
        for (int s = 0; s < MFL_ACTIVITY_STATES; s++) {
                if (parts[s] && style->colour)
                        n += (size_t)snprintf(buf + n, buf_bytes - n, "%s", marks[s].colour);
                for (int i = 0; i < parts[s]; i++)
                        n += (size_t)snprintf(
                                buf + n, buf_bytes - n, "%s", style->utf8 ? marks[s].utf8 : marks[s].plain);
                if (parts[s] && style->colour)
                        n += (size_t)snprintf(buf + n, buf_bytes - n, "\033[0m");
        }
        return buf;
}

static void add_member(
        struct mfl_table *table, const struct mfl_crew_member *member, const struct mfl_style *style)
{
        const char *cells[COLUMNS_] = {[NAME] = member->daemon};
        char speed[32], share[MFL_ACTIVITY_STATES][8], bar[256];
        int percent[MFL_ACTIVITY_STATES];
        if (member->known) {
                cells[SAMPLES] = speed_text(member->activity.samples_per_second, speed, sizeof speed);
                mfl_crew_apportion(&member->activity, 100, percent);
                for (int s = 0; s < MFL_ACTIVITY_STATES; s++) {
                        snprintf(share[s], sizeof share[s], "%d%%", percent[s]);
                        cells[SHARES + s] = share[s];
                }
                cells[BAR] = bar_text(&member->activity, style, bar, sizeof bar);
        }
        mfl_table_add(table, cells);
}

char *mfl_view_crew(const struct mfl_crew *crew, int lines_max, const struct mfl_style *style)
{
        struct mfl_table table = {.columns = columns_of, .n_columns = COLUMNS_};
        int room = lines_max - 1; /* for the header line */
        size_t all = crew->n + crew->more;
        bool all_fit = !crew->more && crew->n <= (size_t)MFL_MAX(room, 0);
        size_t n = all_fit ? crew->n : MFL_MIN(crew->n, (size_t)MFL_MAX(room - 1, 0));
        if (!n)
                return mfl_strdup("");
        for (size_t i = 0; i < n; i++)
                add_member(&table, &crew->member[i], style);
        MFL_CLEANUP_FREE char *rows = mfl_table_render(&table, style->columns);
        mfl_table_deinit(&table);
        MFL_CLEANUP_FREE char *text =
                rows && n < all ? mfl_asprintf("%sand %zu more\n", rows, all - n) : NULL;
        if (!rows || (n < all && !text))
                return NULL;
        return mfl_display_cut(text ? text : rows, style);
}
