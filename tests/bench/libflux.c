/* The load generator that is a real client: it speaks through the libflux of a flux-core (FLUX_PREFIX), with futures and
 * handlers in one reactor, as programs of that library do. What it costs is part of what such a program sees.
 *
 *   libflux ping    --caller URI                   broker.ping of the rank --nodeid; the payload is a string in its JSON
 *   libflux service --caller URI --provider URI    an echo that another process offers; the payload is raw
 *   libflux event   --caller URI --provider URI    one event at a time from a publisher to a subscriber at --provider
 *
 *   --nodeid N, --window W (calls in the air), --payload BYTES, --least N (go on until there are N samples)
 *   --seconds S, --warmup S; --pid P (again and again): report the CPU time P used while measuring
 *
 * Every call carries a number, and its answer has to bring it back: lost, reordered, refused and wrong answers are counted. The
 * result is one JSON object on stdout; the exit code is 1 when something was lost.
 */
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <flux/core.h>

#include "measure.h"

enum { MAX_WINDOW = 65536, DIGITS = 10, NUMBER_BYTES = 8 };
static const uint64_t FIRST_NUMBER = 1000000000; /* so that all numbers have the same length as text */

static struct {
    const char *mode, *caller, *provider;
    uint32_t nodeid;
    long window, payload;
} opt = {.nodeid = FLUX_NODEID_ANY, .window = 1};

/* One place in the window; its next call begins when its last one has been answered. */
struct call {
    uint64_t number;
    double began;
};

static flux_t *caller;
static uint64_t issued, received, expected, reordered, refused, wrong;
static double run_began;
static char topic[64];

static flux_t *open_handle(const char *uri) {
    flux_t *h = flux_open(uri, 0);
    if (!h) fail("connect %s: %s", uri, strerror(errno));
    return h;
}

/* ------------------------------------------------------------------------------------------------ calls and their numbers */

static char *text; /* ping: the request, in which only the digits change */
static char *digits;
static uint8_t *raw; /* service: the request, in which only the first bytes change */

static size_t number_bytes(void) { return opt.payload < NUMBER_BYTES ? (size_t)opt.payload : NUMBER_BYTES; }

static flux_future_t *ask_ping(uint64_t number) {
    char written[DIGITS + 1];
    snprintf(written, sizeof written, "%lu", (unsigned long)(FIRST_NUMBER + number));
    memcpy(digits, written, DIGITS);
    return flux_rpc(caller, topic, text, opt.nodeid, 0);
}

static bool is_ping_answer(flux_future_t *answer, uint64_t number) {
    const char *got, *at;
    if (flux_rpc_get(answer, &got) < 0) return refused++, true;
    at = got ? strstr(got, "\"seq\":") : NULL;
    return at && strtoull(at + strlen("\"seq\":"), NULL, 10) == FIRST_NUMBER + number && strlen(got) > (size_t)opt.payload;
}

static flux_future_t *ask_service(uint64_t number) {
    memcpy(raw, &number, number_bytes());
    return flux_rpc_raw(caller, topic, raw, (size_t)opt.payload, opt.nodeid, 0);
}

static bool is_service_answer(flux_future_t *answer, uint64_t number) {
    const void *got;
    size_t size;
    if (flux_rpc_get_raw(answer, &got, &size) < 0) return refused++, true;
    return size == (size_t)opt.payload && !memcmp(got, &number, number_bytes());
}

static flux_future_t *(*ask)(uint64_t number);
static bool (*is_answer)(flux_future_t *answer, uint64_t number);

static void take_answer(flux_future_t *answer, void *of_call);

static void issue(struct call *call) {
    call->number = issued++;
    call->began = now_s();
    flux_future_t *answer = ask(call->number);
    if (!answer || flux_future_then(answer, -1, take_answer, call) < 0) fail("call: %s", strerror(errno));
}

static void take_answer(flux_future_t *answer, void *of_call) {
    struct call *call = of_call;
    if (opt.window == 1) keep_sample(1e6 * (now_s() - call->began));
    if (!is_answer(answer, call->number)) wrong++;
    if (call->number != expected) reordered++;
    expected = call->number + 1;
    received++;
    flux_future_destroy(answer);
    advance(run_began, received);
    if (phase != DRAINING) issue(call);
    else if (received == issued) flux_reactor_stop(flux_get_reactor(caller));
}

static void begin_calls(void) {
    struct call *calls = calloc((size_t)opt.window, sizeof *calls);
    if (!calls) fail("out of memory");
    for (long i = 0; i < opt.window; i++) issue(&calls[i]);
}

static void prepare_ping(void) {
    size_t size = (size_t)opt.payload;
    text = malloc(size + 64);
    if (!text) fail("out of memory");
    digits = text + sprintf(text, "{\"seq\":");
    char *at = digits + sprintf(digits, "%lu", (unsigned long)FIRST_NUMBER);
    if (size) at += sprintf(at, ",\"pad\":\""), memset(at, 'x', size), at += size, *at++ = '"';
    strcpy(at, "}");
    strcpy(topic, "broker.ping");
    caller = open_handle(opt.caller);
    ask = ask_ping, is_answer = is_ping_answer;
}

/* ------------------------------------------------------------------------------------------------ the service of another process */

static pid_t provider;

static void echo(flux_t *h, flux_msg_handler_t *handler, const flux_msg_t *request, void *arg) {
    const void *data;
    size_t size;
    (void)handler, (void)arg;
    if (flux_request_decode_raw(request, NULL, &data, &size) < 0 || flux_respond_raw(h, request, data, size) < 0)
        fail("the provider: %s", strerror(errno));
}

/* Says when callers may come, by one byte. */
static void provide(const char *name, int ready) {
    flux_t *h = open_handle(opt.provider);
    struct flux_match match = FLUX_MATCH_REQUEST;
    match.topic_glob = topic;
    flux_msg_handler_t *handler = flux_msg_handler_create(h, match, echo, NULL);
    if (!handler) fail("the provider: %s", strerror(errno));
    flux_msg_handler_start(handler);
    flux_future_t *registered = flux_service_register(h, name);
    if (!registered || flux_future_get(registered, NULL) < 0) fail("the provider's name: %s", strerror(errno));
    flux_future_destroy(registered);
    if (write(ready, "", 1) != 1) fail("nobody waits for the provider");
    flux_reactor_run(flux_get_reactor(h), 0);
    fail("the provider's reactor ended");
}

static void stop_provider(void) {
    kill(provider, SIGKILL);
    waitpid(provider, NULL, 0);
}

/* The other process leaves before this one has a handle, which cannot be shared. */
static void prepare_service(void) {
    int ready[2];
    char name[32], byte;
    snprintf(name, sizeof name, "bench%ld", (long)getpid());
    snprintf(topic, sizeof topic, "%s.echo", name);
    raw = malloc((size_t)opt.payload);
    if (!raw || pipe(ready)) fail("no memory or no pipe");
    memset(raw, 'x', (size_t)opt.payload);
    provider = fork();
    if (provider < 0) fail("fork: %s", strerror(errno));
    if (!provider) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ready[0]);
        provide(name, ready[1]);
    }
    atexit(stop_provider);
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1) fail("the provider did not come up");
    caller = open_handle(opt.caller);
    ask = ask_service, is_answer = is_service_answer;
}

/* ------------------------------------------------------------------------------------------------ events */

/* Publisher and subscriber share the reactor: the next event leaves when the last one has come and its publishing is answered. */
static double published;
static bool event_came, publish_answered;

static void publish(void);

static void after_event(void) {
    if (!event_came || !publish_answered) return;
    received++;
    advance(run_began, received);
    if (phase != DRAINING) publish();
    else flux_reactor_stop(flux_get_reactor(caller));
}

static void take_published(flux_future_t *answer, void *arg) {
    (void)arg;
    if (flux_future_get(answer, NULL) < 0) refused++;
    flux_future_destroy(answer);
    publish_answered = true;
    after_event();
}

static void publish(void) {
    uint64_t number = issued++;
    event_came = publish_answered = false;
    published = now_s();
    memcpy(raw, &number, sizeof number);
    flux_future_t *answer = flux_event_publish_raw(caller, topic, 0, raw, (size_t)opt.payload);
    if (!answer || flux_future_then(answer, -1, take_published, NULL) < 0) fail("publish: %s", strerror(errno));
}

static void take_event(flux_t *h, flux_msg_handler_t *handler, const flux_msg_t *event, void *arg) {
    const void *data;
    size_t size;
    uint64_t number = 0;
    (void)h, (void)handler, (void)arg;
    keep_sample(1e6 * (now_s() - published));
    if (flux_event_decode_raw(event, NULL, &data, &size) < 0) fail("an event: %s", strerror(errno));
    if (size == (size_t)opt.payload) memcpy(&number, data, sizeof number);
    if (size != (size_t)opt.payload || event_came) wrong++;
    else if (number != expected) reordered++;
    expected = number + 1;
    event_came = true;
    after_event();
}

static void prepare_event(void) {
    flux_t *subscriber = open_handle(opt.provider);
    caller = open_handle(opt.caller);
    struct flux_match match = FLUX_MATCH_EVENT;
    snprintf(topic, sizeof topic, "bench%ld.tick", (long)getpid());
    match.topic_glob = topic;
    raw = calloc(1, (size_t)opt.payload);
    if (!raw) fail("out of memory");
    if (flux_set_reactor(subscriber, flux_get_reactor(caller)) < 0) fail("reactor: %s", strerror(errno));
    flux_msg_handler_t *handler = flux_msg_handler_create(subscriber, match, take_event, NULL);
    if (!handler || flux_event_subscribe(subscriber, topic) < 0) fail("subscribe: %s", strerror(errno));
    flux_msg_handler_start(handler);
}

/* ------------------------------------------------------------------------------------------------ the run */

static void look_for_progress(flux_reactor_t *reactor, flux_watcher_t *timer, int events, void *arg) {
    static uint64_t before = UINT64_MAX;
    (void)reactor, (void)timer, (void)events, (void)arg;
    if (received == before) fail("nothing moved for %d s", STALL_S);
    before = received;
}

static void run(void (*begin)(void)) {
    flux_reactor_t *reactor = flux_get_reactor(caller);
    flux_watcher_t *timer = flux_timer_watcher_create(reactor, STALL_S, STALL_S, look_for_progress, NULL);
    if (!timer) fail("timer: %s", strerror(errno));
    flux_watcher_start(timer);
    make_room_for_samples();
    run_began = now_s();
    begin();
    if (flux_reactor_run(reactor, 0) < 0) fail("the connection is lost: %s", strerror(errno));
    if (phase != DRAINING) fail("the reactor ended too early");
}

static uint64_t lost(void) { return issued - received; }

static void print_result(void) {
    printf("{\"mode\": \"%s\", \"window\": %ld, \"payload\": %ld, ", opt.mode, opt.window, opt.payload);
    print_rate();
    printf("\"lost\": %lu, \"reordered\": %lu, \"refused\": %lu, \"wrong\": %lu, ", (unsigned long)lost(), (unsigned long)reordered,
           (unsigned long)refused, (unsigned long)wrong);
    print_figures();
}

static void parse_options(int argc, char **argv) {
    static const struct option known[] = {
        {"caller", 1, 0, 'c'},  {"provider", 1, 0, 'P'}, {"nodeid", 1, 0, 'n'}, {"window", 1, 0, 'w'},
        {"payload", 1, 0, 'b'}, {"least", 1, 0, 'l'},    MEASURE_OPTIONS,       {0, 0, 0, 0},
    };
    for (int o; (o = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (o) {
        case 'c': opt.caller = optarg; break;
        case 'P': opt.provider = optarg; break;
        case 'n': opt.nodeid = (uint32_t)strtoul(optarg, NULL, 0); break;
        case 'w': opt.window = atol(optarg); break;
        case 'b': opt.payload = atol(optarg); break;
        case 'l': measured.least = (size_t)atol(optarg); break;
        default: take_measure_option(o);
        }
    }
    if (optind + 1 != argc) fail("expected one mode: ping, service or event");
    opt.mode = argv[optind];
    if (opt.window < 1 || opt.window > MAX_WINDOW) fail("window must be 1 to %d", MAX_WINDOW);
    if (opt.window > 1 && measured.least) fail("only one call at a time gives samples");
    if (!opt.caller) fail("--caller is missing");
}

static const struct mode {
    const char *name;
    long least_payload;
    bool has_provider;
    void (*prepare)(void); /* opens the caller's handle */
    void (*begin)(void);
} modes[] = {
    {"ping", 0, false, prepare_ping, begin_calls},
    {"service", 1, true, prepare_service, begin_calls},
    {"event", NUMBER_BYTES, true, prepare_event, publish},
};

static const struct mode *chosen(void) {
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(opt.mode, modes[i].name)) continue;
        if (opt.payload < modes[i].least_payload) fail("%s: payload must be %ld bytes or more", opt.mode, modes[i].least_payload);
        if (modes[i].has_provider && !opt.provider) fail("--provider is missing");
        return &modes[i];
    }
    fail("no mode %s: ping, service or event", opt.mode);
    return NULL;
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    const struct mode *mode = chosen();
    mode->prepare();
    run(mode->begin);
    print_result();
    return lost() || reordered || refused || wrong ? 1 : 0;
}
