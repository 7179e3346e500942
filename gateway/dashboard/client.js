/**
 * Client of a Headgate gateway for browsers and for node: calls, streams, events and services over one WebSocket
 * that connects again by itself. No dependencies. README.md beside this file is the manual.
 *
 *     import { connect, FluxError } from './client.js';
 *
 *     const flux = connect('/v1/ws');
 *     console.log(await flux.rpc('attr.get', { name: 'size' }));
 *     for await (const line of flux.stream('log.dmesg', { follow: true }, { nodeid: 0 })) console.log(line);
 *
 * @module
 */

import { Backoff } from './client/backoff.js';
import { Calls, Stream } from './client/calls.js';
import { closeMeaning, reconnects } from './client/closes.js';
import { ERRNO, FluxError, errnoName } from './client/errors.js';
import * as jsonview from './client/jsonview.js';
import { EVENT, FLAG, NODEID_ANY, Payload, REQUEST, RESPONSE, toBase64, tokenOf, topicOf } from './client/message.js';
import { Provider } from './client/provider.js';
import { Refresh } from './client/refresh.js';
import { Socket, socketAddress } from './client/socket.js';
import { Event, Subscription, Subscriptions } from './client/subscriptions.js';
import * as wire from './client/wire.js';

export {
  ERRNO, Event, FLAG, FluxError, NODEID_ANY, Stream, Subscription, closeMeaning, errnoName, reconnects,
};

const CODECS = { [wire.NAME]: wire, [jsonview.NAME]: jsonview };

const CALL_TIMEOUT_MS = 30_000;
/** Requests that may wait for a connection. */
const HELD_MAX = 1024;

/**
 * @typedef {object} ConnectOptions
 * @property {string} [token]  a bearer token, sent in the first frame. Without `token` and `getToken` the browser's
 *   login cookie is the credential.
 * @property {() => string | Promise<string>} [getToken]  gives a fresh token: called before each connection, and
 *   again before the token of a live connection expires
 * @property {'flux.v1' | 'flux.v1.json'} [subprotocol='flux.v1']  binary, or readable JSON
 * @property {'disconnect' | 'drop'} [overflow]  what the gateway does when this client reads too slowly: close with
 *   a reason (the client comes back and resumes), or leave events out and tell how many (`gap`)
 * @property {boolean | {minMs?: number, maxMs?: number}} [reconnect=true]  connect again after a loss; pauses double
 *   from `minMs` (200) to `maxMs` (10 000) and are jittered
 * @property {number} [timeoutMs=30000]  how long a call waits for its answer unless it says otherwise; 0 for ever
 */

/**
 * Connect to a gateway. Returns at once: calls made before the connection is there wait for it.
 * @param {string | URL} [url='/v1/ws']  `ws:`, `wss:`, `http:`, `https:` or relative to the page; never a secret in it
 * @param {ConnectOptions} [options]
 * @returns {Client}
 */
export function connect(url = '/v1/ws', options = {}) {
  return new Client(String(url), options);
}

/**
 * A connection to a gateway, made by `connect`.
 *
 * Events (`addEventListener` or `on`; the object is `detail`):
 * - `open` `{welcome, again}`: the gateway took the credential
 * - `reconnecting` `{code, name, text, attempt, delayMs}`: the connection is lost, another one is tried in `delayMs`
 * - `resumed` `{recovered, epoch, sequence, replayed, denied}`: subscriptions are live again; `recovered` says
 *   whether every event since the loss was delivered
 * - `gap` `{lost, from, to}`: events were left out because this client read too slowly
 * - `upstream` `{joined, epoch, reason, lost}`: the gateway lost its broker, or found it again
 * - `shutdown` `{in_s}`: the gateway is about to leave
 * - `refreshed` `{expires, roles}`: the gateway took a fresh token
 * - `denied` `{kind, topic, errno, text}`, `service` `{service, registered, errno}`: as PROTOCOL.md has them
 * - `error` `FluxError | Error`: something nobody waited for went wrong: a token that could not be had, a handler of
 *   an event that threw, a subscription that was not given again
 * - `close` `{code, name, text, reconnect}`: it is over, and nothing is tried any more
 */
export class Client extends EventTarget {
  #address;
  #options;
  #codec;
  /** @type {Socket | null} */
  #socket = null;
  /** @type {'connecting' | 'open' | 'reconnecting' | 'closed'} */
  #state = 'connecting';
  #calls;
  #subscriptions;
  #provider;
  #held = [];
  /** @type {any} */
  #welcome = null;
  /** Of the connection before this one. @type {{token: string, epoch: string, sequence: number} | null} */
  #resume = null;
  #sequence = 0;
  /** @type {any} */
  #epoch = null;
  /** The error object that came before a close. @type {{code: number, text: string, reconnect: boolean} | null} */
  #farewell = null;
  #backoff;
  #retryTimer;
  #refresh;
  #ready;

  /** Use `connect`. */
  constructor(url, options) {
    super();
    this.#codec = CODECS[options.subprotocol ?? wire.NAME];
    if (!this.#codec) throw new TypeError(`subprotocol ${options.subprotocol}: expected ${Object.keys(CODECS)}`);
    this.#options = { timeoutMs: CALL_TIMEOUT_MS, reconnect: true, ...options, token: tokenOf(options.token) };
    const { getToken } = options;
    if (getToken) this.#options.getToken = async () => tokenOf(await getToken());
    const token = Boolean(options.token || options.getToken);
    this.#address = socketAddress(url, { overflow: options.overflow, token });
    this.#backoff = new Backoff(this.#options.reconnect);
    this.#calls = new Calls((message) => this.#send(message));
    const ask = (topic, payload) => this.rpc(topic, payload);
    this.#subscriptions = new Subscriptions(
      ask, (error) => this.#tell('error', error), (sequence) => this.#live(sequence));
    this.#refresh = new Refresh(
      this.#options.getToken, (fresh) => this.#socket?.control({ type: 'refresh', token: fresh }),
      (error) => this.#tell('error', error));
    this.#provider = new Provider(ask, (message) => this.#send(message));
    this.#ready = withResolvers();
    this.#ready.promise.catch(() => {}); // whoever awaits it is told; nobody has to
    globalThis.addEventListener?.('online', this.#hurry);
    this.#connect();
  }

  /** @returns {'connecting' | 'open' | 'reconnecting' | 'closed'} */
  get state() { return this.#state; }
  /** Resolves with the first welcome; rejects when the client closes before. @returns {Promise<any>} */
  get ready() { return this.#ready.promise; }
  /** The last welcome: session, user, userid, roles, limits, server, upstream. @returns {any} */
  get welcome() { return this.#welcome; }
  /** Number of the last event. @returns {number} */
  get sequence() { return this.#sequence; }
  /** Calls and streams that wait for answers. @returns {number} */
  get inFlight() { return this.#calls.size; }

  /**
   * Listen to an event of the client.
   * @param {string} name
   * @param {(detail: any) => void} handler
   * @returns {() => void} stops listening
   */
  on(name, handler) {
    const listener = (event) => handler(event.detail);
    this.addEventListener(name, listener);
    return () => this.removeEventListener(name, listener);
  }

  /**
   * Call a method and get its answer.
   * @param {string} topic
   * @param {object | string | Uint8Array | null} [payload]  an object travels as JSON, a string as text
   * @param {object} [options]
   * @param {number} [options.nodeid]     rank that shall answer; the nearest that can, unless given
   * @param {number} [options.timeoutMs]  0 waits for ever
   * @param {AbortSignal} [options.signal]
   * @returns {Promise<any>} the payload of the answer, decoded like the argument
   * @throws {FluxError} refused by the service or gateway (its errno and text); ETIMEDOUT; ECONNRESET when the
   *   connection was lost meanwhile (the call may have been carried out); ESHUTDOWN after `close()`
   */
  async rpc(topic, payload, { nodeid, timeoutMs = this.#options.timeoutMs, signal } = {}) {
    signal?.throwIfAborted();
    return this.#calls.rpc(topic, payload, { nodeid, timeoutMs, signal });
  }

  /**
   * Call a method that answers many times.
   * @param {string} topic
   * @param {object | string | Uint8Array | null} [payload]
   * @param {{nodeid?: number, signal?: AbortSignal}} [options]
   * @returns {Stream} read it with `for await`; `cancel()`, or leaving the loop, ends it at the service
   */
  stream(topic, payload, options = {}) {
    return this.#calls.stream(topic, payload, options);
  }

  /**
   * Receive events whose topic begins with `prefix`.
   * @param {string} prefix   "" is all of them
   * @param {(event: Event) => void} [handler]  without it, read the subscription with `for await`
   * @returns {Promise<Subscription>} once it is live: what is published from now on arrives
   * @throws {FluxError} EPERM when the user's role does not allow it
   */
  async subscribe(prefix, handler) {
    return this.#subscriptions.add(topicOf(prefix), handler);
  }

  /**
   * Publish an event.
   * @param {string} topic
   * @param {object | string | Uint8Array | null} [payload]
   * @param {{private?: boolean, timeoutMs?: number}} [options]  private: for the own user and the owner only
   * @returns {Promise<number>} the event's sequence number, once it is delivered: what is called next comes after it
   */
  async publish(topic, payload, { private: hidden = false, timeoutMs } = {}) {
    const { bytes } = Payload.of(payload);
    const asked = { topic: topicOf(topic), flags: hidden ? FLAG.PRIVATE : 0, ...(bytes && { payload: toBase64(bytes) }) };
    return (await this.rpc('event.publish', asked, { timeoutMs })).seq;
  }

  /**
   * Provide a service: others call `name.method`. It is registered again after a reconnect.
   * @param {string} name
   * @param {Object<string, (request: import('./client/provider.js').Request) => *>} handlers  method -> payload, promise of one, or async iterable
   *   for a streaming answer; throw a `FluxError` to refuse
   * @returns {Promise<() => Promise<void>>} takes the service back
   */
  async register(name, handlers) {
    return this.#provider.register(topicOf(name), handlers);
  }

  /** Time to the gateway and back, in milliseconds. @returns {Promise<number>} */
  async ping() {
    if (this.#state !== 'open') throw new FluxError(ERRNO.ECONNRESET);
    return /** @type {Socket} */ (this.#socket).ping();
  }

  /** Connect now instead of after the pause. */
  retry() {
    if (this.#retryTimer === undefined) return;
    clearTimeout(this.#retryTimer);
    this.#connect();
  }

  /** End it: open calls fail with ESHUTDOWN, loops over events end. */
  close() {
    this.#finish(1000, '');
  }

  // -- connecting --------------------------------------------------------------------------------

  #hurry = () => this.retry(); // the network is back

  async #connect() {
    this.#retryTimer = undefined;
    let token = this.#options.token ?? null;
    if (this.#options.getToken) {
      try {
        token = await this.#options.getToken();
      } catch (error) {
        this.#tell('error', error);
        this.#lost(1006, 'no token could be had');
        return;
      }
    }
    if (this.#state === 'closed') return;
    this.#farewell = null;
    this.#socket = new Socket(this.#address, this.#codec, token, {
      welcome: (welcome) => this.#welcomed(welcome),
      message: (message) => this.#received(message),
      control: (object) => this.#controlled(object),
      closed: (code, reason) => this.#lost(code, reason),
    });
  }

  #welcomed(welcome) {
    const again = this.#welcome !== null;
    const before = this.#resume;
    this.#welcome = welcome;
    this.#backoff.connected();
    this.#state = 'open';
    this.#resume = null;
    const resuming = again && this.#restore(before) ? before : null;
    // what was missed counts as missed until `resumed` says otherwise: the connection may be lost before
    this.#epoch = resuming?.epoch ?? welcome.epoch;
    this.#sequence = resuming?.sequence ?? welcome.sequence ?? 0;
    for (const message of this.#held.splice(0)) {
      if (this.#calls.has(message.matchtag)) this.#send(message);
    }
    this.#refresh.expect(welcome.expires);
    this.#ready.resolve(welcome);
    this.#tell('open', { welcome, again });
  }

  /** Make live again what was: from where it was, so that nothing is missed (then true), or else anew. */
  #restore(before) {
    const refuse = (error) => this.#tell('error', error);
    const subscriptions = this.#subscriptions.prefixes;
    this.#provider.restore(refuse);
    if (before?.epoch && subscriptions.length) {
      this.#socket?.control({ type: 'resume', ...before, subscriptions });
      return true;
    }
    if (subscriptions.length) {
      this.#subscriptions.restore(refuse).then(() => this.#tell('resumed', {
        recovered: false, epoch: this.#epoch, sequence: this.#sequence, replayed: 0, denied: [],
      }));
    }
    return false;
  }

  #lost(code, reason) {
    this.#socket = null;
    this.#refresh.stop();
    const told = this.#farewell;
    const known = closeMeaning(told?.code ?? code);
    const meaning = { ...known, text: told?.text || reason || known.text };
    this.#provider.end();
    if (this.#state === 'open') {
      this.#resume = { token: this.#welcome.resume, epoch: this.#epoch, sequence: this.#sequence };
      this.#calls.fail(new FluxError(ERRNO.ECONNRESET, `connection lost: ${meaning.text}`));
    }
    if (!this.#options.reconnect || !(told?.reconnect ?? known.reconnect)) {
      this.#finish(meaning.code, meaning.text);
      return;
    }
    this.#state = 'reconnecting';
    const delayMs = this.#backoff.next();
    this.#retryTimer = setTimeout(() => this.#connect(), delayMs);
    this.#tell('reconnecting', { ...meaning, attempt: this.#backoff.attempt, delayMs });
  }

  #finish(code, text) {
    if (this.#state === 'closed') return;
    this.#state = 'closed';
    clearTimeout(this.#retryTimer);
    this.#refresh.stop();
    globalThis.removeEventListener?.('online', this.#hurry);
    this.#socket?.close();
    this.#socket = null;
    const meaning = { ...closeMeaning(code), ...(text && { text }) };
    const error = new FluxError(ERRNO.ESHUTDOWN, code === 1000 ? '' : `the gateway closed: ${meaning.text}`);
    this.#held = [];
    this.#provider.end();
    this.#calls.fail(error);
    this.#subscriptions.end(code === 1000 ? null : error);
    this.#ready.reject(error);
    this.#tell('close', meaning);
  }

  // -- what comes in, what goes out --------------------------------------------------------------

  /** A subscription is live from this number on; events behind it may have come in the same WebSocket message. */
  #live(sequence) {
    const ahead = (sequence - this.#sequence) >>> 0;
    if (ahead < 2 ** 31) this.#sequence = sequence;
  }

  #received(message) {
    if (message.type === RESPONSE) {
      this.#calls.answered(message);
    } else if (message.type === EVENT) {
      this.#sequence = message.sequence;
      this.#subscriptions.deliver(message);
    } else if (message.type === REQUEST) {
      this.#provider.requested(message);
    }
  }

  /** @param {any} object */
  #controlled({ type, ...detail }) {
    if (type === 'error') {
      this.#farewell = detail; // the close that follows is told with it
      return;
    }
    if (type === 'upstream' && detail.joined && detail.epoch !== this.#epoch) {
      this.#epoch = detail.epoch;
      this.#sequence = 0;
    } else if (type === 'resumed') {
      this.#epoch = detail.epoch ?? this.#epoch;
      this.#sequence = detail.sequence ?? this.#sequence;
      this.#withdraw(detail.denied);
    } else if (type === 'unsubscribed') {
      this.#withdraw(detail.subscriptions);
    } else if (type === 'service' && !detail.registered) {
      this.#provider.forget(detail.service);
    } else if (type === 'refreshed') {
      this.#welcome = { ...this.#welcome, ...detail };
      this.#refresh.expect(detail.expires);
    }
    this.#tell(type, detail);
  }

  /** These prefixes are not given any more. */
  #withdraw(prefixes = []) {
    for (const prefix of prefixes) {
      const error = new FluxError(ERRNO.EPERM, `"${prefix}" is not given any more`, 'event.subscribe');
      this.#subscriptions.drop(prefix, error);
      this.#tell('error', error);
    }
  }

  #send(message) {
    if (this.#state === 'closed') throw new FluxError(ERRNO.ESHUTDOWN, '', message.topic);
    if (this.#state === 'open') {
      this.#socket?.send(this.#encoded(message));
    } else if (message.type === REQUEST && message.matchtag) {
      if (this.#held.length >= HELD_MAX) {
        throw new FluxError(ERRNO.EAGAIN, `${HELD_MAX} requests wait for a connection`, message.topic);
      }
      this.#held.push(message);
    } // answers, and cancels of what is lost, have nobody to go to
  }

  #encoded(message) {
    const data = this.#codec.toSocket(message);
    const limit = this.#welcome?.limits?.message_bytes ?? Infinity;
    if (data.length > limit) {
      throw new FluxError(ERRNO.EMSGSIZE, `${data.length} bytes, the gateway takes ${limit}`, message.topic);
    }
    return data;
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

function withResolvers() { // Promise.withResolvers is too young for some
  const out = /** @type {any} */ ({});
  out.promise = new Promise((resolve, reject) => Object.assign(out, { resolve, reject }));
  return out;
}
