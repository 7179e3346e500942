/**
 * In a large tree: what is wrong first, and a field that finds a broker by rank, host or status.
 * @module
 */

import { h, keep, mark, say } from '../lib/dom.js';

/** From so many brokers on a tree is not seen at a glance. */
const LARGE = 16;
const SHOWN = 12;

export class TreeFind {
  #instance;
  #tree;

  /**
   * @param {HTMLElement} place  above the tree
   * @param {import('../model/instance.js').Instance} instance
   * @param {import('./tree.js').Tree} tree
   */
  constructor(place, instance, tree) {
    this.#instance = instance;
    this.#tree = tree;
    this.place = place;
    this.field = h('input', {
      type: 'search', placeholder: 'rank, host or status', 'aria-label': 'Find a broker', spellcheck: 'false',
      oninput: () => this.draw(), onkeydown: (event) => this.#key(event),
    });
    this.found = h('ul', { class: 'found', 'aria-label': 'Brokers found', onclick: (event) => this.#click(event) });
    place.replaceChildren(this.field, this.found);
    place.hidden = true;
  }

  /** Those that are named by what was typed; else those that are not well. @returns {import('../model/instance.js').Rank[]} */
  get #brokers() {
    const wanted = this.field.value.trim().toLowerCase();
    const fits = wanted
      ? ({ rank, host, status }) => String(rank) === wanted || host.toLowerCase().includes(wanted) || status.startsWith(wanted)
      : ({ trouble, status }) => trouble || !['full', 'unknown'].includes(status);
    return this.#instance.list.filter(fits);
  }

  /** Draw what is known now. */
  draw() {
    this.place.hidden = this.#instance.ranks.size <= LARGE;
    if (this.place.hidden) return;
    const brokers = this.#brokers;
    keep(this.found, brokers.slice(0, SHOWN), () => h('li', {}, h('button', { type: 'button', class: 'small' })), (item, rank) => {
      const button = item.firstElementChild;
      mark(button, 'data-rank', rank.rank);
      mark(button, 'data-mood', rank.gone || rank.silentS ? 'bad' : rank.status === 'full' ? null : 'warn');
      say(button, `rank ${rank.rank}${rank.host ? ` ${rank.host}` : ''}${rank.trouble ? `: ${rank.trouble}` : `: ${rank.status}`}`);
    });
    const rest = brokers.length - SHOWN;
    mark(this.found, 'data-more', rest > 0 ? `and ${rest} more` : this.field.value.trim() && !brokers.length ? 'no broker like that' : null);
  }

  #click(event) {
    const rank = event.target.closest('[data-rank]')?.dataset.rank;
    if (rank !== undefined) this.#tree.reveal(Number(rank));
  }

  #key(event) {
    if (event.key === 'Enter') {
      const [first] = this.#brokers;
      if (first) this.#tree.reveal(first.rank);
    } else if (event.key === 'Escape' && this.field.value) {
      this.field.value = '';
      this.draw();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}
