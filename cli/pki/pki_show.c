/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `mfl pki`: tables and lines for people, JSON for scripts. */
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/base/json.h"
#include "cli/pki/pki.h"
#include "cli/base/table.h"
#include "common/base/fs.h"

#define TEXT_BYTES_MAX (64u << 20)

/* Whole days left; negative: expired that many days ago. */
static int64_t days_left(int64_t end, int64_t now)
{
        int64_t s = end - now;
        return s >= 0 ? s / MFL_PKI_DAY_S : -((-s + MFL_PKI_DAY_S - 1) / MFL_PKI_DAY_S);
}

static const char *state_of(const struct mfl_pki_entry *e, int64_t now)
{
        return e->state != MFL_PKI_REVOKED && e->not_after <= now ? "expired" : mfl_pki_state_names[e->state];
}

static bool ends_soon(const struct mfl_pki_entry *e, int64_t now)
{
        return e->state == MFL_PKI_VALID && e->not_after > now &&
               days_left(e->not_after, now) < MFL_PKI_SOON_DAYS;
}

static const char *date_text(int64_t unix_s, char buf[32])
{
        struct tm tm;
        time_t t = (time_t)unix_s;
        if (!gmtime_r(&t, &tm) || !strftime(buf, 32, "%Y-%m-%d", &tm))
                mfl_strcpy(buf, 32, "?");
        return buf;
}

static json_t *entry_json(const struct mfl_pki_entry *e, int64_t now)
{
        const char *names[MFL_PKI_ROLES_MAX];
        json_t *roles = json_array(), *hosts = json_array();
        int n = mfl_pki_role_names(e->roles, names);
        for (int i = 0; i < n; i++)
                json_array_append_new(roles, json_string(names[i]));
        for (int i = 0; i < e->n_hosts; i++)
                json_array_append_new(hosts, json_string(e->hosts[i]));
        return json_pack("{ss ss* so so ss ss sb sI sI sI so}", "name", e->name, "site",
                *e->site ? e->site : NULL, "roles", roles, "hosts", hosts, "serial", e->serial, "state",
                state_of(e, now), "request", e->request, "not_before_ms", (json_int_t)e->not_before * 1000,
                "not_after_ms", (json_int_t)e->not_after * 1000, "days_left",
                (json_int_t)days_left(e->not_after, now), "revoked_ms",
                e->state == MFL_PKI_REVOKED ? json_integer(e->revoked * 1000) : json_null());
}

/* ---- init ---- */

int mfl_pki_print_created(struct mfl_cli *cli, const struct mfl_pki *pki, struct mfl_error *err)
{
        int64_t end = mfl_pki_ca_not_after(pki->ca);
        char date[32];
        if (cli->json)
                return mfl_json_print(stdout,
                        json_pack("{ss ss sI}", "dir", pki->dir, "ca", pki->index.ca, "not_after_ms",
                                (json_int_t)end * 1000),
                        err);
        printf("A new CA, '%s', valid until %s, in %s\n"
               "  ca.pem   goes to every machine\n"
               "  ca.key   stays here: its holder can make certificates; keep an offline copy\n"
               "  crl.pem  goes to the server, again after every 'mfl pki revoke'\n"
               "Next: mfl pki issue server --host NAME-OR-ADDRESS-OF-THE-SERVER\n",
                pki->index.ca, date_text(end, date), pki->dir);
        return 0;
}

/* ---- issue, renew ---- */

static void print_yaml(const char *file, const char *dir, const char *crl)
{
        printf("\nFor %s:\n"
               "  tls_ca: \"%s/ca.pem\"\n"
               "  tls_cert: \"%s/cert.pem\"\n"
               "  tls_key: \"%s/key.pem\"\n",
                file, dir, dir, dir);
        if (crl)
                printf("  tls_crl: \"%s/crl.pem\"\n", crl);
}

static void print_lines(const struct mfl_pki *pki, const struct mfl_pki_issued *issued)
{
        const struct mfl_pki_entry *e = issued->entry;
        const char *dir = issued->dir;
        if (e->roles & MFL_PKI_SERVER)
                print_yaml("server.yaml", dir, issued->crl ? dir : pki->dir);
        if (e->roles & MFL_PKI_DAEMON) {
                print_yaml("client.yaml", dir, NULL);
                printf("  name: %s\n", e->name);
                if (*e->site)
                        printf("  site: %s\n", e->site);
        }
        if (e->roles & (MFL_PKI_OPERATOR | MFL_PKI_VIEWER | MFL_PKI_ADMIN))
                printf("\nFor the environment of mfl:\n"
                       "  export MFL_TLS_CA='%s/ca.pem'\n"
                       "  export MFL_TLS_CERT='%s/cert.pem'\n"
                       "  export MFL_TLS_KEY='%s/key.pem'\n",
                        dir, dir, dir);
        if (e->roles & MFL_PKI_SERVE)
                printf("\nFor serve.yaml:\n"
                       "  server_ca: \"%s/ca.pem\"\n"
                       "  server_cert: \"%s/cert.pem\"\n"
                       "  server_key: \"%s/key.pem\"\n",
                        dir, dir, dir);
        if (!issued->key)
                puts("\nThe key stayed where the request was made: put cert.pem and ca.pem next to it, and "
                     "give its name in place of key.pem.");
}

int mfl_pki_print_issued(struct mfl_cli *cli, const struct mfl_pki *pki, const struct mfl_pki_issued *issued,
        struct mfl_error *err)
{
        const struct mfl_pki_entry *e = issued->entry;
        char roles[64], date[32];
        if (cli->json)
                return mfl_json_print(stdout,
                        json_pack("{so ss sb sb ss*}", "certificate", entry_json(e, pki->now), "dir",
                                issued->dir, "key", issued->key, "replaced", issued->replaced, "old_serial",
                                *issued->old_serial ? issued->old_serial : NULL),
                        err);
        printf("%s (%s): serial %s, valid until %s%s\n", e->name,
                mfl_pki_roles_text(e->roles, roles, sizeof roles), e->serial, date_text(e->not_after, date),
                issued->shortened ? ", when the CA's own certificate expires" : "");
        if (issued->replaced)
                printf("The files of the old certificate in %s/issued/%s were replaced.\n", pki->dir,
                        e->name);
        if (*issued->old_serial) {
                const struct mfl_pki_entry *old = mfl_pki_index_find_serial(&pki->index, issued->old_serial);
                bool revoked = old && old->state == MFL_PKI_REVOKED;
                printf("The old certificate, serial %s, %s.\n", issued->old_serial,
                        revoked ? "is revoked; copy crl.pem to the server and reload it"
                                : "stays valid until it expires; 'mfl pki revoke' accepts its serial number");
        }
        printf("%s: cert.pem ca.pem%s%s\n", issued->dir, issued->key ? " key.pem" : "",
                issued->crl ? " crl.pem" : "");
        print_lines(pki, issued);
        return 0;
}

/* ---- revoke, crl ---- */

int mfl_pki_print_revoked(
        struct mfl_cli *cli, const struct mfl_pki *pki, const char *name, int n, struct mfl_error *err)
{
        int64_t next = pki->now + (int64_t)pki->index.crl_days * MFL_PKI_DAY_S;
        char date[32];
        MFL_CLEANUP_FREE char *crl = mfl_asprintf("%s/crl.pem", pki->dir);
        if (!crl)
                return mfl_fail_memory(err, 0, "a file name");
        if (cli->json)
                return mfl_json_print(stdout,
                        json_pack("{ss* si ss sI sI}", "name", name, "revoked", n, "crl", crl, "number",
                                (json_int_t)pki->index.crl_number, "next_update_ms", (json_int_t)next * 1000),
                        err);
        if (name)
                printf("%s: %d certificate%s revoked.\n", name, n, n == 1 ? "" : "s");
        printf("%s is new: number %llu, valid until %s.\n"
               "Copy it to the server (tls_crl in server.yaml), then: systemctl reload mfl-server\n",
                crl, (unsigned long long)pki->index.crl_number, date_text(next, date));
        return 0;
}

/* ---- export ---- */

int mfl_pki_print_exported(const char *name, const char *path, bool key, struct mfl_error *err)
{
        return mfl_json_print(stdout, json_pack("{ss ss sb}", "name", name, "file", path, "key", key), err);
}

/* ---- show ---- */

struct ends {
        int64_t ca, crl; /* Unix seconds */
};

static int read_ends(const struct mfl_pki *pki, struct ends *ret_ends, struct mfl_error *err)
{
        struct ends ends;
        size_t bytes;
        MFL_CLEANUP_FREE char *text = NULL;
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/crl.pem", pki->dir);
        int r = path ? mfl_fs_read(path, TEXT_BYTES_MAX, &text, &bytes, err)
                     : mfl_fail_memory(err, 0, "a file name");
        if (!r)
                r = mfl_pki_crl_next_update(text, "crl.pem", &ends.crl, err);
        if (!r)
                r = mfl_pki_cert_not_after(pki->ca_pem, "ca.pem", &ends.ca, err);
        if (!r)
                *ret_ends = ends;
        return r;
}

static int print_all_json(
        const struct mfl_pki *pki, const char *only_name, const struct ends *ends, struct mfl_error *err)
{
        json_t *list = json_array();
        for (size_t i = 0; i < pki->index.n; i++)
                if (!only_name || !strcmp(pki->index.entry[i].name, only_name))
                        json_array_append_new(list, entry_json(&pki->index.entry[i], pki->now));
        return mfl_json_print(stdout,
                json_pack("{ss s{ss sI sI} s{sI sI sI} so}", "dir", pki->dir, "ca", "name", pki->index.ca,
                        "not_after_ms", (json_int_t)ends->ca * 1000, "days_left",
                        (json_int_t)days_left(ends->ca, pki->now), "crl", "number",
                        (json_int_t)pki->index.crl_number, "next_update_ms", (json_int_t)ends->crl * 1000,
                        "days_left", (json_int_t)days_left(ends->crl, pki->now), "certificates", list),
                err);
}

static void add_row(struct mfl_table *table, const struct mfl_pki_entry *e, int64_t now)
{
        char roles[64], date[32], days[32];
        const char *mark = ends_soon(e, now) ? "  expires soon: mfl pki renew" : "";
        MFL_CLEANUP_FREE char *state = mfl_asprintf("%s%s", state_of(e, now), mark);
        snprintf(days, sizeof days, "%lld%s", (long long)days_left(e->not_after, now), *mark ? " !" : "  ");
        const char *cells[] = {e->name, mfl_pki_roles_text(e->roles, roles, sizeof roles), state,
                date_text(e->not_after, date), days, e->serial};
        mfl_table_add(table, cells);
        for (int i = 0; i < e->n_hosts; i++)
                mfl_table_remark(table, "host %s", e->hosts[i]);
}

static const char *warning(int64_t end, int64_t now, const char *over, const char *soon)
{
        return end <= now ? over : days_left(end, now) < MFL_PKI_SOON_DAYS ? soon : "";
}

static void print_ends(const struct mfl_pki *pki, const struct ends *ends)
{
        char date[32];
        printf("%s in %s, until %s (%lld days)%s\n", pki->index.ca, pki->dir, date_text(ends->ca, date),
                (long long)days_left(ends->ca, pki->now),
                warning(ends->ca, pki->now, "  ! HAS EXPIRED", "  ! expires soon: make a new CA"));
        printf("revocation list number %llu, until %s (%lld days)%s\n\n",
                (unsigned long long)pki->index.crl_number, date_text(ends->crl, date),
                (long long)days_left(ends->crl, pki->now),
                warning(ends->crl, pki->now, "  ! HAS EXPIRED: mfl pki crl",
                        "  ! expires soon: mfl pki crl"));
}

static int columns_of_stdout(const struct mfl_cli *cli)
{
        struct winsize size;
        return cli->terminal && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) ? size.ws_col : 0;
}

static int print_table(
        struct mfl_cli *cli, const struct mfl_pki *pki, const char *only_name, struct mfl_error *err)
{
        static const struct mfl_table_column columns[] = {{"NAME", false, 0}, {"ROLES", false, 0},
                {"STATE", false, 0}, {"UNTIL", false, 1}, {"DAYS", true, 0}, {"SERIAL", false, 2}};
        struct mfl_table table = {.columns = columns, .n_columns = MFL_ARRAY_SIZE(columns)};
        for (size_t i = 0; i < pki->index.n; i++)
                if (!only_name || !strcmp(pki->index.entry[i].name, only_name))
                        add_row(&table, &pki->index.entry[i], pki->now);
        MFL_CLEANUP_FREE char *text = mfl_table_render(&table, columns_of_stdout(cli));
        size_t n = table.n_rows;
        mfl_table_deinit(&table);
        if (!text)
                return mfl_fail_memory(err, 0, "a table");
        fputs(n ? text : "No certificate was issued yet.\n", stdout);
        return 0;
}

int mfl_pki_print_all(
        struct mfl_cli *cli, const struct mfl_pki *pki, const char *only_name, struct mfl_error *err)
{
        struct ends ends;
        if (only_name && !mfl_pki_index_find(&pki->index, only_name))
                return mfl_fail(err, MFL_NOT_FOUND, "there is no certificate for '%.63s'", only_name);
        int r = read_ends(pki, &ends, err);
        if (r)
                return r;
        if (cli->json)
                return print_all_json(pki, only_name, &ends, err);
        if (!only_name)
                print_ends(pki, &ends);
        return print_table(cli, pki, only_name, err);
}
