/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that only some kinds use. */
#include "common/job/job_keys.h"

const struct mfl_yaml_node *mfl_job_find_key(const struct mfl_yaml_node *parent, const char *key)
{
        return parent ? mfl_yaml_find(parent, key) : NULL;
}

int mfl_job_check_usage(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *parent,
        const struct mfl_job_usage *usage, size_t n, unsigned kind, const char *kind_name,
        struct mfl_error *err)
{
        for (size_t i = 0; i < n; i++) {
                const struct mfl_yaml_node *node = mfl_job_find_key(parent, usage[i].key);
                if (node && !(usage[i].used_by & MFL_JOB_BIT(kind)))
                        return mfl_yaml_fail(doc, node, err, "is not used by %s; remove it", kind_name);
        }
        return 0;
}
