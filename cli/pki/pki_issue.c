/* SPDX-License-Identifier: Apache-2.0 */
/* How `mfl pki issue`, `renew` and `revoke` change the directory and its index.
 *
 * Happy path: checks -> public key (new, from a request, or from the old certificate) -> certificate -> index
 * in memory -> plan of files -> commit. Failures: a name that is taken or unknown; a copy whose files exist
 * already; a bad request; an expired CA; the disk. Nothing is written before the commit.
 */
#include <limits.h>
#include <unistd.h>

#include "cli/pki/pki.h"
#include "common/base/fs.h"

#define CSR_BYTES_MAX 65536
#define TEXT_BYTES_MAX (1u << 20)

/* A certificate before its files are written. */
struct draft {
        struct mfl_pki_entry entry;
        struct mfl_pki_public *public;
        char *cert, *key; /* PEM; key NULL: unchanged, or not here */
        char *old_key;    /* the kept key */
};

static void draft_deinit(struct draft *d)
{
        mfl_pki_public_free(d->public);
        free(d->cert);
        mfl_pki_wipe(d->key);
        mfl_pki_wipe(d->old_key);
}

/* ---- keys ---- */

static int key_of_csr(const char *path, struct mfl_pki_public **ret_key, struct mfl_error *err)
{
        char *pem;
        size_t bytes;
        int r = mfl_fs_read(path, CSR_BYTES_MAX, &pem, &bytes, err);
        if (r)
                return r;
        r = mfl_pki_public_of_csr(pem, path, ret_key, err);
        free(pem);
        return r;
}

static int new_or_csr_key(const struct mfl_pki_request *request, struct draft *d, struct mfl_error *err)
{
        d->entry.request = request->csr != NULL;
        return request->csr ? key_of_csr(request->csr, &d->public, err)
                            : mfl_pki_key_make(&d->key, &d->public, err);
}

static int read_issued(const struct mfl_pki *pki, const char *name, const char *file, char **ret_path,
        char **ret_text, struct mfl_error *err)
{
        size_t bytes;
        char *path = mfl_asprintf("%s/issued/%s/%s", pki->dir, name, file);
        if (!path)
                return mfl_fail_memory(err, 0, "a file name");
        int r = mfl_fs_read(path, TEXT_BYTES_MAX, ret_text, &bytes, err);
        if (r)
                free(path);
        else
                *ret_path = path;
        return r;
}

/* The public key of the certificate to renew. The private key beside it must belong to it. */
static int same_key(
        const struct mfl_pki *pki, const struct mfl_pki_entry *old, struct draft *d, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *cert_path = NULL, *key_path = NULL, *cert = NULL;
        int r = read_issued(pki, old->name, "cert.pem", &cert_path, &cert, err);
        if (!r)
                r = mfl_pki_public_of_cert(pki->ca, cert, old->serial, cert_path, &d->public, err);
        d->entry.request = old->request;
        if (r || old->request)
                return r;
        r = read_issued(pki, old->name, "key.pem", &key_path, &d->old_key, err);
        return r ? r : mfl_pki_key_belongs(d->old_key, d->public, key_path, err);
}

/* ---- certificates ---- */

static int sign(struct mfl_pki *pki, const struct mfl_pki_request *request, struct draft *d,
        bool *ret_shortened, struct mfl_error *err)
{
        const char *roles[MFL_PKI_ROLES_MAX];
        struct mfl_pki_entry *e = &d->entry;
        int64_t ca_end = mfl_pki_ca_not_after(pki->ca);
        if (ca_end <= pki->now)
                return mfl_fail(err, MFL_INVALID,
                        "the CA's own certificate has expired: make a new CA in another directory");
        e->not_before = pki->now - MFL_PKI_EARLY_S;
        e->not_after = pki->now + (int64_t)request->days * MFL_PKI_DAY_S;
        *ret_shortened = e->not_after > ca_end;
        e->not_after = MFL_MIN(e->not_after, ca_end);
        bool server = e->roles & MFL_PKI_SERVER, relay = e->roles & MFL_PKI_RELAY;
        struct mfl_pki_leaf leaf = {.name = e->name,
                .site = e->site,
                .roles = roles,
                .n_roles = server ? 0 : mfl_pki_role_names(e->roles, roles),
                .hosts = (const char *const *)e->hosts,
                .n_hosts = e->n_hosts,
                .server = server || relay,
                .client = !server,
                .not_after = e->not_after};
        return mfl_pki_sign(pki->ca, &leaf, d->public, pki->now, &d->cert, e->serial, err);
}

/* The absolute path of a folder for a copy. The folder need not exist; its parent must. */
static int copy_dir(const char *out, char **ret_dir, struct mfl_error *err)
{
        char cwd[PATH_MAX];
        char *dir = NULL;
        if (*out == '/')
                dir = mfl_strdup(out);
        else if (getcwd(cwd, sizeof cwd))
                dir = mfl_asprintf("%s/%s", cwd, out);
        else
                return mfl_fail_errno(err, "the working directory");
        if (!dir)
                return mfl_fail_memory(err, strlen(out), "a file name");
        for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/'; n--)
                dir[n - 1] = '\0';
        *ret_dir = dir;
        return 0;
}

static int check_copy(const char *dir, struct mfl_error *err)
{
        static const char *const names[] = {"cert.pem", "key.pem", "ca.pem", "crl.pem"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(names); i++) {
                MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s", dir, names[i]);
                if (!path)
                        return mfl_fail_memory(err, strlen(dir), "a file name");
                if (!access(path, F_OK))
                        return mfl_fail(err, MFL_EXISTS, "%s already exists; nothing was changed", path);
        }
        return 0;
}

static void plan_files(struct mfl_pki *pki, struct mfl_pki_txn *txn, const struct draft *d, const char *copy)
{
        const char *name = d->entry.name;
        mfl_pki_txn_dir(txn, 0700, "%s/issued/%s", pki->dir, name);
        mfl_pki_txn_file(txn, d->cert, 0644, "%s/issued/%s/cert.pem", pki->dir, name);
        mfl_pki_txn_file(txn, pki->ca_pem, 0644, "%s/issued/%s/ca.pem", pki->dir, name);
        if (d->key)
                mfl_pki_txn_file(txn, d->key, 0600, "%s/issued/%s/key.pem", pki->dir, name);
        else if (!d->old_key)
                mfl_pki_txn_remove(txn, "%s/issued/%s/key.pem", pki->dir, name);
        if (!copy)
                return;
        const char *key = d->key ? d->key : d->old_key;
        mfl_pki_txn_dir(txn, 0700, "%s", copy);
        mfl_pki_txn_file(txn, d->cert, 0644, "%s/cert.pem", copy);
        mfl_pki_txn_file(txn, pki->ca_pem, 0644, "%s/ca.pem", copy);
        if (key)
                mfl_pki_txn_file(txn, key, 0600, "%s/key.pem", copy);
}

/* Adds the draft to the index and writes both to the disk. */
static int store(struct mfl_pki *pki, const struct mfl_pki_request *request, struct draft *d,
        struct mfl_pki_issued *ret, struct mfl_error *err)
{
        struct mfl_pki_txn txn = {.dir = pki->dir};
        MFL_CLEANUP_FREE char *copy = NULL, *crl_copy = NULL;
        int r = request->out ? copy_dir(request->out, &copy, err) : 0;
        if (!r && copy)
                r = check_copy(copy, err);
        if (!r)
                r = mfl_pki_index_add(&pki->index, &d->entry, err);
        if (r)
                return r;
        if (copy && d->entry.roles & MFL_PKI_LISTENS)
                crl_copy = mfl_asprintf("%s/crl.pem", copy);
        MFL_CLEANUP_FREE char *dir =
                copy ? mfl_strdup(copy) : mfl_asprintf("%s/issued/%s", pki->dir, d->entry.name);
        if (!dir || (copy && d->entry.roles & MFL_PKI_LISTENS && !crl_copy))
                return mfl_fail_memory(err, 0, "a file name");
        plan_files(pki, &txn, d, copy);
        r = mfl_pki_commit(pki, &txn, request->crl_days, crl_copy, err);
        if (r)
                return r;
        ret->dir = dir;
        dir = NULL;
        ret->entry = &pki->index.entry[pki->index.n - 1];
        ret->key = d->key || d->old_key;
        ret->crl = crl_copy != NULL;
        return 0;
}

/* ---- commands ---- */

static void take_hosts(struct mfl_pki_entry *e, const char *const *hosts, int n)
{
        for (e->n_hosts = 0; e->n_hosts < n; e->n_hosts++)
                e->hosts[e->n_hosts] = (char *)(uintptr_t)hosts[e->n_hosts];
}

/* A name has at most one valid certificate. */
static int check_free(struct mfl_pki *pki, const char *name, bool *ret_replaced, struct mfl_error *err)
{
        const struct mfl_pki_index *index = &pki->index;
        *ret_replaced = mfl_pki_index_find(index, name) != NULL;
        for (size_t i = 0; i < index->n; i++) {
                const struct mfl_pki_entry *e = &index->entry[i];
                if (!strcmp(e->name, name) && e->state != MFL_PKI_REVOKED && e->not_after > pki->now)
                        return mfl_fail(err, MFL_EXISTS,
                                "'%s' already has a certificate (serial %s): renew it ('mfl pki renew %s') "
                                "or revoke it first",
                                name, e->serial, name);
        }
        return 0;
}

int mfl_pki_issue(struct mfl_pki *pki, const struct mfl_pki_request *request,
        struct mfl_pki_issued *ret_issued, struct mfl_error *err)
{
        struct mfl_pki_issued ret = {.entry = NULL};
        struct draft d = {.entry = {.roles = request->roles}};
        mfl_assert(mfl_strcpy(d.entry.name, sizeof d.entry.name, request->name));
        mfl_strcpy(d.entry.site, sizeof d.entry.site, request->site ? request->site : "");
        take_hosts(&d.entry, request->hosts, request->n_hosts);
        int r = check_free(pki, request->name, &ret.replaced, err);
        if (!r)
                r = new_or_csr_key(request, &d, err);
        if (!r)
                r = sign(pki, request, &d, &ret.shortened, err);
        if (!r)
                r = store(pki, request, &d, &ret, err);
        draft_deinit(&d);
        if (!r)
                *ret_issued = ret;
        return r;
}

static int find_name(
        const struct mfl_pki *pki, const char *name, struct mfl_pki_entry **ret_entry, struct mfl_error *err)
{
        struct mfl_pki_entry *e = mfl_pki_index_find(&pki->index, name);
        if (!e)
                return mfl_fail(err, MFL_NOT_FOUND,
                        "there is no certificate for '%.63s'; 'mfl pki show' lists them", name);
        *ret_entry = e;
        return 0;
}

static int renew_draft(struct mfl_pki *pki, const struct mfl_pki_request *request,
        const struct mfl_pki_entry *old, struct draft *d, struct mfl_error *err)
{
        if (old->state == MFL_PKI_REVOKED)
                return mfl_fail(err, MFL_CLI_CONFLICT,
                        "the certificate of '%s' is revoked: issue a new one instead of renewing it",
                        old->name);
        if (request->n_hosts && !(old->roles & MFL_PKI_LISTENS))
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--host goes only with a server's certificate, not for '%s'", old->name);
        if (request->site && !(old->roles & MFL_PKI_DAEMON))
                return mfl_fail(err, MFL_CLI_USAGE,
                        "--site goes only with a daemon's certificate, not for '%s'", old->name);
        if (request->new_key && old->request && !request->csr)
                return mfl_fail(err, MFL_CLI_USAGE,
                        "the key of '%s' was made elsewhere: make a new request there, and pass it with "
                        "--csr",
                        old->name);
        d->entry.roles = old->roles;
        memcpy(d->entry.name, old->name, sizeof d->entry.name);
        mfl_strcpy(d->entry.site, sizeof d->entry.site, request->site ? request->site : old->site);
        if (request->n_hosts)
                take_hosts(&d->entry, request->hosts, request->n_hosts);
        else
                take_hosts(&d->entry, (const char *const *)old->hosts, old->n_hosts);
        return request->new_key || request->csr ? new_or_csr_key(request, d, err)
                                                : same_key(pki, old, d, err);
}

int mfl_pki_renew(struct mfl_pki *pki, const struct mfl_pki_request *request,
        struct mfl_pki_issued *ret_issued, struct mfl_error *err)
{
        struct mfl_pki_issued ret = {.replaced = true};
        struct draft d = {.public = NULL};
        struct mfl_pki_entry *old = NULL;
        int r = find_name(pki, request->name, &old, err);
        if (r)
                return r;
        r = renew_draft(pki, request, old, &d, err);
        if (!r)
                r = sign(pki, request, &d, &ret.shortened, err);
        if (!r) {
                /* Only in memory until the commit; after a failure, the index is not used again. */
                mfl_strcpy(ret.old_serial, sizeof ret.old_serial, old->serial);
                old->state = request->revoke_old ? MFL_PKI_REVOKED : MFL_PKI_RENEWED;
                old->revoked = request->revoke_old ? pki->now : 0;
                r = store(pki, request, &d, &ret, err);
        }
        draft_deinit(&d);
        if (!r)
                *ret_issued = ret;
        return r;
}

/* ret_n: the number that were not revoked before. */
static int mark_revoked(
        struct mfl_pki *pki, const char *what, const char **ret_name, int *ret_n, struct mfl_error *err)
{
        struct mfl_pki_index *index = &pki->index;
        struct mfl_pki_entry *named = mfl_pki_index_find(index, what);
        struct mfl_pki_entry *one = named ? NULL : mfl_pki_index_find_serial(index, what);
        int n = 0;
        if (!named && !one)
                return mfl_fail(err, MFL_NOT_FOUND,
                        "there is no certificate with that name or serial number: '%.63s'; 'mfl pki show' "
                        "lists "
                        "them",
                        what);
        for (size_t i = 0; i < index->n; i++) {
                struct mfl_pki_entry *e = &index->entry[i];
                if ((one ? e != one : strcmp(e->name, what)) || e->state == MFL_PKI_REVOKED)
                        continue;
                e->state = MFL_PKI_REVOKED;
                e->revoked = pki->now;
                n++;
        }
        if (!n)
                return mfl_fail(
                        err, MFL_CLI_CONFLICT, "'%.63s' is already revoked; nothing was changed", what);
        *ret_name = one ? one->name : named->name;
        *ret_n = n;
        return 0;
}

int mfl_pki_revoke(struct mfl_pki *pki, const char *what, int64_t crl_days, char *ret_name, int *ret_n,
        struct mfl_error *err)
{
        struct mfl_pki_txn txn = {.dir = pki->dir};
        const char *name = NULL;
        int n = 0;
        int r = mark_revoked(pki, what, &name, &n, err);
        if (!r)
                r = mfl_pki_commit(pki, &txn, crl_days, NULL, err);
        if (r)
                return r;
        mfl_strcpy(ret_name, MFL_PKI_NAME_MAX + 1, name);
        *ret_n = n;
        return 0;
}
