/**
 * The instance behind the gateway as its brokers tell it: shape, health, traffic and latency of every rank.
 * Asked again and again while somebody looks; rates are differences of two answers.
 * @module
 */

import { ERRNO } from '../client.js';
import { expand } from '../lib/hostlist.js';
import { Series } from '../lib/ring.js';
import { isDenied } from './access.js';

export const TYPES = ['request', 'response', 'event', 'control'];

const TICK_MS = 1000;
const HEALTH_EVERY = 2; // ticks
const SHAPE_EVERY = 15;
/** Ranks asked at the same time, and per tick: a tree of thousands takes several ticks for a round. */
const ASKED_AT_ONCE = 64;
const ANSWER_MS = 4000;
const GONE = new Set(['lost', 'offline']);
/** So long a broker may take to answer; after that it is shown as silent, and its figures as unknown. */
const SILENT_MS = 2000;
/** So long a round waits for those that answer at once; the others come into the next one. */
const ROUND_MS = 500;

const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });

/** One broker. Rates are messages per second. */
export class Rank {
  constructor(rank) {
    this.rank = rank;
    this.parent = null;
    this.children = [];
    this.host = '';
    this.told = 'unknown'; // its status, as the tree tells
    this.asking = false;
    this.waitingSince = NaN; // when it was asked first, of what it has not answered
    this.since = NaN;
    this.error = '';
    this.rx = {};
    this.tx = {};
    this.in = NaN;
    this.out = NaN;
    this.ms = NaN;
    this.pending = NaN;
    this.links = NaN;
    this.drops = null; // reason -> count; null where the broker does not tell
    this.outboxBytes = NaN;
    this.peers = [];
    this.traffic = new Series();
    this.latency = new Series();
    this.before = null; // {at, figures} of the last answer
  }

  /** @returns {boolean} it cannot be asked */
  get gone() {
    return GONE.has(this.told);
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
}

const sum = (values) => values.reduce((total, value) => total + (Number.isFinite(value) ? value : 0), 0);

/** Difference of two tables of counters, per second; a counter that was cleared has none. */
function rates(now, before, seconds) {
  const out = {};
  for (const type of TYPES) {
    const rise = (now?.[type] ?? 0) - (before?.[type] ?? 0);
    out[type] = rise >= 0 ? rise / seconds : NaN;
  }
  return out;
}

/** Fires `change` after each round of answers, `shape` when the tree is another one. */
export class Instance extends EventTarget {
  #client;
  #access;
  #tick = 0;
  #run = null; // what asks; null: nothing does
  #timer;
  #next = 0;
  #under = new Map(); // what is under way: name -> its promise

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
    this.ours = '';
    this.denied = new Set(); // topics that the role does not allow
    this.types = Object.fromEntries(TYPES.map((type) => [type, new Series()]));
    this.latency = new Series();
    this.updatedAt = 0;
  }

  /** Begin to ask. */
  start() {
    this.stop();
    this.#run = {};
    this.#tick = 0;
    this.#round(this.#run);
  }

  /** Ask no more; what is known stays. */
  stop() {
    this.#run = null;
    for (const rank of this.ranks.values()) rank.waitingSince = NaN;
    clearTimeout(this.#timer);
  }

  /** @returns {Rank[]} by rank */
  get list() {
    return [...this.ranks.values()].sort((a, b) => a.rank - b.rank);
  }

  /** Messages per second that came in at these ranks, by type. @param {Rank[]} ranks */
  rateOf(ranks, type) {
    return sum(ranks.map((rank) => rank.rx[type]));
  }

  async #round(run) {
    const began = performance.now();
    try {
      if (!document.hidden) await this.#ask();
    } catch (error) {
      this.dispatchEvent(new CustomEvent('trouble', { detail: error }));
    }
    if (run !== this.#run) return;
    this.#timer = setTimeout(() => this.#round(run), Math.max(TICK_MS / 4, TICK_MS - (performance.now() - began)));
  }

  async #ask() {
    const tick = this.#tick++;
    const first = !this.root;
    const shape = tick % SHAPE_EVERY === 0 ? this.#once('shape', () => this.#askShape()) : null;
    if (first) await shape;
    const health = tick % HEALTH_EVERY === 0 ? this.#once('health', () => this.#askHealth()) : null;
    if (first) await health;
    await this.#askFigures();
    this.#collect();
    this.dispatchEvent(new Event('change'));
  }

  /** Do something that takes longer than a round where a broker is silent; never twice at a time. */
  #once(name, work) {
    if (!this.#under.has(name)) {
      this.#under.set(name, work()
        .catch((error) => this.dispatchEvent(new CustomEvent('trouble', { detail: error })))
        .finally(() => this.#under.delete(name)));
    }
    return this.#under.get(name);
  }

  /** A call; null where the role is missing. */
  async #rpc(topic, payload, nodeid) {
    if (this.denied.has(topic) || !(await this.#access.ask('call', topic)).allowed) {
      this.denied.add(topic);
      return null;
    }
    try {
      return await this.#client.rpc(topic, payload, { nodeid, timeoutMs: ANSWER_MS });
    } catch (error) {
      if (!isDenied(error)) throw error;
      this.denied.add(topic);
      return null;
    }
  }

  /** Another connection: roles may have changed, so try again what was refused, and look at the shape first. */
  again() {
    this.denied.clear();
    this.#tick = 0;
  }

  // -- shape -------------------------------------------------------------------------------------

  async #askShape() {
    const attr = async (name) => {
      try {
        return (await this.#rpc('attr.get', { name }))?.value ?? '';
      } catch {
        return ''; // real flux-core has no headgate.version, an old one no hostlist
      }
    };
    const shape = await this.#rpc('overlay.topology', { rank: 0 }, 0);
    const [hosts, version, ours] = await Promise.all(['hostlist', 'version', 'headgate.version'].map(attr));
    this.version = version;
    this.ours = ours;
    if (!shape) return;
    const names = expand(hosts);
    const seen = new Set();
    const before = [...this.ranks.keys()].join();
    this.root = this.#place(shape, null, names, seen);
    for (const rank of [...this.ranks.keys()]) if (!seen.has(rank)) this.ranks.delete(rank);
    if (before !== [...this.ranks.keys()].join()) this.dispatchEvent(new Event('shape'));
  }

  #place(shape, parent, names, seen) {
    const rank = this.ranks.get(shape.rank) ?? new Rank(shape.rank);
    this.ranks.set(shape.rank, rank);
    seen.add(shape.rank);
    rank.parent = parent;
    rank.host = names[shape.rank] ?? '';
    rank.children = (shape.children ?? []).map((child) => this.#place(child, rank, names, seen));
    return rank;
  }

  // -- health ------------------------------------------------------------------------------------

  /** Each broker answers for itself and its direct children, so the tree is walked level by level. */
  async #askHealth() {
    try {
      this.state = (await this.#rpc('state-machine.get', null, 0))?.state ?? '';
    } catch {
      this.state = ''; // a broker without states is worth showing, too
    }
    let level = this.root ? [this.root] : [];
    while (level.length) {
      await this.#each(level, (rank) => this.#askHealthOf(rank));
      level = level.flatMap((rank) => rank.children).filter((rank) => rank.children.length && !rank.gone);
    }
  }

  async #askHealthOf(rank) {
    let health;
    try {
      health = await this.#rpc('overlay.health', null, rank.rank);
    } catch (error) {
      if (rank.rank === 0) throw error;
      rank.error = error.text ?? error.message;
      return;
    }
    if (!health) return;
    this.#take(rank, health);
    for (const told of health.children ?? []) {
      const child = this.ranks.get(told.rank);
      if (child) this.#take(child, told);
    }
  }

  #take(rank, told) {
    rank.told = told.status ?? 'unknown';
    rank.since = told.duration ?? NaN;
    rank.error = told.error ?? '';
    if (!rank.gone) return;
    for (const child of rank.children) this.#take(child, { status: rank.told, duration: told.duration });
  }

  // -- figures -----------------------------------------------------------------------------------

  async #askFigures() {
    const ranks = this.list.filter((rank) => !rank.gone);
    const turn = ranks.length <= ASKED_AT_ONCE ? ranks : this.#turn(ranks);
    const works = [(rank) => this.#askStats(rank), (rank) => this.#askPing(rank)];
    // one after the other, so that a ping times the way and no more; in turns, for one that is slow gets the first only
    for (const work of this.#tick % 2 ? works : works.reverse()) await this.#askAll(turn, work);
    for (const rank of this.ranks.values()) if (rank.gone || rank.silentS) this.#quiet(rank);
  }

  /** Ask those that owe no answer, and wait a moment for them: one that is silent delays nobody. */
  async #askAll(ranks, work) {
    const asked = ranks.filter((rank) => !rank.asking).map((rank) => this.#askRank(rank, work));
    await Promise.race([Promise.all(asked), pause(ROUND_MS)]);
  }

  async #askRank(rank, work) {
    rank.asking = true;
    if (Number.isNaN(rank.waitingSince)) rank.waitingSince = performance.now();
    try {
      await work(rank);
      rank.waitingSince = NaN;
      this.updatedAt = Date.now();
    } catch (error) {
      rank.error = error.text ?? error.message;
      if (error.errno !== ERRNO.ETIMEDOUT) rank.waitingSince = NaN;
    } finally {
      rank.asking = false;
    }
  }

  /** @returns {number} seconds for which nobody at all has answered; 0 below two */
  get silentS() {
    const asked = this.list.filter((rank) => !rank.gone);
    return asked.length ? Math.min(...asked.map((rank) => rank.silentS)) : 0;
  }

  #turn(ranks) {
    const from = this.#next % ranks.length;
    this.#next = from + ASKED_AT_ONCE;
    return ranks.slice(from, from + ASKED_AT_ONCE);
  }

  #quiet(rank) {
    Object.assign(rank, { in: NaN, out: NaN, ms: NaN, rx: {}, tx: {}, before: null, peers: [] });
  }

  async #askStats(rank) {
    const figures = await this.#rpc('broker.stats-get', { detail: true }, rank.rank);
    if (!figures) return;
    const at = performance.now();
    const { before } = rank;
    rank.before = { at, figures };
    rank.pending = figures.pending ?? NaN;
    rank.links = figures.links ?? NaN;
    rank.drops = figures.drops ?? null;
    rank.outboxBytes = figures.outbox_bytes ?? NaN;
    rank.peers = figures.peers ?? [];
    if (!before) return;
    const seconds = (at - before.at) / 1000;
    rank.rx = rates(figures.rx, before.figures.rx, seconds);
    rank.tx = rates(figures.tx, before.figures.tx, seconds);
    rank.in = sum(Object.values(rank.rx));
    rank.out = sum(Object.values(rank.tx));
  }

  async #askPing(rank) {
    const began = performance.now();
    if (await this.#rpc('broker.ping', {}, rank.rank)) rank.ms = performance.now() - began;
  }

  /** Add one point to every line. */
  #collect() {
    const ranks = this.list;
    for (const type of TYPES) this.types[type].push(this.rateOf(ranks, type));
    const known = ranks.map((rank) => rank.ms).filter(Number.isFinite).sort((a, b) => a - b);
    this.latency.push(known.length ? known[known.length >> 1] : NaN);
    for (const rank of ranks) {
      rank.traffic.push(rank.in);
      rank.latency.push(rank.ms);
    }
  }

  async #each(items, work) {
    for (let at = 0; at < items.length; at += ASKED_AT_ONCE) {
      await Promise.all(items.slice(at, at + ASKED_AT_ONCE).map(work));
    }
  }
}
