/**
 * A chart over time: lines, or bars that stand on each other. It is as wide as its place; the pointer, or the arrow keys, read
 * one step of it. Text is text, colours come from the style sheet (`tone-NAME`).
 * @module
 */

import { marks, stamp, times } from './axis.js';
import { h, keep, mark, s, say } from './dom.js';

const HEIGHT = 150;
const LEFT = 52;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
const PER_MARK = 84;
const POINT = 1.5;
const CIRCLE = `a${POINT} ${POINT} 0 1 0 ${2 * POINT} 0a${POINT} ${POINT} 0 1 0 ${-2 * POINT} 0`;

/**
 * @typedef {object} Line
 * @property {string} name
 * @property {string} tone                 names its colour
 * @property {(number | null)[]} values    one for each time; null: not known
 */

/** @typedef {{at: number, text: string}} Mark  something that happened, seconds since 1970 */

export class Chart {
  #shown = null;
  #at = -1;
  #width = 0;

  /**
   * @param {string} title
   * @param {string} unit    said beside the title
   * @param {{bars?: boolean, zeros?: boolean, format: (value: number) => string, read?: (value: number) => string,
   *   empty: string}} how  `zeros`: a 0 says something, too; `read`: a value beside the chart, where it differs from the axis
   */
  constructor(title, unit, how) {
    this.title = title;
    this.how = { read: how.format, ...how };
    this.note = h('span', { class: 'unit', text: unit });
    this.legend = h('ul', { class: 'legend' });
    this.readout = h('p', { class: 'readout', 'aria-live': 'polite' });
    this.grid = s('g', { class: 'chart-grid' });
    this.marks = s('g', { class: 'chart-marks' });
    this.happened = s('g', { class: 'chart-happened' });
    this.cursor = s('line', { class: 'chart-cursor', y1: TOP, y2: HEIGHT - BOTTOM, visibility: 'hidden' });
    this.svg = s('svg', {
      class: 'chart-picture', role: 'img', height: HEIGHT, tabindex: 0,
      onpointermove: (event) => this.#point(event.clientX), onpointerleave: () => this.#choose(-1),
      onblur: () => this.#choose(-1), onkeydown: (event) => this.#key(event),
    }, this.grid, this.happened, this.marks, this.cursor);
    this.empty = h('p', { class: 'empty', text: how.empty });
    this.frame = h('div', { class: 'chart-frame' }, this.svg);
    this.element = h('section', { class: how.bars ? 'chart chart-bars' : 'chart' },
      h('h3', { text: title }, this.note), this.legend, this.frame, this.empty, this.readout);
    new ResizeObserver(() => this.#sized()).observe(this.frame);
    this.draw(null);
  }

  /** @param {{times: number[], step: number, lines: Line[], marks?: Mark[]} | null} shown  null: nothing is known */
  draw(shown) {
    const read = this.#at >= 0 ? this.#shown?.times[this.#at] : undefined;
    this.#shown = shown;
    const there = Boolean(shown?.lines.some(({ values }) => values.some((value) => value || (this.how.zeros && value === 0))));
    this.frame.hidden = !there;
    this.legend.hidden = !there;
    this.empty.hidden = there;
    if (!there) {
      say(this.readout, '');
      return;
    }
    keep(this.legend, shown.lines, () => h('li', {}, h('i', { 'aria-hidden': 'true' }), h('span')), (item, line) => {
      mark(item, 'class', `tone-${line.tone}`);
      say(item.lastElementChild, line.name);
    });
    this.#draw();
    if (this.#width) this.#choose(read === undefined ? -1 : shown.times.findIndex((time) => time >= read));
  }

  #sized() {
    const width = this.frame.clientWidth;
    if (width && width !== this.#width) {
      this.#width = width;
      this.#draw();
    }
  }

  #draw() {
    if (!this.#shown || !this.#width) return;
    const { times: begins, step, lines } = this.#shown;
    const width = this.#width;
    mark(this.svg, 'width', width);
    mark(this.svg, 'viewBox', `0 0 ${width} ${HEIGHT}`);
    const sums = begins.map((_, at) => lines.reduce((sum, line) => sum + (line.values[at] ?? 0), 0));
    const known = this.how.bars ? sums : lines.flatMap(({ values }) => values.filter(Number.isFinite));
    const max = known.reduce((most, value) => Math.max(most, value), 0);
    const ticks = marks(max);
    this.x = (seconds) => LEFT + (seconds - begins[0]) / (begins.length * step) * (width - LEFT - RIGHT);
    this.y = (value) => HEIGHT - BOTTOM - value / ticks.at(-1) * (HEIGHT - TOP - BOTTOM);
    this.#drawGrid(ticks, begins, step);
    this.#drawHappened();
    const draw = this.how.bars ? this.#bars(begins, step) : (line) => this.#line(begins, step, line);
    keep(this.marks, lines, () => s('path'), (path, line) => {
      mark(path, 'class', `${this.how.bars ? 'chart-bar' : 'chart-line'} tone-${line.tone}`);
      mark(path, 'd', draw(line));
    });
    mark(this.svg, 'aria-label', `${this.title}: ${lines.map((line) => (
      `${line.name} at most ${this.how.read(line.values.reduce((most, value) => Math.max(most, value ?? 0), 0))}`)).join(', ')}`);
  }

  #drawHappened() {
    keep(this.happened, this.#shown.marks ?? [], () => s('line', { y1: TOP, y2: HEIGHT - BOTTOM }, s('title')), (element, { at, text }) => {
      const x = this.x(at).toFixed(1);
      mark(element, 'x1', x);
      mark(element, 'x2', x);
      say(element.firstElementChild, text);
    });
  }

  #drawGrid(ticks, begins, step) {
    const until = begins[0] + begins.length * step;
    const across = times(begins[0], until, Math.max(2, (this.#width - LEFT - RIGHT) / PER_MARK));
    const parts = [
      ...ticks.map((value) => [LEFT, this.y(value), this.#width - RIGHT, this.y(value), value ? this.how.format(value) : '0', 'end']),
      ...across.map(({ at, text }) => [this.x(at), HEIGHT - BOTTOM, this.x(at), HEIGHT - BOTTOM + 4, text, 'middle']),
    ];
    keep(this.grid, parts, () => s('g', {}, s('line'), s('text')), (group, [x1, y1, x2, y2, text, anchor]) => {
      const [line, words] = group.children;
      for (const [name, value] of Object.entries({ x1, y1, x2, y2 })) mark(line, name, value.toFixed(1));
      const end = anchor === 'end';
      mark(words, 'x', (end ? x1 - 6 : Math.min(x1, this.#width - (text.length > 5 ? 27 : 18))).toFixed(1));
      mark(words, 'y', (end ? y1 + 4 : HEIGHT - 4).toFixed(1));
      mark(words, 'text-anchor', anchor);
      say(words, text);
    });
  }

  /** A line through the middles of the steps; a value alone between unknown ones is a point. */
  #line(begins, step, { values }) {
    let path = '';
    let open = false;
    values.forEach((value, at) => {
      if (!Number.isFinite(value)) {
        open = false;
        return;
      }
      const alone = !open && !Number.isFinite(values[at + 1]);
      const place = `${(this.x(begins[at] + step / 2) - (alone ? POINT : 0)).toFixed(1)} ${this.y(value).toFixed(1)}`;
      path += `${open ? 'L' : 'M'}${place}${alone ? CIRCLE : ''}`;
      open = true;
    });
    return path;
  }

  /** Bars of one line after the other, each on those before. */
  #bars(begins, step) {
    const below = begins.map(() => 0);
    const wide = Math.max(1, this.x(begins[0] + step) - LEFT - 1);
    return ({ values }) => {
      let path = '';
      values.forEach((value, at) => {
        if (!value) return;
        const from = this.y(below[at]);
        below[at] += value;
        const high = Math.max(1, from - this.y(below[at]));
        path += `M${this.x(begins[at]).toFixed(1)} ${from.toFixed(1)}v${(-high).toFixed(1)}h${wide.toFixed(1)}v${high.toFixed(1)}z`;
      });
      return path;
    };
  }

  // -- reading one step

  #point(clientX) {
    const { times: begins, step } = this.#shown;
    const x = clientX - this.svg.getBoundingClientRect().left;
    const at = Math.floor((x - LEFT) / (this.x(begins[0] + step) - LEFT));
    this.#choose(at >= 0 && at < begins.length ? at : -1);
  }

  #key(event) {
    const last = this.#shown.times.length - 1;
    const at = this.#at < 0 ? last : this.#at;
    const to = { ArrowLeft: Math.max(0, at - 1), ArrowRight: Math.min(last, at + 1), Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.#choose(to);
  }

  #choose(at) {
    this.#at = at;
    mark(this.cursor, 'visibility', at < 0 ? 'hidden' : 'visible');
    if (at < 0 || !this.#shown) {
      say(this.readout, '');
      return;
    }
    const { times: begins, step, lines } = this.#shown;
    const x = this.x(begins[at] + step / 2).toFixed(1);
    mark(this.cursor, 'x1', x);
    mark(this.cursor, 'x2', x);
    const said = lines.filter(({ values }) => Number.isFinite(values[at]))
      .map((line) => `${line.name} ${this.how.read(line.values[at])}`);
    for (const each of this.#shown.marks ?? []) if (each.at >= begins[at] && each.at < begins[at] + step) said.push(each.text);
    say(this.readout, `${stamp(begins[at], step < 60)}: ${said.join(' · ') || 'nothing known'}`);
  }
}
