/**
 * The connection as the page shows it: the lamp in the bar, the banner, what is stale, and the name of the instance.
 * @module
 */

import { mark, say } from '../lib/dom.js';
import { clockSeconds } from '../lib/format.js';

const byId = (id) => document.getElementById(id);

export class LinkState {
  #timer;
  #retry;
  #act = () => {};
  #upstreamJoined = true;
  #seen = false;

  /** @param {() => void} retry  tries to connect at once */
  constructor(retry) {
    this.#retry = retry;
    byId('banner-act').addEventListener('click', () => this.#act());
  }

  #set(state, text) {
    clearInterval(this.#timer);
    document.body.dataset.link = state;
    say(byId('link-state').lastElementChild, text);
  }

  #banner(text, action, act) {
    byId('banner').hidden = !text;
    say(byId('banner-text'), text);
    byId('banner-act').hidden = !action;
    say(byId('banner-act'), action ?? '');
    this.#act = act ?? (() => {});
  }

  connecting() {
    this.#set('connecting', 'connecting');
    this.#banner('');
  }

  /** @param {object} welcome */
  open(welcome) {
    this.#set('open', 'live');
    this.upstream(welcome.upstream?.joined ?? true, '');
  }

  /** @param {boolean} joined @param {string} reason */
  upstream(joined, reason) {
    this.#upstreamJoined = joined;
    this.#seen ||= joined;
    if (joined) {
      this.#set('open', 'live');
      this.#banner('');
      return;
    }
    this.#set('headless', 'no broker');
    const why = reason ? `: ${reason}` : '';
    this.#banner(this.#seen
      ? `The gateway has lost its broker and is looking for it${why}. What you see is from before.`
      : `The gateway has found no broker yet and is looking for it${why}.`);
  }

  /** Nobody answers, though the connection is there: a gateway that is frozen, or the way to it. */
  silent(seconds, seenAt) {
    if (!this.#upstreamJoined || !['open', 'silent'].includes(document.body.dataset.link)) return;
    if (seconds) {
      this.#set('silent', `no answer for ${seconds} s`);
      this.#banner(`Nothing has been answered for ${seconds} s. What you see is from ${clockSeconds(new Date(seenAt))}.`);
    } else if (document.body.dataset.link === 'silent') {
      this.#set('open', 'live');
      this.#banner('');
    }
  }

  /** The gateway said that it is about to leave. */
  leaving() {
    this.#banner('The gateway is about to leave or to restart. This page will connect again by itself.');
  }

  /** @param {{text: string, delayMs: number}} detail @param {number} seenAt  when the figures were right */
  reconnecting({ text, delayMs }, seenAt) {
    this.#set('lost', 'disconnected');
    const until = Date.now() + delayMs;
    const since = seenAt ? ` What you see is from ${clockSeconds(new Date(seenAt))}.` : '';
    const show = () => {
      const left = Math.max(0, Math.ceil((until - Date.now()) / 1000));
      const next = left > 1 ? `Next try in ${left} s.` : 'Trying again.';
      this.#banner(`Disconnected: ${text}. ${next}${since}`, 'Try now', this.#retry);
    };
    show();
    this.#timer = setInterval(show, 1000);
  }

  /** It is over until a person acts. */
  closed({ text, name }, again) {
    this.#set('closed', 'closed');
    this.#banner(`The gateway closed this connection: ${text} (${name}).`, 'Connect again', again);
  }

  loggedOut() {
    this.#set('login', 'not logged in');
    this.#banner('');
    byId('who').hidden = true;
    byId('instance').replaceChildren();
  }

  /** @param {import('../model/instance.js').Instance} instance */
  instance(instance) {
    const size = instance.ranks.size;
    const words = [instance.state, size && `${size} ${size === 1 ? 'broker' : 'brokers'}`,
      instance.version && `${instance.headgate ? 'Headgate' : 'flux-core'} ${instance.version}`].filter(Boolean);
    say(byId('instance'), words.join(' · '));
    const counts = new Map();
    for (const { status } of instance.ranks.values()) counts.set(status, (counts.get(status) ?? 0) + 1);
    const told = [...counts].map(([status, count]) => `${count} ${status}`).join(', ');
    say(byId('overlay-note'), told && `${told} · messages/s ↓ in ↑ out`);
    mark(document.body, 'data-state', instance.state || null);
  }
}
