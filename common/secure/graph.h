/* SPDX-License-Identifier: Apache-2.0 */
/* Who shares masks with whom, and how many shares open a secret (Bell et al.: "Secure single-server aggregation with
 * (poly)logarithmic overhead", CCS 2020).
 *
 * Up to MFL_SECURE_COMPLETE members, each with each; t = floor(2n/3) + 1. Above, a Harary graph of even degree k over a secretless but
 * unpredictable order (the transcript's). For a share `bad` of members who work with the server and a share `lost` who drop out, k is
 * the least for which
 *   - somebody has t or more bad neighbours, or the honest ones who are left are no longer connected, with probability <= 2^-40,
 *   - somebody has fewer than t neighbours left with probability <= 2^-20,
 * for t the larger of the first number and k/2 + 1. Bad and lost members are drawn without replacement (hypergeometric); probabilities
 * are bounded over all members. 100 members at 10% and 10%: k 22, t 12; 1,000: 48, 27.
 *
 * Of one survivor set. A member checks its own neighbours' signatures alone, so a server may show two sets to two sides of the ring, and
 * whoever has 2t - k - 1 bad neighbours may then have both secrets opened: with k 22 and t 12 one is enough. Against that t would have to
 * be the larger (2t - k - 1 where it says t above), and k with it: 32 and 22 for 100 members. docs/privacy.md says so.
 *
 * All arithmetic is common/exact's, so that everybody finds the same numbers. Pure; any thread. */
#ifndef MFL_COMMON_SECURE_GRAPH_H
#define MFL_COMMON_SECURE_GRAPH_H

#include "common/secure/packet.h"

#define MFL_SECURE_COMPLETE 20u

#define MFL_SECURE_NEEDS_TLS                                                                                 \
        "needs TLS: daemons sign their keys with their certificates; give the server and the daemons "       \
        "certificates "                                                                                      \
        "(docs/admin.md)"

/* The job's key `secure_sum`. */
struct mfl_secure_spec {
        uint32_t bits;    /* of the ring; 0: the job has no such key */
        double bad, lost; /* shares of the members of a round */
};

struct mfl_secure_graph {
        uint32_t n, k, t;                       /* k: neighbours of each */
        uint16_t order[MFL_SECURE_MEMBERS_MAX]; /* the ring; place[order[p]] = p */
        uint16_t place[MFL_SECURE_MEMBERS_MAX];
};

/* k and t for n members. MFL_INVALID: fewer than MFL_SECURE_LEAST, more than MFL_SECURE_MEMBERS_MAX, or no graph is good enough. */
int mfl_secure_degree(const struct mfl_secure_spec *spec, uint32_t n, uint32_t *ret_k, uint32_t *ret_t,
        struct mfl_error *err);
/* The graph: its ring follows from the transcript. */
int mfl_secure_graph_make(const struct mfl_secure_spec *spec, uint32_t n,
        const uint8_t transcript[MFL_SECURE_KEY_BYTES], struct mfl_secure_graph *ret_graph,
        struct mfl_error *err);
/* a != b */
bool mfl_secure_are_neighbours(const struct mfl_secure_graph *graph, uint32_t a, uint32_t b);
/* Who holds shares of the owner's secrets: it and its neighbours. The number of the holder's share, from 1; 0: it holds none. */
uint32_t mfl_secure_share_number(const struct mfl_secure_graph *graph, uint32_t owner, uint32_t holder);

#endif
