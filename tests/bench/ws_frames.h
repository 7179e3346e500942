/* RFC 6455 for the web load generator: the client's side of a handshake, masked frames out, any frames in, control frames
 * answered. A connection may also be without WebSocket (a UNIX or TCP socket with the same language on it), so that a
 * provider can stand where services usually stand. Built on wire.h.
 */
#ifndef HEADGATE_BENCH_WS_FRAMES_H
#define HEADGATE_BENCH_WS_FRAMES_H

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>

#include "wire.h"

enum { OP_CONTINUATION = 0, OP_TEXT = 1, OP_BINARY = 2, OP_CLOSE = 8, OP_PING = 9, OP_PONG = 10 };
enum { SEALED_HEADER = 14, UPGRADE_BYTES = 4096, RECORD_HEADER = 4 };
/* STREAM: the language's own framing suffices. RECORDS: WAMP's raw socket, a length before each message. */
enum framing { WEBSOCKET, STREAM, RECORDS };

struct peer;

/* What a broker speaks. ``take`` gets application bytes and returns how many it used up: whole messages only. */
struct language {
    const char *name, *subprotocol, *record_greeting;
    bool text, one_message_a_frame;
    void (*greet)(struct peer *);
    void (*subscribe)(struct peer *, const char *topic);
    void (*publish)(struct peer *, const char *topic, const uint8_t *payload, size_t size);
    void (*offer)(struct peer *, const char *service);
    void (*call)(struct peer *, const char *service, const uint8_t *payload, size_t size);
    size_t (*take)(struct peer *, uint8_t *data, size_t size, bool text);
};

struct peer {
    struct connection c; /* first: epoll hands out its address */
    const struct language *speaks;
    enum framing framing;
    uint8_t *rest; /* the beginning of an application message that the last frame cut */
    size_t rest_size, rest_room;
    size_t sealed; /* c.out up to here has its frame headers; behind it, application bytes after a gap for one */
    long index;
    uint64_t request; /* the last request id, where a language counts them */
    uint64_t pings, notices;
    bool text_message; /* of the fragments that follow */
    bool live;         /* what was asked last has been confirmed */
    bool closed;
};

static uint64_t closes;
static bool closing_is_counted; /* else the end of a connection ends the measurement */

static void peer_closed(struct peer *p, const char *why) {
    if (!closing_is_counted) fail("connection %ld was closed: %s", p->index, why);
    if (p->closed) return;
    p->closed = true;
    closes++;
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, p->c.fd, NULL);
}

/* ------------------------------------------------------------------------------------------------ out */

static const uint8_t MASK[8] = {0x9d, 0x41, 0xe6, 0x2b, 0x9d, 0x41, 0xe6, 0x2b};

static void apply_mask(uint8_t *data, size_t size) {
    uint64_t word, mask;
    memcpy(&mask, MASK, 8);
    size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        memcpy(&word, data + at, 8);
        word ^= mask;
        memcpy(data + at, &word, 8);
    }
    for (; at < size; at++) data[at] ^= MASK[at & 7];
}

/* Room for application bytes; the first of a frame leaves a gap for its header. */
static uint8_t *compose(struct peer *p, size_t size) {
    if (p->c.head == p->c.tail) p->c.head = p->c.tail = p->sealed = 0;
    bool fresh = p->sealed == p->c.tail;
    size_t gap = p->framing == STREAM || !fresh ? 0 : p->framing == RECORDS ? RECORD_HEADER : SEALED_HEADER;
    uint8_t *at = reserve(&p->c, gap + size);
    p->c.tail += gap;
    return at + gap;
}

/* Give what was composed since the last time its header: one frame. The header ends where the data begin, so the gap's
 * unused front is closed by moving the data. */
static void seal_as(struct peer *p, int opcode) {
    if (p->sealed == p->c.tail || p->framing == STREAM) {
        p->sealed = p->c.tail;
        return;
    }
    uint8_t *start = p->c.out + p->sealed;
    if (p->framing == RECORDS) {
        put32(start, (uint32_t)(p->c.tail - p->sealed - RECORD_HEADER));
        p->sealed = p->c.tail;
        return;
    }
    size_t size = p->c.tail - p->sealed - SEALED_HEADER, head = size < 126 ? 6 : size < 65536 ? 8 : 14;
    memmove(start + head, start + SEALED_HEADER, size);
    start[0] = (uint8_t)(0x80 | opcode);
    start[1] = (uint8_t)(0x80 | (size < 126 ? size : size < 65536 ? 126 : 127));
    if (head == 8) start[2] = (uint8_t)(size >> 8), start[3] = (uint8_t)size;
    if (head == 14) put32(start + 2, 0), put32(start + 6, (uint32_t)size);
    memcpy(start + head - 4, MASK, 4);
    apply_mask(start + head, size);
    p->c.tail -= SEALED_HEADER - head;
    p->sealed = p->c.tail;
}

static void seal(struct peer *p) { seal_as(p, p->speaks->text ? OP_TEXT : OP_BINARY); }

static void composed(struct peer *p, size_t size) {
    p->c.tail += size;
    if (p->speaks->one_message_a_frame) seal(p);
}

static void send_composed(struct peer *p) {
    seal(p);
    if (!p->closed) flush(&p->c);
}

static void pong(struct peer *p, const uint8_t *data, size_t size) {
    seal(p);
    memcpy(compose(p, size), data, size);
    p->c.tail += size;
    if (!size) compose(p, 0);
    p->pings++;
    seal_as(p, OP_PONG);
    flush(&p->c);
}

/* ------------------------------------------------------------------------------------------------ in */

static void keep_rest(struct peer *p, const uint8_t *data, size_t size) {
    if (p->rest_size + size > p->rest_room) {
        p->rest_room = 2 * (p->rest_size + size) + 4096;
        p->rest = realloc(p->rest, p->rest_room);
        if (!p->rest) fail("out of memory");
    }
    memcpy(p->rest + p->rest_size, data, size);
    p->rest_size += size;
}

static void feed(struct peer *p, uint8_t *data, size_t size, bool text) {
    if (!p->rest_size) {
        size_t used = p->speaks->take(p, data, size, text);
        if (used < size) keep_rest(p, data + used, size - used);
        return;
    }
    keep_rest(p, data, size);
    size_t used = p->speaks->take(p, p->rest, p->rest_size, text);
    memmove(p->rest, p->rest + used, p->rest_size - used);
    p->rest_size -= used;
}

static void take_frame(struct peer *p, int first, uint8_t *data, size_t size) {
    int opcode = first & 15;
    char why[200];
    if (first & 0x70) fail("a frame has reserved bits: %#x", first);
    if (opcode == OP_PING) pong(p, data, size);
    else if (opcode == OP_CLOSE) {
        snprintf(why, sizeof why, "code %d, %.*s", size >= 2 ? data[0] << 8 | data[1] : 1005, size > 2 ? (int)size - 2 : 0, data + 2);
        peer_closed(p, why);
    } else if (opcode <= OP_BINARY) {
        if (opcode) p->text_message = opcode == OP_TEXT;
        feed(p, data, size, p->text_message);
    }
}

/* Whole WebSocket frames; returns the bytes used up. A masked frame is our own echo (--self) and carries its mask. */
static size_t unwrap(struct peer *p, uint8_t *data, size_t size) {
    size_t at = 0;
    while (size - at >= 2 && !p->closed) {
        uint8_t *frame = data + at;
        uint64_t length = frame[1] & 127;
        size_t head = length < 126 ? 2 : length == 126 ? 4 : 10;
        bool masked = frame[1] & 128;
        if (masked) head += 4;
        if (size - at < head) break;
        if (length == 126) length = (uint64_t)frame[2] << 8 | frame[3];
        else if (length == 127) length = (uint64_t)get32(frame + 2) << 32 | get32(frame + 6);
        if (length > READ_BYTES - 16) fail("a frame of %lu bytes", (unsigned long)length);
        if (size - at < head + length) break;
        if (masked) apply_mask(frame + head, length);
        take_frame(p, frame[0], frame + head, length);
        at += head + length;
    }
    return p->closed ? size : at;
}

static size_t unrecord(struct peer *p, uint8_t *data, size_t size) {
    size_t at = 0;
    while (size - at >= RECORD_HEADER) {
        size_t length = get32(data + at) & 0xffffff;
        if (size - at < RECORD_HEADER + length) break;
        feed(p, data + at + RECORD_HEADER, length, true);
        at += RECORD_HEADER + length;
    }
    return at;
}

/* One read. */
static void pull(struct peer *p) {
    struct connection *c = &p->c;
    size_t have = c->partial_size, used = 0;
    if (p->closed) return;
    if (have) memcpy(read_buffer, c->partial, have);
    ssize_t got = recv(c->fd, read_buffer + have, READ_BYTES - have, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        peer_closed(p, got ? strerror(errno) : "end of file");
        return;
    }
    c->partial_size = 0;
    have += (size_t)got;
    if (p->framing == WEBSOCKET) used = unwrap(p, read_buffer, have);
    else if (p->framing == RECORDS) used = unrecord(p, read_buffer, have);
    else feed(p, read_buffer, have, false), used = have;
    if (used < have) keep_partial(c, read_buffer + used, have - used);
}

/* Send what was asked and read until it is confirmed. */
static void await_live(struct peer *p, const char *what) {
    for (p->live = false, send_composed(p); !p->live; pull(p)) {
        flush(&p->c);
        wait_readable(p->c.fd, what);
    }
}

/* ------------------------------------------------------------------------------------------------ handshake */

static int dial_tcp(const char *rest, int receive_bytes, char *host, size_t host_room) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *colon = strrchr(rest, ':');
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) fail("socket: %s", strerror(errno));
    if (!colon) fail("no port in %s", rest);
    address.sin_port = htons((uint16_t)atoi(colon + 1));
    snprintf(host, host_room, "%.*s", (int)strcspn(rest, "/?"), rest);
    if (receive_bytes && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes)) fail("SO_RCVBUF: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect %s: %s", rest, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void write_whole(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
        if (sent < 0) fail("write: %s", strerror(errno));
        data += sent, size -= (size_t)sent;
    }
}

static void ask_upgrade(struct peer *p, const char *host, const char *target, const char *token) {
    char text[UPGRADE_BYTES], lines[UPGRADE_BYTES / 2] = "";
    size_t at = 0;
    if (p->speaks->subprotocol)
        at += (size_t)snprintf(lines + at, sizeof lines - at, "Sec-WebSocket-Protocol: %s\r\n", p->speaks->subprotocol);
    if (token) snprintf(lines + at, sizeof lines - at, "Authorization: Bearer %s\r\n", token);
    int size = snprintf(text, sizeof text,
                        "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s\r\n",
                        *target ? target : "/", host, lines);
    write_whole(p->c.fd, text, (size_t)size);
}

/* Read the head of the answer a byte at a time: what follows belongs to the protocol. */
static void await_upgrade(struct peer *p) {
    char text[UPGRADE_BYTES + 1];
    size_t have = 0;
    while (have < 4 || memcmp(text + have - 4, "\r\n\r\n", 4)) {
        wait_readable(p->c.fd, "upgrade");
        if (have == UPGRADE_BYTES || read(p->c.fd, text + have, 1) != 1) fail("the upgrade was cut: %.*s", (int)have, text);
        have++;
    }
    text[have] = 0;
    if (strncmp(text, "HTTP/1.1 101", 12)) fail("no upgrade: %.*s", (int)strcspn(text, "\r"), text);
}

/* WAMP's raw socket: magic, longest message and serializer, two zeros; the same comes back. */
static void greet_records(struct peer *p) {
    char answer[4];
    write_whole(p->c.fd, p->speaks->record_greeting, 4);
    wait_readable(p->c.fd, "raw socket greeting");
    if (recv(p->c.fd, answer, 4, MSG_WAITALL) != 4 || answer[0] != 0x7f) fail("no raw socket");
}

static int dial_unix(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || strlen(path) >= sizeof address.sun_path) fail("bad socket or path: %s", path);
    strcpy(address.sun_path, path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect %s: %s", path, strerror(errno));
    return fd;
}

/* First half of a connection: everything is sent, nothing awaited. ``receive_bytes``: 0, or a receive buffer that small. */
static void begin(struct peer *p, const struct language *language, const char *uri, const char *token, int receive_bytes) {
    char host[256];
    p->speaks = language;
    p->framing = STREAM;
    if (!strncmp(uri, "ws://", 5)) {
        p->framing = WEBSOCKET;
        p->c.fd = dial_tcp(uri + 5, receive_bytes, host, sizeof host);
        ask_upgrade(p, host, uri + 5 + strcspn(uri + 5, "/?"), token);
    } else if (!strncmp(uri, "local://", 8)) p->c.fd = dial(uri);
    else if (!strncmp(uri, "tcp://", 6)) p->c.fd = dial_tcp(uri + 6, receive_bytes, host, sizeof host);
    else if (!strncmp(uri, "unix://", 7)) {
        p->framing = RECORDS;
        p->c.fd = dial_unix(uri + 7);
        greet_records(p);
    } else fail("no way to connect to %s", uri);
}

/* Second half. */
static void finish(struct peer *p) {
    if (p->framing == WEBSOCKET) await_upgrade(p);
    attach(&p->c, p->c.fd, NULL);
    p->speaks->greet(p);
}

#endif
