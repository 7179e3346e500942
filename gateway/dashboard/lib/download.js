/**
 * What a page shows, as a file.
 * @module
 */

import { h } from './dom.js';

/** What a spreadsheet would take for a formula. */
const FORMULA = /^[=+\-@\t\r]/;

/** Have the browser keep a text. @param {string} name @param {string} text @param {string} type */
export function save(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Rows as CSV (RFC 4180); a text that is no number and begins like a formula has an apostrophe before it. */
export function csv(rows) {
  const cell = (text) => {
    const safe = FORMULA.test(text) && !Number.isFinite(Number(text)) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return rows.map((row) => `${row.map(cell).join(',')}\r\n`).join('');
}

/** A file's name: what it is, and when. @param {string} what @param {string} kind */
export function fileName(what, kind) {
  return `headgate-${what.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-')}-${new Date().toISOString().slice(0, 19).replaceAll(':', '')}.${kind}`;
}
