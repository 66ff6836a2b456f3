/* SPDX-License-Identifier: Apache-2.0 */
/* What answers are worth: loss and accuracy by the backend's evaluation, the rest from the answers. */
#include <math.h>

#include "cli/predict/answers.h"

#define AUC_CLASSES_MAX 100 /* more take too long */

struct scored {
        double score;
        bool positive;
};

struct calibration {
        uint64_t n[MFL_ECE_BINS];
        double confidence[MFL_ECE_BINS], right[MFL_ECE_BINS];
};

static int compare_scored(const void *a, const void *b)
{
        const struct scored *x = a, *y = b;
        return (x->score > y->score) - (x->score < y->score);
}

/* Mann and Whitney's statistic by ranks, equal scores sharing theirs; false: one side is empty. */
static bool area(struct scored *v, size_t n, double *ret_area)
{
        double ranks = 0, positives = 0;
        qsort(v, n, sizeof *v, compare_scored);
        for (size_t i = 0, end; i < n; i = end) {
                size_t among = 0;
                for (end = i; end < n && v[end].score == v[i].score; end++)
                        among += v[end].positive;
                ranks += (double)among * ((double)(i + 1) + (double)end) / 2;
                positives += (double)among;
        }
        double negatives = (double)n - positives;
        if (positives == 0 || negatives == 0)
                return false;
        *ret_area = (ranks - positives * (positives + 1) / 2) / (positives * negatives);
        return true;
}

static void calibrate(struct calibration *c, double confidence, bool right)
{
        int bin = (int)MFL_MIN(MFL_MAX(confidence * MFL_ECE_BINS, 0), MFL_ECE_BINS - 1);
        c->n[bin]++;
        c->confidence[bin] += confidence;
        c->right[bin] += right;
}

static double calibration_error(const struct calibration *c, uint64_t n)
{
        double sum = 0;
        for (int b = 0; b < MFL_ECE_BINS; b++)
                sum += fabs(c->right[b] - c->confidence[b]);
        return sum / (double)n;
}

struct judging {
        const struct mfl_answers *a;
        const struct mfl_split *split;
        const struct mfl_job *job;
        double *p;        /* a row's */
        struct scored *v; /* a class's */
};

/* Position i's label, or -1 where it is not scored. */
static int32_t label_at(const struct judging *j, size_t i)
{
        int32_t label = j->split->labels[i];
        bool ignored = j->job->training.has_ignore_index && label == j->job->training.ignore_index;
        return ignored ? -1 : label;
}

static void judge_area(const struct judging *j, struct mfl_judgement *out)
{
        const struct mfl_answers *a = j->a;
        size_t n = (size_t)a->n * a->positions;
        double sum = 0, one;
        uint32_t known = 0;
        for (uint32_t c = a->classes == 2 && a->kind == MFL_ANSWER_CLASS; c < a->classes; c++) {
                size_t m = 0;
                for (size_t i = 0; i < n; i++) {
                        bool classes = a->kind == MFL_ANSWER_CLASS;
                        int32_t label = classes ? label_at(j, i) : 0;
                        if (label < 0)
                                continue;
                        mfl_answers_row(a, a->z + i * a->classes, j->p);
                        if (isnan(j->p[c]))
                                return; /* of a model that has diverged: it has no order */
                        j->v[m++] = (struct scored){j->p[c],
                                classes ? label == (int32_t)c : j->split->targets[i * a->classes + c] > 0.5f};
                }
                if (area(j->v, m, &one)) {
                        sum += one;
                        known++;
                }
        }
        out->has_auc = known > 0;
        out->auc = known ? sum / known : 0;
}

static void judge_calibration(const struct judging *j, struct mfl_judgement *out)
{
        const struct mfl_answers *a = j->a;
        struct calibration c = {{0}};
        uint64_t n = 0;
        for (size_t i = 0; i < (size_t)a->n * a->positions; i++) {
                const float *z = a->z + i * a->classes;
                mfl_answers_row(a, z, j->p);
                if (a->kind == MFL_ANSWER_CLASS) {
                        int32_t label = label_at(j, i);
                        uint32_t best = mfl_answers_best(z, a->classes);
                        if (label < 0)
                                continue;
                        calibrate(&c, j->p[best], best == (uint32_t)label);
                        n++;
                        continue;
                }
                for (uint32_t k = 0; k < a->classes; k++, n++)
                        calibrate(&c, fmax(j->p[k], 1 - j->p[k]),
                                (z[k] > 0) == (j->split->targets[i * a->classes + k] > 0.5f));
        }
        out->ece = n ? calibration_error(&c, n) : 0;
        out->has_ece = n && isfinite(out->ece);
}

static enum mfl_tally tally_of(const struct mfl_answers *a)
{
        if (a->kind == MFL_ANSWER_CLASS)
                return a->classes <= MFL_TALLY_CONFUSION_MAX ? MFL_TALLY_CONFUSION
                       : a->classes <= MFL_TALLY_CLASSES_MAX ? MFL_TALLY_CLASSES
                                                             : MFL_TALLY_NONE;
        return a->classes <= MFL_TALLY_TARGETS_MAX && a->kind == MFL_ANSWER_VALUE ? MFL_TALLY_TARGETS
                                                                                  : MFL_TALLY_NONE;
}

/* Of a round's evaluation, with the same bits. */
static int judge_score(const struct mfl_infer *infer, const struct mfl_samples *samples,
        const struct mfl_answers *a, struct mfl_judgement *out, struct mfl_error *err)
{
        enum mfl_tally kind = tally_of(a);
        uint32_t size = mfl_tally_size(kind, a->classes);
        uint64_t *tally = mfl_calloc(size + 1, sizeof *tally);
        struct mfl_score score = {.tally = tally};
        struct mfl_measures m = {0};
        int r = tally ? mfl_infer_evaluate(infer, samples->dataset, kind, &score, err)
                      : mfl_fail_memory(err, size * sizeof *tally, "an evaluation");
        if (!r && !score.n_scored)
                r = mfl_fail(err, MFL_INVALID, "no sample has a label that counts");
        if (r) {
                free(tally);
                return r;
        }
        out->n = score.n_scored;
        out->loss = mfl_fixed_loss_to_double(score.loss_sum) / (double)score.n_scored;
        out->has_accuracy = mfl_job_has_accuracy(mfl_infer_model(infer)->job);
        out->accuracy = (double)score.n_correct / (double)score.n_scored;
        mfl_tally_measure(kind, tally, a->classes, score.n_scored, &m);
        out->has_f1 = mfl_measure_known(&m, MFL_MEASURE_MACRO_F1);
        out->macro_f1 = m.v[MFL_MEASURE_MACRO_F1];
        out->has_errors = mfl_measure_known(&m, MFL_MEASURE_MAE);
        out->mae = m.v[MFL_MEASURE_MAE];
        out->rmse = m.v[MFL_MEASURE_RMSE];
        out->r2 = m.v[MFL_MEASURE_R2];
        out->classes = a->classes;
        if (kind == MFL_TALLY_CONFUSION)
                out->confusion = tally;
        else
                free(tally);
        return 0;
}

int mfl_judge(struct mfl_infer *infer, const struct mfl_samples *samples, const struct mfl_answers *answers,
        struct mfl_judgement *ret_judgement, struct mfl_error *err)
{
        struct mfl_judgement out = {0};
        size_t n = (size_t)answers->n * answers->positions;
        MFL_CLEANUP_FREE double *p = mfl_calloc(answers->classes, sizeof *p);
        MFL_CLEANUP_FREE struct scored *v = mfl_calloc(n, sizeof *v);
        if (!p || !v)
                return mfl_fail_memory(err, n * sizeof *v, "an evaluation");
        int r = judge_score(infer, samples, answers, &out, err);
        if (r)
                return r;
        struct judging j = {answers, &samples->dataset->train, mfl_infer_model(infer)->job, p, v};
        if (answers->kind != MFL_ANSWER_VALUE) {
                judge_calibration(&j, &out);
                if (answers->classes <= AUC_CLASSES_MAX)
                        judge_area(&j, &out);
        }
        *ret_judgement = out;
        return 0;
}

void mfl_judgement_deinit(struct mfl_judgement *judgement)
{
        free(judgement->confusion);
        judgement->confusion = NULL;
}
