/**
 * The log of all brokers, or of one, read as it grows (`log.dmesg`), in the order of its times.
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
/** Brokers whose logs are read together: the first ones. */
const TOGETHER = 64;
/** What brokers kept is gathered until nothing came for so long, so that it stands in order; at most for so long. */
const QUIET_MS = 400;
const GATHER_MS = 2000;
const ALL = '';

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
  #streams = new Map(); // rank -> its stream
  #timers = new Map();
  #quiet;
  #since = 0;
  #gathered = null; // entries that are not shown yet; null: all are
  #ranks = [];
  #chosen = null; // the rank chosen in the tree

  constructor() {
    this.ring = new Ring(KEPT);
    this.rank = h('select', { 'aria-label': 'Broker', onchange: () => this.#restart() });
    this.level = h('select', { 'aria-label': 'Least severe', onchange: () => this.#filter() },
      SEVERITIES.map((name, at) => h('option', { value: at, text: at === 7 ? 'all levels' : `${name} and worse` })));
    this.level.value = '7';
    this.filter = h('input', { type: 'search', class: 'filter', placeholder: 'text to find', 'aria-label': 'Text to find',
      spellcheck: 'false', oninput: () => this.#filter() });
    this.console = new Console({
      label: 'Log', empty: 'Nothing was logged here.', ring: this.ring, make, fill,
      read: (entry) => entry.line, tools: [this.rank, this.level, this.filter],
      columns: ['time', 'level', 'rank', 'from', 'text'],
    });
    this.console.element.classList.add('log');
    this.element = this.console.element;
    this.ranks([0], null);
  }

  /** Which brokers there are, and the one chosen in the tree. @param {number[]} ranks @param {number | null} chosen */
  ranks(ranks, chosen) {
    if (ranks.length && ranks.join() !== this.#ranks.join()) {
      const before = this.rank.value;
      this.#ranks = ranks;
      this.rank.replaceChildren(h('option', { value: ALL, text: 'all ranks' }),
        ...ranks.map((rank) => h('option', { value: rank, text: `rank ${rank}` })));
      this.rank.value = before !== ALL && ranks.includes(Number(before)) ? before : ALL;
      if (this.rank.value === ALL) this.#restart();
    }
    if (chosen === this.#chosen) return;
    this.#chosen = chosen;
    this.rank.value = chosen === null ? ALL : String(chosen);
    this.#restart();
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
    const text = this.filter.value.trim().toLowerCase();
    const all = worst === 7 && !text;
    this.console.filter(all ? null
      : (entry) => entry.severity <= worst && (!text || entry.line.toLowerCase().includes(text)));
  }

  /** Begin anew: what is shown is let go. */
  #restart() {
    for (const rank of [...this.#streams.keys(), ...this.#timers.keys()]) this.#stop(rank);
    this.console.clear();
    this.console.say('');
    this.#gathered = [];
    this.#since = performance.now();
    this.#gather();
    this.#follow();
  }

  #stop(rank) {
    clearTimeout(this.#timers.get(rank));
    this.#timers.delete(rank);
    this.#streams.get(rank)?.return();
    this.#streams.delete(rank);
  }

  /** Read those that are wanted and not read yet, and no others. */
  #follow() {
    if (!this.#client) return;
    const wanted = this.rank.value === ALL ? this.#ranks.slice(0, TOGETHER) : [Number(this.rank.value)];
    for (const rank of [...this.#streams.keys()]) if (!wanted.includes(rank)) this.#stop(rank);
    for (const rank of wanted) {
      if (!this.#streams.has(rank) && !this.#timers.has(rank)) this.#read(this.#client, rank);
    }
  }

  /** Brokers send what is severe to rank 0, too: where its own broker is read, once is enough. */
  #isCopy(entry, rank) {
    const from = Number(entry.rank || rank);
    return from !== rank && this.#streams.has(from);
  }

  #take(entry) {
    if (!this.#gathered) {
      this.#show(entry);
      return;
    }
    this.#gathered.push(entry);
    if (performance.now() - this.#since < GATHER_MS) this.#gather();
  }

  #gather() {
    clearTimeout(this.#quiet);
    this.#quiet = setTimeout(() => this.#showGathered(), QUIET_MS);
  }

  #showGathered() {
    const gathered = this.#gathered ?? [];
    this.#gathered = null;
    for (const entry of gathered.sort((a, b) => (a.at ?? 0) - (b.at ?? 0))) this.#show(entry);
  }

  #show(entry) {
    this.ring.push(entry);
    this.console.added(entry);
  }

  async #read(client, rank) {
    this.#streams.set(rank, null);
    const no = await this.#access.refusal('call', 'log.dmesg');
    if (no) {
      this.console.say(no);
      return;
    }
    const stream = client.stream('log.dmesg', { follow: true }, { nodeid: rank });
    this.#streams.set(rank, stream);
    const why = await this.#until(stream, rank);
    if (this.#streams.get(rank) !== stream || client !== this.#client || client.state === 'closed') return;
    this.#streams.delete(rank);
    if (why === null) return;
    this.console.say(`Not following rank ${rank}: ${why}`);
    this.#timers.set(rank, setTimeout(() => {
      this.#timers.delete(rank);
      this.#follow();
    }, AGAIN_MS));
  }

  /** Read a stream to its end. @returns {Promise<string | null>} why it ended; null: it is no use to try again */
  async #until(stream, rank) {
    try {
      for await (const line of stream) {
        if (this.console.notice.hidden === false) this.console.say('');
        const entry = parse(typeof line === 'string' ? line : new TextDecoder().decode(line ?? new Uint8Array()));
        if (!this.#isCopy(entry, rank)) this.#take(entry);
      }
      return 'the stream ended.';
    } catch (error) {
      if (!isDenied(error)) return error.text ?? error.message;
      this.console.say(await this.#access.needs('call', 'log.dmesg', error.text));
      return null;
    }
  }
}
