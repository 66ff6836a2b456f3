/* SPDX-License-Identifier: Apache-2.0 */
/* A private CA in a directory, for the commands `mfl pki ...`. Offline: no server is ever asked.
 *
 *      DIR/                      0700
 *        ca.pem  ca.key          the CA's certificate, and its key (0600; encrypted with a pass phrase or
 * not) crl.pem                 the revocation list, made anew by every command that changes something
 *        index.json              what was issued
 *        issued/NAME/            0700: cert.pem, key.pem (0600; none when the key was made elsewhere), ca.pem
 *        lock                    held by the command that is at work
 *        undo, undo.new, done    there only while a change is under way (pki_txn.h)
 *
 * Errors: MFL_INVALID, MFL_NOT_FOUND, MFL_EXISTS (a conflict), MFL_CLI_USAGE, with a line for people;
 * negative: the disk or memory. A failure leaves the directory as it was.
 */
#ifndef MFL_CLI_PKI_H
#define MFL_CLI_PKI_H

#include "cli/cli.h"
#include "cli/pki_index.h"
#include "cli/pki_txn.h"
#include "cli/pki_x509.h"

#define MFL_PKI_DAY_S 86400
#define MFL_PKI_CA_DAYS 3650
#define MFL_PKI_LEAF_DAYS 365
#define MFL_PKI_CRL_DAYS 365
#define MFL_PKI_SOON_DAYS 30 /* what ends in less is marked */

struct mfl_pki {
        char *dir; /* absolute */
        int lock;  /* -1: not open */
        int64_t now;
        bool has_ca; /* create: there was one already */
        char *ca_pem;
        struct mfl_pki_ca *ca; /* NULL before mfl_pki_unseal */
        struct mfl_pki_index index;
};

/* ---- pki_dir.c ---- */

/* $XDG_CONFIG_HOME/mfl/pki or ~/.config/mfl/pki. Heap. */
int mfl_pki_default_dir(char **ret_dir, struct mfl_error *err);
/* Makes the directory and a CA in it. MFL_EXISTS when there is something there. pki is open afterwards. */
int mfl_pki_create(struct mfl_pki *pki, const char *dir, const char *ca_name, int days, int crl_days,
        const char *pass, int64_t now, struct mfl_error *err);
/* Takes the lock (waits for 10 s), undoes what a killed command had begun, reads the index. MFL_NOT_FOUND
 * when there is no CA. */
int mfl_pki_open(struct mfl_pki *pki, const char *dir, int64_t now, struct mfl_error *err);
/* Reads the CA's key. pass: NULL when there is none. */
int mfl_pki_unseal(struct mfl_pki *pki, const char *pass, struct mfl_error *err);
void mfl_pki_close(struct mfl_pki *pki);
/* Adds a new revocation list and the index to the plan, and carries it out. crl_days -1: as before.
 * crl_copy: where else the list goes; NULL: nowhere. */
int mfl_pki_commit(struct mfl_pki *pki, struct mfl_pki_txn *txn, int64_t crl_days, const char *crl_copy,
        struct mfl_error *err);
/* The first line of a file, which others may not read. ret_pass: wiped by the caller. */
int mfl_pki_pass_read(const char *path, char **ret_pass, struct mfl_error *err);

/* ---- pki_issue.c: what the commands do ---- */

struct mfl_pki_request {
        const char *name;
        unsigned roles;           /* renew: 0, the old ones */
        const char *const *hosts; /* renew: none, the old ones */
        int n_hosts;
        int days;
        const char *csr;          /* a file; NULL: the key is made here */
        const char *out;          /* a folder for a copy, absolute or not; NULL: none */
        bool new_key, revoke_old; /* renew */
        int64_t crl_days;         /* -1: as before */
};
struct mfl_pki_issued {
        struct mfl_pki_entry *entry; /* in the index */
        char *dir;                   /* where the files are: of the copy, if there is one */
        bool key;                    /* a key.pem is there */
        bool crl;                    /* a crl.pem is there (the copy of a server's files) */
        bool replaced;               /* files of an older certificate */
        bool shortened;              /* to the CA's end */
        char old_serial[MFL_PKI_SERIAL_BYTES];
};
int mfl_pki_issue(struct mfl_pki *pki, const struct mfl_pki_request *request,
        struct mfl_pki_issued *ret_issued, struct mfl_error *err);
int mfl_pki_renew(struct mfl_pki *pki, const struct mfl_pki_request *request,
        struct mfl_pki_issued *ret_issued, struct mfl_error *err);
/* Every certificate of a name, or the one with that serial number. ret_name: MFL_PKI_NAME_MAX + 1. */
int mfl_pki_revoke(struct mfl_pki *pki, const char *what, int64_t crl_days, char *ret_name, int *ret_n,
        struct mfl_error *err);

/* ---- pki_tar.c ---- */

/* issued/NAME (and crl.pem for a server) as a tar archive (ustar); path "-" is standard output. MFL_EXISTS
 * when the file is there. ret_key: a key.pem is in it. */
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
