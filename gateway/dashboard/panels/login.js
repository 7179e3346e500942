/**
 * What stands there when there is no credential: how to get one, and a place for a token.
 * @module
 */

import { h, say } from '../lib/dom.js';

/**
 * @param {HTMLElement} parent
 * @param {(token: string) => void} ontoken
 */
export class Login {
  constructor(parent, ontoken) {
    this.parent = parent;
    this.why = h('p', { class: 'wrong', role: 'alert' });
    this.token = h('input', { id: 'token', type: 'password', autocomplete: 'off', spellcheck: 'false', required: true });
    parent.append(
      h('h2', { id: 'login-title', text: 'Log in' }), this.why,
      h('p', {}, 'This browser is not logged in here. On the host of the gateway, print a one-time link and open it:'),
      h('pre', { class: 'command', text: 'headgate login link' }),
      h('p', {}, 'A gateway that was started by ', h('code', { text: 'make run' }), ' or ', h('code', { text: 'headgate up' }),
        ' printed one when it started.'),
      h('form', { onsubmit: (event) => { event.preventDefault(); ontoken(this.token.value.trim()); this.token.value = ''; } },
        h('label', { for: 'token', class: 'field' }, h('span', { text: 'Or enter a token' }), this.token),
        h('p', { class: 'muted', text: 'It stays in the memory of this page and is gone when the page is.' }),
        h('div', { class: 'actions' }, h('span', { class: 'spring' }),
          h('button', { type: 'submit', class: 'primary' }, 'Connect'))),
    );
  }

  /** @param {boolean} on @param {string} [why]  what was wrong with the last credential */
  show(on, why = '') {
    say(this.why, why);
    this.why.hidden = !why;
    const appears = on && this.parent.hidden;
    this.parent.hidden = !on;
    if (appears) this.token.focus();
  }
}
