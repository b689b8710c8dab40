/*
 * Makes the IPv4 stream sockets of an unmodified program in the RDMA guest the kernel's SMC sockets, so that SMC-R can be
 * measured there; Debian has no smc-tools. Says on standard error when a connection is not on RDMA, and why.
 *
 *     cc -O1 -shared -fPIC -o smc.so scripts/guest/smc.c
 *     modprobe -a smc smc_diag && LD_PRELOAD=./smc.so PROGRAM
 *
 * Only the second version of SMC-R uses RoCE v2, which is all that Soft-RoCE has; its two ends must share an
 * identifier, which the administrator adds. So this needs root.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <linux/smc.h>
#include <linux/smc_diag.h>
#include <linux/sock_diag.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int (*real_socket)(int, int, int);
static int (*real_connect)(int, const struct sockaddr *, socklen_t);

/* A request of generic netlink. */
struct request {
    struct nlmsghdr header;
    struct genlmsghdr generic;
    char attributes[256];
};

static struct request request_to(int family, int command) {
    return (struct request){
        .header = {.nlmsg_len = NLMSG_HDRLEN + GENL_HDRLEN, .nlmsg_type = family, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK},
        .generic = {.cmd = command, .version = 1},
    };
}

static void add(struct request *request, int type, const void *value, size_t length) {
    struct nlattr attribute = {.nla_len = NLA_HDRLEN + length, .nla_type = type};
    char *end = (char *)request + request->header.nlmsg_len;
    memcpy(end, &attribute, sizeof attribute);
    memcpy(end + NLA_HDRLEN, value, length);
    request->header.nlmsg_len += NLA_ALIGN(attribute.nla_len);
}

static void add_string(struct request *request, int type, const char *value) {
    add(request, type, value, strlen(value) + 1);
}

/* Sends a request and receives the first message of its answer. */
static ssize_t ask(int netlink, const void *request, size_t length, void *answer, size_t room) {
    return send(netlink, request, length, 0) < 0 ? -1 : recv(netlink, answer, room, 0);
}

static void order(int netlink, const char *what, const struct request *request) {
    char answer[4096];
    ssize_t got = ask(netlink, request, request->header.nlmsg_len, answer, sizeof answer);
    const struct nlmsghdr *header = (void *)answer;
    const struct nlmsgerr *result = NLMSG_DATA(header);
    if (got < 0 || header->nlmsg_type != NLMSG_ERROR)
        fprintf(stderr, "smc: %s: no answer\n", what);
    else if (result->error != 0 && result->error != -EEXIST)
        fprintf(stderr, "smc: %s: %s\n", what, strerror(-result->error));
}

/* The number of a family of generic netlink; 0 if there is none. */
static int family(int netlink, const char *name) {
    char answer[4096];
    const struct nlmsghdr *header = (void *)answer;
    struct request request = request_to(GENL_ID_CTRL, CTRL_CMD_GETFAMILY);
    request.header.nlmsg_flags = NLM_F_REQUEST;
    add_string(&request, CTRL_ATTR_FAMILY_NAME, name);
    ssize_t got = ask(netlink, &request, request.header.nlmsg_len, answer, sizeof answer);
    if (got < 0 || header->nlmsg_type == NLMSG_ERROR) return 0;
    for (size_t at = NLMSG_HDRLEN + GENL_HDRLEN; at + NLA_HDRLEN <= header->nlmsg_len;) {
        const struct nlattr *attribute = (void *)(answer + at);
        if (attribute->nla_type == CTRL_ATTR_FAMILY_ID) return *(__u16 *)(attribute + 1);
        if (attribute->nla_len < NLA_HDRLEN) break;
        at += NLA_ALIGN(attribute->nla_len);
    }
    return 0;
}

/* What the two hosts of the guest need: which RDMA device belongs to which network, and one identifier. */
static void configure(int netlink) {
    static const char *const sides[][3] = {{"SIDEA", "rg-a", "rxe_a"}, {"SIDEB", "rg-b", "rxe_b"}};
    const __u8 port = 1;
    int networks = family(netlink, SMCR_GENL_FAMILY_NAME), others = family(netlink, SMC_GENL_FAMILY_NAME);
    for (int i = 0; i < 2; i++) {
        struct request network = request_to(networks, SMC_PNETID_ADD);
        add_string(&network, SMC_PNETID_NAME, sides[i][0]);
        add_string(&network, SMC_PNETID_ETHNAME, sides[i][1]);
        add_string(&network, SMC_PNETID_IBNAME, sides[i][2]);
        add(&network, SMC_PNETID_IBPORT, &port, sizeof port);
        order(netlink, "the network of a device", &network);
    }
    char identifier[SMC_MAX_EID_LEN + 1];
    snprintf(identifier, sizeof identifier, "%-*s", SMC_MAX_EID_LEN, "SANSHIM-BENCH");
    struct request request = request_to(others, SMC_NETLINK_ADD_UEID);
    add_string(&request, SMC_NLA_EID_TABLE_ENTRY, identifier);
    order(netlink, "the identifier", &request);
}

/* Tells of every SMC socket of the machine that has fallen back to TCP. */
static void tell_fallbacks(void) {
    struct {
        struct nlmsghdr header;
        struct smc_diag_req request;
    } request = {
        .header = {.nlmsg_len = sizeof request, .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                   .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
        .request = {.diag_family = AF_SMC, .diag_ext = 1 << (SMC_DIAG_FALLBACK - 1)},
    };
    char answer[8192];
    int netlink = real_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    ssize_t got = ask(netlink, &request, sizeof request, answer, sizeof answer);
    for (struct nlmsghdr *header = (void *)answer; got > 0 && NLMSG_OK(header, got); header = NLMSG_NEXT(header, got)) {
        if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY) break;
        const struct smc_diag_msg *one = NLMSG_DATA(header);
        if (one->diag_mode != SMC_DIAG_MODE_FALLBACK_TCP) continue;
        size_t at = NLMSG_LENGTH(NLMSG_ALIGN(sizeof *one));
        for (const struct nlattr *attribute; at + NLA_HDRLEN <= header->nlmsg_len; at += NLA_ALIGN(attribute->nla_len)) {
            attribute = (void *)((char *)header + at);
            if (attribute->nla_len < NLA_HDRLEN) break;
            if (attribute->nla_type != SMC_DIAG_FALLBACK) continue;
            const struct smc_diag_fallback *fallback = (void *)(attribute + 1);
            fprintf(stderr, "smc: on TCP, reason %#x, the peer's %#x\n", fallback->reason, fallback->peer_diagnosis);
        }
    }
    close(netlink);
}

__attribute__((constructor)) static void start(void) {
    real_socket = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    real_connect = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    int netlink = real_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);
    configure(netlink);
    close(netlink);
}

int socket(int family, int type, int protocol) {
    int stream = family == AF_INET && (type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK)) == SOCK_STREAM;
    return real_socket(stream ? AF_SMC : family, type, stream ? 0 : protocol);
}

int connect(int fd, const struct sockaddr *to, socklen_t length) {
    int result = real_connect(fd, to, length);
    if (result == 0) tell_fallbacks();
    return result;
}
