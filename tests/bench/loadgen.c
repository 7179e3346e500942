/* The load generator of the benchmarks: speaks the socket framing itself, so that it costs far less than any broker.
 *
 *   loadgen relay  --caller URI --provider URI [--nodeid N] [--window W]   one service, one caller, W calls in the air
 *   loadgen events --caller URI --subscribers N [--window W]               one publisher, N subscribers
 *   loadgen idle   --caller URI --subscribers N                            N connections that do nothing, until stdin ends
 *   loadgen ready  --caller URI                                            waits for a broker; prints when it answered
 *
 *   --seconds S, --warmup S, --payload BYTES (8 or more); --pid P (again and again): report the CPU time P used while measuring
 *   --bare   no service.add, no event.subscribe: the other end is a relay of bytes
 *   --self   the other end is a thread of this process that copies bytes: where this program saturates
 *
 * Every message carries a number, and every receiver checks it: lost, duplicated and reordered messages are counted. Connections are
 * served by one epoll loop; what one read brought is answered with one write. The result is one JSON object on stdout.
 */
#include <pthread.h>

#include "wire.h"

enum { MAX_CONNECTIONS = 65536, TAIL_PROTO = 1 + PROTO };

static struct {
    const char *mode, *caller, *provider;
    uint32_t nodeid;
    long window, payload, subscribers;
    bool bare, self;
} opt = {.nodeid = NODEID_ANY, .window = 128, .payload = 16, .subscribers = 32};

static struct connection *connections; /* relay: caller, provider; events: publisher, subscribers */
static uint8_t *prebuilt;
static size_t prebuilt_size;
static uint64_t issued, lost, duplicated, reordered, refused, gaps;
static double last_progress;

/* ------------------------------------------------------------------------------------------------ numbers in payloads */

static void put_number(uint8_t *frame, size_t size, uint64_t number) {
    memcpy(frame + size - TAIL_PROTO - (size_t)opt.payload, &number, sizeof number);
}

static uint64_t get_number(const uint8_t *frame, size_t size) {
    uint64_t number;
    if (size < (size_t)opt.payload + TAIL_PROTO + HEADER) fail("a message came back without its payload");
    memcpy(&number, frame + size - TAIL_PROTO - (size_t)opt.payload, sizeof number);
    return number;
}

static void check_order(struct connection *c, uint64_t number) {
    if (number != c->expected) {
        if (number < c->expected) reordered++;
        else gaps++;
    }
    c->expected = number + 1;
}

/* ------------------------------------------------------------------------------------------------ relay */

static uint8_t *in_the_air; /* by number modulo its size: 1 while a call waits for its answer */
static size_t air_mask;
static double call_started;

static void issue_calls(struct connection *c) {
    while (issued - c->received < (uint64_t)opt.window) {
        uint8_t *frame = reserve(c, prebuilt_size);
        memcpy(frame, prebuilt, prebuilt_size);
        put_number(frame, prebuilt_size, issued);
        put32(frame + prebuilt_size - AT_AUX2, (uint32_t)(issued % 0xfffffffe) + 1);
        c->tail += prebuilt_size;
        in_the_air[issued++ & air_mask] = 1;
    }
    if (opt.window == 1) call_started = now_s();
}

static void take_answer(struct connection *c, uint8_t *frame, size_t size) {
    if (frame[size - AT_TYPE] != RESPONSE || get32(frame + size - AT_AUX1)) {
        refused++;
        return;
    }
    uint64_t number = get_number(frame, size);
    if (number >= issued || !in_the_air[number & air_mask]) duplicated++;
    else in_the_air[number & air_mask] = 0;
    check_order(c, number);
    if (opt.window == 1) keep_sample(1e6 * (now_s() - call_started));
}

static void answer_call(struct connection *c, uint8_t *frame, size_t size) {
    if (frame[size - AT_TYPE] != REQUEST) fail("the provider got a message of type %d", frame[size - AT_TYPE]);
    check_order(c, get_number(frame, size));
    frame[size - AT_TYPE] = RESPONSE;
    put32(frame + size - AT_AUX1, 0);
    append(c, frame, size);
}

static void relay_turn(void) {
    struct connection *caller = &connections[0], *provider = &connections[1];
    flush(provider);
    if (phase != DRAINING) issue_calls(caller);
    flush(caller);
}

static uint64_t relay_count(void) { return connections[0].received; }

static bool relay_drained(void) { return connections[0].received >= issued; }

/* ------------------------------------------------------------------------------------------------ events */

static void take_event(struct connection *c, uint8_t *frame, size_t size) {
    uint32_t sequence = get32(frame + size - AT_AUX1);
    if (frame[size - AT_TYPE] != EVENT) fail("a subscriber got a message of type %d", frame[size - AT_TYPE]);
    if (!opt.bare) { /* others publish too, so numbers may be skipped here, but never go back */
        if (c->sequence && sequence <= c->sequence) reordered++;
        c->sequence = sequence;
    }
    check_order(c, get_number(frame, size));
}

static void ignore_frame(struct connection *c, uint8_t *frame, size_t size) { (void)c, (void)frame, (void)size; }

static uint64_t slowest(void) {
    uint64_t least = UINT64_MAX;
    for (long i = 1; i <= opt.subscribers; i++)
        if (connections[i].received < least) least = connections[i].received;
    return least;
}

/* The slowest subscriber opens the window; it is refilled a quarter at a time, so that there are batches. */
static void events_turn(void) {
    struct connection *publisher = &connections[0];
    uint64_t limit = slowest() + (uint64_t)opt.window;
    if (phase != DRAINING && limit - issued >= (uint64_t)(opt.window + 3) / 4)
        for (; issued < limit; publisher->tail += prebuilt_size) {
            uint8_t *frame = reserve(publisher, prebuilt_size);
            memcpy(frame, prebuilt, prebuilt_size);
            put_number(frame, prebuilt_size, issued++);
        }
    flush(publisher);
}

static uint64_t events_count(void) {
    uint64_t sum = 0;
    for (long i = 1; i <= opt.subscribers; i++) sum += connections[i].received;
    return sum;
}

static bool events_drained(void) { return slowest() >= issued; }

/* ------------------------------------------------------------------------------------------------ --self */

static int far_ends[1 + MAX_CONNECTIONS];
static uint8_t copied[READ_BYTES];

static void write_all(int fd, const uint8_t *data, size_t size) {
    while (size) {
        ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
        if (sent < 0) return; /* the measurement is over */
        data += sent, size -= (size_t)sent;
    }
}

/* What comes from end 0 goes to all others, what comes from the others goes to end 0 (events: nothing does). */
static void *copy_bytes(void *count_of_ends) {
    long count = *(long *)count_of_ends;
    bool events = !strcmp(opt.mode, "events");
    struct pollfd polled[2] = {{.fd = far_ends[0], .events = POLLIN}, {.fd = events ? -1 : far_ends[1], .events = POLLIN}};
    for (;;) {
        if (poll(polled, 2, -1) < 0) return NULL;
        for (int i = 0; i < 2; i++) {
            if (!(polled[i].revents & (POLLIN | POLLHUP))) continue;
            ssize_t got = read(polled[i].fd, copied, sizeof copied);
            if (got <= 0) return NULL;
            if (i) write_all(far_ends[0], copied, (size_t)got);
            else
                for (long to = 1; to < count; to++) write_all(far_ends[to], copied, (size_t)got);
        }
    }
}

static int near_end(long i) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) fail("socketpair: %s", strerror(errno));
    far_ends[i] = ends[1];
    return ends[0];
}

static void start_copying(long count) {
    static pthread_t thread;
    static long ends;
    ends = count;
    if (pthread_create(&thread, NULL, copy_bytes, &ends)) fail("pthread_create failed");
}

/* ------------------------------------------------------------------------------------------------ set-up */

static void prebuild(int type, const char *topic, uint32_t aux1) {
    uint8_t *payload = calloc(1, (size_t)opt.payload);
    memset(payload + 8, 'x', (size_t)opt.payload - 8);
    prebuilt = malloc((size_t)opt.payload + 512);
    prebuilt_size = make_frame(prebuilt, type, topic, payload, (size_t)opt.payload, aux1, 0);
    free(payload);
}

static void open_relay(void) {
    struct connection *caller = &connections[0], *provider = &connections[1];
    char name[32], topic[64], json[64];
    snprintf(name, sizeof name, "bench%ld", (long)getpid());
    snprintf(topic, sizeof topic, "%s.echo", name);
    snprintf(json, sizeof json, "{\"service\":\"%s\"}", name);
    attach(provider, opt.self ? near_end(1) : dial(opt.provider ? opt.provider : opt.caller), answer_call);
    attach(caller, opt.self ? near_end(0) : dial(opt.caller), take_answer);
    if (opt.self) start_copying(2);
    if (!opt.bare) call(provider, "service.add", json);
    prebuild(REQUEST, topic, opt.nodeid);
    size_t room = 1;
    while (room < (size_t)opt.window) room *= 2;
    air_mask = room - 1;
    in_the_air = calloc(room, 1);
    make_room_for_samples();
}

static void open_events(void) {
    attach(&connections[0], opt.self ? near_end(0) : dial(opt.caller), ignore_frame);
    for (long i = 1; i <= opt.subscribers; i++) {
        attach(&connections[i], opt.self ? near_end(i) : dial(opt.caller), take_event);
        if (!opt.bare) call(&connections[i], "event.subscribe", "{\"topic\":\"bench.tick\"}");
    }
    if (opt.self) start_copying(1 + opt.subscribers);
    prebuild(EVENT, "bench.tick", 0);
}

static void hold_idle(void) {
    char byte;
    for (long i = 0; i < opt.subscribers; i++) connections[i].fd = dial(opt.caller);
    printf("{\"mode\": \"idle\", \"connections\": %ld}\n", opt.subscribers);
    fflush(stdout);
    while (read(0, &byte, 1) > 0) continue;
}

/* Connect as soon as somebody listens, and ask one question: the moment of the answer, on CLOCK_MONOTONIC. */
static void await_ready(void) {
    double start = now_s();
    int fd;
    while ((fd = try_dial(opt.caller)) < 0) {
        if (now_s() - start > STALL_S) fail("nobody listens at %s after %d s", opt.caller, STALL_S);
        usleep(500);
    }
    attach(&connections[0], fd, ignore_frame);
    call(&connections[0], "attr.get", "{\"name\":\"rank\"}");
    printf("{\"mode\": \"ready\", \"at\": %.6f}\n", now_s());
}

/* ------------------------------------------------------------------------------------------------ the loop */

static void serve(uint64_t now_count) {
    struct epoll_event events[256];
    static uint64_t before;
    int ready = epoll_wait(epoll_fd, events, 256, 1000);
    for (int i = 0; i < ready; i++) {
        struct connection *c = events[i].data.ptr;
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) drain(c);
        if (events[i].events & EPOLLOUT) flush(c);
    }
    if (now_count != before || !last_progress) last_progress = now_s();
    before = now_count;
}

static void run(void (*turn)(void), uint64_t (*count)(void), bool (*drained)(void)) {
    double start = now_s();
    for (;;) {
        double now = advance(start, count());
        turn();
        if (phase == DRAINING && (drained() || now - ended.time > STALL_S)) break;
        if (last_progress && now - last_progress > STALL_S && phase != DRAINING) fail("nothing moved for %d s", STALL_S);
        serve(count());
    }
}

/* ------------------------------------------------------------------------------------------------ the result */

static void print_result(void) {
    printf("{\"mode\": \"%s\", \"window\": %ld, \"payload\": %ld, ", opt.mode, opt.window, opt.payload);
    print_rate();
    printf("\"lost\": %lu, \"duplicated\": %lu, \"reordered\": %lu, \"gaps\": %lu, \"refused\": %lu, ", (unsigned long)lost,
           (unsigned long)duplicated, (unsigned long)reordered, (unsigned long)gaps, (unsigned long)refused);
    print_figures();
}

static void parse_options(int argc, char **argv) {
    static const struct option known[] = {
        {"caller", 1, 0, 'c'},  {"provider", 1, 0, 'P'},    {"nodeid", 1, 0, 'n'}, {"window", 1, 0, 'w'},
        {"payload", 1, 0, 'b'}, {"subscribers", 1, 0, 'N'}, {"bare", 0, 0, 'B'},   {"self", 0, 0, 'S'},
        MEASURE_OPTIONS,        {0, 0, 0, 0},
    };
    for (int o; (o = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (o) {
        case 'c': opt.caller = optarg; break;
        case 'P': opt.provider = optarg; break;
        case 'n': opt.nodeid = (uint32_t)strtoul(optarg, NULL, 0); break;
        case 'w': opt.window = atol(optarg); break;
        case 'b': opt.payload = atol(optarg); break;
        case 'N': opt.subscribers = atol(optarg); break;
        case 'B': opt.bare = true; break;
        case 'S': opt.self = opt.bare = true; break;
        default: take_measure_option(o);
        }
    }
    if (optind + 1 != argc) fail("expected one mode: relay, events, idle or ready");
    opt.mode = argv[optind];
    if (opt.payload < 8 || opt.payload > READ_BYTES / 2) fail("payload must be 8 to %d bytes", READ_BYTES / 2);
    if (opt.window < 1 || opt.subscribers < 1 || opt.subscribers >= MAX_CONNECTIONS) fail("window or subscribers out of range");
    if (!opt.caller && !opt.self) fail("--caller is missing");
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    connections = calloc((size_t)opt.subscribers + 2, sizeof *connections);
    if (!connections) fail("out of memory");
    if (!strcmp(opt.mode, "relay")) {
        open_relay();
        run(relay_turn, relay_count, relay_drained);
        lost = issued > connections[0].received ? issued - connections[0].received : 0;
    } else if (!strcmp(opt.mode, "events")) {
        open_events();
        run(events_turn, events_count, events_drained);
        for (long i = 1; i <= opt.subscribers; i++)
            lost += issued > connections[i].received ? issued - connections[i].received : 0;
    } else if (!strcmp(opt.mode, "idle")) {
        hold_idle();
        return 0;
    } else if (!strcmp(opt.mode, "ready")) {
        await_ready();
        return 0;
    } else {
        fail("no mode %s", opt.mode);
    }
    print_result();
    return lost || duplicated || reordered || gaps || refused ? 1 : 0;
}
