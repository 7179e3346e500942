/* The three languages on the wire of the web benchmarks: Flux messages, NATS text, WAMP in JSON. Each hands the payloads of
 * events, of calls (to a provider) and of answers to ``arrived``. Built on ws_frames.h.
 *
 * Flux and NATS put what one turn has to say into one WebSocket message, as their clients may; WAMP has a message a frame.
 */
#ifndef HEADGATE_BENCH_WS_LANGUAGES_H
#define HEADGATE_BENCH_WS_LANGUAGES_H

#include "ws_frames.h"

enum { LINE = 512 };
static size_t payload_bytes;
static void arrived(struct peer *p, const uint8_t *payload, size_t size);

__attribute__((format(printf, 2, 3))) static void say(struct peer *p, const char *format, ...) {
    char text[LINE];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (size >= LINE) fail("a line too long: %s", text);
    memcpy(compose(p, (size_t)size), text, (size_t)size);
    composed(p, (size_t)size);
}

/* A line that ends with the payload and ``after``. */
__attribute__((format(printf, 5, 6))) static void say_payload(struct peer *p, const char *after, const uint8_t *payload, size_t size,
                                                              const char *format, ...) {
    char text[LINE];
    va_list args;
    va_start(args, format);
    size_t before = (size_t)vsnprintf(text, sizeof text, format, args), behind = strlen(after);
    va_end(args);
    uint8_t *at = compose(p, before + size + behind);
    memcpy(at, text, before);
    memcpy(at + before, payload, size);
    memcpy(at + before + size, after, behind);
    composed(p, before + size + behind);
}

/* ------------------------------------------------------------------------------------------------ Flux */

static void flux_frame(struct peer *p, int type, const char *topic, const void *payload, size_t size, uint32_t aux1, uint32_t aux2) {
    composed(p, make_frame(compose(p, size + 512), type, topic, payload, size, aux1, aux2));
}

static void flux_ask(struct peer *p, const char *topic, const char *key, const char *value) {
    char json[256];
    int size = snprintf(json, sizeof json, "{\"%s\":\"%s\"}", key, value);
    flux_frame(p, REQUEST, topic, json, (size_t)size + 1, NODEID_ANY, 1);
    await_live(p, topic);
}

static void flux_greet(struct peer *p) {
    if (p->framing == WEBSOCKET) await_live(p, "welcome");
}

static void flux_subscribe(struct peer *p, const char *topic) { flux_ask(p, "event.subscribe", "topic", topic); }

static void flux_publish(struct peer *p, const char *topic, const uint8_t *payload, size_t size) {
    flux_frame(p, EVENT, topic, payload, size, 0, 0);
}

static void flux_offer(struct peer *p, const char *service) { flux_ask(p, "service.add", "service", service); }

static void flux_call(struct peer *p, const char *service, const uint8_t *payload, size_t size) {
    char topic[LINE];
    snprintf(topic, sizeof topic, "%s.echo", service);
    flux_frame(p, REQUEST, topic, payload, size, NODEID_ANY, (uint32_t)(++p->request % 0xfffffffe) + 1);
}

static void flux_control(struct peer *p, const uint8_t *data, size_t size) {
    if (memmem(data, size, "\"welcome\"", 9)) p->live = true;
    else if (memmem(data, size, "\"error\"", 7) && !closing_is_counted) fail("told: %.*s", (int)size, data);
    else p->notices++;
}

static void flux_take(struct peer *p, uint8_t *frame, size_t size) {
    int type = frame[size - AT_TYPE];
    if (type == RESPONSE && get32(frame + size - AT_AUX1)) {
        size_t shown = size < 200 ? size : 200;
        for (size_t i = 0; i < shown; i++)
            if (frame[i] < 32 || frame[i] > 126) frame[i] = '.';
        fail("refused: %s: %.*s", strerror((int)get32(frame + size - AT_AUX1)), (int)shown, frame);
    }
    if (type == RESPONSE && !p->live) {
        p->live = true;
        return;
    }
    if (type == REQUEST && frame[size - AT_FLAGS] & NORESPONSE) return; /* a caller of the run before took leave */
    if (size < payload_bytes + PROTO + 2 + HEADER) fail("a message of type %d came without its payload", type);
    arrived(p, frame + size - PROTO - 1 - payload_bytes, payload_bytes);
    if (type == REQUEST) {
        frame[size - AT_TYPE] = RESPONSE;
        put32(frame + size - AT_AUX1, 0);
        memcpy(compose(p, size), frame, size);
        composed(p, size);
    }
}

static size_t flux_bytes(struct peer *p, uint8_t *data, size_t size, bool text) {
    size_t at = 0;
    if (text) {
        flux_control(p, data, size);
        return size;
    }
    while (size - at >= HEADER) {
        uint32_t magic;
        size_t length = HEADER + get32(data + at + 4);
        memcpy(&magic, data + at, 4);
        if ((magic != MAGIC && ntohl(magic) != MAGIC) || length > READ_BYTES || length < HEADER + 1 + PROTO) fail("bad frame header");
        if (size - at < length) break;
        flux_take(p, data + at, length);
        at += length;
    }
    return at;
}

static const struct language FLUX = {"flux", "flux.v1", NULL, false, false, flux_greet, flux_subscribe, flux_publish,
                                     flux_offer, flux_call, flux_bytes};

/* ------------------------------------------------------------------------------------------------ NATS */

static void nats_greet(struct peer *p) {
    say(p, "CONNECT {\"verbose\":false,\"pedantic\":false,\"protocol\":1,\"name\":\"bench\",\"lang\":\"c\",\"version\":\"1\"}\r\nPING\r\n");
    await_live(p, "PONG");
}

static void nats_listen(struct peer *p, const char *subject) {
    say(p, "SUB %s %lu\r\nPING\r\n", subject, (unsigned long)++p->request);
    await_live(p, subject);
}

static void nats_publish(struct peer *p, const char *topic, const uint8_t *payload, size_t size) {
    say_payload(p, "\r\n", payload, size, "PUB %s %zu\r\n", topic, size);
}

/* Answers come to a subject of the caller's own; the first call subscribes to all of them, as client libraries do. */
static void nats_call(struct peer *p, const char *service, const uint8_t *payload, size_t size) {
    if (!p->request) {
        char inbox[64];
        snprintf(inbox, sizeof inbox, "_INBOX.%ld.*", p->index);
        nats_listen(p, inbox);
    }
    say_payload(p, "\r\n", payload, size, "PUB %s _INBOX.%ld.%lu %zu\r\n", service, p->index, (unsigned long)++p->request, size);
}

/* ``MSG subject sid [reply] size``; returns the length of the whole message, 0 when it is not here. */
static size_t nats_message(struct peer *p, char *line, size_t line_size, size_t have) {
    char *reply = NULL, *last = NULL, *save = NULL;
    int words = 0;
    line[line_size] = 0;
    char *size_at = memrchr(line, ' ', line_size);
    size_t size = size_at ? strtoul(size_at + 1, NULL, 10) : 0, whole = line_size + 2 + size + 2;
    if (have < whole) {
        line[line_size] = '\r';
        return 0;
    }
    for (char *word = strtok_r(line, " ", &save); word; word = strtok_r(NULL, " ", &save), words++) {
        reply = last;
        last = word;
    }
    uint8_t *payload = (uint8_t *)line + line_size + 2;
    arrived(p, payload, size);
    if (words == 5) say_payload(p, "\r\n", payload, size, "PUB %s %zu\r\n", reply, size);
    return whole;
}

static size_t nats_bytes(struct peer *p, uint8_t *data, size_t size, bool text) {
    size_t at = 0;
    (void)text;
    while (at < size) {
        char *line = (char *)data + at, *end = memchr(line, '\r', size - at);
        if (!end || (size_t)(end - line) + 2 > size - at) break;
        size_t length = (size_t)(end - line), whole = length + 2;
        if (!strncmp(line, "MSG ", 4)) whole = nats_message(p, line, length, size - at);
        else if (!strncmp(line, "PONG", 4)) p->live = true;
        else if (!strncmp(line, "PING", 4)) p->pings++, say(p, "PONG\r\n"), send_composed(p);
        else if (!strncmp(line, "-ERR", 4) && !closing_is_counted) fail("told: %.*s", (int)length, line);
        if (!whole) break;
        at += whole;
    }
    return at;
}

static const struct language NATS = {"nats", NULL, NULL, false, false, nats_greet, nats_listen, nats_publish,
                                     nats_listen, nats_call, nats_bytes};

/* ------------------------------------------------------------------------------------------------ WAMP */

enum { HELLO = 1, WELCOME = 2, ABORT = 3, ERROR_ = 8, PUBLISH = 16, SUBSCRIBE = 32, SUBSCRIBED = 33, WAMP_EVENT = 36,
       CALL = 48, RESULT = 50, REGISTER = 64, REGISTERED = 65, INVOCATION = 68, YIELD = 70 };

static void wamp_greet(struct peer *p) {
    say(p, "[%d,\"bench\",{\"roles\":{\"publisher\":{},\"subscriber\":{},\"caller\":{},\"callee\":{}}}]", HELLO);
    await_live(p, "WELCOME");
}

static void wamp_subscribe(struct peer *p, const char *topic) {
    say(p, "[%d,%lu,{},\"%s\"]", SUBSCRIBE, (unsigned long)++p->request, topic);
    await_live(p, topic);
}

static void wamp_publish(struct peer *p, const char *topic, const uint8_t *payload, size_t size) {
    say_payload(p, "\"]]", payload, size, "[%d,%lu,{},\"%s\",[\"", PUBLISH, (unsigned long)++p->request, topic);
}

static void wamp_offer(struct peer *p, const char *service) {
    say(p, "[%d,%lu,{},\"%s\"]", REGISTER, (unsigned long)++p->request, service);
    await_live(p, service);
}

static void wamp_call(struct peer *p, const char *service, const uint8_t *payload, size_t size) {
    say_payload(p, "\"]]", payload, size, "[%d,%lu,{},\"%s\",[\"", CALL, (unsigned long)++p->request, service);
}

/* One message a frame; where there is a payload it is the last thing in it. */
static size_t wamp_bytes(struct peer *p, uint8_t *data, size_t size, bool text) {
    long kind = strtol((char *)data + 1, NULL, 10);
    (void)text;
    if (kind == ABORT || kind == ERROR_) fail("told: %.*s", (int)size, data);
    if (kind != WAMP_EVENT && kind != RESULT && kind != INVOCATION) {
        p->live = true;
        return size;
    }
    if (size < payload_bytes + 8 || memcmp(data + size - 3, "\"]]", 3)) fail("unexpected: %.*s", (int)size, data);
    uint8_t *payload = data + size - 3 - payload_bytes;
    arrived(p, payload, payload_bytes);
    if (kind == INVOCATION)
        say_payload(p, "\"]]", payload, payload_bytes, "[%d,%lu,{},[\"", YIELD, strtoul(strchr((char *)data, ',') + 1, NULL, 10));
    return size;
}

static const struct language WAMP = {"wamp", "wamp.2.json", "\x7f\xf1\0\0", true, true, wamp_greet, wamp_subscribe, wamp_publish,
                                     wamp_offer, wamp_call, wamp_bytes};

#endif
