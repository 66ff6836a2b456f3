/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates, handshakes that are not over yet, and roles.
 *
 * Until a peer has said who it is, it may cost little: one address has at most 64 connections that have not
 * greeted, all addresses together 4096, and new ones come at a limited rate (rate.h); excess connections are
 * closed without a word. Each may send 64 KiB and has 10 s (greet_within), and the log gets a few lines a
 * second about them. Without TLS a handshake costs nothing: the rate, connections_max and the 10 s are
 * enough, and the loopback, whose users may do everything, has no rate.
 */
#include "server/session/admission.h"

#include <malloc.h>

#include "common/base/log.h"
#include "server/loop/states.h"
#include "server/session/rate.h"

#define HANDSHAKES_MAX 4096
#define HANDSHAKES_PER_ADDRESS_MAX 64
#define LINES_PER_SECOND 20
#define CROWD 256
#define FEW 16

struct mfl_handshake {
        struct mfl_handshake *next, **prev_next;
        struct in6_addr address; /* IPv4 as ::ffff:a.b.c.d; IPv6 to its /64, which is one customer */
};

/* A thousand handshakes take 50 MB, which malloc keeps once they are gone, as freed memory between what is in
 * use. It goes back to the system while a crowd leaves, and once more when nobody leaves any longer: once a
 * second at most. */
static void give_back(struct mfl_admission *a)
{
        bool calm = a->n_parted == a->n_parted_before;
        a->n_parted_before = a->n_parted;
        if (a->n_parted < (calm ? FEW : CROWD))
                return;
        a->n_parted = a->n_parted_before = 0;
#ifdef __GLIBC__
        malloc_trim(0);
#endif
}

void mfl_admission_tick(struct mfl_sessions *sessions)
{
        struct mfl_admission *a = &sessions->admission;
        uint64_t now = mfl_loop_now(sessions->loop);
        if (now - a->warned_ms < 1000)
                return;
        give_back(a);
        if (a->n_unsaid)
                mfl_log(MFL_LOG_WARN, "%u more lines about connections were left out", a->n_unsaid);
        a->warned_ms = now;
        a->n_warned = a->n_unsaid = 0;
}

void mfl_admission_warn(struct mfl_sessions *sessions, const char *fmt, ...)
{
        struct mfl_admission *a = &sessions->admission;
        char text[512];
        mfl_admission_tick(sessions);
        if (a->n_warned++ >= LINES_PER_SECOND) {
                a->n_unsaid++;
                return;
        }
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        mfl_log(MFL_LOG_WARN, "%s", text);
}

void mfl_session_move(struct mfl_session *session, enum mfl_session_state next)
{
        static const unsigned edges[] = {
                [MFL_SESSION_STRANGER] = MFL_TO(MFL_SESSION_GREETED) | MFL_TO(MFL_SESSION_REFUSED),
                [MFL_SESSION_GREETED] = MFL_TO(MFL_SESSION_WELCOME),
                [MFL_SESSION_WELCOME] = 0,
                [MFL_SESSION_REFUSED] = 0,
        };
        mfl_state_move(session->state, edges, next);
}

/* ---- certificates ---- */

struct mfl_tls_files mfl_admission_files(const struct mfl_server_config *config)
{
        return (struct mfl_tls_files){.ca = config->tls_ca,
                .cert = config->tls_cert,
                .key = config->tls_key,
                .crl = config->tls_crl};
}

int mfl_admission_load(struct mfl_sessions *sessions, struct mfl_error *err)
{
        const struct mfl_server_config *c = sessions->config;
        const struct mfl_tls_files files = mfl_admission_files(c);
        struct mfl_tls_context *context;
        if (!mfl_server_config_tls(c))
                return 0;
        int r = mfl_tls_context_new(&files, true, &context, err);
        if (r)
                return r;
        const struct mfl_tls_identity *own = mfl_tls_context_identity(context);
        uint64_t now = mfl_unix_ms() / 1000;
        mfl_log(MFL_LOG_INFO, "TLS: certificate of '%s', serial %s, SHA-256 %s", own->name, own->serial,
                own->fingerprint);
        if (own->not_after_unix && own->not_after_unix < now + 14 * 86400)
                mfl_log(MFL_LOG_WARN, "TLS: certificate %s expires in %llu days", c->tls_cert,
                        (unsigned long long)(own->not_after_unix - MFL_MIN(now, own->not_after_unix)) /
                                86400);
        mfl_tls_context_unref(sessions->admission.tls);
        sessions->admission.tls = context;
        return 0;
}

void mfl_admission_close(struct mfl_sessions *sessions)
{
        mfl_assert(!sessions->admission.handshakes);
        mfl_tls_context_unref(sessions->admission.tls);
        mfl_rate_free(sessions->admission.rate);
}

bool mfl_admission_has_tls(const struct mfl_sessions *sessions)
{
        return sessions->admission.tls != NULL;
}

/* ---- handshakes ---- */

int mfl_admission_prepare(struct mfl_session *session, struct mfl_error *err)
{
        struct mfl_admission *a = &session->all->admission;
        mfl_assert(session->state == MFL_SESSION_STRANGER && !session->handshake);
        if (!a->tls)
                return 0;
        struct mfl_handshake *h = mfl_calloc(1, sizeof *h);
        if (!h)
                return mfl_fail_memory(err, sizeof *h, "a handshake");
        h->next = a->handshakes;
        h->prev_next = &a->handshakes;
        if (h->next)
                h->next->prev_next = &h->next;
        a->handshakes = h;
        a->n_handshakes++;
        session->handshake = h;
        session->stream.handshake_ms = session->all->config->greet_ms;
        return mfl_stream_tls(&session->stream, a->tls, err);
}

void mfl_admission_end(struct mfl_session *session)
{
        struct mfl_handshake *h = session->handshake;
        if (!h)
                return;
        session->handshake = NULL;
        mfl_assert(session->all->admission.n_handshakes > 0);
        session->all->admission.n_handshakes--;
        *h->prev_next = h->next;
        if (h->next)
                h->next->prev_next = h->prev_next;
        free(h);
}

static void read_address(struct mfl_session *session, struct in6_addr *ret_address)
{
        struct sockaddr_storage addr;
        int n = sizeof addr;
        memset(ret_address, 0, sizeof *ret_address);
        if (uv_tcp_getpeername(&session->stream.tcp, (struct sockaddr *)&addr, &n))
                return;
        if (addr.ss_family == AF_INET6) {
                const struct in6_addr *a = &((struct sockaddr_in6 *)(void *)&addr)->sin6_addr;
                memcpy(ret_address, a, IN6_IS_ADDR_V4MAPPED(a) ? 16 : 8);
        } else if (addr.ss_family == AF_INET) {
                ret_address->s6_addr[10] = ret_address->s6_addr[11] = 0xff;
                memcpy(ret_address->s6_addr + 12, &((struct sockaddr_in *)(void *)&addr)->sin_addr, 4);
        }
}

/* Peers on the loopback may do everything, as on a machine without passwords. With insecure_listen, any peer
 * may, but under another name. */
static bool is_local(struct mfl_session *session)
{
        struct sockaddr_storage addr = {0};
        int n = sizeof addr;
        return !uv_tcp_getpeername(&session->stream.tcp, (struct sockaddr *)&addr, &n) &&
               mfl_address_is_loopback((struct sockaddr *)&addr);
}

static bool take_token(struct mfl_session *session, const struct in6_addr *address)
{
        const struct mfl_admission *a = &session->all->admission;
        if (!a->rate || (!a->tls && is_local(session)))
                return true;
        return mfl_rate_take(a->rate, address, mfl_now_ns());
}

/* A connection that is closing must not count against the others. */
static bool turn_away(struct mfl_session *session)
{
        mfl_session_move(session, MFL_SESSION_REFUSED);
        session->all->counts.ungreeted++;
        mfl_admission_end(session);
        mfl_stream_close(&session->stream, NULL, false);
        return false;
}

bool mfl_admission_begin(struct mfl_session *session)
{
        struct mfl_sessions *all = session->all;
        const struct mfl_admission *a = &all->admission;
        struct mfl_handshake *own = session->handshake;
        struct in6_addr address;
        uint32_t n = 0;
        read_address(session, &address);
        if (!take_token(session, &address)) {
                mfl_admission_warn(all,
                        "%s: refused: its address opened connections faster than connect_rate (%u per "
                        "second) "
                        "and connect_burst (%u) allow",
                        session->address, all->config->connect_rate, all->config->connect_burst);
                return turn_away(session);
        }
        if (!own)
                return true;
        own->address = address;
        for (struct mfl_handshake *h = a->handshakes; h; h = h->next)
                n += !memcmp(&h->address, &own->address, sizeof h->address);
        if (n <= HANDSHAKES_PER_ADDRESS_MAX && a->n_handshakes <= HANDSHAKES_MAX)
                return true;
        mfl_admission_warn(all, "%s: refused: %u connections from %s have not greeted yet", session->address,
                n > HANDSHAKES_PER_ADDRESS_MAX ? n - 1 : a->n_handshakes - 1,
                n > HANDSHAKES_PER_ADDRESS_MAX ? "its address" : "all addresses");
        return turn_away(session);
}

/* ---- roles ---- */

/* The daemons of one host may share a certificate: a supervisor and systemd's units call them NAME-gpu0,
 * NAME-GPU-5d1c2b3a or NAME-cpu. */
static bool is_instance(const char *tail)
{
        static const char digits[] = "0123456789", hex[] = "0123456789abcdefABCDEF-/";
        if (!strcmp(tail, "-cpu"))
                return true;
        if (!strncmp(tail, "-gpu", 4))
                return tail[4] && !tail[4 + strspn(tail + 4, digits)];
        if (!strncmp(tail, "-GPU-", 5) || !strncmp(tail, "-MIG-", 5))
                return tail[5] && !tail[5 + strspn(tail + 5, hex)];
        return false;
}

static bool is_name_of(const char *name, const char *own)
{
        size_t n = strlen(own);
        return *own && !strncmp(name, own, n) && (!name[n] || is_instance(name + n));
}

/* The relay has checked the daemon's certificate, and its own says for whom it may speak. */
static int check_carried(struct mfl_session *session, const Mfl__Hello *hello, struct mfl_error *err)
{
        const struct mfl_tls_identity *id = mfl_stream_identity(&session->carrier->stream);
        mfl_strcpy(session->who, sizeof session->who, session->carrier->who);
        mfl_strcpy(session->cn, sizeof session->cn, hello->certificate_cn);
        mfl_strcpy(session->fingerprint, sizeof session->fingerprint, hello->certificate_sha256);
        if (hello->role != MFL__ROLE__ROLE_DAEMON)
                return mfl_fail(err, MFL_INVALID, "a relay may only speak for daemons");
        if (id && *id->site && strcmp(hello->site, id->site) != 0)
                return mfl_fail(err, MFL_INVALID,
                        "relay '%s' may only speak for site '%s', as its certificate says, and daemon '%s' "
                        "belongs to "
                        "%s%s",
                        session->relay, id->site, hello->name, *hello->site ? "site " : "no site",
                        hello->site);
        return 0;
}

static int check_relay(
        const struct mfl_tls_identity *id, const char *roles, const Mfl__Hello *hello, struct mfl_error *err)
{
        if (!(id->roles & MFL_TLS_ROLE_RELAY))
                return mfl_fail(err, MFL_INVALID,
                        "the certificate of '%s' is not a relay's, nor one for the servers of a cluster: it "
                        "says %s, and OU=relay is needed: issue "
                        "one with "
                        "'mfl pki issue relay %s --host HOST'",
                        id->name, roles, id->name);
        if (strcmp(hello->name, id->name) != 0)
                return mfl_fail(err, MFL_INVALID,
                        "a relay or server named '%s' showed the certificate of '%s': set name to the "
                        "certificate's",
                        hello->name, id->name);
        return 0;
}

int mfl_admission_check(struct mfl_session *session, const Mfl__Hello *hello, struct mfl_error *err)
{
        const struct mfl_tls_identity *id = mfl_stream_identity(&session->stream);
        char roles[64];
        mfl_assert(session->state == MFL_SESSION_STRANGER);
        if (session->carrier)
                return check_carried(session, hello, err);
        if (!id) {
                mfl_strcpy(session->who, sizeof session->who, is_local(session) ? "local" : "anybody");
                session->roles = ~0u;
                return 0;
        }
        mfl_strcpy(session->who, sizeof session->who, id->name);
        session->roles = id->roles;
        mfl_tls_roles_text(id->roles, roles, sizeof roles);
        if (!*id->name)
                return mfl_fail(err, MFL_INVALID,
                        "the certificate (serial %s) has no CN that can be used as a name", id->serial);
        if (hello->role == MFL__ROLE__ROLE_RELAY || hello->role == MFL__ROLE__ROLE_SERVER)
                return check_relay(id, roles, hello, err);
        if (hello->role == MFL__ROLE__ROLE_DAEMON) {
                if (!(id->roles & MFL_TLS_ROLE_DAEMON))
                        return mfl_fail(err, MFL_INVALID,
                                "the certificate of '%s' is not a daemon's: it says %s, and OU=daemon is "
                                "needed",
                                id->name, roles);
                if (!is_name_of(hello->name, id->name))
                        return mfl_fail(err, MFL_INVALID,
                                "a daemon named '%s' showed the certificate of '%s'; the daemon's name must "
                                "be "
                                "the certificate's, or %s-gpuN",
                                hello->name, id->name, id->name);
                if (*hello->site && strcmp(hello->site, id->site) != 0)
                        return mfl_fail(err, MFL_INVALID,
                                "daemon '%s' says that it belongs to site '%s', but its certificate has "
                                "%s%s: issue "
                                "one with 'mfl pki issue daemon %s --site %s'",
                                hello->name, hello->site, *id->site ? "O=" : "no O", id->site, id->name,
                                hello->site);
                return 0;
        }
        if (!(id->roles &
                    (MFL_TLS_ROLE_OPERATOR | MFL_TLS_ROLE_VIEWER | MFL_TLS_ROLE_ADMIN | MFL_TLS_ROLE_SERVE)))
                return mfl_fail(err, MFL_INVALID,
                        "the certificate of '%s' is not an operator's: it says %s, and OU=operator, or "
                        "OU=viewer "
                        "to look only, or OU=serve to serve models, is needed",
                        id->name, roles);
        return 0;
}
