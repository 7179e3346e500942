/**
 * Subprotocol `flux.v1`: RFC 3 messages in binary frames, back to back in a WebSocket message.
 *
 *     frame  = magic(4) length(4, big-endian) parts...
 *     part   = size(1) data            up to 254 bytes
 *            | 255 size(4) data        from 255 bytes on
 *     parts  = [route... ""] [topic] [payload] PROTO(20)
 *     PROTO  = 8E 01 type flags userid(4) rolemask(4) aux1(4) aux2(4)
 *
 * The magic is FF EE 00 12 in the text and a host-order word in deployed software (12 00 EE FF on little-endian
 * hosts); both are read, the deployed one is written.
 * @module
 */

import { FLAG, Message, Payload, decodeUtf8, encodeUtf8 } from './message.js';

export const NAME = 'flux.v1';

const MAGIC_WRITTEN = 0x1200eeff;
const MAGIC_TEXT = 0xffee0012;
const PROTO_BYTES = 20;
const LONG = 255;
const NO_BYTES = new Uint8Array(0);

/** Bytes that are no message. */
export class DecodeError extends Error {}

/**
 * Frames one message.
 * @param {Message} message
 * @returns {Uint8Array}
 */
export function encode(message) {
  const parts = [...message.routes, NO_BYTES, encodeUtf8(message.topic)];
  const payload = message.payload.bytes;
  let flags = (message.flags & ~FLAG.PAYLOAD) | FLAG.ROUTE | FLAG.TOPIC;
  if (payload !== null) {
    flags |= FLAG.PAYLOAD;
    parts.push(payload);
  }
  parts.push(proto(message, flags));
  const size = parts.reduce((sum, part) => sum + part.length + (part.length < LONG ? 1 : 5), 0);
  const out = new Uint8Array(8 + size);
  const view = new DataView(out.buffer);
  view.setUint32(0, MAGIC_WRITTEN);
  view.setUint32(4, size);
  let at = 8;
  for (const part of parts) {
    if (part.length < LONG) {
      out[at++] = part.length;
    } else {
      out[at] = LONG;
      view.setUint32(at + 1, part.length);
      at += 5;
    }
    out.set(part, at);
    at += part.length;
  }
  return out;
}

function proto(message, flags) {
  const out = new Uint8Array(PROTO_BYTES);
  const view = new DataView(out.buffer);
  out.set([0x8e, 1, message.type, flags]);
  view.setUint32(4, message.userid);
  view.setUint32(8, message.rolemask);
  view.setUint32(12, message.aux1);
  view.setUint32(16, message.aux2);
  return out;
}

/**
 * The messages of one binary WebSocket message, in order.
 * @param {Uint8Array | ArrayBuffer} data
 * @returns {Message[]}
 * @throws {DecodeError} the bytes are no whole frames
 */
export function decode(data) {
  const bytes = data instanceof ArrayBuffer ? new Uint8Array(data) : data;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const messages = [];
  let at = 0;
  while (at < bytes.length) {
    if (bytes.length - at < 8) throw new DecodeError(`${bytes.length - at} bytes are no frame header`);
    const magic = view.getUint32(at);
    if (magic !== MAGIC_WRITTEN && magic !== MAGIC_TEXT) {
      throw new DecodeError(`frame magic ${magic.toString(16).padStart(8, '0')}`);
    }
    const end = at + 8 + view.getUint32(at + 4);
    if (end > bytes.length) throw new DecodeError(`frame ends ${end - bytes.length} bytes behind its message`);
    messages.push(fromParts(split(bytes, view, at + 8, end)));
    at = end;
  }
  return messages;
}

function split(bytes, view, start, end) {
  const parts = [];
  let at = start;
  while (at < end) {
    let size = bytes[at++];
    if (size === LONG) {
      if (at + 4 > end) throw new DecodeError('size of a part is cut off');
      size = view.getUint32(at);
      at += 4;
    }
    if (at + size > end) throw new DecodeError(`part of ${size} bytes, ${end - at} are left`);
    parts.push(bytes.subarray(at, at + size));
    at += size;
  }
  return parts;
}

/**
 * A message of its parts.
 * @param {Uint8Array[]} parts  PROTO last
 * @returns {Message}
 * @throws {DecodeError} no PROTO, or parts and flags do not agree
 */
export function fromParts(parts) {
  const last = parts[parts.length - 1];
  if (last === undefined || last.length !== PROTO_BYTES || last[0] !== 0x8e || last[1] !== 1) {
    throw new DecodeError('the last part is no PROTO');
  }
  const view = new DataView(last.buffer, last.byteOffset, PROTO_BYTES);
  const flags = last[3];
  let at = 0;
  let routes = [];
  if (flags & FLAG.ROUTE) {
    while (at < parts.length - 1 && parts[at].length > 0) at += 1;
    routes = parts.slice(0, at);
    at += 1;
  }
  const topic = flags & FLAG.TOPIC ? parts[at++] : NO_BYTES;
  const payload = flags & FLAG.PAYLOAD ? parts[at++] : null;
  if (at !== parts.length - 1) throw new DecodeError(`${parts.length} parts do not fit flags ${flags}`);
  return new Message({
    type: last[2], flags, topic: decodeUtf8(topic), payload: Payload.fromBytes(payload), routes,
    userid: view.getUint32(4), rolemask: view.getUint32(8), aux1: view.getUint32(12), aux2: view.getUint32(16),
  });
}

/** What goes into one WebSocket message. @param {Message} message @returns {Uint8Array} */
export const toSocket = encode;

/**
 * What one WebSocket message holds: messages, or one control object.
 * @param {string | ArrayBuffer} data
 * @returns {Array<Message | object>}
 * @throws {DecodeError} neither
 */
export function fromSocket(data) {
  if (typeof data !== 'string') return decode(data);
  try {
    return [JSON.parse(data)];
  } catch {
    throw new DecodeError('a control frame is no JSON');
  }
}
