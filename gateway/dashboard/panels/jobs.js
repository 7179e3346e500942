/**
 * Jobs, services and workers of an NFP broker that is on this instance. Where there is none, the tab is not
 * there either.
 * @module
 */

import { ERRNO } from '../client.js';
import { h, keep, mark, say } from '../lib/dom.js';
import { duration, short } from '../lib/format.js';
import { Table } from '../lib/table.js';
import { isDenied } from '../model/access.js';
import { isOver, Jobs as Model, shareDone } from '../model/jobs.js';
import { detailOf } from './jobdetail.js';
import { JobFilter } from './jobfilter.js';

const EVERY_MS = 2000;
/** The role of the owner, and of services that act for it (RFC 12). */
const OWNER = 1;
const ABSENT_MS = 5000;
const SHOWN = 100;
const RECALLED = 1000;
const EVENTS = 'nfp.events.service.broker.read';
const NONE = 'No jobs: have a task run with headgate nfp run SERVICE TASK.';
const NONE_FOUND = 'No job is like that.';
const MOODS = { done: 'ok', failed: 'bad', cancelled: 'muted', expired: 'bad', waiting: 'warn' };
const WORDS = { waiting: 'waits for input' };

export class Jobs {
  #client = null;
  #access = null;
  #timer;
  #watching = false;
  #subscription = null;
  #dirty = false;
  #wanted = {};
  #open = null;

  /** @param {(there: boolean, open: number) => void} onthere  whether there is an NFP broker, and its open jobs */
  constructor(onthere) {
    this.onthere = onthere;
    this.there = false;
    this.model = new Model();
    this.list = h('ul', { class: 'job-list', 'aria-label': 'Jobs' });
    this.empty = h('p', { class: 'empty', text: NONE });
    this.notice = h('p', { class: 'needs', hidden: true });
    this.more = h('p', { class: 'empty', role: 'status', hidden: true });
    this.filter = new JobFilter(() => this.#round());
    this.detail = h('div', { class: 'job-detail' });
    this.services = new Table('Services', [
      { name: 'service', text: (row) => row.name },
      { name: 'workers', number: true, text: (row) => short(row.alive), mood: (row) => (row.alive ? null : 'warn') },
      { name: 'idle', number: true, text: (row) => short(row.idle) },
      { name: 'running', number: true, text: (row) => short(row.running) },
      { name: 'queued', number: true, text: (row) => short(row.queued), mood: (row) => (row.queued ? 'warn' : null) },
    ], 'No services: start a worker with headgate nfp worker FILE.py.');
    this.workers = new Table('Workers', [
      { name: 'worker', text: (row) => row.name, title: (row) => row.tasks.join(', ') },
      { name: 'service', text: (row) => row.service },
      { name: 'status', text: (row) => row.state, mood: (row) => (row.state === 'alive' ? null : 'warn') },
      { name: 'load', number: true, text: (row) => `${row.busy} of ${row.credits}` },
      { name: 'waiting', number: true, text: (row) => short(row.waiting) },
      { name: 'done', number: true, text: (row) => short(row.done) },
      { name: 'failed', number: true, text: (row) => short(row.failed), mood: (row) => (row.failed ? 'bad' : null) },
      { name: 'expired', number: true, text: (row) => short(row.expired), mood: (row) => (row.expired ? 'bad' : null) },
      { name: 'cancelled', number: true, text: (row) => short(row.cancelled) },
      { name: 'since', number: true, text: (row) => (row.alive_s ? duration(row.alive_s) : '–') },
    ], 'No workers.');
    this.element = h('div', { class: 'jobs' },
      h('section', { class: 'job-part' }, h('h3', { text: 'Jobs' }), this.filter.element, this.notice, this.list, this.empty, this.more),
      h('div', { class: 'job-side' }, this.services.element, this.workers.element));
  }

  /**
   * Ask and listen through this client.
   * @param {import('../client.js').Client} client
   * @param {import('../model/access.js').Access} access
   */
  attach(client, access) {
    this.#client = client;
    this.#access = access;
    this.model.clear();
    this.#round();
  }

  /** Ask no more. */
  stop() {
    this.#client = null;
    this.#subscription = null;
    clearTimeout(this.#timer);
  }

  /** Draw while it is looked at. @param {boolean} on */
  watch(on) {
    this.#watching = on;
    if (on) this.#round();
  }

  async #round() {
    clearTimeout(this.#timer);
    const client = this.#client;
    if (client?.state === 'open') {
      try {
        await this.#ask(client);
      } catch (error) {
        if (client !== this.#client) return;
        if (error.errno === ERRNO.ENOSYS || isDenied(error)) this.#gone();
        else if (error.errno !== ERRNO.ECONNRESET) this.#say(error.message);
      }
    }
    if (client !== this.#client || !client) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#round(), this.there && this.#watching ? EVERY_MS : ABSENT_MS);
  }

  async #ask(client) {
    if (await this.#access.refusal('call', 'nfp.services.list')) {
      this.#gone();
      return;
    }
    const { services } = await client.rpc('nfp.services.list');
    const fresh = await this.#listen(client);
    const wanted = this.filter.wanted;
    const [{ workers }, { jobs, total }] = await Promise.all([
      client.rpc('nfp.workers.list'), client.rpc('nfp.jobs.list', { ...wanted, limit: SHOWN }),
    ]);
    if (client !== this.#client) return;
    this.#say('');
    this.there = true;
    this.services.draw(services);
    this.workers.draw(workers);
    this.#wanted = wanted;
    this.filter.offer(services.map(({ name }) => name), workers.map(({ name }) => name));
    this.model.listed(jobs);
    this.#count((total ?? jobs.length) - jobs.length);
    this.#draw();
    await this.#look(client);
    if (fresh) await this.#recall(client).catch(() => {}); // only the past is missing then
  }

  /** What was said of these jobs before this page came; what the broker holds no more is not missed. */
  async #recall(client) {
    if (await this.#access.refusal('call', EVENTS)) return;
    const read = async (kwargs) => (await client.rpc(EVENTS, { kwargs })).results[''];
    const { sequence } = await read({ limit: 1 });
    const since = Math.max(0, sequence - RECALLED);
    const { events } = await read({ since, limit: RECALLED, kinds: ['progress', 'input_request', 'input_response'] });
    if (client !== this.#client) return;
    const known = new Set(this.model.list.map(({ uuid }) => uuid));
    for (const said of events) if (known.has(said.uuid)) this.model.happened(said);
    this.#draw();
  }

  /** Events make the bars move between two lists; without the right to them the lists alone do. True when it began. */
  async #listen(client) {
    if (this.#subscription || await this.#access.refusal('subscribe', 'nfp.job.')) return false;
    this.#subscription = await client.subscribe('nfp.job.', ({ payload, rolemask }) => {
      if (!(rolemask & OWNER)) return; // whoever may publish might say so: NFP's broker does with this role
      if (client !== this.#client || typeof payload?.uuid !== 'string') return;
      this.model.happened(payload, Object.keys(this.#wanted).length > 0);
      this.#soon();
    });
    return true;
  }

  #gone() {
    this.there = false;
    this.onthere(false, 0);
  }

  #say(text) {
    say(this.notice, text);
    this.notice.hidden = !text;
  }

  /** How many there are beyond those that are shown. */
  #count(more) {
    say(this.more, `${more} more`);
    this.more.hidden = more <= 0;
  }

  /** Draw once a frame at most, and only what is looked at. */
  #soon() {
    if (this.#dirty) return;
    this.#dirty = true;
    requestAnimationFrame(() => { this.#dirty = false; this.#draw(); });
  }

  #draw() {
    const jobs = this.model.list.slice(0, SHOWN);
    this.onthere(this.there, jobs.filter((job) => !isOver(job)).length);
    if (!this.#watching) return;
    this.empty.hidden = jobs.length > 0;
    say(this.empty, Object.keys(this.#wanted).length ? NONE_FOUND : NONE);
    keep(this.list, jobs, () => this.#row(), (element, job) => this.#fill(element, job));
  }

  #row() {
    const parts = {
      what: h('button', { type: 'button', class: 'job-what', 'aria-expanded': 'false', onclick: () => this.#toggle(row.uuid) },
        h('b'), h('span', { class: 'job-given' })), state: h('span', { class: 'job-state' }), bar: h('progress', { max: 1 }),
      message: h('span', { class: 'job-message' }), who: h('span', { class: 'job-who' }),
      end: h('button', { type: 'button', class: 'small job-end', onclick: (event) => this.#cancel(row, event.currentTarget) }, 'Cancel'),
    };
    const row = h('li', { class: 'job' }, Object.values(parts));
    row.parts = parts;
    return row;
  }

  #fill(row, job) {
    const { what, state, bar, message, who, end } = row.parts;
    if (row.uuid !== job.uuid) this.#calm(end);
    row.uuid = job.uuid;
    mark(row, 'data-uuid', job.uuid);
    mark(row, 'data-mood', MOODS[job.state] ?? null);
    const [name, given] = what.children;
    say(name, `${job.service} ${job.task}`.trim());
    say(given, job.given);
    mark(what, 'title', job.uuid);
    this.#unfold(row, job.uuid === this.#open);
    say(state, WORDS[job.state] ?? job.state);
    const share = job.state === 'queued' ? 0 : shareDone(job);
    mark(bar, 'value', Number.isFinite(share) ? share.toFixed(3) : null);
    mark(bar, 'aria-label', `${job.service} ${job.task}: ${WORDS[job.state] ?? job.state}`);
    say(message, job.message);
    const names = [...job.parts.keys()];
    const over = [...job.parts.values()].filter((part) => part.over).length;
    const by = names.length > 1 ? `${over} of ${names.length} workers` : names[0];
    const age = duration(Math.max(0, Date.now() - job.since) / 1000);
    const took = isOver(job) && Number.isFinite(job.took) ? `took ${job.took.toFixed(job.took < 10 ? 2 : 0)} s` : '';
    say(who, [by, `${age} ago`, took, job.uuid.slice(0, 8)].filter(Boolean).join(' · '));
    mark(who, 'title', names.join(', '));
    end.hidden = isOver(job);
    mark(end, 'aria-label', `Cancel ${job.service} ${job.task}`);
  }

  // -- one job in full --------------------------------------------------------------------------

  #toggle(uuid) {
    this.#open = this.#open === uuid ? null : uuid;
    this.detail.replaceChildren();
    this.#draw();
    if (this.#client) this.#look(this.#client);
  }

  /** The detail stands in the row of its job, wherever that is. */
  #unfold(row, open) {
    mark(row.parts.what, 'aria-expanded', String(open));
    if (open && this.detail.parentElement !== row) row.append(this.detail);
    else if (!open && this.detail.parentElement === row) this.detail.remove();
  }

  async #look(client) {
    const uuid = this.#open;
    if (!uuid || (this.detail.dataset.uuid === uuid && this.detail.dataset.over && this.detail.hasChildNodes())) return;
    try {
      const job = await client.rpc('nfp.jobs.show', { uuid });
      if (client !== this.#client || uuid !== this.#open) return;
      this.detail.replaceChildren(...detailOf(job));
      mark(this.detail, 'data-over', job.state !== 'open');
    } catch (error) {
      if (uuid === this.#open) this.detail.replaceChildren(h('p', { class: 'needs', text: error.message }));
      mark(this.detail, 'data-over', false);
    }
    this.detail.dataset.uuid = uuid;
  }

  #calm(button) {
    delete button.dataset.sure;
    say(button, 'Cancel');
  }

  /** The first press asks, the second does it. */
  async #cancel(row, button) {
    if (button.dataset.sure !== row.uuid) {
      button.dataset.sure = row.uuid;
      say(button, 'Sure?');
      setTimeout(() => this.#calm(button), 3000);
      return;
    }
    try {
      await this.#client.rpc('nfp.jobs.cancel', { uuid: row.uuid });
      this.#say('');
    } catch (error) {
      this.#say(error.message);
    }
    this.#round();
  }
}
