/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the certificates that `mfl` presents and trusts. */
#include <unistd.h>

#include "cli/base/cli.h"

static const char *const files[3] = {"ca.pem", "cert.pem", "key.pem"};
static const char *const variables[3] = {"MFL_TLS_CA", "MFL_TLS_CERT", "MFL_TLS_KEY"};
static const char *const names[3] = {"--tls-ca", "--tls-cert", "--tls-key"};

/* False if there is no such file, or no home directory. */
static bool find_default(int i, char path[1024])
{
        const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
        int n;
        if (config && *config)
                n = snprintf(path, 1024, "%s/mfl/%s", config, files[i]);
        else if (home && *home)
                n = snprintf(path, 1024, "%s/.config/mfl/%s", home, files[i]);
        else
                return false;
        return n < 1024 && !access(path, F_OK);
}

int mfl_cli_tls_find(struct mfl_cli *cli, struct mfl_error *err)
{
        const struct mfl_cli_options *o = &cli->options;
        const char *given[3] = {o->tls_ca, o->tls_cert, o->tls_key};
        bool any = given[0] || given[1] || given[2];
        if (o->plain)
                return any ? mfl_fail(err, MFL_CLI_USAGE, "--plain can't be combined with certificates") : 0;
        for (int i = 0; i < 3; i++) {
                const char *value = getenv(variables[i]);
                if (!given[i] && value && *value)
                        given[i] = value;
                any |= given[i] != NULL;
        }
        for (int i = 0; i < 3; i++)
                if (!given[i] && find_default(i, cli->tls_paths[i]))
                        given[i] = cli->tls_paths[i];
        if (!any && (!given[0] || !given[1]))
                return 0;
        for (int i = 0; i < 3; i++)
                if (!given[i])
                        return mfl_fail(err, MFL_CLI_USAGE, "TLS needs %s, too (or $%s, or ~/.config/mfl/%s)",
                                names[i], variables[i], files[i]);
        cli->tls = (struct mfl_tls_files){.ca = given[0], .cert = given[1], .key = given[2]};
        return 0;
}
