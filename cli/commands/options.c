/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the command line: options at any position, "--name value" or "--name=value", and suggestions for
 * unknown words. */
#include <inttypes.h>
#include <limits.h>

#include "cli/commands/commands.h"
#include "cli/commands/options.h"
#include "common/settings/yaml.h"
#include "common/model/graph.h"

#define AT(member) offsetof(struct mfl_cli_options, member)
static const struct mfl_cli_option options[] = {
        {"server", 0, KIND_TEXT, AT(server), "HOST:PORT,...",
                "the server, or all of a cluster's (default: $MFL_SERVER,\nor 127.0.0.1:7433)", 0, 0},
        {"tls-ca", 0, KIND_TEXT, AT(tls_ca), "FILE",
                "use TLS: the CA of the server's certificate;\nsee 'mfl help tls'", 0, 0},
        {"tls-cert", 0, KIND_TEXT, AT(tls_cert), "FILE", "your certificate (OU=operator)", 0, 0},
        {"tls-key", 0, KIND_TEXT, AT(tls_key), "FILE", "its key", 0, 0},
        {"plain", 0, KIND_FLAG, AT(plain), NULL, "connect without TLS, even if there are certificates", 0, 0},
        {"json", 0, KIND_FLAG, AT(json), NULL, "print JSON on stdout; see 'mfl help json'", 0, 0},
        {"help", 'h', KIND_FLAG, AT(help), NULL, "show this help", 0, 0},
        {"version", 0, KIND_FLAG, AT(version), NULL, "show the version", 0, 0},
        {"set", 0, KIND_LIST, AT(set), "KEY=VALUE",
                "change the job file, as in --set training.lr=0.01;\nrepeat for more\n"
                "sweep: several values, as in --set training.lr=0.01,0.1 or\n--set seed=1..3; repeat for "
                "more",
                0, 0, AT(n_set)},
        {"state", 0, KIND_TEXT, AT(state), "S,S,...", "only jobs in one of these states", 0, 0,
                .choices = "waiting running done failed stopped"},
        {"archived", 0, KIND_FLAG, AT(archived), NULL, "only archived jobs", 0, 0},
        {"done", 0, KIND_FLAG, AT(done), NULL, "the same as --state done", 0, 0},
        {"name", 0, KIND_TEXT, AT(name), "PATTERN",
                "only jobs whose name matches; '*' stands for any text,\n'?' for one character", 0, 0},
        {"since", 0, KIND_TEXT, AT(since), "TIME", "only jobs submitted in the last TIME, such as 12h or 2d",
                0, 0},
        {"before", 0, KIND_TEXT, AT(before), "TIME", "only jobs that ended longer ago than TIME, such as 30d",
                0, 0},
        {"token", 0, KIND_TEXT, AT(token), "T", "submitting twice with one token makes one job", 0, 0},
        {"anyway", 0, KIND_FLAG, AT(anyway), NULL, "also when too few of the connected sites would take it",
                0, 0},
        {"watch", 0, KIND_FLAG, AT(watch), NULL, "watch the job until it ends", 0, 0},
        {"follow", 'f', KIND_FLAG, AT(follow), NULL, "continue until the job ends", 0, 0},
        {"timeout", 0, KIND_NUMBER, AT(timeout), "SECONDS",
                "give up after this time without a server (default 60)", 0, 1000000},
        {"round", 0, KIND_TEXT, AT(round), "R|best|last", "which model (default: last)", 0, 0,
                .choices = "best last"},
        {"format", 0, KIND_TEXT, AT(format), "F",
                "safetensors (default), npz, onnx or peft: a model;\ntensorboard, csv or jsonl: the "
                "rounds\npredict: csv (default), jsonl or npy",
                0, 0, .choices = "safetensors npz onnx peft tensorboard csv jsonl npy"},
        {"base", 0, KIND_TEXT, AT(base), "MODEL",
                "peft: the model that the adapter belongs to (default: none)", 0, 0},
        {"output", 'o', KIND_TEXT, AT(out), "FILE",
                "pull: the file to write (default: JOB-rROUND.safetensors, .npz,\n.onnx, JOB.csv, JOB.jsonl; "
                "tensorboard: the folder runs);\n'-': standard output (csv, jsonl)\n"
                "predict: the file to write; .npy is an array (default:\nstandard output)\n"
                "new: the file to write (default: standard output)\n"
                "model: import: the file to write",
                0, 0},
        {"partition", 0, KIND_FLAG, AT(partition), NULL, "show how the data set is divided among the clients",
                0, 0},
        {"nodes", 0, KIND_FLAG, AT(nodes), NULL, "show what each of the last 100 rounds cost each node", 0,
                0},
        {"teams", 0, KIND_FLAG, AT(teams), NULL, "show which daemons train a client together now", 0, 0},
        {"after-round", 0, KIND_FLAG, AT(after_round), NULL, "commit the current round first", 0, 0},
        {"undo", 0, KIND_FLAG, AT(undo), NULL,
                "drain: let it work again\narchive: put it back on the list (mfl unarchive)", 0, 0},
        {"wait", 0, KIND_FLAG, AT(wait), NULL, "return when it is idle", 0, 0},
        {"all", 0, KIND_FLAG, AT(all), NULL,
                "drain: every daemon, also those that connect later\nstop: every job that has not "
                "ended\nlist, delete: archived jobs, too",
                0, 0},
        {"data", 0, KIND_LIST, AT(data), "DATA",
                "NAME=FORMAT:DIR, a data set; FORMAT is idx, cifar10, cifar100,\nnpy, npz, csv, text, images "
                "(DIR may be a "
                "file;\nadd ,KEY=VALUE as in client.yaml) or\nsynthetic "
                "(synthetic:C,H,W:classes:train:test:seed)\n"
                "predict: [FORMAT:]PATH[,KEY=VALUE]..., the samples; keys as in\ndata_sets of client.yaml; "
                "with --at, "
                "the name of the site's data set\n"
                "evaluate: [FORMAT:]PATH[,KEY=VALUE]..., the samples; keys as in\ndata_sets of client.yaml\n"
                "validate: the name of the sites' data set (default: the model's)",
                0, 0, AT(n_data)},
        {"rows", 0, KIND_NUMBER, AT(rows), "N", "show at most N clients (0: all; default 20)", 0, 1000000},
        {"last", 0, KIND_NUMBER, AT(last), "N", "only the newest N\naudit: only the newest N (default 100)",
                1, 1000},
        {"input", 0, KIND_TEXT, AT(input), "CxHxW", "input shape (default 1x28x28)", 0, 0},
        {"classes", 0, KIND_NUMBER, AT(classes), "N", "number of classes (default 10)", 2, MFL_WIDTH_MAX},
        {"daemons", 0, KIND_NUMBER, AT(daemons), "N", "client daemons to start (default 2; 1 on one core)", 1,
                256},
        {"memory", 0, KIND_TEXT, AT(memory), "SIZE",
                "what one daemon may use, as in its client.yaml\n(default: no limit)", 0, 0},
        {"members", 0, KIND_NUMBER, AT(members), "N", "plans of at most N members (default 8)", 1, 64},
        {"sizes", 0, KIND_FLAG, AT(sizes), NULL, "measure nothing: only sizes", 0, 0},
        {"threads", 0, KIND_NUMBER, AT(threads), "T",
                "clients that one daemon trains at once\n(default: the cores divided by the daemons)\n"
                "predict, evaluate: threads that compute (default 1)",
                1, 1024},
        {"out", 0, KIND_TEXT, AT(out), "DIR",
                "run: the folder of results (default mfl-run, mfl-run-2, ...)\npki: a folder for a copy of "
                "the files",
                0, 0},
        {"backend", 0, KIND_TEXT, AT(backend), "B", "auto, cpu, reference or cuda (default auto)", 0, 0,
                .choices = "auto cpu reference cuda"},
        {"precision", 0, KIND_TEXT, AT(precision), "P",
                "predict: fp32 (default), or bf16: products of bfloat16\n"
                "evaluate: fp32, or bf16: products of bfloat16\n(default: the job's)",
                0, 0, .choices = "fp32 bf16"},
        {"dir", 0, KIND_TEXT, AT(dir), "DIR", "the CA's directory (default: ~/.config/mfl/pki)", 0, 0},
        {"host", 0, KIND_LIST, AT(host), "HOST", "a host name or IP address of the server; repeat for more",
                0, 0, AT(n_host)},
        {"role", 0, KIND_LIST, AT(role), "ROLE", "an additional role; repeat for more", 0, 0, AT(n_role),
                .choices = "server relay daemon operator viewer admin serve"},
        {"days", 0, KIND_NUMBER, AT(days), "N", "days until it expires (default: a CA 3650, others 365)", 1,
                36500},
        {"crl-days", 0, KIND_NUMBER, AT(crl_days), "N",
                "days until revocation lists expire, from now on\n(default 365)", 1, 36500},
        {"site", 0, KIND_TEXT, AT(site), "NAME",
                "the site whose data this daemon holds (site in client.yaml)", 0, 0},
        {"csr", 0, KIND_TEXT, AT(csr), "FILE", "sign this request; its key stays where it is", 0, 0},
        {"new-key", 0, KIND_FLAG, AT(new_key), NULL, "renew: with a new key", 0, 0},
        {"revoke-old", 0, KIND_FLAG, AT(revoke_old), NULL, "renew: revoke the old certificate", 0, 0},
        {"tar", 0, KIND_TEXT, AT(tar), "FILE", "export: the archive to write; '-': standard output", 0, 0},
        {"ca-pass-file", 0, KIND_TEXT, AT(ca_pass_file), "FILE",
                "a file whose first line is the pass phrase of the CA's key", 0, 0},
        {"reason", 0, KIND_TEXT, AT(reason), "TEXT", "why; the daemon and the list of daemons show it", 0, 0},
        {"for", 0, KIND_TEXT, AT(period), "TIME",
                "daemons: for this time, such as 90s, 30m, 12h or 7d\n(default: until enable)\n"
                "login: for this time, such as 30m (default 12h)",
                0, 0},
        {"sigma", 0, KIND_TEXT, AT(sigma), "S",
                "noise, in deviations of a client's largest contribution; or a list, S,S,...", 0, 0},
        {"q", 0, KIND_TEXT, AT(q), "Q", "probability of a client to take part in a round; or a list", 0, 0},
        {"rounds", 0, KIND_TEXT, AT(rounds), "N", "number of rounds; or a list", 0, 0},
        {"delta", 0, KIND_TEXT, AT(delta), "D", "such as 1e-5", 0, 0},
        {"calibrate", 0, KIND_TEXT, AT(calibrate), "EPSILON", "find the noise that costs at most EPSILON", 0,
                0},
        {"mechanism", 0, KIND_TEXT, AT(mechanism), "NAME",
                "gaussian (the default), or correlated noise: bisr, bsr", 0, 0},
        {"separation", 0, KIND_TEXT, AT(separation), "B",
                "with correlated noise: rounds between two turns of a client", 0, 0},
        {"with-input", 0, KIND_FLAG, AT(with_input), NULL,
                "onnx: take raw samples, and scale them as the sites do", 0, 0},
        {"plugins", 0, KIND_TEXT, AT(plugins), "DIR",
                "run: a directory of plug-ins of the server, *.so, which\nnobody but you and root may write",
                0, 0},
        {"config", 0, KIND_TEXT, AT(config), "FILE",
                "run: a configuration of the daemons, as client.yaml: filters,\nplugin_data, programs, "
                "data_sets, "
                "policy",
                0, 0},
        {"deltas", 0, KIND_FLAG, AT(deltas), NULL,
                "the changes of a round's clients, as npz (debug.deltas in the job)", 0, 0},
        {"to", 0, KIND_TEXT, AT(to), "HOST:PORT",
                "move: the server that gets the job, written as its daemons know it", 0, 0},
        {"back", 0, KIND_FLAG, AT(back), NULL, "move: give up a move that was not finished", 0, 0},
        {"top", 0, KIND_NUMBER, AT(top), "K", "predict: the K most probable classes (default 1)", 1, 65536},
        {"probabilities", 0, KIND_FLAG, AT(probabilities), NULL, "predict: those of all classes, too", 0, 0},
        {"logits", 0, KIND_FLAG, AT(logits), NULL, "predict: what the model gives, too (npy: instead)", 0, 0},
        {"at", 0, KIND_TEXT, AT(at), "PATTERN",
                "only sites or daemons whose name matches; '*' stands\nfor any text, '?' for one character",
                0, 0},
        {"bins", 0, KIND_NUMBER, AT(bins), "N", "parts of the histograms (default 64), which are then shown",
                2, 10000},
        {"deadline", 0, KIND_NUMBER, AT(deadline), "SECONDS",
                "how long sites have time to answer (default 60)", 1, 86400},
        {"as", 0, KIND_TEXT, AT(as), "NAME", "register: the model's name", 0, 0},
        {"accuracy", 0, KIND_TEXT, AT(accuracy), "A", "promote: at least this accuracy over all sites", 0, 0},
        {"worse", 0, KIND_TEXT, AT(worse), "X",
                "promote: at no site an accuracy that is lower by more\nthan X than that of the version "
                "before",
                0, 0},
        {"sites", 0, KIND_NUMBER, AT(sites), "K", "promote: validated at K sites at least", 1, 4096},
        {"keep-state", 0, KIND_FLAG, AT(keep_state), NULL,
                "keep the server's state directory when the job is done", 0, 0},
};

const char mfl_cli_common_options[] = "json help";
const char mfl_cli_server_options[] = "server tls-ca tls-cert tls-key plain";

const struct mfl_cli_option *mfl_cli_option_at(size_t i)
{
        return i < MFL_ARRAY_SIZE(options) ? &options[i] : NULL;
}

bool mfl_cli_name_in(const char *names, const char *name)
{
        size_t n = strlen(name);
        for (const char *at = names; at && (at = strstr(at, name)); at += n)
                if ((at == names || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
                        return true;
        return false;
}

/* NULL: the command is not known yet. */
static bool command_takes(const struct mfl_cli_command *command, const char *name)
{
        if (mfl_cli_name_in(mfl_cli_common_options, name) || (!command && !strcmp(name, "version")))
                return true;
        if (mfl_cli_name_in(mfl_cli_server_options, name))
                return !command || !command->local;
        return command && mfl_cli_name_in(command->options, name);
}

/* text is "--name", "--name=value" or "-x". */
static bool names_option(const struct mfl_cli_option *o, const char *text)
{
        size_t n = strcspn(text, "=");
        return text[1] == '-' ? n - 2 == strlen(o->name) && !strncmp(text + 2, o->name, n - 2)
                              : n == 2 && !text[2] && text[1] == o->letter;
}

static int fail_unknown(const struct mfl_cli *cli, const char *text, struct mfl_error *err)
{
        const char *names[MFL_ARRAY_SIZE(options) + 1];
        const char *of = cli->command ? cli->command->name : "";
        const char *space = cli->command ? " " : "";
        int n = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(options); i++)
                if (command_takes(cli->command, options[i].name))
                        names[n++] = options[i].name;
        names[n] = NULL;
        const char *nearest = text[0] == '-' && text[1] == '-' ? mfl_yaml_nearest(text + 2, names) : NULL;
        for (size_t i = 0; cli->command && cli->command->local && i < MFL_ARRAY_SIZE(options); i++)
                if (mfl_cli_name_in(mfl_cli_server_options, options[i].name) &&
                        names_option(&options[i], text))
                        return mfl_fail(err, MFL_CLI_USAGE, "mfl %s asks no server: leave out '--%s'", of,
                                options[i].name);
        if (nearest)
                return mfl_fail(err, MFL_CLI_USAGE, "mfl %s%sknows no option '%.100s'; did you mean '--%s'?",
                        of, space, text, nearest);
        return mfl_fail(err, MFL_CLI_USAGE, "mfl %s%sknows no option '%.100s'; see 'mfl %s%s--help'", of,
                space, text, of, space);
}

/* Finds an option that the command takes. Before the command is known: one that every command takes, or every
 * command that asks a server. */
static const struct mfl_cli_option *find_option(
        const struct mfl_cli *cli, const char *text, const char **ret_value)
{
        const char *equals = strchr(text, '=');
        for (size_t i = 0; i < MFL_ARRAY_SIZE(options); i++) {
                const struct mfl_cli_option *o = &options[i];
                if (!names_option(o, text) || !command_takes(cli->command, o->name))
                        continue;
                *ret_value = equals ? equals + 1 : NULL;
                return o;
        }
        return NULL;
}

static int set_number(const struct mfl_cli_option *o, const char *value, void *at, struct mfl_error *err)
{
        char *end;
        errno = 0;
        int64_t v = strtoll(value, &end, 10);
        if (errno || end == value || *end || v < o->min || v > o->max)
                return mfl_fail(err, MFL_CLI_USAGE, "--%s: '%.100s' is not a number in %" PRId64 "..%" PRId64,
                        o->name, value, o->min, o->max);
        *(int64_t *)at = v;
        return 0;
}

static int set_option(
        struct mfl_cli *cli, const struct mfl_cli_option *o, const char *value, struct mfl_error *err)
{
        void *at = (char *)&cli->options + o->offset;
        switch (o->kind) {
        case KIND_FLAG:
                *(bool *)at = true;
                return 0;
        case KIND_TEXT:
                *(const char **)at = value;
                return 0;
        case KIND_NUMBER:
                return set_number(o, value, at, err);
        case KIND_LIST: {
                int *n = (int *)((char *)&cli->options + o->count);
                if (*n == MFL_CLI_DATA_MAX)
                        return mfl_fail(err, MFL_CLI_USAGE, "--%s: more than %d", o->name, MFL_CLI_DATA_MAX);
                ((const char **)at)[(*n)++] = value;
                return 0;
        }
        }
        return 0;
}

/* Words that users of other programs type. */
static const struct {
        const char *words, *command;
} synonyms[] = {
        {"start train simulate sim local demo", "run"},
        {"init template templates example examples generate", "new"},
        {"send create add push upload sub queue enqueue", "submit"},
        {"verify lint test dry-run", "check"},
        {"jobs ps st dir", "list"},
        {"info describe inspect get-job cat desc view", "show"},
        {"top tail monitor follow attach progress", "watch"},
        {"await join", "wait"},
        {"grid search tune hyperparameters hparams", "sweep"},
        {"diff plot vs", "compare"},
        {"log output journal events", "logs"},
        {"kill abort end terminate halt quit interrupt pause", "stop"},
        {"restart rerun resubmit copy cp retry again repeat", "clone"},
        {"unlearn", "forget"},
        {"hide store", "archive"},
        {"unhide restore undelete", "unarchive"},
        {"remove del erase purge clean", "delete"},
        {"checkpoints checkpoint", "models"},
        {"infer classify score", "predict"},
        {"eval test", "evaluate"},
        {"get download fetch export save metrics results model-pull", "pull"},
        {"clients nodes workers hosts gpus gpu devices daemon node", "daemons"},
        {"cordon disable", "drain"},
        {"health ping healthz readyz ready alive", "probe"},
        {"history who", "audit"},
        {"logon signin sign-in browser dashboard logout web", "login"},
        {"dataset datasets partition partitions", "data"},
        {"preset architectures zoo", "presets"},
        {"cert certs certificate certificates ca tls provision keys", "pki"},
        {"dp epsilon accountant budget", "privacy"},
        {"man usage manual", "help"},
};

const char *mfl_cli_command_meant(const char *word)
{
        const char *names[64];
        int n = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(synonyms); i++)
                if (*word && mfl_cli_name_in(synonyms[i].words, word))
                        return synonyms[i].command;
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++)
                names[n++] = c->name;
        names[n] = NULL;
        return mfl_yaml_nearest(word, names);
}

static int fail_command(const char *text, struct mfl_error *err)
{
        const char *meant = mfl_cli_command_meant(text);
        if (meant)
                return mfl_fail(
                        err, MFL_CLI_USAGE, "there is no command '%.100s'; did you mean '%s'?", text, meant);
        return mfl_fail(err, MFL_CLI_USAGE, "there is no command '%.100s'; 'mfl help' lists them", text);
}

/* An option before the command may be one that the command does not take. */
static int check_early_options(const struct mfl_cli *cli, struct mfl_error *err)
{
        for (size_t i = 0; cli->command && i < MFL_ARRAY_SIZE(options); i++) {
                const struct mfl_cli_option *o = &options[i];
                const void *at = (const char *)&cli->options + o->offset;
                if (!mfl_cli_name_in(mfl_cli_server_options, o->name) || command_takes(cli->command, o->name))
                        continue;
                if (o->kind == KIND_FLAG ? *(const bool *)at : *(const char *const *)at != NULL)
                        return mfl_fail(err, MFL_CLI_USAGE, "mfl %s asks no server: leave out '--%s'",
                                cli->command->name, o->name);
        }
        return 0;
}

/* Short names from other programs that people type without thinking. */
static const struct {
        const char *word, *command;
        const char *of_one; /* with a job behind it; NULL: the same */
} aliases[] = {
        {"ls", "list", "show"}, {"status", "list", "show"}, {"rm", "delete", NULL}, {"cancel", "stop", NULL}};

static const char *command_name(const char *text)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(aliases); i++)
                if (!strcmp(text, aliases[i].word))
                        return aliases[i].command;
        return text;
}

/* `mfl status JOB` shows one job. */
static const struct mfl_cli_command *command_of_one(const struct mfl_cli *cli)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(aliases); i++)
                if (aliases[i].of_one && !strcmp(cli->word, aliases[i].word))
                        return mfl_cli_command_find(aliases[i].of_one);
        return cli->command;
}

static int add_argument(struct mfl_cli *cli, const char *text, int *n, struct mfl_error *err)
{
        if (!cli->command) {
                cli->word = text;
                cli->command = mfl_cli_command_find(command_name(text));
                return cli->command ? 0 : fail_command(text, err);
        }
        if (!*n)
                cli->command = command_of_one(cli);
        if (*n == cli->command->n_max)
                return mfl_fail(err, MFL_CLI_USAGE, "'%.100s' is one argument too many; usage: mfl %s %s",
                        text, cli->command->name, cli->command->arguments);
        cli->argument[(*n)++] = text;
        return 0;
}

static int take_option(struct mfl_cli *cli, char **argv, int *i, struct mfl_error *err)
{
        const char *value = NULL;
        const struct mfl_cli_option *o = find_option(cli, argv[*i], &value);
        if (!o)
                return fail_unknown(cli, argv[*i], err);
        if (o->kind == KIND_FLAG && value)
                return mfl_fail(err, MFL_CLI_USAGE, "--%s takes no value", o->name);
        if (o->kind != KIND_FLAG && !value) {
                value = argv[*i + 1];
                if (!value)
                        return mfl_fail(err, MFL_CLI_USAGE, "--%s needs a value: --%s %s", o->name, o->name,
                                o->value);
                ++*i;
        }
        return set_option(cli, o, value, err);
}

int mfl_cli_parse(struct mfl_cli *cli, int argc, char **argv, struct mfl_error *err)
{
        int n = 0;
        bool only_arguments = false;
        struct mfl_cli_options *o = &cli->options;
        o->daemons = o->threads = o->rows = o->classes = o->timeout = o->last = -1;
        o->days = o->crl_days = o->top = o->bins = o->deadline = o->sites = -1;
        for (int i = 1; i < argc; i++) {
                int r = 0;
                if (!only_arguments && !strcmp(argv[i], "--"))
                        only_arguments = true;
                else if (!only_arguments && argv[i][0] == '-' && argv[i][1])
                        r = take_option(cli, argv, &i, err);
                else
                        r = add_argument(cli, argv[i], &n, err);
                cli->json = o->json;
                if (r)
                        return r;
        }
        if (cli->command && n < cli->command->n_min && !o->help)
                return mfl_fail(err, MFL_CLI_USAGE, "something is missing; usage: mfl %s %s",
                        cli->command->name, cli->command->arguments);
        return check_early_options(cli, err);
}

/* "predict, evaluate: ...": whether a line of a help text begins with names of commands; *ret_ours: with this one, too. */
static bool begins_section(const char *line, const char *command, bool *ret_ours)
{
        bool ours = false;
        for (const char *at = line;; at += 2) {
                size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz");
                char name[16];
                if (!n || n >= sizeof name)
                        return false;
                snprintf(name, sizeof name, "%.*s", (int)n, at);
                if (!mfl_cli_command_find(name))
                        return false;
                ours = ours || !strcmp(name, command);
                at += n;
                if (!strncmp(at, ": ", 2)) {
                        *ret_ours = ours;
                        return true;
                }
                if (strncmp(at, ", ", 2) != 0)
                        return false;
        }
}

const char *mfl_cli_option_help(
        const struct mfl_cli_option *o, const char *command, char *buf, size_t buf_bytes)
{
        bool has_own = false, ours;
        size_t n = 0;
        for (const char *line = o->help; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
                has_own = has_own || (begins_section(line, command, &ours) && ours);
        bool taken = !has_own;
        for (const char *line = o->help, *next; line; line = *next ? next + 1 : NULL) {
                next = line + strcspn(line, "\n");
                bool begins = begins_section(line, command, &ours);
                taken = begins ? ours : taken;
                const char *text = begins ? strstr(line, ": ") + 2 : line;
                if (taken && n < buf_bytes)
                        n += (size_t)snprintf(
                                buf + n, buf_bytes - n, "%s%.*s", n ? "\n" : "", (int)(next - text), text);
        }
        mfl_assert(n && n < buf_bytes);
        return buf;
}

void mfl_cli_print_options(FILE *out, const char *names, const char *command)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(options); i++) {
                const struct mfl_cli_option *o = &options[i];
                char left[64];
                if (!mfl_cli_name_in(names, o->name))
                        continue;
                int n = o->letter ? snprintf(left, sizeof left, "-%c, --%s", o->letter, o->name)
                                  : snprintf(left, sizeof left, "--%s", o->name);
                if (o->value)
                        snprintf(left + n, sizeof left - (size_t)n, " %s", o->value);
                fprintf(out, "  %-24s", left);
                if (strlen(left) > 23)
                        fprintf(out, "\n%26s", "");
                char help[MFL_CLI_HELP_BYTES];
                for (const char *c = mfl_cli_option_help(o, command, help, sizeof help); *c; c++)
                        *c == '\n' ? fprintf(out, "\n%26s", "") : fputc(*c, out);
                fputc('\n', out);
        }
}
