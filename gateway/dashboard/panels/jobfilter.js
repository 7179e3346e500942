/**
 * Which jobs are listed: a form that becomes the filter of `nfp.jobs.list`.
 * @module
 */

import { h, keep, mark, say } from '../lib/dom.js';

const STATES = ['open', 'done', 'failed', 'expired', 'cancelled'];
const TIMES = [['', 'any time'], ['600', 'last 10 min'], ['3600', 'last hour'], ['86400', 'last day']];
const PAUSE_MS = 250;

export class JobFilter {
  #timer;

  /** @param {() => void} onchange  something else is looked for; while somebody types, after a pause */
  constructor(onchange) {
    const changed = () => { clearTimeout(this.#timer); this.#timer = setTimeout(onchange, PAUSE_MS); };
    const choice = (label, options) => h('select', { 'aria-label': label, onchange: changed },
      ...options.map(([value, text]) => h('option', { value, text })));
    const field = (label) => h('input', { type: 'search', 'aria-label': label, placeholder: label.toLowerCase(),
      spellcheck: 'false', autocomplete: 'off', oninput: changed });
    this.text = field('Text in id, arguments or error');
    this.state = choice('State', [['', 'any state'], ...STATES.map((state) => [state, state])]);
    this.service = choice('Service', [['', 'any service']]);
    this.worker = choice('Worker', [['', 'any worker']]);
    this.task = field('Task');
    this.client = field('Client');
    this.since = choice('Time', TIMES);
    this.element = h('form', { class: 'job-filter', role: 'search', 'aria-label': 'Jobs', onsubmit: (event) => event.preventDefault() },
      this.text, this.state, this.service, this.worker, this.task, this.client, this.since);
  }

  /** Offer the services and workers there are; what is chosen stays. */
  offer(services, workers) {
    this.#fill(this.service, 'any service', services);
    this.#fill(this.worker, 'any worker', workers);
  }

  #fill(select, all, names) {
    const chosen = select.value;
    const values = ['', ...new Set(chosen ? [chosen, ...names] : names)];
    keep(select, values, () => h('option'), (option, value) => {
      mark(option, 'value', value);
      say(option, value || all);
    });
    select.value = chosen;
  }

  /** The fields of `nfp.jobs.list` that are set; {} while all jobs are meant. */
  get wanted() {
    const { text, state, service, worker, task, client } = this;
    const fields = Object.entries({ text, state, service, worker, task, client })
      .map(([name, { value }]) => [name, value.trim()]).filter(([, value]) => value);
    if (this.since.value) fields.push(['since', Date.now() / 1000 - Number(this.since.value)]);
    return Object.fromEntries(fields);
  }
}
