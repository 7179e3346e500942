/**
 * Figures for people: short, of steady width, with their unit.
 * @module
 */

/** Thousands as k, millions as M. @param {number} value @returns {string} */
export function short(value) {
  if (!Number.isFinite(value)) return '–';
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(0)}k`;
  if (value >= 1e3) return `${(value / 1e3).toFixed(1)}k`;
  return value < 10 && !Number.isInteger(value) ? value.toFixed(1) : String(Math.round(value));
}

/** Per second. @param {number} value @returns {string} */
export function rate(value) {
  if (!Number.isFinite(value)) return '–';
  if (value === 0) return '0';
  return value < 9.95 ? value.toFixed(1) : short(value);
}

/** @param {number} ms @returns {string} like `0.42 ms`, `12 ms`, `1.3 s` */
export function latency(ms) {
  if (!Number.isFinite(ms)) return '–';
  if (ms < 9.95) return `${ms.toFixed(ms < 1 ? 2 : 1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** @param {number} bytes @returns {string} */
export function size(bytes) {
  if (!Number.isFinite(bytes)) return '–';
  if (bytes < 1024) return `${bytes} B`;
  const power = bytes < 2 ** 20 ? 1 : bytes < 2 ** 30 ? 2 : 3;
  const value = bytes / 1024 ** power;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${['KiB', 'MiB', 'GiB'][power - 1]}`;
}

/** @param {number} seconds @returns {string} like `8 s`, `3 min`, `2 h`, `5 d` */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} d`;
}

const two = (value) => String(value).padStart(2, '0');

// Times are local and read like ISO 8601 wherever they stand: 2026-03-02 14:05:09.123, or as much of it as is needed.

/** Hours and minutes. @param {Date} date @returns {string} */
export const clockMinutes = (date) => `${two(date.getHours())}:${two(date.getMinutes())}`;

/** With seconds. @param {Date} date @returns {string} */
export const clockSeconds = (date) => `${clockMinutes(date)}:${two(date.getSeconds())}`;

/** With milliseconds. @param {Date} date @returns {string} */
export const clock = (date) => `${clockSeconds(date)}.${String(date.getMilliseconds()).padStart(3, '0')}`;

/** Month and day. @param {Date} date @returns {string} */
export const day = (date) => `${two(date.getMonth() + 1)}-${two(date.getDate())}`;

/** All of a time, to the second. @param {Date} date @returns {string} */
export const moment = (date) => `${date.getFullYear()}-${day(date)} ${clockSeconds(date)}`;

/** One line of a payload, cut. @param {*} value @param {number} [limit] @returns {string} */
export function preview(value, limit = 400) {
  if (value === null || value === undefined) return '';
  if (value instanceof Uint8Array) {
    const head = Array.from(value.subarray(0, 32), (byte) => byte.toString(16).padStart(2, '0')).join(' ');
    return `${value.length} bytes: ${head}${value.length > 32 ? ' …' : ''}`;
  }
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return text.length > limit ? `${text.slice(0, limit)}…` : text;
}

/** All of a payload, for reading; beyond `limit` characters it says how much is missing. */
export function pretty(value, limit = 200_000) {
  if (value === null || value === undefined) return '(no payload)';
  if (value instanceof Uint8Array) return preview(value);
  const text = typeof value === 'string' ? value : JSON.stringify(value, null, 2);
  return text.length > limit ? `${text.slice(0, limit)}\n… ${text.length - limit} characters more` : text;
}

/** Words in a list: `a, b or c`. @param {string[]} words @returns {string} */
export function either(words) {
  return words.length < 2 ? words.join('') : `${words.slice(0, -1).join(', ')} or ${words.at(-1)}`;
}
