/**
 * The row of key figures: what a person sees in the first five seconds.
 * @module
 */

import { h, mark, say } from '../lib/dom.js';
import { latency, rate, short } from '../lib/format.js';
import { Sparkline } from '../lib/sparkline.js';

/** Seconds whose mean is shown. */
const STEADY = 4;

const DROPPED = 'Messages that went nowhere since the brokers started';
const CALLS = 'Calls of clients to services that clients provide, and how many fail';

class Figure {
  constructor(name, kind, title) {
    this.value = h('b', { class: 'figure-value', text: '–' });
    this.note = h('span', { class: 'figure-note' });
    this.spark = kind ? new Sparkline(kind, name) : null;
    this.element = h('div', { class: 'figure', title, 'data-figure': name },
      h('span', { class: 'figure-name', text: name }), this.value, this.note, this.spark?.element);
  }

  show(value, note = '', mood = null) {
    say(this.value, value);
    say(this.note, note);
    mark(this.element, 'data-mood', mood);
  }
}

/** @param {HTMLElement} parent */
export class Figures {
  constructor(parent) {
    this.brokers = new Figure('Brokers', null, 'Brokers that are there, of all of the instance');
    this.calls = new Figure('Calls/s', 'response', CALLS);
    this.messages = new Figure('Messages/s', 'request', 'Messages that came in, all brokers together');
    this.events = new Figure('Events/s', 'event', 'Events this page received');
    this.trip = new Figure('Round trip', 'latency', 'Median time of a call from the gateway to a broker and back');
    this.open = new Figure('Open calls', null, 'Calls of clients to services that clients provide, which wait for an answer');
    this.dropped = new Figure('Dropped', null, DROPPED);
    parent.append(...[this.brokers, this.calls, this.messages, this.events, this.trip, this.open, this.dropped]
      .map((figure) => figure.element));
  }

  /**
   * @param {import('../model/instance.js').Instance} instance
   * @param {import('../model/eventlog.js').EventLog} events
   * @param {import('../model/methods.js').Methods} methods
   */
  draw(instance, events, methods) {
    const ranks = instance.list;
    const up = ranks.filter((rank) => ['full', 'partial', 'degraded'].includes(rank.status)).length;
    this.brokers.show(ranks.length ? `${up} / ${ranks.length}` : '–', missing(ranks),
      ranks.length ? (up === ranks.length ? 'ok' : 'bad') : null);
    if (!ranks.length) this.brokers.show('–');
    this.#drawCalls(methods);
    const all = total(instance);
    // the mean of the same seconds as in the list by type beside it
    this.messages.show(rate(sum(Object.values(instance.types).map((series) => series.mean(STEADY)))));
    this.messages.spark.draw(all, rate);
    this.events.show(rate(events.rate.mean(STEADY)), `${short(events.total)} seen`);
    this.events.spark.draw(events.rate, rate);
    this.trip.show(latency(instance.latency.last), 'median');
    this.trip.spark.draw(instance.latency, latency);
    const { drops } = instance.total;
    const dropped = Object.values(drops ?? {}).reduce((sum, count) => sum + count, 0);
    if (drops === null) this.dropped.show('–', 'not told');
    else this.dropped.show(short(dropped), dropped ? mostly(drops) : 'nothing', dropped ? 'warn' : null);
    mark(this.dropped.element, 'title', dropped ? `Most: ${mostly(drops)}` : DROPPED);
  }

  #drawCalls({ why, total: { calls, errors, open, worst, series } }) {
    this.open.show(why ? '–' : short(open), why ? 'not told' : 'waiting');
    if (why) this.calls.show('–', 'not told', 'muted');
    else this.calls.show(rate(calls), errors ? `${rate(errors)}/s fail` : 'none fails', errors ? 'bad' : null);
    mark(this.calls.element, 'title', errors ? `Most failures: ${worst}` : CALLS);
    this.calls.spark.draw(series, rate);
  }
}

/** Which brokers are missing, in few words. */
function missing(ranks) {
  if (ranks.some((rank) => rank.gone)) return 'some are missing';
  const silent = ranks.filter((rank) => rank.status === 'silent');
  if (silent.length === 1) return `rank ${silent[0].rank}: ${silent[0].trouble}`;
  if (silent.length) return `${silent.length} do not answer`;
  return ranks.some((rank) => rank.status === 'degraded') ? 'some are missing' : 'all are there';
}

/** The most frequent reason. */
const mostly = (drops) => Object.entries(drops).reduce((most, each) => (each[1] > most[1] ? each : most), ['', 0])[0];

/** Of those that are known; NaN without one. */
const sum = (values) => values.reduce((all, value) => (Number.isNaN(value) ? all : (all || 0) + value), NaN);

/** All types together, as a series of its own. */
function total(instance) {
  const parts = Object.values(instance.types).map((series) => series.values);
  const values = parts[0].map((_, at) => parts.reduce((sum, part) => sum + part[at], 0));
  return { values, last: values.at(-1), max: values.reduce((most, value) => (value > most ? value : most), 0) };
}
