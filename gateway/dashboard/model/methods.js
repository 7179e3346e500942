/**
 * How calls fare, by method: rate, errors, duration, as the gateway adds up what the brokers count (`gateway.calls`).
 * @module
 */

import { ERRNO } from '../client.js';
import { isDenied } from './access.js';

const TOPIC = 'gateway.calls';
const EVERY_MS = 2000;
/** Answers for which something counts as failing: one error in some seconds is steady trouble, not trouble now and then. */
const STEADY = 5;

/** The values of a line, as a sparkline wants them. @param {(number | null)[]} recent */
function line(recent) {
  const values = recent.map((value) => value ?? NaN);
  return { values, last: values.at(-1) ?? NaN, max: values.reduce((most, value) => (value > most ? value : most), 0) };
}

/** Fires `change` after each answer. */
export class Methods extends EventTarget {
  #client;
  #access;
  #timer;
  #run = null; // what asks; null: nothing does
  #latest = []; // how many failed, by the latest answers

  /**
   * @param {import('../client.js').Client} client
   * @param {import('./access.js').Access} access
   */
  constructor(client, access) {
    super();
    this.#client = client;
    this.#access = access;
    this.rank = null; // whose: one rank's, or all
    this.rows = []; // those of `gateway.calls`, each with `series`
    this.more = 0; // and so many that it did not tell
    this.silent = []; // what did not tell: {rank, part}
    this.longestMs = Infinity;
    this.total = { calls: NaN, errors: NaN, open: NaN, worst: '', series: line([]) }; // of all ranks
    this.failing = 0; // how many methods fail, or did a moment ago
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

  /** Ask for those of one rank. @param {number | null} rank  null: of all */
  choose(rank) {
    if (rank === this.rank) return;
    this.rank = rank;
    if (this.#run) this.start();
  }

  async #again(run) {
    if (!document.hidden) await this.#ask(run);
    if (run === this.#run) this.#timer = setTimeout(() => this.#again(run), EVERY_MS);
  }

  async #ask(run) {
    let why = await this.#access.refusal('call', TOPIC);
    try {
      const answer = why ? null : await this.#client.rpc(TOPIC, { rank: this.rank });
      if (run !== this.#run) return;
      if (answer) why = this.#take(answer);
    } catch (error) {
      if (run !== this.#run) return;
      if (isDenied(error)) why = await this.#access.needs('call', TOPIC, error.text);
      else if (error.errno === ERRNO.ENOSYS) why = error.text;
      else return; // the link and the page's banner tell of the rest
    }
    this.why = why;
    this.dispatchEvent(new Event('change'));
  }

  /** @returns {string} why there is nothing to see; "" for nothing */
  #take({ rows, more, silent, longest_ms: longestMs, total, why }) {
    this.rows = rows.map((row) => ({ ...row, series: line(row.recent) }));
    this.more = more;
    this.silent = silent;
    this.longestMs = longestMs ?? Infinity;
    this.total = { ...total, series: line(total.recent) };
    this.#latest = [...this.#latest, total.failing].slice(-STEADY);
    this.failing = Math.max(...this.#latest);
    return why;
  }
}
