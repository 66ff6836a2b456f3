/* SPDX-License-Identifier: Apache-2.0 */
/* Statements and keys, byte by byte. */
#include "common/secure/schedule.h"

static uint8_t *put(uint8_t *to, const void *from, size_t n)
{
        memcpy(to, from, n);
        return to + n;
}

static uint8_t *put32(uint8_t *to, uint32_t v)
{
        for (int i = 0; i < 4; i++)
                to[i] = (uint8_t)(v >> 8 * i);
        return to + 4;
}

static uint8_t *put_who(uint8_t *to, const uint64_t who[MFL_SECURE_WHO_WORDS])
{
        for (uint32_t i = 0; i < MFL_SECURE_WHO_WORDS; i++)
                to = put32(put32(to, (uint32_t)who[i]), (uint32_t)(who[i] >> 32));
        return to;
}

static void read_who(const uint8_t *from, uint64_t ret_who[MFL_SECURE_WHO_WORDS])
{
        for (uint32_t i = 0; i < MFL_SECURE_WHO_WORDS; i++) {
                ret_who[i] = 0;
                for (uint32_t b = 0; b < 8; b++)
                        ret_who[i] |= (uint64_t)from[8 * i + b] << 8 * b;
        }
}

#define LABEL(to, text) put(to, text, sizeof(text))

int mfl_secure_context(const char *job, uint32_t round, const uint8_t params[MFL_SHA256_BYTES],
        const char *text, uint8_t ret_context[MFL_SHA256_BYTES], struct mfl_error *err)
{
        uint8_t bytes[128] = {0}, *at = LABEL(bytes, "mfl secure sum");
        mfl_assert(strlen(job) < MFL_SECURE_JOB_BYTES);
        memcpy(at, job, strlen(job));
        at = put32(at + MFL_SECURE_JOB_BYTES, round);
        at = put(at, params, MFL_SHA256_BYTES);
        int r = mfl_sha256(text, strlen(text), at, err);
        return r ? r : mfl_sha256(bytes, (size_t)(at + MFL_SHA256_BYTES - bytes), ret_context, err);
}

int mfl_secure_who(const char *name, uint64_t ret_who[MFL_SECURE_WHO_WORDS], struct mfl_error *err)
{
        uint8_t text[128], digest[MFL_SHA256_BYTES], *at = LABEL(text, "mfl secure who");
        size_t n = strlen(name);
        mfl_assert(n < sizeof text - 32);
        at = put(at, name, n);
        int r = mfl_sha256(text, (size_t)(at - text), digest, err);
        if (!r)
                read_who(digest, ret_who);
        return r;
}

/* Both keys, and who. */
#define HEAD_BYTES (2 * MFL_SECURE_KEY_BYTES + 8 * MFL_SECURE_WHO_WORDS)

uint32_t mfl_secure_keys_write(const struct mfl_secure_keys *keys, uint8_t *ret_bytes)
{
        uint32_t n = HEAD_BYTES + 2 + keys->n_signature + keys->n_chain;
        if (n > MFL_SECURE_KEYS_MAX || keys->n_signature > MFL_SECURE_SIGNATURE_MAX)
                return 0;
        uint8_t *at = put(ret_bytes, keys->channel.v, MFL_SECURE_KEY_BYTES);
        at = put(at, keys->mask.v, MFL_SECURE_KEY_BYTES);
        at = put_who(at, keys->who);
        *at++ = (uint8_t)keys->n_signature;
        *at++ = (uint8_t)(keys->n_signature >> 8);
        at = put(at, keys->signature, keys->n_signature);
        put(at, keys->chain, keys->n_chain);
        return n;
}

int mfl_secure_keys_read(
        const uint8_t *bytes, uint32_t n, struct mfl_secure_keys *ret_keys, struct mfl_error *err)
{
        uint32_t head = HEAD_BYTES + 2;
        uint32_t n_signature = n < head ? 0 : bytes[head - 2] | (uint32_t)bytes[head - 1] << 8;
        if (n > MFL_SECURE_KEYS_MAX || !n_signature || n_signature > MFL_SECURE_SIGNATURE_MAX ||
                n - head <= n_signature)
                return mfl_fail(err, MFL_INVALID, "keys of a secure sum that are not whole");
        memcpy(ret_keys->channel.v, bytes, MFL_SECURE_KEY_BYTES);
        memcpy(ret_keys->mask.v, bytes + MFL_SECURE_KEY_BYTES, MFL_SECURE_KEY_BYTES);
        read_who(bytes + (ptrdiff_t)2 * MFL_SECURE_KEY_BYTES, ret_keys->who);
        ret_keys->signature = bytes + head;
        ret_keys->n_signature = n_signature;
        ret_keys->chain = bytes + head + n_signature;
        ret_keys->n_chain = n - head - n_signature;
        return 0;
}

void mfl_secure_keys_statement(const uint8_t context[MFL_SHA256_BYTES], const struct mfl_secure_keys *keys,
        uint8_t ret_statement[MFL_SECURE_KEYS_STATEMENT])
{
        uint8_t *at = LABEL(ret_statement, "mfl secure keys");
        at = put(at, context, MFL_SHA256_BYTES);
        at = put(at, keys->channel.v, MFL_SECURE_KEY_BYTES);
        at = put(at, keys->mask.v, MFL_SECURE_KEY_BYTES);
        at = put_who(at, keys->who);
        mfl_assert(at == ret_statement + MFL_SECURE_KEYS_STATEMENT);
}

uint32_t mfl_secure_set_statement(const uint8_t transcript[MFL_SHA256_BYTES],
        const struct mfl_secure_set *set, uint32_t n, uint8_t ret_statement[MFL_SECURE_SET_STATEMENT])
{
        uint8_t *at = LABEL(ret_statement, "mfl secure set");
        at = put(at, transcript, MFL_SHA256_BYTES);
        at = put(at, set->bits, (n + 7) / 8);
        return (uint32_t)(at - ret_statement);
}

static int hash_peers(const struct mfl_secure_msg *peers, struct mfl_sha256 *sha, struct mfl_error *err)
{
        struct mfl_secure_key last = {{0}};
        int r = 0;
        for (uint32_t i = 0; i < peers->n_parts && !r; i++) {
                const struct mfl_secure_part *part = &peers->parts[i];
                struct mfl_secure_keys keys;
                uint8_t digest[MFL_SHA256_BYTES];
                r = mfl_secure_keys_read(peers->bytes + part->at, part->n, &keys, err);
                if (!r && (part->member != i || (i && memcmp(last.v, keys.mask.v, sizeof last.v) >= 0)))
                        return mfl_fail(err, MFL_INVALID, "the members' keys are not in order");
                if (!r)
                        r = mfl_sha256(peers->bytes + part->at, part->n, digest, err);
                if (!r)
                        r = mfl_sha256_update(sha, digest, sizeof digest, err);
                if (!r)
                        last = keys.mask;
        }
        return r;
}

int mfl_secure_transcript(const struct mfl_secure_spec *spec, const struct mfl_secure_msg *peers,
        struct mfl_secure_graph *ret_graph, uint8_t ret_transcript[MFL_SHA256_BYTES], struct mfl_error *err)
{
        uint8_t head[64], *at = LABEL(head, "mfl secure peers");
        uint32_t k = 0, t = 0;
        struct mfl_sha256 sha = {NULL};
        int r = mfl_secure_degree(spec, peers->n_parts, &k, &t, err);
        if (r)
                return r;
        at = put32(put32(put32(at, peers->n_parts), k), t);
        r = mfl_sha256_init(&sha, err);
        if (!r)
                r = mfl_sha256_update(&sha, head, (size_t)(at - head), err);
        if (!r)
                r = hash_peers(peers, &sha, err);
        if (!r)
                r = mfl_sha256_final(&sha, ret_transcript, err);
        mfl_sha256_deinit(&sha);
        return r ? r : mfl_secure_graph_make(spec, peers->n_parts, ret_transcript, ret_graph, err);
}

/* label: with its zero, at most 8 bytes. */
static int derive(const struct mfl_secure_key *secret, const uint8_t transcript[MFL_SHA256_BYTES],
        const char *label, uint32_t a, uint32_t b, struct mfl_secure_key *ret_key, struct mfl_error *err)
{
        uint8_t info[16], *at = put(info, label, strlen(label) + 1);
        at = put32(put32(at, a), b);
        return mfl_secure_derive(secret, transcript, info, (size_t)(at - info), ret_key, err);
}

static int derive_agreed(const struct mfl_secure_key *own, const struct mfl_secure_key *peer,
        const uint8_t transcript[MFL_SHA256_BYTES], const char *label, uint32_t a, uint32_t b,
        struct mfl_secure_key *ret_key, struct mfl_error *err)
{
        struct mfl_secure_key secret;
        int r = mfl_secure_agree(own, peer, &secret, err);
        if (!r)
                r = derive(&secret, transcript, label, a, b, ret_key, err);
        mfl_secure_wipe(&secret, sizeof secret);
        return r;
}

int mfl_secure_share_key(const struct mfl_secure_key *own, const struct mfl_secure_key *peer,
        const uint8_t transcript[MFL_SHA256_BYTES], uint32_t from, uint32_t to,
        struct mfl_secure_key *ret_key, struct mfl_error *err)
{
        return derive_agreed(own, peer, transcript, "share", from, to, ret_key, err);
}

int mfl_secure_pair_mask(const struct mfl_secure_key *own, const struct mfl_secure_key *peer,
        const uint8_t transcript[MFL_SHA256_BYTES], uint32_t a, uint32_t b, struct mfl_secure_key *ret_key,
        struct mfl_error *err)
{
        return derive_agreed(own, peer, transcript, "pair", MFL_MIN(a, b), MFL_MAX(a, b), ret_key, err);
}

int mfl_secure_self_mask(const struct mfl_secure_key *seed, const uint8_t transcript[MFL_SHA256_BYTES],
        uint32_t member, struct mfl_secure_key *ret_key, struct mfl_error *err)
{
        return derive(seed, transcript, "self", member, 0, ret_key, err);
}
