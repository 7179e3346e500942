/**
 * What stands there when there is no credential: identity providers, how to get a link, and a place for a token.
 * @module
 */

import { h, say } from '../lib/dom.js';

/**
 * @param {HTMLElement} parent
 * @param {(token: string, keep: boolean) => void} ontoken  keep: the login is to survive this page
 */
export class Login {
  constructor(parent, ontoken) {
    this.parent = parent;
    this.why = h('p', { class: 'wrong', role: 'alert' });
    this.ways = h('div', { class: 'ways', hidden: true });
    this.links = h('div', { class: 'links', hidden: true },
      h('p', {}, 'On the host of the gateway, print a one-time link and open it; ', h('code', { text: '--config FILE' }),
        ' names its configuration, if it has one:'),
      h('pre', { class: 'command', text: 'headgate login link' }),
      h('p', {}, 'A gateway that was started by ', h('code', { text: 'make run' }), ' or ', h('code', { text: 'headgate up' }),
        ' printed one when it started.'));
    this.token = h('input', { id: 'token', type: 'password', autocomplete: 'off', spellcheck: 'false', required: true });
    this.keep = h('input', { id: 'keep', type: 'checkbox', checked: true });
    parent.append(
      h('h2', { id: 'login-title', text: 'Log in' }), this.why, this.ways,
      h('p', {}, 'This browser is not logged in here.'), this.links,
      h('form', { onsubmit: (event) => this.#enter(event, ontoken) },
        h('label', { for: 'token', class: 'field' }, h('span', { text: 'Or enter a token' }), this.token),
        h('label', { class: 'check' }, this.keep, 'Stay logged in in this browser'),
        h('p', { class: 'muted', text: 'The token itself is kept nowhere; without this it is gone when the page is.' }),
        h('div', { class: 'actions' }, h('span', { class: 'spring' }),
          h('button', { type: 'submit', class: 'primary' }, 'Connect'))),
    );
  }

  #enter(event, ontoken) {
    event.preventDefault();
    ontoken(this.token.value.trim(), this.keep.checked);
    this.token.value = '';
  }

  /** @param {boolean} on @param {string} [why]  what was wrong with the last credential */
  show(on, why = '') {
    say(this.why, why);
    this.why.hidden = !why;
    const appears = on && this.parent.hidden;
    this.parent.hidden = !on;
    if (!appears) return;
    this.token.focus();
    this.#offer();
  }

  /** A button for each identity provider; how to come by a link, where the gateway takes them. */
  async #offer() {
    const answer = await fetch('v1/login').catch(() => null); // the gateway is away: the page says so elsewhere
    const { oidc, links } = answer?.ok ? await answer.json() : { oidc: [], links: false };
    this.links.hidden = !links;
    this.ways.hidden = !oidc.length;
    this.ways.replaceChildren(...oidc.map(({ name, title }) => (
      h('a', { href: `v1/login/oidc/${name}`, text: `Log in with ${title}` }))));
  }
}
