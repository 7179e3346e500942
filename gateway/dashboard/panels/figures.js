/**
 * The row of key figures: what a person sees in the first five seconds.
 * @module
 */

import { h, mark, say } from '../lib/dom.js';
import { latency, rate, short } from '../lib/format.js';
import { Sparkline } from '../lib/sparkline.js';

/** Seconds whose mean is shown. */
const STEADY = 4;

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
    this.calls = new Figure('Calls/s', 'response', 'Calls of clients to services that clients provide, and how many fail');
    this.messages = new Figure('Messages/s', 'request', 'Messages that came in, all brokers together');
    this.events = new Figure('Events/s', 'event', 'Events this page received');
    this.trip = new Figure('Round trip', 'latency', 'Median time of a call from this page to a broker and back');
    this.pending = new Figure('Open calls', null, 'Calls that wait for an answer, all brokers together');
    this.dropped = new Figure('Dropped', null, 'Messages that went nowhere since the brokers started');
    parent.append(...[this.brokers, this.calls, this.messages, this.events, this.trip, this.pending, this.dropped]
      .map((figure) => figure.element));
  }

  /**
   * @param {import('../model/instance.js').Instance} instance
   * @param {import('../model/eventlog.js').EventLog} events
   * @param {import('../model/callrates.js').CallRates} callRates
   */
  draw(instance, events, callRates) {
    const ranks = instance.list;
    const up = ranks.filter((rank) => ['full', 'partial', 'degraded'].includes(rank.status)).length;
    this.brokers.show(ranks.length ? `${up} / ${ranks.length}` : '–', missing(ranks),
      ranks.length ? (up === ranks.length ? 'ok' : 'bad') : null);
    if (!ranks.length) this.brokers.show('–');
    this.#drawCalls(callRates);
    const all = total(instance);
    this.messages.show(rate(all.last || 0));
    this.messages.spark.draw(all, rate);
    this.events.show(rate(events.rate.mean(STEADY) || 0), `${short(events.total)} seen`);
    this.events.spark.draw(events.rate, rate);
    this.trip.show(latency(instance.latency.last), 'median');
    this.trip.spark.draw(instance.latency, latency);
    const open = sumKnown(ranks.map((rank) => rank.pending));
    this.pending.show(Number.isFinite(open) ? short(open) : '–', Number.isFinite(open) ? 'waiting' : 'not told');
    const dropped = sumKnown(ranks.map((rank) => rank.dropped));
    if (Number.isNaN(dropped)) this.dropped.show('–', 'not told');
    else this.dropped.show(short(dropped), dropped ? mostly(ranks) : 'nothing', dropped ? 'warn' : null);
  }

  #drawCalls(callRates) {
    const rows = callRates.rows();
    const calls = rows.reduce((sum, row) => sum + row.calls, 0);
    const errors = rows.reduce((sum, row) => sum + row.errors, 0);
    const worst = rows.find((row) => row.errors > 0);
    if (callRates.why) this.calls.show('–', 'not told');
    else this.calls.show(rate(calls), worst ? `${rate(errors)}/s fail, most ${worst.name}` : 'none fails', errors ? 'bad' : null);
    this.calls.spark.draw(callRates.all, rate);
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
function mostly(ranks) {
  const reasons = new Map();
  for (const { drops } of ranks) {
    for (const [why, count] of Object.entries(drops ?? {})) reasons.set(why, (reasons.get(why) ?? 0) + count);
  }
  return [...reasons].reduce((most, each) => (each[1] > most[1] ? each : most), ['', 0])[0];
}

function sumKnown(values) {
  const known = values.filter(Number.isFinite);
  return known.length ? known.reduce((sum, value) => sum + value, 0) : NaN;
}

/** All types together, as a series of its own. */
function total(instance) {
  const parts = Object.values(instance.types).map((series) => series.values);
  const values = parts[0].map((_, at) => parts.reduce((sum, part) => sum + part[at], 0));
  return { values, last: values.at(-1), max: values.reduce((most, value) => (value > most ? value : most), 0) };
}
