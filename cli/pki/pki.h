/* SPDX-License-Identifier: Apache-2.0 */
/* A private CA in a directory, for the commands `mfl pki ...`. Offline: it never asks a server.
 *
 *      DIR/                      0700
 *        ca.pem  ca.key          the CA's certificate, and its key (0600; encrypted if there is a pass phrase)
 *        crl.pem                 the revocation list; every command that changes something makes a new one
 *        index.json              the certificates that were issued
 *        issued/NAME/            0700: cert.pem, key.pem (0600; absent if the key was made elsewhere), ca.pem
 *        lock                    held by the running command
 *        undo, undo.new, done    exist only during a change (pki_txn.h)
 *
 * Errors: MFL_INVALID, MFL_NOT_FOUND, MFL_EXISTS (a conflict), MFL_CLI_USAGE, with a line for people;
 * negative: the disk or memory. A failure leaves the directory as it was.
 */
#ifndef MFL_CLI_PKI_PKI_H
#define MFL_CLI_PKI_PKI_H

#include "cli/base/cli.h"
#include "cli/pki/pki_index.h"
#include "cli/pki/pki_txn.h"
#include "cli/pki/pki_x509.h"

#define MFL_PKI_DAY_S 86400
#define MFL_PKI_CA_DAYS 3650
#define MFL_PKI_LEAF_DAYS 365
#define MFL_PKI_CRL_DAYS 365
#define MFL_PKI_SOON_DAYS 30 /* certificates that expire sooner are marked */

struct mfl_pki {
        char *dir; /* absolute */
        int lock;  /* -1: not open */
        int64_t now;
        bool has_ca; /* create: the directory already had a CA */
        char *ca_pem;
        struct mfl_pki_ca *ca; /* NULL before mfl_pki_unseal */
        struct mfl_pki_index index;
};

/* ---- pki_dir.c ---- */

/* $XDG_CONFIG_HOME/mfl/pki or ~/.config/mfl/pki. Heap. */
int mfl_pki_default_dir(char **ret_dir, struct mfl_error *err);
/* Makes the directory and a CA in it, and opens pki. MFL_EXISTS if the directory is not empty. */
int mfl_pki_create(struct mfl_pki *pki, const char *dir, const char *ca_name, int days, int crl_days,
        const char *pass, int64_t now, struct mfl_error *err);
/* Takes the lock (waits for up to 10 s), undoes what a killed command left, and reads the index.
 * MFL_NOT_FOUND if there is no CA. */
int mfl_pki_open(struct mfl_pki *pki, const char *dir, int64_t now, struct mfl_error *err);
/* Reads the CA's key. pass: NULL if it has none. */
int mfl_pki_unseal(struct mfl_pki *pki, const char *pass, struct mfl_error *err);
void mfl_pki_close(struct mfl_pki *pki);
/* Adds a new revocation list and the index to the plan, and carries the plan out. crl_days -1: unchanged.
 * crl_copy: the path of a copy of the list; NULL: none. */
int mfl_pki_commit(struct mfl_pki *pki, struct mfl_pki_txn *txn, int64_t crl_days, const char *crl_copy,
        struct mfl_error *err);
/* Reads the first line of a file that others may not read. The caller wipes ret_pass. */
int mfl_pki_pass_read(const char *path, char **ret_pass, struct mfl_error *err);

/* ---- pki_issue.c: what the commands do ---- */

struct mfl_pki_request {
        const char *name;
        unsigned roles;           /* renew: 0 keeps the old ones */
        const char *site;         /* NULL: none; renew: keeps the old one */
        const char *const *hosts; /* renew: none keeps the old ones */
        int n_hosts;
        int days;
        const char *csr;          /* a file; NULL: make the key here */
        const char *out;          /* a folder for a copy, absolute or not; NULL: none */
        bool new_key, revoke_old; /* for renew only */
        int64_t crl_days;         /* -1: unchanged */
};
struct mfl_pki_issued {
        struct mfl_pki_entry *entry; /* in the index */
        char *dir;                   /* the folder of the files; of the copy, if there is one */
        bool key;                    /* the folder has a key.pem */
        bool crl;                    /* the folder has a crl.pem (a copy of a server's files) */
        bool replaced;               /* the files of an older certificate were replaced */
        bool shortened;              /* the certificate ends with the CA's own */
        char old_serial[MFL_PKI_SERIAL_BYTES];
};
int mfl_pki_issue(struct mfl_pki *pki, const struct mfl_pki_request *request,
        struct mfl_pki_issued *ret_issued, struct mfl_error *err);
int mfl_pki_renew(struct mfl_pki *pki, const struct mfl_pki_request *request,
        struct mfl_pki_issued *ret_issued, struct mfl_error *err);
/* Revokes every certificate of a name, or the one with that serial number. ret_name has room for
 * MFL_PKI_NAME_MAX + 1. */
int mfl_pki_revoke(struct mfl_pki *pki, const char *what, int64_t crl_days, char *ret_name, int *ret_n,
        struct mfl_error *err);

/* ---- pki_tar.c ---- */

/* Writes issued/NAME (and crl.pem for a server) as a tar archive (ustar); path "-" is standard output.
 * MFL_EXISTS if the file exists. ret_key: the archive contains a key.pem. */
int mfl_pki_export(
        struct mfl_pki *pki, const char *name, const char *path, bool *ret_key, struct mfl_error *err);

/* ---- pki_show.c: what people and scripts see ---- */

int mfl_pki_print_exported(const char *name, const char *path, bool key, struct mfl_error *err);
int mfl_pki_print_created(struct mfl_cli *cli, const struct mfl_pki *pki, struct mfl_error *err);
int mfl_pki_print_issued(struct mfl_cli *cli, const struct mfl_pki *pki, const struct mfl_pki_issued *issued,
        struct mfl_error *err);
int mfl_pki_print_all(
        struct mfl_cli *cli, const struct mfl_pki *pki, const char *only_name, struct mfl_error *err);
int mfl_pki_print_revoked(
        struct mfl_cli *cli, const struct mfl_pki *pki, const char *name, int n, struct mfl_error *err);

#endif
