/**
 * Bounded memory: the last so many items, and the last so many values of a figure.
 * @module
 */

/**
 * The last `capacity` items under numbers that only rise: `first` is the oldest kept, `end` one past the newest.
 * @template T
 */
export class Ring {
  #items;

  /** @param {number} capacity */
  constructor(capacity) {
    this.capacity = capacity;
    this.#items = new Array(capacity);
    this.first = 0;
    this.end = 0;
  }

  /** @returns {number} */
  get length() {
    return this.end - this.first;
  }

  /** @param {T} item */
  push(item) {
    this.#items[this.end % this.capacity] = item;
    this.end += 1;
    if (this.end - this.first > this.capacity) this.first = this.end - this.capacity;
  }

  /** @param {number} number @returns {T | undefined} */
  at(number) {
    return number >= this.first && number < this.end ? this.#items[number % this.capacity] : undefined;
  }

  /** Forget all items; their numbers are not used again. */
  clear() {
    this.#items = new Array(this.capacity);
    this.first = this.end;
  }

  /** Oldest first. */
  * [Symbol.iterator]() {
    for (let number = this.first; number < this.end; number += 1) yield this.at(number);
  }
}

/** The last `capacity` values of a figure; NaN is a second that is not known. */
export class Series {
  #values;
  #at = 0;

  /** @param {number} [capacity] */
  constructor(capacity = 120) {
    this.#values = new Float64Array(capacity).fill(NaN);
  }

  /** @param {number} value */
  push(value) {
    this.#values[this.#at % this.#values.length] = value;
    this.#at += 1;
  }

  /** @returns {number} the newest; NaN when there is none */
  get last() {
    return this.#at ? this.#values[(this.#at - 1) % this.#values.length] : NaN;
  }

  /** @returns {number} the largest that is known; 0 without one */
  get max() {
    return this.#values.reduce((most, value) => (value > most ? value : most), 0);
  }

  /** Mean of the newest values that are known. @param {number} count @returns {number} NaN without one */
  mean(count) {
    const known = this.values.slice(-count).filter((value) => !Number.isNaN(value));
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : NaN;
  }

  /** @returns {number[]} oldest first: as many as there were, until it is full */
  get values() {
    const { length } = this.#values;
    if (this.#at <= length) return [...this.#values.subarray(0, this.#at)];
    const cut = this.#at % length;
    return [...this.#values.subarray(cut), ...this.#values.subarray(0, cut)];
  }
}
