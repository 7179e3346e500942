/**
 * Open calls of a client: plain ones (one answer) and streams (many).
 * @module
 */

import { ERRNO, FluxError } from './errors.js';
import { Inbox } from './inbox.js';
import { FLAG, request } from './message.js';

/** Responses of one stream that may wait for its reader; a browser cannot slow a WebSocket down. */
export const STREAM_LIMIT = 10_000;

const TAG_MAX = 0xffffffff;

/** The part of a topic that names the service. */
const serviceOf = (topic) => topic.split('.', 1)[0];

/** The error that an answer with an errnum stands for. */
const failure = (message) => new FluxError(message.errnum, message.payload.text, message.topic);

/**
 * The responses of a streaming request: `for await (const value of stream)`.
 *
 * Ends by itself when the service has no more to say (ENODATA), throws `FluxError` when it fails. Leaving the loop
 * cancels the stream at the service.
 *
 * @extends {Inbox<any>}
 */
export class Stream extends Inbox {
  #cancel;

  /**
   * @param {string} topic
   * @param {(stream: Stream) => void} cancel
   */
  constructor(topic, cancel) {
    super(STREAM_LIMIT, () => this.#overrun(), () => this.cancel());
    this.topic = topic;
    this.done = false;
    this.#cancel = cancel;
  }

  #overrun() {
    this.cancel();
    this.end(new FluxError(ERRNO.ENOBUFS, `more than ${STREAM_LIMIT} responses were not read`, this.topic));
  }

  /**
   * Ask the service to end the stream; the loop ends once it has (or when the connection does). Harmless when over.
   */
  cancel() {
    if (this.done) return;
    this.#cancel(this);
  }

  /** Take in a response. @param {import('./message.js').Message} message */
  answered(message) {
    if (message.errnum === 0) {
      this.push(message.payload.value);
      return;
    }
    this.failed(message.errnum === ERRNO.ENODATA ? null : failure(message));
  }

  /** End the loop. @param {Error | null} error */
  failed(error) {
    this.done = true;
    this.end(error);
  }
}

/** Matchtag -> what waits for its answer. */
export class Calls {
  #open = new Map();
  #tag = 0;
  #send;

  /** @param {(message: import('./message.js').Message) => void} send */
  constructor(send) {
    this.#send = send;
  }

  /** @returns {number} calls and streams that are open */
  get size() {
    return this.#open.size;
  }

  /** Whether somebody still waits for the answer with this matchtag. @param {number} tag @returns {boolean} */
  has(tag) {
    return this.#open.has(tag);
  }

  #nextTag() {
    do {
      this.#tag = this.#tag >= TAG_MAX ? 1 : this.#tag + 1;
    } while (this.#open.has(this.#tag));
    return this.#tag;
  }

  /**
   * One request, one answer.
   * @param {string} topic
   * @param {*} payload
   * @param {{nodeid?: number, timeoutMs?: number, signal?: AbortSignal}} options
   * @returns {Promise<object | string | Uint8Array | null>}
   */
  rpc(topic, payload, { nodeid, timeoutMs, signal }) {
    const tag = this.#nextTag();
    const message = request(topic, payload, { nodeid, matchtag: tag });
    return new Promise((resolve, reject) => {
      const entry = {
        answered: (answer) => finish(answer.errnum ? reject : resolve,
          answer.errnum ? failure(answer) : answer.payload.value),
        failed: (error) => finish(reject, error),
      };
      const timer = timeoutMs
        ? setTimeout(() => entry.failed(new FluxError(ERRNO.ETIMEDOUT, `no answer in ${timeoutMs} ms`, topic)), timeoutMs)
        : undefined;
      const aborted = () => entry.failed(signal?.reason);
      const finish = (settle, value) => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', aborted);
        this.#open.delete(tag);
        settle(value);
      };
      signal?.addEventListener('abort', aborted);
      this.#open.set(tag, entry);
      this.#begin(message, entry);
    });
  }

  #begin(message, entry) {
    try {
      this.#send(message);
    } catch (error) {
      this.#open.delete(message.matchtag);
      entry.failed(error);
    }
  }

  /**
   * One request, many answers.
   * @param {string} topic
   * @param {*} payload
   * @param {{nodeid?: number, signal?: AbortSignal}} options
   * @returns {Stream}
   */
  stream(topic, payload, { nodeid, signal }) {
    const matchtag = this.#nextTag();
    const stream = new Stream(topic, () => {
      const flags = FLAG.NORESPONSE;
      this.#send(request(`${serviceOf(topic)}.cancel`, { matchtag }, { nodeid, flags }));
    });
    const message = request(topic, payload, { nodeid, matchtag, flags: FLAG.STREAMING });
    this.#open.set(matchtag, stream);
    this.#begin(message, stream);
    signal?.addEventListener('abort', () => stream.cancel(), { once: true });
    return stream;
  }

  /** Take in a response; one that nobody waits for is ignored. @param {import('./message.js').Message} message */
  answered(message) {
    const entry = this.#open.get(message.matchtag);
    entry?.answered(message);
    if (entry?.done) this.#open.delete(message.matchtag);
  }

  /** Fail all that is open. @param {Error} error */
  fail(error) {
    const open = [...this.#open.values()];
    this.#open.clear();
    for (const entry of open) entry.failed(error);
  }
}
