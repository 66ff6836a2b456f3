/* SPDX-License-Identifier: Apache-2.0 */
/* What a watch knows about its job, and how it shows changes. */
#include <inttypes.h>
#include <math.h>
#include <unistd.h>

#include "cli/view/watch_state.h"

#include "cli/view/views.h"

static bool draws(const struct mfl_watch *w)
{
        return w->output == MFL_WATCH_LINES && w->cli->terminal;
}

#define TRAINED_MIN 0.01 /* part of a round after which its speed is meaningful */

/* Estimated from the current training, before any round is done; -1: unknown. */
static double seconds_a_round(const struct mfl_watch *w)
{
        double part = w->trained - w->first_trained;
        if (!w->first_ms || part < TRAINED_MIN)
                return -1;
        return (double)(w->told_ms - w->first_ms) / 1000 / part;
}

static void note_training(struct mfl_watch *w)
{
        bool same = w->first_ms && w->first_round == w->in_round && w->first_attempt == w->attempt;
        w->told_ms = mfl_now_ms();
        if (same && w->trained >= w->first_trained)
                return;
        w->first_ms = w->in_round && !strcmp(w->phase, "train") ? mfl_now_ms() : 0;
        w->first_round = w->in_round;
        w->first_attempt = w->attempt;
        w->first_trained = w->trained;
}

/* At a normal start, a job waits for a moment until its daemons have read their data. */
static bool is_quiet(const struct mfl_watch *w)
{
        return w->state == MFL__JOB_STATE__JOB_WAITING && mfl_now_ms() - w->started_ms < w->quiet_ms;
}

/* The seconds that the remaining rounds will take, judged by the last ones; -1 if unknown. */
static double seconds_left(const struct mfl_watch *w)
{
        size_t n = MFL_MIN(w->n, (size_t)5);
        double seconds = 0;
        if (mfl_state_is_final(w->state))
                return -1;
        for (size_t i = w->n - n; i < w->n; i++)
                seconds += w->all[i].info.seconds;
        bool training = w->in_round > w->round && w->clients_total && !strcmp(w->phase, "train");
        double part = training ? MFL_MAX((double)w->clients_done / w->clients_total, w->trained)
                               : w->in_round > w->round;
        double rounds = (double)w->rounds - w->round - MFL_MIN(part, 1.0);
        double each = n ? seconds / (double)n : seconds_a_round(w);
        double since = n ? 0 : (double)(mfl_now_ms() - w->told_ms) / 1000;
        return each < 0 ? -1 : fmax(each * rounds - since, 0);
}

/* Below the job's own lines, as many as fit on the terminal: taller drawings can't be redrawn in place. */
static char *add_crew(const struct mfl_watch *w, const char *text, const struct mfl_style *style)
{
        int left = mfl_screen_rows(STDOUT_FILENO) - 1; /* the cursor is on the line below */
        for (const char *c = text; *c; c++)
                left -= *c == '\n';
        bool works = !mfl_state_is_final(w->state) && !w->notice[0];
        MFL_CLEANUP_FREE char *crew = mfl_view_crew(&w->crew, works ? left : 0, style);
        return crew ? mfl_asprintf("%s%s", text, crew) : NULL;
}

void mfl_watch_draw(struct mfl_watch *w)
{
        struct mfl_style style = {.utf8 = w->cli->utf8, .colour = w->cli->colour};
        if (!draws(w) || w->state == MFL__JOB_STATE__JOB_UNSPECIFIED || is_quiet(w))
                return;
        /* The final message of the command says why the job failed. */
        const char *reason = mfl_state_is_final(w->state) ? "" : w->reason;
        struct mfl_display_job job = {.job = w->job,
                .name = w->name,
                .state = mfl_state_name(w->state),
                .phase = w->phase,
                .reason = reason,
                .notice = w->notice,
                .round = w->round,
                .rounds = w->rounds,
                .in_round = w->in_round,
                .attempt = w->attempt,
                .clients_done = w->clients_done,
                .clients_total = w->clients_total,
                .daemons = w->daemons,
                .trained = w->trained,
                .bytes_up = w->bytes_up,
                .bytes_down = w->bytes_down,
                .seconds = w->took_ms ? (double)w->took_ms / 1000
                                      : (double)(mfl_now_ms() - w->started_ms) / 1000,
                .left = seconds_left(w),
                .accuracy = w->accuracy,
                .loss = w->loss,
                .n_evaluated = w->n_evaluated,
                .no_accuracy = w->no_accuracy,
                .per_token = w->per_token};
        style.columns = mfl_screen_columns(STDOUT_FILENO);
        MFL_CLEANUP_FREE char *text = mfl_display_render(&job, &style);
        MFL_CLEANUP_FREE char *both = text ? add_crew(w, text, &style) : NULL;
        if (both)
                mfl_screen_draw(&w->screen, both);
}

static int show_state(struct mfl_watch *w, bool changed, bool moved, struct mfl_error *err);

int mfl_watch_show_held(struct mfl_watch *w, struct mfl_error *err)
{
        return w->held && !is_quiet(w) ? show_state(w, true, false, err) : 0;
}

static int show_state(struct mfl_watch *w, bool changed, bool moved, struct mfl_error *err)
{
        if (w->output == MFL_WATCH_JSON && (changed || moved)) {
                json_t *event = mfl_json_event(changed ? "state" : "progress");
                json_object_set(event, "job", w->info);
                return mfl_json_print(stdout, event, err);
        }
        if (w->output != MFL_WATCH_LINES || draws(w) || !changed)
                return 0;
        w->held = is_quiet(w);
        if (w->held)
                return 0;
        bool why = *w->reason && !mfl_state_is_final(w->state);
        printf("%s %s: %s%s%s\n", w->job, w->name, mfl_state_name(w->state), why ? ": " : "",
                why ? w->reason : "");
        return mfl_cli_flush(err);
}

/* Events have it in their jobs. */
static void tell_open(struct mfl_watch *w, const Mfl__JobInfo *i)
{
        const char *open = mfl_view_open_figures(i);
        if (!open || w->open_told || w->output == MFL_WATCH_SILENT || w->output == MFL_WATCH_JSON)
                return;
        w->open_told = true;
        mfl_watch_note(w, "%s: %s", i->job, open);
}

int mfl_watch_take_info(struct mfl_watch *w, const Mfl__JobInfo *i, struct mfl_error *err)
{
        bool changed = w->state != i->state || strcmp(w->reason, i->reason) != 0;
        bool moved = w->in_round != i->in_round || w->clients_done != i->clients_done ||
                     strcmp(w->phase, i->phase) != 0 || w->daemons != i->daemons || w->attempt != i->attempt;
        mfl_strcpy(w->name, sizeof w->name, i->name);
        mfl_strcpy(w->phase, sizeof w->phase, i->phase);
        mfl_strcpy(w->reason, sizeof w->reason, i->reason);
        w->state = i->state;
        w->round = MFL_MAX(w->round, i->round);
        w->rounds = i->rounds;
        w->in_round = i->in_round;
        w->attempt = i->attempt;
        w->clients_done = i->clients_done;
        w->clients_total = i->clients_total;
        w->daemons = i->daemons;
        if (w->trained != i->trained || !w->first_ms || w->first_round != i->in_round) {
                w->trained = i->trained;
                note_training(w);
        }
        w->per_token = i->per_token;
        w->took_ms = i->finished_ms > i->created_ms ? i->finished_ms - i->created_ms : 0;
        json_decref(w->info);
        w->info = mfl_json_job(i);
        tell_open(w, i);
        if (i->state != MFL__JOB_STATE__JOB_WAITING)
                w->waiting_ms = 0;
        else if (!w->waiting_ms)
                w->waiting_ms = mfl_now_ms();
        w->ended = w->ended || w->once || mfl_state_is_final(i->state);
        return show_state(w, changed, moved, err);
}

/* All three lists have the same capacity. */
static int make_room(struct mfl_watch *w, struct mfl_error *err)
{
        if (w->n < w->room)
                return 0;
        size_t room = w->room ? w->room * 2 : 64;
        void *all = mfl_realloc(w->all, room * sizeof *w->all);
        w->all = all ? all : w->all;
        void *accuracy = mfl_realloc(w->accuracy, room * sizeof(double));
        w->accuracy = accuracy ? accuracy : w->accuracy;
        void *loss = mfl_realloc(w->loss, room * sizeof(double));
        w->loss = loss ? loss : w->loss;
        if (!all || !accuracy || !loss)
                return mfl_fail_memory(err, room * sizeof *w->all, "the rounds of a job");
        w->room = room;
        return 0;
}

#define CREW_EVERY_MS (MFL_ACTIVITY_SECONDS * 1000) /* each event covers the time since the one before */

int mfl_watch_take_crew(struct mfl_watch *w, const Mfl__Crew *crew, struct mfl_error *err)
{
        Mfl__Activity sum;
        uint64_t now_ms = mfl_now_ms();
        mfl_crew_take(&w->crew, crew);
        bool due = !w->crew_ms || now_ms - w->crew_ms >= CREW_EVERY_MS;
        if (w->output != MFL_WATCH_JSON || !due || !mfl_crew_sum(&w->crew, &sum))
                return 0;
        w->crew_ms = now_ms;
        json_t *event = mfl_json_event("crew");
        json_object_set_new(event, "job", json_string(w->job));
        json_object_set_new(event, "daemons", mfl_crew_json(&w->crew));
        json_object_set_new(event, "more", json_integer(w->crew.more));
        return mfl_json_print(stdout, event, err);
}

static int show_round(struct mfl_watch *w, const Mfl__RoundInfo *r, struct mfl_error *err)
{
        Mfl__Activity sum;
        char crew[128], text[256];
        if (w->output == MFL_WATCH_JSON) {
                json_t *event = mfl_json_event("round");
                json_object_set_new(event, "job", json_string(w->job));
                json_object_set_new(event, "round", mfl_json_round(r));
                return mfl_json_print(stdout, event, err);
        }
        if (w->output != MFL_WATCH_LINES || draws(w))
                return 0;
        printf("round %u", r->round);
        if (w->rounds)
                printf("/%u", w->rounds);
        if (r->evaluated && r->no_accuracy)
                printf("  accuracy n/a");
        else if (r->evaluated)
                printf("  accuracy %.4f", r->accuracy);
        if (r->has_mean_iou_case)
                printf("  mean IoU %.4f", r->mean_iou);
        if (r->evaluated)
                printf("  loss %.4f", r->loss);
        if (r->evaluated && w->per_token)
                printf("  perplexity %.2f", exp(r->loss));
        struct mfl_measures measures = mfl_round_measures(r);
        fputs(mfl_view_measures(&measures, "  ", text, sizeof text), stdout);
        struct mfl_metrics metrics = mfl_round_metrics(r);
        fputs(mfl_view_metrics(&metrics, "  ", text, sizeof text), stdout);
        if (r->clients)
                printf("  train loss %.4f", r->train_loss);
        printf("  clients %u", r->clients);
        if (r->clients_rejected)
                printf(" (%u rejected)", r->clients_rejected);
        printf("  %.1f s", r->seconds);
        if (r->has_virtual_end_case)
                printf("  virtual %.1f s", r->virtual_end);
        /* A round may be shorter than the time between two reports of a daemon: then nothing is known of it. */
        if (mfl_crew_sum(&w->crew, &sum) && (sum.samples_per_second > 0 || sum.compute > 0))
                printf("  %s", mfl_crew_line(&sum, crew, sizeof crew));
        putchar('\n');
        return mfl_cli_flush(err);
}

int mfl_watch_take_round(struct mfl_watch *w, const Mfl__RoundInfo *r, struct mfl_error *err)
{
        if (r->round <= (w->n ? w->all[w->n - 1].info.round : w->after))
                return 0;
        int e = w->on_round ? w->on_round(w->user, r, err) : 0;
        if (!e)
                e = make_room(w, err);
        if (e)
                return e;
        struct mfl_watch_round *to = &w->all[w->n++];
        to->info = *r;
        to->info.digest.data = NULL; /* the message goes, so readers use to->digest and to->measures */
        to->info.measures = NULL;
        to->info.client_bins = NULL;
        to->info.n_measures = to->info.n_client_bins = to->info.n_metric_values = 0;
        to->info.metric_values = NULL;
        to->metrics = mfl_round_metrics(r);
        to->measures = mfl_round_measures(r);
        memset(to->digest, 0, sizeof to->digest);
        if (r->digest.len == sizeof to->digest)
                memcpy(to->digest, r->digest.data, sizeof to->digest);
        w->no_accuracy = r->no_accuracy;
        if (r->evaluated) {
                w->accuracy[w->n_evaluated] = r->accuracy;
                w->loss[w->n_evaluated++] = r->loss;
        }
        w->round = MFL_MAX(w->round, r->round);
        w->bytes_up += (double)r->bytes_up;
        w->bytes_down += (double)r->bytes_down;
        return show_round(w, r, err);
}
