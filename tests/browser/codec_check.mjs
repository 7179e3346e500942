// Run by test_client_codec.py: `node codec_check.mjs FOLDER < cases.json`, prints what client.js makes of each case.
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const load = (name) => import(pathToFileURL(`${process.argv[2]}/${name}`));
const [message, wire, jsonview, closes, hostlist, errors, backoff] = await Promise.all(
  ['client/message.js', 'client/wire.js', 'client/jsonview.js', 'client/closes.js', 'lib/hostlist.js', 'client/errors.js', 'client/backoff.js'].map(load));
const hex = (bytes) => Buffer.from(bytes).toString('hex');
const unhex = (text) => new Uint8Array(Buffer.from(text, 'hex'));
const attempt = (work) => {
  try {
    return work();
  } catch (error) {
    return { error: error.constructor.name, ...(error.errno && { errno: error.errno }) };
  }
};

const PAYLOADS = {
  halfText: 'cut \ud83d',
  nulText: 'a\0b',
  half: { text: 'cut \ud83d' },
  halfKey: { '\udc00': 1 },
  lowFirst: { text: '\ude00\ud83d' },
  date: new Date(0),
  invalidDate: new Date(NaN),
  asText: { toJSON: () => '{"a":1}' },
  asList: { toJSON: () => [1] },
  asNothing: { toJSON: () => undefined },
  boxed: Object('a text'),
  deep: nested(513),
  tooDeepToWrite: nested(20_000),
  circular: (() => { const it = {}; it.it = it; return it; })(),
  big: { n: 1n },
  throws: { toJSON() { throw new Error('not me'); } },
  deepest: nested(512),
  pair: { text: '\ud83d\ude00', escaped: '\\ud83d', brackets: '[{'.repeat(600) },
  shape: { toJSON: () => ({ a: 1 }) },
};

function nested(depth) {
  let found = {};
  for (let level = 1; level < depth; level += 1) found = { a: found };
  return found;
}

const THROWN = [
  new errors.FluxError(1, 'no \ud83d\0'), new errors.FluxError(0, 'zero'), new errors.FluxError(2 ** 32, 'large'),
  new errors.FluxError(1.5, 'half'), new errors.FluxError(undefined), null, undefined, 'a text', Object.create(null), Symbol('s'),
  { text: { toString() { throw new Error('worse'); } } }, new Error('x'.repeat(100_000)),
];

const shown = (each) => ({
  type: each.type, topic: each.topic, flags: each.flags, userid: each.userid, rolemask: each.rolemask, aux1: each.aux1,
  aux2: each.aux2, routes: each.routes.map(hex), payload: each.payload.bytes === null ? null : hex(each.payload.bytes),
});

const doings = {
  decode: ({ data }) => wire.decode(unhex(data)).map(shown),
  again: ({ data }) => wire.decode(unhex(data)).map((each) => hex(wire.encode(each))).join(''),
  request: ({ topic, payload, options }) => hex(wire.encode(message.request(topic, payload, options))),
  bytes: ({ topic, payload, options }) => hex(wire.encode(message.request(topic, unhex(payload), options))),
  answer: ({ data, payload, errnum }) => hex(wire.encode(message.response(wire.decode(unhex(data))[0], payload, errnum))),
  view: ({ data }) => wire.decode(unhex(data)).map((each) => jsonview.encode(each)),
  unview: ({ object }) => shown(jsonview.decode(object)),
  send: ({ topic = 'a.b', payload, codec }) => {
    const asked = message.request(topic, PAYLOADS[payload], { matchtag: 7 });
    return typeof { wire, jsonview }[codec].toSocket(asked);
  },
  frame: ({ payload }) => JSON.parse(jsonview.toSocket(message.request('a.b', PAYLOADS[payload], { matchtag: 7 }))),
  value: ({ data }) => message.Payload.fromBytes(unhex(data)).value,
  thrown: ({ data }) => THROWN.map((error) => {
    const answer = message.failed(wire.decode(unhex(data))[0], error);
    jsonview.toSocket(answer);
    return [answer.errnum, answer.payload.text.length, answer.payload.text.slice(0, 20)];
  }),
  closes: ({ code }) => closes.closeMeaning(code),
  pauses: ({ lives }) => {
    let now = 0;
    const random = Math.random;
    Math.random = () => 1;
    const pauses = new backoff.Backoff({ minMs: 100, maxMs: 1000 }, () => now);
    const found = lives.map((lived) => {
      if (lived) pauses.connected();
      now += lived;
      return [pauses.next(), pauses.attempt];
    });
    Math.random = random;
    return found;
  },
  hosts: ({ text }) => hostlist.expand(text),
};

const cases = JSON.parse(readFileSync(0, 'utf8'));
console.log(JSON.stringify(cases.map(({ doing, ...given }) => attempt(() => doings[doing](given)))));
