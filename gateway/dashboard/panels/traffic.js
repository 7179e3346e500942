/**
 * Rates and latencies: by type, by broker, by topic; of the whole instance or of the chosen broker.
 * @module
 */

import { h, keep, mark, say } from '../lib/dom.js';
import { latency, rate, short } from '../lib/format.js';
import { Series } from '../lib/ring.js';
import { Sparkline } from '../lib/sparkline.js';
import { TYPES } from '../model/instance.js';

const TOPICS = 7;
const RANKS = 8;
/** Rates are shown as the mean of so many seconds: a pulse every two seconds is 0.5, not 0, 1, 0, 1. */
const STEADY = 4;

class Line {
  constructor(kind) {
    this.name = h('span', { class: 'line-name' });
    this.spark = new Sparkline(kind, '');
    this.value = h('b', { class: 'line-value' });
    this.element = h('li', { class: 'line' }, this.name, this.spark.element, this.value);
    this.element.line = this;
  }

  draw(name, series, format, { note = name, mean = 0 } = {}) {
    say(this.name, name);
    mark(this.name, 'title', note);
    this.spark.label = name;
    this.spark.draw(series, format);
    say(this.value, format(mean ? series.mean(mean) : series.last));
  }
}

function block(title, note) {
  const list = h('ul', { class: 'lines' });
  const head = h('h3', { text: title }, h('span', { class: 'unit', text: note }));
  return { list, element: h('div', { class: 'block' }, head, list) };
}

/** @param {HTMLElement} parent */
export class Traffic {
  #byRank = new Map(); // rank -> {type: Series}, kept while it is chosen
  #lines = [];

  constructor(parent, instance, events, methods) {
    this.instance = instance;
    this.methods = methods;
    this.events = events;
    this.types = block('By type', 'messages/s in');
    this.trips = block('Round trip', 'gateway to broker');
    this.topics = block('Events by topic', 'events/s seen');
    this.calls = block('Calls by method', 'calls/s of everybody');
    parent.append(this.types.element, this.topics.element, this.trips.element, this.calls.element);
    for (const type of TYPES) {
      const line = new Line(type);
      this.#lines.push(line);
      this.types.list.append(line.element);
    }
    instance.addEventListener('change', () => this.#remember());
  }

  #remember() {
    for (const rank of this.instance.ranks.values()) {
      if (!this.#byRank.has(rank.rank)) {
        this.#byRank.set(rank.rank, Object.fromEntries(TYPES.map((type) => [type, new Series()])));
      }
      const series = this.#byRank.get(rank.rank);
      for (const type of TYPES) series[type].push(rank.rx[type] ?? NaN);
    }
  }

  /** @param {number | null} chosen  a rank, or all */
  draw(chosen) {
    const types = chosen === null ? this.instance.types : this.#byRank.get(chosen) ?? this.instance.types;
    TYPES.forEach((type, at) => this.#lines[at].draw(type, types[type], rate, { mean: STEADY }));
    this.#drawTrips(chosen);
    const topics = this.events.busiest(TOPICS);
    this.#drawList(this.topics, 'event', topics, (line, entry) => (
      line.draw(entry.topic, entry.series, rate, { note: `${entry.topic}: ${short(entry.count)} seen`, mean: STEADY })));
    const calls = this.methods.rows.filter(({ kind }) => kind === 'call').sort((a, b) => b.calls - a.calls).slice(0, TOPICS);
    this.#drawList(this.calls, 'request', calls, (line, method) => (
      line.draw(method.name, method.series, rate, { note: `${method.name}: ${rate(method.errors)} errors/s` })),
    this.methods.why ? 'not told' : undefined);
  }

  #drawTrips(chosen) {
    const ranks = this.instance.list.filter((rank) => chosen === null || rank.rank === chosen);
    const slowest = ranks.length <= RANKS ? ranks
      : [...ranks].sort((a, b) => (b.ms || 0) - (a.ms || 0)).slice(0, RANKS);
    this.#drawList(this.trips, 'latency', slowest, (line, rank) => (
      line.draw(`rank ${rank.rank}`, rank.latency, latency, { note: rank.host })));
  }

  #drawList({ list }, kind, items, draw, empty = 'nothing yet') {
    keep(list, items, () => new Line(kind).element, (element, item) => draw(element.line, item));
    mark(list, 'data-empty', items.length ? null : empty);
  }
}
