/* SPDX-License-Identifier: Apache-2.0 */
/* What is made from the tables of `mfl` besides --help: man pages, the reference of job files, completion. */
#ifndef MFL_CLI_MANUAL_H
#define MFL_CLI_MANUAL_H

#include <stdio.h>

#include "common/page.h"

/* examples/reference.yaml, which `mfl help job` shows. */
extern const char mfl_job_reference[];

/* mfl.1 */
void mfl_manual_print(FILE *out);
/* Every key of a job file with its limits, and what the reference file says about it; mfl-job.5 or a chapter
 * of docs/configuration.md. */
void mfl_manual_print_job(FILE *out, enum mfl_page_form form);
/* What the reference file says behind a key such as "training.lr"; false when it does not name the key. */
bool mfl_manual_comment(const char *reference, const char *path, char *text, size_t bytes);
/* The completion of `mfl` for bash. */
void mfl_completion_print(FILE *out);

#endif
