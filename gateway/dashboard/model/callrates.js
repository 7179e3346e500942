/**
 * How calls fare, by method, as the brokers count them where they enter (`broker.calls`): rate, errors, duration.
 * Each broker is asked on its own, so that one that is silent delays nobody.
 * @module
 */

import { ERRNO } from '../client.js';
import { Series } from '../lib/ring.js';
import { isDenied } from './access.js';

const TOPIC = 'broker.calls';
const EVERY_MS = 2000;
const ANSWER_MS = 2000;
const ASKED_AT_ONCE = 64;
/** What this page asks itself, again and again: left out. */
const OWN = new Set(['nfp.services.list', 'nfp.workers.list', 'nfp.jobs.list']);

/** What one method did since the look before. Rates are per second. */
class Method {
  constructor(name) {
    this.name = name;
    this.series = new Series();
    this.clear();
  }

  clear() {
    Object.assign(this, { calls: 0, errors: 0, open: 0, buckets: [], errnos: new Map(), last: null });
  }
}

/** Fires `change` after each round. */
export class CallRates extends EventTarget {
  #instance;
  #client;
  #access;
  #timer;
  #run = null; // what asks; null: nothing does
  #round = 0; // under way
  #counted = 0; // the last that was over
  #ranks = new Map(); // rank -> {round, at, methods: Map of method -> {told, since: what came since the answer before}}
  #bounds = [];
  #chosen = { rank: null, methods: new Map() }; // the same of one rank, from when it was chosen

  /**
   * @param {import('./instance.js').Instance} instance
   * @param {import('../client.js').Client} client
   * @param {import('./access.js').Access} access
   */
  constructor(instance, client, access) {
    super();
    this.#instance = instance;
    this.#client = client;
    this.#access = access;
    this.methods = new Map();
    this.all = new Series(); // calls of users' services
    this.providers = new Map(); // service -> rank
    this.builtin = new Set();
    this.why = ''; // why nothing can be shown
  }

  /** Begin to ask. */
  start() {
    this.stop();
    this.#run = {};
    this.#again(this.#run);
  }

  /** Ask no more; what is known stays. */
  stop() {
    clearTimeout(this.#timer);
    this.#run = null;
  }

  async #again(run) {
    if (!document.hidden) await this.#ask();
    if (run === this.#run) this.#timer = setTimeout(() => this.#again(run), EVERY_MS);
  }

  async #ask() {
    this.why = await this.#access.refusal('call', TOPIC) || await this.#askAll();
    if (!this.why) this.#count();
    this.dispatchEvent(new Event('change'));
  }

  /** @returns {Promise<string>} why nobody tells; "" where somebody does */
  async #askAll() {
    this.#round += 1;
    const ranks = this.#instance.list.filter((rank) => !rank.gone).map(({ rank }) => rank);
    const refusals = [];
    for (let at = 0; at < ranks.length; at += ASKED_AT_ONCE) {
      refusals.push(...await Promise.all(ranks.slice(at, at + ASKED_AT_ONCE).map((rank) => this.#askRank(rank))));
    }
    return refusals.includes('') ? '' : refusals.find(Boolean) ?? '';
  }

  #count() {
    this.#counted = this.#round;
    this.#collect(null, this.methods);
    if (this.#chosen.rank !== null) this.#collect(this.#chosen.rank, this.#chosen.methods);
    for (const method of [...this.methods.values(), ...this.#chosen.methods.values()]) method.series.push(method.calls);
    this.all.push(this.rows().reduce((sum, { calls }) => sum + calls, 0));
  }

  /** @returns {Promise<string | null>} "" where it told, null where it did not answer, else why it does not */
  async #askRank(rank) {
    try {
      this.#take(rank, await this.#client.rpc(TOPIC, null, { nodeid: rank, timeoutMs: ANSWER_MS }));
      return '';
    } catch (error) {
      if (isDenied(error)) return this.#access.needs('call', TOPIC, error.text);
      return error.errno === ERRNO.ENOSYS ? 'These brokers do not count calls: Headgate\'s do.' : null;
    }
  }

  #take(rank, answer) {
    const at = performance.now();
    const before = this.#ranks.get(rank);
    const methods = new Map();
    this.#bounds = answer.bounds_ns;
    for (const [name, told] of Object.entries(answer.methods)) {
      const then = before?.methods.get(name)?.told;
      methods.set(name, { told, since: difference(told, then, before ? (at - before.at) / 1000 : NaN) });
    }
    this.#ranks.set(rank, { round: this.#round, at, methods });
    for (const [name, { builtin }] of Object.entries(answer.services)) {
      if (builtin) this.builtin.add(name);
      else this.providers.set(name, rank);
    }
  }

  /** Add up what the brokers told. @param {number | null} chosen  one rank, or all */
  #collect(chosen, methods) {
    for (const method of methods.values()) method.clear();
    for (const [rank, { round, methods: known }] of this.#ranks) {
      if (chosen !== null && chosen !== rank) continue;
      for (const [name, { told, since }] of known) {
        if (!methods.has(name)) methods.set(name, new Method(name));
        add(methods.get(name), rank, told);
        if (round >= this.#counted) addNow(methods.get(name), told, since);
      }
    }
  }

  /**
   * Those of users' services, what fails first; of one rank or of all.
   * @param {number | null} chosen
   * @returns {Method[]}
   */
  rows(chosen = null) {
    if (chosen !== null && chosen !== this.#chosen.rank) {
      this.#chosen = { rank: chosen, methods: new Map() };
      this.#collect(chosen, this.#chosen.methods);
      for (const method of this.#chosen.methods.values()) method.series.push(method.calls);
    }
    const methods = chosen === null ? this.methods : this.#chosen.methods;
    return [...methods.values()].filter(({ name }) => !OWN.has(name) && !this.builtin.has(name.split('.')[0]))
      .sort((a, b) => b.errors - a.errors || b.calls - a.calls || (a.name < b.name ? -1 : 1));
  }

  /** The time in ms within which `part` of the calls of a method were answered; NaN when none was. */
  quantile(method, part) {
    let left = method.buckets.reduce((sum, count) => sum + count, 0) * part;
    if (!left) return NaN;
    for (const [at, count] of method.buckets.entries()) {
      left -= count;
      if (left <= 0) return (this.#bounds[at] ?? Infinity) / 1e6;
    }
    return Infinity;
  }
}

/** What came since `then`; nothing where there is no `then`, or where the figures were cleared. */
function difference(now, then, seconds) {
  const before = then ?? { calls: 0, errors: {}, buckets: [] };
  const calls = now.calls - before.calls;
  if (!(seconds > 0) || calls < 0) return null;
  const errors = total(now.errors) - total(before.errors);
  return {
    calls: calls / seconds,
    errors: Math.max(0, errors) / seconds,
    buckets: now.buckets.map((count, at) => count - (before.buckets[at] ?? 0)),
  };
}

const total = (errors) => Object.values(errors).reduce((sum, count) => sum + count, 0);

/** What was counted at any time. */
function add(method, rank, told) {
  for (const [errno, count] of Object.entries(told.errors)) {
    method.errnos.set(Number(errno), (method.errnos.get(Number(errno)) ?? 0) + count);
  }
  const last = told.last_error;
  if (last && (!method.last || last.time > method.last.time)) method.last = { ...last, rank };
}

/** What is now. */
function addNow(method, { open }, since) {
  method.open += open;
  if (!since) return;
  method.calls += since.calls;
  method.errors += since.errors;
  since.buckets.forEach((count, at) => { method.buckets[at] = (method.buckets[at] ?? 0) + count; });
}
