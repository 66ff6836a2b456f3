/* SPDX-License-Identifier: Apache-2.0 */
/* Decimal to double, correctly rounded. Numbers of at most 19 digits with a power of ten up to 19, which is what
 * programs print, are one multiplication or division of 128-bit integers; the rest is strtod's. */
#include "serve/kserve/number.h"

#include <math.h>

#define DIGITS_MAX 19 /* fit in 64 bits */
#define TEXT_MAX 400  /* more than any double needs */

static const uint64_t tens[] = {1u, 10u, 100u, 1000u, 10000u, 100000u, 1000000u, 10000000u, 100000000u,
        1000000000u, 10000000000u, 100000000000u, 1000000000000u, 10000000000000u, 100000000000000u,
        1000000000000000u, 10000000000000000u, 100000000000000000u, 1000000000000000000u,
        10000000000000000000u};

/* v * 2^exponent, v with its top bit set, sticky: something lies below v. The result is a normal double. */
static double round_to_double(uint64_t v, int exponent, bool sticky)
{
        uint64_t mantissa = v >> 11;
        const uint64_t rest = v & 0x7ff;
        if (rest > 0x400 || (rest == 0x400 && (sticky || (mantissa & 1))))
                mantissa++;
        return ldexp((double)mantissa, exponent + 11);
}

static double round_wide(unsigned __int128 v, int exponent, bool sticky)
{
        const uint64_t high = (uint64_t)(v >> 64), low = (uint64_t)v;
        if (!high) {
                const int lead = __builtin_clzll(low);
                return round_to_double(low << lead, exponent - lead, sticky);
        }
        const int lead = __builtin_clzll(high);
        const unsigned __int128 top = v << lead;
        return round_to_double((uint64_t)(top >> 64), exponent - lead + 64, sticky || (uint64_t)top);
}

/* Both are doubles without rounding, so that their product or quotient is rounded once. */
static bool is_simple(uint64_t mantissa, int power)
{
        return mantissa <= 1ull << 53 && power >= -22 && power <= 22;
}

static double scale_simple(uint64_t mantissa, int power)
{
        static const double powers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12,
                1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
        return power < 0 ? (double)mantissa / powers[-power] : (double)mantissa * powers[power];
}

/* mantissa * 10^power, |power| <= 19, mantissa not 0. */
static double scale(uint64_t mantissa, int power)
{
        if (power >= 0)
                return round_wide((unsigned __int128)mantissa * tens[power], 0, false);
        const int lead = __builtin_clzll(mantissa);
        const unsigned __int128 wide = (unsigned __int128)(mantissa << lead) << 64;
        const uint64_t divisor = tens[-power];
        const unsigned __int128 quotient = wide / divisor;
        return round_wide(quotient, -64 - lead, wide != quotient * divisor);
}

struct number {
        bool negative, exact; /* exact: mantissa holds all digits */
        uint64_t mantissa;
        int n_digits; /* without zeros in front */
        int power;
};

static const char *read_digits(const char *at, const char *end, struct number *number, int each)
{
        for (; at < end && *at >= '0' && *at <= '9'; at++) {
                if (number->n_digits == DIGITS_MAX) {
                        number->exact = false;
                } else {
                        number->mantissa = number->mantissa * 10 + (uint64_t)(*at - '0');
                        number->n_digits += number->mantissa != 0;
                }
                number->power += each;
        }
        return at;
}

/* The grammar of RFC 8259, section 6; returns the end, or NULL. */
static const char *scan(const char *at, const char *end, struct number *number)
{
        number->negative = at < end && *at == '-';
        at += number->negative;
        const char *digits = at;
        at = read_digits(at, end, number, 0);
        if (at == digits || (*digits == '0' && at > digits + 1))
                return NULL;
        if (at < end && *at == '.') {
                digits = ++at;
                at = read_digits(at, end, number, -1);
                if (at == digits)
                        return NULL;
        }
        if (at < end && (*at == 'e' || *at == 'E')) {
                at++;
                const bool down = at < end && *at == '-';
                at += at < end && (*at == '-' || *at == '+');
                int power = 0;
                for (digits = at; at < end && *at >= '0' && *at <= '9'; at++)
                        power = power < 100000 ? power * 10 + (*at - '0') : power;
                if (at == digits)
                        return NULL;
                number->power += down ? -power : power;
        }
        return at;
}

size_t mfl_number_read(const char *text, size_t n, double *ret_value)
{
        struct number number = {.exact = true};
        const char *end = scan(text, text + n, &number);
        double value = 0;
        if (!end)
                return 0;
        const size_t length = (size_t)(end - text);
        if (number.exact && is_simple(number.mantissa, number.power)) {
                value = scale_simple(number.mantissa, number.power);
        } else if (!number.exact || abs(number.power) > DIGITS_MAX) {
                char copy[TEXT_MAX + 1];
                if (length > TEXT_MAX)
                        return 0;
                memcpy(copy, text, length);
                copy[length] = '\0';
                value = fabs(strtod(copy, NULL));
        } else if (number.mantissa) {
                value = scale(number.mantissa, number.power);
        }
        *ret_value = number.negative ? -value : value;
        return length;
}
