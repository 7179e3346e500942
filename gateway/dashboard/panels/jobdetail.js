/**
 * One job in full: id, arguments, who, when, and of each worker the result, the error and the traceback.
 * @module
 */

import { h } from '../lib/dom.js';
import { moment, pretty } from '../lib/format.js';

const PARTS = 50;

/** How long something took: finer than ages are told. @param {number} seconds */
const took = (seconds) => (seconds < 10 ? `${seconds.toFixed(2)} s` : `${Math.round(seconds)} s`);

/** What `nfp.jobs.show` answered, as elements. @param {object} job @returns {HTMLElement[]} */
export function detailOf(job) {
  const facts = [
    ['id', job.uuid], ['client', job.client], ['holder', job.holder], ['target', job.target],
    ['submitted', job.submitted && moment(new Date(job.submitted * 1000))],
    ['took', Number.isFinite(job.took_s) && `${took(job.took_s)}${job.state === 'open' ? ' so far' : ''}`],
  ];
  const given = job.arguments === null || job.arguments === undefined ? '(not kept: too long)' : pretty(job.arguments);
  const parts = job.parts.slice(0, PARTS).flatMap(partOf);
  if (job.parts.length > PARTS) parts.push(h('p', { class: 'empty', text: `${job.parts.length - PARTS} more workers` }));
  return [
    h('dl', {}, ...facts.filter(([, value]) => value).map(([name, value]) => (
      h('div', {}, h('dt', { text: name }), h('dd', { text: value }))))),
    h('h4', { text: 'arguments' }), h('pre', { text: given }), ...parts,
  ];
}

function partOf(part) {
  const attempts = part.attempt > 1 ? ` · attempt ${part.attempt}` : '';
  const said = [h('h4', { text: `${part.worker || part.name || 'any worker'} · ${part.ended || part.state}${attempts}` })];
  if (part.error) said.push(h('p', { class: 'job-error', text: part.error }));
  if (part.traceback) said.push(h('pre', { class: 'job-traceback', text: part.traceback.trimEnd() }));
  if (part.result !== null && part.result !== undefined) said.push(h('pre', { class: 'job-result', text: pretty(part.result) }));
  return said;
}
