/* SPDX-License-Identifier: Apache-2.0 */
/* The server's configuration: a YAML file, then options of the command line over it. */
#ifndef MFL_SERVER_SHELL_CONFIG_H
#define MFL_SERVER_SHELL_CONFIG_H

#include "common/privacy/limits.h"
#include "common/settings/settings.h"

/* Several servers for one installation (server/cluster/cluster.h). */
struct mfl_server_cluster {
        bool on;
        char etcd[1024]; /* addresses, separated by commas */
        char name[64], address[256], blobs[1024], prefix[40];
        char servers[2048]; /* NAME=HOST:PORT, separated by commas; "": blobs is shared */
        char tls_ca[1024], tls_cert[1024], tls_key[1024]; /* for etcd */
        uint64_t lease_ms;
};

enum mfl_http_tls_kind {
        MFL_HTTP_TLS_OFF,
        MFL_HTTP_TLS_SERVER,       /* the port has the server's certificate; people may show theirs */
        MFL_HTTP_TLS_CERTIFICATES, /* and must, to see anything */
};

struct mfl_server_config {
        char listen[256];            /* "127.0.0.1:7433"; port 0: any free one */
        char state_dir[1024];        /* jobs, rounds and checkpoints live here */
        uint64_t memory_max_bytes;   /* of all jobs together; 0: 80% of the machine's memory */
        uint32_t slots;              /* staging buffers per job; 0: by the model's size */
        uint64_t heartbeat_ms;       /* a peer that is silent for this long is pinged */
        uint64_t dead_ms;            /* a peer that is silent for this long is dead */
        uint64_t reconnect_grace_ms; /* a daemon that has lost its connection keeps its work this long */
        uint64_t upload_stall_ms;    /* an upload that does not move for this long loses its slot */
        uint64_t unread_max_bytes;   /* sent and not yet read by peers, all connections together */
        uint64_t moves_max;          /* bytes of jobs that are on their way here, and not taken yet */
        uint64_t keep_ended_ms;      /* jobs that ended longer ago are deleted; 0: none is */
        uint32_t keep_ended_max;     /* of jobs that have ended; more are deleted; 0: no limit */
        uint32_t connections_max;
        uint32_t connect_rate, connect_burst; /* per address: per second, and at once; rate 0: no limit */
        uint64_t greet_ms;                    /* a peer without a Hello after this long is disconnected */
        uint32_t log_level;                   /* index into error, warn, info, debug */
        bool insecure_listen;                 /* plain TCP on an address other than loopback */
        char http[256];                       /* metrics and dashboard: "127.0.0.1:7434"; "off": nowhere */
        char upstream[1024]; /* of a relay: a server, or all of a cluster; "": this is a server */
        char name[64];       /* of a relay; "": from its certificate, or the host */
        struct mfl_server_cluster cluster;
        int http_tls;       /* enum mfl_http_tls_kind */
        bool insecure_http; /* also on an address other than loopback */
        char http_url[256]; /* what people type for it: of a proxy before it; "": its address */
        /* PEM files (proto/tls/tls.h). The first three together: TLS; none: plain TCP. */
        char tls_cert[1024], tls_key[1024], tls_ca[1024], tls_crl[1024];
        int ready_fd; /* -1: none; command line only */
        int argc;     /* where it was read from, for a reload; borrowed */
        char **argv;
        bool exit_with_stdin;  /* command line only */
        bool allow_simulation; /* jobs with simulated attacks */
        char plugins[1024];    /* a directory of strategies (server/strategy/plugin.h); "": none */
        struct mfl_privacy_limits privacy_limits;
        /* Command line only; instead of serving: */
        char backup[1024];        /* directory for a back-up of state_dir; "": none is wanted */
        bool check_state;         /* verify state_dir */
        bool repair;              /* make state_dir usable without the lost data */
        bool join_cluster, leave; /* take state_dir into the cluster, or out of it */
};

/* The table: all keys and options. */
extern const struct mfl_settings mfl_server_settings;
/* Defaults, then the file that --config names, then options. MFL_INVALID with text (exit status 78 for the
 * file, 2 for options: *ret_usage tells); MFL_NOT_FOUND after --help or --version, which were printed. */
int mfl_server_config_load(
        int argc, char **argv, struct mfl_server_config *ret_config, bool *ret_usage, struct mfl_error *err);
/* Whether the server shall speak TLS. */
bool mfl_server_config_tls(const struct mfl_server_config *config);

#endif
