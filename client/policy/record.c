/* SPDX-License-Identifier: Apache-2.0 */
#include "client/policy/record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "common/base/plain.h"

#define ANSWERS_BYTES_MAX (16u * 1024 * 1024)
#define HEX_BYTES (2 * MFL_SHA256_BYTES + 1)

static int append(struct mfl_policy_record *record, const struct mfl_answer *answer, struct mfl_error *err)
{
        if (record->n == record->capacity) {
                uint32_t capacity = record->capacity ? 2 * record->capacity : 16;
                struct mfl_answer *v = mfl_realloc(record->v, capacity * sizeof(*v));
                if (!v)
                        return mfl_fail_memory(err, capacity * sizeof(*v), "a site's answers");
                record->v = v;
                record->capacity = capacity;
        }
        record->v[record->n++] = *answer;
        return 0;
}

static int hex_digit(char c)
{
        return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "approved 64 digits" */
static bool parse_line(const char *line, struct mfl_answer *ret_answer)
{
        bool approved = strncmp(line, "approved ", 9) == 0;
        if (!approved && strncmp(line, "denied ", 7))
                return false;
        const char *hex = line + (approved ? 9 : 7);
        ret_answer->approved = approved;
        if (strlen(hex) != HEX_BYTES - 1)
                return false;
        for (int i = 0; i < MFL_SHA256_BYTES; i++) {
                int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
                if (high < 0 || low < 0)
                        return false;
                ret_answer->digest[i] = (uint8_t)(16 * high + low);
        }
        return true;
}

static int read_answers(struct mfl_policy_record *record, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = NULL;
        size_t bytes;
        int number = 0;
        int r = mfl_fs_read(record->answers_path, ANSWERS_BYTES_MAX, &text, &bytes, err);
        if (r)
                return r == MFL_NOT_FOUND ? 0 : r;
        for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                struct mfl_answer answer;
                number++;
                if (!parse_line(line, &answer))
                        return mfl_fail(err, MFL_INVALID,
                                "%s:%d: not an answer; restore the file, or remove it to be asked again",
                                record->answers_path, number);
                r = append(record, &answer, err);
                if (r)
                        return r;
        }
        return 0;
}

int mfl_policy_record_open(
        struct mfl_policy_record *record, const char *dir, const char *name, struct mfl_error *err)
{
        *record = (struct mfl_policy_record){.audit = -1};
        int r = mfl_fs_mkdirs(dir, 0700, err);
        if (r)
                return r;
        record->answers_path = mfl_asprintf("%s/%s.answers", dir, name);
        MFL_CLEANUP_FREE char *audit = mfl_asprintf("%s/%s.audit.jsonl", dir, name);
        if (!record->answers_path || !audit)
                r = mfl_fail_memory(err, strlen(dir), "a path");
        if (!r) {
                record->audit = open(audit, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
                if (record->audit < 0)
                        r = mfl_fail_errno(err, "policy: open %s", audit);
        }
        if (!r)
                r = read_answers(record, err);
        if (r)
                mfl_policy_record_close(record);
        return r;
}

void mfl_policy_record_close(struct mfl_policy_record *record)
{
        if (record->answers_path && record->audit >= 0)
                close(record->audit);
        free(record->answers_path);
        free(record->v);
        *record = (struct mfl_policy_record){.audit = -1};
}

const struct mfl_answer *mfl_policy_answer_find(
        const struct mfl_policy_record *record, const uint8_t digest[MFL_SHA256_BYTES])
{
        for (uint32_t i = 0; i < record->n; i++)
                if (!memcmp(record->v[i].digest, digest, MFL_SHA256_BYTES))
                        return &record->v[i];
        return NULL;
}

static int write_answers(const struct mfl_policy_record *record, struct mfl_error *err)
{
        struct mfl_fs_file file;
        int r = mfl_fs_begin(&file, record->answers_path, err);
        if (r)
                return r;
        if (fchmod(file.fd, 0600))
                r = mfl_fail_errno(err, "chmod %s", record->answers_path);
        for (uint32_t i = 0; i < record->n && !r; i++) {
                char hex[HEX_BYTES], line[HEX_BYTES + 16];
                mfl_hex(record->v[i].digest, MFL_SHA256_BYTES, hex);
                mfl_snprintf(
                        line, sizeof(line), "%s %s\n", record->v[i].approved ? "approved" : "denied", hex);
                r = mfl_fs_write(&file, line, strlen(line), err);
        }
        if (!r)
                return mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

int mfl_policy_answer_put(
        struct mfl_policy_record *record, const struct mfl_answer *answer, struct mfl_error *err)
{
        struct mfl_answer *found =
                (struct mfl_answer *)(uintptr_t)mfl_policy_answer_find(record, answer->digest);
        struct mfl_answer old = {.approved = false};
        int r = 0;
        if (found) {
                old = *found;
                *found = *answer;
        } else
                r = append(record, answer, err);
        if (!r)
                r = write_answers(record, err);
        else
                return r;
        if (r && found) /* what is not on disk does not count */
                *found = old;
        else if (r)
                record->n--;
        return r;
}

/* ---- the audit log ---- */

static size_t add_text(char *to, size_t at, size_t size, const char *key, const char *text)
{
        char clean[MFL_REASON_BYTES];
        mfl_strcpy(clean, sizeof(clean), text);
        mfl_plain_clean(clean, false);
        at += (size_t)mfl_snprintf(to + at, size - at, "%s\"%s\": \"", at > 1 ? ", " : "", key);
        for (const char *c = clean; *c && at + 4 < size; c++) {
                if (*c == '"' || *c == '\\')
                        to[at++] = '\\';
                to[at++] = *c;
        }
        return at + (size_t)mfl_snprintf(to + at, size - at, "\"");
}

int mfl_policy_audit(
        struct mfl_policy_record *record, const struct mfl_audit_line *line, struct mfl_error *err)
{
        char text[8 * 2 * MFL_REASON_BYTES + 512] = "{", hex[HEX_BYTES], when[32];
        struct tm tm;
        time_t now = time(NULL);
        gmtime_r(&now, &tm);
        strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
        mfl_hex(line->text_digest, MFL_SHA256_BYTES, hex);
        const char *const pairs[][2] = {{"time", when}, {"daemon", line->daemon}, {"server", line->server},
                {"job", line->job}, {"owner", line->owner}, {"decision", line->decision},
                {"rule", line->rule}, {"reason", line->reason}, {"job_file_sha256", hex}};
        size_t at = 1;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(pairs); i++)
                at = add_text(text, at, sizeof(text) - 4, pairs[i][0], pairs[i][1]);
        text[at++] = '}';
        text[at++] = '\n';
        ssize_t n = write(record->audit, text, at);
        if (n < 0)
                return mfl_fail_errno(err, "policy: write the audit log");
        return n == (ssize_t)at ? 0 : mfl_fail(err, -ENOSPC, "policy: write the audit log: no space left");
}
