/**
 * A bounded buffer between what arrives and an async loop that reads it.
 * @module
 */

/**
 * @template T
 * @implements {AsyncIterableIterator<T>}
 */
export class Inbox {
  #items = [];
  #head = 0;
  #waiting = [];
  #ended = false;
  /** @type {Error | null} */
  #error = null;

  /**
   * @param {number} limit     items that may wait; beyond it `overflow` is called and the item is not kept
   * @param {() => void} overflow
   * @param {() => void} left  called once when the reader leaves the loop (`break`, `return`, an exception)
   */
  constructor(limit, overflow, left) {
    this.limit = limit;
    this.overflow = overflow;
    this.left = left;
  }

  /** Items that wait. @returns {number} */
  get size() {
    return this.#items.length - this.#head;
  }

  /** Hand over one item. @param {T} item */
  push(item) {
    if (this.#ended) return;
    const reader = this.#waiting.shift();
    if (reader) reader.resolve({ value: item, done: false });
    else if (this.size >= this.limit) this.overflow();
    else this.#items.push(item);
  }

  /** No more items; what waits is still read, then the loop ends or throws `error`. @param {Error | null} [error] */
  end(error = null) {
    if (this.#ended) return;
    this.#ended = true;
    this.#error = error;
    for (const reader of this.#waiting.splice(0)) this.#finish(reader);
  }

  #finish({ resolve, reject }) {
    const error = this.#error;
    this.#error = null; // an error is thrown once, then the loop is simply over
    if (error) reject(error);
    else resolve({ value: undefined, done: true });
  }

  /** @returns {Promise<IteratorResult<T>>} */
  next() {
    return new Promise((resolve, reject) => {
      if (this.size > 0) resolve({ value: this.#take(), done: false });
      else if (this.#ended) this.#finish({ resolve, reject });
      else this.#waiting.push({ resolve, reject });
    });
  }

  #take() {
    const item = this.#items[this.#head];
    this.#items[this.#head++] = undefined;
    if (this.#head >= 1024 && this.#head * 2 >= this.#items.length) {
      this.#items = this.#items.slice(this.#head);
      this.#head = 0;
    }
    return item;
  }

  /** The reader leaves. @returns {Promise<IteratorResult<T>>} */
  async return() {
    this.#items = [];
    this.#head = 0;
    this.#error = null;
    this.end();
    this.left();
    return { value: undefined, done: true };
  }

  [Symbol.asyncIterator]() {
    return this;
  }
}
