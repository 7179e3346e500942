/**
 * What passed, over time: the tables that the pipeline made of the journal. Asked once, and again when the pipeline has run.
 * @module
 */

import { stamp } from '../lib/axis.js';
import { h, keep, mark, say } from '../lib/dom.js';
import { duration, either, short, size } from '../lib/format.js';
import { ALL, Gone, QUESTIONS } from '../model/history.js';
import * as blocks from './historyblocks.js';

const EVERY_MS = 10_000;
const STALE_S = 3600;
const FINE_S = 3 * 3600;
const SPANS = [[ALL, 'all of it'], [1, 'an hour'], [6, '6 hours'], [24, '24 hours'], [24 * 7, '7 days'], [24 * 31, '31 days']];
const SPLITS = ['type', 'service', 'topic', 'rank', 'transport', 'direction'];
const COMMANDS = [
  'headgate up --journal JOURNAL --history WAREHOUSE',
  'headgate pipeline batch --journal JOURNAL --warehouse WAREHOUSE',
];

export class History {
  #client = null;
  #watching = false;
  #timer;
  #asking = null;
  #seen = '';

  /** @param {import('../model/history.js').History | import('../model/kept.js').Kept} model  whom it asks */
  constructor(model) {
    this.model = model;
    this.notice = h('p', { class: 'needs', hidden: true });
    this.commands = h('pre', { class: 'commands', hidden: true, text: COMMANDS.join('\n') });
    this.fresh = h('p', { class: 'count history-fresh', role: 'status' });
    this.sums = h('dl', { class: 'history-sums' });
    this.blocks = [
      blocks.traffic(), blocks.latencies(), blocks.tree(), blocks.talkers(), blocks.errors(), blocks.denied(), blocks.order(), blocks.slow(), blocks.jobs(),
      blocks.notifications(), blocks.runs(),
    ];
    this.body = h('div', { class: 'history-body' }, this.sums, this.blocks.map(({ element }) => element));
    this.tools = this.#makeTools();
    this.element = h('div', { class: 'history-view' }, this.tools, this.notice, this.commands, this.body);
    this.body.hidden = true;
  }

  /** Ask once this is looked at. @param {import('../client.js').Client} client */
  attach(client) {
    this.#client = client;
    this.#seen = '';
    if (this.#watching) this.#round();
  }

  /** Ask no more. */
  stop() {
    this.#client = null;
    this.#asking?.abort();
    clearTimeout(this.#timer);
  }

  /** Ask while it is looked at. @param {boolean} on */
  watch(on) {
    this.#watching = on;
    clearTimeout(this.#timer);
    if (on) this.#round();
    else this.#asking?.abort();
  }

  // -- tools

  #makeTools() {
    const choice = (label, options, chosen) => h('select', {
      'aria-label': label, onchange: (event) => { chosen(event.currentTarget.value); this.#again(); },
    }, options.map(([value, text]) => h('option', { value, text })));
    const step = (label, sign, by) => h('button', {
      type: 'button', class: 'small', 'aria-label': label, title: label,
      onclick: () => { this.model.back = Math.max(0, this.model.back + by); this.#again(); },
    }, sign);
    this.span = choice('Time', SPANS, (value) => {
      Object.assign(this.model, { hours: value === ALL ? ALL : Number(value), chosen: true, back: 0 });
    });
    this.span.value = String(this.model.hours);
    this.earlier = step('Earlier', '‹', 1);
    this.later = step('Later', '›', -1);
    this.service = choice('Service', [['', 'all services']], (value) => { this.model.service = value; });
    this.rank = choice('Rank', [['', 'all ranks']], (value) => { this.model.rank = value; });
    this.split = choice('Traffic by', SPLITS.map((each) => [each, `by ${each}`]), (value) => { this.model.by = value; });
    this.when = h('span', { class: 'count history-when' });
    for (const each of [this.earlier, this.span, this.later, this.service, this.rank, this.split]) each.hidden = !this.model.live;
    return h('div', { class: 'tools' }, this.earlier, this.span, this.later, this.service, this.rank, this.split, this.when,
      h('span', { class: 'spring' }), this.fresh);
  }

  /** Options as the data has them; what is chosen stays, even where this time has none of it. */
  #offer(select, values, all, name) {
    const chosen = select.value;
    const items = [['', all], ...values.map((value) => [String(value), name(value)])];
    if (chosen && !values.map(String).includes(chosen)) items.push([chosen, name(chosen)]);
    keep(select, items, () => h('option'), (option, [value, text]) => {
      mark(option, 'value', value);
      say(option, text);
    });
    select.value = chosen;
  }

  // -- asking

  /** Something was chosen. */
  #again() {
    this.#seen = '';
    this.#round();
  }

  async #round() {
    clearTimeout(this.#timer);
    this.#asking?.abort();
    if (this.model.live && !this.#client) return;
    const asking = new AbortController();
    this.#asking = asking;
    try {
      await this.#ask(asking.signal);
    } catch (error) {
      if (asking.signal.aborted) return;
      this.#say(error instanceof Gone ? error.message : 'The gateway does not answer.');
    }
    if (asking.signal.aborted || !this.#watching || !this.model.live) return;
    this.#timer = setTimeout(() => this.#round(), EVERY_MS);
  }

  async #ask(signal) {
    const about = await this.model.about(signal);
    if (!about.allowed || !about.there) {
      this.body.hidden = true;
      this.commands.hidden = !about.allowed;
      this.#say(about.allowed ? `There is no history here: ${about.text}.` : this.#needs(about.roles));
      return;
    }
    this.commands.hidden = true;
    let summary = await this.model.ask('summary', signal);
    const moved = this.model.settle(summary, about.max_days);
    this.#spans(about.max_days);
    if (moved) summary = await this.model.ask('summary', signal);
    this.#draw(summary);
    const state = JSON.stringify([summary.runs[0]?.finished_at, summary.last, summary.since, summary.until]);
    if (state === this.#seen) return;
    const faults = [summary];
    for (const question of QUESTIONS) {
      const answer = await this.model.ask(question, signal);
      faults.push(answer);
      for (const block of this.blocks) if (block.question === question) block.draw(answer);
    }
    this.#tell(faults);
    this.#seen = state;
  }

  #needs(roles) {
    const mine = either(this.#client.welcome?.roles ?? []) || 'none';
    const who = roles.length ? `needs the role ${either(roles)}` : 'is for nobody here (history.roles)';
    return `Reading the history ${who}. This session has the role ${mine}.`;
  }

  /** No longer time than may be asked for. */
  #spans(days) {
    for (const option of this.span.options) {
      option.disabled = option.value === ALL ? !this.model.whole(days) : Number(option.value) > days * 24;
    }
    const { hours } = this.model;
    if (hours === ALL ? !this.model.whole(days) : hours > days * 24) {
      const most = [...this.span.options].reverse().find((option) => !option.disabled && option.value !== ALL);
      this.model.hours = most ? Number(most.value) : days * 24;
    }
    this.span.value = String(this.model.hours);
  }

  // -- showing

  #draw(summary) {
    this.body.hidden = false;
    this.blocks.at(-1).draw(summary);
    this.#offer(this.service, summary.services, 'all services', String);
    this.#offer(this.rank, summary.ranks, 'all ranks', (rank) => `rank ${rank}`);
    const fine = summary.until - summary.since <= FINE_S && (summary.since % 60 !== 0 || summary.until % 60 !== 0);
    this.later.disabled = this.model.back === 0;
    this.earlier.disabled = summary.first === null || summary.since <= summary.first;
    say(this.when, `${stamp(summary.since, fine)} – ${stamp(summary.until, fine)}`);
    const ran = summary.fresh_s === null ? 'the pipeline has not run yet' : `the pipeline ran ${duration(summary.fresh_s)} ${this.model.ago}`;
    say(this.fresh, summary.last === null ? `no data; ${ran}` : `data until ${stamp(summary.last)}; ${ran}`);
    mark(this.fresh, 'data-mood', summary.fresh_s === null || summary.fresh_s > STALE_S ? 'warn' : 'ok');
    const sums = [
      ['messages', short(summary.messages)], ['on the wire', size(summary.wire_bytes)], ['payload', size(summary.payload_bytes)],
      ['errors', short(summary.errors)], ['services', String(summary.services.length)], ['ranks', String(summary.ranks.length)],
      ['tables', `${Object.keys(summary.tables).length}, ${size(Object.values(summary.tables).reduce((sum, each) => sum + each.bytes, 0))}`],
    ];
    keep(this.sums, sums, () => h('div', {}, h('dt'), h('dd')), (item, [name, value]) => {
      say(item.firstElementChild, name);
      say(item.lastElementChild, value);
    });
  }

  /** What is not whole. */
  #tell(answers) {
    const damaged = new Set(answers.flatMap((answer) => answer.damaged));
    const spent = new Set(answers.map((answer) => answer.truncated).filter(Boolean));
    const said = [];
    if (spent.size) said.push(`Not all was read, the newest only (limit of ${either([...spent])}): choose a shorter time.`);
    if (damaged.size) said.push(`Not readable: ${[...damaged].join(', ')}.`);
    this.#say(said.join(' '));
  }

  #say(text) {
    say(this.notice, text);
    this.notice.hidden = !text;
  }
}
