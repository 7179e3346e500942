/**
 * Services that a page provides: others call its methods through the broker.
 * @module
 */

import { ERRNO, FluxError } from './errors.js';
import { FLAG, failed, response } from './message.js';

/**
 * A request as a handler sees it.
 *
 * @property {string} topic
 * @property {object | string | Uint8Array | null} payload
 * @property {number} userid      who asks, stamped by the broker
 * @property {number} rolemask    1 owner, 2 user, 8 admin
 * @property {boolean} streaming  the caller takes many answers
 */
export class Request {
  /** @param {import('./message.js').Message} message */
  constructor(message) {
    this.topic = message.topic;
    this.payload = message.payload.value;
    this.userid = message.userid;
    this.rolemask = message.rolemask;
    this.streaming = (message.flags & FLAG.STREAMING) !== 0;
  }
}

/** The services of one client. */
export class Provider {
  #services = new Map();
  #streams = new Map();
  #rpc;
  #send;

  /**
   * @param {(topic: string, payload: object) => Promise<*>} rpc
   * @param {(message: import('./message.js').Message) => void} send
   */
  constructor(rpc, send) {
    this.#rpc = rpc;
    this.#send = send;
  }

  /**
   * Register a service; resolves once it can be called.
   * @param {string} name
   * @param {Object<string, (request: Request) => *>} handlers  method -> answer, promise of one, or async iterable
   * @returns {Promise<() => Promise<void>>} takes the service back
   */
  async register(name, handlers) {
    if (this.#services.has(name)) throw new FluxError(ERRNO.EEXIST, `service ${name} is registered here already`);
    this.#services.set(name, handlers);
    try {
      await this.#rpc('service.add', { service: name });
    } catch (error) {
      this.#services.delete(name);
      throw error;
    }
    return async () => {
      if (this.#services.delete(name)) await this.#rpc('service.remove', { service: name });
    };
  }

  /** Register everything again, on a new connection. @param {(error: Error) => void} refuse */
  async restore(refuse) {
    for (const name of [...this.#services.keys()]) {
      try {
        await this.#rpc('service.add', { service: name });
      } catch (error) {
        this.#services.delete(name);
        refuse(error);
      }
    }
  }

  /** The gateway has taken a service back. @param {string} name */
  forget(name) {
    this.#services.delete(name);
  }

  /** Nobody can be answered any more. */
  end() {
    for (const stream of this.#streams.values()) stream.return?.();
    this.#streams.clear();
  }

  /** Take in a request. @param {import('./message.js').Message} message */
  requested(message) {
    const dot = message.topic.indexOf('.');
    const service = dot < 0 ? message.topic : message.topic.slice(0, dot);
    const method = dot < 0 ? '' : message.topic.slice(dot + 1);
    if (method === 'cancel' || method === 'disconnect') this.#stop(message, method);
    else this.#answer(message, this.#services.get(service), method);
  }

  #sender(message) {
    return message.routes.map((route) => Array.from(route).join(',')).join(';');
  }

  #stop(message, method) {
    const sender = this.#sender(message);
    const tag = method === 'cancel' ? message.payload.value?.matchtag : undefined;
    for (const [key, stream] of this.#streams) {
      if (tag === undefined ? key.startsWith(`${sender}#`) : key === `${sender}#${tag}`) stream.return?.();
    }
  }

  async #answer(message, handlers, method) {
    const handler = handlers && Object.hasOwn(handlers, method) ? handlers[method] : undefined;
    try {
      if (!handler) throw new FluxError(ERRNO.ENOSYS, `Unknown service method '${message.topic}'`);
      const answer = await handler(new Request(message));
      if (answer?.[Symbol.asyncIterator]) await this.#stream(message, answer[Symbol.asyncIterator]());
      else this.#respond(message, answer);
    } catch (error) {
      this.#failed(message, error);
    }
  }

  async #stream(message, iterator) {
    const key = `${this.#sender(message)}#${message.matchtag}`;
    this.#streams.set(key, iterator);
    try {
      for (let next = await iterator.next(); !next.done; next = await iterator.next()) {
        this.#respond(message, next.value);
      }
      this.#respond(message, null, ERRNO.ENODATA);
    } finally {
      this.#streams.delete(key);
    }
  }

  #respond(message, payload, errnum = 0) {
    if (message.flags & FLAG.NORESPONSE) return;
    this.#send(response(message, payload, errnum));
  }

  #failed(message, error) {
    if (message.flags & FLAG.NORESPONSE) return;
    try {
      this.#send(failed(message, error));
    } catch {
      // the client is closed: nobody can be answered
    }
  }
}
