/* SPDX-License-Identifier: Apache-2.0 */
/* What a path of the protocol asks for. */
#include "serve/kserve/kserve.h"

/* Takes the next part of the path, without its slash; false at the end, and when it is empty or too long. */
static bool next_part(const char **at, char *part, size_t bytes)
{
        if (**at != '/')
                return false;
        const char *begin = *at + 1;
        const size_t n = strcspn(begin, "/");
        *at = begin + n;
        if (!n || n >= bytes)
                return false;
        memcpy(part, begin, n);
        part[n] = '\0';
        return true;
}

static enum mfl_kserve_what model_action(const char *at, bool with_version)
{
        static const struct {
                const char *action;
                enum mfl_kserve_what what;
        } actions[] = {{"", MFL_KSERVE_MODEL}, {"/infer", MFL_KSERVE_INFER},
                {"/ready", MFL_KSERVE_MODEL_READY}, {"/config", MFL_KSERVE_CONFIG},
                {"/rollback", MFL_KSERVE_ROLLBACK}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(actions); i++)
                if (!strcmp(at, actions[i].action))
                        return with_version && actions[i].what == MFL_KSERVE_ROLLBACK ? MFL_KSERVE_NOWHERE
                                                                                      : actions[i].what;
        return MFL_KSERVE_NOWHERE;
}

static void read_model_path(const char *at, struct mfl_kserve_path *path)
{
        char part[16];
        const char *after = at;
        if (!next_part(&at, path->model, sizeof path->model))
                return;
        after = at;
        const bool with_version = next_part(&after, part, sizeof part) && !strcmp(part, "versions");
        if (with_version && !next_part(&after, path->version, sizeof path->version))
                return;
        path->what = model_action(with_version ? after : at, with_version);
}

void mfl_kserve_path(const char *path, struct mfl_kserve_path *ret_path)
{
        static const struct {
                const char *path;
                enum mfl_kserve_what what;
        } fixed[] = {{"/v2", MFL_KSERVE_SERVER}, {"/v2/", MFL_KSERVE_SERVER},
                {"/v2/health/live", MFL_KSERVE_LIVE}, {"/v2/health/ready", MFL_KSERVE_READY},
                {"/v2/repository/index", MFL_KSERVE_INDEX}, {"/metrics", MFL_KSERVE_METRICS},
                {"/", MFL_KSERVE_PAGE}};
        static const char models[] = "/v2/models";
        *ret_path = (struct mfl_kserve_path){.what = MFL_KSERVE_NOWHERE};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(fixed); i++)
                if (!strcmp(path, fixed[i].path))
                        ret_path->what = fixed[i].what;
        if (!strncmp(path, models, sizeof models - 1))
                read_model_path(path + sizeof models - 1, ret_path);
}
