/**
 * The instance behind the gateway as its brokers tell it: shape, health, traffic and latency of every rank.
 * The gateway asks them (`gateway.ranks`), once for all pages; this asks for what has changed, once a second.
 * @module
 */

import { ERRNO } from '../client.js';
import { expand } from '../lib/hostlist.js';
import { Series } from '../lib/ring.js';
import { isDenied } from './access.js';

export const TYPES = ['request', 'response', 'event', 'control'];

const TOPIC = 'gateway.ranks';
const TICK_MS = 1000;
const ANSWER_MS = 4000;
const GONE = new Set(['lost', 'offline']);
/** So long an answer may take; after that its broker, or the gateway, is shown as silent, and its figures as unknown. */
const SILENT_MS = 2000;
/** So long a tick waits for the answer. */
const WAIT_MS = 500;

const UNKNOWN = Object.freeze({ rx: {}, ms: null, drops: null });

const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });

/** One broker. Rates are messages per second. */
export class Rank {
  constructor(rank) {
    this.rank = rank;
    this.above = undefined; // the rank of its parent, as the gateway tells; null: it is the root
    this.parent = null;
    this.children = [];
    this.host = '';
    this.told = 'unknown'; // its status, as the tree tells
    this.waitingSince = NaN; // by the clock of this page
    this.sinceAt = NaN; // of its status
    this.error = '';
    this.kinds = {};
    this.traffic = new Series();
    this.latency = new Series();
    this.drops = null; // reason -> count; null where the broker does not tell
    this.pending = NaN;
    this.links = NaN;
    this.outboxBytes = NaN;
    this.quiet();
  }

  /** What flows is not known. */
  quiet() {
    Object.assign(this, { rx: {}, in: NaN, out: NaN, ms: NaN });
  }

  /** @returns {boolean} it cannot be asked */
  get gone() {
    return GONE.has(this.told);
  }

  /** @returns {number} seconds since its status is what it is */
  get since() {
    return (performance.now() - this.sinceAt) / 1000;
  }

  /** @returns {number} whole seconds for which it has not answered; 0 below two */
  get silentS() {
    const ms = performance.now() - this.waitingSince;
    return ms >= SILENT_MS ? Math.floor(ms / 1000) : 0;
  }

  /** @returns {string} as the tree tells; `silent` where it does not answer */
  get status() {
    return this.silentS && !this.gone ? 'silent' : this.told;
  }

  /** @returns {string} what is wrong with it, in words; "" for nothing */
  get trouble() {
    if (this.status === 'silent') return `no answer for ${this.silentS} s`;
    if (!this.gone) return this.error;
    return this.error && this.error !== this.told ? `${this.told}: ${this.error}` : this.told;
  }

  /** @returns {number} messages dropped since its start; NaN where the broker does not tell */
  get dropped() {
    return this.drops ? sum(Object.values(this.drops)) : NaN;
  }

  /** What the gateway tells of it. @param {object} row */
  take(row) {
    const now = performance.now();
    const before = (seconds) => (seconds === null ? NaN : now - seconds * 1000);
    this.told = row.status;
    this.error = row.error;
    this.sinceAt = before(row.since_s);
    this.waitingSince = before(row.silent_s || null);
    this.drops = row.drops;
    this.kinds = row.kinds;
    this.pending = row.pending ?? NaN;
    this.links = row.links ?? NaN;
    this.outboxBytes = row.outbox_bytes ?? NaN;
    this.quiet();
    if (row.rx && !this.gone) {
      Object.assign(this, { rx: row.rx, in: sum(Object.values(row.rx)), out: sum(Object.values(row.tx)) });
    }
    if (!this.gone) this.ms = row.ms ?? NaN;
  }
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Fires `change` once a second. */
export class Instance extends EventTarget {
  #client;
  #access;
  #run = null; // what asks; null: nothing does
  #timer;
  #asking = null; // the question under way
  #waitingSince = NaN; // since when the gateway owes an answer
  #after = 0;
  #turn = 0; // of whom the answer is: another connection's counts no more
  #hosts = [];

  /**
   * @param {import('../client.js').Client} client
   * @param {import('./access.js').Access} access
   */
  constructor(client, access) {
    super();
    this.#client = client;
    this.#access = access;
    this.ranks = new Map();
    this.root = null;
    this.state = '';
    this.version = '';
    this.headgate = false;
    this.total = UNKNOWN; // of all ranks
    this.why = ''; // why there is no tree
    this.types = Object.fromEntries(TYPES.map((type) => [type, new Series()]));
    this.latency = new Series();
    this.updatedAt = 0;
  }

  /** Begin to ask. */
  start() {
    this.stop();
    this.#run = {};
    this.#tick(this.#run);
  }

  /** Ask no more; what is known stays. */
  stop() {
    this.#run = null;
    this.#answered();
    for (const rank of this.ranks.values()) rank.waitingSince = NaN;
    clearTimeout(this.#timer);
  }

  /** Another connection, or another broker: ask for everything. */
  again() {
    this.#after = 0;
    this.#asking = null;
    this.#turn += 1;
  }

  /** @returns {Rank[]} by rank */
  get list() {
    return [...this.ranks.values()].sort((a, b) => a.rank - b.rank);
  }

  /** @returns {number} seconds for which nobody at all has answered; 0 below two */
  get silentS() {
    const asked = this.list.filter((rank) => !rank.gone);
    return asked.length ? Math.min(...asked.map((rank) => rank.silentS)) : 0;
  }

  async #tick(run) {
    const began = performance.now();
    if (!document.hidden) {
      await Promise.race([this.#asking ?? this.#begin(), pause(WAIT_MS)]);
      if (run !== this.#run) return;
      this.#collect();
      this.dispatchEvent(new Event('change'));
    }
    if (run !== this.#run) return;
    this.#timer = setTimeout(() => this.#tick(run), Math.max(TICK_MS / 4, TICK_MS - (performance.now() - began)));
  }

  #begin() {
    const asking = this.#ask(this.#after, this.#turn).finally(() => {
      if (this.#asking === asking) this.#asking = null;
    });
    this.#asking = asking;
    return asking;
  }

  async #ask(after, turn) {
    if (Number.isNaN(this.#waitingSince)) this.#waitingSince = performance.now();
    try {
      this.why = await this.#access.refusal('call', TOPIC);
      const answer = this.why ? null : await this.#client.rpc(TOPIC, { after }, { timeoutMs: ANSWER_MS });
      if (answer && turn === this.#turn) this.#take(answer);
      this.#answered();
    } catch (error) {
      if (error.errno === ERRNO.ETIMEDOUT) return;
      this.#answered();
      this.total = UNKNOWN;
      for (const rank of this.ranks.values()) rank.quiet();
      if (isDenied(error)) this.why = await this.#access.needs('call', TOPIC, error.text);
    }
  }

  /** The gateway owes nothing; what was its silence is no broker's. */
  #answered() {
    for (const rank of this.ranks.values()) if (rank.waitingSince === this.#waitingSince) rank.waitingSince = NaN;
    this.#waitingSince = NaN;
  }

  #take(answer) {
    const { size, state, version, headgate, total, why, ranks, next, hostlist } = answer;
    Object.assign(this, { state, version, headgate, total, why, updatedAt: Date.now() });
    const before = this.ranks.size;
    for (const rank of [...this.ranks.keys()]) if (rank >= size) this.ranks.delete(rank);
    let moved = before !== this.ranks.size;
    for (const row of ranks) {
      const rank = this.ranks.get(row.rank) ?? new Rank(row.rank);
      moved ||= !this.ranks.has(row.rank) || (rank.parent?.rank ?? null) !== row.parent;
      this.ranks.set(row.rank, rank);
      rank.above = row.parent;
      rank.take(row);
    }
    this.#after = next;
    if (hostlist !== undefined) expand(hostlist).forEach((host, at) => { this.#hosts[at] = host; });
    if (moved) this.#place();
  }

  /** Put the ranks together to a tree; those whose parent is not told yet come later. */
  #place() {
    for (const rank of this.ranks.values()) rank.children = [];
    this.root = null;
    for (const rank of this.list) {
      rank.host = this.#hosts[rank.rank] ?? '';
      rank.parent = this.ranks.get(rank.above) ?? null;
      rank.parent?.children.push(rank);
      if (rank.above === null) this.root ??= rank;
    }
  }

  /** Add one point to every line; where the gateway does not answer, nothing is known of anybody. */
  #collect() {
    const silent = performance.now() - this.#waitingSince >= SILENT_MS;
    for (const rank of this.ranks.values()) {
      if (silent && !rank.silentS) rank.waitingSince = this.#waitingSince;
      if (rank.silentS || rank.gone) rank.quiet();
      rank.traffic.push(rank.in);
      rank.latency.push(rank.ms);
    }
    for (const type of TYPES) this.types[type].push(silent ? NaN : this.total.rx[type] ?? NaN);
    this.latency.push(silent ? NaN : this.total.ms ?? NaN);
  }
}
