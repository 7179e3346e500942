/**
 * Tabs as the ARIA pattern has them: arrow keys move, one panel is shown.
 * @module
 */

import { h, mark, say } from './dom.js';

export class Tabs {
  #tabs = [];

  /**
   * @param {HTMLElement} list
   * @param {HTMLElement} panels
   * @param {(name: string) => void} onshow
   */
  constructor(list, panels, onshow) {
    this.list = list;
    this.panels = panels;
    this.onshow = onshow;
    this.current = '';
    list.addEventListener('keydown', (event) => this.#key(event));
  }

  /**
   * Add a tab.
   * @param {string} name   also in the address: #name
   * @param {string} title
   * @param {HTMLElement} content
   */
  add(name, title, content) {
    const badge = h('span', { class: 'badge', hidden: true });
    const tab = h('button', {
      type: 'button', role: 'tab', id: `tab-${name}`, 'aria-controls': `panel-${name}`, tabindex: -1,
      onclick: () => this.show(name),
    }, h('span', { text: title }), badge);
    const panel = h('div', {
      role: 'tabpanel', id: `panel-${name}`, 'aria-labelledby': `tab-${name}`, class: 'tab-panel', hidden: true,
    }, content);
    this.#tabs.push({ name, tab, panel, badge });
    this.list.append(tab);
    this.panels.append(panel);
  }

  /** Those that are there. @returns {string[]} */
  get names() {
    return this.#tabs.filter(({ tab }) => !tab.hidden).map(({ name }) => name);
  }

  /** Take a tab away or bring it back; the one shown gives way to the first. @param {string} name @param {boolean} on */
  offer(name, on) {
    const { tab } = this.#tabs.find((each) => each.name === name);
    if (tab.hidden !== on) return;
    tab.hidden = !on;
    if (!on && this.current === name) this.show('');
  }

  /** Show a tab; an unknown name, and one that is not there, shows the first. @param {string} name */
  show(name) {
    const known = this.names.includes(name) ? name : this.#tabs[0].name;
    this.current = known;
    const focused = this.list.contains(document.activeElement);
    for (const { name: each, tab, panel } of this.#tabs) {
      const on = each === known;
      mark(tab, 'aria-selected', String(on));
      mark(tab, 'tabindex', on ? 0 : -1);
      panel.hidden = !on;
      if (on && focused) tab.focus();
    }
    this.onshow(known);
  }

  /** A small text beside a title; "" hides it. @param {string} name @param {string} text */
  badge(name, text) {
    const { badge } = this.#tabs.find((each) => each.name === name);
    say(badge, text);
    badge.hidden = !text;
  }

  #key(event) {
    const { names } = this;
    const at = names.indexOf(this.current);
    const last = names.length - 1;
    const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.show(names[to]);
  }
}
