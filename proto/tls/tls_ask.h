/* SPDX-License-Identifier: Apache-2.0 */
/* One question over TLS whose answer is trusted no more than one over plain TCP: who answers is not checked. For probes of a server's health,
 * from the same machine. */
#ifndef MFL_PROTO_TLS_TLS_ASK_H
#define MFL_PROTO_TLS_TLS_ASK_H

#include "common/base/base.h"

/* Over a connected, blocking socket, which stays the caller's; its time limits hold for each step. Reads to the end, at most n_max bytes.
 * MFL_INVALID: no TLS, or no answer; -ENOMEM. */
int mfl_tls_ask(
        int fd, const char *question, char *ret_answer, size_t n_max, size_t *ret_n, struct mfl_error *err);

#endif
