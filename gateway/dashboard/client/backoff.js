/**
 * Pauses between attempts to connect.
 * @module
 */

const MIN_MS = 200;
const MAX_MS = 10_000;

/**
 * Doubling pauses, of which each is a random part, so that the clients of a restarted gateway do not come at once. A
 * connection that is lost again at once counts as a failed attempt: only what lasted for two of the longest begins anew.
 */
export class Backoff {
  /** @type {number | null} */
  #since = null;
  #now;

  /**
   * @param {boolean | {minMs?: number, maxMs?: number}} options
   * @param {() => number} now  milliseconds that never go back
   */
  constructor(options, now = () => performance.now()) {
    const { minMs = MIN_MS, maxMs = MAX_MS } = typeof options === 'object' ? options : {};
    this.minMs = minMs;
    this.maxMs = maxMs;
    this.attempt = 0;
    this.#now = now;
  }

  /** @returns {number} milliseconds to wait before the next attempt */
  next() {
    if (this.#since !== null && this.#now() - this.#since > 2 * this.maxMs) this.attempt = 0;
    this.#since = null;
    const longest = Math.min(this.maxMs, this.minMs * 2 ** this.attempt);
    this.attempt += 1;
    return Math.round(longest * Math.random());
  }

  /** There is a connection. */
  connected() {
    this.#since = this.#now();
  }
}
