/**
 * A long list of which only the visible rows exist: smooth at any length, a listbox for keyboard and screen reader.
 * @module
 */

import { h, mark } from './dom.js';

const OVERSCAN = 6;
let lists = 0;

/**
 * @typedef {object} Source  items under numbers that only rise, like `Ring`
 * @property {number} first
 * @property {number} end
 * @property {(number: number) => *} at
 */

export class Rows {
  #source;
  #make;
  #fill;
  #pool = [];
  #sizer = h('div', { class: 'rows-sizer', role: 'presentation' });
  #frame = 0;
  #first = 0;
  #id = `rows${++lists}`;
  #programmed = -1;

  /**
   * @param {object} options
   * @param {string} options.label
   * @param {string} [options.empty]     what stands there without items
   * @param {Source} options.source
   * @param {number} [options.rowHeight]
   * @param {() => HTMLElement} options.make          an empty row
   * @param {(row: HTMLElement, item: *) => void} options.fill
   * @param {(item: *, number: number) => void} [options.onopen]  Enter, or a click on a row
   * @param {(following: boolean) => void} [options.onfollow]
   */
  constructor({ label, empty = '', source, rowHeight = 24, make, fill, onopen, onfollow }) {
    this.#source = source;
    this.#make = make;
    this.#fill = fill;
    this.rowHeight = rowHeight;
    this.following = true;
    this.active = -1;
    this.onopen = onopen ?? (() => {});
    this.onfollow = onfollow ?? (() => {});
    this.element = h('div', {
      class: 'rows', role: 'listbox', tabindex: '0', 'aria-label': label,
      'data-nothing': empty,
      onscroll: () => this.#scrolled(), onkeydown: (event) => this.#key(event), onclick: (event) => this.#click(event),
    }, this.#sizer);
    new ResizeObserver(() => this.changed()).observe(this.element);
  }

  /** Show another source. @param {Source} source */
  set source(source) {
    this.#source = source;
    this.#first = source.first;
    this.active = -1;
    for (const row of this.#pool) row.number = -1;
    this.changed();
  }

  /** Items were added or forgotten: draw in the next frame. */
  changed() {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  /** Go to the end and stay there as items come, or stay where we are. @param {boolean} on */
  follow(on) {
    if (this.following !== on) {
      this.following = on;
      this.onfollow(on);
    }
    this.changed();
  }

  #draw() {
    const { element, rowHeight } = this;
    const { first, end } = this.#source;
    const height = element.clientHeight;
    if (height === 0) return; // not on screen
    mark(element, 'data-empty', end === first ? 'yes' : null);
    this.#sizer.style.height = `${(end - first) * rowHeight}px`;
    if (this.following) this.#scrollTo((end - first) * rowHeight - height);
    else if (first > this.#first) this.#scrollTo(element.scrollTop - (first - this.#first) * rowHeight);
    this.#first = first;
    const from = Math.max(first, first + Math.floor(element.scrollTop / rowHeight) - OVERSCAN);
    const to = Math.min(end, from + Math.ceil(height / rowHeight) + 2 * OVERSCAN);
    this.#place(from, to);
  }

  #scrollTo(top) {
    const { element } = this;
    const wanted = Math.max(0, Math.round(top));
    if (element.scrollTop === wanted) return;
    element.scrollTop = wanted;
    this.#programmed = element.scrollTop;
  }

  /** Rows keep the item they show: a scroll by one moves one row and fills one. */
  #place(from, to) {
    const free = this.#pool.filter((row) => row.number < from || row.number >= to);
    const shown = new Map(this.#pool.filter((row) => !free.includes(row)).map((row) => [row.number, row]));
    for (let number = from; number < to; number += 1) {
      const row = shown.get(number) ?? this.#put(free.pop(), number);
      row.style.transform = `translateY(${(number - this.#source.first) * this.rowHeight}px)`;
      mark(row, 'aria-selected', String(number === this.active));
      mark(row, 'aria-posinset', number - this.#source.first + 1);
      mark(row, 'aria-setsize', this.#source.end - this.#source.first);
    }
    for (const row of free) {
      row.number = -1;
      row.hidden = true;
    }
    mark(this.element, 'aria-activedescendant', this.active >= from && this.active < to ? this.#rowId(this.active) : null);
  }

  #rowId(number) {
    return `${this.#id}-${number}`;
  }

  #put(free, number) {
    const row = free ?? this.#newRow();
    row.number = number;
    row.id = this.#rowId(number);
    row.hidden = false;
    this.#fill(row, this.#source.at(number));
    return row;
  }

  #newRow() {
    const row = this.#make();
    row.classList.add('row');
    row.setAttribute('role', 'option');
    this.#pool.push(row);
    this.#sizer.append(row);
    return row;
  }

  #scrolled() {
    const { element } = this;
    if (element.scrollTop !== this.#programmed) {
      this.follow(element.scrollTop + element.clientHeight >= element.scrollHeight - this.rowHeight);
    }
    this.#programmed = -1;
    this.changed();
  }

  #click(event) {
    const row = event.target.closest('.row');
    if (!row || row.number < 0) return;
    this.#activate(row.number);
    this.onopen(this.#source.at(row.number), row.number);
  }

  #activate(number) {
    const { first, end } = this.#source;
    if (end === first) return;
    this.active = Math.min(Math.max(number, first), end - 1);
    this.follow(this.active === end - 1 && this.following);
    const top = (this.active - first) * this.rowHeight;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.#scrollTo(top);
    else if (top + this.rowHeight > scrollTop + clientHeight) this.#scrollTo(top + this.rowHeight - clientHeight);
    this.changed();
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { first, end } = this.#source;
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 1);
    const at = this.active < first ? end : this.active;
    const moves = {
      ArrowUp: at - 1, ArrowDown: at + 1, PageUp: at - page, PageDown: at + page, Home: first, End: end - 1,
    };
    if (event.key in moves) {
      this.#activate(moves[event.key]);
      if (event.key === 'End') this.follow(true);
    } else if (event.key === 'Enter' && this.active >= first) {
      this.onopen(this.#source.at(this.active), this.active);
    } else {
      return;
    }
    event.preventDefault();
  }
}
