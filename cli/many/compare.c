/* SPDX-License-Identifier: Apache-2.0 */
/* What differs between job files, and how the jobs went. */
#include "cli/many/compare.h"

#include <math.h>
#include <stdio.h>

#include "cli/base/table.h"
#include "cli/view/views.h"
#include "common/settings/yaml.h"
#include "proto/json/json.h"

#define SETTINGS_SHOWN 6
#define PATH_BYTES 256

static struct mfl_setting *setting_at(struct mfl_settings *s, const char *path)
{
        for (size_t i = 0; i < s->n; i++)
                if (!strcmp(s->setting[i].path, path))
                        return &s->setting[i];
        if (s->n == s->room) {
                size_t room = s->room ? 2 * s->room : 64;
                struct mfl_setting *more = mfl_realloc(s->setting, room * sizeof *more);
                if (!more)
                        return NULL;
                s->setting = more;
                s->room = room;
        }
        struct mfl_setting new = {.path = mfl_strdup(path), .value = mfl_calloc(s->n_jobs, sizeof(char *))};
        if (!new.path || !new.value) {
                free(new.path);
                free(new.value);
                return NULL;
        }
        s->setting[s->n] = new;
        return &s->setting[s->n++];
}

/* Every scalar below a node. False: out of memory. */
static bool take_node(struct mfl_settings *s, size_t job, const struct mfl_yaml_node *node, const char *path)
{
        char below[PATH_BYTES];
        if (node->type == MFL_YAML_SCALAR) {
                struct mfl_setting *setting = setting_at(s, path);
                if (setting)
                        setting->value[job] = mfl_strdup(node->text);
                return setting && setting->value[job];
        }
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                if (!n->key)
                        mfl_snprintf(below, sizeof below, "%s[%u]", path, n->index);
                else
                        mfl_snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", n->key);
                if (!take_node(s, job, n, below))
                        return false;
        }
        return true;
}

static bool differs(const struct mfl_setting *setting, size_t n_jobs)
{
        const char *first = setting->value[0];
        for (size_t i = 1; i < n_jobs; i++) {
                const char *other = setting->value[i];
                if (!first != !other || (first && strcmp(first, other) != 0))
                        return true;
        }
        return false;
}

static void free_setting(struct mfl_setting *setting, size_t n_jobs)
{
        for (size_t i = 0; i < n_jobs; i++)
                free(setting->value[i]);
        free(setting->value);
        free(setting->path);
}

void mfl_settings_deinit(struct mfl_settings *s)
{
        for (size_t i = 0; i < s->n; i++)
                free_setting(&s->setting[i], s->n_jobs);
        free(s->setting);
        *s = (struct mfl_settings){.n = 0};
}

int mfl_settings_find(
        Mfl__JobDetail *const *jobs, size_t n_jobs, struct mfl_settings *ret_settings, struct mfl_error *err)
{
        struct mfl_settings s = {.n_jobs = n_jobs};
        size_t kept = 0;
        int r = 0;
        for (size_t i = 0; !r && i < n_jobs; i++) {
                struct mfl_yaml_doc *doc = NULL;
                r = mfl_yaml_parse(jobs[i]->text, strlen(jobs[i]->text), jobs[i]->info->job, NULL, &doc, err);
                if (!r && !take_node(&s, i, mfl_yaml_root(doc), ""))
                        r = mfl_fail_memory(err, 0, "the settings of jobs");
                mfl_yaml_free(doc);
        }
        if (r) {
                mfl_settings_deinit(&s);
                return r;
        }
        for (size_t i = 0; i < s.n; i++) {
                struct mfl_setting one = s.setting[i];
                if (strcmp(one.path, "name") != 0 && differs(&one, n_jobs))
                        s.setting[kept++] = one;
                else
                        free_setting(&one, n_jobs);
        }
        s.n = kept;
        *ret_settings = s;
        return 0;
}

static char letter_of(size_t job)
{
        return job < 26 ? (char)('a' + job) : job < 52 ? (char)('A' + job - 26) : ' ';
}

static double seconds_of(const Mfl__JobDetail *job)
{
        double seconds = 0;
        for (size_t i = 0; i < job->n_rounds; i++)
                seconds += job->rounds[i]->seconds;
        return seconds;
}

/* The newest evaluated round; NULL: none. */
static const Mfl__RoundInfo *newest_of(const Mfl__JobInfo *info)
{
        return info->last && info->last->evaluated ? info->last : info->evaluated;
}

/* Settings first: they are what the eye compares results with. */
static void add_job(
        struct mfl_table *table, size_t i, const Mfl__JobDetail *job, const struct mfl_settings *settings)
{
        const Mfl__JobInfo *info = job->info;
        const Mfl__RoundInfo *last = newest_of(info);
        const char *mark = mfl_view_mark(info);
        char letter[2] = {letter_of(i)}, round[32], best[40] = "", newest[24], accuracy[16], loss[24] = "-",
             seconds[24];
        const char *cells[MFL_TABLE_COLUMNS_MAX] = {letter, info->job, info->name};
        int n = 3;
        for (size_t s = 0; s < settings->n && s < SETTINGS_SHOWN; s++)
                cells[n++] = settings->setting[s].value[i] ? settings->setting[s].value[i] : "-";
        snprintf(round, sizeof round, "%u/%u", info->round, info->rounds);
        if (info->best)
                snprintf(best, sizeof best, "%s%s (%u)",
                        mfl_view_accuracy(info->best, accuracy, sizeof accuracy), mark, info->best->round);
        if (last)
                snprintf(loss, sizeof loss, "%.4f%s", last->loss, mark);
        snprintf(newest, sizeof newest, "%s%s", mfl_view_accuracy(last, accuracy, sizeof accuracy),
                last ? mark : "");
        snprintf(seconds, sizeof seconds, "%.1f", seconds_of(job));
        cells[n++] = mfl_state_name(info->state);
        cells[n++] = round;
        cells[n++] = newest;
        cells[n++] = best;
        cells[n++] = loss;
        cells[n++] = seconds;
        mfl_table_add(table, cells);
}

char *mfl_view_compare(
        Mfl__JobDetail *const *jobs, size_t n_jobs, const struct mfl_settings *settings, int columns)
{
        struct mfl_table_column of[MFL_TABLE_COLUMNS_MAX] = {
                {"", false, 0}, {"JOB", false, 0}, {"NAME", false, 3}};
        int n = 3;
        for (size_t s = 0; s < settings->n && s < SETTINGS_SHOWN; s++)
                of[n++] = (struct mfl_table_column){settings->setting[s].path, true, 0};
        of[n++] = (struct mfl_table_column){"STATE", false, 0};
        of[n++] = (struct mfl_table_column){"ROUND", true, 1};
        of[n++] = (struct mfl_table_column){"ACCURACY", true, 0};
        of[n++] = (struct mfl_table_column){"BEST", true, 0};
        of[n++] = (struct mfl_table_column){"LOSS", true, 0};
        of[n++] = (struct mfl_table_column){"SECONDS", true, 2};
        struct mfl_table table = {.columns = of, .n_columns = n};
        bool marked = false;
        for (size_t i = 0; i < n_jobs; i++) {
                add_job(&table, i, jobs[i], settings);
                marked |= newest_of(jobs[i]->info) && *mfl_view_mark(jobs[i]->info);
        }
        char *text = mfl_table_render(&table, columns);
        mfl_table_deinit(&table);
        if (marked)
                text = mfl_view_append(text, MFL_VIEW_MARK);
        if (!text || settings->n <= SETTINGS_SHOWN)
                return text;
        char *longer = mfl_asprintf("%s%zu more settings differ, from %s on; --json has them all\n", text,
                settings->n - SETTINGS_SHOWN, settings->setting[SETTINGS_SHOWN].path);
        free(text);
        return longer;
}

json_t *mfl_json_compare(Mfl__JobDetail *const *jobs, size_t n_jobs, const struct mfl_settings *settings)
{
        json_t *list = json_array();
        for (size_t i = 0; i < n_jobs; i++) {
                json_t *values = json_object(), *rounds = json_array();
                for (size_t s = 0; s < settings->n; s++)
                        json_object_set_new(values, settings->setting[s].path,
                                settings->setting[s].value[i] ? json_string(settings->setting[s].value[i])
                                                              : json_null());
                for (size_t k = 0; k < jobs[i]->n_rounds; k++)
                        json_array_append_new(rounds, mfl_json_round(jobs[i]->rounds[k]));
                json_array_append_new(list, json_pack("{so so so}", "job", mfl_json_job(jobs[i]->info),
                                                    "settings", values, "rounds", rounds));
        }
        return json_pack("{so}", "jobs", list);
}
