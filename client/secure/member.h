/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon's side of one secure sum: what it tells, and what it refuses (Bonawitz et al.: "Practical secure aggregation for
 * privacy-preserving machine learning", CCS 2017, with its fourth round, against a server that lies; the graph is Bell et al.'s).
 *
 *   NEW --keys--> KEYED --PEERS--> SHARED --MASK--> MASKING --masked--> MASKED --SURVIVORS--> SIGNED --OPEN--> OPENED
 *     any message out of turn, and any that is wrong: REFUSED, for good
 *
 * What the server is not believed:
 *   - keys: each member's are signed by the key of its certificate, which the CA has signed for a daemon; all certificates differ;
 *   - sets: each step's is a part of the one before, has this member, as many others as a secret takes to open, and at least `least`;
 *   - survivors: this member opens nothing before t of the holders of its shares have signed the same set;
 *   - one answer: for a member that counts it opens a share of the self mask, for one that is gone a share of the mask key, and it
 *     does so once;
 *   - rounds: the same update in a sum with other survivors, or with survivors that bring other updates of their nodes, would be known
 *     from the difference, so a book remembers with whom an update was summed. An update is known by its elements, since the server gives jobs their numbers and files.
 *
 * Pure, but for randomness and signatures (trust). One thread at a time. MFL_INVALID: refused, the text says what the server did;
 * negative: the process can't go on. */
#ifndef MFL_CLIENT_SECURE_MEMBER_H
#define MFL_CLIENT_SECURE_MEMBER_H

#include "client/secure/book.h"
#include "common/secure/schedule.h"

#define MFL_SECURE_NAME_BYTES 64
#define MFL_SECURE_PRINT_BYTES 65

struct mfl_secure_identity {
        char name[MFL_SECURE_NAME_BYTES];         /* CN */
        char fingerprint[MFL_SECURE_PRINT_BYTES]; /* SHA-256 of the certificate, hexadecimal */
};

/* Certificates and signatures. */
struct mfl_secure_trust {
        void *user;
        const uint8_t *chain; /* its own certificates, DER, its own first */
        uint32_t n_chain;
        int (*sign)(void *user, const void *data, size_t n, uint8_t ret_signature[MFL_SECURE_SIGNATURE_MAX],
                uint32_t *ret_n, struct mfl_error *err);
        /* The owner of a chain that the CA has signed, for a daemon, and who has signed the data. MFL_INVALID: it is not so, or this
         * site does not want that peer. */
        int (*check)(void *user, const uint8_t *chain, uint32_t n_chain, const void *data, size_t n,
                const uint8_t *signature, uint32_t n_signature, struct mfl_secure_identity *ret_identity,
                struct mfl_error *err);
};

struct mfl_secure_member_options {
        const char *job, *text;             /* number and job file */
        uint64_t who[MFL_SECURE_WHO_WORDS]; /* whose updates it brings; with spec.least: which update */
        uint32_t round;
        const uint8_t *params; /* digest */
        struct mfl_secure_spec spec;
        uint32_t least; /* participants that this site wants; at least MFL_SECURE_LEAST */
        uint32_t
                members; /* that the job's file promises, before anybody drops out: those of a bucket; 0: it does not say */
        const struct mfl_secure_trust *trust; /* outlives the member */
        struct mfl_secure_book *book;         /* outlives the member */
        /* Writes a row of the book down, durably, before the survivors are signed; with the user of trust. NULL: nobody does.
         * MFL_INVALID: it can't be written. */
        int (*keep)(void *user, const uint8_t update[MFL_SHA256_BYTES], const uint8_t with[MFL_SHA256_BYTES],
                struct mfl_error *err);
};

struct mfl_secure_member;

/* Makes keys, once for each sum. */
int mfl_secure_member_new(const struct mfl_secure_member_options *options,
        struct mfl_secure_member **ret_member, struct mfl_error *err);
void mfl_secure_member_free(struct mfl_secure_member *member); /* NULL is fine; secrets are wiped */

/* The message KEYS. */
int mfl_secure_member_keys(
        const struct mfl_secure_member *member, struct mfl_secure_msg *ret_msg, struct mfl_error *err);
/* A message of the server, and the answer, which the caller frees; its step is 0 after MASK: then the vector is masked next. */
int mfl_secure_member_take(struct mfl_secure_member *member, const struct mfl_secure_msg *msg,
        struct mfl_secure_msg *ret_answer, struct mfl_error *err);
bool mfl_secure_member_masks(
        const struct mfl_secure_member *member); /* MASK came, and nothing was masked since */
/* The update by which the book knows it, before it is folded into a narrow ring: the same in rings of any width. Without it the vector
 * that is masked is the update. As for mask. */
int mfl_secure_member_knows(
        struct mfl_secure_member *member, const uint64_t *v, uint64_t n, struct mfl_error *err);
const uint8_t *mfl_secure_member_update(
        const struct mfl_secure_member *member); /* that digest; MFL_SHA256_BYTES */
/* Masks the update, once; may run on another thread while nobody else touches the member. */
int mfl_secure_member_mask(struct mfl_secure_member *member, uint64_t *v, uint64_t n,
        uint64_t figures[MFL_SECURE_FIGURES], struct mfl_error *err);
/* After MASK, of a sum with noise in shares: a digest of the members that the update is masked for, and of the updates that they have
 * promised to bring (options.who). Equal only where all of them bring what they brought before. */
int mfl_secure_member_group(
        const struct mfl_secure_member *member, uint8_t ret_digest[MFL_SHA256_BYTES], struct mfl_error *err);
/* After PEERS: how many of those who stay have honest noise (common/secure/shares.h). */
int mfl_secure_member_honest(
        const struct mfl_secure_member *member, uint32_t *ret_honest, struct mfl_error *err);
/* For people: the members, or the survivors. */
uint32_t mfl_secure_member_count(const struct mfl_secure_member *member);

#endif
