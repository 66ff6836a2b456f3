/* SPDX-License-Identifier: Apache-2.0 */
/* What keeps a job that has ended: a version of a model that is one of its rounds (server/models/models.h), and a move to another server
 * that is under way (server/move/move.h). */
#include "server/store/store_internal.h"

static int on_version(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        return mfl_fail(err, MFL_BUSY, "job %s has the registered model %s@%lld: remove that version first",
                (const char *)user, mfl_db_text(row, 0), (long long)mfl_db_int(row, 1));
}

static int check_unregistered(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        return mfl_db_query(store->db, on_version, (void *)(uintptr_t)id, err,
                "SELECT name, version FROM model_versions WHERE job = ?1 ORDER BY name, version LIMIT 1", "t",
                id);
}

static int on_moving(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        const char *id = user, *to = mfl_db_text(row, 0);
        return mfl_fail(err, MFL_BUSY,
                "job %s is on its way to %s: finish that first (mfl move %s --to %s, or the same with "
                "--back)",
                id, to, id, to);
}

static int check_stays(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        return mfl_db_query(store->db, on_moving, (void *)(uintptr_t)id, err,
                "SELECT peer FROM moves WHERE job = ?1 AND outward = 1 AND there = ''", "t", id);
}

int mfl_store_check_removable(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        int r = check_unregistered(store, id, err);
        return r ? r : check_stays(store, id, err);
}
