/* SPDX-License-Identifier: Apache-2.0 */
/* Reads mfl-server's configuration file and options. */
#include "server/config.h"

#include <getopt.h>
#include <stdio.h>

#include "common/fs.h"
#include "common/yaml.h"

#define CONFIG_BYTES_MAX (256 * 1024)

static const char *const level_names[] = {"error", "warn", "info", "debug", NULL};

#define AT(kind, member) MFL_YAML_AT(kind, struct mfl_server_config, member)
static const struct mfl_yaml_field config_fields[] = {
        {.key = "listen", AT(STRING, listen)},
        {.key = "state_dir", AT(STRING, state_dir)},
        {.key = "memory_max", AT(SIZE, memory_max_bytes)},
        {.key = "slots", AT(U32, slots), .min = 1, .max = 64},
        {.key = "heartbeat", AT(DURATION, heartbeat_ms), .min = 100, .max = 600000},
        {.key = "dead_after", AT(DURATION, dead_ms), .min = 500, .max = 3600000},
        {.key = "reconnect_grace", AT(DURATION, reconnect_grace_ms), .min = 0, .max = 3600000},
        {.key = "connections_max", AT(U32, connections_max), .min = 1, .max = 1000000},
        {.key = "connect_rate", AT(U32, connect_rate), .min = 0, .max = 1000000},
        {.key = "connect_burst", AT(U32, connect_burst), .min = 1, .max = 1000000},
        {.key = "greet_within", AT(DURATION, greet_ms), .min = 100, .max = 60000},
        {.key = "log_level", AT(ENUM, log_level), .names = level_names},
        {.key = "insecure_listen", AT(BOOL, insecure_listen)},
        {.key = "http", AT(STRING, http)},
        {.key = "insecure_http", AT(BOOL, insecure_http)},
        {.key = "tls_cert", AT(STRING, tls_cert)},
        {.key = "tls_key", AT(STRING, tls_key)},
        {.key = "tls_ca", AT(STRING, tls_ca)},
        {.key = "tls_crl", AT(STRING, tls_crl)},
        {0},
};

static const char help_text[] =
        "mfl-server " MFL_VERSION " - the aggregation server of mfl\n"
        "\n"
        "Usage: mfl-server [options]\n"
        "\n"
        "  --config FILE         YAML configuration; options below override it\n"
        "  --listen HOST:PORT    address to listen on (default 127.0.0.1:7433; port 0: any free one)\n"
        "  --state-dir DIR       jobs, rounds and models (default: $STATE_DIRECTORY, else ./mfl-state)\n"
        "  --insecure-listen     allow plain TCP on an address other than loopback: whoever reaches the\n"
        "                        port can submit jobs and read models\n"
        "  --http HOST:PORT      metrics and dashboard, e.g. 127.0.0.1:7434 (default: off)\n"
        "  --insecure-http       allow that on an address other than loopback: whoever reaches the port "
        "sees\n"
        "                        the names of jobs and daemons and how they do\n"
        "  --tls-cert FILE       speak TLS 1.3 only: the server's certificate, and those between it and the "
        "CA (PEM)\n"
        "  --tls-key FILE        its key; 'chmod 600'\n"
        "  --tls-ca FILE|DIR     the CA whose certificates daemons and operators must show (OU=daemon, "
        "operator,\n"
        "                        viewer, admin tell the roles; CN the name)\n"
        "  --tls-crl FILE        certificates that were revoked\n"
        "  --log-level LEVEL     error, warn, info or debug (default info)\n"
        "  --ready-fd N          write \"HOST:PORT\" to descriptor N once listening\n"
        "  --exit-with-stdin     stop when standard input ends\n"
        "  --help, --version\n"
        "\n"
        "Keys of the configuration file, with defaults:\n"
        "  listen: 127.0.0.1:7433      state_dir: mfl-state        memory_max: 80% of the machine's (e.g. "
        "8GiB)\n"
        "  slots: by the model's size  heartbeat: 2s               dead_after: 10s\n"
        "  reconnect_grace: 5s         connections_max: 16384      log_level: info\n"
        "  connect_rate: 100           connect_burst: 1000         greet_within: 10s\n"
        "  insecure_listen: false      http: off                   insecure_http: false\n"
        "  tls_cert, tls_key, tls_ca, tls_crl: none\n"
        "\n"
        "What was committed survives any crash: after a restart every unfinished job goes on from its last\n"
        "committed round. SIGTERM and SIGINT stop the server at once and lose nothing. SIGHUP reads the "
        "file\n"
        "and the certificates again and takes log_level over; connections stay.\n"
        "\n"
        "Exit status: 0 stopped on request, 1 failure, 2 wrong option, 78 wrong configuration.\n";

enum option_code {
        OPT_CONFIG = 1000,
        OPT_LISTEN,
        OPT_STATE_DIR,
        OPT_READY_FD,
        OPT_EXIT_WITH_STDIN,
        OPT_LOG_LEVEL,
        OPT_INSECURE_LISTEN,
        OPT_HTTP,
        OPT_INSECURE_HTTP,
        OPT_TLS_CERT,
        OPT_TLS_KEY,
        OPT_TLS_CA,
        OPT_TLS_CRL,
        OPT_HELP,
        OPT_VERSION,
};
static const struct option options[] = {
        {"config", required_argument, NULL, OPT_CONFIG},
        {"listen", required_argument, NULL, OPT_LISTEN},
        {"state-dir", required_argument, NULL, OPT_STATE_DIR},
        {"ready-fd", required_argument, NULL, OPT_READY_FD},
        {"exit-with-stdin", no_argument, NULL, OPT_EXIT_WITH_STDIN},
        {"log-level", required_argument, NULL, OPT_LOG_LEVEL},
        {"insecure-listen", no_argument, NULL, OPT_INSECURE_LISTEN},
        {"http", required_argument, NULL, OPT_HTTP},
        {"insecure-http", no_argument, NULL, OPT_INSECURE_HTTP},
        {"tls-cert", required_argument, NULL, OPT_TLS_CERT},
        {"tls-key", required_argument, NULL, OPT_TLS_KEY},
        {"tls-ca", required_argument, NULL, OPT_TLS_CA},
        {"tls-crl", required_argument, NULL, OPT_TLS_CRL},
        {"help", no_argument, NULL, OPT_HELP},
        {"version", no_argument, NULL, OPT_VERSION},
        {NULL, 0, NULL, 0},
};

static int read_file(const char *path, struct mfl_server_config *config, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = NULL;
        size_t n;
        int r = mfl_fs_read(path, CONFIG_BYTES_MAX, &text, &n, err);
        if (r == MFL_NOT_FOUND)
                return mfl_fail(err, MFL_INVALID, "%s: there is no such file", path);
        if (r)
                return r;
        struct mfl_yaml_doc *doc;
        r = mfl_yaml_parse(text, n, path, NULL, &doc, err);
        if (r)
                return r;
        r = mfl_yaml_read(doc, mfl_yaml_root(doc), config_fields, config, err);
        mfl_yaml_free(doc);
        return r;
}

static int set_text(char *dst, size_t dst_bytes, const char *value, const char *name, struct mfl_error *err)
{
        if (!*value || !mfl_strcpy(dst, dst_bytes, value))
                return mfl_fail(err, MFL_INVALID, "--%s: expected 1 to %zu characters", name, dst_bytes - 1);
        return 0;
}

static int set_level(struct mfl_server_config *config, const char *value, struct mfl_error *err)
{
        for (uint32_t i = 0; level_names[i]; i++)
                if (!strcmp(level_names[i], value)) {
                        config->log_level = i;
                        return 0;
                }
        return mfl_fail(
                err, MFL_INVALID, "--log-level: expected error, warn, info or debug, got '%s'", value);
}

static int set_ready_fd(struct mfl_server_config *config, const char *value, struct mfl_error *err)
{
        char *end;
        long n = strtol(value, &end, 10);
        if (*end || end == value || n < 0 || n > 65535)
                return mfl_fail(
                        err, MFL_INVALID, "--ready-fd: expected a descriptor's number, got '%s'", value);
        config->ready_fd = (int)n;
        return 0;
}

static int read_option(int code, struct mfl_server_config *config, struct mfl_error *err)
{
        switch (code) {
        case OPT_CONFIG:
                return 0; /* was read before, so that options override it wherever they stand */
        case OPT_LISTEN:
                return set_text(config->listen, sizeof config->listen, optarg, "listen", err);
        case OPT_STATE_DIR:
                return set_text(config->state_dir, sizeof config->state_dir, optarg, "state-dir", err);
        case OPT_READY_FD:
                return set_ready_fd(config, optarg, err);
        case OPT_EXIT_WITH_STDIN:
                config->exit_with_stdin = true;
                return 0;
        case OPT_LOG_LEVEL:
                return set_level(config, optarg, err);
        case OPT_INSECURE_LISTEN:
                config->insecure_listen = true;
                return 0;
        case OPT_HTTP:
                return set_text(config->http, sizeof config->http, optarg, "http", err);
        case OPT_INSECURE_HTTP:
                config->insecure_http = true;
                return 0;
        case OPT_TLS_CERT:
                return set_text(config->tls_cert, sizeof config->tls_cert, optarg, "tls-cert", err);
        case OPT_TLS_KEY:
                return set_text(config->tls_key, sizeof config->tls_key, optarg, "tls-key", err);
        case OPT_TLS_CA:
                return set_text(config->tls_ca, sizeof config->tls_ca, optarg, "tls-ca", err);
        case OPT_TLS_CRL:
                return set_text(config->tls_crl, sizeof config->tls_crl, optarg, "tls-crl", err);
        case OPT_HELP:
                fputs(help_text, stdout);
                return MFL_NOT_FOUND;
        case OPT_VERSION:
                puts("mfl-server " MFL_VERSION);
                return MFL_NOT_FOUND;
        default:
                return mfl_fail(err, MFL_INVALID, "see mfl-server --help");
        }
}

static void set_defaults(struct mfl_server_config *config)
{
        *config = (struct mfl_server_config){
                .heartbeat_ms = 2000,
                .dead_ms = 10000,
                .reconnect_grace_ms = 5000,
                .connections_max = 16384,
                .connect_rate = 100,
                .connect_burst = 1000,
                .greet_ms = 10000,
                .log_level = 2,
                .ready_fd = -1,
        };
        const char *dir = getenv("STATE_DIRECTORY"); /* set by systemd's StateDirectory= */
        mfl_strcpy(config->listen, sizeof config->listen, "127.0.0.1:7433");
        mfl_strcpy(config->http, sizeof config->http, "off");
        mfl_strcpy(config->state_dir, sizeof config->state_dir, dir && *dir ? dir : "mfl-state");
}

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
        struct mfl_server_config config;
        int code, r;
        set_defaults(&config);
        *ret_usage = false;
        config.argc = argc;
        config.argv = argv;
        optind = 1; /* a reload reads the arguments once more */
        opterr = 0;
        while ((code = getopt_long(argc, argv, "", options, NULL)) != -1)
                if (code == OPT_CONFIG) {
                        r = read_file(optarg, &config, err);
                        if (r)
                                return r;
                }
        *ret_usage = true;
        optind = 1;
        opterr = 1;
        while ((code = getopt_long(argc, argv, "", options, NULL)) != -1) {
                r = read_option(code, &config, err);
                if (r)
                        return r;
        }
        if (optind < argc)
                return mfl_fail(
                        err, MFL_INVALID, "unexpected argument '%s'; see mfl-server --help", argv[optind]);
        *ret_usage = false;
        if (config.dead_ms < 2 * config.heartbeat_ms)
                return mfl_fail(err, MFL_INVALID,
                        "dead_after (%llu ms) must be at least twice heartbeat (%llu ms)",
                        (unsigned long long)config.dead_ms, (unsigned long long)config.heartbeat_ms);
        r = check_tls(&config, err);
        if (r)
                return r;
        *ret_config = config;
        return 0;
}
