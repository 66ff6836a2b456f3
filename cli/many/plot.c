/* SPDX-License-Identifier: Apache-2.0 */
/* The curves of several jobs in one field of letters. */
#include <math.h>
#include <stdio.h>

#include "cli/many/compare.h"
#include "proto/json/json.h"

#define ROWS 14
#define CURVES_MAX 52
#define COLUMNS_MAX 120
#define SIDE 9 /* the scale on the left */

struct plot {
        int columns; /* of the field */
        bool accuracy;
        uint32_t first, last; /* rounds */
        double low, high;
        char field[ROWS][COLUMNS_MAX + 1];
};

/* NAN: the round has no such number. */
static double value_of(const struct plot *p, const Mfl__RoundInfo *round)
{
        if (!round->evaluated || (p->accuracy && round->no_accuracy))
                return NAN;
        return p->accuracy ? round->accuracy : round->loss;
}

static bool any_accuracy(Mfl__JobDetail *const *jobs, size_t n_jobs)
{
        for (size_t i = 0; i < n_jobs; i++)
                for (size_t k = 0; k < jobs[i]->n_rounds; k++)
                        if (mfl_has_accuracy(jobs[i]->rounds[k]))
                                return true;
        return false;
}

/* False: nothing to draw. */
static bool find_limits(struct plot *p, Mfl__JobDetail *const *jobs, size_t n_jobs)
{
        p->first = UINT32_MAX;
        p->low = INFINITY;
        p->high = -INFINITY;
        for (size_t i = 0; i < n_jobs; i++)
                for (size_t k = 0; k < jobs[i]->n_rounds; k++) {
                        const Mfl__RoundInfo *round = jobs[i]->rounds[k];
                        double v = value_of(p, round);
                        if (!isfinite(v))
                                continue;
                        p->first = MFL_MIN(p->first, round->round);
                        p->last = MFL_MAX(p->last, round->round);
                        p->low = fmin(p->low, v);
                        p->high = fmax(p->high, v);
                }
        if (!(p->high > p->low)) { /* one level, in the middle; no accuracy is above 1 */
                const double around = fmax(fabs(p->low) * 0.05, 0.01);
                p->high = p->accuracy ? fmin(p->low + around, 1) : p->low + around;
                p->low -= around;
        }
        return p->first < p->last;
}

static int column_of(const struct plot *p, uint32_t round)
{
        return (int)((uint64_t)(round - p->first) * (uint64_t)(p->columns - 1) / (p->last - p->first));
}

static void draw_point(struct plot *p, int column, double v, char letter)
{
        int row = (int)lround((p->high - v) / (p->high - p->low) * (ROWS - 1));
        p->field[row][column] = letter;
}

/* A line from each evaluated round to the next. */
static void draw_curve(struct plot *p, const Mfl__JobDetail *job, char letter)
{
        int before = -1;
        double from = 0;
        for (size_t k = 0; k < job->n_rounds; k++) {
                double v = value_of(p, job->rounds[k]);
                if (!isfinite(v))
                        continue;
                int column = column_of(p, job->rounds[k]->round);
                for (int c = before + 1; before >= 0 && c < column; c++)
                        draw_point(p, c, from + (v - from) * (c - before) / (column - before), letter);
                draw_point(p, column, v, letter);
                before = column;
                from = v;
        }
}

static char *render(const struct plot *p)
{
        char first[16], last[16];
        size_t bytes = (size_t)(ROWS + 3) * (size_t)(p->columns + SIDE + 8), used = 0;
        char *text = mfl_calloc(1, bytes);
        if (!text)
                return NULL;
        for (int row = 0; row < ROWS; row++) {
                double v = p->high - (p->high - p->low) * row / (ROWS - 1);
                char scale[32] = "";
                if (row % 4 == 0 || row == ROWS - 1)
                        snprintf(scale, sizeof scale, "%.*f", fabs(v) < 100 ? 3 : 0, v);
                used += (size_t)mfl_snprintf(
                        text + used, bytes - used, "%*.*s |%s\n", SIDE - 2, SIDE - 2, scale, p->field[row]);
        }
        snprintf(first, sizeof first, "%u", p->first);
        snprintf(last, sizeof last, "%u", p->last);
        mfl_snprintf(text + used, bytes - used, "%*s %s%*s  %s over rounds\n", SIDE - 2, "", first,
                MFL_MAX(1, p->columns - (int)strlen(first)), last, p->accuracy ? "accuracy" : "loss");
        return text;
}

char *mfl_view_plot(Mfl__JobDetail *const *jobs, size_t n_jobs, int columns)
{
        struct plot p = {.accuracy = any_accuracy(jobs, n_jobs)};
        size_t n = MFL_MIN(n_jobs, (size_t)CURVES_MAX);
        p.columns = MFL_MAX(20, MFL_MIN(columns ? columns - SIDE - 1 : 70, COLUMNS_MAX));
        if (!find_limits(&p, jobs, n))
                return mfl_strdup("");
        for (int row = 0; row < ROWS; row++)
                memset(p.field[row], ' ', (size_t)p.columns);
        for (size_t i = n; i-- > 0;) /* the first on top */
                draw_curve(&p, jobs[i], i < 26 ? (char)('a' + i) : (char)('A' + i - 26));
        return render(&p);
}
