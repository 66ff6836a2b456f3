/* SPDX-License-Identifier: Apache-2.0 */
/* A server that does not lead its cluster. See standby.h.
 *   - a peer says Hello; the answer is Bye with the leader's address, or that there is no leader at the moment;
 *   - the cluster's thread wakes the loop when the role changes, and the loop stops. */
#include "server/shell/standby.h"

#include "common/base/log.h"
#include "server/shell/peers.h"

static void on_role(uv_async_t *async)
{
        struct mfl_server *server = async->data;
        struct mfl_cluster_view view;
        mfl_cluster_look(server->cluster, &view);
        const bool leads = !server->standby;
        if (!leads &&
                view.role == MFL_CLUSTER_LEAVES) { /* it led, but for so short that nothing was opened */
                mfl_cluster_closed(server->cluster);
                return;
        }
        if (leads == (view.role == MFL_CLUSTER_LEADS))
                return;
        server->turned = true;
        mfl_loop_stop(&server->loop);
}

/* On the cluster's thread. */
static void wake(void *user)
{
        struct mfl_server *server = user;
        uv_async_send(&server->role);
}

void mfl_standby_watch(struct mfl_server *server)
{
        if (!server->cluster)
                return;
        uv_async_init(&server->loop.uv, &server->role, on_role);
        server->role.data = server;
        mfl_cluster_listen(server->cluster, wake, server);
}

void mfl_standby_unwatch(struct mfl_server *server)
{
        if (!server->cluster)
                return;
        mfl_cluster_listen(server->cluster, NULL, NULL);
        uv_close((uv_handle_t *)&server->role, NULL);
}

/* ---- peers ---- */

static bool send_away(struct mfl_session *session, const Mfl__Envelope *hello)
{
        struct mfl_server *server = MFL_CONTAINER_OF(session->all, struct mfl_server, sessions);
        struct mfl_cluster_view view;
        char text[800];
        mfl_cluster_look(server->cluster, &view);
        session->stream.leader = NULL;
        if (view.role == MFL_CLUSTER_ENDED)
                mfl_snprintf(text, sizeof text, "the installation has left this cluster");
        else if (*view.leader)
                mfl_snprintf(text, sizeof text, "this server (%s) does not lead the cluster: %s (%s) does",
                        server->config.cluster.name, view.leader_name, view.leader);
        else
                mfl_snprintf(text, sizeof text, "no server leads the cluster at the moment%s%.400s",
                        *view.trouble ? ": " : "", view.trouble);
        session->stream.leader = *view.leader ? view.leader : NULL;
        mfl_session_refuse(session, text);
        session->stream.leader = NULL;
        return false;
}

static int never_greeted(struct mfl_session *session, const Mfl__Envelope *hello, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID, "this server does not lead the cluster");
}

static int never_payload(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        return never_greeted(session, envelope, err);
}

static int never_frame(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
        struct mfl_error *err)
{
        return never_greeted(session, envelope, err);
}

static void never_closed(struct mfl_session *session, const char *reason)
{
}

static const struct mfl_session_ops ops = {.admit = send_away,
        .greeted = never_greeted,
        .payload = never_payload,
        .frame = never_frame,
        .closed = never_closed};

void mfl_standby_open(struct mfl_server *server)
{
        static const Mfl__Role roles[] = {
                MFL__ROLE__ROLE_DAEMON, MFL__ROLE__ROLE_OPERATOR, MFL__ROLE__ROLE_RELAY};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(roles); i++)
                mfl_sessions_register(&server->sessions, roles[i], &ops, server);
        mfl_peers_open(server);
}

struct mfl_cluster_options mfl_standby_options(const struct mfl_server_config *config)
{
        const struct mfl_server_cluster *cluster = &config->cluster;
        return (struct mfl_cluster_options){.etcd = cluster->etcd,
                .prefix = cluster->prefix,
                .name = cluster->name,
                .address = cluster->address,
                .blobs = cluster->blobs,
                .servers = cluster->servers,
                .tls = {config->tls_ca, config->tls_cert, config->tls_key, config->tls_crl},
                .state_dir = config->state_dir,
                .tls_ca = cluster->tls_ca,
                .tls_cert = cluster->tls_cert,
                .tls_key = cluster->tls_key,
                .lease_ms = cluster->lease_ms};
}
