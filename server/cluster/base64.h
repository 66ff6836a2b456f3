/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as text (RFC 4648, section 4), for etcd's JSON. */
#ifndef MFL_SERVER_CLUSTER_BASE64_H
#define MFL_SERVER_CLUSTER_BASE64_H

#include "common/base/base.h"

/* Room for n bytes as text, with its end. */
size_t mfl_base64_room(size_t n);
void mfl_base64_write(const void *bytes, size_t n, char *text);
/* ret_bytes has room for n. False: it is not base64. */
bool mfl_base64_read(const char *text, size_t n, uint8_t *ret_bytes, size_t *ret_n);

#endif
