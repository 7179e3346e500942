/**
 * The charts and tables of the history: each knows which answer it shows and how.
 * @module
 */

import { errnoName } from '../client/errors.js';
import { stamp } from '../lib/axis.js';
import { Chart } from '../lib/chart.js';
import { h } from '../lib/dom.js';
import { duration, latency, rate, short, size } from '../lib/format.js';
import { Table } from '../lib/table.js';

const UNKNOWN = 4294967295;
const TONES = {
  request: 'request', response: 'response', event: 'event', control: 'control', nfp: 'ok', oslo: 'pink', other: 'control',
  done: 'ok', completed: 'ok', running: 'request', failed: 'bad', expired: 'response', cancelled: 'control', debug: 'control',
  audit: 'ok', info: 'response', sample: 'request', warn: 'warn', error: 'bad', critical: 'ink',
};
const PALETTE = ['request', 'response', 'event', 'ok', 'pink', 'olive', 'control', 'ink'];
const UUID = /^([0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$/;
const BRIEF = 29;
const BRIEF_TOPIC = 48;
const RESOLVED_NS = 100_000;
const FINE_S = 3 * 3600;
const SERVED = { own: 'a built-in service', client: "a client's service" };

/** A batch of messages is dated as one: what takes less than it does is not told apart. */
const took = (ns) => (ns < RESOLVED_NS ? '< 0.1 ms' : latency(ns / 1e6));
const ms = (ns) => (ns === null || ns === undefined ? '–' : took(ns));
const text = (value) => (value === null || value === undefined || value === '' ? '–' : String(value));
const user = (value) => (value === UNKNOWN || value === null ? 'unknown' : String(value));
const errno = (value) => (value === null || value === undefined ? '–' : errnoName(value));
const wrong = (value) => (value ? 'bad' : null);

/** Of a UUID its begin, of any other long name its begin and its end. */
function brief(value, most) {
  const said = text(value);
  if (UUID.test(said)) return `${said.slice(0, 8)}…`;
  const head = Math.floor(most / 3);
  return said.length <= most ? said : `${said.slice(0, head)}…${said.slice(head + 1 - most)}`;
}

/** A colour for each name, no two alike as long as there are enough. */
function toned(names) {
  const given = names.map((name) => TONES[name.toLowerCase()]);
  const free = PALETTE.filter((tone) => !given.includes(tone));
  return given.map((tone, at) => tone ?? free.shift() ?? PALETTE[at % PALETTE.length]);
}

/** Rows that know whether their time is told to the second. */
const dated = (answer, rows) => rows.map((row) => ({ ...row, fine: answer.until - answer.since <= FINE_S }));
const time = { name: 'time', text: (row) => stamp(row.ts, row.fine) };
const rank = { name: 'rank', number: true, text: (row) => text(row.rank) };
const column = (name, of = (row) => row[name], most = name === 'topic' || name === 'service' ? BRIEF_TOPIC : BRIEF) => ({
  name,
  text: (row) => brief(of(row), most),
  title: (row) => (brief(of(row), most) === text(of(row)) ? null : text(of(row))),
});
const count = (name, of = (row) => row[name], mood = undefined) => ({ name, number: true, text: (row) => short(of(row) ?? 0), mood });

/** What is drawn of an answer. @param {string} question @param {HTMLElement[]} parts @param {(answer: object) => void} draw */
const block = (question, parts, draw) => ({ question, element: h('div', { class: `history-block history-${question}` }, parts), draw });

const lined = (answer, lines) => ({ times: answer.times, step: answer.step_s, lines });

/** The lines of an answer that has some. */
function series(answer, value = (n) => n) {
  const tones = toned(answer.series.map(({ name }) => name));
  return lined(answer, answer.series.map(({ name, n }, at) => ({ name, tone: tones[at], values: n.map(value) })));
}

export function traffic() {
  const chart = new Chart('Traffic', 'messages/s in', {
    format: rate, empty: 'No messages in this time.',
  });
  return block('traffic', [chart.element], (answer) => chart.draw(series(answer, (n) => n / answer.step_s)));
}

/** Where in the tree the time goes. */
export function tree() {
  const table = new Table('Where in the tree the time goes', [
    column('from'), column('to', (row) => SERVED[row.to] ?? row.to), count('calls', (row) => row.n),
    { name: 'mean', number: true, text: (row) => ms(row.mean_ns) },
    { name: 'share', number: true, text: (row) => (row.share === null ? '–' : `${Math.round(row.share * 100)} %`) },
  ], 'No answered calls in this time.');
  return block('tree', [table.element], (answer) => table.draw(answer.steps.slice(0, 12)));
}

export function errors() {
  const empty = 'No errors in this time.';
  const chart = new Chart('Errors', 'per step, by errno', { bars: true, format: short, empty });
  const table = new Table('Errors by topic', [
    column('topic'), { name: 'why', text: (row) => errno(row.errno) }, column('what', (row) => row.kind),
    count('errors', (row) => row.n, () => 'bad'),
  ], empty);
  return block('errors', [chart.element, table.element], (answer) => {
    chart.draw(series(answer));
    table.draw(answer.by.slice(0, 12));
  });
}

export function latencies() {
  const chart = new Chart('Latency', 'until the first answer; < 0.1 ms: recorded together with it', {
    zeros: true, format: (value) => (value ? latency(value) : '0'), read: (value) => took(value * 1e6), empty: 'No calls in this time.',
  });
  const table = new Table('Calls by topic', [
    column('topic'), count('calls', (row) => row.n),
    { name: 'median', number: true, text: (row) => ms(row.p50_ns) }, { name: '95 %', number: true, text: (row) => ms(row.p95_ns) },
    { name: '99 %', number: true, text: (row) => ms(row.p99_ns) }, { name: 'longest', number: true, text: (row) => ms(row.max_ns) },
    count('unanswered', (row) => row.unmatched_no_response, (row) => wrong(row.unmatched_no_response)),
    count('not captured', (row) => row.not_captured),
  ], 'No calls in this time.');
  return block('latency', [chart.element, table.element], (answer) => {
    const names = [['p50_ns', 'median', 'ok'], ['p95_ns', '95 %', 'request'], ['p99_ns', '99 %', 'response'], ['max_ns', 'longest', 'bad']];
    chart.draw(lined(answer, names.map(([key, name, tone]) => (
      { name, tone, values: answer[key].map((value) => (value === null ? null : value / 1e6)) }))));
    table.draw(answer.topics);
  });
}

export function talkers() {
  const columns = [
    count('messages', (row) => row.n), { name: 'bytes', number: true, text: (row) => size(row.bytes) },
    count('errors', undefined, (row) => wrong(row.errors)),
  ];
  const users = new Table('Top users', [
    { name: 'userid', text: (row) => user(row.userid) }, ...columns, count('requests'), count('events'),
  ], 'Nobody sent anything in this time.');
  const topics = new Table('Top topics', [column('topic'), ...columns], 'No topics in this time.');
  const services = new Table('Top services', [column('service'), ...columns], 'No services in this time.');
  return block('talkers', [users.element, topics.element, services.element], (answer) => {
    users.draw(answer.by_userid.slice(0, 10));
    topics.draw(answer.by_topic.slice(0, 10));
    services.draw(answer.by_service.slice(0, 10));
  });
}

export function denied() {
  const chart = new Chart('Denied access', 'per step', { bars: true, format: short, empty: 'Nothing was refused in this time.' });
  const table = new Table('Newest refusals', [
    time, { name: 'userid', text: (row) => user(row.userid) }, column('topic'), { name: 'why', text: (row) => errno(row.errno) },
    column('from', (row) => row.peer), rank,
  ], 'Nothing was refused in this time.');
  return block('denied', [chart.element, table.element], (answer) => {
    chart.draw(lined(answer, [{ name: 'refused', tone: 'warn', values: answer.n }]));
    table.draw(dated(answer, answer.newest.slice(0, 12)));
  });
}

export function order() {
  const verdict = h('p', { class: 'verdict' });
  const table = new Table('Pairs out of order', [
    column('from', (row) => row.origin), column('to', (row) => row.peer), column('type'), rank, count('messages', (row) => row.n),
    count('out of order', (row) => row.out_of_order, (row) => wrong(row.out_of_order)),
    count('missing', (row) => row.missing, (row) => wrong(row.missing)),
  ], 'No pair of endpoints has a message out of order or missing.');
  const gaps = new Table('Event numbers', [
    time, column('what', (row) => row.kind), column('from', (row) => row.peer), rank,
    { name: 'after', number: true, text: (row) => text(row.prev_seq) }, { name: 'came', number: true, text: (row) => text(row.next_seq) },
    count('missing', (row) => row.missing, (row) => wrong(row.missing)),
  ], 'The numbers of events follow each other.');
  return block('order', [h('h3', { text: 'Order of deliveries' }), verdict, table.element, gaps.element], (answer) => {
    const faults = answer.out_of_order + answer.missing;
    verdict.textContent = answer.pairs
      ? `${short(answer.messages)} messages between ${short(answer.pairs)} pairs of endpoints were checked: `
        + (faults ? `${short(answer.out_of_order)} out of order, ${short(answer.missing)} missing.` : 'all in order.')
      : 'Nothing was checked: that needs deliveries, too, journal.capture = "both".';
    verdict.dataset.mood = faults ? 'bad' : answer.pairs ? 'ok' : 'none';
    table.draw(answer.findings.slice(0, 12));
    gaps.draw(dated(answer, answer.event_gaps.slice(0, 12)));
  });
}

export function slow() {
  const chart = new Chart('Slow consumers', 'events and answers lost per step', {
    bars: true, format: short, empty: 'Nobody was too slow in this time.',
  });
  const table = new Table('Who lost', [
    column('who', (row) => row.peer), rank, column('what'), count('messages', (row) => row.events),
    { name: 'bytes', number: true, text: (row) => (row.bytes ? size(row.bytes) : '–') },
  ], 'Nobody was too slow in this time.');
  return block('slow', [chart.element, table.element], (answer) => {
    chart.draw(lined(answer, [{ name: 'lost', tone: 'bad', values: answer.events }]));
    table.draw(answer.by.slice(0, 12));
  });
}

export function jobs() {
  const empty = 'No jobs in this time; headgate nfp broker --journal DIR records them.';
  const chart = new Chart('Jobs', 'submitted per step', { bars: true, format: short, empty });
  const table = new Table('Jobs by task', [
    column('service'), column('task'), count('jobs', (row) => row.n),
    { name: 'mean', number: true, text: (row) => ms(row.mean_ns) },
    { name: 'outcome', text: (row) => Object.entries(row.statuses).map(([name, n]) => `${n} ${name}`).join(', ') },
  ], empty);
  return block('jobs', [chart.element, table.element], (answer) => {
    chart.draw(series(answer));
    table.draw(answer.tasks.slice(0, 12));
  });
}

export function notifications() {
  const empty = 'No notifications in this time; headgate oslo proxy --journal DIR records them.';
  const chart = new Chart('Notifications', 'per step, by priority', { bars: true, format: short, empty });
  const table = new Table('Notifications by type', [
    column('type', (row) => row.event_type, BRIEF_TOPIC), column('publisher', (row) => row.publisher_id), count('notifications', (row) => row.n),
    { name: 'bytes', number: true, text: (row) => size(row.bytes) },
  ], empty);
  return block('notifications', [chart.element, table.element], (answer) => {
    chart.draw(series(answer));
    table.draw(answer.by.slice(0, 12));
  });
}

/** The jobs of the pipeline themselves. */
export function runs() {
  const table = new Table('Runs of the pipeline', [
    { name: 'ended', text: (row) => stamp(row.finished_at) }, column('job'), count('read', (row) => row.rows_in),
    count('written', (row) => row.rows_out), count('damaged', (row) => row.bad_blocks, (row) => wrong(row.bad_blocks)),
    count('lost', (row) => row.lost_records, (row) => wrong(row.lost_records)),
    { name: 'took', number: true, text: (row) => duration(row.duration_s ?? NaN) },
  ], 'The pipeline has not run yet: headgate pipeline batch --journal JOURNAL --warehouse WAREHOUSE.');
  return block('summary', [table.element], (answer) => table.draw(answer.runs.slice(0, 12)));
}
