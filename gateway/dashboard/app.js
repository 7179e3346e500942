/**
 * The dashboard: puts client, models and panels together. Each panel is a file; this one knows all of them and
 * none of what they do.
 * @module
 */

import { connect } from './client.js';
import * as address from './lib/address.js';
import { mark, say } from './lib/dom.js';
import { Tabs } from './lib/tabs.js';
import { themed } from './lib/theme.js';
import { Access } from './model/access.js';
import { EventLog } from './model/eventlog.js';
import { History as HistoryModel } from './model/history.js';
import { Instance } from './model/instance.js';
import { Methods } from './model/methods.js';
import { Account } from './panels/account.js';
import { Call } from './panels/call.js';
import { Denied } from './panels/denied.js';
import { Events } from './panels/events.js';
import { Figures } from './panels/figures.js';
import { fillHelp } from './panels/help.js';
import { History } from './panels/history.js';
import { incidents, Incidents } from './panels/incidents.js';
import { Jobs } from './panels/jobs.js';
import { LinkState } from './panels/linkstate.js';
import { Log } from './panels/log.js';
import { Login } from './panels/login.js';
import { Services } from './panels/services.js';
import { Sessions } from './panels/sessions.js';
import { Traffic } from './panels/traffic.js';
import { RankDetail } from './panels/rankdetail.js';
import { Tree } from './panels/tree.js';
import { TreeFind } from './panels/treefind.js';
import { Trends } from './panels/trends.js';

const SECOND_MS = 1000;
/** @param {string} id @returns {any} */
const byId = (id) => document.getElementById(id);

class Dashboard {
  constructor() {
    this.log = new EventLog();
    this.login = new Login(byId('login'), (token, keep) => (keep ? this.#exchange(token) : this.connect(token)));
    this.account = new Account(byId('account-dialog'), () => this.#logOut());
    this.linkState = new LinkState(() => this.client?.retry());
    this.incidents = new Incidents(byId('incident'), byId('icon'));
    this.nextTheme = themed(byId('theme'));
    fillHelp(byId('help-dialog'));
    byId('traffic-all').addEventListener('click', () => this.tree.select(null));
    byId('logout').addEventListener('click', () => this.#logOut());
    byId('who').addEventListener('click', () => this.account.open(this.client, this.token === null));
    byId('help').addEventListener('click', () => byId('help-dialog').showModal());
    document.addEventListener('keydown', (event) => this.#key(event));
  }

  /** Ask the gateway whether this browser is logged in, then connect or show how to log in. */
  async start() {
    let status = 0;
    try {
      status = (await fetch('v1/session', { credentials: 'same-origin' })).status;
    } catch {
      // no answer at all: the client below goes on trying and says so
    }
    if (status === 401 || status === 403) this.#logIn('');
    else this.connect(null);
  }

  /** Connect with the cookie (null) or a token. @param {string | null} token */
  connect(token) {
    this.login.show(false);
    byId('logout').hidden = token !== null;
    this.client?.close();
    this.client = connect('v1/ws', { token, overflow: 'drop' });
    this.access = new Access(this.client);
    this.token = token;
    this.instance?.stop();
    this.methods?.stop();
    this.#build();
    this.#listen(this.client);
  }

  #build() {
    this.panels?.events.detach();
    this.panels?.sessions.watch(false);
    this.panels?.denied.stop();
    this.panels?.jobs.stop();
    this.panels?.history.stop();
    this.panels?.trends.stop();
    const { view, chosen } = this.tabs ? { view: this.tabs.current, chosen: this.#chosen() } : address.read();
    for (const id of ['figures', 'tree', 'traffic-body', 'tabs', 'tab-panels']) byId(id).replaceChildren();
    this.instance = new Instance(this.client, this.access);
    this.methods = new Methods(this.client, this.access);
    this.methods.addEventListener('change', () => this.#drawCalls());
    this.figures = new Figures(byId('figures'));
    this.detail = new RankDetail(byId('rank-detail'));
    this.tree = new Tree(byId('tree'), this.instance, () => this.#draw());
    this.find = new TreeFind(byId('tree-find'), this.instance, this.tree);
    this.traffic = new Traffic(byId('traffic-body'), this.instance, this.log, this.methods);
    this.panels = {
      events: new Events(this.log), services: new Services(this.methods),
      trends: new Trends(Number(chosen.get('range')), () => this.#tell()), log: new Log(), call: new Call(), sessions: new Sessions(),
      denied: new Denied((count) => this.tabs.badge('denied', count ? String(count) : '')),
      history: new History(new HistoryModel(this.token)),
      jobs: new Jobs((there, open) => this.#jobs(there, open)),
    };
    this.tabs = new Tabs(byId('tabs'), byId('tab-panels'), (name) => this.#shown(name));
    for (const name of Object.keys(this.panels)) {
      this.tabs.add(name, name[0].toUpperCase() + name.slice(1), this.panels[name].element);
    }
    this.wanted = view;
    this.tabs.offer('jobs', false);
    this.tabs.show(view);
    this.#choose(chosen);
    this.instance.addEventListener('change', () => this.#draw());
    clearInterval(this.second);
    this.lastTick = performance.now();
    this.second = setInterval(() => this.#tick(), SECOND_MS);
  }

  /** What is chosen, for the address. */
  #chosen() {
    const { tree, tabs, panels } = this;
    const filter = this.#filter()?.value.trim();
    return new URLSearchParams(Object.entries({ rank: tree.selected, range: panels.trends.range, filter })
      .filter(([name, value]) => value !== null && value !== undefined && value !== ''
        && (name !== 'range' || tabs.current === 'trends')));
  }

  /** The one field that filters what is shown, where there is one. */
  #filter() {
    const filter = this.panels[this.tabs.current]?.filter;
    return filter instanceof HTMLInputElement ? filter : null;
  }

  /** Choose what the address says. @param {URLSearchParams} chosen */
  #choose(chosen) {
    const rank = chosen.get('rank');
    if (rank !== null && /^\d+$/.test(rank)) this.tree.select(Number(rank));
    const filter = this.#filter();
    if (!filter || !chosen.get('filter')) return;
    filter.value = chosen.get('filter');
    filter.dispatchEvent(new Event('input', { bubbles: true }));
  }

  /** The address says what is chosen. */
  #tell() {
    if (this.tabs?.current) address.write(this.tabs.current, Object.fromEntries(this.#chosen()));
  }

  #listen(client) {
    const mine = (handler) => (detail) => { if (client === this.client) handler(detail); };
    client.on('open', mine(({ welcome, again }) => this.#opened(welcome, again)));
    client.on('reconnecting', mine((detail) => this.#lost(detail)));
    client.on('close', mine((detail) => this.#closed(detail)));
    client.on('gap', mine(({ lost }) => this.log.note(`${lost} events left out: this page read too slowly`)));
    client.on('resumed', mine((detail) => this.#resumed(detail)));
    client.on('upstream', mine((detail) => this.#upstream(detail)));
    client.on('shutdown', mine(() => this.linkState.leaving()));
    client.on('error', mine((error) => this.log.note(error.message)));
    this.linkState.connecting();
  }

  #opened(welcome, again) {
    this.linkState.open(welcome);
    this.access.forget();
    this.instance.again();
    this.instance.start();
    this.methods.start();
    if (!again) for (const panel of [this.detail, ...Object.values(this.panels)]) panel.attach?.(this.client, this.access);
    const who = byId('who');
    who.hidden = false;
    say(who, `${welcome.user} · ${welcome.roles.join(', ')}`);
    mark(who, 'title', `Who am I, until when, where else (userid ${welcome.userid}, session ${welcome.session})`);
  }

  #lost(detail) {
    this.instance.stop();
    this.methods.stop();
    this.linkState.reconnecting(detail, this.instance.updatedAt);
    this.incidents.draw(['disconnected'], false);
    if (detail.attempt === 1) this.log.note(`connection lost: ${detail.text}`);
  }

  #resumed({ recovered, replayed }) {
    this.log.note(recovered ? `connection is back: ${replayed} events caught up, none missed`
      : 'connection is back: events may have been missed');
  }

  #upstream({ joined, reason, lost }) {
    this.linkState.upstream(joined, reason);
    const missed = lost ? `; ${lost} events were missed` : '';
    this.log.note(joined ? `the gateway has its broker again${missed}` : `the gateway lost its broker: ${reason}`);
    if (joined) this.instance.again();
  }

  #closed(detail) {
    this.instance.stop();
    this.methods.stop();
    this.panels.denied.stop();
    this.panels.jobs.stop();
    this.panels.history.stop();
    this.panels.trends.stop();
    if ([4500, 4501, 4502, 4506].includes(detail.code)) this.#logIn(this.token !== null ? `Refused: ${detail.text}.` : '');
    else this.linkState.closed(detail, () => this.connect(null));
  }

  /** A token becomes a login that survives this page. @param {string} token */
  async #exchange(token) {
    try {
      const answer = await fetch('v1/login', {
        method: 'POST', credentials: 'same-origin', headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ token }),
      });
      if (answer.ok) this.connect(null);
      else this.login.show(true, `Refused: ${(await answer.json()).text}.`);
    } catch {
      this.login.show(true, 'The gateway does not answer. Try again once it runs.');
    }
  }

  async #logOut() {
    await fetch('v1/logout', { method: 'POST', credentials: 'same-origin' });
    this.client.close();
    this.#logIn('');
  }

  #logIn(why) {
    byId('logout').hidden = true;
    byId('who').hidden = true;
    byId('account-dialog').close();
    this.linkState.loggedOut();
    this.incidents.draw([]);
    this.login.show(true, why);
  }

  /** There is an NFP broker, or there is none any more. */
  #jobs(there, open) {
    this.tabs.offer('jobs', there);
    this.tabs.badge('jobs', open ? String(open) : '');
    if (there && this.wanted === 'jobs') this.tabs.show('jobs');
    if (there) this.wanted = '';
  }

  #shown(name) {
    if (this.panels) this.#tell();
    this.panels.sessions.watch(name === 'sessions');
    this.panels.jobs.watch(name === 'jobs');
    this.panels.history.watch(name === 'history');
    this.panels.trends.watch(name === 'trends');
    mark(byId('board'), 'data-view', name);
    this.panels[name].console?.rows.changed();
  }

  #tick() {
    const now = performance.now();
    this.log.tick((now - this.lastTick) / 1000);
    this.lastTick = now;
    this.panels.events.console.tell();
    this.panels.log.console.tell();
    if (this.client.state === 'open') this.figures.draw(this.instance, this.log, this.methods);
  }

  #draw() {
    const { instance, tree } = this;
    if (instance.why) tree.refuse(instance.why);
    this.methods.choose(tree.selected);
    tree.draw();
    this.find.draw();
    this.detail.draw(instance.ranks.get(tree.selected), instance.headgate);
    this.traffic.draw(tree.selected);
    this.panels.trends.choose(tree.selected);
    this.#drawCalls();
    this.panels.log.ranks(instance.list.map((rank) => rank.rank), tree.selected);
    this.#tell();
    say(byId('traffic-note'), tree.selected === null ? 'all brokers' : `rank ${tree.selected} only`);
    byId('traffic-all').hidden = tree.selected === null;
    this.linkState.instance(instance);
    this.linkState.silent(instance.silentS, instance.updatedAt);
    this.incidents.draw(instance.silentS ? ['no answer'] : incidents(instance), !instance.silentS);
  }

  #drawCalls() {
    const { failing } = this.methods;
    this.tabs.badge('services', failing ? `${failing} failing` : '');
    if (this.tabs.current === 'services') this.panels.services.draw();
    this.panels.call.suggest(this.methods.rows);
  }

  /** The history has the page for itself: the tree comes back first. */
  #toTree() {
    if (this.tabs?.current === 'history') this.tabs.show('');
    this.tree?.focus();
  }

  #key(event) {
    const typing = event.target.closest('input, textarea, select');
    if (event.ctrlKey || event.metaKey || event.altKey || typing || document.querySelector('dialog[open]')) return;
    const console = this.panels?.[this.tabs.current]?.console;
    /** @type {HTMLElement | null} */
    const filter = document.querySelector('.tab-panel:not([hidden]) .filter');
    const keys = {
      '?': () => byId('help-dialog').showModal(),
      t: () => this.nextTheme(),
      o: () => this.#toTree(),
      '/': () => filter?.focus(),
      p: () => console?.pause(!console.paused),
      f: () => console?.rows.follow(!console.rows.following),
      Escape: () => this.tree && this.tree.selected !== null && this.tree.select(null),
    };
    const tab = this.tabs?.names[Number(event.key) - 1];
    if (tab) this.tabs.show(tab);
    else if (Object.hasOwn(keys, event.key)) keys[event.key]();
    else return;
    event.preventDefault();
  }
}

new Dashboard().start();
