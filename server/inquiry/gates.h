/* SPDX-License-Identifier: Apache-2.0 */
/* What a version must show before it is promoted: compares its newest validation with the gates, and with the validation of the version that it
 * takes the place of. Pure. */
#ifndef MFL_SERVER_INQUIRY_GATES_H
#define MFL_SERVER_INQUIRY_GATES_H

#include "proto/wire.h"

/* NULL: it passes. Otherwise the gate that it does not pass, with a text for people that has both numbers. now: the candidate's newest report of kind EVALUATE;
 * NULL: it was never validated. before: that of the version which the alias has; NULL: there is none, or no such report. has_before: the alias has a version. */
const char *mfl_gates_check(const Mfl__ModelGates *gates, const Mfl__InquiryReport *now, bool has_before,
        const Mfl__InquiryReport *before, char ret_reason[MFL_REASON_BYTES]);
/* Sites that have answered, those with few samples too. */
uint32_t mfl_gates_sites(const Mfl__InquiryReport *report);
/* Over all samples that were told. False: none were, or the loss knows no right and wrong. */
bool mfl_gates_accuracy(const Mfl__InquiryReport *report, double *ret_accuracy);

#endif
