/**
 * Who is connected and what is served: web sessions, clients of the brokers, services.
 * @module
 */

import { ERRNO } from '../client.js';
import { h } from '../lib/dom.js';
import { duration, rate, short, size } from '../lib/format.js';
import { sureButton } from '../lib/sure.js';
import { Table } from '../lib/table.js';
import { isDenied } from '../model/access.js';

const EVERY_MS = 2000;
const ROWS = 500;
/** A number that no change has: the clients of brokers are asked for, not the brokers. */
const NO_RANKS = 2 ** 32;

/** Rates of counters that are read again and again, by the id of what they count. */
class Rates {
  #before = new Map();

  /** Add `in` and `out` per second to each row. @param {any[]} rows  with `id`, `received`, `sent` */
  add(rows) {
    const now = performance.now();
    const known = new Map();
    for (const row of rows) {
      const before = this.#before.get(row.id);
      const per = (name) => (before ? Math.max(0, row[name] - before[name]) / ((now - before.at) / 1000) : NaN);
      row.in = per('received');
      row.out = per('sent');
      known.set(row.id, { at: now, received: row.received, sent: row.sent });
    }
    this.#before = known;
    return rows;
  }
}

const waits = (bytes) => (bytes > 0 ? 'warn' : null);

export class Sessions {
  #client = null;
  #access = null;
  #timer;
  #watching = false;
  #rates = { web: new Rates(), local: new Rates(), gateways: new Rates() };

  constructor() {
    this.web = new Table('Web sessions', [
      { name: 'user', text: (row) => `${row.user} (${row.userid})`, title: (row) => row.roles.join(', ') },
      { name: 'role', text: (row) => row.roles.join(', ') },
      { name: 'speaks', text: (row) => row.kind },
      { name: 'from', text: (row) => row.address },
      { name: 'since', number: true, text: (row) => duration(Date.now() / 1000 - row.opened_at) },
      { name: 'in/s', number: true, text: (row) => rate(row.in) },
      { name: 'out/s', number: true, text: (row) => rate(row.out) },
      { name: 'open calls', number: true, text: (row) => String(row.in_flight ?? 0) },
      { name: 'queue', number: true, text: (row) => size(row.queued_bytes ?? 0), mood: (row) => waits(row.queued_bytes) },
      { name: 'dropped', number: true, text: (row) => short(row.dropped ?? 0), mood: (row) => (row.dropped ? 'bad' : null) },
      { name: 'denied', number: true, text: (row) => short(row.denied ?? 0), mood: (row) => (row.denied ? 'warn' : null) },
      { name: 'subscriptions', text: (row) => words(row.subscriptions) },
      { name: 'services', text: (row) => words(row.services) },
    ], 'No web sessions.', (row) => this.#webActs(row));
    this.gateways = new Table('Gateways', [
      { name: 'gateway', text: (row) => row.gateway },
      { name: 'processes', number: true, text: (row) => (row.silent ? 'does not answer' : String(row.processes)),
        mood: (row) => (row.silent ? 'bad' : null) },
      { name: 'since', number: true, text: (row) => duration(Date.now() / 1000 - row.started_at) },
      { name: 'sessions', number: true, text: (row) => short(row.sessions) },
      { name: 'in/s', number: true, text: (row) => rate(row.in) },
      { name: 'out/s', number: true, text: (row) => rate(row.out) },
      { name: 'refused', number: true, text: (row) => short(row.counters?.refused) },
      { name: 'denied', number: true, text: (row) => short(row.counters?.denied) },
      { name: 'queue', number: true, text: (row) => size(row.queued_bytes), mood: (row) => waits(row.queued_bytes) },
    ], '');
    this.gateways.element.hidden = true;
    this.services = new Table('Services of clients', [
      { name: 'service', text: (row) => row.name },
      { name: 'provided by', text: (row) => row.by },
      { name: 'idle', number: true, text: (row) => duration(row.idle) },
      { name: 'queue in', number: true, text: (row) => String(row.recvqueue ?? '–') },
      { name: 'queue out', number: true, text: (row) => String(row.sendqueue ?? '–') },
    ], 'No services told.');
    this.local = new Table('Clients of the brokers', [
      { name: 'broker', text: (row) => `rank ${row.rank}` },
      { name: 'userid', text: (row) => String(row.userid) },
      { name: 'pid', number: true, text: (row) => (row.pid > 0 ? String(row.pid) : '–') },
      { name: 'in/s', number: true, text: (row) => rate(row.in) },
      { name: 'out/s', number: true, text: (row) => rate(row.out) },
      { name: 'waiting', number: true, text: (row) => short(row.waiting), mood: (row) => waits(row.waiting) },
      { name: 'services', text: (row) => words(row.services) },
      { name: 'id', text: (row) => row.uuid.slice(0, 8) },
    ], 'No clients.', (row) => this.#localActs(row));
    this.gateway = h('span', { class: 'acts' });
    this.web.heading.append(this.gateway);
    this.element = h('div', { class: 'sessions' }, this.gateways.element, this.web.element, this.services.element, this.local.element);
  }

  /**
   * Ask through this client.
   * @param {import('../client.js').Client} client
   * @param {import('../model/access.js').Access} access
   */
  attach(client, access) {
    this.#client = client;
    this.#access = access;
    this.gateway.replaceChildren(this.#may('owner') ? this.#drain() : '');
  }

  /** Ask again and again while it is looked at. @param {boolean} on */
  watch(on) {
    this.#watching = on;
    clearTimeout(this.#timer);
    if (on) this.#round();
  }

  async #round() {
    clearTimeout(this.#timer);
    if (this.#client?.state === 'open') {
      await Promise.all([
        this.#ask(this.web, 'gateway.sessions', (answer) => this.#drawWeb(answer.sessions), { limit: ROWS }),
        this.#ask(this.services, 'module.list', (answer) => this.#drawServices(answer.mods)),
        this.#askLocal(),
        this.#askGateways(),
      ]);
    }
    clearTimeout(this.#timer);
    if (this.#watching) this.#timer = setTimeout(() => this.#round(), EVERY_MS);
  }

  /** Ask for a table's rows; a missing role is said in its place. */
  async #ask(table, topic, draw, payload = null) {
    try {
      const no = await this.#access.refusal('call', topic);
      if (no) table.refuse(no);
      else draw(await this.#client.rpc(topic, payload));
    } catch (error) {
      if (isDenied(error)) table.refuse(await this.#access.needs('call', topic, error.text));
      else if (error.errno === ERRNO.ENOSYS) table.refuse(`Nobody answers ${topic} here.`);
      else if (error.errno !== ERRNO.ECONNRESET) table.refuse(error.message);
    }
  }

  #drawWeb(rows) {
    this.webRows = rows;
    const counted = rows.map((row) => ({ ...row, id: row.session, sent: row.sent ?? row.answered ?? 0 }));
    this.web.draw(this.#rates.web.add(counted));
  }

  /** Nothing is shown of a gateway that is alone, nor to whom it is not told: the web sessions say what is needed. */
  async #askGateways() {
    if (await this.#access.refusal('call', 'gateway.stats')) return;
    const { gateways = [], silent = [], all } = await this.#client.rpc('gateway.stats').catch(() => ({}));
    const names = new Set(gateways.map((row) => row.gateway));
    const rows = gateways.map((row) => ({ ...row, id: row.gateway, silent: silent.includes(row.gateway),
      received: row.counters.requests + row.counters.published, sent: row.counters.responses + row.events.delivered }));
    if (all) {
      const sum = (name) => rows.reduce((total, row) => total + row[name], 0);
      rows.push({ ...all, id: '', gateway: 'all', received: sum('received'), sent: sum('sent'), processes: sum('processes'),
        started_at: Math.min(...rows.map((row) => row.started_at)) });
    }
    this.#rates.gateways.add(rows);
    rows.splice(-1, 0, ...silent.filter((name) => !names.has(name)).map((gateway) => ({ gateway, silent: true })));
    this.gateways.element.hidden = !all;
    this.gateways.draw(rows);
  }

  #drawServices(mods) {
    const web = (this.webRows ?? []).flatMap((row) => row.services.map((name) => (
      { name, by: `web session of ${row.user}`, idle: NaN })));
    const local = (this.localRows ?? []).flatMap((row) => (row.services ?? []).map((name) => (
      { name, by: `client of rank ${row.rank}, userid ${row.userid}`, idle: NaN })));
    const own = mods.map((mod) => ({ ...mod, by: mod.path === 'builtin' ? 'built in' : mod.path }));
    this.services.draw([...web, ...local, ...own]);
  }

  /** Links tell most; deployed brokers tell of their clients only. */
  async #askLocal() {
    if (!await this.#access.refusal('call', 'gateway.ranks')) {
      const { clients } = await this.#client.rpc('gateway.ranks', { after: NO_RANKS, clients: true }).catch(() => ({}));
      if (clients?.length) {
        this.#drawLocal(clients.map((link) => ({ ...link, id: link.uuid, waiting: link.queued ?? 0 })));
        return;
      }
    }
    await this.#ask(this.local, 'connector-local.stats-get', ({ server }) => this.#drawLocal(server.clients.map(
      (one) => ({ ...one, id: one.uuid, rank: 0, received: one.rxcount, sent: one.txcount, waiting: one.rxbacklog }))));
  }

  #drawLocal(rows) {
    this.localRows = rows;
    this.local.draw(this.#rates.local.add(rows).slice(0, ROWS));
  }

  #may(...roles) {
    return this.#client.welcome?.roles.some((role) => roles.includes(role)) ?? false;
  }

  #webActs(row) {
    if (!this.#may('owner', 'admin')) return null;
    if (row.session === this.#client.welcome.session) return h('span', { class: 'muted', text: 'this page' });
    const end = (more) => () => this.#act(this.web, 'gateway.end', { session: row.session, ...more });
    return h('span', { class: 'acts' },
      sureButton('End', { label: `End the session of ${row.user}`,
        title: 'It is closed, and may begin anew. Needs the role owner or admin.' }, end({})),
      sureButton('Revoke', { label: `Revoke what ${row.user} logged in with`,
        title: 'What it logged in with counts no more, at all workers. Needs the role owner or admin; an owner is revoked by an owner.' },
      end({ revoke: true })));
  }

  #localActs(row) {
    if (row.kind !== 'client' || !this.#may('owner')) return null; // a deployed broker cannot do it
    return sureButton('End', { label: `End client ${row.uuid.slice(0, 8)} of rank ${row.rank}`,
      title: 'Its connection is closed and its calls end; it may connect anew. Needs the role owner.' },
    () => this.#act(this.local, 'broker.disconnect-client', { uuid: row.uuid }, row.rank));
  }

  #drain() {
    return sureButton('Drain this gateway', { label: 'Drain this gateway',
      title: 'Its clients are told and go elsewhere, then it ends; a service manager starts it anew. Needs the role owner.' },
    () => this.#act(this.web, 'gateway.drain', { reason: 'asked for in the dashboard' }));
  }

  async #act(table, topic, payload, nodeid) {
    try {
      await this.#client.rpc(topic, payload, { nodeid });
    } catch (error) {
      table.refuse(error.message);
      return;
    }
    this.#round();
  }
}

const words = (list) => {
  const shown = (list ?? []).map((word) => (word === '' ? '(all)' : word));
  return shown.length > 4 ? `${shown.slice(0, 4).join(', ')} and ${shown.length - 4} more` : shown.join(', ');
};
