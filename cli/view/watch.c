/* SPDX-License-Identifier: Apache-2.0 */
/* Watches a job until it ends.
 *
 * Happy path: connect -> Watch -> Events -> the last one has a final state -> 0 or MFL_CLI_FAILED. Failures:
 * the connection breaks (it is made again, from the last round seen, until give_up_ms have passed); no such
 * job; Ctrl-C; the owner's abort; a job that waits for too long.
 */
#include "cli/view/watch.h"

#include <inttypes.h>
#include <math.h>

#include "cli/view/views.h"
#include "cli/view/watch_state.h"

#define PAUSE_FIRST_MS 100
#define PAUSE_MAX_MS 2000
#define CONNECT_MS 5000
#define TICK_MS 250

void mfl_watch_note(struct mfl_watch *w, const char *fmt, ...)
{
        char text[512];
        va_list args;
        va_start(args, fmt);
        vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        if (w->output == MFL_WATCH_JSON) {
                json_t *event = mfl_json_event("note");
                json_object_set_new(event, "text", json_string(text));
                mfl_json_print(stdout, event, NULL);
        }
        mfl_screen_clear(&w->screen);
        mfl_cli_note(w->cli, "%s", text);
        mfl_watch_draw(w);
}

/* Ends drawing and shows the cursor; the last drawing stays. Idempotent; mfl_watch_run calls it at its end.
 */
static void end_drawing(struct mfl_watch *w)
{
        mfl_screen_end(&w->screen);
}

void mfl_watch_deinit(struct mfl_watch *w)
{
        end_drawing(w);
        free(w->all);
        free(w->accuracy);
        free(w->loss);
        json_decref(w->info);
        w->all = NULL;
        w->accuracy = w->loss = NULL;
        w->info = NULL;
        w->n = w->room = w->n_evaluated = 0;
}

static int take_event(struct mfl_watch *w, const Mfl__Event *event, struct mfl_error *err)
{
        int r;
        switch (event->what_case) {
        case MFL__EVENT__WHAT_INFO:
                r = mfl_watch_take_info(w, event->info, err);
                return r || !event->crew ? r : mfl_watch_take_crew(w, event->crew, err);
        case MFL__EVENT__WHAT_ROUND:
                return mfl_watch_take_round(w, event->round, err);
        default:
                return 0;
        }
}

static int ask(struct mfl_watch *w, struct mfl_client *client, struct mfl_error *err)
{
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__Watch watch = MFL__WATCH__INIT;
        watch.job = w->job;
        watch.all_rounds = w->all_rounds;
        watch.crew = w->output != MFL_WATCH_SILENT;
        watch.rounds_from = w->n ? w->all[w->n - 1].info.round : w->after;
        request.body_case = MFL__ENVELOPE__BODY_WATCH;
        request.watch = &watch;
        return mfl_client_ask(client, &request, err);
}

/* Reasons to end a watch other than the job's end. */
static int check_limits(struct mfl_watch *w, struct mfl_error *err)
{
        if (w->abort[0])
                return mfl_fail(err, MFL_CLI_FAILED, "%s", w->abort);
        if (w->waiting_max_ms && w->waiting_ms && mfl_now_ms() - w->waiting_ms > w->waiting_max_ms)
                return mfl_fail(err, MFL_CLI_TIMEOUT, "%s waited for %" PRIu64 " s: %s", w->job,
                        w->waiting_max_ms / 1000, *w->reason ? w->reason : "the server gave no reason");
        return 0;
}

/* The server ended the watch without a final state: the job was deleted in the meantime. */
static int fail_ended(struct mfl_watch *w, struct mfl_error *err)
{
        return mfl_fail(
                err, MFL_NOT_FOUND, "%s: the server ended the watch, because the job was deleted", w->job);
}

static int follow(struct mfl_watch *w, struct mfl_client *client, struct mfl_error *err)
{
        int r = ask(w, client, err);
        while (!r && !w->ended) {
                MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
                r = check_limits(w, err);
                if (r)
                        return r;
                r = mfl_watch_show_held(w, err);
                if (r)
                        return r;
                r = mfl_client_next(client, TICK_MS, &answer, err);
                if (r == MFL_CLI_TIMEOUT)
                        r = 0;
                else if (!r && answer->body_case == MFL__ENVELOPE__BODY_EVENT)
                        r = take_event(w, answer->event, err);
                else if (!r && answer->body_case == MFL__ENVELOPE__BODY_DONE)
                        r = fail_ended(w, err);
                if (!r)
                        mfl_watch_draw(w);
        }
        return r;
}

static void tell_lost(struct mfl_watch *w, const struct mfl_error *err)
{
        if (!w->notice[0])
                mfl_watch_note(w, "connection to the server lost, waiting (%s)", err->text);
        mfl_strcpy(w->notice, sizeof w->notice, "connection to the server lost, waiting");
        mfl_watch_draw(w);
}

/* One connection, for as long as it lasts. */
static int connect_and_follow(struct mfl_watch *w, struct mfl_error *err)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = w->cli};
        int r = mfl_client_open(&client, w->cli, w->address, CONNECT_MS, err);
        if (r == MFL_CLI_TIMEOUT)
                r = MFL_CLI_LOST;
        if (r)
                return r;
        if (w->notice[0])
                mfl_watch_note(w, "connected to the server again");
        w->notice[0] = '\0';
        w->lost_ms = 0;
        w->connected_once = true;
        return follow(w, &client, err);
}

static int watch_through(struct mfl_watch *w, struct mfl_error *err)
{
        uint64_t pause_ms = PAUSE_FIRST_MS;
        for (;;) {
                int r = connect_and_follow(w, err);
                if (r != MFL_CLI_LOST)
                        return r;
                uint64_t now = mfl_now_ms();
                if (!w->lost_ms) {
                        w->lost_ms = now;
                        pause_ms = PAUSE_FIRST_MS;
                }
                w->waiting_ms = 0;
                if (now - w->lost_ms >= w->give_up_ms)
                        return r;
                tell_lost(w, err);
                r = mfl_client_sleep(w->cli, pause_ms, err);
                if (!r)
                        r = check_limits(w, err);
                if (r)
                        return r;
                pause_ms = MFL_MIN(pause_ms * 2, (uint64_t)PAUSE_MAX_MS);
        }
}

int mfl_watch_run(struct mfl_watch *w, struct mfl_error *err)
{
        w->screen.out = stdout;
        w->started_ms = mfl_now_ms();
        int r = mfl_cli_signals_start(w->cli, err);
        if (!r)
                r = watch_through(w, err);
        end_drawing(w);
        if (r || w->once || w->state == MFL__JOB_STATE__JOB_DONE)
                return r;
        return mfl_fail(err, MFL_CLI_FAILED, "%s %s: %s", w->job,
                w->state == MFL__JOB_STATE__JOB_STOPPED ? "was stopped" : "failed",
                *w->reason ? w->reason : "no reason was given");
}

static void print_quality(const struct mfl_watch *w, const struct mfl_watch_round *round)
{
        const Mfl__RoundInfo *r = &round->info;
        char text[256];
        if (!r->no_accuracy)
                printf(", accuracy %.4f", r->accuracy);
        if (r->has_mean_iou_case)
                printf(", mean IoU %.4f", r->mean_iou);
        printf(", loss %.4f", r->loss);
        if (w->per_token)
                printf(", perplexity %.2f", exp(r->loss));
        fputs(mfl_view_measures(&round->measures, ", ", text, sizeof text), stdout);
        fputs(mfl_view_metrics(&round->metrics, ", ", text, sizeof text), stdout);
}

static void print_last_word(struct mfl_watch *w)
{
        const struct mfl_watch_round *last = w->n ? &w->all[w->n - 1] : NULL;
        if (w->output == MFL_WATCH_JSON || !last)
                return;
        printf("%s %s: %s after %u round%s", w->job, w->name, mfl_state_name(w->state), last->info.round,
                last->info.round == 1 ? "" : "s");
        size_t i = w->n;
        while (i && !w->all[i - 1].info.evaluated)
                i--;
        if (i)
                print_quality(w, &w->all[i - 1]);
        if (i && i < w->n)
                printf(" (round %u)", w->all[i - 1].info.round);
        putchar('\n');
}

int mfl_watch_command(struct mfl_cli *cli, const char *ref, enum mfl_watch_output output)
{
        struct mfl_error err;
        struct mfl_watch watch = {.cli = cli, .address = cli->server, .output = output};
        watch.give_up_ms = cli->options.timeout >= 0 ? (uint64_t)cli->options.timeout * 1000 : 60000;
        {
                MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
                int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
                if (!r)
                        r = mfl_client_resolve(&client, ref, watch.job, &err);
                if (r)
                        return mfl_cli_report(cli, r, &err);
        }
        int r = mfl_watch_run(&watch, &err);
        if (output == MFL_WATCH_LINES)
                print_last_word(&watch);
        else if (output == MFL_WATCH_SILENT && cli->json && watch.info)
                mfl_json_print(stdout, json_pack("{sO}", "job", watch.info), NULL);
        int code = mfl_cli_report(cli, r, &err);
        mfl_watch_deinit(&watch);
        return code;
}
