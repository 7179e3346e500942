// Run by test_client_codec.py: `node codec_check.mjs FOLDER < cases.json`, prints what client.js makes of each case.
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const load = (name) => import(pathToFileURL(`${process.argv[2]}/${name}`));
const [message, wire, jsonview, closes, hostlist] = await Promise.all(
  ['client/message.js', 'client/wire.js', 'client/jsonview.js', 'client/closes.js', 'lib/hostlist.js'].map(load));
const hex = (bytes) => Buffer.from(bytes).toString('hex');
const unhex = (text) => new Uint8Array(Buffer.from(text, 'hex'));
const attempt = (work) => {
  try {
    return work();
  } catch (error) {
    return { error: error.constructor.name };
  }
};

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
  closes: ({ code }) => closes.closeMeaning(code),
  hosts: ({ text }) => hostlist.expand(text),
};

const cases = JSON.parse(readFileSync(0, 'utf8'));
console.log(JSON.stringify(cases.map(({ doing, ...given }) => attempt(() => doings[doing](given)))));
