/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-serve's settings: their table (common/settings/settings.h), and the rules between them. */
#include "serve/shell/config.h"

#include <stdio.h>

static bool parse_fd(const char *text, void *value)
{
        char *end;
        long n = strtol(text, &end, 10);
        if (*end || end == text || n < 0 || n > 65535)
                return false;
        *(int *)value = (int)n;
        return true;
}

/* ---- models ---- */

static struct mfl_serve_model *add_model(struct mfl_serve_models *models)
{
        return models->n < MFL_SERVE_MODELS_MAX ? &models->v[models->n++] : NULL;
}

static int read_model(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_serve_models *models, struct mfl_error *err)
{
        static const char *const rounds[] = {"newest", "best", NULL};
        static const struct mfl_yaml_field fields[] = {
                {.key = "name", MFL_YAML_AT(STRING, struct mfl_serve_model, name), .required = true},
                {.key = "file", MFL_YAML_AT(STRING, struct mfl_serve_model, file)},
                {.key = "job", MFL_YAML_AT(STRING, struct mfl_serve_model, job)},
                {.key = "model", MFL_YAML_AT(STRING, struct mfl_serve_model, model)},
                {.key = "round", MFL_YAML_AT(ENUM, struct mfl_serve_model, round), .names = rounds}, {0}};
        struct mfl_serve_model *model = add_model(models);
        if (!model)
                return mfl_yaml_fail(doc, node, err, "more than %d models", MFL_SERVE_MODELS_MAX);
        *model = (struct mfl_serve_model){0};
        int r = mfl_yaml_read(doc, node, fields, model, err);
        if (!r && !!*model->file + !!*model->job + !!*model->model != 1)
                r = mfl_yaml_fail(doc, node, err, "expected one of 'file', 'job' and 'model'");
        if (!r && !*model->job && mfl_yaml_find(node, "round"))
                r = mfl_yaml_fail(doc, node, err, "'round' is for models that follow a job");
        return r;
}

static int read_models(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_serve_models *models = value;
        int r = 0;
        if (node->type != MFL_YAML_SEQUENCE)
                return mfl_yaml_fail(doc, node, err,
                        "expected a list, such as [{name: digits, file: /srv/digits.safetensors}]");
        models->n = 0;
        for (const struct mfl_yaml_node *n = node->first; n && !r; n = n->next)
                r = read_model(doc, n, models, err);
        return r;
}

/* "NAME=TEXT" */
static int set_named(
        struct mfl_serve_config *config, const char *text, const char *what, bool file, struct mfl_error *err)
{
        const char *equals = strchr(text, '=');
        if (!equals || equals == text || !equals[1])
                return mfl_fail(err, MFL_INVALID, "expected NAME=%s, got '%.200s'", what, text);
        struct mfl_serve_model *model = add_model(&config->models);
        if (!model)
                return mfl_fail(err, MFL_INVALID, "more than %d models", MFL_SERVE_MODELS_MAX);
        *model = (struct mfl_serve_model){0};
        const bool job = !file && !strchr(equals, '@');
        if ((size_t)(equals - text) >= sizeof model->name ||
                !(file        ? mfl_strcpy(model->file, sizeof model->file, equals + 1)
                        : job ? mfl_strcpy(model->job, sizeof model->job, equals + 1)
                              : mfl_strcpy(model->model, sizeof model->model, equals + 1)))
                return mfl_fail(err, MFL_INVALID, "a name or %s is too long: '%.200s'", what, text);
        memcpy(model->name, text, (size_t)(equals - text));
        return 0;
}

static int set_model(void *target, const char *text, struct mfl_error *err)
{
        return set_named(target, text, "FILE", true, err);
}

static int set_follow(void *target, const char *text, struct mfl_error *err)
{
        return set_named(target, text, "JOB or NAME=MODEL@ALIAS", false, err);
}

static const char *const backends[] = {"auto", "cpu", "reference", "cuda", NULL};
static bool parse_backend(const char *text, void *value)
{
        for (int i = 0; backends[i]; i++)
                if (!strcmp(text, backends[i]))
                        return mfl_strcpy(value, sizeof((struct mfl_serve_config *)0)->backend, text);
        return false;
}

static const char *const precisions[] = {"fp32", "bf16", NULL};

/* clang-format off */
#define KEY(key_, kind_, member_) .key = key_, MFL_YAML_AT(kind_, struct mfl_serve_config, member_)
static const struct mfl_setting rows[] = {
        {.section = "Models",
                .field = {.key = "models", .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_serve_config, models), .read = read_models},
                .option = "model", .argument = "NAME=FILE", .many = true, .set = set_model, .note = "none",
                .example = "[{name: digits, file: /srv/models/digits.safetensors}]",
                .help = "what is served: a list of {name, file}, each file one that `mfl pull` has written; of {name, job, round}, which follow a job "
                        "of `server`: its newest round, or its best; and of {name, model}, which follow a registered model, such as digits@champion. A file that is replaced, a round that is committed, and a version that the alias is given, is "
                        "loaded and takes over, without a failed request. The option may be repeated"},
        {.field = {MFL_YAML_AT(U32, struct mfl_serve_config, models.n)}, .option = "follow", .argument = "NAME=JOB|MODEL@ALIAS", .many = true, .set = set_follow,
                .note = "none", .help = "serve the newest round of a job of `server`, and each one that is committed; or the version that an alias of its registry has; "
                        "may be given several times"},
        {.field = {KEY("cache_dir", STRING, cache_dir)}, .option = "cache-dir", .argument = "DIR", .note = "none: no copies are kept",
                .env = "CACHE_DIRECTORY", .env_is_default = true, .example = "/var/cache/mfl-serve",
                .help = "the directory of copies of the versions in service; with it, a restart does not need the files"},
        {.field = {KEY("poll", DURATION, poll_ms), .min = 50, .max = 86400000}, .value = "500ms",
                .help = "how often the files are looked at"},

        {.section = "Jobs and registered models to follow",
                .field = {KEY("server", STRING, server)}, .option = "server", .argument = "HOST:PORT", .note = "none", .example = "agg.example.org:7433", .words = true,
                .help = "the mfl-server whose jobs and models are followed, or all servers of a cluster, [a:7433, b:7433, c:7433]; needs cache_dir. While it "
                        "is away, the last round is served"},
        {.field = {KEY("server_ca", STRING, server_ca)}, .option = "server-ca", .argument = "FILE|DIR", .note = "none: plain TCP", .example = "/etc/mfl/ca.pem",
                .reload = MFL_RELOAD_USE, .help = "the CA of that server's certificate; with it, TLS is spoken"},
        {.field = {KEY("server_cert", STRING, server_cert)}, .option = "server-cert", .argument = "FILE", .note = "none", .example = "/etc/mfl/serve.pem",
                .reload = MFL_RELOAD_USE, .help = "the certificate to show to that server; OU=serve (mfl pki issue serve) allows what is needed, and nothing else"},
        {.field = {KEY("server_key", STRING, server_key)}, .option = "server-key", .argument = "FILE", .note = "none", .example = "/etc/mfl/serve.key",
                .reload = MFL_RELOAD_USE, .help = "the key of that certificate, not readable by others (chmod 600)"},

        {.section = "Batches",
                .field = {KEY("batch", U32, batch), .min = 1, .max = 4096}, .option = "batch", .argument = "N", .value = "32", .unit = "rows",
                .help = "the most rows that are computed together; a request of more is divided. An answer does not depend on it"},
        {.field = {KEY("backend", STRING, backend), .names = backends}, .option = "backend", .argument = "NAME", .parse = parse_backend, .value = "auto",
                .help = "what computes: auto, the first of cuda, cpu and reference that works here; or one of them. On a machine with a GPU, cpu takes the "
                        "processor. Answers of one model from two backends may differ in their last bits"},
        {.field = {KEY("precision", ENUM, precision), .names = precisions}, .option = "precision", .argument = "P", .value = "fp32",
                .help = "how products are computed: fp32; or bf16, operands rounded to bfloat16 and sums in float, which needs the cpu backend and a processor with avx512_bf16 or amx_bf16. "
                        "An answer's bits depend on model, row and precision alone"},
        {.field = {KEY("delay", DURATION, delay_ms), .min = 0, .max = 10000}, .option = "delay", .argument = "TIME", .value = "0ms",
                .help = "the longest that a free network waits for a full batch. 0ms: it never waits, and what arrives while it "
                        "computes is the next batch"},
        {.field = {KEY("queue", U32, queue), .min = 1, .max = 1000000}, .option = "queue", .argument = "N", .value = "1024", .unit = "rows",
                .help = "the most rows of a model that wait; further requests are answered with 429 and Retry-After"},
        {.field = {KEY("rows_max", U32, rows_max), .min = 1, .max = 65536}, .value = "1024", .unit = "rows", .help = "the most rows of one request"},
        {.field = {KEY("deadline", DURATION, deadline_ms), .min = 1, .max = 3600000}, .option = "deadline", .argument = "TIME", .value = "10s",
                .help = "a request that has not begun after this long is answered with 504; a request may ask for less with the parameter "
                        "timeout, in microseconds"},
        {.field = {KEY("threads", U32, threads), .min = 1, .max = 64}, .option = "threads", .argument = "N", .value = "1", .unit = "threads",
                .help = "threads that compute; the models are divided among them, and each model has one, or `instances` of them"},
        {.field = {KEY("instances", U32, instances), .min = 1, .max = 64}, .option = "instances", .argument = "N", .value = "1", .unit = "networks",
                .help = "batches of a model that are computed at the same time, each by a network of its own with a copy of the params on one of `threads`: not more than "
                        "those. More answers per second where cores are free; an answer does not depend on it"},

        {.section = "New versions",
                .field = {KEY("canary", F64, canary_share), .min = 0, .max = 1}, .option = "canary", .argument = "SHARE", .value = "0", .unit = "share",
                .help = "the share of keys (the header Mfl-Key; without it, of questions) that a new version answers before it takes over. One key has one version. 0: it "
                        "takes over at once"},
        {.field = {KEY("mirror", F64, mirror_share), .min = 0, .max = 1}, .option = "mirror", .argument = "SHARE", .value = "0", .unit = "share",
                .help = "the share of keys whose questions a new version computes, too, after the version in service has answered them. Its answers are "
                        "compared and counted (/metrics), and nobody gets them; after `canary_for` it takes over. It computes on a thread of its own, and has one batch waiting at most"},
        {.field = {KEY("canary_for", DURATION, canary_ms), .min = 0, .max = 604800000}, .value = "1m",
                .help = "how long a new version is on trial, with `canary` or `mirror`, or after it took over; while it is on trial beside another one, newer ones wait"},
        {.field = {KEY("canary_failures", F64, canary_failures), .min = 0, .max = 1}, .value = "0.02", .unit = "share",
                .help = "a version on trial is out, and the one before is back, when it fails more than this share of its requests, and at least three"},
        {.field = {KEY("canary_slower", F64, canary_slower), .min = 1, .max = 1000}, .value = "5", .unit = "times",
                .help = "with `canary` or `mirror`: the same when a row takes it so many times as long as the version beside it"},

        {.section = "Network",
                .field = {KEY("listen", STRING, listen)}, .option = "listen", .argument = "HOST:PORT", .value = "127.0.0.1:8080",
                .help = "the address to listen on; port 0: any free port. Sockets of the service manager replace it. An address other than "
                        "loopback needs TLS and api_keys, or insecure_listen"},
        {.field = {KEY("insecure_listen", BOOL, insecure_listen)}, .option = "insecure-listen", .value = "false",
                .help = "allow an address other than loopback without TLS or without keys, as behind a proxy that has both"},
        {.field = {KEY("connections_max", U32, connections_max), .min = 1, .max = 1000000}, .value = "16384", .unit = "connections",
                .help = "the largest number of connections; excess connections are closed"},
        {.field = {KEY("pipeline_max", U32, pipeline_max), .min = 1, .max = 4096}, .value = "64", .unit = "requests",
                .help = "the most unanswered requests of one connection; beyond it, nothing is read from it"},
        {.field = {KEY("idle_timeout", DURATION, idle_ms), .min = 1000, .max = 86400000}, .value = "75s",
                .help = "a connection without a request is closed after this long"},
        {.field = {KEY("request_timeout", DURATION, request_ms), .min = 1000, .max = 3600000}, .value = "30s",
                .help = "a request must have arrived this long after its first byte; otherwise the answer is 408"},
        {.field = {KEY("head_max", SIZE, head_bytes_max), .min = 1024, .max = 1 << 20}, .value = "16KiB",
                .help = "the largest request line with headers; more is answered with 431"},
        {.field = {KEY("body_max", SIZE, body_bytes_max), .min = 1024, .max = 1e12}, .value = "16MiB", .help = "the largest body; more is answered with 413"},
        {.field = {KEY("bodies_max", SIZE, bodies_bytes_max), .min = 65536, .max = 1e13}, .value = "256MiB",
                .help = "memory for bodies that are arriving, all connections together; beyond it, the answer is 503"},

        {.field = {KEY("page", BOOL, page)}, .option = "page", .value = "false",
                .help = "serve a page at / where people drop an image or type a row and see the answer. With api_keys, the page asks for one"},

        {.section = "TLS 1.3 and keys",
                .field = {KEY("tls_cert", STRING, tls_cert)}, .option = "tls-cert", .argument = "FILE", .note = "none: plain HTTP",
                .example = "/etc/mfl/serve.pem", .reload = MFL_RELOAD_FILE,
                .help = "the certificate, followed by intermediate certificates (PEM); with it, only HTTPS is spoken"},
        {.field = {KEY("tls_key", STRING, tls_key)}, .option = "tls-key", .argument = "FILE", .note = "none", .example = "/etc/mfl/serve.key",
                .reload = MFL_RELOAD_FILE, .help = "the certificate's private key, not readable by others (chmod 600)"},
        {.field = {KEY("tls_ca", STRING, tls_ca)}, .option = "tls-ca", .argument = "FILE|DIR", .note = "none: clients show no certificate",
                .example = "/etc/mfl/ca.pem", .reload = MFL_RELOAD_FILE, .help = "the CA that must have issued clients' certificates"},
        {.field = {KEY("api_keys", STRING, api_keys)}, .option = "api-keys", .argument = "FILE", .note = "none: no key is asked for",
                .example = "/etc/mfl/serve.keys", .reload = MFL_RELOAD_FILE,
                .help = "a file with a line for each key: its name, the key of at least 16 characters, and optionally `admin`, which may roll back. Clients "
                        "send `Authorization: Bearer KEY`; only /v2/health needs none. Not readable by others (chmod 600)"},

        {.section = "Log",
                .field = {KEY("log_level", ENUM, log_level), .names = mfl_setting_levels}, .option = "log-level", .argument = "LEVEL",
                .value = "info", .parse = mfl_setting_parse_level, .reload = MFL_RELOAD_VALUE,
                .help = "least severe level to log: error, warning, info or debug"},

        {.section = "Only on the command line",
                .field = {MFL_YAML_AT(U32, struct mfl_serve_config, ready_fd)}, .option = "ready-fd", .argument = "N", .parse = parse_fd,
                .expected = "a descriptor's number", .note = "none", .help = "write \"HOST:PORT\" to this descriptor when the server listens"},
        {.field = {MFL_YAML_AT(BOOL, struct mfl_serve_config, exit_with_stdin)}, .option = "exit-with-stdin",
                .help = "stop when standard input ends: for a parent process that must not leave children behind"},
};

static const struct mfl_settings_topic topics[] = {
        {"SIGNALS",
                "SIGTERM and SIGINT stop the server: it answers what it has taken, and nothing more.\n\n"
                "SIGHUP reads the configuration, the certificates, the keys and the models' files again. Connections stay open. What is wrong "
                "changes nothing, and the log says what it is."},
        {"EXIT STATUS",
                "  0    stopped on request\n"
                "  1    failure: memory, device, or an address in use\n"
                "  2    wrong option\n"
                "  78   wrong configuration"},
        {"ENVIRONMENT",
                "CACHE_DIRECTORY is the default of --cache-dir; systemd sets it. systemd also sets NOTIFY_SOCKET (readiness), WATCHDOG_USEC "
                "(watchdog), LISTEN_FDS (socket activation) and JOURNAL_STREAM (log entries with fields)."},
        {"EXAMPLES",
                "  mfl pull last --round best -o digits.safetensors\n"
                "  mfl-serve --model digits=digits.safetensors\n"
                "  curl http://127.0.0.1:8080/v2/models/digits"},
        {"SEE ALSO", "mfl-serve.yaml(5), mfl(1), mfl-server(8)"},
        {NULL, NULL},
};

const struct mfl_settings mfl_serve_settings = {
        .program = "mfl-serve",
        .summary = "answers requests with trained models",
        .about = "Serves models over HTTP/1.1 in the Open Inference Protocol (KServe v2). An answer depends on the model and the request alone, "
                 "never on other requests, and names the version that gave it.",
        .after = "SIGTERM and SIGINT stop the server after the answers that it owes. SIGHUP reads the configuration, certificates, keys and models "
                 "again.\n\nExit status: 0 stopped on request, 1 failure, 2 wrong option, 78 wrong configuration.",
        .file = "/etc/mfl/serve.yaml",
        .topics = topics,
        .rows = rows,
        .n_rows = MFL_ARRAY_SIZE(rows),
};
/* clang-format on */

static int check(const struct mfl_serve_config *c, struct mfl_error *err)
{
        struct mfl_servers servers;
        int r = *c->server ? mfl_servers_init(&servers, c->server, err) : 0;
        if (r)
                return r;
        if (!c->models.n)
                return mfl_fail(err, MFL_INVALID,
                        "no model: give --model NAME=FILE, or models: [{name: NAME, file: FILE}]");
        for (uint32_t i = 0; i < c->models.n; i++)
                if (!*c->models.v[i].file && (!*c->server || !*c->cache_dir))
                        return mfl_fail(err, MFL_INVALID,
                                "models: %s follows a job or a registered model, which needs server and "
                                "cache_dir: %s is missing",
                                c->models.v[i].name, *c->server ? "cache_dir" : "server");
        bool follows = false;
        for (uint32_t i = 0; i < c->models.n; i++)
                follows = follows || !*c->models.v[i].file;
        if (*c->server && !follows)
                return mfl_fail(err, MFL_INVALID,
                        "server is %s, but no model follows it: add {name, job} or {name, model} to models, "
                        "or "
                        "--follow NAME=JOB, or leave it out",
                        c->server);
        const bool any = *c->server_ca || *c->server_cert || *c->server_key;
        if (any && (!*c->server_ca || !*c->server_cert || !*c->server_key))
                return mfl_fail(err, MFL_INVALID,
                        "TLS to the server needs server_ca, server_cert and server_key together");
        if (c->instances > c->threads)
                return mfl_fail(err, MFL_INVALID,
                        "instances is %u, and there are %u threads for them: set threads (--threads) to %u, "
                        "or more",
                        c->instances, c->threads, c->instances);
        if (!*c->tls_cert != !*c->tls_key)
                return mfl_fail(err, MFL_INVALID, "TLS needs tls_cert and tls_key together: %s is missing",
                        *c->tls_cert ? "tls_key" : "tls_cert");
        if (*c->tls_ca && !*c->tls_cert)
                return mfl_fail(err, MFL_INVALID, "tls_ca needs tls_cert and tls_key");
        return 0;
}

int mfl_serve_config_load(
        int argc, char **argv, struct mfl_serve_config *ret_config, bool *ret_usage, struct mfl_error *err)
{
        struct mfl_serve_config *config = ret_config;
        *config = (struct mfl_serve_config){.argc = argc, .argv = argv, .ready_fd = -1};
        mfl_settings_defaults(&mfl_serve_settings, config);
        int r = mfl_settings_load(&mfl_serve_settings, argc, argv, config, err);
        *ret_usage = r == MFL_SETTINGS_USAGE;
        if (r)
                return r == MFL_SETTINGS_SHOWN ? MFL_NOT_FOUND : *ret_usage ? MFL_INVALID : r;
        return check(config, err);
}
