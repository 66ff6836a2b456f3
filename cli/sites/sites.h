/* SPDX-License-Identifier: Apache-2.0 */
/* Work at the sites that is not training: statistics of their data, a model's validation there, predictions that stay there; and the registry of
 * models. Each function is a command and returns the exit code of the program. The command's thread. */
#ifndef MFL_CLI_SITES_SITES_H
#define MFL_CLI_SITES_SITES_H

#include "cli/base/client.h"
#include "common/job/job.h"

int mfl_cmd_stats(struct mfl_cli *cli);    /* data stats */
int mfl_cmd_validate(struct mfl_cli *cli); /* validate */
int mfl_cmd_predict_at(struct mfl_cli *cli);
int mfl_cmd_registry(struct mfl_cli *cli); /* model, but for show */

/* Asks the sites whether they would work for a job, for a second at most. *ret_answer: the report; NULL, where the server can't ask now
 * (no site has the data yet, or it is older). token: NULL: none; of a job that it has made, no site is asked. Codes of client.h. */
int mfl_sites_ask_job(struct mfl_client *client, const char *text, const char *token,
        Mfl__Envelope **ret_answer, struct mfl_error *err);
/* A line on standard error for each site that would refuse it, or asks its administrator first. */
void mfl_sites_tell_job(struct mfl_cli *cli, const Mfl__InquiryReport *report);
/* MFL_INVALID: those that are connected would be enough for a round of the job, and without those that refuse they are not. Who has not
 * answered counts as one that takes it. */
int mfl_sites_enough(const Mfl__InquiryReport *report, const struct mfl_job *job, struct mfl_error *err);

/* ---- between the files of this room ---- */

/* Seconds that --deadline gives sites; otherwise 60. */
uint32_t mfl_sites_deadline(const struct mfl_cli *cli);
/* Asks, and waits for the report. Codes of client.h; free the answer with mfl_wire_free. */
int mfl_sites_ask(
        struct mfl_client *client, Mfl__Inquire *inquire, Mfl__Envelope **ret_answer, struct mfl_error *err);
/* The same, after the inquiry was sent. */
int mfl_sites_answer(
        struct mfl_client *client, uint32_t deadline_s, Mfl__Envelope **ret_answer, struct mfl_error *err);
/* Whether MODEL is a file, and not a job or a registered model. */
bool mfl_sites_is_file(const char *model);
/* As mfl_sites_ask, with the model of a file that `mfl pull` wrote. MFL_INVALID, MFL_NOT_FOUND. */
int mfl_sites_ask_file(struct mfl_client *client, const char *path, Mfl__Inquire *inquire,
        Mfl__Envelope **ret_answer, struct mfl_error *err);
/* A table of several models' reports: rows are sites. */
#define MFL_SITES_MODELS_MAX MFL_CLI_POSITIONAL_MAX
struct mfl_sites_table {
        uint32_t n;
        const char *names[MFL_SITES_MODELS_MAX]; /* of models whose report has none */
        const Mfl__InquiryReport *reports[MFL_SITES_MODELS_MAX];
};
int mfl_sites_print(const struct mfl_cli *cli, const struct mfl_sites_table *table, struct mfl_error *err);
int mfl_sites_reports(struct mfl_client *client, struct mfl_error *err); /* model reports */
int mfl_sites_serving(struct mfl_client *client, struct mfl_error *err); /* model serving */
/* Which model MODEL is: NAME@ALIAS, NAME@VERSION, or a job with --round. job: room for MFL_JOB_ID_BYTES; "" for a registered one. */
int mfl_sites_model(struct mfl_client *client, const char *model, char *ret_job, int64_t *ret_round,
        struct mfl_error *err);
/* Prints the sites that have not answered, on stderr. */
void mfl_sites_print_silent(const Mfl__InquiryReport *report);

#endif
