/**
 * A fresh token in good time before the old one ends.
 * @module
 */

/** This long before the end, or a fifth of the time that is left when that is less. */
const EARLY_MS = 60_000;
const AGAIN_MS = 5_000;
const TIMER_MAX_MS = 2 ** 31 - 1;

export class Refresh {
  #getToken;
  #send;
  #report;
  #timer;

  /**
   * @param {(() => string | Promise<string>) | undefined} getToken  without it nothing is ever refreshed
   * @param {(token: string) => void} send
   * @param {(error: Error) => void} report  takes why a token could not be had; it is asked for again
   */
  constructor(getToken, send, report) {
    this.#getToken = getToken;
    this.#send = send;
    this.#report = report;
  }

  /** The present token ends then. @param {number | null} expires  seconds since 1970; null never */
  expect(expires) {
    this.stop();
    if (!expires || !this.#getToken) return;
    const left = expires * 1000 - Date.now();
    const delay = Math.max(0, left - Math.min(EARLY_MS, left / 5));
    this.#timer = setTimeout(() => this.#refresh(), Math.min(delay, TIMER_MAX_MS));
  }

  /** There is nothing to refresh any more. */
  stop() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  async #refresh() {
    const mine = this.#timer;
    try {
      const token = await /** @type {() => string | Promise<string>} */ (this.#getToken)();
      if (this.#timer === mine) this.#send(token);
    } catch (error) {
      this.#report(error);
      if (this.#timer === mine) this.#timer = setTimeout(() => this.#refresh(), AGAIN_MS);
    }
  }
}
