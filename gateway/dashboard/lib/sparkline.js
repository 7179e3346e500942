/**
 * A small line of the last two minutes.
 * @module
 */

import { mark, s } from './dom.js';

const WIDTH = 120;
const HEIGHT = 24;
/** A line that has just begun is drawn as if it had this many points: it grows from the right. */
const FEWEST = 30;

export class Sparkline {
  #line;
  #area;

  /**
   * @param {string} kind   names its colour: request, response, event, control, latency
   * @param {string} label  what it shows, for who does not see it
   */
  constructor(kind, label) {
    this.label = label;
    this.#area = s('path', { class: 'spark-area' });
    this.#line = s('path', { class: 'spark-line', 'vector-effect': 'non-scaling-stroke' });
    this.element = s('svg', {
      class: `spark spark-${kind}`, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img',
      'aria-label': label,
    }, this.#area, this.#line);
  }

  /**
   * Draw.
   * @param {{values: number[], last: number, max: number}} series
   * @param {(value: number) => string} format
   */
  draw(series, format) {
    const { values, max, last } = series;
    const scale = (HEIGHT - 3) / (max || 1);
    const step = WIDTH / (Math.max(values.length, FEWEST) - 1);
    const left = WIDTH - (values.length - 1) * step;
    let line = '';
    let area = '';
    let start = null;
    values.forEach((value, at) => {
      const x = (left + at * step).toFixed(1);
      if (Number.isNaN(value)) {
        if (start !== null) area += `L${(left + (at - 1) * step).toFixed(1)} ${HEIGHT}Z`;
        start = null;
        return;
      }
      const y = (HEIGHT - 1.5 - value * scale).toFixed(1);
      line += `${start === null ? 'M' : 'L'}${x} ${y}`;
      area += start === null ? `M${x} ${HEIGHT}L${x} ${y}` : `L${x} ${y}`;
      if (start === null) start = x;
    });
    if (start !== null) area += `L${WIDTH} ${HEIGHT}Z`;
    mark(this.#line, 'd', line);
    mark(this.#area, 'd', area);
    mark(this.element, 'aria-label', `${this.label}: now ${format(last)}, at most ${format(max)}`);
  }
}
