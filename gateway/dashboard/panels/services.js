/**
 * Are my calls working? Each method of each service: rate, errors, time until the answer, what the last error said.
 * @module
 */

import { errnoName } from '../client/errors.js';
import { h } from '../lib/dom.js';
import { clock, latency, rate, short } from '../lib/format.js';
import { Sparkline } from '../lib/sparkline.js';
import { Table } from '../lib/table.js';

const ROWS = 100;
const ERRNOS = 3;

export class Services {
  /** @param {import('../model/callrates.js').CallRates} rates */
  constructor(rates) {
    this.rates = rates;
    const quantile = (part) => (row) => (row.buckets.length ? latency(rates.quantile(row, part)) : '–');
    this.table = new Table('Calls by method', [
      { name: 'method', text: (row) => row.name },
      { name: 'rank', number: true, text: (row) => String(rates.providers.get(row.name.split('.')[0]) ?? '–'),
        title: () => 'where its service is provided' },
      { name: 'calls/s', number: true, text: (row) => rate(row.calls) },
      { name: 'last minutes', make: () => new Sparkline('request', 'calls'),
        draw: (spark, row) => { spark.label = `calls of ${row.name}`; spark.draw(row.series, rate); } },
      { name: 'errors/s', number: true, text: (row) => rate(row.errors), mood: (row) => (row.errors ? 'bad' : null) },
      { name: 'open', number: true, text: (row) => short(row.open) },
      { name: 'p50', number: true, text: quantile(0.5) },
      { name: 'p99', number: true, text: quantile(0.99) },
      { name: 'errors since start', text: (row) => errors(row.errnos) },
      { name: 'last error', text: (row) => (row.last ? said(row.last) : ''),
        title: (row) => (row.last ? `${new Date(row.last.time * 1000).toLocaleString()}, user ${row.last.userid}, `
          + `entered at rank ${row.last.rank}` : null) },
    ], 'Nobody has called a service yet.');
    this.element = h('div', { class: 'services' }, this.table.element);
  }

  /** @param {number | null} chosen  a rank, or all */
  draw(chosen) {
    if (this.rates.why) this.table.refuse(this.rates.why);
    else this.table.draw(this.rates.rows(chosen).slice(0, ROWS));
  }
}

function errors(errnos) {
  const most = [...errnos].sort((a, b) => b[1] - a[1]);
  const shown = most.slice(0, ERRNOS).map(([errno, count]) => `${errnoName(errno)} ${short(count)}`);
  return most.length > ERRNOS ? `${shown.join(', ')} …` : shown.join(', ');
}

function said({ time, errnum, text }) {
  return `${clock(new Date(time * 1000)).slice(0, 8)} ${text || errnoName(errnum)}`;
}
