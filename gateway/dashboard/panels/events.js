/**
 * The event console: what is published, by prefix.
 * @module
 */

import { FluxError } from '../client.js';
import { Console } from '../lib/console.js';
import { h, mark, say } from '../lib/dom.js';
import { clock, moment, preview, pretty } from '../lib/format.js';
import { isDenied } from '../model/access.js';

function make() {
  const cells = ['at', 'seq', 'topic', 'payload'].map((name) => h('span', { class: `cell ${name}` }));
  const row = h('div', { class: 'event-row' }, cells);
  row.cells = cells;
  return row;
}

function fill(row, entry) {
  const [at, seq, topic, payload] = row.cells;
  const { event, note } = entry;
  mark(row, 'data-note', note ? 'yes' : null);
  mark(row, 'data-private', event?.private ? 'yes' : null);
  say(at, clock(entry.at));
  say(seq, event ? String(event.sequence) : '');
  say(topic, event ? event.topic : note);
  say(payload, event ? preview(event.payload) : '');
}

function read({ at, event, note }) {
  if (!event) return `${moment(at)}\n${note}`;
  const flags = event.private ? ', private' : '';
  const when = `sequence ${event.sequence}, ${moment(at)}`;
  const who = `userid ${event.userid}, rolemask ${event.rolemask}${flags}`;
  return `${event.topic}\n${when}\n${who}\n\n${pretty(event.payload)}`;
}

export class Events {
  #client = null;
  #access = null;
  #subscription = null;
  #unlisten;
  #wanted = '';
  #busy = Promise.resolve();

  /** @param {import('../model/eventlog.js').EventLog} log */
  constructor(log) {
    this.log = log;
    this.filter = h('input', {
      type: 'search', class: 'filter', placeholder: 'topic prefix, e.g. heartbeat.', 'aria-label': 'Topic prefix',
      spellcheck: 'false', autocomplete: 'off', autocapitalize: 'none',
      oninput: () => this.#filter(), onchange: () => this.#follow(),
    });
    this.console = new Console({
      label: 'Events', empty: 'No events yet.', ring: log.ring, make, fill, read, tools: [this.filter],
      columns: ['time', 'sequence', 'topic', 'payload'],
    });
    this.console.element.classList.add('events');
    this.element = this.console.element;
    this.#unlisten = log.listen((entry) => this.console.added(entry));
  }

  /**
   * Watch through this client.
   * @param {import('../client.js').Client} client
   * @param {import('../model/access.js').Access} access
   */
  attach(client, access) {
    this.#client = client;
    this.#access = access;
    this.#subscription = null;
    this.#follow();
  }

  /** Show no more: another console takes over. */
  detach() {
    this.#unlisten();
    this.#client = null;
  }

  #filter() {
    const prefix = this.filter.value.trim();
    this.console.filter(prefix ? ({ event }) => event === null || event.topic.startsWith(prefix) : null);
  }

  /** Subscribe to all events where the role allows it, else to the prefix that was entered. */
  #follow() {
    this.#wanted = this.filter.value.trim();
    this.#busy = this.#busy.then(() => this.#subscribe(this.#wanted))
      .catch((error) => this.console.say(error.message));
  }

  async #subscribe(prefix) {
    if (this.#subscription && !this.#subscription.closed && prefix.startsWith(this.#subscription.prefix)) return;
    const client = this.#client;
    if (!client || client.state === 'closed') return;
    await this.#subscription?.unsubscribe();
    this.#subscription = null;
    for (const attempt of prefix ? ['', prefix] : ['']) {
      const no = await this.#access.refusal('subscribe', attempt);
      if (no) {
        this.console.say(attempt ? no : `${no} Enter a prefix that this role may see.`);
        continue;
      }
      try {
        this.#subscription = await client.subscribe(attempt, (event) => this.log.event(event));
        this.console.say('');
        return;
      } catch (error) {
        if (client !== this.#client) return;
        if (!(error instanceof FluxError) || !isDenied(error)) throw error;
        const why = await this.#access.needs('subscribe', attempt, error.text);
        this.console.say(attempt ? why : `${why} Enter a prefix that this role may see.`);
      }
    }
  }
}
