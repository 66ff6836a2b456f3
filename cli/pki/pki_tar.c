/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl pki export`: packs the files of one name into a tar archive in the ustar format of POSIX.1-1988, to
 * carry them to their machine. Members keep their permissions; only the owner may read the archive. */
#include <stdio.h>
#include <unistd.h>

#include "cli/pki/pki.h"
#include "common/base/fs.h"

#define BLOCK 512
#define TEXT_BYTES_MAX (64u << 20)

struct header {
        char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100], magic[6],
                version[2], user[32], group[32], major[8], minor[8], prefix[155], pad[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a header is one block");

/* Octal digits that fill the field except for its last byte, a zero. */
static void put_octal(char *field, size_t bytes, uint64_t value)
{
        field[--bytes] = '\0';
        for (; bytes; value >>= 3)
                field[--bytes] = (char)('0' + (value & 7));
}

static void fill_header(
        struct header *h, const char *name, unsigned mode, size_t bytes, int64_t now, char type)
{
        unsigned sum = 0;
        memset(h, 0, sizeof *h);
        mfl_assert(mfl_strcpy(h->name, sizeof h->name, name));
        put_octal(h->mode, sizeof h->mode, mode);
        put_octal(h->uid, sizeof h->uid, 0);
        put_octal(h->gid, sizeof h->gid, 0);
        put_octal(h->size, sizeof h->size, bytes);
        put_octal(h->mtime, sizeof h->mtime, (uint64_t)now);
        h->type = type;
        memcpy(h->magic, "ustar", 6);
        memcpy(h->version, "00", 2);
        /* While it is summed, the checksum field counts as blanks. */
        memset(h->checksum, ' ', sizeof h->checksum);
        for (size_t i = 0; i < sizeof *h; i++)
                sum += ((const unsigned char *)h)[i];
        put_octal(h->checksum, 7, sum);
}

static void add_member(FILE *out, const char *name, unsigned mode, const char *text, int64_t now)
{
        static const char zeros[BLOCK];
        struct header h;
        size_t bytes = text ? strlen(text) : 0;
        fill_header(&h, name, mode, bytes, now, text ? '0' : '5');
        fwrite(&h, sizeof h, 1, out);
        if (bytes)
                fwrite(text, 1, bytes, out);
        fwrite(zeros, 1, (BLOCK - bytes % BLOCK) % BLOCK, out);
}

/* MFL_NOT_FOUND if there is no such file. */
static int add_file(const struct mfl_pki *pki, FILE *out, const char *name, const char *file, unsigned mode,
        struct mfl_error *err)
{
        char member[100];
        char *text;
        size_t bytes;
        bool crl = !strcmp(file, "crl.pem");
        MFL_CLEANUP_FREE char *path = crl ? mfl_asprintf("%s/%s", pki->dir, file)
                                          : mfl_asprintf("%s/issued/%s/%s", pki->dir, name, file);
        if (!path)
                return mfl_fail_memory(err, 0, "a file name");
        int r = mfl_fs_read(path, TEXT_BYTES_MAX, &text, &bytes, err);
        if (r)
                return r;
        snprintf(member, sizeof member, "%s/%s", name, file);
        add_member(out, member, mode, text, pki->now);
        mfl_pki_wipe(text);
        return 0;
}

static int add_files(const struct mfl_pki *pki, FILE *out, const struct mfl_pki_entry *e, bool *ret_key,
        struct mfl_error *err)
{
        static const char zeros[2 * BLOCK];
        char folder[100];
        snprintf(folder, sizeof folder, "%s/", e->name);
        add_member(out, folder, 0700, NULL, pki->now);
        int r = add_file(pki, out, e->name, "cert.pem", 0644, err);
        if (!r)
                r = add_file(pki, out, e->name, "ca.pem", 0644, err);
        if (!r && e->roles & MFL_PKI_SERVER)
                r = add_file(pki, out, e->name, "crl.pem", 0644, err);
        if (!r && !e->request)
                r = add_file(pki, out, e->name, "key.pem", 0600, err);
        *ret_key = !e->request;
        fwrite(zeros, sizeof zeros, 1, out);
        return r;
}

static int write_archive(const char *path, const char *data, size_t bytes, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        if (!strcmp(path, "-")) {
                fwrite(data, 1, bytes, stdout);
                return mfl_cli_flush(err);
        }
        if (!access(path, F_OK))
                return mfl_fail(err, MFL_EXISTS, "%s already exists; nothing was written", path);
        int r = mfl_fs_begin_exclusive(&file, path, 0600, err);
        if (r)
                return r;
        r = mfl_fs_write(&file, data, bytes, err);
        if (!r)
                return mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

int mfl_pki_export(
        struct mfl_pki *pki, const char *name, const char *path, bool *ret_key, struct mfl_error *err)
{
        const struct mfl_pki_entry *e = mfl_pki_index_find(&pki->index, name);
        char *data = NULL;
        size_t bytes = 0;
        if (!e)
                return mfl_fail(err, MFL_NOT_FOUND,
                        "there is no certificate for '%.63s'; 'mfl pki show' lists them", name);
        if (e->state == MFL_PKI_REVOKED)
                return mfl_fail(err, MFL_CLI_CONFLICT, "the certificate of '%s' is revoked", name);
        FILE *out = open_memstream(&data, &bytes);
        if (!out)
                return mfl_fail_memory(err, 0, "an archive");
        int r = add_files(pki, out, e, ret_key, err);
        bool bad = ferror(out);
        if (fclose(out) || (bad && !r))
                r = mfl_fail_memory(err, 0, "an archive");
        if (!r)
                r = write_archive(path, data, bytes, err);
        if (data)
                explicit_bzero(data, bytes);
        free(data);
        return r;
}
