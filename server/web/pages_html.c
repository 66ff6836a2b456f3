/* SPDX-License-Identifier: Apache-2.0 */
/* The pages as they are without JavaScript: plain tables in the dashboard's frame. */
#include <math.h>

#include "proto/json/json.h"
#include "server/views/daemon_view.h"
#include "server/views/job_view.h"
#include "server/web/contents.h"
#include "server/web/dashboard.h"

#define ROUNDS_SHOWN 50

/* Appends the frame with the page's own parts in it. */
static void put_frame(struct mfl_text *text, const char *title, const struct mfl_text *main_part)
{
        static const char title_mark[] = "@TITLE@", main_mark[] = "@MAIN@";
        const char *frame = mfl_dashboard_frame;
        const char *at_title = strstr(frame, title_mark), *at_main = strstr(frame, main_mark);
        mfl_assert(at_title && at_main && at_title < at_main);
        mfl_text_bytes(text, frame, (size_t)(at_title - frame));
        mfl_text_html(text, title);
        at_title += sizeof title_mark - 1;
        mfl_text_bytes(text, at_title, (size_t)(at_main - at_title));
        if (main_part->v)
                mfl_text_bytes(text, main_part->v, main_part->n);
        mfl_text_put(text, at_main + sizeof main_mark - 1);
        text->failed |= main_part->failed;
}

static void put_cell(struct mfl_text *text, const char *value)
{
        mfl_text_put(text, "<td>");
        mfl_text_html(text, value);
        mfl_text_put(text, "</td>");
}

/* open: of a job with privacy, without noise. */
static void put_quality(
        struct mfl_text *text, bool evaluated, bool no_accuracy, double accuracy, double loss, bool open)
{
        const char *title = open ? " title=\"not private: without noise\"" : "", *mark = open ? "*" : "";
        if (!evaluated)
                mfl_text_put(text, "<td></td><td></td>");
        else if (no_accuracy)
                mfl_text_format(text, "<td class=num>n/a</td><td class=num%s>%.4f%s</td>", title, loss, mark);
        else
                mfl_text_format(text, "<td class=num%s>%.4f%s</td><td class=num%s>%.4f%s</td>", title,
                        accuracy, mark, title, loss, mark);
}

static void put_job_row(struct mfl_text *text, const struct mfl_server_job *job)
{
        Mfl__JobInfo info;
        struct mfl_job_info_buffers buffers;
        mfl_view_job(job, &info, &buffers);
        /* An id has only letters, digits and '-'. */
        mfl_text_format(text, "<tr><td><a href=\"/jobs/%s\">%s</a></td>", info.job, info.job);
        put_cell(text, info.name);
        put_cell(text, mfl_state_name(info.state));
        mfl_text_format(text, "<td class=num>%u/%u</td>", info.round, info.rounds);
        put_quality(text, job->observed.evaluated, isnan(job->observed.accuracy), job->observed.accuracy,
                job->observed.loss, *info.privacy && !info.metrics_withheld);
        mfl_text_format(text, "<td class=num>%u</td>", info.daemons);
        put_cell(text, info.reason);
        mfl_text_put(text, "</tr>\n");
}

static void put_jobs(const struct mfl_pages *pages, struct mfl_text *text)
{
        uint32_t n = 0, n_archived = 0, skip;
        for (const struct mfl_server_job *job = pages->jobs->first; job; job = job->next) {
                n += !job->archived_unix_ms;
                n_archived += job->archived_unix_ms != 0;
        }
        skip = n > MFL_PAGES_ROWS_MAX ? n - MFL_PAGES_ROWS_MAX : 0;
        mfl_text_put(text, "<section id=jobs><h2>Jobs</h2>\n");
        if (skip)
                mfl_text_format(text,
                        "<p class=note>%u of %u jobs are left out: the oldest that have ended.</p>\n", skip,
                        n);
        if (n_archived)
                mfl_text_format(text, "<p class=note>%u archived jobs are not shown.</p>\n", n_archived);
        mfl_text_put(text,
                "<div class=wide><table><thead><tr><th>Job<th>Name<th>State<th class=num>Round"
                "<th class=num>Accuracy<th class=num>Loss<th class=num>Daemons<th>Note</tr></thead>"
                "<tbody>\n");
        for (const struct mfl_server_job *job = pages->jobs->first; job; job = job->next) {
                if (job->archived_unix_ms)
                        continue;
                if (skip && mfl_server_job_has_ended(job))
                        skip--;
                else
                        put_job_row(text, job);
        }
        mfl_text_put(text, "</tbody></table></div></section>\n");
}

/* Two cells: the last ten seconds. */
static void put_activity(struct mfl_text *text, const struct mfl_telemetry *telemetry)
{
        if (!telemetry || !(telemetry->known & MFL_TELEMETRY_ACTIVITY)) {
                mfl_text_put(text, "<td></td><td></td>");
                return;
        }
        const double *share = telemetry->activity.share;
        mfl_text_format(text, "<td class=num>%.0f</td><td>%.0f %%, %.0f %%, %.0f %%, %.0f %%</td>",
                telemetry->activity.samples_per_second, 100 * share[MFL_ACTIVITY_COMPUTE],
                100 * share[MFL_ACTIVITY_DATA], 100 * share[MFL_ACTIVITY_NETWORK],
                100 * share[MFL_ACTIVITY_WAIT]);
}

static void put_daemons(const struct mfl_pages *pages, struct mfl_text *text)
{
        uint32_t n;
        struct mfl_daemon_row *rows = mfl_daemon_rows(pages->sessions, MFL_PAGES_DAEMONS_MAX, &n);
        text->failed |= !rows;
        mfl_text_put(text, "<section id=daemons><h2>Daemons</h2>\n<div class=wide><table><thead><tr><th>Node"
                           "<th>Daemon<th>State<th>Job<th class=num>Clients<th class=num>Samples/s"
                           "<th>Compute, data, network, wait<th>Device<th>GPU</tr></thead>"
                           "<tbody>\n");
        for (uint32_t i = 0; i < n; i++) {
                const struct mfl_core_daemon_view *view = &rows[i].view;
                const struct mfl_telemetry *gpu = rows[i].telemetry;
                mfl_text_put(text, "<tr>");
                mfl_text_put(text, "<td>");
                mfl_text_html(text, view->info->relay);
                mfl_text_put(text, *view->info->relay ? ": " : "");
                mfl_text_html(text, view->node);
                mfl_text_put(text, "</td>");
                put_cell(text, view->info->name);
                put_cell(text, view->state);
                put_cell(text, view->job);
                mfl_text_format(text, "<td class=num>%u/%u</td>", view->items_done, view->items_total);
                put_activity(text, gpu);
                put_cell(text, view->info->device);
                if (gpu && (gpu->known & MFL_TELEMETRY_GPU))
                        mfl_text_format(text, "<td class=num>%u %%</td>", gpu->gpu_percent);
                else
                        mfl_text_put(text, "<td></td>");
                mfl_text_put(text, "</tr>\n");
        }
        mfl_text_put(text, "</tbody></table></div></section>\n");
        free(rows);
}

void mfl_html_overview(const struct mfl_pages *pages, struct mfl_text *text)
{
        struct mfl_text main_part = {0};
        put_jobs(pages, &main_part);
        put_daemons(pages, &main_part);
        put_frame(text, "mfl", &main_part);
        mfl_text_deinit(&main_part);
}

/* Without JavaScript nobody can log in: the code must not travel in an address. */
void mfl_html_login(const struct mfl_pages *pages, struct mfl_text *text)
{
        struct mfl_text main_part = {0};
        mfl_text_put(&main_part, "<section id=login><h2>Log in</h2>\n<p>Ask the command line for a code: "
                                 "<code>mfl login issue</code>. It is good "
                                 "for one use within five minutes.</p>\n<noscript><p>Logging in needs "
                                 "JavaScript; the other pages do not.</p>"
                                 "</noscript>\n<form id=code><label>Code <input name=code type=password "
                                 "autocomplete=off required "
                                 "maxlength=64 size=40></label> <button type=submit>Log in</button></form>\n"
                                 "<p id=login-said role=alert></p></section>\n");
        put_frame(text, "mfl: log in", &main_part);
        mfl_text_deinit(&main_part);
}

/* What sites told about a model is for those who may ask them: everything here comes after a login. */
void mfl_html_models(const struct mfl_pages *pages, struct mfl_text *text)
{
        struct mfl_text main_part = {0};
        mfl_text_put(&main_part,
                "<section id=models><h2>Models</h2>\n<p>Registered models, their validations by "
                "site and who serves them are shown after <a href=\"/login\">login</a>."
                "</p>\n<noscript><p>This page needs JavaScript. <code>mfl model list</code>, "
                "<code>mfl model reports NAME</code> and <code>mfl model serving</code> print the "
                "same.</p></noscript></section>\n");
        put_frame(text, "mfl: models", &main_part);
        mfl_text_deinit(&main_part);
}

/* open: as of put_quality. */
static void put_round_row(struct mfl_text *text, const Mfl__RoundInfo *round, bool open)
{
        mfl_text_format(text, "<tr><td class=num>%u</td>", round->round);
        put_quality(text, round->evaluated, round->no_accuracy, round->accuracy, round->loss, open);
        if (round->clients)
                mfl_text_format(text, "<td class=num>%.4f</td>", round->train_loss);
        else
                mfl_text_format(text, "<td class=num>-</td>");
        mfl_text_format(
                text, "<td class=num>%u</td><td class=num>%.2f</td></tr>\n", round->clients, round->seconds);
}

void mfl_html_job(const struct mfl_server_job *job, const struct mfl_store_rounds *rounds,
        const Mfl__Partition *partition, struct mfl_text *text)
{
        struct mfl_text main_part = {0}, *out = &main_part;
        Mfl__JobInfo info;
        struct mfl_job_info_buffers buffers;
        char title[MFL_NAME_BYTES + MFL_JOB_ID_BYTES + 8];
        mfl_view_job(job, &info, &buffers);
        mfl_snprintf(title, sizeof title, "%s %s", info.job, info.name);
        mfl_text_put(out, "<section id=job><p><a href=\"/\">All jobs</a></p>\n<h2>");
        mfl_text_html(out, title);
        mfl_text_put(out, "</h2>\n<p>");
        mfl_text_html(out, mfl_state_name(info.state));
        mfl_text_format(out, ", round %u of %u. Model ", info.round, info.rounds);
        mfl_text_html(out, info.model);
        mfl_text_put(out, ", data ");
        mfl_text_html(out, info.data);
        mfl_text_put(out, ", strategy ");
        mfl_text_html(out, info.strategy);
        if (*info.owner) {
                mfl_text_put(out, ", submitted by ");
                mfl_text_html(out, info.owner);
        }
        mfl_text_put(out, ". ");
        if (*info.privacy)
                mfl_text_format(out,
                        "Privacy: epsilon %.4f of %g spent at delta %g; %scounts are not private. ",
                        info.epsilon, info.epsilon_max, info.delta,
                        info.metrics_withheld ? "" : "losses, accuracies and ");
        mfl_text_html(out, info.reason);
        mfl_text_put(out,
                "</p>\n<div class=wide><table><caption>The last rounds</caption><thead><tr>"
                "<th class=num>Round<th class=num>Accuracy<th class=num>Loss<th class=num>Training loss"
                "<th class=num>Clients<th class=num>Seconds</tr></thead><tbody>\n");
        for (uint32_t i = rounds->n; i > 0 && rounds->n - i < ROUNDS_SHOWN; i--) {
                Mfl__RoundInfo round;
                mfl_view_round(&rounds->v[i - 1], &round);
                put_round_row(out, &round, *info.privacy && !info.metrics_withheld);
        }
        mfl_text_put(out, "</tbody></table></div></section>\n");
        mfl_html_partition(partition, out);
        mfl_text_put(out, "<section id=file><h2>Job file</h2>\n<pre>");
        mfl_text_html(out, job->text);
        mfl_text_put(out, "</pre></section>\n");
        put_frame(text, title, out);
        mfl_text_deinit(out);
}
