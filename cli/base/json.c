/* SPDX-License-Identifier: Apache-2.0 */
/* Prints JSON. */
#include "cli/base/json.h"

json_t *mfl_json_event(const char *kind)
{
        return json_pack("{ss}", "event", kind);
}

int mfl_json_print(FILE *out, json_t *object, struct mfl_error *err)
{
        if (!object)
                return mfl_fail_memory(err, 0, "JSON");
        int bad = json_dumpf(object, out, JSON_COMPACT | JSON_ENCODE_ANY) || fputc('\n', out) == EOF ||
                  fflush(out);
        json_decref(object);
        return bad && errno != EPIPE ? mfl_fail_errno(err, "write to standard output") : 0;
}

void mfl_json_print_error(FILE *out, const char *code, const char *text)
{
        json_t *error = json_pack("{s{ss ss}}", "error", "code", code, "text", text);
        if (!error) /* not UTF-8, or no memory: the code at least */
                error = json_pack("{s{ss ss}}", "error", "code", code, "text", "");
        mfl_json_print(out, error, NULL);
}
