/**
 * What there is to say about the chosen broker, below the picture, and what its owner may do with it.
 * @module
 */

import { h, keep, say } from '../lib/dom.js';
import { duration, size } from '../lib/format.js';
import { sureButton } from '../lib/sure.js';

export class RankDetail {
  #client = null;
  #owner = false;
  #refusal = '';

  constructor(parent) {
    this.rank = null;
    this.words = h('span');
    this.facts = h('dl');
    this.acts = h('span', { class: 'acts' });
    parent.replaceChildren(this.words, this.facts, this.acts);
  }

  /** Act through this client. @param {import('../client.js').Client} client */
  attach(client) {
    this.#client = client;
    this.#owner = client.welcome?.roles.includes('owner') ?? false;
    this.rank = null;
  }

  /**
   * @param {import('../model/instance.js').Rank | undefined} rank
   * @param {boolean} ours  these brokers are Headgate's
   */
  draw(rank, ours) {
    if (rank?.rank !== this.rank) {
      this.rank = rank?.rank;
      this.#refusal = '';
      this.acts.replaceChildren(rank && ours && this.#owner ? this.#drain(rank) : '');
    }
    say(this.words, rank ? this.#refusal : 'Choose a broker to see its links and its own traffic.');
    const facts = rank ? [
      ['rank', `${rank.rank} ${rank.host}`],
      ['status', `${rank.status}${Number.isFinite(rank.since) ? ` for ${duration(rank.since)}` : ''}`],
      rank.trouble && ['error', rank.trouble],
      Number.isFinite(rank.pending) && ['open calls', String(rank.pending)],
      Number.isFinite(rank.links) && ['links', linkWords(rank)],
      rank.outboxBytes > 0 && ['waits to be sent', size(rank.outboxBytes)],
      rank.dropped > 0 && ['dropped', Object.entries(rank.drops).map(([why, count]) => `${count} ${why}`).join(', ')],
    ].filter(Boolean) : [];
    keep(this.facts, facts, () => h('div', {}, h('dt'), h('dd')), (row, [name, value]) => {
      say(row.firstElementChild, name);
      say(row.lastElementChild, value);
    });
  }

  #drain({ rank, children }) {
    const title = `${rank ? 'It takes no more calls, lets the open ones end and leaves' : 'The whole instance ends'}`
      + `${rank && children.length ? '; the brokers below it leave first' : ''}. Needs the role owner.`;
    return sureButton('Drain', { label: `Drain rank ${rank}`, title }, async () => {
      try {
        await this.#client.rpc('broker.drain', { rank }, { nodeid: rank });
      } catch (error) {
        if (this.rank === rank) this.#refusal = error.message;
      }
    });
  }
}

function linkWords(rank) {
  const words = Object.entries(rank.kinds).map(([kind, count]) => `${count} ${kind}`);
  return words.length ? words.join(', ') : String(rank.links);
}
