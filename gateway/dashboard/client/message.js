/**
 * Messages (RFC 3) as the client handles them, and the norms of their payloads.
 *
 * What cannot be sent is refused here, whatever the subprotocol: a payload or nodeid of another type with a TypeError
 * or RangeError, and text or JSON that nobody could read with a FluxError, EPROTO.
 * @module
 */

import { ERRNO, FluxError } from './errors.js';

export const REQUEST = 1;
export const RESPONSE = 2;
export const EVENT = 4;
export const CONTROL = 8;

/** Flags of a message (RFC 3). */
export const FLAG = Object.freeze({
  TOPIC: 0x01, PAYLOAD: 0x02, NORESPONSE: 0x04, ROUTE: 0x08, UPSTREAM: 0x10, PRIVATE: 0x20, STREAMING: 0x40,
  USER1: 0x80,
});

/** Nodeid of a request that any rank may answer: the nearest one towards the root that has the service. */
export const NODEID_ANY = 0xffffffff;
export const USERID_UNKNOWN = 0xffffffff;

/** Arrays and objects in each other that JSON has at most, here as at the gateway. */
const NESTED_MAX = 512;
/** Longest text of an error that is answered. */
const REASON_CHARS = 8192;

const encoder = new TextEncoder();
const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const lenient = new TextDecoder('utf-8', { ignoreBOM: true });

/** @param {string} text @returns {Uint8Array} */
export const encodeUtf8 = (text) => encoder.encode(text);

/** Bytes that are not UTF-8 become U+FFFD. @param {Uint8Array} bytes @returns {string} */
export const decodeUtf8 = (bytes) => lenient.decode(bytes);

/** Base64 of bytes. @param {Uint8Array} bytes @returns {string} */
export function toBase64(bytes) {
  let text = '';
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

/** Bytes of base64. @param {string} text @returns {Uint8Array} */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}

const HALF = /\p{Surrogate}/u;
const HALVES = /\p{Surrogate}/gu;

/** A text that can be sent, of any. */
const sendable = (text) => text.replaceAll('\0', '').replace(HALVES, '\ufffd');

/** @param {string} text @param {string} what @returns {string} the text @throws {FluxError} EPROTO */
function checked(text, what) {
  if (text.includes('\0')) throw new FluxError(ERRNO.EPROTO, `${what} cannot hold a NUL`);
  if (HALF.test(text)) throw new FluxError(ERRNO.EPROTO, `${what} cannot hold half of a character`);
  return text;
}

/** A topic, or a prefix or name of some, to send. @param {string} topic @returns {string} @throws {TypeError | FluxError} */
export function topicOf(topic) {
  if (typeof topic !== 'string') throw new TypeError('a topic is a string');
  return checked(topic, 'a topic');
}

/** A token to send, or none. @param {any} token @returns {any} the token @throws {TypeError | FluxError} */
export function tokenOf(token) {
  if (!token) return token;
  if (typeof token !== 'string') throw new TypeError('a token is a string');
  return checked(token, 'a token');
}

/** The JSON of an object to send. @param {object} value @returns {string} @throws {FluxError} EPROTO */
function jsonOf(value) {
  let text;
  try {
    text = JSON.stringify(value);
  } catch (error) {
    throw new FluxError(ERRNO.EPROTO, `cannot be written as JSON: ${error?.message}`);
  }
  const wrong = text?.startsWith('{') ? flawOf(text) : 'it is no object';
  if (wrong) throw new FluxError(ERRNO.EPROTO, `cannot be written as JSON: ${wrong}`);
  return text;
}

/**
 * Why a text that JSON.parse would take is no JSON payload for anybody else; `""` when it is one.
 * @param {string} text
 * @returns {string}
 */
function flawOf(text) {
  if (/\\ud/i.test(text)) {
    const rest = text.replaceAll('\\\\', '').replace(/\\ud[89ab]..\\ud[c-f]../gi, '');
    if (/\\ud[89a-f]/i.test(rest)) return 'it holds half of a character';
  }
  return text.length > NESTED_MAX && depth(text) > NESTED_MAX ? `it is nested deeper than ${NESTED_MAX}` : '';
}

function depth(text) {
  let level = 0;
  let deepest = 0;
  let inString = false;
  for (let at = 0; at < text.length; at += 1) {
    const each = text[at];
    if (each === '"') inString = !inString;
    else if (inString) at += each === '\\' ? 1 : 0;
    else if (each === '{' || each === '[') deepest = Math.max(deepest, level += 1);
    else if (each === '}' || each === ']') level -= 1;
  }
  return deepest;
}

/**
 * The payload of a message: nothing, a JSON object, a text or bytes. Decoded when somebody looks.
 */
export class Payload {
  #bytes;
  #value;
  #text;

  /** Use `Payload.of` and `Payload.fromBytes`. @param {string} [text]  of a value that is given */
  constructor(bytes, value, text) {
    this.#bytes = bytes;
    this.#value = value;
    this.#text = text;
  }

  /**
   * A payload to send: an object becomes JSON, a string a NUL-terminated text, bytes stay as they are.
   * @param {object | string | Uint8Array | ArrayBuffer | null | undefined} value
   * @returns {Payload}
   * @throws {TypeError} a number, boolean, array or function
   * @throws {FluxError} EPROTO: a NUL in a text, half of a character, what JSON makes no object of, too deep an object
   */
  static of(value) {
    if (value === undefined || value === null) return NO_PAYLOAD;
    if (value instanceof ArrayBuffer) return new Payload(new Uint8Array(value), undefined);
    if (ArrayBuffer.isView(value)) {
      return new Payload(new Uint8Array(value.buffer, value.byteOffset, value.byteLength), undefined);
    }
    if (typeof value === 'string') return new Payload(undefined, value, checked(value, 'a text payload'));
    if (typeof value === 'object' && !Array.isArray(value)) return new Payload(undefined, value, jsonOf(value));
    throw new TypeError('a payload is an object, a string, bytes or null');
  }

  /** The payload of a received message. @param {Uint8Array | null} bytes @returns {Payload} */
  static fromBytes(bytes) {
    return bytes === null ? NO_PAYLOAD : new Payload(bytes, undefined);
  }

  /** The payload as it travels; null when there is none. @returns {Uint8Array | null} */
  get bytes() {
    if (this.#bytes === undefined) this.#bytes = encoder.encode(`${this.text}\0`);
    return this.#bytes;
  }

  /**
   * What it is: an object (JSON), a string (text with its NUL), bytes (anything else), or null (none).
   * @returns {object | string | Uint8Array | null}
   */
  get value() {
    if (this.#value === undefined) this.#value = readable(this.#bytes);
    return this.#value;
  }

  /** The text, or the JSON, that it is; of an error answer or a log line, with or without NUL. @returns {string} */
  get text() {
    if (this.#text === undefined) this.#text = this.#bytes === undefined ? JSON.stringify(this.#value) : shown(this.#bytes);
    return this.#text;
  }

  /** Bytes it takes. @returns {number} */
  get size() {
    return this.bytes === null ? 0 : this.bytes.length;
  }
}

const NO_PAYLOAD = new Payload(null, null);

function shown(bytes) {
  if (bytes === null) return '';
  const end = bytes.indexOf(0);
  return lenient.decode(end < 0 ? bytes : bytes.subarray(0, end));
}

function readable(bytes) {
  if (bytes.length === 0 || bytes.indexOf(0) !== bytes.length - 1) return bytes;
  let text;
  try {
    text = strict.decode(bytes.subarray(0, bytes.length - 1));
  } catch {
    return bytes; // not UTF-8: it is what it is
  }
  if (!text.startsWith('{') || flawOf(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/**
 * One message.
 *
 * @property {number} type       REQUEST 1, RESPONSE 2, EVENT 4 or CONTROL 8
 * @property {number} flags      bits of `FLAG`
 * @property {number} userid     who sent it, stamped by the broker
 * @property {number} rolemask   roles of the sender (1 owner, 2 user, 8 admin)
 * @property {number} aux1       nodeid, errnum or sequence, by type
 * @property {number} aux2       matchtag of requests and responses
 * @property {string} topic
 * @property {Payload} payload
 * @property {Uint8Array[]} routes  most recent hop first
 */
export class Message {
  /**
   * @param {{type: number, topic?: string, payload?: Payload, flags?: number, userid?: number, rolemask?: number,
   *   aux1?: number, aux2?: number, routes?: Uint8Array[]}} fields
   */
  constructor({
    type, topic = '', payload = NO_PAYLOAD, flags = 0, userid = USERID_UNKNOWN, rolemask = 0, aux1 = 0, aux2 = 0,
    routes = [],
  }) {
    this.type = type;
    this.topic = topic;
    this.payload = payload;
    this.flags = flags;
    this.userid = userid;
    this.rolemask = rolemask;
    this.aux1 = aux1;
    this.aux2 = aux2;
    this.routes = routes;
  }

  /** @returns {number} target rank of a request; 0xFFFFFFFF is any */
  get nodeid() { return this.aux1; }
  /** @returns {number} error number of a response; 0 is success */
  get errnum() { return this.aux1; }
  /** @returns {number} number of an event, given by rank 0 */
  get sequence() { return this.aux1; }
  /** @returns {number} what pairs a response with its request */
  get matchtag() { return this.aux2; }
  /** @returns {boolean} an event that only its sender's user and the owner receive */
  get private() { return (this.flags & FLAG.PRIVATE) !== 0; }
}

/**
 * A request to send.
 * @param {string} topic
 * @param {*} payload  see `Payload.of`
 * @param {{nodeid?: number, matchtag?: number, flags?: number}} [options]
 * @returns {Message}
 * @throws {RangeError} nodeid is neither a rank nor NODEID_ANY; 0xfffffffe is never encoded
 * @throws {TypeError | FluxError} a topic that is no string; EPROTO: one that holds a NUL or half of a character
 */
export function request(topic, payload, { nodeid = NODEID_ANY, matchtag = 0, flags = 0 } = {}) {
  const rank = Number.isInteger(nodeid) && nodeid >= 0 && nodeid < NODEID_ANY - 1;
  if (!rank && nodeid !== NODEID_ANY) throw new RangeError(`nodeid ${nodeid} is no rank`);
  return new Message({
    type: REQUEST, topic: topicOf(topic), payload: Payload.of(payload), flags, aux1: nodeid, aux2: matchtag,
  });
}

/**
 * The response to a request that was delivered here: same routes, topic, matchtag and flags.
 * @param {Message} to
 * @param {*} payload
 * @param {number} [errnum]
 * @returns {Message}
 */
export function response(to, payload, errnum = 0) {
  return new Message({
    type: RESPONSE, topic: to.topic, payload: Payload.of(payload), flags: to.flags & ~FLAG.PAYLOAD, aux1: errnum,
    aux2: to.aux2, routes: to.routes,
  });
}

/**
 * The response that tells of an error, whatever was thrown: who waits for an answer gets one.
 * @param {Message} to
 * @param {any} error  a FluxError's errno and text; EIO and the message of any other
 * @returns {Message}
 */
export function failed(to, error) {
  let text = 'the handler failed';
  /** @type {number} */
  let errnum = ERRNO.EIO;
  try {
    if (error instanceof FluxError && error.errno > 0 && error.errno >>> 0 === error.errno) errnum = error.errno;
    text = String(error?.text ?? error?.message ?? error);
  } catch {
    // what was thrown cannot be read
  }
  return response(to, sendable(text.slice(0, REASON_CHARS)), errnum);
}
