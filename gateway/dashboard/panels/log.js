/**
 * The log of a broker, read as it grows (`log.dmesg`).
 * @module
 */

import { Console } from '../lib/console.js';
import { h, mark, say } from '../lib/dom.js';
import { clock } from '../lib/format.js';
import { Ring } from '../lib/ring.js';
import { isDenied } from '../model/access.js';

const KEPT = 10_000;
const SEVERITIES = ['emerg', 'alert', 'crit', 'err', 'warning', 'notice', 'info', 'debug'];
const AGAIN_MS = 3000;

/** An RFC 5424 line as deployed brokers write it: the severity stands in bits 3 and up of PRI, the host is the rank. */
export function parse(line) {
  const match = /^<(\d{1,3})>1 (\S+) (\S+) (\S+) (\S+) \S+ \S+ ?(.*)$/s.exec(line);
  if (!match) return { at: null, severity: 6, rank: '', app: '', text: line, line };
  const at = new Date(match[2]);
  return {
    at: Number.isNaN(at.getTime()) ? null : at, severity: (Number(match[1]) >> 3) & 7, rank: match[3], app: match[4],
    text: match[6].trimEnd(), line,
  };
}

function make() {
  const cells = ['at', 'severity', 'rank', 'app', 'text'].map((name) => h('span', { class: `cell ${name}` }));
  const row = h('div', { class: 'log-row' }, cells);
  row.cells = cells;
  return row;
}

function fill(row, entry) {
  const [at, severity, rank, app, text] = row.cells;
  const name = SEVERITIES[entry.severity];
  mark(row, 'data-severity', name);
  say(at, entry.at ? clock(entry.at) : '');
  say(severity, name);
  say(rank, entry.rank);
  say(app, entry.app);
  say(text, entry.text);
}

export class Log {
  #client = null;
  #access = null;
  #stream = null;
  #timer;

  constructor() {
    this.ring = new Ring(KEPT);
    this.rank = h('select', { 'aria-label': 'Broker', onchange: () => this.#restart() });
    this.level = h('select', { 'aria-label': 'Least severe', onchange: () => this.#filter() },
      SEVERITIES.map((name, at) => h('option', { value: at, text: at === 7 ? 'all levels' : `${name} and worse` })));
    this.level.value = '7';
    this.search = h('input', { type: 'search', class: 'filter', placeholder: 'text to find', 'aria-label': 'Text to find',
      spellcheck: 'false', oninput: () => this.#filter() });
    this.console = new Console({
      label: 'Log', empty: 'Nothing was logged here.', ring: this.ring, make, fill,
      read: (entry) => entry.line, tools: [this.rank, this.level, this.search],
      columns: ['time', 'level', 'rank', 'from', 'text'],
    });
    this.console.element.classList.add('log');
    this.element = this.console.element;
    this.ranks([0]);
  }

  /** Which brokers there are. @param {number[]} ranks */
  ranks(ranks) {
    const before = this.rank.value;
    if (ranks.length === 0 || this.rank.options.length === ranks.length) return;
    this.rank.replaceChildren(...ranks.map((rank) => h('option', { value: rank, text: `rank ${rank}` })));
    if (before !== '' && ranks.includes(Number(before))) this.rank.value = before;
  }

  /**
   * Read through this client.
   * @param {import('../client.js').Client} client
   * @param {import('../model/access.js').Access} access
   */
  attach(client, access) {
    this.#client = client;
    this.#access = access;
    this.#restart();
  }

  #filter() {
    const worst = Number(this.level.value);
    const text = this.search.value.trim().toLowerCase();
    const all = worst === 7 && !text;
    this.console.filter(all ? null
      : (entry) => entry.severity <= worst && (!text || entry.line.toLowerCase().includes(text)));
  }

  #restart() {
    clearTimeout(this.#timer);
    this.#stream?.return();
    this.console.clear();
    if (this.#client) this.#read(this.#client, Number(this.rank.value));
  }

  async #read(client, nodeid) {
    const no = await this.#access.refusal('call', 'log.dmesg');
    if (no) {
      this.console.say(no);
      return;
    }
    const stream = client.stream('log.dmesg', { follow: true }, { nodeid });
    this.#stream = stream;
    let why = 'The stream ended.';
    try {
      for await (const line of stream) {
        if (this.console.notice.hidden === false) this.console.say('');
        const entry = parse(typeof line === 'string' ? line : new TextDecoder().decode(line ?? new Uint8Array()));
        this.ring.push(entry);
        this.console.added(entry);
      }
    } catch (error) {
      if (isDenied(error)) {
        this.console.say(await this.#access.needs('call', 'log.dmesg', error.text));
        return;
      }
      why = error.text ?? error.message;
    }
    if (this.#stream !== stream || client.state === 'closed') return;
    this.console.say(`Not following: ${why}`);
    this.#timer = setTimeout(() => this.#restart(), AGAIN_MS);
  }
}
