/**
 * A table whose cells are updated in place; on a narrow page each row becomes a small list (page.css).
 * @module
 */

import { h, keep, mark, say } from './dom.js';
import { csv, fileName, save } from './download.js';

/**
 * @typedef {object} Column
 * @property {string} name
 * @property {(row: object) => string} [text]
 * @property {() => {element: Element}} [make]  instead of a text: what stands in the cell
 * @property {(made: object, row: object) => void} [draw]  and how it is drawn again
 * @property {boolean} [number]  set right, with steady digits
 * @property {(row: object) => string | null} [mood]
 * @property {(row: object) => string | null} [title]
 */

export class Table {
  /**
   * @param {string} caption
   * @param {Column[]} columns
   * @param {string} empty      what stands there without rows
   * @param {((row: object) => HTMLElement | null)} [action]  a button at the end of a row
   */
  constructor(caption, columns, empty, action) {
    this.columns = columns;
    this.action = action;
    this.body = h('tbody');
    this.empty = h('p', { class: 'empty', text: empty });
    this.notice = h('p', { class: 'needs', hidden: true });
    this.download = h('button', { type: 'button', class: 'quiet small download', text: 'CSV', title: 'Keep what is shown as a file',
      'aria-label': `${caption} as CSV`, onclick: () => this.#save(caption) });
    this.heading = h('h3', { text: caption }, this.download);
    const heads = columns.map(({ name, number }) => h('th', { scope: 'col', class: number ? 'number' : null, text: name }));
    if (action) heads.push(h('th', { scope: 'col' }, h('span', { class: 'hidden', text: 'actions' })));
    this.table = h('table', { 'aria-label': caption }, h('thead', {}, h('tr', {}, heads)), this.body);
    this.element = h('section', { class: 'table' }, this.heading, this.notice, this.table, this.empty);
  }

  /** @param {object[]} rows */
  draw(rows) {
    this.notice.hidden = true;
    this.table.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
    this.download.hidden = rows.length === 0;
    keep(this.body, rows, () => this.#row(), (element, row) => this.#fill(element, row));
  }

  /** Show a sentence instead of rows. @param {string} text */
  refuse(text) {
    say(this.notice, text);
    this.notice.hidden = false;
    this.table.hidden = true;
    this.empty.hidden = true;
    this.download.hidden = true;
  }

  #save(caption) {
    const texts = this.columns.map(({ text }, at) => ({ text, at })).filter(({ text }) => text);
    const heads = texts.map(({ at }) => this.columns[at].name);
    const rows = [...this.body.rows].map((row) => texts.map(({ at }) => row.cells[at].textContent));
    save(fileName(caption, 'csv'), csv([heads, ...rows]), 'text/csv');
  }

  #row() {
    const cells = this.columns.map(({ name, number, make }) => {
      const cell = h('td', { class: number ? 'number' : null, 'data-name': name });
      if (make) cell.append((cell.made = make()).element);
      return cell;
    });
    if (this.action) cells.push(h('td', { class: 'act' }));
    return h('tr', {}, cells);
  }

  #fill(element, row) {
    this.columns.forEach((column, at) => {
      const cell = element.children[at];
      if (column.make) column.draw(cell.made, row);
      else say(cell, column.text(row));
      mark(cell, 'data-mood', column.mood?.(row) ?? null);
      mark(cell, 'title', column.title?.(row) ?? null);
    });
    if (!this.action || element.row === row.id) return;
    element.row = row.id;
    element.lastElementChild.replaceChildren(this.action(row) ?? '');
  }
}
