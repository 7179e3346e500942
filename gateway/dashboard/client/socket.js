/**
 * One connection: WebSocket, first-frame credential, welcome, and whether the other side is still there.
 * @module
 */

import { Message } from './message.js';

/** From the first byte to the welcome. */
const WELCOME_MS = 20_000;
/** A connection over which nothing came for this many of the gateway's ping periods is asked, */
const QUIET_PERIODS = 1.2;
/** and given up when it does not answer within this. */
const PONG_MS = 10_000;

/** What a lost connection is closed with; 4003 tells the gateway that it did not answer. */
const NO_PONG = 4003;
const BAD_MESSAGE = 4503;

/**
 * The address of the gateway for a WebSocket.
 * @param {string} url       absolute, or relative to the page; http and https become ws and wss
 * @param {object} [options]
 * @param {string} [options.overflow]  what happens when this client reads too slowly: `disconnect` or `drop`
 * @param {boolean} [options.token]    the credential comes in the first message, whatever cookie the browser adds
 * @returns {string}
 */
export function socketAddress(url, { overflow, token = false } = {}) {
  const address = new URL(url, globalThis.location?.href);
  address.protocol = address.protocol.replace('http', 'ws');
  address.hash = '';
  if (overflow) address.searchParams.set('overflow', overflow);
  if (token) address.searchParams.set('auth', 'message');
  return address.href;
}

/**
 * @typedef {object} Ears
 * @property {(welcome: object) => void} welcome     the credential was taken
 * @property {(message: Message) => void} message    a request, response or event
 * @property {(object: object) => void} control      any other control object
 * @property {(code: number, reason: string) => void} closed  called once, whatever ended it
 */

export class Socket {
  #socket;
  #codec;
  #ears;
  #timer;
  #quietMs = 0;
  #silentMs = 0;
  #excused = false;
  #over = false;
  #pongs = [];

  /**
   * @param {string} address
   * @param {{NAME: string, toSocket: Function, fromSocket: Function}} codec
   * @param {string | null} token
   * @param {Ears} ears
   */
  constructor(address, codec, token, ears) {
    this.#codec = codec;
    this.#ears = ears;
    this.#socket = new WebSocket(address, codec.NAME);
    this.#socket.binaryType = 'arraybuffer';
    this.#timer = setTimeout(() => this.#end(1006, 'no welcome in time'), WELCOME_MS);
    this.#socket.addEventListener('open', () => {
      if (token) this.control({ type: 'auth', token });
    });
    this.#socket.addEventListener('message', ({ data }) => this.#received(data));
    this.#socket.addEventListener('close', ({ code, reason }) => this.#end(code, reason));
  }

  /** Bytes that the browser has not sent yet. @returns {number} */
  get buffered() {
    return this.#socket.bufferedAmount;
  }

  /** Send encoded bytes or text. @param {Uint8Array | string} data */
  send(data) {
    if (this.#socket.readyState === 1) this.#socket.send(data);
  }

  /** Send a control object. @param {object} object */
  control(object) {
    this.send(JSON.stringify(object));
  }

  /** Ask the gateway for a sign of life. @returns {Promise<number>} milliseconds there and back */
  ping() {
    const began = performance.now();
    return new Promise((resolve, reject) => {
      this.#pongs.push({ resolve: () => resolve(performance.now() - began), reject });
      this.control({ type: 'ping' });
    });
  }

  /** End the connection; `closed` is not called for it. @param {number} code @param {string} reason */
  close(code = 1000, reason = '') {
    this.#over = true;
    this.#clear();
    this.#socket.close(code, reason);
  }

  #clear() {
    clearTimeout(this.#timer);
    for (const { reject } of this.#pongs.splice(0)) reject(new Error('the connection is over'));
  }

  #end(code, reason) {
    if (this.#over) return;
    this.#over = true;
    this.#clear();
    if (this.#socket.readyState < 2) this.#socket.close(code === NO_PONG || code === BAD_MESSAGE ? code : 1000);
    this.#ears.closed(code, reason);
  }

  #received(data) {
    if (this.#over) return;
    this.#silentMs = 0;
    this.#excused = false;
    let messages;
    try {
      messages = this.#codec.fromSocket(data);
    } catch (error) {
      this.#end(BAD_MESSAGE, error.message);
      return;
    }
    for (const each of messages) {
      if (this.#over) return;
      if (each instanceof Message) this.#ears.message(each);
      else this.#heard(each);
    }
  }

  #heard(object) {
    if (object.type === 'pong') {
      this.#pongs.shift()?.resolve();
    } else if (object.type === 'welcome') {
      clearTimeout(this.#timer);
      this.#quietMs = (object.ping_s || 25) * 1000 * QUIET_PERIODS;
      this.#watch();
      this.#ears.welcome(object);
    } else {
      this.#ears.control(object);
    }
  }

  /**
   * A page does not see the gateway's pings, so it asks for itself when it has heard nothing for long, or when it stood
   * still: it was frozen, its machine asleep, or its clock was set. It then listens before it gives anybody up,
   * once: the timers of a hidden page are always late, for browsers let them come once a minute.
   */
  #watch() {
    const everyMs = Math.min(this.#quietMs, PONG_MS);
    const due = Date.now() + everyMs;
    this.#timer = setTimeout(() => {
      const still = !this.#excused && Math.abs(Date.now() - due) > everyMs;
      this.#excused ||= still;
      this.#silentMs = still ? this.#quietMs : this.#silentMs + everyMs;
      if (this.#silentMs >= this.#quietMs + PONG_MS) {
        this.#end(NO_PONG, 'the gateway does not answer');
        return;
      }
      if (this.#silentMs >= this.#quietMs) this.ping().catch(() => {}); // its failure is the end of the connection
      this.#watch();
    }, everyMs);
  }
}

