/**
 * Are my calls working? Each method of each service: rate, errors, time until the answer, what the last error said.
 * @module
 */

import { errnoName } from '../client/errors.js';
import { h, keep, say } from '../lib/dom.js';
import { clockSeconds, latency, moment, rate, short } from '../lib/format.js';
import { Sparkline } from '../lib/sparkline.js';
import { Table } from '../lib/table.js';

const ERRNOS = 3;

export class Services {
  /** @param {import('../model/methods.js').Methods} methods */
  constructor(methods) {
    this.methods = methods;
    const within = (ms) => (ms > methods.longestMs ? `> ${Math.round(methods.longestMs / 1000)} s` : latency(ms ?? NaN));
    this.table = new Table('Calls by method', [
      { name: 'method', text: (row) => row.name },
      { name: 'kind', text: (row) => row.kind },
      { name: 'rank', number: true, text: (row) => String(row.rank ?? '–'),
        title: ({ kind }) => (kind === 'call' ? 'where its service is provided' : 'where it is counted') },
      { name: 'calls/s', number: true, text: (row) => rate(row.calls) },
      { name: 'last minutes', make: () => new Sparkline('request', 'calls'),
        draw: (spark, row) => { spark.label = `calls of ${row.name}`; spark.draw(row.series, rate); } },
      { name: 'errors/s', number: true, text: (row) => rate(row.errors), mood: (row) => (row.errors ? 'bad' : null) },
      { name: 'open', number: true, text: (row) => short(row.open) },
      { name: 'p50', number: true, text: (row) => within(row.p50_ms) },
      { name: 'p99', number: true, text: (row) => within(row.p99_ms) },
      { name: 'errors since start', text: (row) => errors(row.errnos) },
      { name: 'last error', text: ({ last_error: last }) => (last ? said(last) : ''),
        title: ({ last_error: last }) => (last ? `${moment(new Date(last.time * 1000))}, user ${last.userid}, `
          + `entered at rank ${last.rank}` : null) },
    ], 'Nobody has called a service yet.');
    this.kind = h('select', { 'aria-label': 'Kind', hidden: true, onchange: () => this.draw() });
    this.more = h('p', { class: 'muted', hidden: true });
    this.table.heading.append(this.kind);
    this.element = h('div', { class: 'services' }, this.table.element, this.more);
  }

  /** Draw what is known now. */
  draw() {
    const { why, rows, more, silent } = this.methods;
    const kinds = [...new Set(rows.map(({ kind }) => kind))].sort();
    const chosen = this.kind.value;
    this.kind.hidden = kinds.length < 2 && !chosen;
    keep(this.kind, ['', ...kinds, ...(chosen && !kinds.includes(chosen) ? [chosen] : [])], () => h('option'), (option, kind) => {
      option.value = kind;
      say(option, kind || 'all kinds');
    });
    this.kind.value = chosen;
    say(this.more, [more && `and ${more} more, which fail less or are called less`,
      ...silent.map(({ rank, part }) => `no answer from ${part} at rank ${rank}`)].filter(Boolean).join(' · '));
    this.more.hidden = !this.more.textContent;
    if (why) this.table.refuse(why);
    else this.table.draw(rows.filter(({ kind }) => !chosen || kind === chosen));
  }
}

function errors(errnos) {
  const most = Object.entries(errnos).sort((a, b) => b[1] - a[1]);
  const shown = most.slice(0, ERRNOS).map(([errno, count]) => `${errnoName(Number(errno))} ${short(count)}`);
  return most.length > ERRNOS ? `${shown.join(', ')} …` : shown.join(', ');
}

function said({ time, errnum, text }) {
  return `${clockSeconds(new Date(time * 1000))} ${text || errnoName(errnum)}`;
}
