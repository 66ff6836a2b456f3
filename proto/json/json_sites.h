/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON vocabulary of registered models: versions, validations by site, and who serves them (json.h says what holds for all of it). */
#ifndef MFL_PROTO_JSON_JSON_SITES_H
#define MFL_PROTO_JSON_JSON_SITES_H

#include "proto/json/json.h"

/* {"name", "version", "job", "round", "digest", "who", "time_ms", "aliases", "accuracy", "loss", "validated"} */
json_t *mfl_json_version(const Mfl__ModelVersion *version);
/* {"site", "daemon", "status", "reason"} */
json_t *mfl_json_site(const Mfl__InquirySite *site);
/* Of kind EVALUATE: {"model", "job", "round", "digest", "data", "sites", "few", "all", "number", "time_ms", "who"}. name: of a model that is no
 * registered one. */
json_t *mfl_json_report(const char *name, const Mfl__InquiryReport *report);
/* {"name", "model", "job", "round", "version", "requests", "failed", "p50_us", "p99_us", "host", "who", "address", "time_ms"} */
json_t *mfl_json_serving(const Mfl__Serving *serving);

/* ---- numbers of a report ---- */
const char *mfl_site_status(const Mfl__InquirySite *site); /* "answered", "refused", "failed", "silent" */
/* Whether it has told numbers; NULL: no. Loss and accuracy are of one that has. */
bool mfl_site_told(const Mfl__InquirySite *site);
double mfl_site_loss(const Mfl__InquirySite *site);
double mfl_site_accuracy(const Mfl__InquirySite *site);
/* Of all that were told. */
void mfl_report_all(const Mfl__InquiryReport *report, Mfl__InquirySite *ret_all);

#endif
