/**
 * Subprotocol `flux.v1.json`: messages as JSON objects, for people who read the wire and for small clients.
 * @module
 */

import {
  CONTROL, EVENT, FLAG, Message, NODEID_ANY, Payload, REQUEST, RESPONSE, USERID_UNKNOWN, fromBase64, toBase64,
} from './message.js';
import { DecodeError } from './wire.js';

export const NAME = 'flux.v1.json';

const TYPES = Object.freeze({ request: REQUEST, response: RESPONSE, event: EVENT, control: CONTROL });
/** @type {Map<number, string>} */
const TYPE_NAMES = new Map(Object.entries(TYPES).map(([name, type]) => [type, name]));
const FLAGS = Object.freeze({
  noresponse: FLAG.NORESPONSE, upstream: FLAG.UPSTREAM, private: FLAG.PRIVATE, streaming: FLAG.STREAMING,
});

/**
 * One message as an object of this subprotocol.
 * @param {Message} message
 * @returns {object}
 */
export function encode(message) {
  const out = { type: TYPE_NAMES.get(message.type), topic: message.topic };
  if (message.type !== EVENT) out.matchtag = message.matchtag;
  if (message.type === REQUEST && message.nodeid !== NODEID_ANY) out.nodeid = message.nodeid;
  if (message.type === RESPONSE && message.errnum) out.errnum = message.errnum;
  const flags = Object.keys(FLAGS).filter((name) => message.flags & FLAGS[name]);
  if (flags.length) out.flags = flags;
  if (message.routes.length) out.routes = message.routes.map(toHex);
  const { value } = message.payload;
  if (value instanceof Uint8Array) out.data = toBase64(value);
  else if (typeof value === 'string') out.text = value;
  else if (value !== null) out.payload = value;
  return out;
}

/**
 * The message of an object of this subprotocol.
 * @param {object} object
 * @returns {Message}
 * @throws {DecodeError} a field is not what it should be
 */
export function decode(object) {
  const type = TYPES[object.type];
  if (type === undefined) throw new DecodeError(`no message has type ${object.type}`);
  const aux1 = { [REQUEST]: object.nodeid ?? NODEID_ANY, [RESPONSE]: object.errnum ?? 0 }[type] ?? object.sequence ?? 0;
  return new Message({
    type,
    topic: object.topic ?? '',
    flags: (object.flags ?? []).reduce((bits, name) => bits | (FLAGS[name] ?? 0), 0),
    userid: object.userid ?? USERID_UNKNOWN,
    rolemask: object.rolemask ?? 0,
    aux1,
    aux2: object.matchtag ?? 0,
    payload: payloadOf(object),
    routes: (object.routes ?? []).map(fromHex),
  });
}

function payloadOf(object) {
  if (object.payload !== undefined && object.payload !== null) return new Payload(undefined, object.payload);
  if (object.text !== undefined) return Payload.of(object.text);
  if (object.data !== undefined) return Payload.fromBytes(fromBase64(object.data));
  return Payload.of(object.error || null);
}

const toHex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
const fromHex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));

/** What goes into one WebSocket message; a payload as it was when it was checked. @param {Message} message @returns {string} */
export function toSocket(message) {
  const { payload, ...rest } = encode(message);
  const text = JSON.stringify(rest);
  return payload === undefined ? text : `${text.slice(0, -1)},"payload":${message.payload.text}}`;
}

/**
 * What one WebSocket message holds: messages and control objects, in order.
 * @param {string | ArrayBuffer} data
 * @returns {Array<Message | object>}
 * @throws {DecodeError} it is no JSON text
 */
export function fromSocket(data) {
  if (typeof data !== 'string') throw new DecodeError('a binary frame in a JSON subprotocol');
  let parsed;
  try {
    parsed = JSON.parse(data);
  } catch {
    throw new DecodeError('a text frame is no JSON');
  }
  return (Array.isArray(parsed) ? parsed : [parsed]).map((each) => (each.type in TYPES ? decode(each) : each));
}
