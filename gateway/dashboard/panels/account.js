/**
 * Who is logged in here, until when, where else, and the end of that.
 * @module
 */

import { h, say } from '../lib/dom.js';
import { moment } from '../lib/format.js';
import { sureButton } from '../lib/sure.js';
import { Table } from '../lib/table.js';

const WAYS = { link: 'one-time link', token: 'token', jwt: 'token', oidc: 'login at' };

/** @param {string} from  as `gateway.logins` has it: `link`, `token:ID`, `jwt:ID` or `oidc:NAME` */
function wayOf(from) {
  const [kind, ...name] = from.split(':');
  return [WAYS[kind] ?? kind, name.join(':')].filter(Boolean).join(' ');
}

const at = (seconds) => (seconds ? moment(new Date(seconds * 1000)) : 'no end');

export class Account {
  #client;

  /**
   * @param {HTMLDialogElement} dialog
   * @param {() => void} onlogout  this login is to end, or has ended
   */
  constructor(dialog, onlogout) {
    this.dialog = dialog;
    this.onlogout = onlogout;
    this.facts = h('dl');
    this.logins = new Table('Logins', [
      { name: 'user', text: (row) => row.user },
      { name: 'by', text: (row) => wayOf(row.from) },
      { name: 'since', text: (row) => at(row.since) },
      { name: 'until', text: (row) => at(row.expires) },
    ], 'No browser is logged in.', (row) => this.#act(row));
    this.everywhere = sureButton('Log out everywhere', { label: 'Log out everywhere',
      title: 'All your logins end, in all browsers. Tokens go on.' }, () => this.#everywhere());
    this.out = h('button', { type: 'button', onclick: () => { dialog.close(); this.onlogout(); } }, 'Log out');
    dialog.append(
      h('h2', { id: 'account-title', text: 'Who am I' }), this.facts, this.logins.element,
      h('div', { class: 'actions' }, this.out, this.everywhere, h('span', { class: 'spring' }),
        h('button', { type: 'button', class: 'primary', onclick: () => dialog.close() }, 'Close')),
    );
    dialog.addEventListener('click', (event) => {
      if (event.target === dialog) dialog.close();
    });
  }

  /**
   * Show it.
   * @param {import('../client.js').Client} client
   * @param {boolean} kept  this browser has a cookie, not the page a token
   */
  async open(client, kept) {
    this.#client = client;
    const { user, userid, roles, expires } = client.welcome;
    this.out.hidden = !kept;
    const facts = { user: `${user} (userid ${userid})`, roles: roles.join(', '), until: at(expires) };
    this.facts.replaceChildren(...Object.entries(facts).map(([name, text]) => (
      h('div', {}, h('dt', { text: name }), h('dd', { text })))));
    this.dialog.showModal();
    await this.#draw();
  }

  async #draw() {
    try {
      const { logins, more } = await this.#client.rpc('gateway.logins');
      this.logins.draw(logins.map((row) => ({ ...row, id: row.login })));
      if (more) say(this.logins.heading, `Logins: the newest; ${more} more`);
      this.everywhere.hidden = !logins.some((row) => row.own);
    } catch (error) {
      this.logins.refuse(error.message);
    }
  }

  #act(row) {
    if (row.current) return h('span', { class: 'muted', text: 'this browser' });
    return sureButton('End', { label: `End the login of ${row.user} since ${at(row.since)}`,
      title: 'It ends in that browser, at once.' }, () => this.#ask({ login: row.login }));
  }

  async #ask(payload) {
    try {
      await this.#client.rpc('gateway.logout', payload);
    } catch (error) {
      this.logins.refuse(error.message);
      return false;
    }
    await this.#draw();
    return true;
  }

  async #everywhere() {
    if (!await this.#ask({ everywhere: true })) return;
    this.dialog.close();
    if (!this.out.hidden) this.onlogout();
  }
}
