/**
 * What this session may do, as the gateway's rules say; and the words for what it may not.
 * Asking first keeps the list of refusals free of this page's own tries.
 * @module
 */

import { ERRNO } from '../client.js';
import { either } from '../lib/format.js';

/** Whether an error says that the role is missing. @param {any} error @returns {boolean} */
export const isDenied = (error) => error?.errno === ERRNO.EPERM;

const WHAT = {
  call: (topic) => `Calling ${topic}`,
  subscribe: (topic) => (topic ? `Subscribing to ${topic}` : 'Subscribing to all events'),
  publish: (topic) => `Publishing ${topic}`,
  register: (topic) => `Registering ${topic}`,
};

/** The rules as one session meets them; made anew with each connection, because roles may change. */
export class Access {
  #known = new Map();

  /** @param {import('../client.js').Client} client */
  constructor(client) {
    this.client = client;
  }

  /** Forget what the rules said: another connection may be another user. */
  forget() {
    this.#known.clear();
  }

  /**
   * Whether the session may, which roles may, and the preset of rules that would let it ('' for none). Without an answer it
   * may: then the call itself will tell.
   * @param {string} kind  call, publish, subscribe or register
   * @param {string} topic
   * @returns {Promise<{allowed: boolean, roles: string[], preset: string}>}
   */
  ask(kind, topic) {
    const key = `${kind} ${topic}`;
    if (!this.#known.has(key)) this.#known.set(key, this.#rule(kind, topic));
    return this.#known.get(key);
  }

  async #rule(kind, topic) {
    try {
      const { allowed, roles, preset } = await this.client.rpc('gateway.rules', { kind, topic });
      return { allowed: allowed !== false, roles: roles ?? [], preset: preset ?? '' };
    } catch (error) {
      if (error.errno !== ERRNO.ENOSYS) this.#known.delete(`${kind} ${topic}`);
      return { allowed: true, roles: [], preset: '' };
    }
  }

  /**
   * A sentence for what cannot be shown: which role it needs, and which this session has.
   * @param {string} kind
   * @param {string} topic
   * @param {string} [said]  the refusal, for when the rules name no role
   * @returns {Promise<string>}
   */
  async needs(kind, topic, said = '') {
    const { roles, preset } = await this.ask(kind, topic);
    const mine = `This session has the role ${either(this.client.welcome?.roles ?? []) || 'none'}.`;
    const rule = preset ? `, or in the gateway's [[rules]]: roles = ["user"], preset = "${preset}"` : '';
    if (roles.length) return `${WHAT[kind](topic)} needs the role ${either(roles)}${rule}. ${mine}`;
    return `${WHAT[kind](topic)} was refused${said ? `: ${said}` : ''}. ${mine}`;
  }

  /**
   * The sentence of `needs` when the rules say no; "" when they do not.
   * @param {string} kind
   * @param {string} topic
   * @returns {Promise<string>}
   */
  async refusal(kind, topic) {
    return (await this.ask(kind, topic)).allowed ? '' : this.needs(kind, topic);
  }
}
