/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of relays, at the server or relay above them: each carries the connections of the daemons below it (mfl.proto,
 * RELAYS), which become sessions of their own. The rest of the server does not see the difference, save Hello.relay.
 *
 *     relay's stream -- via 0 -----> here: Ping, ParamsGet
 *                    -- via n -----> the session of its n-th daemon -----> the role daemon, as if it had a socket
 *
 * A relay's connection ends with Bye, or with silence of dead_ms; then those that it carries end, too. Refused: a relay below itself, a
 * second relay of the same name, and any while the owner is not ready. Loop thread only.
 */
#ifndef MFL_SERVER_CARRIER_CARRIER_H
#define MFL_SERVER_CARRIER_CARRIER_H

#include "server/session/session.h"

struct mfl_carriers_ops {
        /* Whether relays may come now. NULL: always. False: *ret_why, for people. */
        bool (*ready)(void *user, const char **ret_why);
        /* A relay asks for params for itself. */
        void (*params)(void *user, struct mfl_session *session, const Mfl__ParamsGet *get);
        /* A relay's session ends: nothing may be sent to it any longer. */
        void (*closed)(void *user, struct mfl_session *session);
};

struct mfl_carriers {
        struct mfl_loop *loop;
        struct mfl_sessions *sessions;
        uint32_t heartbeat_ms, dead_ms;
        uint64_t instance; /* of this process, as in Hello or Welcome */
        const char *name;  /* of this relay; "": this is the server */
        const struct mfl_carriers_ops *ops;
        void *user;
        /* Relays that lately tried to come while the owner was not ready, and those below them. */
        struct {
                uint64_t instance, seen_ms;
        } below[MFL_BELOW_MAX];
        uint32_t n_below;
};

/* Takes over the sessions of relays. */
void mfl_carriers_open(struct mfl_carriers *carriers);
/* A few times a second: pings, and ends silent connections. */
void mfl_carriers_beat(struct mfl_carriers *carriers);
/* The processes that wait below, for Hello.below; returns how many. */
uint32_t mfl_carriers_below(struct mfl_carriers *carriers, uint64_t ret_instances[MFL_BELOW_MAX]);

#endif
