/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl pki`: parses and runs its verbs. */
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/pki/pki.h"

/* The options that a verb may take; each verb lists its own. */
enum option {
        OPTION_DAYS = 1,
        OPTION_CRL_DAYS = 2,
        OPTION_HOST = 4,
        OPTION_ROLE = 8,
        OPTION_OUT = 16,
        OPTION_CSR = 32,
        OPTION_NEW_KEY = 64,
        OPTION_REVOKE_OLD = 128,
        OPTION_TAR = 256,
        OPTION_PASS = 512,
        OPTION_SITE = 1024,
};

struct verb {
        const char *name, *arguments;
        int n_min, n_max; /* after the verb */
        unsigned options;
        int (*run)(struct mfl_cli *cli, const char *dir, const char *pass, struct mfl_error *err);
};

static int fail_name(const char *name, struct mfl_error *err)
{
        return mfl_fail(err, MFL_CLI_USAGE, "'%.80s' is not a name: 1 to 63 of A-Z a-z 0-9 . _ -", name);
}

/* A CA's name may have blanks. */
static bool is_ca_name(const char *name)
{
        size_t n = strlen(name);
        for (size_t i = 0; i < n; i++)
                if (!(name[i] == ' ' && i && i + 1 < n) && !mfl_pki_name_valid((char[]){name[i], 'x', 0}))
                        return false;
        return n >= 1 && n <= MFL_PKI_NAME_MAX;
}

static int64_t now_unix(void)
{
        return (int64_t)time(NULL);
}

static int run_init(struct mfl_cli *cli, const char *dir, const char *pass, struct mfl_error *err)
{
        const struct mfl_cli_options *o = &cli->options;
        struct mfl_pki pki;
        char name[MFL_PKI_NAME_MAX + 1] = "mfl CA ";
        const char *given = cli->argument[1];
        int r = 0;
        if (given && !is_ca_name(given))
                return mfl_fail(err, MFL_CLI_USAGE,
                        "'%.80s' is not a name for a CA: 1 to 63 of A-Z a-z 0-9 . _ - and blanks", given);
        if (given)
                mfl_strcpy(name, sizeof name, given);
        else /* Two CAs need two names, so that one can follow the other. */
                r = mfl_pki_random_hex(4, name + strlen(name), err);
        if (!r)
                r = mfl_pki_create(&pki, dir, name, o->days > 0 ? (int)o->days : MFL_PKI_CA_DAYS,
                        o->crl_days > 0 ? (int)o->crl_days : MFL_PKI_CRL_DAYS, pass, now_unix(), err);
        if (r)
                return r;
        r = mfl_pki_print_created(cli, &pki, err);
        mfl_pki_close(&pki);
        return r;
}

/* ---- issue, renew ---- */

static int read_roles(struct mfl_cli *cli, unsigned *ret_roles, struct mfl_error *err)
{
        unsigned roles = mfl_pki_role_of(cli->argument[1]);
        if (!roles)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "'%.60s' is not a role: server, relay, daemon, operator, viewer, admin or serve",
                        cli->argument[1]);
        for (int i = 0; i < cli->options.n_role; i++) {
                unsigned role = mfl_pki_role_of(cli->options.role[i]);
                if (!role || role & MFL_PKI_LISTENS)
                        return mfl_fail(err, MFL_CLI_USAGE,
                                "--role: '%.60s' is not daemon, operator, viewer, admin or serve",
                                cli->options.role[i]);
                roles |= role;
        }
        if (roles & MFL_PKI_LISTENS && cli->options.n_role)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "a %s's certificate can't have other roles; issue a second certificate",
                        cli->argument[1]);
        *ret_roles = roles;
        return 0;
}

static int check_values(struct mfl_cli *cli, struct mfl_error *err)
{
        const char *site = cli->options.site;
        if (site && !mfl_pki_name_valid(site))
                return mfl_fail(
                        err, MFL_CLI_USAGE, "--site: '%.80s' is not 1 to 63 of A-Z a-z 0-9 . _ -", site);
        for (int i = 0; i < cli->options.n_host; i++)
                if (!mfl_pki_host_valid(cli->options.host[i]))
                        return mfl_fail(err, MFL_CLI_USAGE,
                                "--host: '%.100s' is neither a DNS name nor an IP address (no port, no "
                                "brackets)",
                                cli->options.host[i]);
        return 0;
}

static void read_request(struct mfl_cli *cli, struct mfl_pki_request *request)
{
        const struct mfl_cli_options *o = &cli->options;
        request->hosts = o->host;
        request->n_hosts = o->n_host;
        request->days = o->days > 0 ? (int)o->days : MFL_PKI_LEAF_DAYS;
        request->csr = o->csr;
        request->site = o->site;
        request->out = o->out;
        request->new_key = o->new_key;
        request->revoke_old = o->revoke_old;
        request->crl_days = o->crl_days;
}

static int read_issue(struct mfl_cli *cli, struct mfl_pki_request *request, struct mfl_error *err)
{
        int r = read_roles(cli, &request->roles, err);
        if (!r)
                r = check_values(cli, err);
        if (r)
                return r;
        read_request(cli, request);
        bool server = request->roles & MFL_PKI_LISTENS;
        request->name = cli->argument[2]                  ? cli->argument[2]
                        : request->roles & MFL_PKI_SERVER ? "server"
                                                          : NULL;
        if (!request->name)
                return mfl_fail(
                        err, MFL_CLI_USAGE, "the name is missing: mfl pki issue %s NAME", cli->argument[1]);
        if (!mfl_pki_name_valid(request->name))
                return fail_name(request->name, err);
        if (!strcmp(request->name, "local") || !strcmp(request->name, "anybody"))
                return mfl_fail(err, MFL_CLI_USAGE,
                        "servers use '%s' for clients without a certificate: choose another name",
                        request->name);
        if (server && !request->n_hosts)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "the certificate needs the host names and addresses of the %s: give --host NAME "
                        "for each",
                        cli->argument[1]);
        if (!server && request->n_hosts)
                return mfl_fail(
                        err, MFL_CLI_USAGE, "--host goes only with a server's or a relay's certificate");
        if (request->site && !(request->roles & (MFL_PKI_DAEMON | MFL_PKI_RELAY)))
                return mfl_fail(
                        err, MFL_CLI_USAGE, "--site goes only with a daemon's or a relay's certificate");
        return 0;
}

/* Opens the CA, issues or renews, and prints the result. */
static int issue_or_renew(struct mfl_cli *cli, const char *dir, const char *pass,
        const struct mfl_pki_request *request, bool renew, struct mfl_error *err)
{
        struct mfl_pki_issued issued = {.dir = NULL};
        struct mfl_pki pki;
        int r = mfl_pki_open(&pki, dir, now_unix(), err);
        if (r)
                return r;
        r = mfl_pki_unseal(&pki, pass, err);
        if (!r)
                r = renew ? mfl_pki_renew(&pki, request, &issued, err)
                          : mfl_pki_issue(&pki, request, &issued, err);
        if (!r)
                r = mfl_pki_print_issued(cli, &pki, &issued, err);
        free(issued.dir);
        mfl_pki_close(&pki);
        return r;
}

static int run_issue(struct mfl_cli *cli, const char *dir, const char *pass, struct mfl_error *err)
{
        struct mfl_pki_request request = {.name = NULL};
        int r = read_issue(cli, &request, err);
        return r ? r : issue_or_renew(cli, dir, pass, &request, false, err);
}

static int run_renew(struct mfl_cli *cli, const char *dir, const char *pass, struct mfl_error *err)
{
        struct mfl_pki_request request = {.name = cli->argument[1]};
        if (!mfl_pki_name_valid(request.name))
                return fail_name(request.name, err);
        int r = check_values(cli, err);
        read_request(cli, &request);
        return r ? r : issue_or_renew(cli, dir, pass, &request, true, err);
}

/* ---- the others ---- */

static int run_revoke(struct mfl_cli *cli, const char *dir, const char *pass, struct mfl_error *err)
{
        struct mfl_pki pki;
        char name[MFL_PKI_NAME_MAX + 1];
        int n;
        int r = mfl_pki_open(&pki, dir, now_unix(), err);
        if (r)
                return r;
        r = mfl_pki_unseal(&pki, pass, err);
        if (!r)
                r = mfl_pki_revoke(&pki, cli->argument[1], cli->options.crl_days, name, &n, err);
        if (!r)
                r = mfl_pki_print_revoked(cli, &pki, name, n, err);
        mfl_pki_close(&pki);
        return r;
}

static int run_crl(struct mfl_cli *cli, const char *dir, const char *pass, struct mfl_error *err)
{
        struct mfl_pki pki;
        int r = mfl_pki_open(&pki, dir, now_unix(), err);
        if (r)
                return r;
        struct mfl_pki_txn txn = {.dir = pki.dir};
        r = mfl_pki_unseal(&pki, pass, err);
        if (!r)
                r = mfl_pki_commit(&pki, &txn, cli->options.crl_days, NULL, err);
        if (!r)
                r = mfl_pki_print_revoked(cli, &pki, NULL, 0, err);
        mfl_pki_close(&pki);
        return r;
}

static int run_show(struct mfl_cli *cli, const char *dir, const char *pass, struct mfl_error *err)
{
        struct mfl_pki pki;
        int r = mfl_pki_open(&pki, dir, now_unix(), err);
        if (r)
                return r;
        r = mfl_pki_print_all(cli, &pki, cli->argument[1], err);
        mfl_pki_close(&pki);
        return r;
}

static int print_exported(const struct mfl_pki *pki, const char *name, const char *path, bool key)
{
        printf("%s: %s/ with cert.pem, ca.pem%s%s\n"
               "Unpack it there as the user that will read the files: tar xpf FILE.%s\n",
                path, name, key ? ", key.pem" : "",
                mfl_pki_index_find(&pki->index, name)->roles & MFL_PKI_LISTENS ? ", crl.pem" : "",
                key ? " Delete the archive afterwards: it contains the key." : "");
        return 0;
}

static int run_export(struct mfl_cli *cli, const char *dir, const char *pass, struct mfl_error *err)
{
        const char *name = cli->argument[1], *path = cli->options.tar;
        struct mfl_pki pki;
        bool key;
        if (!path)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "the archive is missing: --tar FILE, or --tar - for standard output");
        if (!strcmp(path, "-") && (isatty(STDOUT_FILENO) || cli->json))
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--tar -: the archive goes to standard output, so redirect that to a file or a pipe, "
                        "without --json");
        int r = mfl_pki_open(&pki, dir, now_unix(), err);
        if (r)
                return r;
        r = mfl_pki_export(&pki, name, path, &key, err);
        if (!r && cli->json)
                r = mfl_pki_print_exported(name, path, key, err);
        else if (!r && strcmp(path, "-"))
                r = print_exported(&pki, name, path, key);
        mfl_pki_close(&pki);
        return r;
}

static const struct verb verbs[] = {
        {"init", "[CA-NAME]", 0, 1, OPTION_DAYS | OPTION_CRL_DAYS | OPTION_PASS, run_init},
        {"issue", "server|relay|daemon|operator|viewer|admin|serve [NAME]", 1, 2,
                OPTION_DAYS | OPTION_CRL_DAYS | OPTION_HOST | OPTION_ROLE | OPTION_OUT | OPTION_CSR |
                        OPTION_SITE | OPTION_PASS,
                run_issue},
        {"renew", "NAME", 1, 1,
                OPTION_DAYS | OPTION_CRL_DAYS | OPTION_HOST | OPTION_OUT | OPTION_CSR | OPTION_NEW_KEY |
                        OPTION_REVOKE_OLD | OPTION_SITE | OPTION_PASS,
                run_renew},
        {"revoke", "NAME|SERIAL", 1, 1, OPTION_CRL_DAYS | OPTION_PASS, run_revoke},
        {"crl", "", 0, 0, OPTION_CRL_DAYS | OPTION_PASS, run_crl},
        {"show", "[NAME]", 0, 1, 0, run_show},
        {"export", "NAME --tar FILE", 1, 1, OPTION_TAR, run_export},
};

static int check_options(const struct mfl_cli *cli, const struct verb *verb, struct mfl_error *err)
{
        const struct mfl_cli_options *o = &cli->options;
        const struct {
                const char *name;
                unsigned option;
                bool given;
        } all[] = {{"days", OPTION_DAYS, o->days >= 0}, {"crl-days", OPTION_CRL_DAYS, o->crl_days >= 0},
                {"host", OPTION_HOST, o->n_host > 0}, {"role", OPTION_ROLE, o->n_role > 0},
                {"out", OPTION_OUT, o->out}, {"csr", OPTION_CSR, o->csr},
                {"new-key", OPTION_NEW_KEY, o->new_key}, {"revoke-old", OPTION_REVOKE_OLD, o->revoke_old},
                {"tar", OPTION_TAR, o->tar}, {"site", OPTION_SITE, o->site},
                {"ca-pass-file", OPTION_PASS, o->ca_pass_file}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                if (all[i].given && !(verb->options & all[i].option))
                        return mfl_fail(err, MFL_CLI_USAGE, "mfl pki %s takes no --%s; see 'mfl pki --help'",
                                verb->name, all[i].name);
        return 0;
}

static int find_verb(const struct mfl_cli *cli, const struct verb **ret_verb, struct mfl_error *err)
{
        int n = 0;
        while (n + 1 < MFL_CLI_POSITIONAL_MAX && cli->argument[n + 1])
                n++;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(verbs); i++) {
                if (strcmp(verbs[i].name, cli->argument[0]))
                        continue;
                if (n < verbs[i].n_min || n > verbs[i].n_max)
                        return mfl_fail(err, MFL_CLI_USAGE, "usage: mfl pki %s %s", verbs[i].name,
                                verbs[i].arguments);
                *ret_verb = &verbs[i];
                return check_options(cli, &verbs[i], err);
        }
        return mfl_fail(err, MFL_CLI_USAGE,
                "mfl pki knows no '%.60s': init, issue, renew, revoke, crl, show or export",
                cli->argument[0]);
}

int mfl_cmd_pki(struct mfl_cli *cli)
{
        const struct verb *verb = NULL;
        struct mfl_error err;
        char *pass = NULL;
        MFL_CLEANUP_FREE char *dir = NULL;
        /* Only the owner may read new files, unless a file sets other permissions. */
        umask(0077);
        int r = find_verb(cli, &verb, &err);
        if (!r && cli->options.dir)
                r = (dir = mfl_strdup(cli->options.dir)) ? 0 : mfl_fail_memory(&err, 0, "a file name");
        else if (!r)
                r = mfl_pki_default_dir(&dir, &err);
        if (!r && cli->options.ca_pass_file)
                r = mfl_pki_pass_read(cli->options.ca_pass_file, &pass, &err);
        if (!r)
                r = verb->run(cli, dir, pass, &err);
        mfl_pki_wipe(pass);
        return mfl_cli_report(cli, r, &err);
}
