/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl predict` and `mfl evaluate`. */
#include "cli/predict/predict.h"

#include <inttypes.h>

#include "cli/base/json.h"
#include "cli/predict/answers.h"

/* Everything that both commands need. */
struct run {
        struct mfl_model_file *model;
        struct mfl_samples samples;
        struct mfl_infer *infer;
        struct mfl_answers answers;
};

static void run_deinit(struct run *run)
{
        mfl_answers_deinit(&run->answers);
        mfl_infer_free(run->infer);
        mfl_samples_deinit(&run->samples);
        mfl_model_file_free(run->model);
}

static int answer(struct mfl_cli *cli, bool labels, struct run *run, struct mfl_error *err)
{
        if (cli->options.n_data != 1)
                return mfl_fail(
                        err, MFL_CLI_USAGE, "give the samples as one --data [FORMAT:]PATH[,KEY=VALUE]");
        int r = mfl_predict_model(cli, &run->model, err);
        if (!r)
                r = mfl_samples_load(cli->options.data[0], run->model->contract, labels, &run->samples, err);
        if (!r)
                r = mfl_predict_infer(cli, run->model, labels, &run->infer, err);
        if (!r)
                r = mfl_answers_compute(run->infer, &run->samples, &run->answers, err);
        const uint32_t n_bad = r ? 0 : mfl_answers_not_finite(&run->answers);
        if (n_bad)
                mfl_cli_note(cli,
                        "%u of %u samples have an answer that is not finite (NaN or too large), so the class "
                        "that is told "
                        "means nothing; mfl-serve would not answer them",
                        n_bad, run->answers.n);
        return r;
}

static int parse_output(const struct mfl_cli *cli, const char *path, struct mfl_answer_options *options,
        struct mfl_error *err)
{
        static const char *const names[] = {"csv", "jsonl", "npy"};
        const char *dot = strrchr(path, '.'), *text = cli->options.format ? cli->options.format
                                                      : dot               ? dot + 1
                                                                          : "csv";
        bool known = false;
        for (int i = 0; i < (int)MFL_ARRAY_SIZE(names); i++)
                if (!strcmp(names[i], text)) {
                        options->format = (enum mfl_answer_format)i;
                        known = true;
                }
        if (!known)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "%s: '%.60s' is not csv, jsonl or npy; choose with --format",
                        cli->options.format ? "--format" : "--output", text);
        if (options->format == MFL_ANSWERS_NPY && !strcmp(path, "-"))
                return mfl_fail(err, MFL_CLI_USAGE, "--format npy needs a file: add -o FILE.npy");
        if (cli->json && !strcmp(path, "-"))
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--json needs a file for the answers: add -o FILE, or use --format jsonl");
        options->top = cli->options.top > 0 ? (uint32_t)cli->options.top : 1;
        options->probabilities = cli->options.probabilities;
        options->logits = cli->options.logits;
        return 0;
}

static int print_predicted(
        struct mfl_cli *cli, const struct run *run, const char *path, struct mfl_error *err)
{
        if (!strcmp(path, "-"))
                return 0;
        if (cli->json)
                return mfl_json_print(
                        stdout, json_pack("{ss sI}", "file", path, "rows", (json_int_t)run->answers.n), err);
        printf("%s: answers for %u samples\n", path, run->answers.n);
        return mfl_cli_flush(err);
}

int mfl_cmd_predict(struct mfl_cli *cli)
{
        const char *path = cli->options.out ? cli->options.out : "-";
        struct mfl_answer_options options = {0};
        struct run run = {0};
        struct mfl_error err;
        int r = cli->options.deadline > 0
                        ? mfl_fail(&err, MFL_CLI_USAGE, "--deadline is for --at: sites have it to answer")
                        : 0;
        if (!r)
                r = parse_output(cli, path, &options, &err);
        if (!r)
                r = answer(cli, false, &run, &err);
        if (!r)
                r = mfl_answers_write(&run.answers, run.model->contract, path, &options, &err);
        if (!r)
                r = print_predicted(cli, &run, path, &err);
        run_deinit(&run);
        return mfl_cli_report(cli, r, &err);
}

/* ---- evaluate ---- */

static json_t *number(bool known, double value)
{
        json_t *v = known ? json_real(value) : NULL;
        return v ? v : json_null(); /* not finite */
}

static json_t *confusion_of(const struct mfl_judgement *j)
{
        json_t *rows = j->confusion ? json_array() : json_null();
        for (uint32_t c = 0; j->confusion && c < j->classes; c++) {
                json_t *row = json_array();
                for (uint32_t p = 0; p < j->classes; p++)
                        json_array_append_new(
                                row, json_integer((json_int_t)j->confusion[c * j->classes + p]));
                json_array_append_new(rows, row);
        }
        return rows;
}

static int print_json(const struct run *run, const struct mfl_judgement *j, struct mfl_error *err)
{
        return mfl_json_print(stdout,
                json_pack("{sI sI sf so so so so so so so so}", "samples", (json_int_t)run->answers.n,
                        "predictions", (json_int_t)j->n, "loss", j->loss, "accuracy",
                        number(j->has_accuracy, j->accuracy), "macro_f1", number(j->has_f1, j->macro_f1),
                        "auc", number(j->has_auc, j->auc), "calibration_error", number(j->has_ece, j->ece),
                        "mae", number(j->has_errors, j->mae), "rmse", number(j->has_errors, j->rmse), "r2",
                        number(j->has_errors, j->r2), "confusion", confusion_of(j)),
                err);
}

static void print_number(const char *name, bool known, double value)
{
        if (known)
                printf("%-18s %.4f\n", name, value);
}

#define SHOWN_CLASSES 20

static void print_confusion(const struct mfl_contract *c, const struct mfl_judgement *j)
{
        if (!j->confusion || j->classes > SHOWN_CLASSES)
                return;
        printf("\nlabel \\ predicted  ");
        for (uint32_t p = 0; p < j->classes; p++)
                printf(" %7u", p);
        putchar('\n');
        for (uint32_t k = 0; k < j->classes; k++) {
                const char *name = c->class_names && k < (uint32_t)c->classes ? c->class_names[k] : "";
                printf("%3u %-15.15s", k, name);
                for (uint32_t p = 0; p < j->classes; p++)
                        printf(" %7" PRIu64, j->confusion[k * j->classes + p]);
                putchar('\n');
        }
}

static int print_people(const struct run *run, const struct mfl_judgement *j, struct mfl_error *err)
{
        printf("%-18s %u\n", "samples", run->answers.n);
        if (j->n != run->answers.n)
                printf("%-18s %" PRIu64 "\n", "predictions", j->n);
        print_number("loss", true, j->loss);
        print_number("accuracy", j->has_accuracy, j->accuracy);
        print_number("macro F1", j->has_f1, j->macro_f1);
        print_number("AUC", j->has_auc, j->auc);
        print_number("calibration error", j->has_ece, j->ece);
        print_number("MAE", j->has_errors, j->mae);
        print_number("RMSE", j->has_errors, j->rmse);
        print_number("R2", j->has_errors, j->r2);
        print_confusion(run->model->contract, j);
        return mfl_cli_flush(err);
}

int mfl_cmd_evaluate(struct mfl_cli *cli)
{
        struct mfl_judgement judgement = {0};
        struct run run = {0};
        struct mfl_error err;
        int r = answer(cli, true, &run, &err);
        if (!r)
                r = mfl_judge(run.infer, &run.samples, &run.answers, &judgement, &err);
        if (!r)
                r = cli->json ? print_json(&run, &judgement, &err) : print_people(&run, &judgement, &err);
        mfl_judgement_deinit(&judgement);
        run_deinit(&run);
        return mfl_cli_report(cli, r, &err);
}
