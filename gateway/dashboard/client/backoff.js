/**
 * Pauses between attempts to connect.
 * @module
 */

const MIN_MS = 200;
const MAX_MS = 10_000;

/** Doubling pauses with a random half off, so that the clients of a restarted gateway do not come at once. */
export class Backoff {
  /** @param {boolean | {minMs?: number, maxMs?: number}} options */
  constructor(options) {
    const { minMs = MIN_MS, maxMs = MAX_MS } = typeof options === 'object' ? options : {};
    this.minMs = minMs;
    this.maxMs = maxMs;
    this.attempt = 0;
  }

  /** @returns {number} milliseconds to wait before the next attempt */
  next() {
    const longest = Math.min(this.maxMs, this.minMs * 2 ** this.attempt);
    this.attempt += 1;
    return Math.round(longest * (0.5 + Math.random() / 2));
  }

  /** It worked: begin again with the shortest. */
  reset() {
    this.attempt = 0;
  }
}
