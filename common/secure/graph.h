/* SPDX-License-Identifier: Apache-2.0 */
/* Who shares masks with whom, and how many shares open a secret (Bell et al.: "Secure single-server aggregation with
 * (poly)logarithmic overhead", CCS 2020).
 *
 * Up to MFL_SECURE_COMPLETE members, each with each; t = floor(2n/3) + 1, or more if `bad` is above a third. Above, a Harary graph of
 * even degree k over a secretless but unpredictable order (the transcript's). For a share `bad` of members who work with the server and
 * a share `lost` who drop out, k is the least for which
 *   - somebody has 2t - k - 3 or more bad neighbours with probability <= 2^-121,
 *   - the honest ones who are left are no longer connected with probability <= 2^-41,
 *   - somebody has fewer than t neighbours left with probability <= 2^-20.
 * Bad and lost members are drawn without replacement (hypergeometric); probabilities are bounded over all members. 100 members at 10% and
 * 10%: k 34, t 24; 1,000: 146, 109. Where no k below n - 1 is good enough, each with each (up to 255 members).
 *
 * Why 2t - k - 3, where Bell et al. ask for t: their server shows everybody one set of survivors. Here it may show as many as it likes, and as
 * many sets of who has shared, which nobody signs. A member opens shares only after t of the k + 1 holders of its own shares, bad ones
 * included, have signed the set that it was shown, and it is in that set. Say b of its neighbours are bad.
 *   - The mask key of a member who opens needs t - b honest holders who believe that it is gone, and t - b others have signed that it is
 *     there. They are k + 1 - b together: so it is safe while b < 2t - k - 1.
 *   - A member M shares pair masks with those who have shared, as it was told: t - 1 neighbours or more. Who else holds shares of its
 *     self mask are k + 1 - t, to whom the server may say that M survives and those neighbours do not. So a part of the sum whose
 *     members open for each other, and for nobody else, needs c honest members with b + c >= 2t - k - 1: three at least while
 *     b < 2t - k - 3. (With b = 2t - k - 2 bad neighbours of a member, the one update of that member.)
 * With the 22 and 12 of a server that shows one set, one bad neighbour is enough for one that shows two.
 *
 * Why 2^-121: the order follows from everybody's keys, and a server sees those of the honest members before it makes those of the bad ones.
 * It may try sets of keys until the ring suits it. After 2^80 of them, each of which takes a hash at least, the chance is 2^-41. (Keys that
 * everybody commits to beforehand would do with less, and with one more step in each sum.)
 *
 * A server that knows the ring may also drop members on purpose, and cut it where its own stand: so it gets to see the sum of a part, of
 * three honest members or more.
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
        double least; /* the share that a sum needs at least, for its noise (shares.h); 0: as many as the graph needs */
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
