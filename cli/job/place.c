/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/job/place.h"

#include "common/settings/yaml.h"

#include <string.h>

/* The node of a path such as "limits.state"; NULL: the file has none. */
static const struct mfl_yaml_node *node_of(const struct mfl_yaml_doc *doc, const char *path, size_t bytes)
{
        const struct mfl_yaml_node *node = mfl_yaml_root(doc);
        char key[MFL_NAME_BYTES];
        for (const char *end = path + bytes; node && path < end;) {
                size_t n = strcspn(path, ".");
                n = MFL_MIN(n, (size_t)(end - path));
                if (n >= sizeof key)
                        return NULL;
                memcpy(key, path, n);
                key[n] = 0;
                node = mfl_yaml_find(node, key);
                path += n + (path + n < end);
        }
        return node;
}

void mfl_job_place(const struct mfl_job *job, const char *text, const char *file, struct mfl_error *err)
{
        char what[sizeof err->text], name[MFL_NAME_BYTES + 8];
        struct mfl_yaml_doc *doc;
        size_t n = (size_t)mfl_snprintf(name, sizeof name, "job %s: ", job->name);
        if (strncmp(err->text, name, n))
                return;
        const char *path = err->text + n;
        size_t bytes = strspn(path, "abcdefghijklmnopqrstuvwxyz_.");
        if (!bytes || strncmp(path + bytes, ": ", 2) ||
                mfl_yaml_parse(text, strlen(text), file, NULL, &doc, NULL))
                return;
        const struct mfl_yaml_node *node = node_of(doc, path, bytes);
        mfl_strcpy(what, sizeof what, path + bytes + 2);
        if (node)
                (void)mfl_yaml_fail(doc, node, err, "%s", what);
        mfl_yaml_free(doc);
}
