/**
 * Round numbers for the edges of a chart, and where its times are marked.
 * @module
 */

import { clockMinutes, clockSeconds, day } from './format.js';

const HOUR = 3600;
const DAY = 24 * HOUR;
const EVERY = [10, 20, 30, 60, 120, 300, 600, 1800, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY];

/**
 * Marks of an axis from 0 to at least `max`, three or four of them; a unit of time is divided as people divide it.
 * @param {number} max
 * @returns {number[]}
 */
export function marks(max) {
  if (!(max > 0)) return [0, 1];
  const rough = max / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? 10 * power;
  const found = [];
  for (let at = 0; found.length < 2 || found.at(-1) < max; at += 1) found.push(at * step);
  return found;
}

/** Seconds the clock of this browser is ahead of UTC at a time. */
const ahead = (seconds) => -60 * new Date(seconds * 1000).getTimezoneOffset();

/**
 * Times to mark between two, at most `most`: whole hours and days of the clock of this browser.
 * @param {number} since  seconds since 1970
 * @param {number} until
 * @param {number} most
 * @returns {{at: number, text: string}[]}
 */
export function times(since, until, most) {
  const every = EVERY.find((each) => (until - since) / each <= most) ?? Math.ceil((until - since) / most / DAY) * DAY;
  const shift = ahead(since);
  const found = [];
  for (let at = Math.ceil((since + shift) / every) * every - shift; at < until; at += every) {
    found.push({ at, text: label(at, every) });
  }
  return found;
}

function label(seconds, every) {
  const date = new Date(seconds * 1000);
  const midnight = date.getHours() === 0 && date.getMinutes() === 0;
  if (every >= DAY || midnight) return day(date);
  return every < 60 ? clockSeconds(date) : clockMinutes(date);
}

/**
 * A time with its day, like `03-02 12:30`.
 * @param {number} seconds
 * @param {boolean} [fine]  with its seconds
 * @returns {string}
 */
export function stamp(seconds, fine = false) {
  if (!Number.isFinite(seconds)) return '–';
  const date = new Date(seconds * 1000);
  return `${day(date)} ${fine ? clockSeconds(date) : clockMinutes(date)}`;
}
