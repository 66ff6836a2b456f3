/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses as text: parses "host:port", recognises loopback, names a peer. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>

#include "proto/stream.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)

static bool port_valid(const char *s)
{
        size_t n = strlen(s);
        return n >= 1 && n <= 5 && strspn(s, "0123456789") == n && strtoul(s, NULL, 10) <= 65535;
}

int mfl_address_parse(const char *text, char *ret_host, size_t host_bytes, char *ret_port, size_t port_bytes,
        struct mfl_error *err)
{
        const char *host = text, *end, *port;
        if (*text == '[') {
                host = text + 1;
                end = strchr(host, ']');
                if (!end || (end[1] && end[1] != ':'))
                        return mfl_fail(err, MFL_INVALID, "address \"%s\": expected \"[v6]:port\"", text);
                port = end[1] ? end + 2 : STRING(MFL_PORT_DEFAULT);
        } else if (strstr(text, "://")) {
                return mfl_fail(err, MFL_INVALID, "address \"%s\": expected \"host:port\", not a URL", text);
        } else {
                end = strchr(text, ':');
                port = end ? end + 1 : STRING(MFL_PORT_DEFAULT);
                if (!end)
                        end = text + strlen(text);
                if (strchr(port, ':'))
                        return mfl_fail(err, MFL_INVALID,
                                "address \"%s\": an IPv6 address is written \"[%s]:port\"", text, text);
        }
        size_t n = (size_t)(end - host);
        if (!*text)
                return mfl_fail(err, MFL_INVALID, "address: empty, expected \"host:port\"");
        if (!port_valid(port))
                return mfl_fail(err, MFL_INVALID, "address \"%s\": port \"%s\" is not a number up to 65535",
                        text, port);
        if (n >= host_bytes || strlen(port) >= port_bytes)
                return mfl_fail(err, MFL_INVALID, "address \"%.64s...\": the host is too long", text);
        memcpy(ret_host, host, n);
        ret_host[n] = '\0';
        mfl_strcpy(ret_port, port_bytes, port);
        return 0;
}

bool mfl_address_is_loopback(const struct sockaddr *addr)
{
        if (addr->sa_family == AF_INET) {
                const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)addr;
                return ntohl(in->sin_addr.s_addr) >> 24 == 127;
        }
        if (addr->sa_family == AF_INET6) {
                const struct in6_addr *a = &((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr;
                return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
        }
        return false;
}

const char *mfl_stream_peer(const struct mfl_stream *stream, char *buf, size_t buf_bytes)
{
        struct sockaddr_storage addr;
        int n = sizeof addr;
        char host[INET6_ADDRSTRLEN] = "?";
        snprintf(buf, buf_bytes, "?");
        if (uv_tcp_getpeername(&stream->tcp, (struct sockaddr *)&addr, &n))
                return buf;
        if (addr.ss_family == AF_INET) {
                const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)&addr;
                uv_ip4_name(in, host, sizeof host);
                snprintf(buf, buf_bytes, "%s:%u", host, ntohs(in->sin_port));
        } else if (addr.ss_family == AF_INET6) {
                const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)&addr;
                uv_ip6_name(in, host, sizeof host);
                snprintf(buf, buf_bytes, "[%s]:%u", host, ntohs(in->sin6_port));
        }
        return buf;
}
