/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-server's settings: their table (common/settings/settings.h), and the rules between them. */
#include "server/config/config.h"

static bool parse_fd(const char *text, void *value)
{
        char *end;
        long n = strtol(text, &end, 10);
        if (*end || end == text || n < 0 || n > 65535)
                return false;
        *(int *)value = (int)n;
        return true;
}

/* "" means that no back-up is wanted: with a shell variable that is not set, a server would start instead. */
static bool parse_backup(const char *text, void *value)
{
        size_t room = sizeof((struct mfl_server_config *)0)->backup;
        return *text && strlen(text) < room && mfl_strcpy(value, room, text);
}

static int read_etcd(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return mfl_yaml_read_words(doc, node, value, sizeof((struct mfl_server_cluster *)0)->etcd, err);
}

static int read_servers(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return mfl_yaml_read_words(doc, node, value, sizeof((struct mfl_server_cluster *)0)->servers, err);
}
static const char *const http_tls_names[] = {"off", "server", "certificates", NULL};

#define AT(kind_, member_) MFL_YAML_AT(kind_, struct mfl_server_cluster, member_)
static const struct mfl_yaml_field cluster_fields[] = {
        {.key = "etcd",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_server_cluster, etcd),
                .read = read_etcd,
                .required = true},
        {.key = "name", AT(STRING, name)}, {.key = "address", AT(STRING, address)},
        {.key = "servers",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_server_cluster, servers),
                .read = read_servers},
        {.key = "blobs", AT(STRING, blobs)}, {.key = "prefix", AT(STRING, prefix)},
        {.key = "lease", AT(DURATION, lease_ms), .min = 2000, .max = 60000},
        {.key = "tls_ca", AT(STRING, tls_ca)}, {.key = "tls_cert", AT(STRING, tls_cert)},
        {.key = "tls_key", AT(STRING, tls_key)}, {0}};

static bool is_name(const char *text)
{
        return *text &&
               text[strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")] == 0;
}

static int read_cluster(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_server_cluster *cluster = value;
        *cluster = (struct mfl_server_cluster){.on = true, .prefix = "mfl", .lease_ms = 3000};
        int r = mfl_yaml_read(doc, node, cluster_fields, cluster, err);
        if (r)
                return r;
        if (!is_name(cluster->prefix))
                return mfl_yaml_fail(
                        doc, mfl_yaml_find(node, "prefix"), err, "expected 1 to 39 of A-Z a-z 0-9 . _ -");
        if (!*cluster->blobs == !*cluster->servers)
                return mfl_yaml_fail(doc, node, err,
                        "expected one of 'blobs: DIR', a directory that all servers share, and 'servers: "
                        "[NAME=HOST:PORT, ...]', on whose disks models are copied");
        if (*cluster->blobs && *cluster->blobs != '/')
                return mfl_yaml_fail(doc, mfl_yaml_find(node, "blobs"), err,
                        "expected an absolute path, of a directory that all servers share");
        return 0;
}

/* clang-format off */
#define KEY(key_, kind_, member_) .key = key_, MFL_YAML_AT(kind_, struct mfl_server_config, member_)
static const struct mfl_setting rows[] = {
        {.section = "Network",
                .field = {KEY("listen", STRING, listen)}, .option = "listen", .argument = "HOST:PORT",
                .value = "127.0.0.1:7433",
                .help = "the address to listen on; port 0: any free port. Sockets of the service manager replace it. "
                        "An address other than loopback needs TLS, or insecure_listen"},
        {.field = {KEY("insecure_listen", BOOL, insecure_listen)}, .option = "insecure-listen", .value = "false",
                .help = "allow plain TCP on an address other than loopback: anyone who can reach the port can "
                        "submit jobs and read models"},
        {.field = {KEY("connections_max", U32, connections_max), .min = 1, .max = 1000000}, .value = "16384",
                .unit = "connections", .help = "the largest number of connections; excess connections are closed"},
        {.field = {KEY("connect_rate", U32, connect_rate), .min = 0, .max = 1000000}, .value = "100",
                .unit = "connections per second",
                .help = "new connections per address (IPv6: per /64) in the long run; excess connections are closed "
                        "before they cost anything, and daemons try again by themselves. 0: no limit. Without TLS, "
                        "the loopback has no limit either"},
        {.field = {KEY("connect_burst", U32, connect_burst), .min = 1, .max = 1000000}, .value = "1000",
                .unit = "connections",
                .help = "burst size per address, after a pause: with the default, a thousand daemons behind one "
                        "NAT address can start together"},
        {.field = {KEY("greet_within", DURATION, greet_ms), .min = 100, .max = 60000}, .value = "10s",
                .help = "a peer that has not shown a certificate and sent its Hello after this long is disconnected"},
        {.field = {KEY("heartbeat", DURATION, heartbeat_ms), .min = 100, .max = 600000}, .value = "2s",
                .help = "a peer that is silent for this long is pinged"},
        {.field = {KEY("dead_after", DURATION, dead_ms), .min = 500, .max = 3600000}, .value = "10s",
                .help = "a peer that is silent for this long counts as dead; at least twice heartbeat"},
        {.field = {KEY("reconnect_grace", DURATION, reconnect_grace_ms), .min = 0, .max = 3600000},
                .value = "5s", .help = "a daemon that has lost its connection keeps its work for this long"},

        {.field = {KEY("upload_stall", DURATION, upload_stall_ms), .min = 1000, .max = 3600000}, .value = "15s",
                .help = "a live daemon that sends nothing of its update for this long loses its upload slot to the "
                        "daemons that wait for one, and uploads after them; if it leads a node's group, the other "
                        "members upload by themselves"},
        {.field = {KEY("unread_max", SIZE, unread_max_bytes), .min = 1 << 20, .max = 1e12}, .value = "256MiB",
                .help = "limit of data that was sent but not yet read by peers, all connections together; beyond it, "
                        "the connection with the most unread data is closed"},

        {.field = {KEY("moves_max", SIZE, moves_max), .min = 1, .max = 1e15}, .value = "64GiB",
                .help = "limit of the files of jobs that are on their way to this server (mfl move); a job that does not "
                        "fit is refused before any of its bytes comes"},

        {.section = "Relay",
                .field = {KEY("upstream", STRING, upstream)}, .option = "upstream", .argument = "HOST:PORT",
                .note = "not a relay", .example = "fl.example.org:7433", .words = true,
                .help = "be a relay of the server, or relay, at this address, or of a cluster, [a:7433, b:7433, c:7433]: daemons that connect here work for it. Params come "
                        "here once for all of them, and their updates are added here. A relay keeps no state. With TLS it "
                        "needs a certificate with OU=relay (mfl pki issue relay NAME --host HOST)"},
        {.field = {KEY("name", STRING, name)}, .option = "name", .argument = "NAME",
                .note = "the certificate's CN, or the host's name", .example = "site-a",
                .help = "the relay's name: 1 to 63 of A-Z a-z 0-9 . _ -, and no other relay of the server has it"},

        {.section = "Cluster",
                .field = {.key = "cluster", .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_server_config, cluster),
                        .read = read_cluster},
                .note = "this server is alone",
                .example = "\n"
                        "  etcd: [https://etcd-1:2379, https://etcd-2:2379, https://etcd-3:2379]\n"
                        "  name: s1\n"
                        "  servers: [s1=s1.example.org:7433, s2=s2.example.org:7433, s3=s3.example.org:7433]",
                .help = "several servers run one installation: one of them leads and serves, and another one takes over when it dies "
                        "(docs/admin.md, Several servers). Daemons and mfl get the list of all of them\n"
                        "  etcd      required; the addresses of etcd 3.4 or later, at least 3 of them where it matters\n"
                        "  name      required; another one for each server: 1 to 63 of A-Z a-z 0-9 . _ -\n"
                        "  servers   NAME=HOST:PORT of all servers, this one too: a model is on most servers' disks before the round that made "
                        "it is committed. With TLS each server's certificate has its name and OU=relay (mfl pki issue relay NAME --host HOST)\n"
                        "  blobs     instead of servers: a directory that all servers share, such as an NFS mount, for the models\n"
                        "  address   HOST:PORT that peers reach this server at, as in their lists. Default: as in servers; else listen\n"
                        "  prefix    of the keys in etcd; another one for each installation. Default: mfl\n"
                        "  lease     how long a leader that is silent still leads; 2s to 60s. Default: 3s\n"
                        "  tls_ca, tls_cert, tls_key   PEM files for https. Default: the system's CAs, and no certificate"},

        {.field = {MFL_YAML_AT(STRING, struct mfl_server_config, cluster.name)}, .option = "cluster-name", .argument = "NAME",
                .note = "cluster.name", .help = "another `name` than that in the file's `cluster`, for servers that share one file"},
        {.field = {MFL_YAML_AT(STRING, struct mfl_server_config, cluster.address)}, .option = "cluster-address", .argument = "HOST:PORT",
                .note = "cluster.address", .help = "the same for its `address`"},

        {.section = "TLS 1.3",
                .field = {KEY("tls_cert", STRING, tls_cert)}, .option = "tls-cert", .argument = "FILE",
                .note = "none: plain TCP", .example = "/etc/mfl/server.pem", .reload = MFL_RELOAD_FILE,
                .help = "the server's certificate, followed by intermediate certificates (PEM); with it, the server "
                        "speaks only TLS 1.3"},
        {.field = {KEY("tls_key", STRING, tls_key)}, .option = "tls-key", .argument = "FILE", .note = "none",
                .example = "/etc/mfl/server.key", .reload = MFL_RELOAD_FILE,
                .help = "the certificate's private key, not readable by others (chmod 600)"},
        {.field = {KEY("tls_ca", STRING, tls_ca)}, .option = "tls-ca", .argument = "FILE|DIR", .note = "none",
                .example = "/etc/mfl/ca.pem", .reload = MFL_RELOAD_FILE,
                .help = "the CA that must have issued the certificates of daemons and operators (OU=daemon, operator, "
                        "viewer, admin, relay or serve is the role, CN the name); a file, or a directory of .pem files"},
        {.field = {KEY("tls_crl", STRING, tls_crl)}, .option = "tls-crl", .argument = "FILE", .note = "none",
                .example = "/etc/mfl/crl.pem", .reload = MFL_RELOAD_FILE, .help = "revoked certificates (PEM)"},

        {.section = "State and memory",
                .field = {KEY("state_dir", STRING, state_dir)}, .option = "state-dir", .argument = "DIR",
                .value = "mfl-state", .env = "STATE_DIRECTORY", .env_is_default = true,
                .help = "the directory of jobs, rounds and models"},
        {.field = {KEY("memory_max", SIZE, memory_max_bytes)}, .note = "80% of the machine's memory",
                .example = "16GiB", .help = "memory limit of all jobs together; a job that does not fit is refused, with the sizes"},
        {.field = {KEY("slots", U32, slots), .min = 1, .max = 64}, .note = "by the model's size", .example = "2",
                .unit = "buffers", .help = "staging buffers per job: how many updates a job receives at the same time"},
        {.field = {KEY("keep_ended", DURATION, keep_ended_ms), .min = 1000, .max = 3153600000000}, .note = "for good",
                .example = "90d", .reload = MFL_RELOAD_VALUE,
                .help = "jobs that ended longer ago than this are deleted with their models and logs, and `mfl audit` says so; "
                        "a job that has not ended never is"},
        {.field = {KEY("keep_ended_max", U32, keep_ended_max), .min = 1, .max = 1000000}, .note = "no limit",
                .example = "1000", .unit = "jobs", .reload = MFL_RELOAD_VALUE,
                .help = "when more jobs than this have ended, those that ended first are deleted"},
        {.field = {KEY("allow_simulation", BOOL, allow_simulation)}, .option = "allow-simulation", .value = "false",
                .help = "take jobs whose `simulation` makes some clients bad, to test robust strategies; mfl run starts its "
                        "server so. Not for a server with data that matter"},

        {.field = {.key = "privacy_limits", .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_server_config, privacy_limits),
                        .read = mfl_privacy_limits_read},
                .note = "no limit", .example = "\n  patients: {epsilon: 8, delta: 1e-5}",
                .help = "what all jobs together may tell of a data set, also those that are deleted: a job is refused where its rounds "
                        "would pass it, and stops before a round that would. Jobs without `privacy` are refused. `mfl privacy "
                        "ledger` shows what is spent; docs/privacy.md"},
        {.field = {KEY("plugins", STRING, plugins)}, .option = "plugins", .argument = "DIR", .note = "none",
                .example = "/usr/lib/mfl/plugins",
                .help = "a directory of strategies and metrics of your own, *.so (mfl/strategy.h, mfl/metric.h), which only root or the server's user may "
                        "write; they are loaded when the server starts, and run with its rights"},

        {.section = "Metrics and dashboard",
                .field = {KEY("http", STRING, http)}, .option = "http", .argument = "HOST:PORT", .value = "off",
                .help = "the address for metrics, health and dashboard, such as 127.0.0.1:7434. An address other than "
                        "loopback needs http_tls with certificates, or insecure_http"},
        {.field = {KEY("http_tls", ENUM, http_tls), .names = http_tls_names}, .option = "http-tls",
                .argument = "KIND", .value = "off",
                .help = "off, or TLS on the HTTP port: with server, tls_cert is shown, and people may log in with their certificates; with "
                        "certificates, nobody sees anything without one of a viewer, an operator or an admin, so that the address may be any"},
        {.field = {KEY("insecure_http", BOOL, insecure_http)}, .option = "insecure-http", .value = "false",
                .help = "allow http on an address other than loopback: anyone who can reach the port sees jobs, their "
                        "files and logs, and daemons"},
        {.field = {KEY("http_url", STRING, http_url)}, .option = "http-url", .argument = "URL",
                .note = "the address of http",
                .example = "https://mfl.example.org",
                .help = "where people's browsers find the dashboard, by another name or behind a reverse proxy: links of `mfl login "
                        "issue` begin so, the port answers to that host's name, and with https cookies are sent over TLS only. Beside "
                        "http_tls it begins with https"},

        {.section = "Log",
                .field = {KEY("log_level", ENUM, log_level), .names = mfl_setting_levels}, .option = "log-level",
                .argument = "LEVEL", .value = "info", .parse = mfl_setting_parse_level,
                .reload = MFL_RELOAD_VALUE, .help = "least severe level to log: error, warning, info or debug"},

        {.section = "Only on the command line",
                .field = {MFL_YAML_AT(U32, struct mfl_server_config, ready_fd)}, .option = "ready-fd",
                .argument = "N", .parse = parse_fd, .expected = "a descriptor's number", .note = "none",
                .help = "write \"HOST:PORT\" to this descriptor when the server listens"},
        {.field = {MFL_YAML_AT(BOOL, struct mfl_server_config, exit_with_stdin)}, .option = "exit-with-stdin",
                .help = "stop when standard input ends: for a parent process that must not leave children behind"},
        {.field = {MFL_YAML_AT(STRING, struct mfl_server_config, backup)}, .option = "backup", .argument = "DIR",
                .parse = parse_backup, .expected = "a directory that does not exist yet, 1 to 1023 characters",
                .note = "none", .help = "save the state directory to DIR, which must not exist yet, and exit; a server may be running on "
                        "it"},
        {.field = {MFL_YAML_AT(BOOL, struct mfl_server_config, check_state)}, .option = "check-state",
                .help = "verify the state directory, or a back-up of it that --state-dir names, and exit; changes nothing"},
        {.field = {MFL_YAML_AT(BOOL, struct mfl_server_config, repair)}, .option = "repair",
                .help = "make a damaged state directory usable again, without the lost data, report what was lost, and "
                        "exit; checkpoints are moved aside, never removed. If you have a back-up, restore it instead"},
        {.field = {MFL_YAML_AT(BOOL, struct mfl_server_config, join_cluster)}, .option = "join-cluster",
                .help = "take the state directory of a stopped server into the cluster of the configuration, which must not have an "
                        "installation yet, and exit"},
        {.field = {MFL_YAML_AT(BOOL, struct mfl_server_config, leave)}, .option = "leave",
                .help = "bring the state directory up to date, end the cluster, whose servers must be stopped, make the directory that of "
                        "a server of its own, and exit"},
};

static const struct mfl_settings_topic topics[] = {
        {"SIGNALS",
                "SIGTERM and SIGINT stop the server at once. Peers are told, and no committed data is lost.\n\n"
                "SIGHUP reads the configuration file and the certificates again. Connections stay open. "
                "mfl-server.yaml(5) says which keys change. A wrong file or certificate changes nothing; the log "
                "says what is wrong."},
        {"EXIT STATUS",
                "  0    stopped on request\n"
                "  1    failure: disk, memory, or a second server on the same state directory\n"
                "  2    wrong option\n"
                "  3    --check-state or --backup found damage\n"
                "  78   wrong configuration, or a state directory that this version can't use or that has lost data"},
        {"ENVIRONMENT",
                "STATE_DIRECTORY is the default of --state-dir; systemd sets it. systemd also sets NOTIFY_SOCKET "
                "(readiness), WATCHDOG_USEC (watchdog), LISTEN_FDS (socket activation) and JOURNAL_STREAM (log "
                "entries with fields)."},
        {"EXAMPLES",
                "  mfl-server --state-dir /var/lib/mfl\n"
                "  mfl-server --config /etc/mfl/server.yaml --log-level debug\n"
                "  mfl-server --upstream fl.example.org:7433 --name paris --listen 127.0.0.1:7435    a relay\n"
                "  mfl-server --state-dir /var/lib/mfl --backup /var/backups/mfl/today"},
        {"SEE ALSO", "mfl-server.yaml(5), mfl-client(8), mfl(1), mfl-job(5)"},
        {NULL, NULL},
};

const struct mfl_settings mfl_server_settings = {
        .program = "mfl-server",
        .summary = "the aggregation server of mfl",
        .about = "Sends the model to daemons, adds up what they learned, and commits each round. Committed rounds "
                 "survive any crash: after a restart, every unfinished job goes on from its last committed "
                 "round.",
        .after = "SIGTERM and SIGINT stop the server at once and lose nothing. SIGHUP reads the file and the "
                 "certificates again and applies log_level; connections stay open.\n\n"
                 "Exit status: 0 stopped on request, 1 failure, 2 wrong option, 3 --check-state or --backup found damage, "
                 "78 wrong configuration, or a state directory that this version can't use.",
        .file = "/etc/mfl/server.yaml",
        .topics = topics,
        .rows = rows,
        .n_rows = MFL_ARRAY_SIZE(rows),
};
/* clang-format on */

bool mfl_server_config_tls(const struct mfl_server_config *config)
{
        return *config->tls_cert;
}

/* The list has this server's own address, and its copies lie beside its state. */
static int check_servers(struct mfl_server_config *config, struct mfl_error *err)
{
        struct mfl_server_cluster *cluster = &config->cluster;
        const size_t n = strlen(cluster->name);
        const char *own = NULL;
        for (const char *one = cluster->servers; one; one = strchr(one, ',') ? strchr(one, ',') + 1 : NULL) {
                one += strspn(one, " ");
                own = !strncmp(one, cluster->name, n) && one[n] == '=' ? one + n + 1 : own;
        }
        if (!own)
                return mfl_fail(err, MFL_INVALID,
                        "cluster: servers: '%s' has no %s=HOST:PORT: the list names all servers, this one "
                        "too",
                        cluster->servers, cluster->name);
        if (!*cluster->address)
                mfl_snprintf(cluster->address, sizeof cluster->address, "%.*s", (int)strcspn(own, ", "), own);
        mfl_snprintf(cluster->blobs, sizeof cluster->blobs, "%.1000s/blobs", config->state_dir);
        return 0;
}

/* The wildcard is no address that a peer could be sent to. */
static int check_cluster(struct mfl_server_config *config, struct mfl_error *err)
{
        struct mfl_server_cluster *cluster = &config->cluster;
        if (!cluster->on && (*cluster->name || *cluster->address))
                return mfl_fail(err, MFL_INVALID,
                        "--cluster-name and --cluster-address need a configuration with 'cluster'");
        if (!cluster->on)
                return config->join_cluster || config->leave
                               ? mfl_fail(err, MFL_INVALID,
                                         "--join-cluster and --leave need a configuration with 'cluster' "
                                         "(--config FILE)")
                               : 0;
        if (!is_name(cluster->name))
                return mfl_fail(err, MFL_INVALID,
                        "cluster: name: '%s': expected 1 to 63 of A-Z a-z 0-9 . _ -, another one for each "
                        "server",
                        cluster->name);
        if (*config->upstream)
                return mfl_fail(err, MFL_INVALID,
                        "cluster: a relay keeps no state: 'upstream' and 'cluster' exclude each other");
        if (config->repair)
                return mfl_fail(err, MFL_INVALID,
                        "--repair is not for a server of a cluster: remove its state directory, and the "
                        "server brings it from the "
                        "cluster again");
        if (*cluster->servers) {
                int r = check_servers(config, err);
                if (r)
                        return r;
        }
        if (*cluster->address)
                return 0;
        const char *listen = config->listen;
        if (*listen == ':' || !strncmp(listen, "0.0.0.0", 7) || !strncmp(listen, "[::]", 4))
                return mfl_fail(err, MFL_INVALID,
                        "cluster: address is missing: peers can't be sent to %s; write the HOST:PORT that "
                        "they reach this server at",
                        listen);
        mfl_strcpy(cluster->address, sizeof cluster->address, listen);
        return 0;
}

static int check_tls(const struct mfl_server_config *config, struct mfl_error *err)
{
        const char *missing = !*config->tls_cert ? "tls_cert" : !*config->tls_key ? "tls_key" : "tls_ca";
        bool any = *config->tls_cert || *config->tls_key || *config->tls_ca || *config->tls_crl;
        if (any && (!*config->tls_cert || !*config->tls_key || !*config->tls_ca))
                return mfl_fail(err, MFL_INVALID,
                        "TLS needs tls_cert, tls_key and tls_ca together: %s is missing", missing);
        if (!any && config->http_tls != MFL_HTTP_TLS_OFF)
                return mfl_fail(err, MFL_INVALID, "http_tls: %s needs tls_cert, tls_key and tls_ca",
                        http_tls_names[config->http_tls]);
        return 0;
}

int mfl_server_config_load(
        int argc, char **argv, struct mfl_server_config *ret_config, bool *ret_usage, struct mfl_error *err)
{
        struct mfl_server_config config = {.argc = argc, .argv = argv, .ready_fd = -1};
        mfl_settings_defaults(&mfl_server_settings, &config);
        int r = mfl_settings_load(&mfl_server_settings, argc, argv, &config, err);
        *ret_usage = r == MFL_SETTINGS_USAGE;
        if (r)
                return r == MFL_SETTINGS_SHOWN ? MFL_NOT_FOUND : *ret_usage ? MFL_INVALID : r;
        if (config.dead_ms < 2 * config.heartbeat_ms)
                return mfl_fail(err, MFL_INVALID,
                        "dead_after (%llu ms) must be at least twice heartbeat (%llu ms)",
                        (unsigned long long)config.dead_ms, (unsigned long long)config.heartbeat_ms);
        *ret_usage = (*config.backup != 0) + config.check_state + config.repair + config.join_cluster +
                             config.leave >
                     1;
        if (*ret_usage)
                return mfl_fail(err, MFL_INVALID,
                        "use only one of --backup, --check-state, --repair, --join-cluster and --leave; "
                        "--backup also checks what it "
                        "saves");
        r = check_tls(&config, err);
        if (!r)
                r = check_cluster(&config, err);
        if (!r && *config.name && !*config.upstream)
                r = mfl_fail(err, MFL_INVALID, "name is a relay's: it needs upstream, too");
        if (r)
                return r;
        *ret_config = config;
        return 0;
}
