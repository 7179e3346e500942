/**
 * A form that calls any method or publishes an event, and what came of the calls before.
 * @module
 */

import { ERRNO, FluxError } from '../client.js';
import { h, keep, mark, say } from '../lib/dom.js';
import { clock, latency, preview, pretty } from '../lib/format.js';
import { isDenied } from '../model/access.js';

const KEY = 'headgate.calls';
const HISTORY = 50;
/** Responses of a stream that stay on the page. */
const SHOWN = 500;
const PROVIDERS = 'service.providers';
const TOPICS = [
  'attr.get', 'attr.list', 'broker.ping', 'broker.rusage', 'broker.stats-get', 'config.get', 'event.publish',
  'gateway.calls', 'gateway.denied', 'gateway.ranks', 'gateway.session', 'gateway.sessions', 'gateway.stats', 'groups.get',
  'heartbeat.stats-get', 'log.dmesg', 'module.list', 'module.trace', 'overlay.health', 'overlay.monitor', 'overlay.topology', 'overlay.trace',
  'service.add', 'state-machine.get', 'state-machine.monitor',
];

function load() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) ?? '[]');
    return Array.isArray(kept) ? kept.slice(0, HISTORY) : [];
  } catch {
    return []; // storage is off, or holds something else
  }
}

function save(history) {
  try {
    localStorage.setItem(KEY, JSON.stringify(history));
  } catch {
    // storage is off or full: the history lives as long as the page
  }
}

export class Call {
  #client = null;
  #access = null;
  #running = null;
  #called = [];
  #services = [];
  #history = load();

  constructor() {
    this.topic = h('input', { id: 'call-topic', name: 'topic', required: true, list: 'call-topics', spellcheck: 'false',
      autocomplete: 'off', autocapitalize: 'none', value: 'attr.get', onfocus: () => this.#lookAround() });
    this.topics = h('datalist', { id: 'call-topics' });
    this.rank = h('input', { id: 'call-rank', name: 'rank', placeholder: 'any', inputmode: 'numeric', pattern: '\\d*|any',
      title: 'A rank; empty or "any" for the nearest broker that has the service' });
    this.payload = h('textarea', { id: 'call-payload', name: 'payload', rows: 4, spellcheck: 'false',
      oninput: () => this.#check(), onkeydown: (event) => this.#key(event) });
    this.payload.value = '{"name": "size"}';
    this.wrong = h('p', { class: 'wrong', role: 'status' });
    this.streaming = h('input', { type: 'checkbox', id: 'call-streaming' });
    this.send = h('button', { type: 'submit', class: 'primary', title: 'Call (Ctrl+Enter)' }, 'Call');
    this.publish = h('button', { type: 'button', title: 'Publish an event with this topic and payload',
      onclick: () => this.#publish() }, 'Publish');
    this.cancel = h('button', { type: 'button', disabled: true, onclick: () => this.#cancel() }, 'Cancel');
    this.outcome = h('p', { class: 'outcome', role: 'status' });
    this.answer = h('pre', { class: 'answer', tabindex: 0, 'aria-label': 'Answer' });
    this.past = h('ul', { class: 'history' });
    this.element = h('div', { class: 'call' }, this.#form(),
      h('div', { class: 'call-answer' }, this.outcome, this.answer),
      h('div', { class: 'call-history' }, h('h3', {}, 'History', h('button', { type: 'button', class: 'quiet small',
        onclick: () => this.#forget() }, 'clear')), this.past));
    this.#drawHistory();
    this.#offer();
  }

  #form() {
    const field = (element, label) => h('label', { for: element.id, class: `field ${element.id}` },
      h('span', { text: label }), element);
    return h('form', { onsubmit: (event) => { event.preventDefault(); this.#call(); } },
      this.topics,
      h('div', { class: 'pair' }, field(this.topic, 'Topic'), field(this.rank, 'Rank')),
      field(this.payload, 'Payload (JSON object; empty for none)'), this.wrong,
      h('div', { class: 'actions' }, h('label', { class: 'check', for: 'call-streaming' }, this.streaming, 'streaming'),
        h('span', { class: 'spring' }), this.cancel, this.publish, this.send));
  }

  /**
   * Call through this client.
   * @param {import('../client.js').Client} client
   * @param {import('../model/access.js').Access} access
   */
  attach(client, access) {
    this.#client = client;
    this.#access = access;
  }

  /** Methods that somebody called, to be offered. @param {{kind: string, name: string}[]} rows */
  suggest(rows) {
    this.#called = rows.filter(({ kind }) => kind === 'call').map(({ name }) => name);
    this.#offer();
  }

  /** Offer the services of clients, too, wherever they are. */
  async #lookAround() {
    if (!this.#client || await this.#access.refusal('call', PROVIDERS)) return;
    try {
      this.#services = Object.keys((await this.#client.rpc(PROVIDERS)).services).map((name) => `${name}.`);
    } catch {
      return; // a broker that does not know them, or away
    }
    this.#offer();
  }

  #offer() {
    const known = [...TOPICS, ...this.#called];
    const bare = this.#services.filter((service) => !known.some((topic) => topic.startsWith(service)));
    keep(this.topics, [...new Set([...known, ...bare])].sort(), () => h('option'), (option, topic) => mark(option, 'value', topic));
  }

  #key(event) {
    if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    this.send.form.requestSubmit();
  }

  /** The payload; undefined when it cannot be sent. */
  #check() {
    const text = this.payload.value.trim();
    let value = null;
    let why = '';
    try {
      if (text) value = JSON.parse(text);
      if (text && (typeof value !== 'object' || value === null || Array.isArray(value))) why = 'A payload is a JSON object.';
    } catch (error) {
      why = error.message;
    }
    say(this.wrong, why);
    this.payload.toggleAttribute('aria-invalid', Boolean(why));
    return why ? undefined : value;
  }

  async #call() {
    const payload = this.#check();
    if (payload === undefined || !this.#client) return;
    this.#cancel();
    const rank = this.rank.value.trim();
    const asked = {
      topic: this.topic.value.trim(), rank: rank === 'any' ? '' : rank, payload: this.payload.value.trim(),
      streaming: this.streaming.checked,
    };
    this.#remember(asked);
    const running = { began: performance.now(), count: 0, stream: null, abort: new AbortController() };
    this.#running = running;
    this.cancel.disabled = false;
    this.answer.replaceChildren();
    this.#tell('busy', `Waiting for ${asked.topic}…`);
    try {
      await this.#carryOut(asked, payload, running);
    } catch (error) {
      if (this.#running === running) await this.#failed(asked, error, running);
    }
    if (this.#running !== running) return;
    this.#running = null;
    this.cancel.disabled = true;
  }

  async #publish() {
    const payload = this.#check();
    if (payload === undefined || !this.#client || !this.send.form.reportValidity()) return;
    this.#cancel();
    const topic = this.topic.value.trim();
    this.answer.replaceChildren();
    try {
      this.#tell('good', `Published as event ${await this.#client.publish(topic, payload)}`);
    } catch (error) {
      this.#tell('bad', error.name);
      this.answer.textContent = error.text ?? error.message;
      if (isDenied(error)) this.answer.textContent += `\n\n${await this.#access.needs('publish', topic)}`;
    }
  }

  async #carryOut({ topic, rank, streaming }, payload, running) {
    const nodeid = rank === '' ? undefined : Number(rank);
    if (!streaming) {
      const value = await this.#client.rpc(topic, payload, { nodeid, signal: running.abort.signal });
      this.answer.textContent = pretty(value);
      this.#tell('good', `Answered in ${latency(performance.now() - running.began)}`);
      return;
    }
    running.stream = this.#client.stream(topic, payload, { nodeid });
    for await (const value of running.stream) {
      if (this.#running !== running) return;
      running.count += 1;
      this.#show(value, running);
    }
    this.#tell('good', `${running.cancelled ? 'Cancelled' : 'Ended'} after ${running.count} responses`);
  }

  #show(value, running) {
    const text = preview(value, 4000);
    const near = this.answer.scrollTop + this.answer.clientHeight >= this.answer.scrollHeight - 30;
    this.answer.append(h('code', { class: 'response', text }));
    if (this.answer.children.length > SHOWN) this.answer.firstElementChild.remove();
    if (near) this.answer.scrollTop = this.answer.scrollHeight;
    this.#tell('busy', `${running.count} responses so far`);
  }

  async #failed({ topic }, error, running) {
    if (error.name === 'AbortError') {
      this.#tell('bad', 'Cancelled: nobody waits for the answer any more');
      return;
    }
    const code = error instanceof FluxError ? `${error.name} (${error.errno})` : error.name;
    this.#tell('bad', `${code} after ${latency(performance.now() - running.began)}`);
    this.answer.textContent = error.text ?? error.message;
    if (isDenied(error)) this.answer.textContent += `\n\n${await this.#access.needs('call', topic)}`;
    if (error.errno === ERRNO.EPROTO) {
      this.answer.textContent += '\n\nThe payload, or the streaming flag, is not what the method takes.';
    }
  }

  #cancel() {
    const running = this.#running;
    if (!running) return;
    running.cancelled = true;
    if (running.stream) running.stream.cancel();
    else running.abort.abort();
  }

  #tell(mood, text) {
    this.outcome.dataset.mood = mood;
    say(this.outcome, text);
  }

  // -- history -----------------------------------------------------------------------------------

  #remember(asked) {
    const same = (other) => ['topic', 'rank', 'payload', 'streaming'].every((key) => other[key] === asked[key]);
    this.#history = [{ ...asked, at: Date.now() }, ...this.#history.filter((each) => !same(each))].slice(0, HISTORY);
    save(this.#history);
    this.#drawHistory();
  }

  #forget() {
    this.#history = [];
    save(this.#history);
    this.#drawHistory();
  }

  #drawHistory() {
    const rows = this.#history.map((asked) => h('li', {}, h('button', {
      type: 'button', class: 'past', title: `${clock(new Date(asked.at))} ${asked.payload}`, onclick: () => this.#again(asked),
    }, h('b', { text: asked.topic }),
    h('span', { class: 'muted', text: [asked.rank && `rank ${asked.rank}`, asked.streaming && 'streaming', asked.payload]
      .filter(Boolean).join(' · ') }))));
    this.past.replaceChildren(...rows);
    this.past.dataset.empty = rows.length ? '' : 'Calls you make are kept here, in this browser.';
  }

  #again(asked) {
    this.topic.value = asked.topic;
    this.rank.value = asked.rank;
    this.payload.value = asked.payload;
    this.streaming.checked = asked.streaming;
    this.#check();
    this.send.focus();
  }
}
