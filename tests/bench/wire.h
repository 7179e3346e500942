/* Flux frames and non-blocking UNIX connections for the load generator: just enough of RFC 3, written for speed.
 *
 * A frame is magic(4, host order) length(4, big-endian) parts; a part is a size byte (or 255 and a u32) and data; PROTO is
 * the last part and 20 bytes, so its fields stand at fixed offsets from the frame's end, and so does a payload whose size
 * is known. Nothing here is parsed that can be reached from the end.
 */
#ifndef HEADGATE_BENCH_WIRE_H
#define HEADGATE_BENCH_WIRE_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "measure.h"

enum { MAGIC = 0xffee0012, HEADER = 8, PROTO = 20 };
enum { REQUEST = 1, RESPONSE = 2, EVENT = 4 };
enum { TOPIC = 1, PAYLOAD = 2, NORESPONSE = 4, ROUTE = 8 };
enum { AT_TYPE = 18, AT_FLAGS = 17, AT_AUX1 = 8, AT_AUX2 = 4 }; /* offsets back from a frame's end */
enum { READ_BYTES = 1 << 20 };
#define NODEID_ANY 0xffffffffu

#define UNUSED __attribute__((unused)) /* two programs include this file, neither needs all of it */

static uint32_t get32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static void put32(uint8_t *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

/* ------------------------------------------------------------------------------------------------ frames */

static uint8_t *put_part(uint8_t *at, const void *data, size_t size) {
    if (size < 255) {
        *at++ = (uint8_t)size;
    } else {
        *at++ = 255;
        put32(at, (uint32_t)size);
        at += 4;
    }
    memcpy(at, data, size);
    return at + size;
}

/* Write one frame with an empty route stack, as libflux clients do: userid unknown, rolemask 0. Returns its length. */
static size_t make_frame(uint8_t *frame, int type, const char *topic, const void *payload, size_t size, uint32_t aux1,
                         uint32_t aux2) {
    const uint32_t magic = MAGIC;
    uint8_t proto[PROTO] = {0x8e, 1, (uint8_t)type, (uint8_t)(ROUTE | TOPIC | (size ? PAYLOAD : 0))};
    uint8_t *at = frame + HEADER;
    put32(proto + 4, 0xffffffff);
    put32(proto + PROTO - AT_AUX1, aux1);
    put32(proto + PROTO - AT_AUX2, aux2);
    *at++ = 0; /* the delimiter */
    at = put_part(at, topic, strlen(topic));
    if (size) at = put_part(at, payload, size);
    at = put_part(at, proto, PROTO);
    memcpy(frame, &magic, 4);
    put32(frame + 4, (uint32_t)(at - frame - HEADER));
    return (size_t)(at - frame);
}

/* ------------------------------------------------------------------------------------------------ connections */

struct connection;
typedef void frame_handler(struct connection *, uint8_t *frame, size_t size);

struct connection {
    int fd;
    frame_handler *handler;
    uint8_t *partial; /* the beginning of a frame that the last read cut */
    size_t partial_size, partial_room;
    uint8_t *out; /* what waits to be written: out[head..tail) */
    size_t head, tail, room;
    bool waits; /* EPOLLOUT is on */
    uint64_t received; /* frames; the modes use it for what they count */
    uint64_t expected; /* the next number in the payload */
    uint32_t sequence; /* the last event sequence */
};

static int epoll_fd = -1;
static uint8_t read_buffer[READ_BYTES];

static uint8_t *reserve(struct connection *c, size_t size) {
    if (c->head == c->tail) c->head = c->tail = 0;
    if (c->tail + size > c->room) {
        c->room = 2 * (c->tail + size) + 65536;
        c->out = realloc(c->out, c->room);
        if (!c->out) fail("out of memory");
    }
    return c->out + c->tail;
}

UNUSED static void append(struct connection *c, const void *data, size_t size) {
    memcpy(reserve(c, size), data, size);
    c->tail += size;
}

static void watch(struct connection *c, int operation, bool writing) {
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(epoll_fd, operation, c->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
    c->waits = writing;
}

static void flush(struct connection *c) {
    while (c->head < c->tail) {
        ssize_t sent = send(c->fd, c->out + c->head, c->tail - c->head, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) break;
        if (sent < 0) fail("write: %s", strerror(errno));
        c->head += (size_t)sent;
    }
    if (c->waits != (c->head < c->tail)) watch(c, EPOLL_CTL_MOD, c->head < c->tail);
}

static void keep_partial(struct connection *c, const uint8_t *data, size_t size) {
    if (size > c->partial_room) {
        free(c->partial);
        c->partial_room = size + 4096;
        c->partial = malloc(c->partial_room);
        if (!c->partial) fail("out of memory");
    }
    memcpy(c->partial, data, size);
    c->partial_size = size;
}

/* One read; every whole frame goes to the handler, which may change it in place. */
UNUSED static void drain(struct connection *c) {
    size_t have = c->partial_size, at = 0;
    memcpy(read_buffer, c->partial, have);
    c->partial_size = 0;
    ssize_t got = recv(c->fd, read_buffer + have, READ_BYTES - have, MSG_DONTWAIT);
    if (got == 0) fail("the broker closed the connection");
    if (got < 0 && errno != EAGAIN) fail("read: %s", strerror(errno));
    have += got > 0 ? (size_t)got : 0;
    while (have - at >= HEADER) {
        uint32_t magic;
        size_t size = HEADER + get32(read_buffer + at + 4);
        memcpy(&magic, read_buffer + at, 4);
        if (magic != MAGIC || size > READ_BYTES || size < HEADER + 1 + PROTO) fail("bad frame header");
        if (have - at < size) break;
        c->received++;
        c->handler(c, read_buffer + at, size);
        at += size;
    }
    if (at < have) keep_partial(c, read_buffer + at, have - at);
}

static void wait_readable(int fd, const char *what) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, STALL_S * 1000) != 1) fail("no answer within %d s: %s", STALL_S, what);
}

/* Connect and read the byte that says whether we are welcome; -1 when nobody listens. The path may begin with "local://". */
static int try_dial(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint8_t verdict = 255;
    if (!strncmp(path, "local://", 8)) path += 8;
    if (strlen(path) >= sizeof address.sun_path) fail("socket path too long: %s", path);
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) fail("socket: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) {
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    wait_readable(fd, "handshake");
    if (read(fd, &verdict, 1) != 1 || verdict) fail("%s refused us: %s", path, strerror(verdict));
    return fd;
}

static int dial(const char *path) {
    int fd = try_dial(path);
    if (fd < 0) fail("connect %s: %s", path, strerror(errno));
    return fd;
}

static void attach(struct connection *c, int fd, frame_handler *handler) {
    if (epoll_fd < 0) epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    c->fd = fd;
    c->handler = handler;
    keep_partial(c, read_buffer, 0);
    watch(c, EPOLL_CTL_ADD, false);
}

static bool answered;

static void expect_success(struct connection *c, uint8_t *frame, size_t size) {
    uint32_t errnum = get32(frame + size - AT_AUX1);
    (void)c;
    if (frame[size - AT_TYPE] != RESPONSE || errnum) fail("a request was refused: %s", strerror((int)errnum));
    answered = true;
}

/* One request with a JSON payload; returns when its answer is here. */
UNUSED static void call(struct connection *c, const char *topic, const char *json) {
    uint8_t frame[1024];
    frame_handler *handler = c->handler;
    append(c, frame, make_frame(frame, REQUEST, topic, json, strlen(json) + 1, NODEID_ANY, 1));
    c->handler = expect_success;
    for (answered = false; !answered; drain(c)) {
        flush(c);
        wait_readable(c->fd, topic);
    }
    c->handler = handler;
    c->received = 0;
}

#endif
