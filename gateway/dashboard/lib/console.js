/**
 * A console: a long list that follows what comes, with a filter, a pause, and a place to read one entry.
 * @module
 */

import { h, say } from './dom.js';
import { fileName, save } from './download.js';
import { Ring } from './ring.js';
import { Rows } from './rows.js';

/** A copy that stands still, numbered like its original. */
class Snapshot {
  constructor(ring) {
    this.first = ring.first;
    this.end = ring.end;
    this.items = [...ring];
  }

  at(number) {
    return this.items[number - this.first];
  }
}

export class Console {
  #all;
  /** @type {*} a ring, or a copy of one */
  #shown;
  /** @type {(item: *) => boolean} */
  #accepts = () => true;
  #held = 0;

  /**
   * @param {object} options
   * @param {string} options.label
   * @param {string} options.empty   what stands there without entries
   * @param {Ring} options.ring      all there is; entries are announced by `added`
   * @param {() => HTMLElement} options.make
   * @param {(row: HTMLElement, item: *) => void} options.fill
   * @param {(item: *) => string} options.read  the whole of an entry
   * @param {Node[]} options.tools   what stands in the bar, before pause
   * @param {string[]} options.columns
   */
  constructor({ label, empty, ring, make, fill, read, tools, columns }) {
    this.#all = ring;
    this.#shown = ring;
    this.paused = false;
    this.read = read;
    this.pauseButton = h('button', { type: 'button', class: 'toggle', 'aria-pressed': 'false', title: 'Pause (p)',
      onclick: () => this.pause(!this.paused) }, 'Pause');
    this.followButton = h('button', { type: 'button', class: 'toggle', 'aria-pressed': 'true', title: 'Follow (f)',
      onclick: () => this.rows.follow(!this.rows.following) }, 'Follow');
    this.clearButton = h('button', { type: 'button', onclick: () => this.clear() }, 'Clear');
    this.saveButton = h('button', { type: 'button', text: 'Save', title: 'Keep what is shown as a file, an entry a line',
      onclick: () => this.#save(label) });
    this.count = h('span', { class: 'count', role: 'status', 'aria-live': 'off' });
    this.notice = h('p', { class: 'needs', hidden: true });
    this.rows = new Rows({
      label, empty, source: ring, make, fill,
      onopen: (item) => this.#open(item),
      onfollow: (on) => this.followButton.setAttribute('aria-pressed', String(on)),
    });
    this.text = h('pre', { class: 'entry-text', tabindex: 0, 'aria-label': 'The chosen entry' });
    this.entry = h('div', { class: 'entry', hidden: true },
      h('button', { type: 'button', class: 'quiet', 'aria-label': 'Close', title: 'Close (Esc)',
        onclick: () => this.#close() }, '×'), this.text);
    this.element = h('div', { class: 'console', onkeydown: (event) => this.#key(event) },
      h('div', { class: 'tools' }, tools, h('span', { class: 'spring' }), this.count, this.followButton,
        this.pauseButton, this.saveButton, this.clearButton),
      this.notice,
      h('div', { class: 'console-body' },
        h('div', { class: 'console-list' },
          h('div', { class: 'columns', 'aria-hidden': 'true' }, columns.map((name) => h('span', { text: name }))),
          this.rows.element),
        this.entry));
  }

  /** An entry was put into the ring. */
  added(item) {
    if (this.paused) {
      this.#held += 1;
      return;
    }
    if (this.#shown !== this.#all && this.#accepts(item)) this.#shown.push(item);
    this.rows.changed();
  }

  /** Show what `accepts` says only; null shows all. @param {((item: *) => boolean) | null} accepts */
  filter(accepts) {
    this.#accepts = accepts ?? (() => true);
    this.filtered = accepts !== null;
    this.#show();
  }

  #show() {
    const source = this.paused ? this.frozen : this.#all;
    if (this.filtered) {
      this.#shown = new Ring(this.#all.capacity);
      for (const item of source) if (this.#accepts(item)) this.#shown.push(item);
    } else {
      this.#shown = this.paused ? new Snapshot(source) : source;
    }
    this.rows.source = this.#shown;
  }

  /** Hold the view still; what comes is kept behind it. @param {boolean} on */
  pause(on) {
    if (on === this.paused) return;
    if (on) {
      this.frozen = new Ring(this.#all.capacity);
      for (const item of this.#all) this.frozen.push(item);
    }
    this.paused = on;
    this.#held = 0;
    this.pauseButton.setAttribute('aria-pressed', String(on));
    say(this.pauseButton, on ? 'Resume' : 'Pause');
    this.#show();
  }

  /** Forget the entries. */
  clear() {
    this.#all.clear();
    if (this.paused) this.pause(false);
    this.#close();
    this.#show();
  }

  #save(label) {
    const lines = [];
    for (let at = this.#shown.first; at < this.#shown.end; at += 1) lines.push(JSON.stringify(this.#shown.at(at)));
    save(fileName(label, 'jsonl'), lines.map((line) => `${line}\n`).join(''), 'application/x-ndjson');
  }

  /** How many are shown, of how many; called once a second. */
  tell() {
    const all = this.#all.length.toLocaleString('en');
    const shown = this.#shown.end - this.#shown.first;
    say(this.count, this.paused ? `paused, ${this.#held.toLocaleString('en')} new`
      : this.filtered ? `${shown.toLocaleString('en')} of ${all}` : `${all} kept`);
    this.rows.changed();
  }

  /** Say why there is nothing to see; "" takes it back. @param {string} text */
  say(text) {
    say(this.notice, text);
    this.notice.hidden = !text;
  }

  #open(item) {
    say(this.text, this.read(item));
    this.entry.hidden = false;
    this.rows.changed();
  }

  #close() {
    this.entry.hidden = true;
    this.rows.changed();
  }

  #key(event) {
    if (event.key === 'Escape' && !this.entry.hidden) {
      this.#close();
      this.rows.element.focus();
      event.stopPropagation();
    } else if (event.key === ' ' && event.target === this.rows.element) {
      this.pause(!this.paused);
      event.preventDefault();
    }
  }
}
