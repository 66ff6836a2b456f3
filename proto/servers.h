/* SPDX-License-Identifier: Apache-2.0 */
/* The servers of one installation, as a peer of them knows them: which one to ask next, and how far its leader has come.
 *
 * One address is a server without a cluster, and everything is as it was. With several, a peer that can't reach one asks the next;
 * one that does not lead names the leader (Bye.leader). Loop thread only. */
#ifndef MFL_PROTO_SERVERS_H
#define MFL_PROTO_SERVERS_H

#include "common/base/base.h"

#define MFL_SERVERS_BYTES 1024
#define MFL_SERVERS_MAX 16

struct mfl_servers {
        char text[MFL_SERVERS_BYTES];
        const char *at[MFL_SERVERS_MAX]; /* in text */
        uint32_t n, current;
        uint32_t failed; /* how many in a row could not be reached */
        uint64_t term;   /* the highest that was heard */
};

/* "a:7433,b:7433,c:7433". MFL_INVALID. */
int mfl_servers_init(struct mfl_servers *servers, const char *text, struct mfl_error *err);
const char *mfl_servers_current(const struct mfl_servers *servers);
/* The current one did not answer, or does not lead. leader: whom it named; "" or one that is not in the list: the next one is
 * asked. True: not all were asked in a row, so this one may be
 * asked at once; after a false the count begins again. */
bool mfl_servers_next(struct mfl_servers *servers, const char *leader);
bool mfl_servers_has(const struct mfl_servers *servers, const char *server);
void mfl_servers_reached(struct mfl_servers *servers);
/* A message has that term; 0: the sender has none. MFL_INVALID: a leader with a higher term was heard before. */
int mfl_servers_hear(struct mfl_servers *servers, uint64_t term, struct mfl_error *err);

#endif
