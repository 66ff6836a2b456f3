/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of time in options. */
#include "cli/base/period.h"

bool mfl_period_parse(const char *text, uint32_t max_days, uint32_t *ret_seconds)
{
        static const char units[] = "smhd";
        static const uint32_t unit_s[] = {1, 60, 3600, 86400};
        char *end;
        errno = 0;
        unsigned long long n = strtoull(text, &end, 10), most = max_days * 86400ull;
        const char *unit = *end ? strchr(units, *end) : NULL;
        if (errno || *text < '0' || *text > '9' || !unit || end[1] || !n || n > most)
                return false;
        n *= unit_s[unit - units];
        if (n > most)
                return false;
        *ret_seconds = (uint32_t)n;
        return true;
}
