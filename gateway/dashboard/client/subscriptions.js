/**
 * Subscriptions of a client: prefixes that the gateway knows, and the readers behind each.
 * @module
 */

import { ERRNO } from './errors.js';
import { Inbox } from './inbox.js';

/** Events that may wait for a reader's loop; beyond it the newest is not kept and counted in `lost`. */
export const SUBSCRIPTION_LIMIT = 10_000;

/** With these answers to unsubscribe the subscription is over, too: it ended with its connection. */
const GONE = new Set([ERRNO.ENOENT, ERRNO.ECONNRESET, ERRNO.ESHUTDOWN]);

/** A received event. */
export class Event {
  #message;

  /** @param {import('./message.js').Message} message */
  constructor(message) {
    this.#message = message;
    this.topic = message.topic;
    this.sequence = message.sequence;
    this.userid = message.userid;
    this.rolemask = message.rolemask;
    this.private = message.private;
  }

  /** @returns {any} parsed when it is looked at */
  get payload() {
    return this.#message.payload.value;
  }

  /** @returns {number} bytes of the payload */
  get size() {
    return this.#message.payload.size;
  }
}

/**
 * One reader of a prefix. Without a handler it is read by `for await (const event of subscription)`.
 *
 * @property {string} prefix
 * @property {number} lost   events that the loop was too slow for
 * @property {boolean} closed
 * @extends {Inbox<Event>}
 */
export class Subscription extends Inbox {
  #release;
  #handler;

  /**
   * @param {string} prefix
   * @param {((event: Event) => void) | undefined} handler
   * @param {(subscription: Subscription) => Promise<void>} release
   */
  constructor(prefix, handler, release) {
    super(SUBSCRIPTION_LIMIT, () => { this.lost += 1; }, () => { this.unsubscribe().catch(() => {}); });
    this.prefix = prefix;
    this.lost = 0;
    this.closed = false;
    this.#handler = handler;
    this.#release = release;
  }

  /** Hand over one event. @param {Event} event */
  deliver(event) {
    if (this.#handler) this.#handler(event);
    else this.push(event);
  }

  /** Stop; resolves once the gateway has been told, when this was its last reader of the prefix. */
  async unsubscribe() {
    if (this.closed) return;
    this.closed = true;
    this.end();
    await this.#release(this);
  }

  /** The gateway took the prefix away. @param {Error | null} error */
  fail(error) {
    this.closed = true;
    this.end(error);
  }
}

/** All prefixes of one client; the gateway hears of a prefix once, however many readers it has. */
export class Subscriptions {
  #byPrefix = new Map();
  #rpc;
  #report;
  #live;

  /**
   * @param {(topic: string, payload: object) => Promise<*>} rpc
   * @param {(error: Error) => void} report     takes what a handler threw
   * @param {(sequence: number) => void} live   takes the number of the last event before a subscription was live
   */
  constructor(rpc, report, live) {
    this.#rpc = rpc;
    this.#report = report;
    this.#live = live;
  }

  /** Prefixes that are live (or were, when the connection was lost). @returns {string[]} */
  get prefixes() {
    return [...this.#byPrefix].filter(([, interest]) => interest.confirmed).map(([prefix]) => prefix);
  }

  /**
   * Add a reader; resolves once the subscription is live.
   * @param {string} prefix
   * @param {((event: Event) => void) | undefined} handler
   * @returns {Promise<Subscription>}
   */
  async add(prefix, handler) {
    let interest = this.#byPrefix.get(prefix);
    if (interest === undefined) {
      interest = { members: new Set(), live: this.#rpc('event.subscribe', { topic: prefix }), confirmed: false };
      this.#byPrefix.set(prefix, interest);
    }
    const member = new Subscription(prefix, handler, (each) => this.#remove(each));
    interest.members.add(member);
    try {
      const answer = await interest.live;
      if (!interest.confirmed && Number.isInteger(answer?.sequence)) this.#live(answer.sequence);
      interest.confirmed = true;
    } catch (error) {
      if (this.#byPrefix.get(prefix) === interest) this.#byPrefix.delete(prefix);
      member.fail(error);
      throw error;
    }
    return member;
  }

  async #remove(member) {
    const interest = this.#byPrefix.get(member.prefix);
    if (!interest?.members.delete(member) || interest.members.size > 0) return;
    this.#byPrefix.delete(member.prefix);
    try {
      await this.#rpc('event.unsubscribe', { topic: member.prefix });
    } catch (error) {
      if (!GONE.has(error.errno)) throw error;
    }
  }

  /** Hand an event to its readers, once each. @param {import('./message.js').Message} message */
  deliver(message) {
    const event = new Event(message);
    for (const [prefix, interest] of this.#byPrefix) {
      if (!event.topic.startsWith(prefix)) continue;
      for (const member of interest.members) {
        try {
          member.deliver(event);
        } catch (error) {
          this.#report(error);
        }
      }
    }
  }

  /** Subscribe to every prefix again, on a new connection. @param {(error: Error) => void} refuse */
  async restore(refuse) {
    const restored = this.prefixes.map(async (prefix) => {
      try {
        await this.#rpc('event.subscribe', { topic: prefix });
      } catch (error) {
        refuse(error);
        this.drop(prefix, error);
      }
    });
    await Promise.all(restored);
  }

  /** The gateway does not give this prefix any more. @param {string} prefix @param {Error | null} error */
  drop(prefix, error) {
    const interest = this.#byPrefix.get(prefix);
    this.#byPrefix.delete(prefix);
    for (const member of interest?.members ?? []) member.fail(error);
  }

  /** The client is closed. @param {Error | null} error */
  end(error) {
    for (const prefix of [...this.#byPrefix.keys()]) this.drop(prefix, error);
  }
}
