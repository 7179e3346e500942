/**
 * Events as they come: the last ten thousand, and the rate of each topic.
 * @module
 */

import { Ring, Series } from '../lib/ring.js';

export const KEPT = 10_000;
/** Bytes of payload that the kept events may hold together; beyond it the oldest payloads are let go. */
const KEPT_BYTES = 32 * 2 ** 20;
const TOPICS = 512;
/** Parts of a topic that name one thing of many: a UUID, a long number or hash. */
const ID = /^(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{16,}|\d{4,})$/i;
/** A topic with `*` for such parts. @param {string} topic */
const grouped = (topic) => topic.split('.').map((part) => (ID.test(part) ? '*' : part)).join('.');

/** An entry is `{at, event, note}`; a gap or a lost connection is a note, so that the hole is seen where it is. */
export class EventLog {
  #listeners = new Set();
  #bytes = 0;
  #light = 0; // entries before this one have let go of their payloads

  constructor() {
    this.ring = new Ring(KEPT);
    this.topics = new Map(); // topic -> {count, now, series, at}
    this.total = 0;
    this.now = 0;
    this.rate = new Series();
  }

  /** Call `listener(entry)` for each new entry. @returns {() => void} stops */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Take in an event. @param {import('../client.js').Event} event */
  event(event) {
    this.total += 1;
    this.now += 1;
    this.#count(event.topic);
    this.#add({ at: new Date(), event, note: '' });
  }

  /** Take in a remark: a gap, a lost connection. @param {string} text */
  note(text) {
    this.#add({ at: new Date(), event: null, note: text });
  }

  #add(entry) {
    const { ring } = this;
    const leaving = ring.length === ring.capacity ? ring.at(ring.first) : null;
    ring.push(entry);
    this.#bytes += weight(entry) - weight(leaving);
    this.#light = Math.max(this.#light, ring.first);
    for (; this.#bytes > KEPT_BYTES && this.#light < ring.end - 1; this.#light += 1) {
      const old = ring.at(this.#light);
      this.#bytes -= weight(old);
      if (old.event) old.event = withoutPayload(old.event);
    }
    for (const listener of this.#listeners) listener(entry);
  }

  #count(topic) {
    const name = grouped(topic);
    let entry = this.topics.get(name);
    if (!entry) {
      if (this.topics.size >= TOPICS) this.#forgetQuietest();
      entry = { topic: name, count: 0, now: 0, series: new Series() };
      this.topics.set(name, entry);
    }
    entry.count += 1;
    entry.now += 1;
  }

  #forgetQuietest() {
    const quiet = [...this.topics.values()].reduce((least, each) => (each.count < least.count ? each : least));
    this.topics.delete(quiet.topic);
  }

  /** Once a second: turn counts into rates. @param {number} seconds  since the last time */
  tick(seconds) {
    this.rate.push(this.now / seconds);
    this.now = 0;
    for (const entry of this.topics.values()) {
      entry.series.push(entry.now / seconds);
      entry.now = 0;
    }
  }

  /** The busiest topics. @param {number} count */
  busiest(count) {
    const lately = (entry) => sumOf(entry.series.values.slice(-10)) * 1e6 + entry.count;
    return [...this.topics.values()].map((entry) => [lately(entry), entry])
      .sort(([a], [b]) => b - a).slice(0, count).map(([, entry]) => entry);
  }
}

const sumOf = (values) => values.reduce((sum, value) => sum + (value || 0), 0);

const weight = (entry) => entry?.event?.size ?? 0;

const withoutPayload = ({ topic, sequence, userid, rolemask, private: hidden }) => (
  { topic, sequence, userid, rolemask, private: hidden, payload: '(let go: too much to keep)', size: 0 });
