/* SPDX-License-Identifier: Apache-2.0 */
/* State directories for tests of what a disk does to them: as kill -9 leaves one, and as a stop does. */
#ifndef MFL_TESTS_UNIT_SERVER_STATE_BED_H
#define MFL_TESTS_UNIT_SERVER_STATE_BED_H

#include <sys/types.h>

#include "tests/unit/server/fixture.h"

#define DONE "j-000001"  /* the jobs */
#define GOING "j-000002" /* waits to go on */
#define FRESH "j-000003" /* has initial params, and no round */
#define ROUNDS 3
#define STATE_CHECKPOINTS 4 /* of two jobs the newest and one more */

struct state_bed {
        struct fixture f;
        char crashed[80], stopped[80]; /* copies of f.dir */
};
/* A row in every table. */
void state_bed_init(struct state_bed *bed);
void state_bed_deinit(struct state_bed *bed);

void state_ok(int r, const struct mfl_error *err);
void state_copy(const char *from, const char *to);
void state_path(const char *dir, const char *file, char path[400]);
off_t state_size(const char *dir, const char *file);
void state_flip(const char *dir, const char *file, off_t byte, int bit);
void state_remove(const char *dir, const char *file);
/* Checkpoints below a directory, wherever they lie. */
unsigned state_checkpoints(const char *path);
/* Whether --check-state would find something. */
bool state_check_finds(const char *dir);

#endif
