/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of a run: created at the start, filled at the end. */
#include <dirent.h>
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/run/run.h"
#include "cli/view/views.h"
#include "common/base/digest.h"
#include "common/base/fs.h"

static bool is_empty(const char *dir)
{
        DIR *d = opendir(dir);
        int n = 0;
        if (!d)
                return false;
        while (n < 3 && readdir(d))
                n++;
        closedir(d);
        return n == 2;
}

static int make_given(struct mfl_run *run, const char *dir, struct mfl_error *err)
{
        if (strlen(dir) >= sizeof run->out)
                return mfl_fail(err, MFL_CLI_USAGE, "--out: the path is too long");
        run->out_made = access(dir, F_OK) != 0;
        int r = mfl_fs_mkdirs(dir, 0755, err);
        if (r)
                return r;
        if (!is_empty(dir))
                return mfl_fail(err, MFL_CLI_CONFLICT,
                        "--out: %s is not empty; choose a new or an empty folder", dir);
        mfl_strcpy(run->out, sizeof run->out, dir);
        return 0;
}

int mfl_run_make_out(struct mfl_run *run, const char *dir, struct mfl_error *err)
{
        if (dir)
                return make_given(run, dir, err);
        for (int i = 1; i < 100000; i++) {
                if (i == 1)
                        mfl_strcpy(run->out, sizeof run->out, "mfl-run");
                else
                        snprintf(run->out, sizeof run->out, "mfl-run-%d", i);
                run->out_made = !mkdir(run->out, 0755);
                if (run->out_made)
                        return 0;
                if (errno != EEXIST)
                        return mfl_fail_errno(err, "make the folder %s (--out takes another one)", run->out);
        }
        return mfl_fail(err, MFL_CLI_CONFLICT,
                "there are too many folders mfl-run-N here; choose another folder with --out");
}

static int write_whole(const char *path, const void *data, size_t bytes, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        int r = mfl_fs_begin(&file, path, err);
        if (!r)
                r = mfl_fs_write(&file, data, bytes, err);
        if (!r)
                return mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

int mfl_run_write_job(struct mfl_run *run, struct mfl_error *err)
{
        char path[4096];
        snprintf(path, sizeof path, "%s/job.yaml", run->out);
        return write_whole(path, run->submission.text, run->submission.text_bytes, err);
}

/* Unknown values are empty. */
static void put_number(FILE *f, bool known, double value)
{
        char text[MFL_DOUBLE_BYTES];
        if (known)
                fputs(mfl_double_text(value, text), f);
        fputc(',', f);
}

static void put_measures(FILE *f, const struct mfl_measures *m)
{
        char text[MFL_DOUBLE_BYTES];
        if (m->clients)
                fprintf(f, ",%u,", m->clients);
        else
                fputs(",,", f);
        for (int i = 0; m->clients && i < MFL_SCORE_BINS; i++)
                fprintf(f, "%s%u", i ? " " : "", m->bins[i]);
        for (int k = 0; k < MFL_MEASURES; k++)
                fprintf(f, ",%s",
                        mfl_measure_known(m, (enum mfl_measure)k) ? mfl_double_text(m->v[k], text) : "");
}

static void put_metrics(FILE *f, const struct mfl_metrics *metrics)
{
        char name[64], text[MFL_DOUBLE_BYTES];
        double value;
        fputc(',', f);
        for (uint32_t k = 0; mfl_metric_get(metrics, k, name, &value); k++)
                fprintf(f, "%s%s=%s", k ? " " : "", name,
                        isfinite(value) ? mfl_double_text(value, text) : "");
}

static void print_csv(FILE *f, const struct mfl_watch *w)
{
        char hex[MFL_SHA256_HEX_BYTES];
        fputs("round,accuracy,loss,train_loss,train_accuracy,samples,clients,clients_rejected,bytes_up,bytes_"
              "down,"
              "seconds,attempt,daemons,digest,bytes_up_alone,bytes_down_alone,mean_iou,virtual_start,virtual_"
              "end,clamped,clients_evaluated,client_bins",
                f);
        for (int k = 0; k < MFL_MEASURES; k++)
                fprintf(f, ",%s", mfl_measure_infos[k].name);
        fputs(",metrics\n", f);
        for (size_t i = 0; i < w->n; i++) {
                const Mfl__RoundInfo *r = &w->all[i].info;
                fprintf(f, "%u,", r->round);
                put_number(f, mfl_has_accuracy(r), r->accuracy);
                put_number(f, r->evaluated, r->loss);
                put_number(f, r->clients, r->train_loss);
                put_number(f, r->clients && !r->no_accuracy, r->train_accuracy);
                mfl_hex(w->all[i].digest, MFL_SHA256_BYTES, hex);
                fprintf(f, "%" PRIu64 ",%u,%u,%" PRIu64 ",%" PRIu64 ",%.3f,%u,%u,%s,%" PRIu64 ",%" PRIu64 ",",
                        r->samples, r->clients, r->clients_rejected, r->bytes_up, r->bytes_down, r->seconds,
                        r->attempt, r->daemons, hex, r->bytes_up_alone, r->bytes_down_alone);
                if (r->has_mean_iou_case)
                        fputs(mfl_double_text(r->mean_iou, (char[MFL_DOUBLE_BYTES]){0}), f);
                fputc(',', f);
                put_number(f, r->has_virtual_end_case, r->virtual_start);
                if (r->has_virtual_end_case)
                        fputs(mfl_double_text(r->virtual_end, (char[MFL_DOUBLE_BYTES]){0}), f);
                fprintf(f, ",%" PRIu64, r->clamped);
                put_measures(f, &w->all[i].measures);
                put_metrics(f, &w->all[i].metrics);
                fputc('\n', f);
        }
}

int mfl_run_write_rounds(struct mfl_run *run, struct mfl_error *err)
{
        char path[4096];
        char *text = NULL;
        size_t bytes = 0;
        FILE *f = open_memstream(&text, &bytes);
        if (!f)
                return mfl_fail_memory(err, 0, "rounds.csv");
        print_csv(f, &run->watch);
        if (fclose(f)) {
                free(text);
                return mfl_fail_memory(err, bytes, "rounds.csv");
        }
        snprintf(path, sizeof path, "%s/rounds.csv", run->out);
        int r = write_whole(path, text, bytes, err);
        free(text);
        return r;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
        return remove(path);
}

int mfl_run_remove_state(struct mfl_run *run, struct mfl_error *err)
{
        static const char *const folders[] = {"state", "sites"};
        char path[4096];
        for (size_t i = 0; i < MFL_ARRAY_SIZE(folders); i++) {
                snprintf(path, sizeof path, "%s/%s", run->out, folders[i]);
                if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) && errno != ENOENT)
                        return mfl_fail_errno(err, "remove %s", path);
        }
        return 0;
}

void mfl_run_discard_out(struct mfl_run *run)
{
        /* A file that can't be removed stays, which does no harm. */
        if (!nftw(run->out, remove_one, 16, FTW_DEPTH | FTW_PHYS) && !run->out_made)
                (void)!mkdir(run->out, 0755);
        run->out[0] = '\0';
}

static const struct mfl_watch_round *last_evaluated(const struct mfl_watch *w)
{
        for (size_t i = w->n; i > 0; i--)
                if (w->all[i - 1].info.evaluated)
                        return &w->all[i - 1];
        return NULL;
}

static json_t *result_json(const struct mfl_run *run)
{
        const struct mfl_watch *w = &run->watch;
        const struct mfl_watch_round *e = last_evaluated(w);
        char hex[MFL_SHA256_HEX_BYTES];
        bool ended = run->has_model && !run->cli->options.keep_state && w->state == MFL__JOB_STATE__JOB_DONE;
        if (w->n)
                mfl_hex(w->all[w->n - 1].digest, MFL_SHA256_BYTES, hex);
        return json_pack("{ss so ss so so so sI sf so so so so so}", "event", "result", "job",
                *w->job ? json_string(w->job) : json_null(), "state", mfl_state_name(w->state), "accuracy",
                e && mfl_has_accuracy(&e->info) ? json_real(e->info.accuracy) : json_null(), "loss",
                e ? json_real(e->info.loss) : json_null(), "mean_iou",
                e && e->info.has_mean_iou_case ? json_real(e->info.mean_iou) : json_null(), "rounds",
                (json_int_t)w->round, "seconds", run->seconds, "digest",
                w->n ? json_string(hex) : json_null(), "model",
                run->has_model ? json_string(run->pulled.path) : json_null(), "csv",
                *run->out ? json_sprintf("%s/rounds.csv", run->out) : json_null(), "out",
                *run->out ? json_string(run->out) : json_null(), "state_dir",
                ended || !*run->out ? json_null() : json_sprintf("%s/state", run->out));
}

static void print_quality(const struct mfl_watch *w, const struct mfl_watch_round *round)
{
        const Mfl__RoundInfo *r = &round->info;
        char text[256];
        if (mfl_has_accuracy(r))
                printf("accuracy  %.4f\n", r->accuracy);
        if (r->has_mean_iou_case)
                printf("mean IoU  %.4f\n", r->mean_iou);
        printf("loss      %.4f\n", r->loss);
        if (w->per_token)
                printf("perplexity %.2f\n", exp(r->loss));
        mfl_view_measures(&round->measures, ", ", text, sizeof text);
        if (*text)
                printf("measures  %s\n", text + 2);
        mfl_view_metrics(&round->metrics, ", ", text, sizeof text);
        if (*text)
                printf("metrics   %s\n", text + 2);
}

int mfl_run_print_result(struct mfl_run *run, struct mfl_error *err)
{
        const struct mfl_watch *w = &run->watch;
        const struct mfl_watch_round *e = last_evaluated(w);
        char time[24];
        if (run->cli->json)
                return mfl_json_print(stdout, result_json(run), err);
        if (e)
                print_quality(w, e);
        if (!w->n) /* the failure was already reported, and there is nothing more to say */
                return mfl_cli_flush(err);
        printf("rounds    %u\nseconds   %.1f (%s)\n", w->round, run->seconds,
                mfl_display_time(run->seconds, time, sizeof time));
        if (run->has_model)
                printf("digest    %s\nmodel     %s\n", run->pulled.digest, run->pulled.path);
        printf("rounds of the job in %s/rounds.csv\n", run->out);
        return mfl_cli_flush(err);
}
