/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-server's settings: their table (common/settings.h), and the rules between them. */
#include "server/config.h"

static bool parse_fd(const char *text, void *value)
{
        char *end;
        long n = strtol(text, &end, 10);
        if (*end || end == text || n < 0 || n > 65535)
                return false;
        *(int *)value = (int)n;
        return true;
}

/* "" would say that no back-up is wanted, and a server would start: by a variable that was not set. */
static bool parse_backup(const char *text, void *value)
{
        size_t room = sizeof((struct mfl_server_config *)0)->backup;
        return *text && strlen(text) < room && mfl_strcpy(value, room, text);
}

/* clang-format off */
#define KEY(key_, kind_, member_) .key = key_, MFL_YAML_AT(kind_, struct mfl_server_config, member_)
static const struct mfl_setting rows[] = {
        {.section = "Network",
                .field = {KEY("listen", STRING, listen)}, .option = "listen", .argument = "HOST:PORT",
                .value = "127.0.0.1:7433",
                .help = "the address to listen on, port 0: any free one; a socket of the service manager comes "
                        "before it. Another address than loopback wants TLS, or insecure_listen"},
        {.field = {KEY("insecure_listen", BOOL, insecure_listen)}, .option = "insecure-listen", .value = "false",
                .help = "allow plain TCP on an address other than loopback: whoever reaches the port can submit "
                        "jobs and read models"},
        {.field = {KEY("connections_max", U32, connections_max), .min = 1, .max = 1000000}, .value = "16384",
                .unit = "connections", .help = "at most so many connections at once; more are closed at once"},
        {.field = {KEY("connect_rate", U32, connect_rate), .min = 0, .max = 1000000}, .value = "100",
                .unit = "connections a second",
                .help = "one address (of IPv6: one /64) may open so many new connections in the long run; those of "
                        "more are closed before they cost anything, and daemons come again by themselves. 0: no "
                        "limit. Without TLS the loopback has none either"},
        {.field = {KEY("connect_burst", U32, connect_burst), .min = 1, .max = 1000000}, .value = "1000",
                .unit = "connections",
                .help = "and so many at once, after a pause: a thousand daemons behind one NAT address may start "
                        "together"},
        {.field = {KEY("greet_within", DURATION, greet_ms), .min = 100, .max = 60000}, .value = "10s",
                .help = "who has not shown a certificate and said who it is after this long is sent away"},
        {.field = {KEY("heartbeat", DURATION, heartbeat_ms), .min = 100, .max = 600000}, .value = "2s",
                .help = "a silent peer is asked after this long"},
        {.field = {KEY("dead_after", DURATION, dead_ms), .min = 500, .max = 3600000}, .value = "10s",
                .help = "a peer that says nothing for this long is taken for dead; at least twice heartbeat"},
        {.field = {KEY("reconnect_grace", DURATION, reconnect_grace_ms), .min = 0, .max = 3600000},
                .value = "5s", .help = "a daemon that lost its connection keeps its work this long"},

        {.field = {KEY("upload_stall", DURATION, upload_stall_ms), .min = 1000, .max = 3600000}, .value = "15s",
                .help = "a daemon that is alive and sends nothing of its update for this long gives its slot to "
                        "those that wait for one, and comes again after them; if it leads a node's group, the "
                        "others upload by themselves"},
        {.field = {KEY("unread_max", SIZE, unread_max_bytes), .min = 1 << 20, .max = 1e12}, .value = "256MiB",
                .help = "what peers have been sent and do not read, of all connections together; beyond it the "
                        "connection with the most of it is closed"},

        {.section = "TLS 1.3",
                .field = {KEY("tls_cert", STRING, tls_cert)}, .option = "tls-cert", .argument = "FILE",
                .note = "none: plain TCP", .example = "/etc/mfl/server.pem", .reload = MFL_RELOAD_FILE,
                .help = "speak TLS 1.3 only: the server's certificate, then those between it and the CA (PEM)"},
        {.field = {KEY("tls_key", STRING, tls_key)}, .option = "tls-key", .argument = "FILE", .note = "none",
                .example = "/etc/mfl/server.key", .reload = MFL_RELOAD_FILE,
                .help = "its key, not readable by others (chmod 600)"},
        {.field = {KEY("tls_ca", STRING, tls_ca)}, .option = "tls-ca", .argument = "FILE|DIR", .note = "none",
                .example = "/etc/mfl/ca.pem", .reload = MFL_RELOAD_FILE,
                .help = "the CA whose certificates daemons and operators must show (OU=daemon, operator, viewer, "
                        "admin tell the roles; CN the name); a file, or a directory of .pem files"},
        {.field = {KEY("tls_crl", STRING, tls_crl)}, .option = "tls-crl", .argument = "FILE", .note = "none",
                .example = "/etc/mfl/crl.pem", .reload = MFL_RELOAD_FILE, .help = "certificates that were revoked"},

        {.section = "State and memory",
                .field = {KEY("state_dir", STRING, state_dir)}, .option = "state-dir", .argument = "DIR",
                .value = "mfl-state", .env = "STATE_DIRECTORY", .env_is_default = true,
                .help = "jobs, rounds and models"},
        {.field = {KEY("memory_max", SIZE, memory_max_bytes)}, .note = "80% of what the machine has",
                .example = "16GiB", .help = "of all jobs together; a job that does not fit is refused with the sizes"},
        {.field = {KEY("slots", U32, slots), .min = 1, .max = 64}, .note = "by the model's size", .example = "2",
                .unit = "buffers", .help = "staging buffers of each job, which take in so many updates at once"},

        {.section = "Metrics and dashboard",
                .field = {KEY("http", STRING, http)}, .option = "http", .argument = "HOST:PORT", .value = "off",
                .help = "metrics, health and dashboard, such as 127.0.0.1:7434. Another address than loopback "
                        "wants insecure_http"},
        {.field = {KEY("insecure_http", BOOL, insecure_http)}, .option = "insecure-http", .value = "false",
                .help = "allow that on an address other than loopback: whoever reaches the port sees the names of "
                        "jobs and daemons and how they do"},

        {.section = "Log",
                .field = {KEY("log_level", ENUM, log_level), .names = mfl_setting_levels}, .option = "log-level",
                .argument = "LEVEL", .value = "info", .parse = mfl_setting_parse_level,
                .reload = MFL_RELOAD_VALUE, .help = "error, warning, info or debug"},

        {.section = "Only on the command line",
                .field = {MFL_YAML_AT(U32, struct mfl_server_config, ready_fd)}, .option = "ready-fd",
                .argument = "N", .parse = parse_fd, .expected = "a descriptor's number", .note = "none",
                .help = "write \"HOST:PORT\" to this descriptor once listening"},
        {.field = {MFL_YAML_AT(BOOL, struct mfl_server_config, exit_with_stdin)}, .option = "exit-with-stdin",
                .help = "stop when standard input ends: for a parent that must not leave children"},
        {.field = {MFL_YAML_AT(STRING, struct mfl_server_config, backup)}, .option = "backup", .argument = "DIR",
                .parse = parse_backup, .expected = "a directory that is not there yet, 1 to 1023 characters",
                .note = "none", .help = "save the state directory to DIR, which must not be there yet, and end; a server "
                        "may be using it meanwhile"},
        {.field = {MFL_YAML_AT(BOOL, struct mfl_server_config, check_state)}, .option = "check-state",
                .help = "verify the state directory, or a back-up of it that --state-dir names, and end; changes nothing"},
};

static const struct mfl_settings_topic topics[] = {
        {"SIGNALS",
                "SIGTERM and SIGINT stop the server at once; connections are told so, and nothing that was "
                "committed is lost.\n\n"
                "SIGHUP reads the configuration file and the certificates again. Connections stay. What the file "
                "may change then stands in mfl-server.yaml(5). A file or a certificate that is wrong changes "
                "nothing; the log says what is wrong."},
        {"EXIT STATUS",
                "  0    stopped on request\n"
                "  1    failure: the disk, memory, a second server on the same state directory\n"
                "  2    wrong option\n"
                "  3    --check-state or --backup found damage\n"
                "  78   wrong configuration, or a state directory that this version can't use"},
        {"ENVIRONMENT",
                "STATE_DIRECTORY is the default of --state-dir; systemd sets it. NOTIFY_SOCKET, WATCHDOG_USEC, "
                "LISTEN_FDS and JOURNAL_STREAM are those of systemd: readiness, watchdog, socket activation and "
                "log entries with fields."},
        {"EXAMPLES",
                "  mfl-server --state-dir /var/lib/mfl\n"
                "  mfl-server --config /etc/mfl/server.yaml --log-level debug\n"
                "  mfl-server --state-dir /var/lib/mfl --backup /var/backups/mfl/today"},
        {"SEE ALSO", "mfl-server.yaml(5), mfl-client(8), mfl(1), mfl-job(5)"},
        {NULL, NULL},
};

const struct mfl_settings mfl_server_settings = {
        .program = "mfl-server",
        .summary = "the aggregation server of mfl",
        .about = "Sends the model out to daemons, adds up what they learned, and commits each round. What was "
                 "committed survives any crash: after a restart every unfinished job goes on from its last "
                 "committed round.",
        .after = "SIGTERM and SIGINT stop the server at once and lose nothing. SIGHUP reads the file and the "
                 "certificates again and takes log_level over; connections stay.\n\n"
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

static int check_tls(const struct mfl_server_config *config, struct mfl_error *err)
{
        const char *missing = !*config->tls_cert ? "tls_cert" : !*config->tls_key ? "tls_key" : "tls_ca";
        bool any = *config->tls_cert || *config->tls_key || *config->tls_ca || *config->tls_crl;
        if (any && (!*config->tls_cert || !*config->tls_key || !*config->tls_ca))
                return mfl_fail(err, MFL_INVALID,
                        "TLS needs tls_cert, tls_key and tls_ca together: %s is missing", missing);
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
        *ret_usage = *config.backup && config.check_state;
        if (*ret_usage)
                return mfl_fail(err, MFL_INVALID,
                        "--backup and --check-state: one at a time; --backup checks what it saves");
        r = check_tls(&config, err);
        if (r)
                return r;
        *ret_config = config;
        return 0;
}
