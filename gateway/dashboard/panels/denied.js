/**
 * What was refused: who wanted what, and why not.
 * @module
 */

import { ERRNO } from '../client.js';
import { h } from '../lib/dom.js';
import { clock, moment } from '../lib/format.js';
import { Table } from '../lib/table.js';
import { isDenied } from '../model/access.js';

const EVERY_MS = 3000;
const ROWS = 256;

export class Denied {
  #client = null;
  #access = null;
  #timer;

  /** @param {(count: number) => void} oncount  how many there were in all */
  constructor(oncount) {
    this.oncount = oncount;
    this.table = new Table('Denied access', [
      { name: 'time', text: (row) => clock(new Date(row.at * 1000)), title: (row) => moment(new Date(row.at * 1000)) },
      { name: 'user', text: (row) => row.user || '(unknown)' },
      { name: 'kind', text: (row) => row.kind },
      { name: 'topic', text: (row) => row.topic },
      { name: 'why', text: (row) => row.reason },
      { name: 'from', text: (row) => row.address ?? '' },
    ], 'Nothing was refused since the gateway started.');
    this.element = h('div', { class: 'denied' }, this.table.element);
  }

  /**
   * Ask through this client.
   * @param {import('../client.js').Client} client
   * @param {import('../model/access.js').Access} access
   */
  attach(client, access) {
    this.#client = client;
    this.#access = access;
    this.#round();
  }

  /** Ask no more. */
  stop() {
    this.#client = null;
    clearTimeout(this.#timer);
  }

  async #round() {
    clearTimeout(this.#timer);
    if (this.#client?.state === 'open') await this.#ask();
    clearTimeout(this.#timer);
    if (!this.#client) return;
    this.#timer = setTimeout(() => this.#round(), EVERY_MS);
  }

  async #ask() {
    try {
      const no = await this.#access.refusal('call', 'gateway.denied');
      if (no) {
        this.table.refuse(no);
        return;
      }
      const { denied, total } = await this.#client.rpc('gateway.denied', { limit: ROWS });
      this.table.draw([...denied].reverse());
      this.oncount(total ?? denied.length);
    } catch (error) {
      if (!this.#client) return;
      if (isDenied(error)) this.table.refuse(await this.#access.needs('call', 'gateway.denied', error.text));
      else if (error.errno === ERRNO.ENOSYS) this.table.refuse('This gateway keeps no list of refusals.');
    }
  }
}
