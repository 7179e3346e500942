/**
 * Messages (RFC 3) as the client handles them, and the norms of their payloads.
 * @module
 */

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

/**
 * The payload of a message: nothing, a JSON object, a text or bytes. Decoded when somebody looks.
 */
export class Payload {
  #bytes;
  #value;

  /** Use `Payload.of` and `Payload.fromBytes`. */
  constructor(bytes, value) {
    this.#bytes = bytes;
    this.#value = value;
  }

  /**
   * A payload to send: an object becomes JSON, a string a NUL-terminated text, bytes stay as they are.
   * @param {object | string | Uint8Array | ArrayBuffer | null | undefined} value
   * @returns {Payload}
   * @throws {TypeError} a number, boolean, array or function; or a text that holds a NUL
   */
  static of(value) {
    if (value === undefined || value === null) return NO_PAYLOAD;
    if (value instanceof ArrayBuffer) return new Payload(new Uint8Array(value), undefined);
    if (ArrayBuffer.isView(value)) {
      return new Payload(new Uint8Array(value.buffer, value.byteOffset, value.byteLength), undefined);
    }
    if (typeof value === 'string') {
      if (value.includes('\0')) throw new TypeError('a text payload cannot hold a NUL');
      return new Payload(undefined, value);
    }
    if (typeof value === 'object' && !Array.isArray(value)) return new Payload(undefined, value);
    throw new TypeError('a payload is an object, a string, bytes or null');
  }

  /** The payload of a received message. @param {Uint8Array | null} bytes @returns {Payload} */
  static fromBytes(bytes) {
    return bytes === null ? NO_PAYLOAD : new Payload(bytes, undefined);
  }

  /** The payload as it travels; null when there is none. @returns {Uint8Array | null} */
  get bytes() {
    if (this.#bytes === undefined) {
      const text = typeof this.#value === 'string' ? this.#value : JSON.stringify(this.#value);
      this.#bytes = encoder.encode(`${text}\0`);
    }
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

  /** For people: the text of an error answer or of a log line, with or without NUL. @returns {string} */
  get text() {
    if (this.#bytes === undefined) {
      return typeof this.#value === 'string' ? this.#value : JSON.stringify(this.#value);
    }
    if (this.#bytes === null) return '';
    const end = this.#bytes.indexOf(0);
    return lenient.decode(end < 0 ? this.#bytes : this.#bytes.subarray(0, end));
  }

  /** Bytes it takes. @returns {number} */
  get size() {
    return this.bytes === null ? 0 : this.bytes.length;
  }
}

const NO_PAYLOAD = new Payload(null, null);

function readable(bytes) {
  if (bytes.length === 0 || bytes.indexOf(0) !== bytes.length - 1) return bytes;
  let text;
  try {
    text = strict.decode(bytes.subarray(0, bytes.length - 1));
  } catch {
    return bytes; // not UTF-8: it is what it is
  }
  if (!text.startsWith('{')) return text;
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
 */
export function request(topic, payload, { nodeid = NODEID_ANY, matchtag = 0, flags = 0 } = {}) {
  const rank = Number.isInteger(nodeid) && nodeid >= 0 && nodeid < NODEID_ANY - 1;
  if (!rank && nodeid !== NODEID_ANY) throw new RangeError(`nodeid ${nodeid} is no rank`);
  return new Message({ type: REQUEST, topic, payload: Payload.of(payload), flags, aux1: nodeid, aux2: matchtag });
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
