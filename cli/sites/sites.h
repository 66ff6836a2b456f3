/* SPDX-License-Identifier: Apache-2.0 */
/* Work at the sites that is not training: statistics of their data, a model's validation there, predictions that stay there; and the registry of
 * models. Each function is a command and returns the exit code of the program. The command's thread. */
#ifndef MFL_CLI_SITES_SITES_H
#define MFL_CLI_SITES_SITES_H

#include <jansson.h>

#include "cli/base/client.h"

int mfl_cmd_stats(struct mfl_cli *cli);    /* data stats */
int mfl_cmd_validate(struct mfl_cli *cli); /* validate */
int mfl_cmd_predict_at(struct mfl_cli *cli);
int mfl_cmd_registry(struct mfl_cli *cli); /* model, but for show */

/* ---- between the files of this room ---- */

/* Seconds that --deadline gives sites; otherwise 60. */
uint32_t mfl_sites_deadline(const struct mfl_cli *cli);
/* Asks, and waits for the report. Codes of client.h; free the answer with mfl_wire_free. */
int mfl_sites_ask(
        struct mfl_client *client, Mfl__Inquire *inquire, Mfl__Envelope **ret_answer, struct mfl_error *err);
/* Which model MODEL is: NAME@ALIAS, NAME@VERSION, or a job with --round. job: room for MFL_JOB_ID_BYTES; "" for a registered one. */
int mfl_sites_model(struct mfl_client *client, const char *model, char *ret_job, int64_t *ret_round,
        struct mfl_error *err);
/* Prints the sites that have not answered, on stderr. */
void mfl_sites_print_silent(const Mfl__InquiryReport *report);
const char *mfl_sites_status(const Mfl__InquirySite *site);
/* {"site", "daemon", "status", "reason"} */
json_t *mfl_sites_site_json(const Mfl__InquirySite *site);

#endif
