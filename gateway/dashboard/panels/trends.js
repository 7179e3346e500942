/**
 * The last day as charts: calls and their errors, latencies, traffic, round trips, of one time, with what happened in it.
 * The gateway collects it (`gateway.series`), so that it is there when the page is opened, and the same for everybody.
 * @module
 */

import { ERRNO } from '../client.js';
import { Chart } from '../lib/chart.js';
import { stamp } from '../lib/axis.js';
import { h, keep, say } from '../lib/dom.js';
import { latency, rate, short } from '../lib/format.js';
import { isDenied } from '../model/access.js';

const TOPIC = 'gateway.series';
const RANGES = [[300, '5 minutes'], [900, '15 minutes'], [3600, 'an hour'], [21_600, '6 hours'], [86_400, '24 hours']];
/** So often it is asked again: of a long time a point more is not worth the way. */
const EVERY_MS = 2000;
const EVERY_LONG_MS = 10_000;
const LONG_S = 900;
const LINES = 6;
const TONES = ['request', 'event', 'response', 'pink', 'olive', 'control'];
const TYPES = [['request', 'request'], ['response', 'response'], ['event', 'event'], ['control', 'control']];
const MARKS = 6;

/** The values under a name, and a line of them. */
const line = (answer, key, name, tone) => (answer.series[key] ? { name, tone, values: answer.series[key] } : null);
const known = (lines) => lines.filter(Boolean);
const most = (values) => values.reduce((sum, value) => Math.max(sum, value ?? 0), 0);

/** Lines of a figure by what it is of, those with the highest values. */
function split(answer, figure, name) {
  return Object.entries(answer.series).filter(([key]) => key.startsWith(`${figure}:`))
    .map(([key, values]) => [key.slice(figure.length + 1), values, most(values)])
    .sort((a, b) => b[2] - a[2] || a[0].localeCompare(b[0], 'en', { numeric: true })).slice(0, LINES)
    .map(([of, values], at) => ({ name: name(of), tone: TONES[at], values }));
}

const EMPTY = 'Nothing in this time.';
const rankName = (rank) => `rank ${rank}`;

/** Each chart, and its lines; `rank`: chosen in the tree, null: all. */
const CHARTS = [
  { title: 'Calls', unit: 'calls/s, where they enter', how: { format: rate, zeros: true },
    lines: (answer) => known([line(answer, 'calls', 'calls', 'request'), line(answer, 'errors', 'failed', 'bad')]) },
  { title: 'Time until the answer', unit: 'all calls', how: { format: latency },
    lines: (answer) => known([line(answer, 'p50', 'half within', 'response'), line(answer, 'p99', '99 of 100 within', 'event')]) },
  { title: 'Calls by method', unit: 'calls/s', how: { format: rate }, lines: (answer) => split(answer, 'calls', String) },
  { title: 'Failed calls by method', unit: 'calls/s', how: { format: rate }, lines: (answer) => split(answer, 'errors', String).filter(({ values }) => most(values) > 0) },
  { title: 'Messages', unit: 'messages/s in, all brokers', how: { format: rate, bars: true },
    lines: (answer) => known(TYPES.map(([type, tone]) => line(answer, `in:${type}`, type, tone))) },
  { title: 'Messages by broker', unit: 'messages/s in', how: { format: rate },
    lines: (answer, rank) => byRank(answer, 'in', rank) },
  { title: 'Round trip', unit: 'gateway to broker', how: { format: latency }, lines: (answer, rank) => byRank(answer, 'ms', rank) },
  { title: 'Open calls and clients of the web', unit: '', how: { format: short, zeros: true },
    lines: (answer) => known([line(answer, 'open', 'open calls', 'request'), line(answer, 'sessions', 'web sessions', 'olive')]) },
];

function byRank(answer, figure, rank) {
  if (rank !== null) return known([line(answer, `${figure}:${rank}`, rankName(rank), 'request')]);
  return split({ series: Object.fromEntries(Object.entries(answer.series).filter(([key]) => /:\d+$/.test(key))) }, figure, rankName);
}

export class Trends {
  #client = null;
  #access = null;
  #watching = false;
  #timer;
  #answer = null;
  #round = 0;

  /** @param {number} range  seconds @param {() => void} onchange  another time was chosen */
  constructor(range, onchange) {
    this.range = RANGES.some(([seconds]) => seconds === range) ? range : Number(RANGES[0][0]);
    this.rank = null;
    this.notice = h('p', { class: 'needs', hidden: true });
    this.charts = CHARTS.map(({ title, unit, how }) => new Chart(title, unit, { empty: EMPTY, ...how }));
    this.select = h('select', { 'aria-label': 'Range', onchange: () => {
      this.range = Number(this.select.value);
      onchange();
      this.#ask();
    } }, RANGES.map(([value, text]) => h('option', { value, text })));
    this.select.value = String(this.range);
    this.happened = h('ol', { class: 'happened', 'aria-label': 'What happened' });
    this.body = h('div', { class: 'trends-body' }, this.charts.map(({ element }) => element));
    this.element = h('div', { class: 'history-view' },
      h('div', { class: 'tools' }, this.select, this.happened), this.notice, this.body);
  }

  /** Ask through this client. */
  attach(client, access) {
    this.#client = client;
    this.#access = access;
    if (this.#watching) this.#ask();
  }

  /** Ask no more. */
  stop() {
    this.#client = null;
    clearTimeout(this.#timer);
  }

  /** Ask while it is looked at. @param {boolean} on */
  watch(on) {
    this.#watching = on;
    clearTimeout(this.#timer);
    if (on) this.#ask();
  }

  /** Show what is about this broker, where that is known. @param {number | null} rank */
  choose(rank) {
    if (rank === this.rank) return;
    this.rank = rank;
    if (this.#answer) this.#draw();
  }

  async #ask() {
    clearTimeout(this.#timer);
    const client = this.#client;
    if (!client) return;
    this.#round += 1;
    const round = this.#round;
    const why = document.hidden ? '' : await this.#series(client, round);
    if (round !== this.#round || client !== this.#client) return;
    say(this.notice, why);
    this.notice.hidden = !why;
    this.body.hidden = Boolean(why);
    if (this.#watching) this.#timer = setTimeout(() => this.#ask(), this.range > LONG_S ? EVERY_LONG_MS : EVERY_MS);
  }

  /** @returns {Promise<string>} why there is nothing to see; "" for nothing */
  async #series(client, round) {
    const no = await this.#access.refusal('call', TOPIC);
    if (no) return no;
    try {
      const answer = await client.rpc(TOPIC, { range_s: this.range });
      if (round === this.#round) this.#answer = answer;
    } catch (error) {
      if (isDenied(error)) return this.#access.needs('call', TOPIC, error.text);
      if (error.errno === ERRNO.ENOSYS) return 'This gateway keeps no charts (history.charts).';
      return this.#answer ? '' : error.text ?? error.message;
    }
    if (round === this.#round) this.#draw();
    return '';
  }

  #draw() {
    const { begin, step, count, marks } = this.#answer;
    const times = Array.from({ length: count }, (_, at) => begin + at * step);
    const happened = marks.map(([at, text]) => ({ at, text }));
    this.charts.forEach((chart, at) => (
      chart.draw({ times, step, lines: CHARTS[at].lines(this.#answer, this.rank), marks: happened })));
    keep(this.happened, happened.slice(-MARKS).reverse(), () => h('li'), (item, { at, text }) => (
      say(item, `${stamp(at, true)} ${text}`)));
  }
}
