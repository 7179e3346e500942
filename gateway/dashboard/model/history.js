/**
 * What the pipeline made of the journal, asked from the gateway over HTTP (`/v1/history`), one question after the other.
 * @module
 */

/** Questions in the order in which a page wants their answers. */
export const QUESTIONS = ['traffic', 'latency', 'tree', 'talkers', 'errors', 'denied', 'order', 'slow', 'jobs', 'notifications'];
export const HOUR = 3600;
export const ALL = 'all';
const DAY_H = 24;

export class Gone extends Error {}

export class History {
  live = true;
  ago = 'ago';

  /** @param {string | null} token  a bearer token, or null: the cookie of this browser counts */
  constructor(token) {
    this.headers = token === null ? {} : { Authorization: `Bearer ${token}` };
    /** @type {number | 'all'} */
    this.hours = ALL;
    this.chosen = false; // by somebody; until then it is all there is, or a day of it
    this.ends = { first: null, last: null, fit: [] }; // of the data, as the summary says
    this.back = 0; // how many times the span before the newest data
    this.service = '';
    this.rank = '';
    this.by = 'type';
  }

  /**
   * Whether there is a history, and whether it is for this user.
   * @returns {Promise<{allowed: boolean, roles: string[], there?: boolean, text?: string, max_days: number}>}
   */
  async about(signal) {
    return this.#get('v1/history', {}, signal);
  }

  /**
   * Take the ends of the data from a summary.
   * @param {{first: number, last: number, fit: number[]}} summary
   * @param {number} days  the longest time that may be asked about
   * @returns {boolean} whether they are new: what was asked before was about another time
   */
  settle({ first, last, fit }, days) {
    const known = this.ends;
    this.ends = { first, last, fit };
    if (!this.chosen) this.hours = last - first <= DAY_H * HOUR && this.whole(days) ? ALL : Math.min(DAY_H, days * DAY_H);
    return first !== known.first || last !== known.last;
  }

  /** Whether all there is may be asked about at once. @param {number} days */
  whole(days) {
    const [since = 0, until = 0] = this.ends.fit;
    return until - since <= days * DAY_H * HOUR;
  }

  /** The chosen time: nothing before the data is asked for, and with all of it some room at both ends. */
  #range() {
    const { first, last, fit } = this.ends;
    if (last === null) return {};
    if (this.hours === ALL) return { since: fit[0], until: fit[1] };
    const span = this.hours * HOUR;
    const until = last - this.back * span;
    return { since: Math.max(0, until - span, first < until ? first : 0), until };
  }

  /** The answer to a question about the chosen time. @param {string} question */
  async ask(question, signal) {
    const asked = this.#range();
    if (this.service) asked.service = this.service;
    if (this.rank !== '') asked.rank = this.rank;
    if (question === 'traffic') asked.by = this.by;
    return this.#get(`v1/history/${question}`, asked, signal);
  }

  async #get(path, asked, signal) {
    const query = new URLSearchParams(asked).toString();
    const answer = await fetch(query ? `${path}?${query}` : path, {
      credentials: 'same-origin', headers: this.headers, signal,
    });
    const body = await answer.json();
    if (!answer.ok) throw new Gone(body.text ?? answer.statusText);
    return body;
  }
}
